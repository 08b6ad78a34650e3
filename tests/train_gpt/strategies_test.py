# test-timeout: 600
# test-takes: 65
"""Every value of --parallel trains the same model, on threads and on MPI, and leaves a model and a checkpoint behind
that know nothing of it."""

from runs import *

folder = work_folder()
MODEL = {"layers": 6, "heads": 4}
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zbh1", "zbv", "dualpipe", "dualpipev")
TWO = ("zero1", "zero2", "zero3", "tensor", "sequence", "pipeline", "context", "context:ulysses", "data=2",
       "zero3,tensor=1")
MESHES = ("data=2,tensor=2", "data,tensor=2,sequence", "tensor=2,data", "zero1=2,pipeline=2:1f1b",
          "tensor=2,pipeline=2:zbv", "pipeline:interleaved", "zero2=2,tensor", "zero3,tensor=2,sequence",
          "data=2,context=2", "context=2:ulysses,tensor")

data = train("data", **MODEL)
reference = weights("data")


def expect_same(found, what):
    """The run called `found` is the run of data, but for rounding."""
    there = summary(found)
    for field in ("loss_last", "held_out_last"):
        off = abs(there[field] - data[field])
        expect(off < 1e-4, "%s: %s is %r, not %r" % (what, field, there[field], data[field]))
    far = distance(weights(found), reference, key_bias)
    expect(far < 1e-5, "%s: the weights differ by %.1e" % (what, far))


for ranks, names in ((2, TWO + tuple("pipeline:" + name for name in SCHEDULES)), (4, MESHES)):
    for parallel in names:
        found = train("threads", ranks, parallel=parallel, **MODEL)
        expect_same("threads", "%s on %d threads" % (parallel, ranks))
        expect(found["parallel"] == parallel and found["bytes_sent_per_step"] > 0, "%s: %r" % (parallel, found))
        expect([len(scalars("threads", tag)) for tag in ("loss/train", "gradient/norm")] == [10, 10], parallel)
if HAS_MPI:
    for parallel in TWO[:8] + ("pipeline:zbv", "pipeline:dualpipe"):
        train("mpi", mpi=True, parallel=parallel, **MODEL)
        expect_same("mpi", parallel + " on 2 processes")
for precision in ("bf16",):
    whole = train("bf16", precision=precision, **MODEL)
    for ranks, parallel in ((2, "zero3"), (4, "tensor=2,pipeline=2:1f1b"), (4, "zero2,tensor=2,sequence")):
        found = train("cut", ranks, parallel=parallel, precision=precision, **MODEL)
        expect(abs(found["held_out_last"] - whole["held_out_last"]) < 5e-3, "%s in bf16: %r" % (parallel, found))

# A GPT with experts: the axis that deals them out, and the checkpoint of any cut under any other.
EXPERTS = MODEL | {"layers": 2, "experts": 5, "experts_a_token": 2}
alone = train("alone", 1, **EXPERTS)
dealt = weights("alone")
for ranks, parallel in ((2, "expert"), (3, "expert=3"), (4, "data=2,expert=2"), (4, "zero1=2,expert=2"),
                        (4, "pipeline=2:1f1b,expert=2")):
    found = train("dealt", ranks, parallel=parallel, **EXPERTS)
    expect(abs(found["held_out_last"] - alone["held_out_last"]) < 1e-4, "%s: %r" % (parallel, found))
    far = distance(weights("dealt"), dealt, key_bias)
    expect(far < 1e-5, "%s: the weights differ by %.1e" % (parallel, far))
    before = found["state_hash"]
    found = train("dealt", 2, resume=True, parallel="zero3", stop_after=10)
    expect(found["state_hash"] == before, "%s: reading its checkpoint changes the state" % parallel)

# One run on many meshes, one after the other: the data goes on where it was.
train("moved", 2, stop_after=1, **MODEL)
MOVES = ((4, "data=2,context=2"), (2, "zero3"), (2, "pipeline:zbv"), (1, "data"), (3, "tensor"), (2, "sequence"),
         (4, "zero1=2,pipeline=2:1f1b"), (4, "zero2,tensor=2"), (2, "data"))
for step, (ranks, parallel) in enumerate(MOVES, 2):
    found = train("moved", ranks, resume=True, parallel=parallel, stop_after=step)
    expect(found["steps"] == step and found["ranks"] == ranks and found["parallel"] == parallel, repr(found))
    before = found["state_hash"]
    found = train("moved", ranks, resume=True, parallel="zero1", stop_after=step)
    expect(found["state_hash"] == before, "%s: reading its checkpoint changes the state" % parallel)
expect_same("moved", "a run on %d meshes" % len(MOVES))
losses, there = scalars("data", "loss/train"), scalars("moved", "loss/train")
expect(all(abs(losses[step] - there[step]) < 1e-5 for step in range(10)), "%r, not %r" % (there, losses))
finish(folder)
