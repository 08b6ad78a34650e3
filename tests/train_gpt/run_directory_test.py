# test-timeout: 600
"""What a run leaves behind: the summary, events, timeline, checkpoint and model that others read."""

from runs import *

folder = work_folder()
FIELDS = {"communicator": str, "ranks": int, "parallel": str, "precision": str, "compression": str, "steps": int,
          "seed": int, "loss_first": float, "loss_last": float, "gradient_norm": float, "held_out_first": float,
          "held_out_last": float, "text": str, "context": int, "held_out_begin": int, "held_out_windows": int,
          "tokens_per_second": float, "bytes_sent_per_step": float, "exchange_hidden": float, "state_hash": str,
          "seconds": float, "data_waiting_share": float, "samples_left_out": int}

for ranks, mpi, options in ((1, False, {}), (3, False, {"parallel": "zero1"}), (2, True, {"precision": "bf16"}),
                            (2, False, {"compression": "power_sgd", "layers": 2})):
    if mpi and not HAS_MPI:
        continue
    name = "run%d%s" % (ranks, "-mpi" if mpi else "-" + "-".join(options))
    found = train(name, ranks, mpi=mpi, **options)
    for field, kind in FIELDS.items():
        expect(type(found.get(field)) is kind, "%s: %s is %r" % (name, field, found.get(field)))
    expect(found["communicator"] == ("mpi" if mpi else "threads") and found["ranks"] == ranks, repr(found))
    expect(found["steps"] == 10 and found["seed"] == 3 and found["context"] == 32, repr(found))
    for option, value in options.items():
        expect(option not in found or found[option] == value, "%s: %s" % (name, option))
    expect((found["bytes_sent_per_step"] > 0) == (ranks > 1) and found["tokens_per_second"] > 0, repr(found))
    expect(0 <= found["exchange_hidden"] <= 1, repr(found))
    expect(0 <= found["data_waiting_share"] <= 1 and found["samples_left_out"] == 0, repr(found))

    bytes_ = os.path.getsize("text.txt")
    expect(found["held_out_begin"] == bytes_ * 9 // 10, "held out from %d" % found["held_out_begin"])
    expect(found["held_out_windows"] == (bytes_ - found["held_out_begin"]) // 32, repr(found["held_out_windows"]))

    with open("runs/%s/timeline.json" % name, encoding="utf-8") as file:
        timeline = json.load(file)
    events = timeline["traceEvents"] if isinstance(timeline, dict) else timeline
    spans = [event for event in events if event["ph"] == "X"]
    expect({event["pid"] for event in spans} == set(range(ranks)), name + ": the timeline's ranks")
    for rank in range(ranks):
        own = [event["name"] for event in spans if event["pid"] == rank]
        expect(own.count("forward, backward") == 10 and own.count("update") == 10, "%s: rank %d did %s" %
               (name, rank, sorted(set(own))))

    losses = scalars(name, "loss/train")
    expect(sorted(losses) == list(range(10)) and abs(losses[0] - found["loss_first"]) < 1e-5, name + ": the events")
    for tag in ("gradient/norm", "learning_rate", "tokens_per_second", "data/waiting_share"):
        expect(len(scalars(name, tag)) == 10, name + ": " + tag)
    expect(sorted(os.listdir("runs/%s/checkpoint" % name)) == ["step-0000000000", "step-0000000010"], name)
    with open("runs/%s/model/config.json" % name, encoding="utf-8") as file:
        expect(json.load(file)["model_type"] == "gpt2", name + ": the model's config")
    sizes = {key: len(values) for key, values in weights(name).items()}
    expect(sizes["transformer.wte.weight"] == 256 * 32, repr(sizes))

# The text at the end has as many tokens as were asked for, here bytes.
written = {}
for length in (0, 8, None):
    code, out, err = attempt("sample", 2, steps=60, sample=length)
    expect(code == 0, err)
    begin = out.find("In the beginning")
    written[length] = out[begin + len("In the beginning") : out.index("\n\nthe run ", begin)] if begin >= 0 else None
    shutil.rmtree("runs/sample")
expect(written[0] is None and len(written[8]) <= 8 < len(written[None]) <= 240, repr(written))

# Options not given again are the run's own; those that are given are kept from then on.
train("longer", 3, steps=20, stop_after=5, batch=9)
done = subprocess.run([THREADS, "--name", "longer", "--resume", "--steps", "30", "--stop-after", "8"],
                      capture_output=True)
found = summary("longer")
expect(done.returncode == 0 and found["ranks"] == 3 and found["steps"] == 8, repr(found))
done = subprocess.run([THREADS, "--name", "longer", "--resume"], capture_output=True)
expect(done.returncode == 0 and summary("longer")["steps"] == 30, repr(summary("longer")))
# Nothing left to do: the summary still knows the last step.
before = summary("longer")
done = subprocess.run([THREADS, "--name", "longer", "--resume"], capture_output=True)
after = summary("longer")
for field in ("state_hash", "loss_first", "loss_last", "gradient_norm", "held_out_last"):
    expect(done.returncode == 0 and after[field] == before[field], "%s: %r, not %r" % (field, after[field],
                                                                                       before[field]))
finish(folder)
