# test-timeout: 600
"""A rank that is slower than the others for long is named."""

import signal
import threading

from runs import *

folder = work_folder()
if not HAS_MPI:
    skip("a rank can be slowed down where it is a process, but train_gpt_mpi or mpirun is not here")


process = start("slow", 2, mpi=True, channels=128, layers=2, steps=400, check_every=20, save_every=0)
said = []
reader = threading.Thread(target=lambda: said.extend(process.stderr))
reader.start()
wait_for(lambda: heartbeat("slow")["phase"] == "training", process)
victim = [pid for pid in children(process.pid) if pid != heartbeat("slow")["process"]][0]
try:  # until it is named, but not for ever
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until and not any(b"is slow" in line for line in said):
        os.kill(victim, signal.SIGSTOP)
        time.sleep(0.06)
        os.kill(victim, signal.SIGCONT)
        time.sleep(0.01)
except ProcessLookupError:
    pass
process.stdout.read()
process.wait(timeout=120)
reader.join()
err = b"".join(said).decode()
expect(process.returncode == 0 and "rank 1 is slow: its part of a step takes " in err, "it was not named: " + err)
finish(folder)
