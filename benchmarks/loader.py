#!/usr/bin/env python3
"""scripts/benchmark loader [--rounds 7] [--pictures 256] [--workers 2]

How fast data::loader delivers, cached: windows of tokens beside a copy of memory (both per second of processor time);
pictures (JPEG, resized to 256 x 256, 224 x 224 of them cut at random, flipped by chance) beside a DataLoader of torch
with as many workers on the same files; the start at sample 10^9 of a sparse file; steps with decoding that takes 0.8 of
their time, beside steps without. A row has source, workers, samples_per_second (a median), peer,
peer_samples_per_second, and step_share: the share of the time that steps wait for data, where there are steps. The peer
of pictures is null where torch and Pillow are not here. The two loaders of pictures take turns, a round of each.
"""
# targets: benchmark_loader_tokens benchmark_loader_pictures
# needs: pictures

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

sys.path[:1] = []  # not this folder
parser = argparse.ArgumentParser(prog="loader")
parser.add_argument("--rounds", type=int, default=7)
parser.add_argument("--pictures", type=int, default=256)
parser.add_argument("--workers", type=int, default=2)
options = parser.parse_args()
programs = os.path.join(os.environ["TRIREME_BINARY_DIR"], "benchmarks")
RESIZED, SIDE = 256, 224


class Pictures:
    """The files of the folders, as picture_folders reads them."""

    def __init__(self, root):
        classes = sorted(os.listdir(root))
        self.files = [(os.path.join(root, name, file), label) for label, name in enumerate(classes)
                      for file in sorted(os.listdir(os.path.join(root, name)))]

    def __len__(self):
        return len(self.files)

    def __getitem__(self, number):
        from PIL import Image
        import torch
        path, label = self.files[number]
        with Image.open(path) as file:
            picture = file.convert("RGB")
        side = min(picture.size)
        left, top = (picture.width - side) // 2, (picture.height - side) // 2
        picture = picture.resize((RESIZED, RESIZED), Image.BILINEAR, (left, top, left + side, top + side))
        # As torchvision's RandomCrop and RandomHorizontalFlip.
        left, top = random.randint(0, RESIZED - SIDE), random.randint(0, RESIZED - SIDE)
        picture = picture.crop((left, top, left + SIDE, top + SIDE))
        if random.random() < 0.5:
            picture = picture.transpose(Image.FLIP_LEFT_RIGHT)
        numbers = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).view(SIDE, SIDE, 3)
        return numbers.float().div_(255), label


def torch_loader(folder):
    """A function that reads an epoch, or None."""
    try:
        import torch
        import torch.utils.data
        import PIL.Image  # noqa: F401
    except ImportError:
        return None
    torch.set_num_threads(1)
    data = Pictures(folder)
    batches = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True, num_workers=options.workers,
                                          persistent_workers=True)

    def epoch():
        return sum(len(labels) for _, labels in batches)

    return epoch


def rate_of(epoch):
    start = time.perf_counter()
    return epoch() / (time.perf_counter() - start)


def median(numbers):
    return round(statistics.median(numbers), 1)


def pictures(folder):
    program = os.path.join(programs, "loader_pictures")
    if not os.path.exists(program):
        print("loader: no row of pictures, because libpng and libjpeg are not here", file=sys.stderr)
        return
    subprocess.run([program, "make", folder, str(options.pictures)], check=True)

    def here(rounds):
        found = subprocess.run([program, "read", folder, str(options.workers), str(rounds)], check=True,
                               capture_output=True, text=True)
        return [float(line) for line in found.stdout.split()]

    epoch = torch_loader(folder)
    ours, theirs = [], []
    if epoch is None:
        ours = here(options.rounds)
    else:
        epoch()  # starts the workers
        for _ in range(options.rounds):
            ours += here(1)
            theirs.append(rate_of(epoch))
    print(json.dumps({"source": "pictures", "workers": options.workers, "samples_per_second": median(ours),
                      "peer": "torch DataLoader" if theirs else None,
                      "peer_samples_per_second": median(theirs) if theirs else None, "step_share": None}), flush=True)


with tempfile.TemporaryDirectory() as scratch:
    tokens = subprocess.run([os.path.join(programs, "loader_tokens"), scratch, str(options.rounds)], check=False)
    root = os.path.join(scratch, "pictures")
    os.mkdir(root)
    pictures(root)
sys.exit(tokens.returncode)
