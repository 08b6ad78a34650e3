# test-timeout: 900
# test-takes: 70
"""A run that is broken off goes on by itself: --resume=auto begins or goes on, scripts/supervise starts again, and the
state at the end is that of a run that was left alone. What was wrong from the start is not tried again."""

import resource
import signal

from runs import *

folder = work_folder()
SUPERVISE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "supervise")
LONG = {"save_every": 100, "layers": 2, "heartbeat": 0.02}
# Two seconds of training, which leave time to kill it; on a quick machine several tenths of a second.
STEPS = 100 * round(4 / train("speed", reproducible=True, steps=200, **LONG)["seconds"])
STEPS = min(2000, max(600, STEPS))
LONG["steps"] = STEPS


def supervised(name, *flags, ranks=2, mpi=False, **options):
    line = [SUPERVISE, "--ranks", str(ranks), *flags, "--heartbeat", "runs/%s/heartbeat.json" % name]
    if mpi:
        line += ["--mpi", "--", PROCESSES]
    else:
        line += ["--", THREADS, "--ranks", str(ranks)]
    return subprocess.Popen(line + ["--name", name] + as_arguments(TINY | options), stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, env=environment(), preexec_fn=os.setpgrp)


def wait_for_step(name, step, process, killed=()):
    """Until the run has a heartbeat of a step from `step` on, of no process in `killed`: the process that wrote it."""
    last = {}

    def there():
        last.update(heartbeat(name))
        return last["step"] >= step and last["phase"] == "training" and last["process"] not in killed

    if not wait_for(there, process):  # and no process, 0, may be killed: that is the test's own group
        sys.exit("%s: no heartbeat of step %d of another process than %r: %r" % (name, step, killed, last))
    return last["process"]


def ended(process, code=0, timeout=300):
    out, err = process.communicate(timeout=timeout)
    expect(process.returncode == code, "exit code %d, not %d: %s" % (process.returncode, code, err.decode()))
    return err.decode()


whole = train("whole", reproducible=True, **LONG)
expect(whole["restarts"] == 0 and whole["lost_steps"] == 0, "a run that was left alone has restarts")
expect(heartbeat("whole")["phase"] == "ended" and heartbeat("whole")["step"] == STEPS, "the last heartbeat")

# --resume=auto begins what is not there, and goes on with what is.
first = start("auto", **{"reproducible": True, "resume=auto": True} | LONG)
wait_for_step("auto", 150, first)
first.kill()
first.communicate()
reached = heartbeat("auto")["step"]
done = train("auto", **{"reproducible": True, "resume=auto": True} | LONG)
expect(done["state_hash"] == whole["state_hash"], "--resume=auto has another state")
expect(done["restarts"] == 1 and 0 <= done["lost_steps"] <= reached, "its summary: %r" % done)
again = train("auto", **{"resume=auto": True} | LONG)
expect(again["state_hash"] == whole["state_hash"] and again["restarts"] == 1, "a run that had ended: %r" % again)
shutil.rmtree("runs/auto/checkpoint")
code, _, err = attempt("auto", **{"resume=auto": True} | LONG)
expect(code == 1 and "its checkpoints are gone" in err, "--resume=auto without its checkpoints: " + err)
code, _, err = attempt("auto", **{"resume=maybe": True} | LONG)
expect(code == 1 and "--resume=auto" in err, "--resume=maybe: " + err)

# A program that is killed is started again, twice; with fewer ranks if that is allowed.
process = supervised("killed", "--restarts", "2", reproducible=True, **LONG)
killed = []
for step in (150, STEPS * 7 // 20):
    killed.append(wait_for_step("killed", step, process, killed))
    os.kill(killed[-1], signal.SIGKILL)
err = ended(process)
found = summary("killed")
expect(found["state_hash"] == whole["state_hash"], "restarted, it has another state")
expect(found["restarts"] == 2 and "restart 2 of 2" in err, "%r: %s" % (found, err))
process = supervised("fewer", "--restarts", "3", "--min-ranks", "1", reproducible=True, **LONG)
os.kill(wait_for_step("fewer", 150, process), signal.SIGKILL)
err = ended(process)
found = summary("fewer")
expect(found["ranks"] == 1 and found["state_hash"] == whole["state_hash"] and "with 1 ranks" in err,
       "with one rank fewer: %r %s" % (found, err))

# A rank under mpirun.
if HAS_MPI:
    process = supervised("mpi", "--restarts", "1", mpi=True, reproducible=True, **LONG)
    os.kill(wait_for_step("mpi", 150, process), signal.SIGKILL)
    err = ended(process)
    found = summary("mpi")
    expect(found["restarts"] == 1 and found["state_hash"] == whole["state_hash"], "mpirun: %r %s" % (found, err))

# Not tried again: what the options say wrongly, what came to its end, what was asked to leave; and no more than asked.
begun = time.monotonic()
process = supervised("wrong", "--restarts", "5", **{"layers": 0})
err = ended(process, code=1)
expect("restart" not in err and time.monotonic() - begun < 10, "a wrong option was tried again: " + err)
process = supervised("lost", "--restarts", "5", steps=5, rate=1e30)
_, err = process.communicate(timeout=60)
expect(process.returncode == 1 and b"restart" not in err, "a run that was lost was tried again: " + err.decode())
process = supervised("left", "--restarts", "5", steps=100000)
wait_for_step("left", 20, process)
process.send_signal(signal.SIGTERM)
err = ended(process)
expect("restart" not in err and heartbeat("left")["phase"] == "ended", "asked to leave: " + err)
process = supervised("often", "--restarts", "1", steps=100000)
killed = []
for _ in range(2):
    killed.append(wait_for_step("often", 0, process, killed))
    os.kill(killed[-1], signal.SIGKILL)
ended(process, code=137)

# Saves that fail are warnings, until there are too many of them in a row. No file of the run may be longer for a while
# than its checkpoints are: that fails as a full disk does.
large = {"channels": 128, "layers": 2, "steps": 200, "save_every": 10, "heartbeat": 0.02}
train("whole-large", **large)
for most, code in ((100, 0), (1, 1)):
    name = "full-%d" % most
    process = start(name, most_failed_saves=most, **large)
    wait_for(lambda: heartbeat(name)["phase"] == "training", process)
    before = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    begun = heartbeat(name)["step"]
    wait_for(lambda: heartbeat(name)["step"] >= begun + 40, process, seconds=300)
    if process.poll() is None:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, before)
    _, err = process.communicate(timeout=120)
    expect(process.returncode == code and b"could not be saved (" in err and
           (b"training goes on" if code == 0 else b"nor could the 1 before it") in err, "%s: %d, %s" %
           (name, process.returncode, err.decode()))
    if code == 0:
        expect(summary(name)["state_hash"] == summary("whole-large")["state_hash"], "after saves that failed")
finish(folder)
