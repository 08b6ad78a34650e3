#!/usr/bin/env python3
"""Writes pretrained/: tiny models in Hugging Face's files, by transformers, and their losses in double precision.

    pip install torch transformers safetensors && python3 tests/golden/make_pretrained.py

pretrained/KIND/ is what save_pretrained writes (without the configuration for generation): `llama` (fewer keys than
queries, a head of its own, F32, several files and an index), `qwen2` (biases, a tied head, BF16), `mistral` (F32),
`gpt2` (F32, several files), `gpt2_base` (the model without its head, whose names have no prefix; F16), `llama3` (scaled
angles, F32), `qwen3` (norms of queries and keys, wide heads, a tied head, BF16), `mistral_window` (a window shorter
than the samples, F32), `bert_masked` (F32, several files), `bert_classifier` (three classes, F32), `bert_encoder` (the
same classifier without its head, whose names have no prefix).
pretrained/golden.safetensors has tokens and targets (B,T) int32, and for each KIND/loss (1) float64: the mean
cross-entropy of all targets (nothing is shifted) of the numbers in the files, computed in double. BERTs have tokens of
their own, bert/tokens (pairs of sentences, padded; [CLS] = 2, [SEP] = 3, padding = 0) and bert/types (B,T) int32,
bert_masked/targets (B,T) int32, below 0 where no word is asked for, and bert_classifier/targets (B) int32.
"""
import pathlib
import shutil

import safetensors.torch
import torch
import transformers

import make_bert
from make_llama import Angles, norm_in_double

BATCH, CONTEXT, WORDS = 4, 12, 37
LLAMA = {"vocab_size": WORDS, "max_position_embeddings": 16, "hidden_size": 16, "intermediate_size": 12,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
         "bos_token_id": None, "eos_token_id": None}
GPT = {"vocab_size": WORDS, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": None,
       "eos_token_id": None, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def rope(theta):
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}


MODELS = {  # class, configuration, type in the files, bytes of a file
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig(**LLAMA, **rope(100.0)), torch.float32, "8KB"),
    "qwen2": (transformers.Qwen2ForCausalLM, transformers.Qwen2Config(**LLAMA, **rope(10000.0),
                                                                      tie_word_embeddings=True), torch.bfloat16, "1GB"),
    "mistral": (transformers.MistralForCausalLM, transformers.MistralConfig(**LLAMA, **rope(10000.0)), torch.float32,
                "1GB"),
    "gpt2": (transformers.GPT2LMHeadModel, transformers.GPT2Config(**GPT), torch.float32, "8KB"),
    "gpt2_base": (transformers.GPT2LMHeadModel, transformers.GPT2Config(**GPT), torch.float16, "1GB"),
    "llama3": (transformers.LlamaForCausalLM, transformers.LlamaConfig(**LLAMA, rope_parameters={
        "rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 0.5, "high_freq_factor": 2.0,
        "original_max_position_embeddings": 9}), torch.float32, "1GB"),
    "qwen3": (transformers.Qwen3ForCausalLM, transformers.Qwen3Config(**LLAMA, **rope(10000.0), head_dim=6,
                                                                      tie_word_embeddings=True), torch.bfloat16, "1GB"),
    "mistral_window": (transformers.MistralForCausalLM, transformers.MistralConfig(
        **LLAMA, **rope(10000.0), sliding_window=5), torch.float32, "1GB"),
}

BERT = {**make_bert.CONFIG, "vocab_size": WORDS, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24,
        "num_labels": 3}


def in_double(model, config):
    """Whatever transformers computes in float is computed in double."""
    model = model.double().eval()
    if hasattr(model, "model"):
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        model.model.rotary_emb = Angles(config.rope_parameters, width)
        for module in model.modules():
            if type(module).__name__.endswith("RMSNorm"):
                module.forward = norm_in_double.__get__(module)
    return model


def randomize(model, generator):
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.3 * noise if parameter.dim() > 1 else 1 + 0.2 * noise)


def berts(folder, generator):
    tokens, types = make_bert.samples(generator, WORDS)
    given = {"input_ids": tokens, "token_type_ids": types, "attention_mask": (tokens != 0).long()}
    targets = {"bert_masked": torch.where((torch.rand(tokens.shape, generator=generator) < 0.4) & (tokens > 3), tokens,
                                          -100),
               "bert_classifier": torch.tensor([2, 0, 1, 2])}
    out = {"bert/tokens": tokens.int(), "bert/types": types.int()}
    for kind, model_class in (("bert_masked", transformers.BertForMaskedLM),
                              ("bert_classifier", transformers.BertForSequenceClassification)):
        model = model_class(transformers.BertConfig(**BERT))
        randomize(model, generator)
        model.save_pretrained(folder / kind, max_shard_size="8KB" if kind == "bert_masked" else "1GB")
        if kind == "bert_classifier":
            model.bert.save_pretrained(folder / "bert_encoder")
        out[kind + "/targets"] = targets[kind].int()
        loss = model.double().eval()(**given, labels=targets[kind]).loss
        assert loss.dtype == torch.float64
        out[kind + "/loss"] = loss.detach().reshape(1)
        print(kind, loss.item())
    return out


def main():
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(5)
    folder = pathlib.Path(__file__).with_name("pretrained")
    shutil.rmtree(folder, ignore_errors=True)
    tokens = torch.randint(WORDS, (BATCH, CONTEXT), generator=generator)
    targets = torch.randint(WORDS, (BATCH, CONTEXT), generator=generator)
    out = {"tokens": tokens.int(), "targets": targets.int()}
    for kind, (model_class, config, dtype, most) in MODELS.items():
        config._attn_implementation = "sdpa"
        model = model_class(config)
        randomize(model, generator)
        model = model.to(dtype)
        written = model.transformer if kind.endswith("_base") else model
        written.save_pretrained(folder / kind, max_shard_size=most)
        (folder / kind / "generation_config.json").unlink(missing_ok=True)
        logits = in_double(model, config)(input_ids=tokens).logits
        assert logits.dtype == torch.float64
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        out[kind + "/loss"] = loss.detach().reshape(1)
        print(kind, loss.item(), sum(f.stat().st_size for f in (folder / kind).iterdir()), "bytes")
    out.update(berts(folder, generator))
    safetensors.torch.save_file(out, folder / "golden.safetensors")


if __name__ == "__main__":
    main()
