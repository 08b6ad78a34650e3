# test-timeout: 900
# test-takes: 45
"""Ranks that disagree are refused before the first step; a rank whose disk is slow keeps the others waiting, no more;
where rank 0 is killed or stands still one of the others says so, alone."""

import re
import shlex
import signal
import socket

from runs import *

folder = work_folder()
if not HAS_MPI:
    skip("train_gpt_mpi is not built")


# Two programs in one job. A shell chooses: mpirun of Open MPI 5.0.7 crashes if it is given two programs, whichever.
def job_of(first, second):
    return ["mpirun", "-n", "2", "--oversubscribe", "sh", "-c",
            "case ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} in 0) exec %s ;; *) exec %s ;; esac" %
            (shlex.join(first), shlex.join(second))]


def disagrees(what, other, *words):
    """mpirun starts rank 0 as always, rank 1 with other options."""
    job = job_of(one_process("disagree"), other)
    done = subprocess.run(job, capture_output=True, env=quiet(), timeout=60)
    told = sentences(done.stderr.decode(errors="replace"))
    expect(done.returncode != 0, what + ": trained to the end")
    expect(len(told) == 1, "%s: %d sentences: %r" % (what, len(told), done.stderr))
    for word in ("rank 0", "rank 1", *words):
        expect(told and word in told[0], "%s: \"%s\" is not in: %s" % (what, word, told))
    expect(not os.path.exists("runs/disagree"), what + ": a run was begun")


good = bytes_of("text.txt")
with open("other.txt", "wb") as file:
    file.write(good[:-1] + b"!")
disagrees("another rate", one_process("disagree", rate=0.05), "--rate is 0.002", "but 0.05")
disagrees("another batch", one_process("disagree", batch=6), "--batch is 12", "but 6")
disagrees("another dropout", one_process("disagree", dropout=0.2), "--dropout is 0.1", "but 0.2")
disagrees("another schedule", one_process("disagree", stop_after=5), "--stop-after is -1", "but 5")
disagrees("another text", one_process("disagree", text="other.txt"), "--text", "SHA-256")
disagrees("another CPU level", ["env", "TRIREME_CPU=baseline"] + one_process("disagree"), "the build",
          "CPU level baseline")
os.rename("other.txt", "elsewhere.txt")
shutil.copy("text.txt", "other.txt")
job = job_of(one_process("same"), one_process("same", text="other.txt"))
done = subprocess.run(job, capture_output=True, env=environment(), timeout=60)
expect(done.returncode == 0, "the same text in another place was refused: %r" % done.stderr)

# A disk that takes some seconds, once, to write what one rank saves, and ranks that wait for 1 s in their steps.
with open("slow.c", "w") as file:
    file.write("""#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int fsync(int number) {
  static int before;
  char link[64], path[4096] = {0};
  snprintf(link, sizeof link, "/proc/self/fd/%d", number);
  if (readlink(link, path, sizeof path - 1) > 0 && strstr(path, "rank-1.safetensors") && !before++)
    sleep(atoi(getenv("SLOW")));
  return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(number);
}
""")
compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
if compiler is None:
    print("not tested: a slow disk, which needs a C compiler")
else:
    subprocess.run([compiler, "-shared", "-fPIC", "slow.c", "-o", "slow.so", "-ldl"], check=True)
    for mpi in (False, True):
        slow = {"LD_PRELOAD": os.path.abspath("slow.so"), "SLOW": "3" if mpi else "12"}  # progress is told after 10 s
        name = "slow-mpi" if mpi else "slow"
        launched = command(name, mpi=mpi, steps=3, deadline=1, save_deadline=30)
        if mpi:
            launched[1:1] = ["-x", "LD_PRELOAD", "-x", "SLOW"]
        done = subprocess.run(launched, capture_output=True, env=environment() | slow, timeout=120)
        expect(done.returncode == 0, "%s: a slow save ended the job: %r" % (name, done.stderr))
        for rank in () if mpi else (0, 1):
            expect(b"saving: rank %d " % rank in done.stderr, "%s: no progress is told: %r" % (name, done.stderr))
        launched = command(name + "-lost", mpi=mpi, steps=3, deadline=1, save_deadline=1)
        if mpi:
            launched[1:1] = ["-x", "LD_PRELOAD", "-x", "SLOW"]
        slow["SLOW"] = "3"
        done = subprocess.run(launched, capture_output=True, env=environment() | slow, timeout=120)
        told = sentences(done.stderr.decode(errors="replace"))
        expect(done.returncode != 0 and len(told) == 1 and "waited 1s for rank 1" in told[0] and
               told[0].endswith("or raise --save-deadline"),
               "%s: a save beyond its deadline: %d, %r" % (name, done.returncode, done.stderr))


