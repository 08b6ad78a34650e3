# test-timeout: 900
# test-takes: 60
"""The same run twice, on threads and on MPI, and under data and zero1, has one state; other numbers of ranks have the
same one but for rounding, and with --reproducible the same one."""

from runs import *

folder = work_folder()

for precision in ("fp32", "bf16"):
    for compression in ("none", "bf16", "int4", "top_k", "power_sgd"):
        name = precision + "-" + compression
        chosen = {"precision": precision, "compression": compression}
        first = train(name, **chosen)
        hashes = {"again": train(name + "-again", **chosen)["state_hash"],
                  "zero1": train(name + "-zero1", parallel="zero1", **chosen)["state_hash"]}
        if HAS_MPI:
            hashes["mpi"] = train(name + "-mpi", mpi=True, **chosen)["state_hash"]
            hashes["mpi zero1"] = train(name + "-mpi-zero1", mpi=True, parallel="zero1", **chosen)["state_hash"]
        for what, state in hashes.items():
            expect(state == first["state_hash"], "%s: %s has the state %s, not %s" %
                   (name, what, state, first["state_hash"]))
        expect(first["held_out_last"] < first["held_out_first"] - 0.1, name + " did not learn: %r" % first)

# One rank against several. AdamW divides a gradient by its own size, so where the true gradient is zero (the bias of
# attention's keys, which softmax does not see) it turns rounding into steps: that part is also looked at alone.
worst = {"gradient norm": 0.0, "weights": 0.0, "weights without the keys' bias": 0.0}
for dropout, micro_batches, steps in ((0, 0, 50), (0, 12, 50), (0.1, 0, 10), (0.1, 12, 50)):
    chosen = {"layers": 2, "dropout": dropout, "micro_batches": micro_batches, "steps": steps}
    alone = train("alone", 1, **chosen)
    weights_alone, norms_alone = weights("alone"), scalars("alone", "gradient/norm")
    expect(sorted(norms_alone) == list(range(steps)), "the events of steps %s" % sorted(norms_alone))
    for ranks in (2, 3, 4):
        several = train("several", ranks, **chosen)
        norms = scalars("several", "gradient/norm")
        found = {
            "gradient norm": max([abs(norms[step] / norms_alone[step] - 1) for step in norms_alone] +
                                 [abs(several["gradient_norm"] / alone["gradient_norm"] - 1)]),
            "weights": distance(weights("several"), weights_alone),
            "weights without the keys' bias": distance(weights("several"), weights_alone, key_bias),
        }
        for what, value in found.items():
            worst[what] = max(worst[what], value)
            expect(value < 1e-5, "%d ranks, %s: %s differs by %.2e from one rank's" % (ranks, chosen, what, value))
print("one rank against 2, 3 and 4, the largest relative differences:",
      ", ".join("%s %.1e" % each for each in worst.items()))
expect(worst["weights without the keys' bias"] < 1e-6, "%r" % worst)

# --reproducible: one state whatever the number of ranks that share the samples or the layers. The last batch of an
# epoch (of 67) has fewer samples than there are micro-batches.
with open("epochs.txt", "wb") as short:
    with open("text.txt", "rb") as long:
        short.write(long.read()[: (67 * 32 + 1) * 10 // 9 + 1])
SHARED = ((2, "data"), (4, "data"), (2, "zero1"), (4, "zero2"), (2, "zero3"), (2, "pipeline"),
          (2, "pipeline:interleaved"), (4, "zero1=2,pipeline=2:1f1b"))
for precision, chosen in (("fp32", {}), ("bf16", {"text": "epochs.txt", "micro_batches": 4})):
    chosen = chosen | {"layers": 2, "steps": 15, "precision": precision, "reproducible": True}
    state = train("alone", 1, **chosen)["state_hash"]
    for ranks, parallel in SHARED:
        found = train("shared", ranks, parallel=parallel, **chosen)["state_hash"]
        where = "%s, %s on %d ranks" % (precision, parallel, ranks)
        expect(found == state, "%s: the state is %s, not %s" % (where, found, state))
    if HAS_MPI:
        for ranks, parallel in ((2, "data"), (4, "zero3"), (2, "pipeline")):
            found = train("mpi", ranks, mpi=True, parallel=parallel, **chosen)["state_hash"]
            expect(found == state, "%s, %s on %d processes has another state" % (precision, parallel, ranks))
    # Stopped, and resumed on other ranks.
    train("halves", 4, stop_after=7, **chosen)
    train("halves", 2, resume=True, parallel="zero1,pipeline=2", stop_after=9)
    train("halves", 2, resume=True, parallel="data", stop_after=11)
    found = train("halves", 2, resume=True, parallel="zero2")["state_hash"]
    expect(found == state, "%s: resumed on other ranks the state is %s, not %s" % (precision, found, state))
finish(folder)
