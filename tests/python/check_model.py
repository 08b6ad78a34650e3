"""Loads the model of a run of train_gpt with transformers and computes the held-out loss that its summary states; reads
the run's TensorBoard events with the tensorboard package, if it is there.

usage: check_model.py RUN
Exit code 77: torch or transformers is missing.
"""

import json
import os
import sys

try:
    import torch
    from transformers import AutoModelForCausalLM
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)


def held_out_loss(run, summary):
    model, loading = AutoModelForCausalLM.from_pretrained(os.path.join(run, "model"), output_loading_info=True)
    assert not any(loading.values()), loading
    model.eval()
    context, begin, count = summary["context"], summary["held_out_begin"], summary["held_out_windows"]
    with open(summary["text"], "rb") as file:
        file.seek(begin)
        windows = torch.tensor(list(file.read(context * count))).view(count, context)
    total = 0.0
    with torch.no_grad():
        for part in windows.split(32):
            total += model(input_ids=part, labels=part).loss.item() * len(part)
    return total / count


def check_events(run, summary):
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as missing:
        print("events not read:", missing)
        return
    accumulator = EventAccumulator(run)
    accumulator.Reload()
    for tag in ("loss/train", "gradient/norm", "learning_rate", "tokens_per_second"):
        steps = [event.step for event in accumulator.Scalars(tag)]
        assert steps == list(range(summary["steps"])), (tag, steps)
    first, last = accumulator.Scalars("loss/train")[0], accumulator.Scalars("loss/train")[-1]
    assert abs(first.value - summary["loss_first"]) < 1e-5 and abs(last.value - summary["loss_last"]) < 1e-5
    print("events of %d steps" % summary["steps"])


def main(run):
    with open(os.path.join(run, "summary.json"), encoding="utf-8") as file:
        summary = json.load(file)
    theirs, ours = held_out_loss(run, summary), summary["held_out_last"]
    print("held-out loss %.9f, with transformers %.9f, difference %.1e" % (ours, theirs, abs(ours - theirs)))
    assert abs(ours - theirs) < 1e-4
    check_events(run, summary)


main(sys.argv[1])
