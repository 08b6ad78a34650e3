"""Random models in Hugging Face's files, and the program export: for the tests of GGUF."""

import json
import os
import subprocess
import sys
import tempfile

EXPORT = os.path.join(os.environ.get("TRIREME_BINARY_DIR", ""), "examples", "export")
GENERATE = os.path.join(os.environ.get("TRIREME_BINARY_DIR", ""), "examples", "generate")


def skip(reason):
    print("skipped:", reason)
    sys.exit(77)


try:
    import numpy as np
    from safetensors.numpy import load_file, save_file
except ImportError as missing:
    skip(missing)
if not os.path.exists(EXPORT):
    skip(EXPORT + " is not built")

folder = tempfile.TemporaryDirectory(prefix="gguf.")
random = np.random.default_rng(3)
failures = []


def expect(truth, sentence):
    if not truth:
        print("FAILED:", sentence, flush=True)
        failures.append(sentence)


def finish():
    folder.cleanup()
    sys.exit(1 if failures else 0)


def path(*names):
    return os.path.join(folder.name, *names)


def normal(*shape, scale=0.3):
    return (random.standard_normal(shape) * scale).astype(np.float32)


def printable(table):
    """A head, or a tied table, whose most probable byte is a printable character of ASCII."""
    table[:32] = table[127:] = 0
    return table


def write(name, config, tensors):
    os.makedirs(path(name), exist_ok=True)
    with open(path(name, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    save_file(tensors, path(name, "model.safetensors"), metadata={"format": "pt"})
    return tensors


def llama(name, kind="llama", channels=64, layers=2, heads=4, keys=2, hidden=96, **more):
    width, vocabulary = channels // heads, 256
    tensors = {"model.embed_tokens.weight": normal(vocabulary, channels),
               "model.norm.weight": 1 + normal(channels, scale=0.1),
               "lm_head.weight": printable(normal(vocabulary, channels))}
    for i in range(layers):
        block, attention = "model.layers.%d." % i, "model.layers.%d.self_attn." % i
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[block + norm + ".weight"] = 1 + normal(channels, scale=0.1)
        for which, rows in (("q_proj", heads * width), ("k_proj", keys * width), ("v_proj", keys * width)):
            tensors[attention + which + ".weight"] = normal(rows, channels)
            if kind == "qwen2":
                tensors[attention + which + ".bias"] = normal(rows)
        if kind == "qwen3":
            for norm in ("q_norm", "k_norm"):
                tensors[attention + norm + ".weight"] = 1 + normal(width, scale=0.1)
        tensors[attention + "o_proj.weight"] = normal(channels, heads * width)
        for which, rows, columns in (("gate", hidden, channels), ("up", hidden, channels), ("down", channels, hidden)):
            tensors["%smlp.%s_proj.weight" % (block, which)] = normal(rows, columns)
    return write(name, {"model_type": kind, "vocab_size": vocabulary, "max_position_embeddings": 256,
                        "hidden_size": channels, "intermediate_size": hidden, "num_hidden_layers": layers,
                        "num_attention_heads": heads, "num_key_value_heads": keys, "head_dim": width,
                        "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False, **more}, tensors)


def gpt(name, channels=64, layers=2, heads=4):
    tensors = {"transformer.wte.weight": printable(normal(256, channels)),
               "transformer.wpe.weight": normal(128, channels),
               "transformer.ln_f.weight": 1 + normal(channels, scale=0.1), "transformer.ln_f.bias": normal(channels)}
    for i in range(layers):
        block = "transformer.h.%d." % i
        for which, inputs, outputs in (("attn.c_attn", channels, 3 * channels), ("attn.c_proj", channels, channels),
                                       ("mlp.c_fc", channels, 4 * channels), ("mlp.c_proj", 4 * channels, channels)):
            tensors[block + which + ".weight"] = normal(inputs, outputs)
            tensors[block + which + ".bias"] = normal(outputs)
        for norm in ("ln_1", "ln_2"):
            tensors[block + norm + ".weight"] = 1 + normal(channels, scale=0.1)
            tensors[block + norm + ".bias"] = normal(channels)
    return write(name, {"model_type": "gpt2", "vocab_size": 256, "n_positions": 128, "n_embd": channels,
                        "n_layer": layers, "n_head": heads, "activation_function": "gelu_new"}, tensors)


def export(*arguments):
    """(exit code, standard error)"""
    done = subprocess.run([EXPORT, *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr
