#!/usr/bin/env python3
"""One GPT trained by two ranks over a slow line, by each method: strategies and compressors of this library, and
PyTorch's DistributedDataParallel over Gloo, where torch can be imported.

The ranks run on two hosts (scripts/two-hosts) with one core each, joined by a line of --rate with --delay one way. All
have the same samples, the same batch and AdamW (mu_loco: Muon). A row for each method:

    {"method": ..., "rate_mbit": ..., "delay_ms": ..., "seconds_per_step": ..., "seconds_to_target": ..., "loss": ...}

seconds_per_step is the mean of all steps but the first (of whole periods, for diloco; of PowerSGD's own steps, for
ddp_power_sgd); seconds_to_target are the
seconds until the mean loss of ten steps is below --target (null: not within --seconds); loss is the mean of the last
ten steps. Methods of PyTorch begin with ddp: gradients as they are, with the bf16 hook, and with PowerSGD (rank 4, one
bucket) from step 10 on, or from its default, step 1000. With diloco each rank has its own parameters between outer
steps, and the loss is the mean over both.

Options: --rate 100mbit, --delay 0ms, --seconds N (90, each method), --steps N (at most; 100000), --target LOSS (2.5),
--schedule constant (or cosine: over --steps, to a tenth of each learning rate),
--only NAME,..., --layers 6, --heads 6, --channels 384, --context 256, --batch 4 (of a rank).
"""

# targets: benchmark_slow_network_step
# needs: mpi iproute
import argparse
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

PERIOD = 30
OURS = ("data", "data_bf16", "data_power_sgd", "diloco", "sparse_loco", "sparse_loco_int2", "mu_loco_int2",
        "sparse_loco_streaming")
PEERS = ("ddp", "ddp_bf16", "ddp_power_sgd", "ddp_power_sgd_default")


def text(length):
    """Bytes of which each is followed by one of four, so that a model can learn them in some hundred steps."""
    draw = random.Random(5)
    after = [draw.sample(range(256), 4) for _ in range(256)]
    out, at = bytearray(), 0
    for _ in range(length):
        at = draw.choices(after[at], (0.55, 0.25, 0.15, 0.05))[0]
        out.append(at)
    return bytes(out)


