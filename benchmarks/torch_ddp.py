#!/usr/bin/env python3
"""Training steps of LibTorch modules under interop::data_parallel, alternating with the programs compared with.

Two comparisons, for a perceptron of 654,000 parameters, a small CNN with batch normalisation, and a transformer of two
blocks (654,000 parameters):
  hooks  on one rank: data_parallel (gradients copied, or in buckets) and the bare loop of LibTorch, alternating with
         the same module in one process
  ddp    on two ranks: data_parallel (threads) and PyTorch's DistributedDataParallel (Gloo, processes); both programs
         are started at once and alternate: one of them always sleeps
One thread per rank, --steps steps per turn. The second comparison is valid only if both use the same LibTorch
("same_libtorch": true): set TRIREME_TORCH_ROOT to the folder of the interpreter's package torch.
Prints one JSON object for each, then the ratios of the rounds (trireme / other: median, lowest, highest), for the
median step of a turn and for its best step, which no other program has interrupted.
The memory addresses of a process change the CNN's steps by up to 10 % for its lifetime, so the programs are restarted
--starts times; and glibc is configured to keep the memory of large tensors, which otherwise it unmaps and maps again in
some processes and not in others (MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_, if not set).
Options: --rounds N (30, over all starts), --starts N (6), --steps N (50), --warmup N (50), --only hooks|ddp,
--model mlp|cnn|transformer.
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

models = ("mlp", "cnn", "transformer")


def peer(model, rank):
    """One rank of PyTorch's own DDP: runs steps and prints their times, as torch_step does."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    if model == "mlp":
        net = nn.Sequential(nn.Linear(784, 600), nn.ReLU(), nn.Linear(600, 300), nn.ReLU(), nn.Linear(300, 10))
        x, y = torch.randn(64, 784), torch.randint(10, (64,))
    elif model == "transformer":
        def block():
            return nn.TransformerEncoderLayer(128, 4, 512, dropout=0)
        net = nn.Sequential(nn.Embedding(1000, 128), block(), block(), nn.Linear(128, 1000), nn.Flatten(0, 1))
        x, y = torch.randint(1000, (32, 8)), torch.randint(1000, (32 * 8,))
    else:
        net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
                            nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10))
        x, y = torch.randn(32, 1, 28, 28), torch.randint(10, (32,))
    ddp = DistributedDataParallel(net, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            optimizer.zero_grad()
            nn.functional.cross_entropy(ddp(x), y).backward()
            optimizer.step()
            times.append(1e3 * (time.perf_counter() - start))
        if rank == 0:
            print(json.dumps({"system": "pytorch", "version": torch.__version__, "model": model, "mode": "ddp",
                              "ranks": 2, "step_ms_median": statistics.median(times), "step_ms_best": min(times)}),
                  flush=True)
    os._exit(0)


class Program:
    """The processes of one program, which wait for their turn and print a line of results for each mode."""

    def __init__(self, modes, commands, environment):
        self.modes = modes
        self.ranks = [subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       text=True) for command in commands]

    def turn(self, steps):
        for rank in self.ranks:
            rank.stdin.write(f"{steps}\n")
            rank.stdin.flush()
        lines = [self.ranks[0].stdout.readline() for _ in range(self.modes)]
        if not lines[-1]:
            sys.exit(f"torch_ddp: {' '.join(map(str, self.ranks[0].args))} has ended")
        return {row["mode"]: row for row in map(json.loads, lines)}

    def end(self):
        for rank in self.ranks:
            rank.stdin.close()
            rank.wait()


def pytorch(model):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    return Program(1, [[sys.executable, __file__, "--peer", model, str(rank)] for rank in range(2)], environment)


def trireme(model, modes, ranks):
    program = pathlib.Path(os.environ["TRIREME_BINARY_DIR"]) / "benchmarks" / "torch_step"
    if not program.exists():
        sys.exit("torch_ddp: there is no LibTorch here, so benchmarks/torch_step was not built")
    return Program(len(modes), [[program, model, ",".join(modes), str(ranks)]], os.environ)


def compare(kind, model, options):
    """Runs all of them alternately; the first one changes from round to round."""
    ours = ("copied", "buckets")
    other = "bare" if kind == "hooks" else "ddp"
    turns = {mode: [] for mode in (*ours, other)}
    for start in range(options.starts):
        programs = [trireme(model, (*ours, other), 1)] if kind == "hooks" else [trireme(model, ours, 2), pytorch(model)]
        for each in programs:
            each.turn(options.warmup)
        for _ in range(start, options.rounds, options.starts):
            for each in programs:
                for mode, row in each.turn(options.steps).items():
                    turns[mode].append(row)
            programs.reverse()
        for each in programs:
            each.end()
    for all_ in turns.values():
        middle = statistics.median(turn["step_ms_median"] for turn in all_)
        print(json.dumps({**all_[0], "step_ms_median": round(middle, 4),
                          "step_ms_best": round(min(turn["step_ms_best"] for turn in all_), 4)}))
    version = turns[other][0]["version"].split("+")[0]
    for mode, of in ((mode, of) for mode in ours for of in ("median", "best")):
        all_ = [one[f"step_ms_{of}"] / another[f"step_ms_{of}"] for one, another in zip(turns[mode], turns[other])]
        print(json.dumps({"row": "summary", "comparison": kind, "model": model, "mode": mode, "step": of,
                          "rounds": options.rounds, "starts": options.starts,
                          "same_libtorch": turns[mode][0]["version"] == version,
                          "ratio_median": round(statistics.median(all_), 3), "ratio_lowest": round(min(all_), 3),
                          "ratio_highest": round(max(all_), 3)}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--starts", type=int, default=6)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--only", choices=("hooks", "ddp"))
    parser.add_argument("--model", choices=models)
    options = parser.parse_args()
    if min(options.rounds, options.starts, options.steps, options.warmup) < 1 or options.starts > options.rounds:
        parser.error("--rounds, --starts, --steps and --warmup must be at least 1, and --starts at most --rounds")
    for limit in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"):
        os.environ.setdefault(limit, str(1 << 30))
    for model in [options.model] if options.model else models:
        for kind in [options.only] if options.only else ("hooks", "ddp"):
            compare(kind, model, options)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--peer":
        peer(sys.argv[2], int(sys.argv[3]))
    else:
        main()
