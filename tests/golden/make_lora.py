#!/usr/bin/env python3
"""Writes lora.safetensors: what PyTorch computes for low-rank changes of the Llama in llama.safetensors, in double.

    pip install torch transformers safetensors && python3 tests/golden/make_lora.py

Each linear layer of transformers' LlamaForCausalLM that is changed gets what LoRA adds, written out in plain torch:
y + alpha / rank * (x a) b. Queries, keys and values of a layer have one a, as they are one product in trireme. Changed
are all products of attention, gate_proj and down_proj. With NAME that of a weight in transformers:

    a/NAME         (inputs, rank) float64; of queries, keys and values under the name of the queries
    b/NAME         (rank, outputs) float64
    gradient/...   of these, float64
    loss           (1) float64, of the tokens and targets in llama.safetensors
"""
import pathlib

import safetensors.torch
import torch

from make_llama import make_model, mean_loss

RANK, ALPHA = 3, 5.0
CHANGED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "down_proj")


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    generator = torch.Generator().manual_seed(34)
    golden = safetensors.torch.load_file(pathlib.Path(__file__).with_name("llama.safetensors"))
    model = make_model("llama", generator)
    model.load_state_dict({name: golden["llama/parameter/" + name] for name, _ in model.named_parameters()})
    factors = {}

    def factor(name, *extents):
        noise = torch.randn(extents, generator=generator, dtype=torch.float64)
        return factors.setdefault(name, (0.2 * noise).requires_grad_())

    def change(name, module):
        a = factor("a/" + name.replace("k_proj", "q_proj").replace("v_proj", "q_proj") + ".weight",
                   module.in_features, RANK)
        b = factor("b/" + name + ".weight", RANK, module.out_features)
        module.register_forward_hook(lambda _, inputs, y: y + ALPHA / RANK * (inputs[0] @ a) @ b)

    for name, module in model.named_modules():
        if name.endswith(CHANGED):
            change(name, module)
    loss = mean_loss(model, golden["tokens"].long(), golden["targets"].long())
    loss.backward()
    out = {"loss": loss.detach().reshape(1)}
    for name, each in factors.items():
        out[name] = each.detach().clone()
        out["gradient/" + name] = each.grad.clone()
    path = pathlib.Path(__file__).with_name("lora.safetensors")
    safetensors.torch.save_file(out, path)
    path.chmod(0o644)
    print(f"{path.name}: {path.stat().st_size} bytes, loss {loss.item()}")


if __name__ == "__main__":
    main()
