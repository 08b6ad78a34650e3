# test-takes: 10
"""train_gpt --data: the same tokens in three layouts are the same run, which can be resumed from another layout, or
killed, and resumed on another number of ranks and of workers; and so for conversations."""

import array
import json
import os
import random
import signal
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


def train_killed(name, resumed_with, **options):
    """Killed by SIGKILL when it has a checkpoint, then resumed on other ranks: the summary."""
    process = runs.start(name, 2, reproducible=True, save_every=1, **options)
    runs.wait_for(lambda: runs.checkpoints(name), process)
    early = process.poll() is None
    if early:
        os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    return runs.train(name, 1, resume=True, **resumed_with) if early else runs.summary(name)


longer = given | layouts["plain"] | {"steps": 60}
whole = runs.train("long", 1, reproducible=True, **longer)
killed = train_killed("killed", {"workers": 3}, workers=2, **longer)
expect(killed["state_hash"] == whole["state_hash"], "a killed run ended with other weights")


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


# Conversations: the tokens of answers and of their ends are learnt.
golden = os.path.join(os.environ["TRIREME_TEST_DATA"], "golden", "tokenizers", "gpt2.json")
with open(golden, encoding="utf-8") as file:
    tokenizer = json.load(file)
free = 1 + max([*tokenizer["model"]["vocab"].values(), *(each["id"] for each in tokenizer["added_tokens"])])
for i, mark in enumerate(("<|im_start|>", "<|im_end|>")):
    tokenizer["added_tokens"].append({"id": free + i, "content": mark, "single_word": False, "lstrip": False,
                                      "rstrip": False, "normalized": False, "special": True})
os.mkdir("words")
with open("words/tokenizer.json", "w", encoding="utf-8") as file:
    json.dump(tokenizer, file)
lines = [json.dumps({"messages": [{"role": "user", "content": "Say ok, " + "please " * draw.randrange(3)},
                                  {"role": "assistant", "content": "ok"}]} if i % 2 else
                    {"prompt": "Say ok", "completion": "ok"}) for i in range(60)]
with open("chats.jsonl", "w", encoding="utf-8") as file:
    file.write("\n".join(lines) + "\n")
chats = {"text": None, "data": "chats.jsonl", "tokenizer": "words/tokenizer.json", "context": 64, "steps": 90}
if "built without" in runs.attempt("probe", **chats)[2]:
    runs.finish(folder)
    runs.skip("conversations, because train_gpt was built without utf8proc")
refused("no", "--chat chatml, llama3 or plain", **chats)
with open("words/tokenizer_config.json", "w", encoding="utf-8") as file:
    json.dump({"chat_template": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
                                "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"}, file)
found = runs.train("chats", 1, reproducible=True, **chats)
expect(found["conversations"] == 60 and found["tokens_to_learn"] % 60 == 0, "counts: %s" % found)
expect(60 * 2 <= found["tokens_to_learn"] <= 60 * 3, "an answer has other tokens than its own: %s" % found)
expect(found["held_out_begin"] == 54 and found["held_out_last"] < found["held_out_first"] / 2, "%s" % found)
os.rename("words/tokenizer_config.json", "words/gone.json")  # the run keeps the template
killed = train_killed("chats_killed", {"workers": 3}, **chats | {"chat": "chatml"})
expect(killed["state_hash"] == found["state_hash"], "a killed run of conversations ended with other weights")
packed = runs.train("packed", 2, **chats | {"chat": "chatml", "chat_packing": "best_fit"})
expect(packed["conversations"] == 60 and packed["held_out_begin"] < 54, "packed: %s" % packed)
long = json.dumps({"prompt": "a b " * 40, "completion": "ok"})
with open("chats.jsonl", "a", encoding="utf-8") as file:
    file.write(long + "\n")
refused("no", "chats.jsonl: byte %d: " % sum(len(line) + 1 for line in lines), **chats | {"chat": "chatml"})
left = runs.train("left", 1, **chats | {"chat": "chatml", "chat_longer": "left_out", "steps": 1})
expect(left["conversations_left_out"] == 1 and left["conversations"] == 60, "left out: %s" % left)
with open("chats.jsonl", "a", encoding="utf-8") as file:
    file.write(lines[0] + "\n")
refused("chats", "restore those files, or give --accept-new-text", resume=True, chat_longer="cut")
refused("no", "--data FILE.jsonl holds conversations; give the --tokenizer", **chats | {"tokenizer": None})
runs.finish(folder)
