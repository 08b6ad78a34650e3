# test-timeout: 900
"""train_gpt_mpi, unchanged, under torchrun: its environment made up here with an agent that owns MASTER_PORT, and the
real one where Python has torch. The state equals that of threads and of mpirun, bit for bit."""

import socket

from runs import *

folder = work_folder()
if not HAS_MPI:
    skip("train_gpt_mpi is not built")
MEETINGS = os.path.join(folder, "tmp")
os.mkdir(MEETINGS)
CLEAN = without_launcher(TMPDIR=MEETINGS, TRIREME_LOG="1")


def torchrun_by_hand(name, ranks, agent_port, machines=1, **options):
    """As torchrun starts them: [(exit code, stderr) of each rank]."""
    out = []
    for each in as_torchrun(name, ranks, agent_port, CLEAN, machines, **options):
        stdout, stderr = each.communicate(timeout=120)
        expect(b"started by" not in stdout, "the log line is on stdout")
        out.append((each.returncode, stderr.decode(errors="replace")))
    return out


agent = socket.create_server(("localhost", 0))  # torchrun's agent: listens at MASTER_PORT and answers nobody
port = agent.getsockname()[1]

expected = train("threads")["state_hash"]
expect(train("mpirun", mpi=True)["state_hash"] == expected, "mpirun has another state")

ended = torchrun_by_hand("by-hand", 2, port)
expect([code for code, _ in ended] == [0, 0], "by hand: %r" % (ended,))
expect(summary("by-hand")["state_hash"] == expected, "torchrun by hand has another state")
logged = "".join(err for _, err in ended).count("rank 0 of 2, started by torchrun (RANK, WORLD_SIZE)")
expect(logged == 1, "who started the ranks is said %d times" % logged)
agent.settimeout(0)
try:
    agent.accept()
    expect(False, "a rank has called torchrun's agent")
except BlockingIOError:
    pass
expect(not os.listdir(MEETINGS), "left behind: %r" % os.listdir(MEETINGS))

ended = torchrun_by_hand("several", 2, port, machines=2)
expect(all(code == 1 for code, _ in ended), "several machines: %r" % (ended,))
expect("but comm::processes connects one machine" in ended[0][1], "several machines: %r" % (ended,))

if subprocess.run([sys.executable, "-c", "import torch.distributed.run"], capture_output=True, env=CLEAN).returncode:
    print("not tested: torchrun itself, because this Python (%s) has no torch" % sys.executable)
else:
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "2"] +
                          one_process("torchrun"), capture_output=True, env=CLEAN, timeout=200)
    expect(done.returncode == 0, "torchrun: " + done.stderr.decode(errors="replace"))
    expect(summary("torchrun")["state_hash"] == expected, "torchrun has another state")
    expect(not [name for name in os.listdir(MEETINGS) if name.startswith("trireme")], "torchrun left a meeting behind")

finish(folder)
