# test-takes: 10
"""train_gpt --data: the same tokens in three layouts are the same run, which can be resumed from another layout."""

import array
import random
import struct

import runs
from runs import expect

folder = runs.work_folder()
draw = random.Random(2)
documents = [[draw.randrange(200) for _ in range(draw.randrange(1, 300))] for _ in range(40)]
tokens = [token for document in documents for token in document]


def numbers(code, values):
    return array.array(code, values).tobytes()


def write(path, content):
    with open(path, "wb") as file:
        file.write(content)


cut = len(tokens) // 2
for i, part in enumerate((tokens[:cut], tokens[cut:])):
    write("llm_c_%d.bin" % i, numbers("i", [20240520, 1, len(part)] + 253 * [0]) + numbers("H", part))
write("plain.bin", numbers("H", tokens))
write("megatron.bin", numbers("H", tokens))
lengths = [len(document) for document in documents]
begins = [2 * sum(lengths[:i]) for i in range(len(lengths))]
write("megatron.idx", b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1) +
      numbers("i", lengths) + numbers("q", begins) + numbers("q", range(len(lengths) + 1)))

given = {"text": None, "vocabulary": 200, "steps": 4}
layouts = {"llm_c": {"data": "llm_c_*.bin"}, "plain": {"data": "plain.bin", "data_kind": "u16"},
           "megatron": {"data": "megatron.bin"}}
found = {name: runs.train(name, **given, **layout) for name, layout in layouts.items()}
hashes = {name: summary["state_hash"] for name, summary in found.items()}
expect(len(set(hashes.values())) == 1, "three layouts give %s" % hashes)
expect(len({summary["held_out_last"] for summary in found.values()}) == 1, "the held-out losses differ")
expect(found["plain"]["held_out_begin"] == len(tokens) * 9 // 10, "the split is at %s" % found["plain"])

# A run that stops and goes on, on one rank more and from another layout, ends with the same weights.
whole = runs.train("whole", 1, reproducible=True, **given, **layouts["plain"])
runs.train("part", 1, reproducible=True, stop_after=2, **given, **layouts["plain"])
resumed = runs.train("part", 2, resume=True, data="llm_c_*.bin", data_kind="recognised")
expect(resumed["state_hash"] == whole["state_hash"], "a resumed run ended with other weights")


def refused(name, part, **options):
    code, _, err = runs.attempt(name, **options)
    expect(code == 1 and part in err, "%s ended with %d: %s, without %s" % (options, code, err, part))


refused("no", "plain.bin: byte 0: trireme::data::token_shards: nothing says how the tokens are stored",
        **given, data="plain.bin")
refused("no", "give --vocabulary N, or the --tokenizer", text=None, data="megatron.bin")
refused("no", "a run has --text or --data", vocabulary=200, data="megatron.bin")
refused("no", "--data-kind goes with --data", data_kind="u16")
refused("no", "--data-kind is \"u8\"", **given, data="plain.bin", data_kind="u8")
refused("no", "ids are from 0 to 149", **given | {"vocabulary": 150}, data="megatron.bin")
refused("no", "no file matches", **given, data="none_*.bin")
write("llm_c_2.bin", numbers("i", [20240520, 1, 300] + 253 * [0]) + numbers("H", 300 * [1]))
refused("part", "restore those files, or give --accept-new-text", resume=True)
runs.finish(folder)
