# test-takes: 15
"""The shards that examples/tokenize writes hold the ids of the package tokenizers, after a SIGKILL too."""

import array
import glob
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

TOKENIZE = os.path.join(os.environ.get("TRIREME_BINARY_DIR", ""), "examples", "tokenize")
GOLDEN = os.path.join(os.environ.get("TRIREME_SOURCE_DIR", ""), "tests", "golden", "tokenizers")


def skip(reason):
    print("skipped:", reason)
    sys.exit(77)


try:
    from tokenizers import Tokenizer
except ImportError as missing:
    skip(missing)
if not os.path.exists(TOKENIZE):
    skip(TOKENIZE + " is not built")

failures = []
folder = tempfile.TemporaryDirectory(prefix="tokenize.")


def path(*names):
    return os.path.join(folder.name, *names)


def expect(truth, sentence):
    if not truth:
        print("FAILED:", sentence, flush=True)
        failures.append(sentence)


def command(kind, out, *arguments):
    return [TOKENIZE, "--tokenizer", os.path.join(GOLDEN, kind + ".json"), "--out", path(out), *arguments]


def tokens_in(directory):
    """The tokens of shards, read without this library."""
    out = []
    for name in sorted(glob.glob(os.path.join(directory, "tokens_*.bin"))):
        with open(name, "rb") as file:
            content = file.read()
        header = array.array("i", content[:1024])
        code = {20240520: "H", 20240801: "I"}[header[0]]
        numbers = array.array(code, content[1024:])
        expect(header[1] == {"H": 1, "I": 7}[code] and header[2] == len(numbers), name + " has a wrong header")
        out += numbers.tolist()
    return out


draw = random.Random(7)
ALPHABET = ["the ", "of", " and", "ing ", "don't ", "12345", " ", "  ", "\t", "é", "ß", "ü", "語", "\U0001f600",
            "a\u0301", "Straße", "...", "!?", "x", "E = mc\u00b2", "<|endoftext|>", "</s>", "[SEP]", "\u00a0", "\u2028",
            "'LL "]
documents = ["".join(draw.choice(ALPHABET) for _ in range(draw.randrange(0, 60))) for _ in range(3000)]
with open(path("a.txt"), "w", encoding="utf-8", newline="") as file:
    file.write("\n".join(documents[:1000]) + "\n")
with open(path("b.jsonl"), "w", encoding="utf-8") as file:
    for i, document in enumerate(documents[1000:2000]):
        json.dump({"id": i, "body": document + "\nsecond line\r\n"}, file, ensure_ascii=i % 2 == 0)
        file.write("\n")
with open(path("c.txt"), "w", encoding="utf-8", newline="") as file:
    file.write("\n\n".join(documents[2000:]))
given = documents[:1000] + [document + "\nsecond line\r\n" for document in documents[1000:2000]] + documents[2000:]
given = [document for document in given if document]

for kind in ("gpt2", "llama3", "qwen2", "smollm2", "llama2", "mistral", "bert", "t5", "albert", "deepseek"):
    package = Tokenizer.from_file(os.path.join(GOLDEN, kind + ".json"))
    package.no_truncation()
    package.no_padding()
    separator = next(name for name in ("</s>", "<|endoftext|>", "[SEP]", "a") if package.token_to_id(name) is not None)
    expected = []
    for each in package.encode_batch(given, add_special_tokens=False):
        expected += each.ids + [package.token_to_id(separator)]
    done = subprocess.run(command(kind, kind, "--separator", separator, "--key", "body", "--shard-tokens", "30011",
                                  path("a.txt"), path("b.jsonl"), path("c.txt")), capture_output=True, text=True,
                          check=False)
    if kind == "deepseek" and "PCRE2" in done.stderr:
        continue
    expect(done.returncode == 0, "%s: %s" % (kind, done.stderr))
    found = tokens_in(path(kind))
    expect(found == expected, "%s: %d tokens, the package has %d" % (kind, len(found), len(expected)))

# What gzip compressed has the tokens of its content.
with open(path("b.jsonl"), "rb") as file, gzip.open(path("b.jsonl.gz"), "wb") as packed:
    packed.write(file.read())
for out, name in (("plain", "b.jsonl"), ("packed", "b.jsonl.gz")):
    done = subprocess.run(command("gpt2", out, "--separator", "none", "--key", "body", path(name)), capture_output=True,
                          text=True, check=False)
    without_zlib = "compressed in a way that is not read here" in done.stderr
    expect(done.returncode == 0 or without_zlib, done.stderr)
if not without_zlib:
    expect(tokens_in(path("plain")) == tokens_in(path("packed")), "compressed lines have other tokens")

# A run that is killed goes on, and its files are those of one that was not.
with open(path("long.txt"), "w", encoding="utf-8", newline="") as file:
    for i in range(40):
        file.write("\n".join(documents) + "\n")
arguments = ["--separator", "none", "--shard-tokens", "100003", path("long.txt")]
whole = subprocess.run(command("gpt2", "whole", *arguments), capture_output=True, text=True, check=False)
expect(whole.returncode == 0, whole.stderr)
running = subprocess.Popen(command("gpt2", "killed", *arguments), stdout=subprocess.DEVNULL)
until = time.monotonic() + 60
while running.poll() is None and time.monotonic() < until:
    if os.path.exists(path("killed.partial", "tokens_000002.bin")):
        running.send_signal(signal.SIGKILL)
    time.sleep(0.002)
if running.wait() != 0:
    expect(not os.path.exists(path("killed")), "a directory that is not complete has appeared")
    again = subprocess.run(command("gpt2", "killed", *arguments), capture_output=True, text=True, check=False)
    expect(again.returncode == 0 and again.stdout.startswith("continued "), again.stdout + again.stderr)
expect(sorted(os.listdir(path("killed"))) == sorted(os.listdir(path("whole"))), "other files after a SIGKILL")
for name in os.listdir(path("whole")):
    with open(path("whole", name), "rb") as one, open(path("killed", name), "rb") as other:
        expect(one.read() == other.read(), name + " has other bytes after a SIGKILL")

for arguments, part in ((["--separator", "<no such token>", path("a.txt")], "which is not a token"),
                        (["--documents", "page", path("a.txt")], "it is line, paragraph or file"),
                        (["--key", "text", path("b.jsonl")], "the object has no \"text\""),
                        ([], "--tokenizer FILE, --out DIR and a FILE of text are needed"),
                        (["--much"], "needs a value"), (["--much", "1"], "unknown option --much")):
    done = subprocess.run(command("gpt2", "no", *arguments), capture_output=True, text=True, check=False)
    expect(done.returncode in (1, 2) and part in done.stderr, "%s: %s" % (arguments, done.stderr))
    expect(not os.path.exists(path("no")), "%s made a directory" % arguments)
folder.cleanup()
sys.exit(1 if failures else 0)
