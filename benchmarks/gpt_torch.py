#!/usr/bin/env python3
"""The comparison for gpt_step, llama_step and bert_step: the same training step in PyTorch, under
DistributedDataParallel.

One process per core, each pinned to its core and with one thread; gloo between them. Plain torch, written for speed:
fused attention (scaled_dot_product_attention), fused AdamW, gradients as views of DDP's buckets, huge pages. Each rank
generates its batches before the clock starts. Prints one JSON row from rank 0:

    {"system": "pytorch", "model": "gpt", "shape": "a", "precision": "fp32", "mode": "fp32", "tokens_per_second": ...}

tokens_per_second is over all measured steps. In bf16 there are two usual modes: `autocast` (parameters stay fp32,
products run in bf16) and `parameters` (all of the model is bf16). By default a few steps of each are timed and the
faster one is used; "mode" names it.
"""
import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time

# Read by torch's allocator when it starts: large blocks in huge pages, as in trireme.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import torch  # noqa: E402
import torch.distributed as distributed  # noqa: E402
import torch.multiprocessing as multiprocessing  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402


@dataclasses.dataclass(frozen=True)
class Shape:
    layers: int
    channels: int
    heads: int
    context: int
    vocabulary: int
    batch: int  # a rank
    key_heads: int = 0  # of a LLaMA
    hidden: int = 0  # of a LLaMA's mlp


SHAPES = {
    "gpt": {
        "a": Shape(layers=6, channels=384, heads=6, context=256, vocabulary=256, batch=8),
        "b": Shape(layers=12, channels=768, heads=12, context=1024, vocabulary=50257, batch=1),  # GPT-2 124M
    },
    "llama": {
        "a": Shape(layers=6, channels=384, heads=6, context=256, vocabulary=256, batch=8, key_heads=2, hidden=1024),
        "b": Shape(layers=30, channels=576, heads=9, context=1024, vocabulary=49152, batch=1, key_heads=3,
                   hidden=1536),  # SmolLM2 135M
    },
    "bert": {
        "a": Shape(layers=6, channels=384, heads=6, context=256, vocabulary=256, batch=8),
        "b": Shape(layers=12, channels=768, heads=12, context=512, vocabulary=30522, batch=2),  # BERT base
    },
}


def initialise(model):
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            nn.init.normal_(parameter, std=0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.heads = shape.heads
        self.norm_1 = nn.LayerNorm(shape.channels)
        self.qkv = nn.Linear(shape.channels, 3 * shape.channels)
        self.merge = nn.Linear(shape.channels, shape.channels)
        self.norm_2 = nn.LayerNorm(shape.channels)
        self.widen = nn.Linear(shape.channels, 4 * shape.channels)
        self.narrow = nn.Linear(4 * shape.channels, shape.channels)

    def forward(self, x):  # (B,T,C)
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
                   for part in self.qkv(self.norm_1(x)).split(c, dim=2))  # (B,H,T,C/H)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.merge(y.transpose(1, 2).reshape(b, t, c))
        return x + self.narrow(F.gelu(self.widen(self.norm_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.channels)
        self.positions = nn.Embedding(shape.context, shape.channels)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.channels)
        self.head = nn.Linear(shape.channels, shape.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        initialise(self)

    def forward(self, tokens, targets):  # both (B,T)
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class LlamaBlock(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.width = shape.channels // shape.heads
        self.parts = [shape.channels, shape.key_heads * self.width, shape.key_heads * self.width]
        self.norm_1 = nn.RMSNorm(shape.channels, eps=1e-5)
        self.qkv = nn.Linear(shape.channels, sum(self.parts), bias=False)
        self.merge = nn.Linear(shape.channels, shape.channels, bias=False)
        self.norm_2 = nn.RMSNorm(shape.channels, eps=1e-5)
        self.gate_up = nn.Linear(shape.channels, 2 * shape.hidden, bias=False)
        self.narrow = nn.Linear(shape.hidden, shape.channels, bias=False)

    def forward(self, x, cos, sin):  # (B,T,C), (T,C/H)
        b, t, c = x.shape
        q, k, v = (part.view(b, t, -1, self.width).transpose(1, 2)
                   for part in self.qkv(self.norm_1(x)).split(self.parts, dim=2))  # (B,H,T,C/H)

        def rotated(z):
            first, second = z.chunk(2, dim=-1)
            return (z * cos + torch.cat((-second, first), dim=-1) * sin).to(z.dtype)

        y = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True, enable_gqa=True)
        x = x + self.merge(y.transpose(1, 2).reshape(b, t, c))
        gate, up = self.gate_up(self.norm_2(x)).chunk(2, dim=-1)
        return x + self.narrow(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.channels)
        self.blocks = nn.ModuleList(LlamaBlock(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.channels, eps=1e-5)
        self.head = nn.Linear(shape.channels, shape.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        width = shape.channels // shape.heads
        angles = torch.outer(torch.arange(shape.context), 10000.0 ** (-torch.arange(0, width, 2) / width)).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        initialise(self)

    def forward(self, tokens, targets):  # both (B,T)
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class BertBlock(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.channels, 3 * shape.channels)
        self.merge = nn.Linear(shape.channels, shape.channels)
        self.norm_1 = nn.LayerNorm(shape.channels, eps=1e-12)
        self.widen = nn.Linear(shape.channels, 4 * shape.channels)
        self.narrow = nn.Linear(4 * shape.channels, shape.channels)
        self.norm_2 = nn.LayerNorm(shape.channels, eps=1e-12)

    def forward(self, x):  # (B,T,C)
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
                   for part in self.qkv(x).split(c, dim=2))  # (B,H,T,C/H)
        y = F.scaled_dot_product_attention(q, k, v)
        x = self.norm_1(x + self.merge(y.transpose(1, 2).reshape(b, t, c)))
        return self.norm_2(x + self.narrow(F.gelu(self.widen(x))))


class Bert(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.channels)
        self.positions = nn.Embedding(shape.context, shape.channels)
        self.segments = nn.Embedding(2, shape.channels)
        self.norm = nn.LayerNorm(shape.channels, eps=1e-12)
        self.blocks = nn.Sequential(*(BertBlock(shape) for _ in range(shape.layers)))
        self.transform = nn.Linear(shape.channels, shape.channels)
        self.transform_norm = nn.LayerNorm(shape.channels, eps=1e-12)
        self.head = nn.Linear(shape.channels, shape.vocabulary)
        self.head.weight = self.tokens.weight
        initialise(self)

    def forward(self, tokens, targets):  # both (B,T); targets are -100 where no word is asked for
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1])) + self.segments.weight[0]
        x = self.blocks(self.norm(x))
        logits = self.head(self.transform_norm(F.gelu(self.transform(x))))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


