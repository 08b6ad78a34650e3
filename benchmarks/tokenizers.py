#!/usr/bin/env python3
"""scripts/benchmark tokenizers [--rounds 5] [--text FILE] [--vocabulary 16000]

Encodes texts on one core with formats::tokenizer and with the package tokenizers, alternating: a text as a whole, and
line by line. The tokenizers are trained here on the text (5 MB in many scripts, unless --text names another). One row
per kind: median MB/s of both (in CPU time, so that other programs have little influence), their spread (largest minus
smallest, over the median), and the ratio of the medians.
"""
# targets: benchmark_tokenizers_encode
# needs: utf8proc

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
source = os.environ["TRIREME_SOURCE_DIR"]
sys.path[0] = os.path.join(source, "tests", "golden")  # and not this folder, where tokenizers is this file
import make_tokenizers  # which leaves with 77 if the package is missing

parser = argparse.ArgumentParser(prog="tokenizers")
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--text")
parser.add_argument("--vocabulary", type=int, default=16000)
options = parser.parse_args()

program = os.path.join(os.environ["TRIREME_BINARY_DIR"], "benchmarks", "tokenizers_encode")
if not os.path.exists(program):
    sys.exit("tokenizers: %s is not built, because utf8proc is not here" % program)
if options.text:
    with open(options.text, encoding="utf-8", newline="") as file:
        text = file.read()
else:
    text = make_tokenizers.running_text(make_tokenizers.random.Random(1), 5_000_000)
size = len(text.encode()) / 1e6
lines = text.split("\n")


def timed(action):
    start = time.process_time()
    action()
    return size / (time.process_time() - start)


def row(values):
    middle = statistics.median(values)
    return {"MB/s": round(middle, 1), "spread": round((max(values) - min(values)) / middle, 2)}


with tempfile.TemporaryDirectory() as folder:
    path, text_path = os.path.join(folder, "tokenizer.json"), os.path.join(folder, "text")
    with open(text_path, "w", encoding="utf-8", newline="") as file:
        file.write(text)
    kinds = "gpt2", "llama3", "qwen2", "llama2", "bert", "unigram", "t5"
    for name, made in make_tokenizers.kinds(text[:2_000_000].split("\n"), options.vocabulary, kinds):
        make_tokenizers.save(name, made, path)
        made = make_tokenizers.Tokenizer.from_file(path)
        ours, theirs = {"whole": [], "lines": []}, {"whole": [], "lines": []}
        for _ in range(options.rounds):
            found = json.loads(subprocess.run([program, path, text_path], check=True, capture_output=True).stdout)
            for way in ours:
                ours[way].append(found[way])
            theirs["whole"].append(timed(lambda: made.encode_batch_fast([text], add_special_tokens=False)))
            theirs["lines"].append(timed(lambda: made.encode_batch_fast(lines, add_special_tokens=False)))
        for way in ours:
            print(json.dumps({"tokenizer": name, "text": way, "MB": round(size, 1), "trireme": row(ours[way]),
                              "tokenizers": row(theirs[way]),
                              "ratio": round(statistics.median(ours[way]) / statistics.median(theirs[way]), 1)}),
                  flush=True)
