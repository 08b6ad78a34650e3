#!/usr/bin/env python3
"""Writes optimizers.inl: what LAMB, Muon and Adafactor make of three small tensors, in double precision.

    pip install numpy && python3 tests/golden/make_optimizers.py

Written from the papers with NumPy, so that it shares no line with ours. With --check it is compared with others' code:
Adafactor of transformers, Muon of torch.optim (its Newton-Schulz not in bfloat16, but in double).
"""
import pathlib
import sys

import numpy as np

STEPS = 4
FUSED, WIDTHS = (6, 16), (4, 2, 2)  # two groups of queries, a key and a value; each is a matrix of its own
SHAPES = {"tall": (5, 3), "wide": (2, 4), "vector": (6,)}


def start(shape, salt):
    n = int(np.prod(shape))
    return (0.5 * np.sin(1.7 * np.arange(n) + salt) + 0.1).reshape(shape)


def gradient(shape, salt, step):
    n = int(np.prod(shape))
    i = np.arange(n)
    return (0.3 * np.cos(0.9 * i * i + salt + 2.3 * step * (i % 3 + 1))).reshape(shape)  # of full rank


def adamw(w, grads, rate, beta1, beta2, epsilon, decay):
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(grads, 1):
        w = w * (1 - rate * decay)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        w = w - rate * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + epsilon)
    return w


def lamb(w, grads, rate=0.01, beta1=0.9, beta2=0.999, epsilon=1e-6, decay=0.1):
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(grads, 1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        u = (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + epsilon) + decay * w
        a, b = np.linalg.norm(w), np.linalg.norm(u)
        w = w - rate * (a / b if a > 0 and b > 0 else 1) * u
    return w


def orthogonal(x):
    a, b, c = 3.4445, -4.7750, 2.0315
    turned = x.shape[0] > x.shape[1]
    x = x.T if turned else x
    x = x / np.linalg.norm(x)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if turned else x


def muon(w, grads, rate=0.02, momentum=0.95, decay=0.1, outputs_first=False):
    if w.ndim != 2:
        return adamw(w, grads, 3e-4, 0.9, 0.95, 1e-8, 0.01)
    m = np.zeros_like(w)
    rows, columns = w.shape if outputs_first else w.shape[::-1]
    for g in grads:
        m = momentum * m + (1 - momentum) * g
        x = orthogonal((1 - momentum) * g + momentum * m)
        w = w * (1 - rate * decay) - rate * max(1, rows / columns) ** 0.5 * x
    return w


def adafactor(w, grads, rate=0.05, momentum=0.0, decay=0.1):
    rms = lambda x: np.sqrt(np.mean(x * x))
    row = column = full = m = 0
    for t, g in enumerate(grads, 1):
        keep = 1 - t**-0.8
        square = g * g + 1e-30
        if w.ndim > 1:
            row = keep * row + (1 - keep) * square.mean(-1)
            column = keep * column + (1 - keep) * square.mean(-2)
            u = g / np.sqrt(np.outer(row / row.mean(), column))
        else:
            full = keep * full + (1 - keep) * square
            u = g / np.sqrt(full)
        by = rate * max(1e-3, rms(w))
        u = by * u / max(1, rms(u))
        if momentum > 0:
            m = u = momentum * m + (1 - momentum) * u
        w = w * (1 - by * decay) - u
    return w


CASES = {
    "lamb": lamb,
    "muon": muon,
    "muon_outputs_first": lambda w, g: muon(w, g, outputs_first=True),
    "adafactor": adafactor,
    "adafactor_momentum": lambda w, g: adafactor(w, g, momentum=0.9),
}


def all_cases():
    for name, method in CASES.items():
        for salt, (shape_name, shape) in enumerate(SHAPES.items()):
            grads = [gradient(shape, salt, t) for t in range(STEPS)]
            yield name, shape_name, start(shape, salt), grads, method(start(shape, salt), grads)


def bands():
    columns = np.arange(FUSED[1]) % sum(WIDTHS)
    ends = np.cumsum(WIDTHS)
    return [np.flatnonzero((end - width <= columns) & (columns < end)) for width, end in zip(WIDTHS, ends)]


def fused_cases():
    """Of all bands of one tensor, as if each were alone."""
    w, grads = start(FUSED, 0), [gradient(FUSED, 0, t) for t in range(STEPS)]
    for name in ("lamb", "muon", "adafactor"):
        after = np.empty_like(w)
        for band in bands():
            after[:, band] = CASES[name](w[:, band], [g[:, band] for g in grads])
        yield name, "fused", w, grads, after


def check():
    import torch
    from transformers.optimization import Adafactor

    half = torch.bfloat16
    for name, shape_name, w, grads, expected in all_cases():
        p = torch.nn.Parameter(torch.tensor(w))
        if name.startswith("adafactor"):
            beta1 = 0.9 if name.endswith("momentum") else None
            other = Adafactor([p], lr=0.05, relative_step=False, warmup_init=False, scale_parameter=True, beta1=beta1,
                              weight_decay=0.1)
        elif name == "muon_outputs_first" and w.ndim == 2:
            other = torch.optim.Muon([p], lr=0.02, momentum=0.95, weight_decay=0.1, adjust_lr_fn="original")
        else:
            continue
        torch.bfloat16 = torch.float64 if name.startswith("muon") else half
        for g in grads:
            p.grad = torch.tensor(g)
            other.step()
        apart = np.abs(p.detach().numpy() - expected).max()
        print(f"{name}, {shape_name}: {apart:.2g} from {type(other).__module__}")
        assert apart < 1e-12
    torch.bfloat16 = torch.float64
    for name, _, w, grads, expected in fused_cases():
        if name != "muon":
            continue
        for band in bands():  # as files have them: (outputs, inputs)
            p = torch.nn.Parameter(torch.tensor(w[:, band].T.copy()))
            other = torch.optim.Muon([p], lr=0.02, momentum=0.95, weight_decay=0.1, adjust_lr_fn="original")
            for g in grads:
                p.grad = torch.tensor(g[:, band].T.copy())
                other.step()
            apart = np.abs(p.detach().numpy().T - expected[:, band]).max()
            print(f"{name}, columns {band.tolist()}: {apart:.2g} from {type(other).__module__}")
            assert apart < 1e-12


def main():
    if "--check" in sys.argv:
        return check()
    lines = ["// Written by make_optimizers.py: {optimizer, tensor, values after four steps}."]
    for name, shape_name, _, _, after in [*all_cases(), *fused_cases()]:
        numbers = [f"{x:.17g}" for x in after.ravel()]
        lines.append(f'{{"{name}", "{shape_name}", {{')
        for at in range(0, len(numbers), 4):
            lines.append("    " + ", ".join(numbers[at : at + 4]) + ",")
        lines.append("}},")
    pathlib.Path(__file__).with_name("optimizers.inl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
