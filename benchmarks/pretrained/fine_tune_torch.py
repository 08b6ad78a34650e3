#!/usr/bin/env python3
"""The comparison for examples/fine_tune: the same training with transformers and PyTorch's DistributedDataParallel.

    fine_tune_torch.py --from DIR --make NEW [--dropout P]    # NEW gets DIR's model with a classifier of two classes
    fine_tune_torch.py --from NEW --pairs FILE [--most N] [--length N] [--epochs N] [--batch N] [--rate R]

Both programs start from the classifier in NEW, with the same batches in the same order, the same rates and the same
clipping norm; without dropout nothing else is random. Two processes, each pinned to its core and with one thread; gloo
between them. Needs torch, transformers and tokenizers.
"""
import argparse
import math
import os
import shutil
import tempfile
import time

import torch
import torch.distributed as distributed
import torch.multiprocessing as multiprocessing
from tokenizers import Tokenizer
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForSequenceClassification

RANKS = 2


def philox(counter, key):
    for _ in range(10):
        a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(b >> 32) ^ counter[1] ^ key[0], b & 0xFFFFFFFF, (a >> 32) ^ counter[3] ^ key[1], a & 0xFFFFFFFF]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return counter


def order(samples, epoch):
    """The samples of an epoch in the order of trireme::data::sampler (data/sampler.hpp says how), with the seed 0."""
    columns = math.isqrt(samples - 1) + 1
    rows = -(-samples // columns)
    key = epoch * 0x9E3779B97F4A7C15

    def word(turn, half):
        block = philox([turn, 0x73616D70, half & 0xFFFFFFFF, half >> 32], [key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF])
        return (block[1] << 32 | block[0]) >> 1

    def place(at):
        while True:
            left, right = divmod(at, columns)
            for turn in range(0, 6, 2):
                left = (left + word(turn, right)) % rows
                right = (right + word(turn + 1, left)) % columns
            at = left * columns + right
            if at < samples:
                return at

    return [place(at) for at in range(samples)]


def read_pairs(path, most, length, words):
    """(tokens, segments, labels) to train on, and the same of every fifth pair, which is held out."""
    begin, end = words.token_to_id("[CLS]"), words.token_to_id("[SEP]")
    parts = ([], [], []), ([], [], [])
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")[1:]
    for n, line in enumerate(line for line in lines if line):
        if most and n == most:
            break
        label, _, _, first, second = line.rstrip("\r").split("\t")
        a, b = (words.encode(text, add_special_tokens=False).ids for text in (first, second))
        while len(a) + len(b) + 3 > length:
            (a if len(a) > len(b) else b).pop()
        row, segments = [begin, *a, end, *b, end], [0] * (len(a) + 2) + [1] * (len(b) + 1)
        missing = [0] * (length - len(row))
        for to, value in zip(parts[n % 5 == 4], (row + missing, segments + missing, int(label))):
            to.append(value)
    return tuple(tuple(torch.tensor(part) for part in each) for each in parts)


def train(rank, store, options):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    words = Tokenizer.from_file(os.path.join(options.source, "tokenizer.json"))
    words.no_padding()
    words.no_truncation()
    known, held_out = read_pairs(options.pairs, options.most, options.length, words)
    model = DistributedDataParallel(AutoModelForSequenceClassification.from_pretrained(options.source),
                                    gradient_as_bucket_view=True)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW([{"params": [p for p in parameters if p.dim() > 1]},
                                   {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}],
                                  lr=options.rate, weight_decay=0.01, fused=True)
    each = len(known[2]) // options.batch
    steps = options.epochs * each
    warmup = steps // 10
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: (step + 1) / warmup if step < warmup else 1 - (step - warmup) / (steps - warmup))

    def logits_of(tokens, segments):
        return model(input_ids=tokens, token_type_ids=segments, attention_mask=(tokens != 0).long()).logits

    for epoch in range(options.epochs):
        samples = order(len(known[2]), epoch)
        model.train()
        distributed.barrier()
        start = time.perf_counter()
        for step in range(each):
            batch = samples[step * options.batch:(step + 1) * options.batch][rank::RANKS]
            tokens, segments, labels = (part[batch] for part in known)
            loss = torch.nn.functional.cross_entropy(logits_of(tokens, segments), labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
        distributed.barrier()
        seconds = time.perf_counter() - start
        mean = loss.detach() / RANKS
        distributed.all_reduce(mean)
        model.eval()
        counts = torch.zeros(2, 2)  # of a label, as it was taken for
        with torch.no_grad():
            for batch in torch.arange(rank, len(held_out[2]), RANKS).split(options.batch):
                tokens, segments, labels = (part[batch] for part in held_out)
                counts += torch.bincount(2 * labels + logits_of(tokens, segments).argmax(1), minlength=4).view(2, 2)
        distributed.all_reduce(counts)
        if rank == 0:
            accuracy = counts.diag().sum() / counts.sum()
            f1 = 2 * counts[1, 1] / (2 * counts[1, 1] + counts[0, 1] + counts[1, 0])
            print(f"epoch {epoch + 1}: loss {mean.item():.4f}, accuracy {100 * accuracy:.2f} %, F1 {100 * f1:.2f} %, "
                  f"{seconds:.1f} s", flush=True)
    distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description="BERT learns whether two sentences say the same, in PyTorch")
    parser.add_argument("--from", dest="source", required=True)
    parser.add_argument("--make")
    parser.add_argument("--dropout", type=float, default=0.0, help="of the model that --make writes")
    parser.add_argument("--pairs", default="verse_pairs.tsv")
    parser.add_argument("--most", type=int, default=0)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=5e-5)
    options = parser.parse_args()
    if options.make:
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_pretrained(
            options.source, num_labels=2, hidden_dropout_prob=options.dropout,
            attention_probs_dropout_prob=options.dropout)
        model.save_pretrained(options.make)
        shutil.copy(os.path.join(options.source, "tokenizer.json"), options.make)
        return
    if options.batch % RANKS:
        parser.error(f"--batch is a multiple of {RANKS}")
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(train, args=(os.path.join(folder, "store"), options), nprocs=RANKS)


if __name__ == "__main__":
    main()