def peer(method, rank, options):
    """One rank of PyTorch's DDP; rank 0 prints "SECONDS LOSS" a step, as slow_network_step does."""
    import torch
    import torch.distributed as distributed
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel
    from gpt_torch import GPT, Shape

    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    net = GPT(Shape(layers=options.layers, channels=options.channels, heads=options.heads, context=options.context,
                    vocabulary=256, batch=options.batch))
    # Over Gloo the PowerSGD hook's collectives of two buckets race, and it fails: so it gets one bucket.
    one = {"bucket_cap_mb": 100000} if method.startswith("ddp_power_sgd") else {}
    ddp = DistributedDataParallel(net, gradient_as_bucket_view=True, **one)
    if method == "ddp_bf16":
        ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
    elif method.startswith("ddp_power_sgd"):
        first = {} if method.endswith("default") else {"start_powerSGD_iter": 10}
        state = powerSGD_hook.PowerSGDState(process_group=None, matrix_approximation_rank=4, **first)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps, 1e-4)
    tokens = torch.frombuffer(bytearray(pathlib.Path(options.tokens).read_bytes()), dtype=torch.uint8).long()
    samples = (len(tokens) - 1) // options.context
    order = torch.Generator().manual_seed(1)
    used, places = 0.0, []
    for step in range(options.steps):
        if len(places) < 2 * options.batch:
            places = torch.randperm(samples, generator=order).tolist()
        mine, places = places[rank * options.batch:(rank + 1) * options.batch], places[2 * options.batch:]
        x = torch.stack([tokens[i * options.context:(i + 1) * options.context] for i in mine])
        y = torch.stack([tokens[i * options.context + 1:(i + 1) * options.context + 1] for i in mine])
        start = time.monotonic()
        loss = ddp(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if options.schedule == "cosine":
            falling.step()
        numbers = torch.tensor([loss.item()])
        distributed.all_reduce(numbers)  # the mean loss of both ranks, which this library's steps also have
        used += time.monotonic() - start
        if rank == 0:
            print("%.6f %.6f" % (used, numbers[0].item() / 2), flush=True)
        stop = torch.tensor([float(used > options.seconds)])
        distributed.broadcast(stop, 0)  # not counted
        if stop[0] > 0:
            break
    distributed.destroy_process_group()


def row(method, options, lines):
    """The row of a method from its lines "SECONDS LOSS"."""
    points = [tuple(map(float, line.split())) for line in lines if re.fullmatch(r"[\d.]+ [\d.naif-]+", line.strip())]
    if len(points) < 2:
        raise SystemExit("slow-network: %s took %d steps in %g seconds; give it more" %
                         (method, len(points), options.seconds))
    first, last = 0, len(points) - 1
    if method == "ddp_power_sgd":  # until step 10 it sends gradients as they are
        first = min(11, last - 1)
    if "loco" in method and last >= PERIOD:  # whole periods
        last = last // PERIOD * PERIOD
    mean = [sum(loss for _, loss in points[max(0, i - 9):i + 1]) / min(10, i + 1) for i in range(len(points))]
    there = next((points[i][0] for i in range(9, len(points)) if mean[i] < options.target), None)
    rate, delay = os.environ["TRIREME_TWO_HOSTS"], options.delay
    number, unit = re.fullmatch(r"([\d.]+)([kmg])bit", rate.lower()).groups()
    late, second = re.fullmatch(r"([\d.]+)(us|ms|s)", delay).groups()
    return {"method": method, "rate_mbit": float(number) * {"k": 1e-3, "m": 1, "g": 1e3}[unit],
            "delay_ms": float(late) * {"us": 1e-3, "ms": 1, "s": 1e3}[second],
            "seconds_per_step": round((points[last][0] - points[first][0]) / (last - first), 4),
            "seconds_to_target": there and round(there, 2), "loss": round(mean[-1], 4)}


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--delay", default="0ms")
    parser.add_argument("--only", default="")
    parser.add_argument("--schedule", choices=("constant", "cosine"), default="constant")
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--target", type=float, default=2.5)
    for name, default in (("steps", 100000), ("layers", 6), ("heads", 6), ("channels", 384), ("context", 256),
                          ("batch", 4)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--tokens", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        return peer(options.peer, options.rank, options)
    source = pathlib.Path(__file__).resolve().parent.parent
    known = OURS + PEERS
    chosen = [each for each in options.only.split(",") if each] or known
    for each in chosen:
        if each not in known:
            raise SystemExit("slow-network: there is no method %s (there are: %s)" % (each, ", ".join(known)))
    if "TRIREME_TWO_HOSTS" not in os.environ:
        os.execv(source / "scripts" / "two-hosts",
                 ["two-hosts", "--rate", options.rate, "--delay", options.delay, sys.executable,
                  os.path.abspath(__file__), *sys.argv[1:]])
    def can_import(names):
        return subprocess.run([sys.executable, "-c", "import " + names], stderr=subprocess.DEVNULL).returncode == 0
    has_torch, has_numpy = can_import("torch"), can_import("numpy")
    program = pathlib.Path(os.environ["TRIREME_BINARY_DIR"]) / "benchmarks" / "slow_network_step"
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        tokens = pathlib.Path(folder) / "tokens"
        tokens.write_bytes(text(1 << 20))
        sizes = [str(getattr(options, each)) for each in ("layers", "heads", "channels", "context", "batch")]
        for method in chosen:
            if method in PEERS and not has_torch:
                print("slow-network: torch cannot be imported; %s is left out" % method, file=sys.stderr)
                continue
            if method.startswith("ddp_power_sgd") and not has_numpy:
                print("slow-network: PyTorch's PowerSGD needs numpy; %s is left out" % method, file=sys.stderr)
                continue
            if method in OURS:
                command = ["mpirun", "-n", "2", str(program), method, str(tokens), str(options.seconds),
                           str(options.steps), options.schedule, *sizes]
                said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True,
                                      env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout
            else:
                flags = ["--peer", method, "--tokens", str(tokens), *sys.argv[1:]]
                ranks = []
                for rank in (0, 1):
                    environment = {**os.environ, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29501",
                                   "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
                    start = ["on-host", str(rank), "taskset", "-c", str(cores[rank % len(cores)]), sys.executable,
                             os.path.abspath(__file__), "--rank", str(rank), *flags]
                    ranks.append(subprocess.Popen(start, stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                                                  text=True, env=environment))
                said = ranks[0].communicate()[0]
                if ranks[0].returncode != 0 or ranks[1].wait() != 0:
                    raise SystemExit("slow-network: %s failed" % method)
            print(json.dumps(row(method, options, said.splitlines())), flush=True)


if __name__ == "__main__":
    main()
