# test-timeout: 600
"""Strategies, precisions and compressors that keep something of their own: trained by threads and MPI, stopped or
killed, and resumed, they end in one state."""

from runs import *

folder = work_folder()
CHOSEN = {
    "diloco": {"parallel": "diloco:4"},
    "diloco on a mesh": {"parallel": "diloco:3,tensor=2", "ranks": 4},
    "learners of several ranks": {"parallel": "diloco:3,zero1=2", "ranks": 4},
    "a stale server": {"parallel": "parameter_server:2"},
    "fp16": {"precision": "fp16"},
    "fp16, zero2": {"precision": "fp16", "parallel": "zero2"},
    "fp8": {"precision": "fp8"},
    "mxfp8, diloco": {"precision": "mxfp8", "parallel": "diloco:4"},
    "nvfp4, zero2": {"precision": "nvfp4", "parallel": "zero2"},
    "power_sgd, zero1": {"compression": "power_sgd", "parallel": "zero1"},
}
kills, done = 0, []
for what, chosen in CHOSEN.items():
    chosen = dict(chosen)
    ranks = chosen.pop("ranks", 2)
    chosen["steps"] = 24
    whole = train("whole", ranks, **chosen)
    expect(whole["held_out_last"] < whole["held_out_first"] - 0.05, "%s did not learn: %r" % (what, whole))
    train("parts", ranks, stop_after=7, **chosen)
    train("parts", ranks, resume=True, stop_after=14)
    found = train("parts", ranks, resume=True, stop_after=24)
    expect(found["state_hash"] == whole["state_hash"],
           "%s: in parts %s, whole %s" % (what, found["state_hash"], whole["state_hash"]))
    found, early = train_killed("killed-%d" % len(done), ranks, **chosen)
    expect(found["state_hash"] == whole["state_hash"],
           "%s: killed %s, whole %s" % (what, found["state_hash"], whole["state_hash"]))
    kills += early
    done.append(what)
    if HAS_MPI:
        found = train("mpi", ranks, mpi=True, **chosen)
        expect(found["state_hash"] == whole["state_hash"], "%s: by MPI %r" % (what, found["state_hash"]))
print("killed before the end: %d of %d" % (kills, len(CHOSEN)))
expect(kills > 0, "no run was killed before its end")

# What can be cut goes on with any number of ranks, that of a learner, too; another number of learners is refused.
server = train("moved", 2, parallel="parameter_server:2", stop_after=9)
found = train("moved", 3, resume=True, stop_after=9)
expect(found["state_hash"] == server["state_hash"], "a stale server on three ranks: %r" % found["state_hash"])
expect(train("zero1", 2, parallel="zero1")["state_hash"] ==
       train("server", 2, parallel="parameter_server:0")["state_hash"], "a server that is not late is not zero1")
four = train("learners", 4, parallel="diloco:4,zero1=2", stop_after=9)
found = train("learners", 2, parallel="diloco:4,zero1=1", resume=True, stop_after=9)
expect(found["state_hash"] == four["state_hash"], "two learners of one rank each: %r" % found["state_hash"])
finish(folder)
