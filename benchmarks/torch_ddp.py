#!/usr/bin/env python3
"""Training steps of LibTorch modules under interop::data_parallel, in turns with what they are compared with.

Two comparisons, for a perceptron of 654,000 parameters and a small CNN with batch normalisation:
  hooks  on one rank: data_parallel (gradients copied, or in buckets) beside the bare loop of LibTorch
  ddp    on two ranks: data_parallel (threads) beside PyTorch's DistributedDataParallel (Gloo, processes)
One thread a rank. The second says something only where both have one LibTorch ("same_libtorch": true): build/benchmark
is to be configured with -DTRIREME_TORCH_ROOT of the interpreter's torch package. Prints one JSON object a run, then one
with the ratios of the rounds (ours / other: median, lowest, highest). Options: --rounds N (5), --steps N (100),
--warmup N (10), --only hooks|ddp.
"""

# targets: benchmark_torch_step
# needs: libtorch
import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

MODELS = ("mlp", "cnn")


def peer(model, rank, steps, warmup):
    """One rank of PyTorch's own DDP."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    if model == "mlp":
        net = nn.Sequential(nn.Linear(784, 600), nn.ReLU(), nn.Linear(600, 300), nn.ReLU(), nn.Linear(300, 10))
        x = torch.randn(64, 784)
    else:
        net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
                            nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10))
        x = torch.randn(32, 1, 28, 28)
    y = torch.randint(10, (x.shape[0],))
    ddp = DistributedDataParallel(net, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
    times = []
    for step in range(-warmup, steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(x), y).backward()
        optimizer.step()
        if step >= 0:
            times.append(1e3 * (time.perf_counter() - start))
    if rank == 0:
        print(json.dumps({"system": "pytorch", "version": torch.__version__, "model": model, "mode": "ddp", "ranks": 2,
                          "step_ms_median": round(statistics.median(times), 4), "step_ms_best": round(min(times), 4)}),
              flush=True)
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


def run_peer(model, steps, warmup):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen([sys.executable, __file__, "--peer", model, str(rank), str(steps), str(warmup)],
                              env=environment, stdout=subprocess.PIPE, text=True) for rank in range(2)]
    outputs = [each.communicate()[0] for each in ranks]
    if any(each.returncode for each in ranks):
        sys.exit("torch_ddp: a rank of PyTorch's DDP failed")
    return json.loads(outputs[0])


def run_ours(model, mode, ranks, steps, warmup):
    program = pathlib.Path(os.environ["TRIREME_BINARY_DIR"]) / "benchmarks" / "torch_step"
    if not program.exists():
        sys.exit("torch_ddp: there is no LibTorch here, so benchmarks/torch_step was not built")
    command = [program, model, mode, str(ranks), str(steps), str(warmup)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def compare(kind, model, ours, other, rounds):
    """Runs both in turns; who goes first changes from round to round. `ours`: runs by mode."""
    ratios = {mode: [] for mode in ours}
    for round_ in range(rounds):
        found = {}
        runs = [*ours.items(), ("other", other)]
        for mode, run in runs if round_ % 2 == 0 else reversed(runs):
            found[mode] = run()
            print(json.dumps(found[mode]), flush=True)
        for mode in ours:
            ratios[mode].append(found[mode]["step_ms_median"] / found["other"]["step_ms_median"])
    for mode, all_ in ratios.items():
        print(json.dumps({"row": "summary", "comparison": kind, "model": model, "mode": mode, "rounds": rounds,
                          "same_libtorch": found[mode]["version"] == found["other"]["version"].split("+")[0],
                          "ratio_median": round(statistics.median(all_), 3), "ratio_lowest": round(min(all_), 3),
                          "ratio_highest": round(max(all_), 3)}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--only", choices=("hooks", "ddp"))
    options = parser.parse_args()
    if options.rounds < 1 or options.steps < 1 or options.warmup < 0:
        parser.error("--rounds and --steps must be at least 1, --warmup at least 0")
    numbers = (options.steps, options.warmup)
    for model in MODELS:
        def ours(ranks, model=model):
            return {mode: lambda mode=mode: run_ours(model, mode, ranks, *numbers) for mode in ("copied", "buckets")}

        if options.only != "ddp":
            compare("hooks", model, ours(1), lambda: run_ours(model, "bare", 1, *numbers), options.rounds)
        if options.only != "hooks":
            compare("ddp", model, ours(2), lambda: run_peer(model, *numbers), options.rounds)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--peer":
        peer(sys.argv[2], *map(int, sys.argv[3:]))
    else:
        main()
