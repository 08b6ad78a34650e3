# test-timeout: 900
# test-takes: 60
"""--recover: after a rank has failed the others go on in the same processes, from the newest checkpoint, and end in the
state of a run that was left alone; on fewer ranks too, where bits do not depend on their number."""

import resource
import signal

from runs import *

folder = work_folder()
STEPS = 1200
LONG = {"steps": STEPS, "save_every": 50, "layers": 2, "reproducible": True, "heartbeat": 0.02}
whole = train("whole", **LONG)


def training_since(name, since, process, seconds=60):
    """Seconds from `since` to the first heartbeat of a step that was taken after it."""
    wait_for(lambda: heartbeat(name)["phase"] == "training" and heartbeat(name)["time"] > since, process, seconds)
    return heartbeat(name)["time"] - since


def ended(process, name, code=0):
    _, err = process.communicate(timeout=300)
    expect(process.returncode == code, "%s ended with %d: %s" % (name, process.returncode, err.decode()))
    return err.decode(errors="replace")


# Threads: a save that fails is the failure. No file may grow for a while, which is as a full disk.
for name, options, ranks in (("threads", {}, 2), ("fewer-threads", {"recover_ranks": 1}, 1)):
    process = start(name, recover=2, most_failed_saves=0, channels=64, **(LONG | options))
    wait_for(lambda: heartbeat(name)["step"] >= 150, process)
    before = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1 << 14, before[1]))
    line = b""
    while b"a rank has failed" not in line and process.poll() is None:
        line = process.stderr.readline()
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, before)
    seconds = training_since(name, time.time(), process)
    err = line.decode() + ended(process, name)
    found = summary(name)
    if name == "threads":
        threads = train("whole-threads", channels=64, **LONG)
    expect(found["state_hash"] == threads["state_hash"] and found["ranks"] == ranks, "%s: %r" % (name, found))
    expect(found["restarts"] == 1 and "could not be saved" in err and "recovery 1 of 2, with %d ranks" % ranks in err,
           "%s: %r %s" % (name, found, err))
    print("%s: %.2f s to the next step, %d steps lost" % (name, seconds, found["lost_steps"]))


def by_hand(name, ranks, **options):
    """Processes as a script starts them, which leaves the others alone when one is killed."""
    return [subprocess.Popen(one_process(name, **options), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             env=without_launcher(TMPDIR=folder, TRIREME_RANK=str(rank), TRIREME_SIZE=str(ranks),
                                                  TRIREME_JOB=folder + name)) for rank in range(ranks)]


if HAS_MPI:
    # Whichever is killed, the others go on; rank 0, too.
    for victim in (0, 1, 2):
        name = "killed-%d" % victim
        processes = by_hand(name, 4, recover=3, **LONG)
        rest = [each for each in processes if each is not processes[victim]]
        wait_for(lambda: heartbeat(name)["phase"] == "training" and heartbeat(name)["step"] >= 150, rest[0])
        processes[victim].kill()
        # Reproducible sums need a power of two of ranks: the ranks that have met again report that three are not.
        err = "".join(ended(each, name, code=1) for each in rest)
        expect("recovery 1 of 3, with 3 ranks" in err and "on 3 ranks: reproducible sums need a power of two" in err,
               "%s on three ranks: %s" % (name, err))

    for victims in ((0, 1), (2, 3), (1, 2)):
        name = "killed-%d-%d" % victims
        processes = by_hand(name, 4, recover=3, recover_ranks=2, **LONG)
        rest = [each for number, each in enumerate(processes) if number not in victims]
        wait_for(lambda: heartbeat(name)["phase"] == "training" and heartbeat(name)["step"] >= 150, rest[0])
        begun = time.time()
        for each in victims:
            processes[each].kill()
        seconds = training_since(name, begun, rest[0])
        err = "".join(ended(each, name) for each in rest)
        for each in victims:
            processes[each].communicate()
        found = summary(name)
        expect(found["state_hash"] == whole["state_hash"] and found["ranks"] == 2 and found["restarts"] == 1,
               "%s: %r" % (name, found))
        expect(err.count("recovery 1 of 3, with 2 ranks") == 1, "%s said: %s" % (name, err))
        print("%s: %.2f s to the next step, %d steps lost" % (name, seconds, found["lost_steps"]))

    # mpirun ends all of its ranks.
    process = start("mpirun", mpi=True, recover=3, **LONG)
    wait_for(lambda: heartbeat("mpirun")["step"] >= 150, process)
    os.kill(heartbeat("mpirun")["process"], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    expect(process.returncode != 0 and b"recovery" not in err, "under mpirun: " + err.decode(errors="replace"))

# What would fail again is not tried again.
code, _, err = attempt("again", rate=1e30, steps=5, recover=3)
expect(code == 1 and "recovery" not in err, "a run that was lost was tried again: " + err)
code, _, err = attempt("many", recover=3, recover_ranks=3)
expect(code == 1 and "there are 2 ranks" in err, "--recover-ranks 3 of 2: " + err)
finish(folder)
