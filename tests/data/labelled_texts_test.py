# test-takes: 10
"""fine_tune learns from JSON lines and tables, and refuses what is wrong in them by file and place."""

import os
import shutil
import subprocess
import sys
import tempfile

PROGRAM = os.path.join(os.environ.get("TRIREME_BINARY_DIR", ""), "examples", "fine_tune")
if not os.path.exists(PROGRAM):
    print("skipped:", PROGRAM, "is not built")
    sys.exit(77)
folder = tempfile.mkdtemp(prefix="texts.")
os.chdir(folder)


def run(*arguments):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=100)
    return done.returncode, done.stdout, done.stderr


def expect(condition, message):
    if not condition:
        sys.exit(str(message))


def refused(sentence, name, content, *arguments):
    with open(name, "wb") as file:
        file.write(content)
    code, out, err = run("--from", ".", "--length", "16", "--data", name, *arguments)
    expect(code == 1 and err == "fine_tune: " + sentence + "\n" and "epoch" not in out, (name, content, code, err))


code, out, err = run("--from", "-", "--epochs", "1", "--data", "own.jsonl")  # which also writes a model
expect(code == 0 and "2 classes" in out, (code, out, err))
code, out, _ = run("--help")
expect(code == 0 and out.startswith("fine_tune --from DIR"), out)
code, _, err = run("--much", "1")
expect(code == 1 and err == "fine_tune: --much is not an option; see --help\n", err)

refused("a.csv is empty", "a.csv", b"")
refused("a.jsonl has 0 different labels, but 2 to 1000 are classes", "a.jsonl", b"")
refused("a.csv: record 1 has no column of labels; name it by --label COLUMN", "a.csv", b"a,b\n1,2\n")
refused("a.csv: record 1 has no column of texts \"words\"", "a.csv", b"text,label\n1,2\n", "--text", "words")
refused("a.csv: record 3 has 1 fields, but the first one has 2", "a.csv", b"text,label\nthe cat,1\nthe dog\n")
refused("a.csv: record 3: the quote that opens this field is never closed", "a.csv",
        b"text,label\nthe cat,1\n\"the dog,2\n")
refused("a.csv: record 3: trireme::formats::tokenizer: the text to encode: byte 4: it is not UTF-8 here", "a.csv",
        b"text,label\nthe cat,1\nthe \xff dog,2\n")
refused("a.csv has 1 different labels, but 2 to 1000 are classes", "a.csv", b"text,label\nthe cat,1\n")
refused("a.jsonl: line 2: byte 12: expected ',', found the end", "a.jsonl",
        b'{"text": "a", "label": 1}\n{"text": "b"')
refused("a.jsonl: line 1: byte 23: expected an integer of 64 bits", "a.jsonl", b'{"text": "a", "label": 1.5}\n')
refused("a.jsonl: line 1: byte 9: expected a string", "a.jsonl", b'{"text": 3, "label": 1}\n')
refused("a.jsonl: line 2: byte 10: not UTF-8", "a.jsonl", b'{"text": "a", "label": 1}\n{"text": "\xff", "label": 1}\n')
refused("a.jsonl: record 1 has no label; name it by --label KEY", "a.jsonl", b'{"text": "a"}\n')
shutil.rmtree(folder)
