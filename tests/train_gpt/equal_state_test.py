# test-timeout: 300
"""The same run twice, on threads and on MPI, and under data and zero1, has one state; other numbers of ranks have the
same one but for rounding."""

from runs import *

folder = work_folder()

for precision in ("fp32", "bf16"):
    for compression in ("none", "bf16", "topk"):
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
finish(folder)
