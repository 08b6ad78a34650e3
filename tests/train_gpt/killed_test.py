# test-timeout: 900
# test-takes: 60
"""A run that is killed at any moment and resumed ends in the same state as one that was left alone; one that is asked
to stop saves and ends well."""

import signal
import time

from runs import *

folder = work_folder()
seed = int(os.environ.get("TRIREME_TEST_SEED", random.SystemRandom().randrange(10**6)))
print("TRIREME_TEST_SEED=%d" % seed, flush=True)
draw = random.Random(seed)
STEPS = 1500


def resume_until_done(name, whole, kill=lambda: None, **options):
    """Resumes again and again, killed by `kill(process)` each time but the last: how often."""
    for times in range(100):
        if checkpoints(name):  # one that was killed before its first starts anew instead
            process = start(name, resume=True, **options)
        else:
            process = start(name, **whole, **options)
        if times < 6 and kill(process):
            process.communicate(timeout=60)
            continue
        out, err = process.communicate(timeout=120)
        expect(process.returncode == 0, "%s did not resume: %s" % (name, err.decode()))
        return times
    return 0


def expect_same(name, reference):
    expect(summary(name)["state_hash"] == summary(reference)["state_hash"], name + " has another state")
    expect(weights(name) == weights(reference), name + " has other weights")
    expect(scalars(name, "loss/train") == scalars(reference, "loss/train"), name + " has logged other losses")
    left = [f for f in os.listdir("runs/%s/checkpoint" % name) if not f.startswith("step-")]
    expect(not left, "%s left %s behind" % (name, left))


def killer(longest, one_rank):
    def kill(process):
        time.sleep(draw.uniform(0.02, longest))
        if process.poll() is not None:
            return False
        victims = children(process.pid) if one_rank else []
        if one_rank and not victims:
            return False
        return send_signal(draw.choice(victims) if one_rank else process.pid, signal.SIGKILL)

    return kill


# Killed with kill -9: at any step, and (saving after every step) within a save.
for ranks, mpi in ((2, False), (2, True)):
    if mpi and not HAS_MPI:
        continue
    for how, chosen in (("at a step", {"save_every": 50}), ("in a save", {"save_every": 1})):
        steps = STEPS if how == "at a step" else 100
        whole = chosen | {"steps": steps, "ranks": ranks}
        reference, name = "left-alone-%d" % steps, ("mpi " if mpi else "threads ") + how
        name = name.replace(" ", "-")
        if not os.path.exists("runs/" + reference):
            train(reference, **whole)
        seconds = summary(reference)["seconds"]
        options = {"mpi": True} if mpi else {}
        kill = killer(seconds / 2 + (0.5 if mpi else 0.1), mpi)
        whole.pop("ranks")
        times = resume_until_done(name, whole, kill, **options)
        print("%s: killed %d times; left alone it takes %.1f s" % (name, times, seconds))
        expect_same(name, reference)

# Killed, and resumed on other ranks under another mesh each time: the data goes on where it was.
whole = {"steps": 400, "save_every": 20, "layers": 2}
train("still", 1, reproducible=True, **whole)
kill = killer(summary("still")["seconds"] / 3 + 0.1, False)
for times in range(100):
    ranks, parallel = draw.choice(((1, "data"), (2, "zero3"), (2, "pipeline"), (4, "zero1=2,pipeline=2"), (4, "zero2")))
    begun = bool(checkpoints("moving"))
    process = start("moving", ranks, resume=begun, parallel=parallel, reproducible=True, **({} if begun else whole))
    if times < 6 and kill(process):
        process.communicate(timeout=60)
        continue
    out, err = process.communicate(timeout=120)
    where = "%s on %d ranks" % (parallel, ranks)
    expect(process.returncode == 0, "%s ended with %d: %s" % (where, process.returncode, err.decode()))
    break
print("on other ranks: killed %d times" % times)
expect_same("moving", "still")

# Left after some steps, and resumed; int2 and the following ones carry residuals, and power_sgd what it starts from.
# int8, int4 and random_k draw random numbers.
for compression in ("none", "bf16", "int8", "int4", "int2", "sign", "random_k", "top_k", "top_k_sampled", "power_sgd"):
    chosen = {"compression": compression, "steps": 20, "parallel": "zero1", "precision": "bf16"}
    train("whole-" + compression, **chosen)
    train("halves-" + compression, stop_after=9, **chosen)
    expect(summary("halves-" + compression)["steps"] == 9, "--stop-after 9 stopped elsewhere")
    train("halves-" + compression, resume=True)
    expect_same("halves-" + compression, "whole-" + compression)

# Asked to stop.
def ask(name, number, **options):
    process = start(name, steps=STEPS * 2, **options)
    while not scalars(name, "loss/train") and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return process.returncode, err.decode()


train("asked-reference", steps=STEPS * 2)
for number in (signal.SIGTERM, signal.SIGINT):
    name = "asked-" + signal.Signals(number).name
    code, err = ask(name, number)
    steps = summary(name)["steps"]
    expect(code == 0 and 0 < steps < STEPS * 2, "%s: exit code %d after %d steps: %s" % (name, code, steps, err))
    train(name, resume=True)
    expect_same(name, "asked-reference")

if HAS_MPI:
    # mpirun hands SIGUSR1 on. The other two it answers by sending SIGTERM, and SIGKILL a second later: what is saved by
    # then is whole, and its own exit code is not 0.
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
        name = "asked-mpi-" + signal.Signals(number).name
        code, err = ask(name, number, mpi=True)
        print("%s: mpirun ended with %d" % (name, code))
        if number == signal.SIGUSR1:
            expect(code == 0, "%s: exit code %d: %s" % (name, code, err))
        resume_until_done(name, {"steps": STEPS * 2}, lambda process: False, mpi=True)
        expect_same(name, "asked-reference")

finish(folder)
