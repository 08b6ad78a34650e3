# test-timeout: 900
"""--preemption-notice: as soon as the file is there the run saves and leaves as on SIGTERM, and goes on from there."""

import signal

from runs import *

folder = work_folder()
LONG = {"steps": 100000, "save_every": 0}


def leave(name, how, **options):
    """Starts a run, asks it to leave once it trains: (exit code, seconds that it took, what it said)."""
    process = start(name, **LONG, **options)
    wait_for(lambda: heartbeat(name)["phase"] == "training" and heartbeat(name)["step"] >= 20, process)
    begun = time.monotonic()
    how(process)
    _, err = process.communicate(timeout=60)
    return process.returncode, time.monotonic() - begun, err.decode(errors="replace")


def touch(path):
    open(path, "w", encoding="ascii").close()


def has_left(name):
    """Whether its newest checkpoint is of its last step."""
    steps = sorted(int(path[-10:]) for path in glob.glob("runs/%s/checkpoint/step-*" % name))
    return heartbeat(name)["phase"] == "ended" and steps[-1] == heartbeat(name)["step"] == summary(name)["steps"] >= 20


asked = leave("term", lambda process: process.send_signal(signal.SIGTERM))
expect(asked[0] == 0 and has_left("term"), "SIGTERM: %d %s" % (asked[0], asked[2]))
slurm = leave("usr1", lambda process: process.send_signal(signal.SIGUSR1))
expect(slurm[0] == asked[0] and has_left("usr1"), "SIGUSR1: %d %s" % (slurm[0], slurm[2]))
for mpi in (False, True) if HAS_MPI else (False,):
    name = "notice-mpi" if mpi else "notice"
    noticed = leave(name, lambda process: touch("taken-" + name), mpi=mpi, preemption_notice="taken-" + name)
    expect(noticed[0] == asked[0] and has_left(name) and noticed[1] < 15, "the notice: %r" % (noticed,))
    expect(noticed[2].count("taken-%s exists, so the run saves and exits" % name) == 1, "it said: " + noticed[2])
    print("%s: left %.1f s after the notice" % (name, noticed[1]))

# A notice of the machine before is no notice to this run; without it the run goes on.
step = summary("notice")["steps"]
code, _, err = attempt("notice", resume=True)
expect(code == 1 and "--preemption-notice: taken-notice exists already; remove it" in err, "an old notice: " + err)
os.unlink("taken-notice")
code, _, err = attempt("notice", resume=True, stop_after=step + 5)
expect(code == 0 and summary("notice")["steps"] == step + 5, "after the notice: " + err)

# Before there is anything to save it leaves at once, as on SIGTERM.
with open("sparse.txt", "wb") as file:
    file.truncate(1 << 36)
process = start("reading", text="sparse.txt", preemption_notice="early")
time.sleep(1)
touch("early")
_, err = process.communicate(timeout=30)
expect(process.returncode == 128 + signal.SIGTERM and b"anything to save" in err, "early: %r" % err)
finish(folder)
