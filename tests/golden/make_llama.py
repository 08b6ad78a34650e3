#!/usr/bin/env python3
"""Writes llama.safetensors: what PyTorch computes for tiny models of LLaMA's kind, in double precision.

    pip install torch transformers safetensors && python3 tests/golden/make_llama.py

An implementation that shares no line with ours: the classes of transformers. Only what transformers computes in float
whatever the model's type is replaced by the same formula in double: the angles of rotary positions and the norms (and
attention is torch's, as eager attention rounds its softmax to float). For each MODEL of `llama` (fewer keys than
queries, a head of its own), `qwen` (Qwen 2: biases on queries, keys and values, the head tied), `llama3` and `linear`
(scaled angles), `qwen3` (norms of queries and keys, heads wider than their share of the channels) and `mistral` (a
window), under the names that transformers gives the parameters:

    MODEL/parameter/<name>    float64
    MODEL/gradient/<name>     of the loss, float64; a tied table has the sum of its two uses
    MODEL/loss                (1) float64
    tokens, targets           (B,T) int32; a target of -1 is left out of the loss

and, as metadata, the configurations (JSON, under "golden"). The loss is the mean cross-entropy over the targets that
are not -1; target t belongs to position t (nothing is shifted).
"""
import json
import pathlib

import safetensors.torch
import torch
import transformers

COMMON = {"vocab_size": 61, "max_position_embeddings": 16, "hidden_size": 24, "intermediate_size": 20,
          "num_hidden_layers": 2, "rms_norm_eps": 1e-5, "attention_dropout": 0.0, "bos_token_id": None,
          "eos_token_id": None, "attn_implementation": "sdpa"}
MODELS = {
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig,
              {"num_attention_heads": 6, "num_key_value_heads": 2, "tie_word_embeddings": False,
               "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}),
    "qwen": (transformers.Qwen2ForCausalLM, transformers.Qwen2Config,
             {"num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": True,
              "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    "llama3": (transformers.LlamaForCausalLM, transformers.LlamaConfig,
               {"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": False,
                "rope_parameters": {"rope_type": "llama3", "rope_theta": 50.0, "factor": 8.0, "low_freq_factor": 0.5,
                                    "high_freq_factor": 2.0, "original_max_position_embeddings": 9}}),
    "linear": (transformers.LlamaForCausalLM, transformers.LlamaConfig,
               {"num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": True,
                "rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}}),
    "qwen3": (transformers.Qwen3ForCausalLM, transformers.Qwen3Config,
              {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True, "head_dim": 10,
               "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}),
    "mistral": (transformers.MistralForCausalLM, transformers.MistralConfig,
                {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False, "sliding_window": 4,
                 "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
}
BATCH, CONTEXT = 3, 11


def frequencies(rope, width):
    """1 / theta^(2 i / width), slower as the rule says; transformers has the same formulas in float."""
    each = 1.0 / rope["rope_theta"] ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    if rope["rope_type"] == "linear":
        return each / rope["factor"]
    if rope["rope_type"] == "llama3":
        turns = rope["original_max_position_embeddings"] * each / (2 * torch.pi)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        return each * (kept + (1 - kept) / rope["factor"])
    return each


class Angles(torch.nn.Module):
    """cos and sin of position * frequency, twice side by side: as in transformers, but in double."""

    def __init__(self, rope, width):
        super().__init__()
        self.each = frequencies(rope, width)

    def forward(self, x, position_ids):
        angles = position_ids[..., None].double() * self.each
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def norm_in_double(self, x):
    """As in transformers, but in double."""
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def make_model(kind, generator):
    model_class, config_class, special = MODELS[kind]
    model = model_class(config_class(**COMMON, **special)).double().train()
    theirs = model.model.rotary_emb
    width = special.get("head_dim", COMMON["hidden_size"] // special["num_attention_heads"])
    ours = Angles(special["rope_parameters"], width)
    positions = torch.arange(CONTEXT)[None]
    for a, b in zip(theirs(torch.zeros(1).double(), positions), ours(torch.zeros(1).double(), positions)):
        assert (a - b).abs().max() < 1e-5
    model.model.rotary_emb = ours
    norms = [module for module in model.modules() if type(module).__name__.endswith("RMSNorm")]
    assert len(norms) == (4 if kind == "qwen3" else 2) * COMMON["num_hidden_layers"] + 1
    for norm in norms:
        x = torch.randn(4, norm.weight.numel(), generator=generator, dtype=torch.float64)
        assert (norm(x) - norm_in_double(norm, x)).abs().max() < 1e-5
        norm.forward = norm_in_double.__get__(norm)
    with torch.no_grad():
        # Far from the usual start, where norms are 1, and half of the mistakes would not show.
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.dim() >= 2:
                parameter.copy_(0.3 * noise)
            elif "norm" in name:
                parameter.copy_(1 + 0.2 * noise)
            else:
                parameter.copy_(0.1 * noise)
    return model


def mean_loss(model, tokens, targets):
    logits = model(input_ids=tokens).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    generator = torch.Generator().manual_seed(21)
    tokens = torch.randint(COMMON["vocab_size"], (BATCH, CONTEXT), generator=generator)
    targets = torch.randint(COMMON["vocab_size"], (BATCH, CONTEXT), generator=generator)
    targets[0, 0] = targets[1, 4] = targets[1, 5] = targets[2, CONTEXT - 1] = -1
    out = {"tokens": tokens.int(), "targets": targets.int()}
    for kind in MODELS:
        model = make_model(kind, generator)
        loss = mean_loss(model, tokens, targets)
        loss.backward()
        out[f"{kind}/loss"] = loss.detach().reshape(1)
        for name, parameter in model.named_parameters():
            out[f"{kind}/parameter/{name}"] = parameter.detach().clone()
            out[f"{kind}/gradient/{name}"] = parameter.grad.clone()
    path = pathlib.Path(__file__).with_name("llama.safetensors")
    safetensors.torch.save_file({k: v.contiguous() for k, v in out.items()}, path, metadata={
        # One entry: the order of several differs from run to run.
        "golden": json.dumps({"common": COMMON, "models": {k: v[2] for k, v in MODELS.items()},
                              "torch": torch.__version__, "transformers": transformers.__version__})})
    print(f"{path.name}: {path.stat().st_size} bytes, " + str({k: out[f"{k}/loss"].item() for k in MODELS}))


if __name__ == "__main__":
    main()
