#!/usr/bin/env python3
"""scripts/benchmark tokenize [--text FILE] [--rounds 3] [--vocabulary 32000]

Makes shards of a text by scripts/example tokenize, on all cores, beside the package tokenizers in one process on the
same cores (encode_batch_fast of 16 MB of lines at a time), in turns. The text is 40 MB in many scripts, unless --text
names another; the tokenizers are trained on 2 MB of it, taken from 10 places. One row per tokenizer: medians of seconds
and of processor seconds of both, and the memory of ours in MB for this text and for four times as much of it.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

source = os.environ["TRIREME_SOURCE_DIR"]
sys.path[0] = os.path.join(source, "tests", "golden")  # and not this folder, where tokenizers is a file
import make_tokenizers  # which leaves with 77 if the package is missing

parser = argparse.ArgumentParser(prog="tokenize")
parser.add_argument("--text")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--vocabulary", type=int, default=32000)
options = parser.parse_args()
program = os.path.join(os.environ["TRIREME_BINARY_DIR"], "benchmarks", "tokenize")
if not os.path.exists(program):
    sys.exit("tokenize: %s is not built, because utf8proc is not here" % program)


SMALL = """
import resource, subprocess, sys, time
start = time.perf_counter()
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print([time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3])
"""


def here(folder, path):
    """Seconds, processor seconds, MB of memory."""
    out = os.path.join(folder, "tokens")
    shutil.rmtree(out, ignore_errors=True)
    # In a small process between: the memory of a new process counts as its child's.
    found = subprocess.run([sys.executable, "-c", SMALL, program, "--tokenizer", os.path.join(folder, "tokenizer.json"),
                            "--out", out, "--separator", "none", path], check=True, capture_output=True, text=True)
    return json.loads(found.stdout)


def there(made, path):
    start, processor = time.perf_counter(), time.process_time()
    with open(path, encoding="utf-8", newline="\n") as file:
        while lines := file.readlines(1 << 24):
            made.encode_batch_fast([line.rstrip("\n") for line in lines], add_special_tokens=False)
    return time.perf_counter() - start, time.process_time() - processor


def median(rows, column):
    return round(statistics.median(row[column] for row in rows), 2)


with tempfile.TemporaryDirectory() as folder:
    if options.text:
        with open(options.text, encoding="utf-8", newline="") as file:
            text = file.read()
    else:
        text = make_tokenizers.running_text(make_tokenizers.random.Random(1), 40_000_000)
    paths = [os.path.join(folder, name) for name in ("one.txt", "four.txt")]
    for path, times in zip(paths, (1, 4)):
        with open(path, "w", encoding="utf-8", newline="") as file:
            for _ in range(times):
                file.write(text)
    size = os.path.getsize(paths[0]) / 1e6
    some = "".join(text[len(text) // 10 * i:][:200_000] for i in range(10)).split("\n")
    del text
    for name, made in make_tokenizers.kinds(some, options.vocabulary, ("gpt2", "llama3")):
        make_tokenizers.save(name, made, os.path.join(folder, "tokenizer.json"))
        made = make_tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        ours, theirs = [], []
        for _ in range(options.rounds):
            ours.append(here(folder, paths[0]))
            theirs.append(there(made, paths[0]))
        print(json.dumps({"tokenizer": name, "MB": round(size, 1), "seconds": median(ours, 0),
                          "processor_seconds": median(ours, 1), "tokenizers_seconds": median(theirs, 0),
                          "tokenizers_processor_seconds": median(theirs, 1),
                          "ratio": round(median(theirs, 0) / median(ours, 0), 1),
                          "processor_ratio": round(median(theirs, 1) / median(ours, 1), 1),
                          "memory_MB": round(here(folder, paths[0])[2], 1),
                          "memory_of_four_MB": round(here(folder, paths[1])[2], 1)}), flush=True)
