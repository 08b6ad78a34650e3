# test-timeout: 900
"""A run belongs to one process at a time, and to one text; what it knows of the text it does not read again."""

import signal
import socket

from runs import *

folder = work_folder()
wire = {"mpi": True} if HAS_MPI else {}


def expect_refused(what, done, *words):
    code, out, err = done
    told = [line for line in err.splitlines() if line.startswith("train_gpt: ")]
    expect(code == 1 and len(told) == 1, "%s: exit code %d: %s" % (what, code, err))
    for word in words:
        expect(word in err, "%s: \"%s\" is not in: %s" % (what, word, err))


# One process at a time. Who comes second is told who is there, and changes nothing. (While it runs, only single files
# are read: others, such as its heartbeat, come and go.)
first = start("held", steps=10**6, save_every=0)
wait_for(lambda: has_begun("held"), first)
options = bytes_of("runs/held/options.json")
holder = ("another process trains here: process %d on %s, since 2" % (first.pid, socket.gethostname()), "--name")
expect_refused("a second start", attempt("held", seed=4), *holder)
expect_refused("a second start that goes on", attempt("held", resume=True), *holder)
expect_refused("a second start under mpirun", attempt("held", seed=4, **wire), *holder)
expect(bytes_of("runs/held/options.json") == options and os.listdir("runs") == ["held"],
       "a second start has changed something: %r" % os.listdir("runs"))
first.send_signal(signal.SIGKILL)  # the lock dies with it
first.communicate()
train("held", resume=True, stop_after=1)
expect(bytes_of("runs/held/lock") == b"", "the lock of a run that has ended names a holder")

# Of two that start at the same time one trains (until the other has ended), and the run is its own.
for pair in range(8):
    name = "pair-%d" % pair
    both = [start(name, seed=seed, steps=10**6) for seed in (1, 2)]
    wait_for(lambda: both[1].poll() is not None, both[0])  # until one of them has ended
    for process in both:
        if process.poll() is None:
            wait_for(lambda: has_begun(name), process)
            process.send_signal(signal.SIGTERM)
    ended = [(process.communicate(timeout=120), process.returncode) for process in both]
    codes = [code for _, code in ended]
    expect(sorted(codes) == [0, 1], "%s: exit codes %r: %r" % (name, codes, ended))
    told = b"".join(err for (_, err), code in ended if code != 0).decode()
    expect("runs/%s: another process " % name in told, "%s: who came second was told: %s" % (name, told))
    winner = codes.index(0) + 1 if 0 in codes else 0
    said = json.loads(bytes_of("runs/%s/options.json" % name))
    expect(said["seed"] == str(winner) and summary(name)["seed"] == winner, "%s: seeds are mixed: %r" % (name, said))

# A run that was killed as soon as it had its lock is none, and in nobody's way; another's file of that name is.
os.mkdir("runs/killed")
with open("runs/killed/lock", "w") as file:
    file.write('{"process":1,"host":"there"')
train("killed", steps=1)
os.mkdir("runs/foreign")
with open("runs/foreign/lock", "w") as file:
    file.write("precious")
expect_refused("a foreign lock", attempt("foreign"), "this directory has files but is not a run")
expect(content("runs/foreign") == {"runs/foreign/lock": b"precious"}, "a foreign file has changed")

# A run belongs to its text.
whole = bytes_of("text.txt")


def becomes(bytes_):
    with open("text.txt", "wb") as file:
        file.write(bytes_)


train("texts", stop_after=5)
cut = summary("texts")["held_out_begin"]
becomes(whole + b" and more and more and more of it" * 20)
for options in ({}, wire):
    expect_refused("a text that has grown", attempt("texts", resume=True, **options), "text.txt has %d bytes" %
                   (len(whole) + 660), "trained on text.txt of %d bytes" % len(whole), "--accept-new-text",
                   "split at byte %d as before" % cut)
becomes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
expect_refused("a text with another letter", attempt("texts", resume=True), "--accept-new-text")
becomes(whole[: cut + 20])
expect_refused("a text without its end", attempt("texts", resume=True, accept_new_text=True),
               "begins at byte %d and needs" % cut)
becomes(whole + b" and more and more and more of it" * 20)
found = train("texts", resume=True, accept_new_text=True, stop_after=6)
expect(found["held_out_begin"] == cut and found["held_out_windows"] == (len(whole) + 660 - cut) // 32,
       "held-out bytes have moved: %r" % found)
train("texts", resume=True, stop_after=7)  # it is the run's own text now
becomes(whole)
os.rename("text.txt", "elsewhere.txt")
train("moved", text="elsewhere.txt", stop_after=5)
os.rename("elsewhere.txt", "text.txt")
train("moved", text="text.txt", resume=True)  # a name is no text

# A text that is cut while it is in use.
for options in ({}, wire):
    process = start("cut", steps=10**6, save_every=0, **options)
    wait_for(lambda: scalars("cut", "loss/train"), process)
    os.truncate("text.txt", 1000)
    out, err = process.communicate(timeout=60)
    told = [line for line in err.decode().splitlines() if line.startswith("train_gpt: ")]
    expect(process.returncode == 1 and len(told) == 1 and "text.txt" in told[0] and "do not truncate" in told[0],
           "a text that is cut: exit code %d: %s" % (process.returncode, err.decode()[-500:]))
    becomes(whole)
    train("cut", resume=True, stop_after=3)
    shutil.rmtree("runs/cut")

# A text that a run has read is not read again, as long as nobody has touched it.
with open("sparse.txt", "wb") as file:
    file.truncate(1 << 30)
time.sleep(2.1)  # what has changed just now may change again within the same tick of the file system's clock


def processor_seconds(name, **options):
    process = subprocess.Popen(command(name, text="sparse.txt", steps=1, layers=1, **options),
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    err = process.stderr.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    expect(process.returncode == 0, "%s: %s" % (name, err))
    return used.ru_utime + used.ru_stime


once, again, by_name = processor_seconds("read"), processor_seconds("read"), processor_seconds("read-2")
expect(max(again, by_name) < once / 2, "reading took %.2f s, then %.2f s, then %.2f s" % (once, again, by_name))
print("1 GiB of text: %.2f s of a processor at the first start, then %.2f s and %.2f s" % (once, again, by_name))
about = os.stat("sparse.txt")
with open("sparse.txt", "r+b") as file:
    file.seek(1 << 29)
    file.write(b"x")
os.utime("sparse.txt", ns=(about.st_atime_ns, about.st_mtime_ns))
expect_refused("a changed text with its time set back", attempt("read", resume=True), "--accept-new-text")

# A run that has learnt nothing at its end says so.
for resume in (False, True):
    chosen = {"resume": True} if resume else {"steps": 5, "rate": 1e38}
    expect_refused("steps without finite gradients", attempt("lost", **chosen), "the last 4 steps were skipped")
    expect(summary("lost")["steps_skipped_last"] == 4, "lost: %r" % summary("lost"))
finish(folder)
