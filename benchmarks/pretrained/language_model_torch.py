#!/usr/bin/env python3
"""The comparison for `scripts/train --from DIR` and examples/generate: a model in transformers, in float.

    language_model_torch.py DIR --summary runs/NAME/summary.json    # the held-out loss of that run's tokens
    language_model_torch.py DIR --prompt TEXT --tokens N            # the text, continued by the most probable tokens

Needs torch and transformers. The summary contains the held-out part of the text and the number of windows in it; each
window is evaluated alone. DIR/tokenizer.json is the tokenizer.
"""
import argparse
import json
import os

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM


def held_out_loss(model, words, summary):
    with open(summary["text"], "rb") as file:
        held_out = file.read()[summary["held_out_begin"]:].decode("utf-8", errors="ignore")
    windows, context = summary["held_out_windows"], summary["context"]
    tokens = torch.tensor(words.encode(held_out, add_special_tokens=False).ids[:windows * context])
    total = 0.0
    for window in tokens.view(windows, context).split(8):
        logits = model(window).logits[:, :-1]
        total += F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten(), reduction="sum").item()
    return total / (windows * (context - 1))


def main():
    parser = argparse.ArgumentParser(description="a model of Hugging Face in transformers")
    parser.add_argument("directory")
    parser.add_argument("--summary", help="print the loss of this run's held-out tokens")
    parser.add_argument("--prompt", help="print it and what follows")
    parser.add_argument("--tokens", type=int, default=100)
    options = parser.parse_args()
    words = Tokenizer.from_file(os.path.join(options.directory, "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(options.directory, dtype=torch.float32).eval()
    with torch.no_grad():
        if options.summary:
            with open(options.summary, encoding="utf-8") as file:
                summary = json.load(file)
            loss = held_out_loss(model, words, summary)
            print(json.dumps({"transformers": loss, "trireme": summary["held_out_last"],
                              "difference": summary["held_out_last"] - loss}))
        if options.prompt:
            prompt = torch.tensor([words.encode(options.prompt, add_special_tokens=False).ids])
            out = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, eos_token_id=None,
                                 pad_token_id=0, max_new_tokens=options.tokens)
            print(words.decode(out[0].tolist(), skip_special_tokens=False))


if __name__ == "__main__":
    main()
