#!/usr/bin/env python3
"""Writes bert.safetensors: what PyTorch computes for a tiny BERT with either head, in double precision.

    pip install torch transformers safetensors && python3 tests/golden/make_bert.py

An implementation that shares no line with ours: BertForMaskedLM and BertForSequenceClassification of transformers. For
each MODEL of `masked` and `classifier`, under the names and in the layouts of trireme::nn::bert (products' weights
transposed; queries, keys and values side by side):

    MODEL/parameter/<name>    float64
    MODEL/gradient/<name>     of the loss, float64; a tied table has the sum of its two uses
    MODEL/loss                (1) float64
    tokens                    (B,T) int32: [CLS] = 2, words, [SEP] = 3, for pairs more words and [SEP], padding = 0
    masked/targets            (B,T) int32; below 0 where no word is asked for
    classifier/targets        (B) int32
"""
import pathlib

import safetensors.torch
import torch
import transformers

CONFIG = {"vocab_size": 53, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
          "intermediate_size": 40, "max_position_embeddings": 16, "type_vocab_size": 2, "hidden_act": "gelu",
          "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "layer_norm_eps": 1e-12, "pad_token_id": 0,
          "attn_implementation": "eager"}
CONTEXT = 13
LENGTHS = [(4, 5), (6, 0), (2, 3), (5, 5)]  # words of either segment


def samples(generator, vocabulary=CONFIG["vocab_size"]):
    def words(count):
        return torch.randint(4, vocabulary, (count,), generator=generator).tolist()

    tokens = torch.zeros(len(LENGTHS), CONTEXT, dtype=torch.int64)
    types = torch.zeros_like(tokens)
    for row, (first, second) in enumerate(LENGTHS):
        one = [2, *words(first), 3]
        two = [*words(second), 3] if second > 0 else []
        tokens[row, :len(one) + len(two)] = torch.tensor(one + two)
        types[row, len(one):len(one) + len(two)] = 1
    return tokens, types


def ours(tensors):
    """The names and layouts of trireme::nn::bert."""
    out = {}
    for name, value in tensors.items():
        if ".attention.self." in name:
            continue
        is_product = value.dim() == 2 and "embeddings" not in name
        out[name] = value.T if is_product else value
    for layer in range(CONFIG["num_hidden_layers"]):
        start = f"bert.encoder.layer.{layer}.attention.self."
        for kind in ("weight", "bias"):
            parts = [tensors[f"{start}{part}.{kind}"] for part in ("query", "key", "value")]
            out[f"{start}qkv.{kind}"] = torch.cat(parts).T if kind == "weight" else torch.cat(parts)
    return {name: value.detach().clone().contiguous() for name, value in out.items()}


def main():
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(8)
    tokens, types = samples(generator)
    mask = (tokens != 0).long()
    asked = torch.where((torch.rand(tokens.shape, generator=generator) < 0.4) & (tokens > 3), tokens, -100)
    labels = torch.tensor([2, 0, 1, 2])
    out = {"tokens": tokens.int(), "masked/targets": asked.int(), "classifier/targets": labels.int()}
    for kind, model_class, targets in (("masked", transformers.BertForMaskedLM, asked),
                                       ("classifier", transformers.BertForSequenceClassification, labels)):
        model = model_class(transformers.BertConfig(**CONFIG, num_labels=3)).double().train()
        with torch.no_grad():
            # Far from the usual start, where norms are 1, and half of the mistakes would not show.
            for name, parameter in model.named_parameters():
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(1 + 0.2 * noise if name.endswith("LayerNorm.weight") else 0.25 * noise)
        loss = model(input_ids=tokens, token_type_ids=types, attention_mask=mask, labels=targets).loss
        loss.backward()
        out[f"{kind}/loss"] = loss.detach().reshape(1)
        parameters = dict(model.named_parameters())
        for name, value in ours(parameters).items():
            out[f"{kind}/parameter/{name}"] = value
        for name, value in ours({name: value.grad for name, value in parameters.items()}).items():
            out[f"{kind}/gradient/{name}"] = value
    safetensors.torch.save_file(out, pathlib.Path(__file__).with_name("bert.safetensors"))


if __name__ == "__main__":
    main()
