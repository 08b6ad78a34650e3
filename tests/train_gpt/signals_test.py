# test-timeout: 900
# test-takes: 45
"""Signals are heard in every phase: a run that has something to save saves it and leaves, one that has not leaves at
once; a run without a terminal goes on."""

import signal

from runs import *

folder = work_folder()
with open("text.txt", encoding="utf-8") as file:
    words = file.read()
with open("long.txt", "w", encoding="utf-8") as text:
    for _ in range(80):
        text.write(words)
SLOW = {"layers": 6, "heads": 6, "channels": 192, "context": 128, "batch": 32, "text": "long.txt", "steps": 1000,
        "sample": None}


def signalled(name, when, signals, pause=0.1, **options):
    """Starts a run, sends it signals once when(process) has returned, `pause` seconds after each other: (exit code,
    seconds that it took to leave, what it said on stderr)."""
    process = start(name, **options)
    when(process)
    begun = time.monotonic()
    for number in signals:
        process.send_signal(number)
        time.sleep(pause)
    try:
        out, err = process.communicate(timeout=90)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        err += b"it had to be killed"
    return process.returncode, time.monotonic() - begun, err.decode(errors="replace")


def expect_left(what, found, code, most_seconds, word=""):
    expect(found[0] == code and found[1] < most_seconds and word in found[2],
           "%s: exit code %d, not %d, after %.1f s: %s" % (what, found[0], code, found[1], found[2]))


def after_save(name):
    """In the first evaluation, which begins when the first checkpoint is there."""
    return lambda process: wait_for(lambda: os.path.exists("runs/%s/checkpoint/step-0000000000" % name), process)


def after_steps(name):
    return lambda process: wait_for(lambda: scalars(name, "loss/train"), process)


# While the text is read there is nothing to save.
with open("sparse.txt", "wb") as file:
    file.truncate(1 << 36)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    found = signalled("reading", lambda process: time.sleep(0.5), [number], text="sparse.txt")
    expect_left("while the text is read", found, 128 + number, 15, "anything to save")
expect(not os.path.exists("runs/reading"), "a run that was stopped before it began has a directory")

# In the first evaluation: the first checkpoint is there already.
for number in (signal.SIGTERM, signal.SIGINT):
    name = "first-" + signal.Signals(number).name
    expect_left(name, signalled(name, after_save(name), [number], **SLOW), 0, 30)
    found = summary(name)
    expect(found["steps"] == 0 and found["held_out_first"] is None, "%s: %r" % (name, found))
    again = signalled(name, lambda process: process.stderr.readline(), [number], resume=True)
    expect_left(name + ", resumed", again, 0, 30)

# A second interrupt does not wait for anything. It has to come before what the first one asked is done.
hasty = {"pause": 0.01} | SLOW | {"layers": 12, "channels": 384}
expect_left("two interrupts", signalled("two", after_save("two"), [signal.SIGINT] * 2, **hasty), 130, 30, "at once")
found = signalled("both", after_save("both"), [signal.SIGTERM, signal.SIGINT], **hasty)
expect_left("a request and an interrupt", found, 130, 30, "at once")

# Asked in training: interrupted, it still evaluates and samples; asked to leave, it does not.
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    name = "asked-" + signal.Signals(number).name
    expect_left(name, signalled(name, after_steps(name), [number], steps=10**6, save_every=0), 0, 30)
    found = summary(name)
    saved = max(os.listdir("runs/%s/checkpoint" % name))
    expect(0 < found["steps"] < 10**6 and saved == "step-%010d" % found["steps"], "%s saved %s" % (name, saved))
    complete = number == signal.SIGINT
    expect((found["held_out_last"] is not None) == complete and os.path.exists("runs/%s/model" % name) == complete,
           "%s: %r" % (name, found))

# What was started with nohup does not hear that its terminal has gone.
process = subprocess.Popen(["nohup"] + command("nohup", steps=100), stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
after_steps("nohup")(process)
process.send_signal(signal.SIGHUP)
expect(process.wait(timeout=150) == 0 and summary("nohup")["steps"] == 100, "SIGHUP has ended what nohup started")

# When the time of --grace is over it leaves as it is, and the checkpoint before is whole.
def in_its_first_step(process):
    wait_for(lambda: has_begun("late"), process)
    time.sleep(0.5)


found = signalled("late", in_its_first_step, [signal.SIGTERM], grace=1,
                  **SLOW | {"text": "text.txt", "layers": 12, "batch": 128, "channels": 384})
expect_left("a step longer than its grace", found, 128 + signal.SIGTERM, 10, "--grace is over")
expect(os.listdir("runs/late/checkpoint") == ["step-0000000000"], "late: %r" % os.listdir("runs/late/checkpoint"))

# Whoever reads the output may go: the training goes on to its end.
process = subprocess.Popen(command("unread", steps=100), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
process.stdout.readline()
process.stdout.close()
expect(process.wait(timeout=150) == 0 and summary("unread")["steps"] == 100,
       "without a reader: exit code %s" % process.returncode)

# Where the standard streams are closed, no file of the run gets their numbers.
for closed in ("2>&-", ">&-", "<&- >&- 2>&-"):
    shutil.rmtree("runs/closed", ignore_errors=True)
    done = subprocess.run(["sh", "-c", "exec \"$@\" " + closed, "sh"] + command("closed", steps=20),
                          capture_output=True)
    expect(done.returncode == 0 and len(scalars("closed", "loss/train")) == 20, "%s: %r" % (closed, done))
    for path, bytes_ in content("runs/closed").items():
        expect(b"step 1/" not in bytes_ and b"In the beginning" not in bytes_, closed + ": output lies in " + path)

if HAS_MPI:
    # Asked by SIGTERM, Open MPI asks its ranks, and kills them after a second, if it is not told to wait longer.
    os.environ["OMPI_MCA_odls_base_sigkill_timeout"] = "10"
    found = signalled("mpirun", after_steps("mpirun"), [signal.SIGTERM], mpi=True, steps=10**6, save_every=0)
    saved = max(os.listdir("runs/mpirun/checkpoint"))
    expect(saved != "step-0000000000" and summary("mpirun")["steps"] == int(saved[5:]),
           "mpirun: after %.1f s there is %s: %s" % (found[1], saved, found[2]))
    print("mpirun, asked by SIGTERM, ended with %d after %.1f s" % found[:2])

finish(folder)