# Rank 0 is killed, or stands still.
def torchrun_by_hand(name, ranks, **options):
    """With an agent that owns MASTER_PORT, and leaves: the processes."""
    with socket.create_server(("localhost", 0)) as agent:
        return as_torchrun(name, ranks, agent.getsockname()[1], without_launcher(TMPDIR=folder), **options)


def trains(name):
    return os.path.exists("runs/%s" % name) and len(scalars(name, "loss/train")) > 2


def rank_0_of(launcher):
    """The process of rank 0 below mpirun."""
    for each in os.listdir("/proc"):
        try:
            with open("/proc/%s/environ" % each, "rb") as file:
                variables = file.read().split(b"\0")
            with open("/proc/%s/comm" % each) as file:
                named = file.read().strip()
        except (OSError, ValueError):
            continue
        if named.startswith("train_gpt_mpi"[:15]) and b"OMPI_COMM_WORLD_RANK=0" in variables and \
                b"TRIREME_TEST_TOKEN=%d" % launcher in variables:
            return int(each)
    return None


ENDLESS = {"steps": 1000000, "save_every": 0}
ways = [("pure", {}), ("pipeline", {"parallel": "pipeline", "layers": 3})]
for way, more in ways:
    for how, number, words in (("killed", signal.SIGKILL, ("rank 0 has died",)),
                               ("stopped", signal.SIGSTOP, ("waited 2s for rank",))):
        name = "hand-%s-%s" % (way, how)
        ranks = torchrun_by_hand(name, 3, deadline=2, **ENDLESS, **more)
        expect(wait_for(lambda: trains(name), ranks[0]), name + " does not train")
        ranks[0].send_signal(number)
        told = []
        for each in ranks[1:]:
            err = each.communicate(timeout=60)[1].decode(errors="replace")
            expect(each.returncode == 1, "%s: exit code %d" % (name, each.returncode))
            told += sentences(err)
        ranks[0].kill()
        ranks[0].communicate()
        expect(len(told) == 1, "%s: %d sentences: %r" % (name, len(told), told))
        for word in words if way == "pipeline" and how == "stopped" else (*words, "rank 0"):
            expect(told and word in told[0], "%s: \"%s\" is not in: %s" % (name, word, told))
        expect(told and re.search("(all_reduce|exchange|broadcast|all_gather|reduce_scatter)", told[0]),
               "%s: no operation in: %s" % (name, told))

for how, number in (("killed", signal.SIGKILL), ("stopped", signal.SIGSTOP)):
    name = "mpirun-" + how
    token = random.SystemRandom().randrange(10**9)
    launched = command(name, ranks=3, mpi=True, deadline=2, **ENDLESS)
    launcher = subprocess.Popen(launched, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                env=quiet() | {"TRIREME_TEST_TOKEN": str(token)}, preexec_fn=os.setpgrp)
    expect(wait_for(lambda: trains(name), launcher), name + " does not train")
    rank_0 = rank_0_of(token)
    if not expect(rank_0 is not None, name + ": rank 0 was not found"):
        launcher.kill()
        continue
    os.kill(rank_0, number)
    err = launcher.communicate(timeout=60)[1].decode(errors="replace")
    told = sentences(err)
    expect(launcher.returncode != 0, name + ": mpirun ended well")
    expect(len(told) == 1 and "rank 0" in told[0], "%s: %d sentences: %r" % (name, len(told), err))

finish(folder)
