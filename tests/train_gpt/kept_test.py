# test-timeout: 900
"""--keep-last and --keep-best: which checkpoints a run leaves, and that the best of them can be gone on from."""

from runs import *

folder = work_folder()
SHORT = {"steps": 120, "save_every": 10, "rate": 0.05}


def kept(name):
    """{step: held-out loss} of a run's checkpoints."""
    out = {}
    for path in sorted(glob.glob("runs/%s/checkpoint/step-*" % name)):
        with open(path + "/manifest.json", encoding="utf-8") as file:
            out[int(path[-10:])] = json.load(file).get("held_out")
    return out


plain = train("plain", **SHORT)
expect(list(kept("plain")) == [110, 120] and "best_step" not in plain, "without an option: %r" % kept("plain"))
train("all", keep_last=100, keep_best=1, **SHORT)
losses = kept("all")
expect(list(losses) == list(range(0, 121, 10)), "--keep-last 100 kept %r" % losses)
expect(losses.pop(0) is None and None not in losses.values(), "its losses: %r" % losses)

for ranks, mpi in ((2, False),) + (((2, True),) if HAS_MPI else ()):
    name = "some-mpi" if mpi else "some"
    done = train(name, ranks=ranks, mpi=mpi, keep_last=3, keep_best=2, **SHORT)
    best = sorted(losses, key=losses.get)[:2]
    expect(kept(name) == {step: losses[step] for step in sorted({100, 110, 120, *best})},
           "%s: %r of %r" % (name, kept(name), losses))
    expect(done["best_step"] == best[0] and done["best_held_out"] == losses[best[0]], "its summary: %r" % done)
    expect(done["state_hash"] == plain["state_hash"], "keeping has changed the training")
    expect(done["held_out_last"] == losses[120], "the last loss is not that of the last checkpoint")

# As docs/reliability.md says: a copy of the run without what came later goes on from the best.
shutil.copytree("runs/some", "runs/best")
for step in kept("best"):
    if step > best[0]:
        shutil.rmtree("runs/best/checkpoint/step-%010d" % step)
code, _, err = attempt("best", resume=True)
expect(code == 0 and "resuming from step %d" % best[0] in err, "from the best: " + err)
expect(summary("best")["state_hash"] == plain["state_hash"], "from the best it ends elsewhere")

code, _, err = attempt("wrong", keep_last=0)
expect(code == 1 and "--keep-last is 0; it must be at least 1" in err, "--keep-last 0: " + err)
finish(folder)
