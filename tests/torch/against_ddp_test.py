#!/usr/bin/env python3
# test-timeout: 240
"""Two ranks of interop::data_parallel end at the weights of PyTorch's DistributedDataParallel (Gloo), within 1e-5.

Both sides are one LibTorch, that of this Python: different versions round convolutions differently (on one machine
their weights were 1.4e-3 apart). Buffers agree within 1e-5 of their largest number, or of 1: running variances are of
up to 4. Where there is no PyTorch, model_test.cpp compares with what DDP is defined to do.

A small CNN with batch normalisation on Fashion-MNIST, and a small transformer on tokens: 50 steps of SGD with momentum,
from the same start and on the same batches, which a folder hands over.
"""

import gzip
import importlib.util
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

PICTURES = pathlib.Path("/usr/share/datasets/fashion-mnist")  # of Debian's dataset-fashion-mnist
BINARY = pathlib.Path(os.environ["TRIREME_BINARY_DIR"]) / "tests" / "torch_against_ddp"
STEPS = 50


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def cnn():
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
            self.norm1 = nn.BatchNorm2d(4)
            self.conv2 = nn.Conv2d(4, 8, 3, padding=1)
            self.norm2 = nn.BatchNorm2d(8)
            self.linear = nn.Linear(8 * 7 * 7, 10)

        def forward(self, x):
            h = torch.max_pool2d(torch.relu(self.norm1(self.conv1(x))), 2)
            h = torch.max_pool2d(torch.relu(self.norm2(self.conv2(h))), 2)
            return self.linear(h.flatten(1))

    count = 16 * STEPS
    pictures = gzip.open(PICTURES / "train-images-idx3-ubyte.gz").read(16 + count * 28 * 28)[16:]
    labels = gzip.open(PICTURES / "train-labels-idx1-ubyte.gz").read(8 + count)[8:]
    pictures = torch.tensor(list(pictures)).reshape(STEPS, 16, 1, 28, 28) / 255
    return Net(), (pictures - 0.286) / 0.353, torch.tensor(list(labels)).reshape(STEPS, 16)


def transformer():
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(32, 16)
            self.block = nn.TransformerEncoderLayer(16, 2, 32, 0.0)
            self.head = nn.Linear(16, 32)

        def forward(self, x):
            return self.head(self.block(self.table(x).transpose(0, 1)).transpose(0, 1)).flatten(0, 1)

    tokens = torch.randint(32, (STEPS, 8, 12))
    return Net(), tokens, (3 * tokens + 1) % 32


def state_of(net):
    """Parameters, then floating-point buffers: the order of the C++ side."""
    return [*net.parameters(), *(each for each in net.buffers() if each.is_floating_point())]


def python_rank(name, folder, rank):
    """One rank of PyTorch's own DDP; rank 0 writes the start, the data and the end."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    torch.manual_seed(1)
    net, inputs, targets = globals()[name]()
    if rank == 0:
        folder.mkdir(exist_ok=True)
        (folder / "inputs").write_bytes(inputs.numpy().tobytes())
        (folder / "targets").write_bytes(targets.numpy().tobytes())
        (folder / "start").write_bytes(b"".join(each.detach().numpy().tobytes() for each in state_of(net)))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    ddp = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.02, momentum=0.9)
    half = inputs.shape[1] // 2
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        mine = slice(rank * half, (rank + 1) * half)
        loss = torch.nn.functional.cross_entropy(ddp(inputs[step, mine]), targets[step, mine].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if rank == 0:
        (folder / "expected").write_bytes(b"".join(each.detach().numpy().tobytes() for each in state_of(net)))
        last = sum(losses[-10:]) / 10
        print(f"{name}: loss {losses[0]:.3f} -> {last:.3f}")
        assert last < 0.8 * losses[0], "nothing was learnt, so equality would say little"
    torch.distributed.destroy_process_group()


def main():
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("numpy") is None:
        skip("no PyTorch in this Python (scripts/test --with-torch installs it)")
    if not BINARY.exists():
        skip(f"{BINARY.name} was not built: it needs a compiler that takes the headers of this Python's PyTorch")
    if not PICTURES.exists():
        skip(f"no {PICTURES} (scripts/test --with-torch installs dataset-fashion-mnist)")
    import numpy

    with tempfile.TemporaryDirectory() as top:
        for name in ("cnn", "transformer"):
            folder = pathlib.Path(top) / name
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
            ranks = [subprocess.Popen([sys.executable, __file__, name, str(folder), str(rank)], env=environment)
                     for rank in range(2)]
            codes = [each.wait() for each in ranks]
            assert codes == [0, 0], f"PyTorch's own DDP did not run: its ranks ended with {codes}"
            subprocess.run([BINARY, folder], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
            expected = numpy.frombuffer((folder / "expected").read_bytes(), numpy.float32)
            found = numpy.frombuffer((folder / "found").read_bytes(), numpy.float32)
            start = numpy.frombuffer((folder / "start").read_bytes(), numpy.float32)
            assert expected.shape == found.shape, (expected.shape, found.shape)
            net = globals()[name]()[0]
            ends = numpy.cumsum([each.numel() for each in state_of(net)])
            trained = len(list(net.parameters()))
            moved = float(numpy.abs(expected - start)[:ends[trained - 1]].max())
            sizes = [float(numpy.abs(each).max()) for each in numpy.split(expected, ends[:-1])]
            errors = [float(numpy.abs(each).max()) for each in numpy.split(expected - found, ends[:-1])]
            print(f"{name}: after {STEPS} steps weights differ by up to {max(errors[:trained]):.2e} (they moved by up "
                  f"to {moved:.2e}), buffers by {max(errors[trained:], default=0):.2e}")
            assert max(errors[:trained]) <= 1e-5, name
            assert all(error <= 1e-5 * max(1, size) for error, size in zip(errors[trained:], sizes[trained:])), name
            assert moved > 1e-2, name


if __name__ == "__main__":
    if len(sys.argv) > 1:
        python_rank(sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]))
        # All is written. An interpreter that ends beside threads of torch was seen to call std::terminate, which says
        # nothing about the weights; what goes wrong before this line still does.
        sys.stdout.flush()
        os._exit(0)
    else:
        main()
