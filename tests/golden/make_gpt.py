#!/usr/bin/env python3
"""Writes gpt.safetensors: what PyTorch computes for a tiny GPT-2, in double precision.

    pip install torch transformers safetensors && python3 tests/golden/make_gpt.py

An implementation that shares no line with ours: GPT2LMHeadModel of transformers, torch.optim.AdamW and
torch.nn.utils.clip_grad_norm_. The file holds, under the names that transformers gives the parameters:

    parameter/<name>    where training starts, float64
    gradient/<name>     of the loss there, float64, before clipping; the tied table has the sum of its two uses
    after/<name>        after three steps of AdamW on the same batch, float64
    tokens, targets     (B,T) int32; a target of -1 is left out of the loss
    loss, norm          (3) float64: before each of the three steps; the norm is that of all gradients, before clipping

and, as metadata, the configuration and the optimizer (JSON, under "golden"). The loss is the mean cross-entropy over
the targets that are not -1; target t belongs to position t (nothing is shifted).
"""
import json
import pathlib

import safetensors.torch
import torch
import transformers

CONFIG = {"vocab_size": 61, "n_positions": 16, "n_embd": 12, "n_layer": 2, "n_head": 3, "layer_norm_epsilon": 1e-5}
OPTIMIZER = {"rate": 1e-2, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "decay": 0.1, "clip": 1.0}
BATCH, CONTEXT, STEPS = 3, 11, 3


def make_model(generator):
    config = transformers.GPT2Config(**CONFIG, activation_function="gelu_new", tie_word_embeddings=True,
                                     resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager",
                                     bos_token_id=None, eos_token_id=None)
    model = transformers.GPT2LMHeadModel(config).double().train()
    with torch.no_grad():
        # Far from the usual start, where norms are 1 and biases 0, and half of the mistakes would not show.
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.dim() >= 2:
                parameter.copy_(0.3 * noise)
            elif ".ln_" in name and name.endswith("weight"):
                parameter.copy_(1 + 0.2 * noise)
            else:
                parameter.copy_(0.1 * noise)
    assert model.lm_head.weight is model.transformer.wte.weight
    return model


def mean_loss(model, tokens, targets):
    logits = model(input_ids=tokens).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def check_gradient(model, tokens, targets):
    """A central difference at one element of each parameter, so that the golden file is not merely consistent."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            flat, at, width = parameter.view(-1), parameter.numel() // 3, 1e-5
            kept = flat[at].item()
            flat[at] = kept + width
            above = mean_loss(model, tokens, targets).item()
            flat[at] = kept - width
            below = mean_loss(model, tokens, targets).item()
            flat[at] = kept
            found, wanted = parameter.grad.view(-1)[at].item(), (above - below) / (2 * width)
            assert abs(found - wanted) < 1e-8 + 1e-6 * abs(wanted), (name, found, wanted)


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    generator = torch.Generator().manual_seed(20)
    model = make_model(generator)
    tokens = torch.randint(CONFIG["vocab_size"], (BATCH, CONTEXT), generator=generator)
    targets = torch.randint(CONFIG["vocab_size"], (BATCH, CONTEXT), generator=generator)
    targets[0, 0] = targets[1, 4] = targets[1, 5] = targets[2, CONTEXT - 1] = -1

    named = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in named.values() if p.dim() >= 2], "weight_decay": OPTIMIZER["decay"]},
         {"params": [p for p in named.values() if p.dim() < 2], "weight_decay": 0.0}],
        lr=OPTIMIZER["rate"], betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]), eps=OPTIMIZER["epsilon"])

    out = {"tokens": tokens.int(), "targets": targets.int()}
    out |= {f"parameter/{name}": p.detach().clone() for name, p in named.items()}
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = mean_loss(model, tokens, targets)
        loss.backward()
        if step == 0:
            check_gradient(model, tokens, targets)
            out |= {f"gradient/{name}": p.grad.clone() for name, p in named.items()}
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(named.values(), OPTIMIZER["clip"]).item())
        optimizer.step()
    out |= {f"after/{name}": p.detach().clone() for name, p in named.items()}
    out |= {"loss": torch.tensor(losses, dtype=torch.float64), "norm": torch.tensor(norms, dtype=torch.float64)}
    assert min(norms) > OPTIMIZER["clip"], "clipping must matter in this test"

    path = pathlib.Path(__file__).with_name("gpt.safetensors")
    safetensors.torch.save_file({k: v.contiguous() for k, v in out.items()}, path, metadata={
        # One entry: the order of several differs from run to run.
        "golden": json.dumps({"config": CONFIG, "optimizer": OPTIMIZER, "torch": torch.__version__,
                              "transformers": transformers.__version__})})
    print(f"{path.name}: {path.stat().st_size} bytes, losses {losses}, norms {norms}")


if __name__ == "__main__":
    main()
