# test-timeout: 300
"""train_gpt_mpi, unchanged, under two agents of torchrun --nnodes=1:2 on this machine: the second one comes later, and
is killed later still. The run goes on with more ranks and with fewer by itself, each time from its newest checkpoint,
and is in the end in the state of a run left alone."""

import socket

from runs import *

folder = work_folder()
if not HAS_MPI:
    skip("train_gpt_mpi is not built")
if subprocess.run([sys.executable, "-c", "import torch.distributed.run"], capture_output=True,
                  env=without_launcher()).returncode:
    skip("this Python (%s) has no torch" % sys.executable)
MEETINGS = os.path.join(folder, "tmp")
os.mkdir(MEETINGS)
# Since torch 2.4 agents share a store, whose address a node that comes later waits for in vain (seen with 2.15).
CLEAN = without_launcher(TMPDIR=MEETINGS, TRIREME_LOG="1", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
# More steps than there is time for, and the same bits on any number of ranks.
RUN = {"steps": 1000000, "save_every": 50, "channels": 16, "context": 16, "reproducible": True}

with socket.create_server(("localhost", 0)) as free:
    port = free.getsockname()[1]


def agent():
    """An agent with one rank, in a session of its own."""
    options = ["--nnodes=1:2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:%d" % port,
               "--local-addr=127.0.0.1", "--rdzv-id=elastic", "--rdzv-conf=last_call_timeout=1",
               "--max-restarts=5", "--no-python"]
    program = [PROCESSES, "--name", "elastic", "--resume=auto"] + as_arguments(TINY | RUN)
    with open("agents.txt", "ab") as log:
        return subprocess.Popen([sys.executable, "-m", "torch.distributed.run"] + options + program, stdout=log,
                                stderr=log, env=CLEAN, start_new_session=True)


def step():
    """The step of the newest heartbeat; 0 while nothing trains."""
    try:
        with open("runs/elastic/heartbeat.json", encoding="utf-8") as file:
            beat = json.load(file)
            return beat["step"] if beat["phase"] == "training" else 0
    except (OSError, ValueError):
        return 0


def said():
    with open("agents.txt", encoding="utf-8", errors="replace") as log:
        return log.read()


def until(what, true, seconds=60):
    end = time.monotonic() + seconds
    begun = time.monotonic()
    while not true():
        if time.monotonic() > end or first.poll() is not None:
            print(said()[-6000:])
            raise SystemExit("not within %d s, or the first agent has ended: %s" % (seconds, what))
        time.sleep(0.02)
    print("%-50s after %5.2f s" % (what, time.monotonic() - begun), flush=True)


def kill(job):
    try:
        os.killpg(job.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    job.wait()


def ranks_of(number):
    """How often a world of that many ranks has begun."""
    return said().count("rank 0 of %d, started by torchrun" % number)


first = agent()
second = None
try:
    until("one rank trains", lambda: step() > 50)
    second = agent()
    until("two ranks have begun", lambda: ranks_of(2) > 0)
    at = step()
    until("and train", lambda: step() > at + 50)
    ranks = children(second.pid)  # each has a session of its own
    kill(second)
    for rank in ranks:
        try:
            os.kill(rank, signal.SIGKILL)
        except ProcessLookupError:
            pass
    alone = ranks_of(1)
    until("one rank has begun again", lambda: ranks_of(1) > alone)
    at = step()
    until("and trains", lambda: step() > at + 50)
    first.terminate()  # and its rank with it, which saves
    first.wait(60)
finally:
    for job in (first, second):
        if job is not None:
            kill(job)
ended = summary("elastic")
print("stopped after step %d, %d steps had to be repeated" % (ended["steps"], ended["lost_steps"]))
expected = train("alone", 1, stop_after=ended["steps"], **RUN)["state_hash"]
expect(ended["state_hash"] == expected, "another state after %d steps: %s" % (ended["steps"], said()[-3000:]))
finish(folder)
