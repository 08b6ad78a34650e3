#!/usr/bin/env python3
"""What each option gives: one training from the plain serial loop on, which adds one thing a row, on two links.

The rows, of one GPT, the same samples, the same batch and AdamW:

    serial     one rank in one loop: read a batch, then compute (the store answers --read-ms after each question)
    loader     one rank; a thread reads ahead
    ranks      two ranks on two hosts, half of the batch each; gradients are exchanged when backward is over
    overlap    the same in buckets of 1 MiB, while backward goes on
    bf16       activations and products in bf16
    zero1      optimizer state and update sharded
    cast_bf16  gradients sent as bf16; after it, each in place of the one before:
    int8       as int8 with a scale per block
    top_k      the largest 1 %, what is left is added to the next step's (error feedback)

The hosts (scripts/two-hosts) share this machine's cores; a rank computes with one thread. --fast and --slow are the
rates of the two links, in turns. A row:

    {"row": ..., "link": ..., "seconds_per_step": ..., "samples_per_second": ..., "utilisation": ...,
     "network_bytes": ..., "plan_bytes": ..., "loss": ...}

seconds_per_step is the mean of all steps but the first --warm ones. utilisation is the time of forward, backward and
update (timeline of rank 0) over all of it. network_bytes is what the interface of host 0 has sent in a step, with the
headers of TCP; plan_bytes is what the plan says that rank 0 sends. loss is the mean of the last five steps.

Options: --fast 10gbit, --slow 100mbit, --delay 0ms, --steps 20, --warm 3, --read-ms 2, --only ROW,..., --layers 4,
--heads 4, --channels 256, --context 128, --batch 8; --plot FILE writes a bar plot of the rows as SVG.
"""

# targets: benchmark_options_step
# needs: mpi iproute
import argparse
import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "plots"))
from bars import bars  # noqa: E402

ROWS = ("serial", "loader", "ranks", "overlap", "bf16", "zero1", "cast_bf16", "int8", "top_k")
SIZES = ("layers", "heads", "channels", "context", "batch")


def measured(row, link, options):
    """One row on one link."""
    source = pathlib.Path(__file__).resolve().parent.parent
    program = pathlib.Path(os.environ["TRIREME_BINARY_DIR"]) / "benchmarks" / "options_step"
    ranks = "1" if row in ("serial", "loader") else "2"
    command = [str(source / "scripts" / "two-hosts"), "--rate", link, "--delay", options.delay, "mpirun", "-n", ranks,
               str(program), row, str(options.steps), str(options.warm), str(options.read_ms),
               *[str(getattr(options, each)) for each in SIZES]]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout
    found = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    return {"row": row, "link": link, "seconds_per_step": found["seconds_per_step"],
            "samples_per_second": round(options.batch / found["seconds_per_step"], 2),
            **{each: found[each] for each in ("utilisation", "network_bytes", "plan_bytes", "loss")}}


def picture(rows):
    links = list(dict.fromkeys(each["link"] for each in rows))
    names = list(dict.fromkeys(each["row"] for each in rows))
    speed = {(each["row"], each["link"]): each["samples_per_second"] for each in rows}
    return bars("Samples a second", [(name, [speed.get((name, link)) for link in links]) for name in names], links, "")


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--fast", default="10gbit")
    parser.add_argument("--slow", default="100mbit")
    parser.add_argument("--delay", default="0ms")
    parser.add_argument("--only", default="")
    parser.add_argument("--plot")
    parser.add_argument("--read-ms", type=float, default=2)
    for name, default in (("steps", 20), ("warm", 3), ("layers", 4), ("heads", 4), ("channels", 256), ("context", 128),
                          ("batch", 8)):
        parser.add_argument("--" + name, type=int, default=default)
    options = parser.parse_args()
    if options.steps < 5 or options.warm < 1:
        raise SystemExit("options: --steps %d and --warm %d; give at least 5 and 1" % (options.steps, options.warm))
    chosen = [each for each in options.only.split(",") if each] or ROWS
    for each in chosen:
        if each not in ROWS:
            raise SystemExit("options: there is no row %s (there are: %s)" % (each, ", ".join(ROWS)))
    rows = []
    for row in chosen:
        for link in (options.fast, options.slow):
            rows.append(measured(row, link, options))
            print(json.dumps(rows[-1]), flush=True)
    if options.plot:
        pathlib.Path(options.plot).write_text(picture(rows))


if __name__ == "__main__":
    main()
