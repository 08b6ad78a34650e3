#!/usr/bin/env python3
"""Writes vit.safetensors: what PyTorch computes for a tiny vision transformer, in double precision.

    pip install torch transformers safetensors && python3 tests/golden/make_vit.py

An implementation that shares no line with ours: ViTForImageClassification of transformers. Under the names and in the
layouts of trireme::nn::vit (channels innermost; products' weights transposed; queries, keys and values side by side):

    parameter/<name>    float64
    gradient/<name>     of the loss, float64
    loss                (1) float64
    images              (B, height, width, channels) float32
    targets             (B) int32
"""
import pathlib

import safetensors.torch
import torch
import transformers

CONFIG = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40,
          "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
          "layer_norm_eps": 1e-12, "image_size": 12, "patch_size": 4, "num_channels": 2, "num_labels": 5,
          "attn_implementation": "sdpa"}  # "eager" rounds to float on the way


IN_FILES = {"vit.layers.": "vit.encoder.layer.", "attention.o_proj": "attention.output.dense",
            "mlp.fc1": "intermediate.dense", "mlp.fc2": "output.dense"}  # newer versions name them otherwise in memory


def ours(tensors):
    """The names and layouts of trireme::nn::vit."""
    out = {}
    for name, value in tensors.items():
        for there, here in IN_FILES.items():
            name = name.replace(there, here)
        if "_proj" in name:
            continue
        if value.dim() == 4:  # (outputs, channels, height, width) -> (inputs, outputs)
            value = value.permute(2, 3, 1, 0).reshape(-1, value.shape[0])
        elif "embeddings" in name and value.dim() == 3:
            value = value.reshape(-1) if name.endswith("cls_token") else value[0]
        elif value.dim() == 2:
            value = value.T
        out[name] = value
    for layer in range(CONFIG["num_hidden_layers"]):
        for kind in ("weight", "bias"):
            parts = [tensors[f"vit.layers.{layer}.attention.{part}_proj.{kind}"] for part in "qkv"]
            name = f"vit.encoder.layer.{layer}.attention.attention.qkv.{kind}"
            out[name] = torch.cat(parts).T if kind == "weight" else torch.cat(parts)
    return {name: value.detach().clone().contiguous() for name, value in out.items()}


def main():
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(8)
    images = torch.randn(4, 2, 12, 12, generator=generator)
    labels = torch.tensor([2, 0, 4, 2])
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**CONFIG)).double().train()
    with torch.no_grad():
        # Far from the usual start, where norms are 1, and half of the mistakes would not show.
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(1 + 0.2 * noise if "layernorm" in name and name.endswith("weight") else 0.25 * noise)
    loss = model(pixel_values=images.double(), labels=labels).loss
    loss.backward()
    parameters = dict(model.named_parameters())
    out = {"loss": loss.detach().reshape(1), "targets": labels.int(),
           "images": images.permute(0, 2, 3, 1).contiguous()}
    for name, value in ours(parameters).items():
        out[f"parameter/{name}"] = value
    for name, value in ours({name: value.grad for name, value in parameters.items()}).items():
        out[f"gradient/{name}"] = value
    safetensors.torch.save_file(out, pathlib.Path(__file__).with_name("vit.safetensors"))


if __name__ == "__main__":
    main()