MODELS = {"gpt": GPT, "llama": Llama, "bert": Bert}


class Training:
    """A model with its optimizer, in one way of doing one precision."""

    def __init__(self, shape, mode, options):
        torch.manual_seed(0)
        model = MODELS[options.model](shape)
        if mode == "parameters":
            model = model.bfloat16()
        self.autocast = mode == "autocast"
        self.clip = options.clip
        self.model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self.call = torch.compile(self.model) if options.compile else self.model
        matrices = [p for p in model.parameters() if p.dim() >= 2]
        vectors = [p for p in model.parameters() if p.dim() < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        numbers = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8}
        try:
            self.optimizer = torch.optim.AdamW(groups, **numbers, fused=True)
            self.fused = True
        except RuntimeError:  # this version has none for the CPU
            self.optimizer = torch.optim.AdamW(groups, **numbers)
            self.fused = False

    def step(self, tokens, targets):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.autocast):
            loss = self.call(tokens, targets)
        loss.backward()
        if self.clip > 0:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss


def timed(training, batches, steps, warmup):
    """Seconds of each step, and the last loss."""
    for step in range(warmup):
        training.step(*batches[step % len(batches)])
    distributed.barrier()
    seconds = []
    for step in range(steps):
        start = time.perf_counter()
        loss = training.step(*batches[step % len(batches)])
        seconds.append(time.perf_counter() - start)
    start = time.perf_counter()
    distributed.barrier()  # the slowest rank's time counts
    seconds[-1] += time.perf_counter() - start
    return seconds, loss.item()


def faster_bf16(shape, batches, options):
    """The way of bf16 in which a step is faster here; every rank gets rank 0's answer."""
    best = {}
    for mode in ("autocast", "parameters"):
        seconds, _ = timed(Training(shape, mode, options), batches, steps=3, warmup=2)
        best[mode] = min(seconds)
    answer = [min(best, key=best.get)]
    distributed.broadcast_object_list(answer, src=0)
    return answer[0]


def run(rank, ranks, cores, store, options):
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    shape = SHAPES[options.model][options.shape]
    generator = torch.Generator().manual_seed(rank)
    texts = [torch.randint(shape.vocabulary, (shape.batch, shape.context + 1), generator=generator) for _ in range(8)]
    batches = [(text[:, :-1].contiguous(), text[:, 1:].contiguous()) for text in texts]
    if options.model == "bert":  # one word of seven is asked for
        for _, targets in batches:
            targets[:, torch.arange(shape.context) % 7 != 0] = -100

    mode = "fp32"
    if options.precision == "bf16":
        mode = options.bf16 if options.bf16 != "faster" else faster_bf16(shape, batches, options)
    training = Training(shape, mode, options)
    seconds, loss = timed(training, batches, options.steps, options.warmup)
    if rank == 0:
        tokens = ranks * shape.batch * shape.context
        print(json.dumps({
            "system": "pytorch", "version": torch.__version__, "model": options.model, "shape": options.shape,
            "precision": options.precision, "mode": mode, "compiled": options.compile,
            "fused_adamw": training.fused, "ranks": ranks,
            "parameters": sum(p.numel() for p in training.model.parameters()), "tokens_per_step": tokens,
            "steps": options.steps, "tokens_per_second": round(tokens * options.steps / sum(seconds), 1),
            "tokens_per_second_best": round(tokens / min(seconds), 1),
            "step_ms_median": round(1e3 * statistics.median(seconds), 2), "loss": round(loss, 4)}), flush=True)
    distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description="training steps in PyTorch DDP; prints one JSON row")
    parser.add_argument("--model", choices=MODELS, default="gpt")
    parser.add_argument("--shape", choices="ab", default="a", help="a: 6 x 384, context 256; b: see SHAPES")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--bf16", choices=("faster", "autocast", "parameters"), default="faster")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=0, help="processes; as many as there are cores if not given")
    parser.add_argument("--clip", type=float, default=0.0, help="clip the gradient norm (off: 0)")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model (needs a C++ compiler)")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    ranks = options.ranks or len(cores)
    if options.steps < 1 or options.warmup < 0 or ranks < 1:
        parser.error("--steps and --ranks must be at least 1, --warmup at least 0")
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(run, args=(ranks, cores, os.path.join(folder, "store"), options), nprocs=ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
