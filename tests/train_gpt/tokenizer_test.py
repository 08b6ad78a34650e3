# test-timeout: 900
"""--tokenizer: a run trains on a tokenizer's tokens, keeps the file, and goes on with no other."""

from runs import *

folder = work_folder()
GOLDEN = os.path.join(os.environ["TRIREME_TEST_DATA"], "golden", "tokenizers")
one, other = os.path.join(GOLDEN, "qwen2.json"), os.path.join(GOLDEN, "gpt2.json")
if "built without" in attempt("probe", ranks=1, tokenizer=one, steps=0)[2]:
    skip("train_gpt was built without utf8proc")

# The same run whatever the ranks, and in two parts.
alone = train("alone", ranks=1, tokenizer=one)
expect(".vocabulary = 3" in alone["model"], alone["model"])
expect(alone["held_out_last"] < alone["held_out_first"], repr(alone))
a_byte = alone["held_out_last"] * alone["held_out_tokens_a_byte"]
expect(abs(a_byte - alone["held_out_last_a_byte"]) < 1e-9, repr(alone))
shared = train("shared", parallel="zero2", tokenizer=one)
expect(abs(shared["held_out_last"] - alone["held_out_last"]) < 1e-4, repr(shared))
train("parts", ranks=1, tokenizer=one, stop_after=4)
parts = train("parts", ranks=1, resume=True)
expect(parts["state_hash"] == alone["state_hash"], "a run in two parts ended elsewhere")

# The file lies in the run and beside the model, whose loss is the same when it is read again.
wanted = open(one, "rb").read()
for name in ("tokenizer.json", "model/tokenizer.json"):
    expect(open("runs/alone/" + name, "rb").read() == wanted, name)
sizes = {"layers": None, "heads": None, "channels": None, "dropout": None}
again = train("again", ranks=1, steps=0, tokenizer="runs/alone/model/tokenizer.json",
              **sizes | {"from": "runs/alone/model"})
expect(abs(again["held_out_last"] - alone["held_out_last"]) < 1e-6, repr(again))

# No other tokenizer, and none for a run of bytes.
train("bytes", ranks=1)
for name in ("alone", "bytes"):
    expect("the tokens of this run are" in attempt(name, resume=True, tokenizer=other)[2], name)
with open("broken.json", "w", encoding="utf-8") as file:
    file.write('{"model": {"type": "WordLevel"}}')
expect("is not supported" in attempt("broken", tokenizer="broken.json")[2], "a tokenizer of another kind")
expect(not os.path.exists("runs/broken"), "a run that could not begin has left files")

# A file of sentencepiece does the same.
pieces = os.path.join(GOLDEN, "pieces_bpe.model")
if "built without" not in attempt("probe", ranks=1, tokenizer=pieces, steps=0)[2]:
    whole = train("whole", ranks=1, tokenizer=pieces)
    expect(whole["held_out_last"] < whole["held_out_first"], repr(whole))
    train("pieces", ranks=1, tokenizer=pieces, stop_after=4)
    expect(train("pieces", ranks=1, resume=True)["state_hash"] == whole["state_hash"], "a run in two parts of pieces")
    for name in ("tokenizer.model", "model/tokenizer.model"):
        expect(open("runs/pieces/" + name, "rb").read() == open(pieces, "rb").read(), name)

finish(folder)
