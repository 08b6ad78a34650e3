# test-timeout: 600
"""A rank that stands still: before --deadline ends the run, each of the others writes down what it waits for."""

import signal

from runs import *

if not HAS_MPI:
    skip("train_gpt_mpi or mpirun is missing")
folder = work_folder()
process = start("still", ranks=3, mpi=True, steps=100000, deadline=6)
wait_for(lambda: heartbeat("still")["phase"] == "training" and heartbeat("still")["step"] >= 20, process)
ranks = {}
for child in children(process.pid):
    with open("/proc/%d/environ" % child, "rb") as file:
        for entry in file.read().split(b"\0"):
            if entry.startswith((b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK=")):
                ranks[int(entry.split(b"=")[1])] = child
if not expect(sorted(ranks) == [0, 1, 2], "the ranks are %r" % ranks):
    finish(folder)
os.kill(ranks[1], signal.SIGSTOP)
begun = time.monotonic()
wait_for(lambda: os.path.exists("runs/still/waiting.0") and os.path.exists("runs/still/waiting.2"), process, 20)
seconds = time.monotonic() - begun
expect(2.5 < seconds < 5.5 and process.poll() is None, "after %.1f s, and the run has ended: %r" %
       (seconds, process.poll()))
_, err = process.communicate(timeout=60)
err = err.decode(errors="replace")
expect(process.returncode != 0, "the run ended well")
for rank in (0, 2):
    try:
        with open("runs/still/waiting.%d" % rank, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        lines = []
    expect(len(lines) == 1 and " of 6s for rank 1" in lines[0] and " bytes, has waited " in lines[0],
           "rank %d wrote %r" % (rank, lines))
    expect("waiting: rank %d: " % rank in err, "rank %d did not say it: %s" % (rank, err))
    print(lines)
expect(any(each.endswith("or raise --deadline") for each in sentences(err)), "what ends the run: " + err)
expect(not os.path.exists("runs/still/waiting.1"), "the rank that stood still waited")
finish(folder)
