#!/usr/bin/env python3
"""The comparison for gpt.cpp: the same training step of GPT-2 124M in PyTorch on one GPU.

Written for speed, as PyTorch's own guides say: bfloat16 autocast, fused attention (scaled_dot_product_attention), fused
AdamW, torch.compile, TF32 for what stays fp32, and a vocabulary that is padded to a multiple of 64 (50304). Batches are
on the device before the clock starts. Prints one JSON row.
"""
import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.merge = nn.Linear(channels, channels)
        self.norm_2 = nn.LayerNorm(channels)
        self.widen = nn.Linear(channels, 4 * channels)
        self.narrow = nn.Linear(4 * channels, channels)

    def forward(self, x):  # (B,T,C)
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
                   for part in self.qkv(self.norm_1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.merge(y.transpose(1, 2).reshape(b, t, c))
        return x + self.narrow(F.gelu(self.widen(self.norm_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.tokens = nn.Embedding(options.vocabulary, options.channels)
        self.positions = nn.Embedding(options.context, options.channels)
        self.blocks = nn.Sequential(*(Block(options.channels, options.heads) for _ in range(options.layers)))
        self.norm = nn.LayerNorm(options.channels)
        self.head = nn.Linear(options.channels, options.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for each in self.parameters():
            if each.dim() >= 2:
                nn.init.normal_(each, std=0.02)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("batch", 64), ("context", 1024), ("layers", 12), ("channels", 768), ("heads", 12),
                        ("vocabulary", 50304), ("steps", 20), ("warmup", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = GPT(options).cuda()
    call = model if options.eager else torch.compile(model)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
                                  lr=3e-4, betas=(0.9, 0.95), fused=True)
    texts = torch.randint(min(options.vocabulary, 50257), (4, options.batch, options.context + 1), device="cuda")

    def step(text):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = call(text[:, :-1], text[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    for i in range(options.warmup):
        loss = step(texts[i % 4])
    torch.cuda.synchronize()
    seconds = []
    for i in range(options.steps):
        start = time.perf_counter()
        loss = step(texts[i % 4])
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    quartiles = statistics.quantiles(seconds, n=4)
    tokens = options.batch * options.context
    parameters = 12 * options.layers * options.channels**2 + 50257 * options.channels
    operations = 6 * parameters + 6 * options.layers * options.channels * options.context
    print(json.dumps({
        "system": "pytorch", "version": torch.__version__, "model": "gpt", "compiled": not options.eager,
        "device": torch.cuda.get_device_name(), "precision": "bf16", "batch": options.batch,
        "context": options.context, "steps": options.steps, "step_ms": round(1e3 * quartiles[1], 2),
        "step_ms_first_quartile": round(1e3 * quartiles[0], 2), "step_ms_third_quartile": round(1e3 * quartiles[2], 2),
        "tokens_per_second": round(tokens / quartiles[1]), "mfu": round(operations * tokens / quartiles[1] / 989e12, 4),
        "last_loss": round(loss.item(), 4), "memory_mib": torch.cuda.max_memory_allocated() >> 20}))


if __name__ == "__main__":
    main()
