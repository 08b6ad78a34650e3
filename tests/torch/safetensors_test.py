#!/usr/bin/env python3
# test-timeout: 120
"""Files of a module's parameters and buffers, both ways: Python writes and interop::load_safetensors reads, and back.

The module of module_test.cpp: tied weights, buffers of several types, a scalar, an empty tensor, one that is not dense.
"""

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

BINARY = pathlib.Path(os.environ["TRIREME_BINARY_DIR"]) / "tests" / "torch.module"


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def kinds():
    import torch
    from torch import nn

    class Kinds(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(6, 4)
            self.norm = nn.BatchNorm1d(4)
            self.head = self.table.weight
            self.wide = nn.Parameter(torch.randn(4, 2, 3).transpose(0, 2))
            self.f16 = nn.Parameter(torch.randn(3).half())
            self.bf16 = nn.Parameter(torch.randn(3).bfloat16())
            self.register_buffer("mask", torch.tensor([True, False, True, True, False]))
            self.register_buffer("empty", torch.zeros(0, 3, dtype=torch.float64))

    net = Kinds()
    net.norm.running_mean.normal_()
    net.norm.num_batches_tracked.fill_(2**40 + 1)
    return net


def block():
    """The whole tensors of module_test.cpp's split_block."""
    from torch import nn

    return nn.ModuleDict({"table": nn.Embedding(12, 4), "widen": nn.Linear(4, 12), "narrow": nn.Linear(12, 4),
                          "norm": nn.BatchNorm1d(4)})


def main():
    if not os.environ.get("TRIREME_TORCH"):
        skip("this build has no LibTorch (libtorch-dev, or TRIREME_TORCH_ROOT; scripts/test --with-torch)")
    if any(importlib.util.find_spec(name) is None for name in ("torch", "safetensors")):
        skip("no PyTorch or no safetensors in this Python (scripts/test --with-torch installs them)")
    import torch
    from safetensors.torch import load_file, save_file, save_model

    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as top:
        folder = pathlib.Path(top)
        net = kinds()
        saved = {name: each.detach().clone().contiguous() for name, each in net.state_dict().items()}
        save_file(saved, folder / "saved_by_python")
        net.wide = torch.nn.Parameter(net.wide.detach().contiguous())  # save_model() wants it
        save_model(net, folder / "saved_model_by_python")
        assert len(load_file(folder / "saved_model_by_python")) == len(saved) - 1, "the tied tensor is there twice"
        subprocess.run([BINARY, "reads Python's file and writes one for it"], check=True,
                       env={**os.environ, "TRIREME_TORCH_FOLDER": top}, stdout=subprocess.DEVNULL)

        again = load_file(folder / "saved_again")
        assert again.keys() == saved.keys(), (again.keys(), saved.keys())
        for name, expected in saved.items():
            assert again[name].dtype == expected.dtype and torch.equal(again[name], expected), name
        kinds().load_state_dict(again)

        here = kinds()
        here.load_state_dict(load_file(folder / "saved_here"))
        assert here.norm.num_batches_tracked == 2**40 and here.mask.tolist() == [False, False, False, True, False]
        assert not torch.equal(here.table.weight, net.table.weight)

        whole = block()
        save_file(whole.state_dict(), folder / "whole_by_python")
        subprocess.run([BINARY, "passes Python's file through split layers"], check=True,
                       env={**os.environ, "TRIREME_TORCH_FOLDER": top}, stdout=subprocess.DEVNULL)
        for name in ("from_three", "from_two"):
            joined = load_file(folder / name)
            block().load_state_dict(joined)
            for key, expected in whole.state_dict().items():
                assert torch.equal(joined[key], expected), (name, key)
        print(f"{len(saved)} tensors read and written both ways, {len(joined)} through layers over 3 and 2 ranks")


if __name__ == "__main__":
    main()
