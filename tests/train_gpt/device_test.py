# test-timeout: 300
# test-takes: 40
"""train_gpt --device simt: every model, strategy, precision, optimizer and codec trains in the memory of a simulated
GPU as in host memory, and what cannot be combined there says so in one sentence."""

import json
import os
import shutil
import subprocess

import runs
from runs import expect

SIMULATED = runs.THREADS + "_simt"
if not os.path.exists(SIMULATED):
    runs.skip(SIMULATED + " is not built")
folder = runs.work_folder()
TINY = {"layers": 1, "heads": 2, "channels": 16, "context": 8, "batch": 4, "steps": 3, "precision": "fp32", "seed": 3,
        "text": "text.txt", "sample": 8}
with open("text.txt", encoding="utf-8") as file:
    text = file.read()
with open("text.txt", "w", encoding="utf-8") as file:
    file.write(text[:6000])


def start(device, ranks, options, name=None):
    program = runs.THREADS if device == "cpu" else SIMULATED
    line = [program, "--device", device, "--ranks", str(ranks), "--name", name or device]
    return subprocess.run(line + runs.as_arguments(options), capture_output=True, text=True, errors="replace",
                          timeout=120)


def summary(name):
    with open("runs/%s/summary.json" % name, encoding="utf-8") as file:
        return json.load(file)


def compare(ranks, tolerance=1e-5, **options):
    """The same training in both memories. All of them learn the same: first and last loss, and what was held out."""
    found = {}
    for device in ("cpu", "simt"):
        shutil.rmtree("runs/" + device, ignore_errors=True)
        done = start(device, ranks, TINY | options)
        expect(done.returncode == 0, "%s on %d ranks of %s: %s" % (options, ranks, device, done.stderr[-2000:]))
        found[device] = summary(device)
    there, here = found["simt"], found["cpu"]
    for what in ("loss_first", "loss_last", "held_out_last", "gradient_norm"):
        far = abs(there[what] - here[what]) / max(1, abs(here[what]))
        expect(far <= tolerance, "%s on %d ranks: %s is %r, on the CPU %r" % (options, ranks, what, there[what],
                                                                              here[what]))
    expect(here["device"] == "cpu" and there["device"] == "simt: simulator", "%r %r" % (here, there))


# Models and precisions.
for model in ("gpt", "llama", "deepseek"):
    compare(1, model=model)
    compare(1, 2e-2, model=model, precision="bf16")
    compare(1, 2e-2, model=model, precision="fp16")
# TF32: what trains is float, and only products are rounded.
shutil.rmtree("runs/exact", ignore_errors=True)
shutil.rmtree("runs/tf32", ignore_errors=True)
for name, precision in (("exact", "fp32"), ("tf32", "tf32")):
    done = start("simt", 2, TINY | {"parallel": "tensor", "precision": precision}, name)
    expect(done.returncode == 0, "%s: %s" % (name, done.stderr[-2000:]))
far = abs(summary("tf32")["loss_last"] - summary("exact")["loss_last"])
expect(0 < far < 1e-2, "the last loss with TF32 is %r away from that in float" % far)
compare(1, experts=4, balance=0.01, dropout=0.2)
compare(1, model="llama", kv_heads=1)
compare(1, model="deepseek", ahead=1)
# Strategies, each with another model.
compare(2, model="llama", parallel="zero3")
compare(2, model="deepseek", parallel="expert")
compare(2, model="llama", parallel="context")
compare(2, parallel="context:ulysses")
compare(2, parallel="sequence", dropout=0.2)
compare(2, model="llama", parallel="tensor")
compare(2, parallel="pipeline:zbv", layers=4)
compare(4, parallel="zero1=2,pipeline=2:1f1b", layers=2)
compare(4, parallel="data=2,tensor=2")
compare(2, parallel="diloco:2")
compare(2, parallel="parameter_server:1")
compare(2, parallel="zero2", reproducible=True)
compare(2, shares="2:1")
# Optimizers. (The sums of muon's products are in another order, and it magnifies differences of small numbers.)
for optimizer in ("sgd", "adafactor", "lamb"):
    compare(2, optimizer=optimizer, parallel="zero2")
compare(2, 1e-2, optimizer="muon", parallel="zero2")
# Codecs.
for codec in ("bf16", "int8", "int4", "int2", "random_k", "top_k", "top_k_sampled", "power_sgd"):
    compare(2, compression=codec)
compare(2, 1e-3, compression="sign", parallel="zero1")
compare(2, compression="dgc", optimizer="sgd")
compare(2, compression="int4", parallel="diloco:2")

# A run begins on one device and goes on on the other.
whole = {"steps": 4, "save_every": 2}
for first, then in (("cpu", "simt"), ("simt", "cpu")):
    name = first + "-" + then
    expect(start(first, 2, TINY | whole | {"stop_after": 2}, name).returncode == 0, name)
    done = start(then, 1, {"resume": True}, name)
    expect(done.returncode == 0, "%s: %s" % (name, done.stderr))
compare(1, **whole)
for name in ("cpu-simt", "simt-cpu"):
    there, here = summary(name), summary("cpu")
    for what in ("loss_last", "held_out_last"):
        expect(abs(there[what] - here[what]) <= 1e-5 * here[what], "%s: %r, whole %r" % (name, there, here))

# What does not go.
for chosen, sentence in (({"shares": "auto"}, "a device computes later than its program asks it to"),
                         ({"compression": "top_k", "parallel": "zero3"}, "--compression works only with")):
    done = start("simt", 2, TINY | chosen)
    said = [line for line in done.stderr.split("\n") if line.startswith("train_gpt: ")]
    expect(done.returncode != 0 and len(said) == 1 and sentence in said[0], "%s: %r" % (chosen, done.stderr))
done = start("cpu", 1, TINY | {"device": "simt"})
expect(done.returncode != 0 and "scripts/train builds one that has it" in done.stderr, done.stderr)
runs.finish(folder)
