# test-timeout: 900
"""--optimizer: each of them learns, has one state under zero1, zero3 and pipeline where sums are reproducible, and
goes on under another strategy; where a mesh cuts tensors, those of whole tensors are refused."""

from runs import *

folder = work_folder()

for optimizer in ("adamw", "sgd", "muon", "adafactor", "lamb", "adamw8"):
    chosen = {"optimizer": optimizer, "reproducible": True, "steps": 15, "dropout": 0, "micro_batches": 4}
    first = train(optimizer, 1, **chosen)
    expect(first["held_out_last"] < first["held_out_first"] - 0.02, "%s did not learn: %r" % (optimizer, first))
    expect(first["optimizer"].startswith("optim::" + optimizer), "%r" % first["optimizer"])
    for ranks, parallel in ((4, "zero1"), (2, "zero3"), (2, "pipeline")):
        found = train(optimizer + "-" + parallel, ranks, parallel=parallel, **chosen)["state_hash"]
        expect(found == first["state_hash"], "%s under %s on %d ranks: the state is %s, not %s" %
               (optimizer, parallel, ranks, found, first["state_hash"]))
    train(optimizer + "-stopped", 4, parallel="zero3", stop_after=8, **chosen)
    found = train(optimizer + "-stopped", 2, resume=True, parallel="zero1", stop_after=-1)["state_hash"]
    expect(found == first["state_hash"], "%s, stopped and gone on: the state is %s, not %s" %
           (optimizer, found, first["state_hash"]))
    found, _ = train_killed(optimizer + "-killed", 2, parallel="zero3", **chosen)
    expect(found["state_hash"] == first["state_hash"], "%s, killed and gone on: the state is %s, not %s" %
           (optimizer, found["state_hash"], first["state_hash"]))

train("mixed", 3, optimizer="muon", parallel="zero2", precision="bf16", steps=3)
code, _, err = attempt("cut", 2, optimizer="muon", parallel="tensor=2")
expect(code != 0 and "the optimizer needs whole tensors" in err and "parallel::tensor" in err, "%r" % err)
code, _, err = attempt("unknown", 2, optimizer="adam")
expect(code != 0 and "--optimizer is \"adam\"; it is one of adamw, sgd" in err, "%r" % err)
code, _, err = attempt("muon-stopped", 2, resume=True, optimizer="lamb")
expect(code != 0 and "optim::muon" in err and "optim::lamb" in err, "%r" % err)

finish(folder)
