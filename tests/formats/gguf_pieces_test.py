"""A directory with sentencepiece's tokenizer.model alone: its GGUF has these pieces; llama.cpp makes as many tokens."""

import io

from gguf_models import *

try:
    import gguf
    import sentencepiece
except ImportError as missing:
    skip(missing)
try:
    import xllamacpp
except ImportError:
    xllamacpp = None

LINES = ["The ferry crosses the river at %d o'clock, in %s weather.\n" % (hour, kind)
         for hour in range(24) for kind in ("fair", "foul", "Ölands", "  wide  ", "日本")]


def trained(kind, **more):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=out, model_type=kind, minloglevel=2, hard_vocab_limit=False,
        character_coverage=0.98, user_defined_symbols=["<mark>"], **more)
    return out.getvalue()


for kind, model, more in (
        ("llama", "bpe", {"vocab_size": 320, "byte_fallback": True, "normalization_rule_name": "identity",
                          "remove_extra_whitespaces": False}),
        ("t5", "unigram", {"vocab_size": 120})):
    llama(kind)
    tensors = load_file(path(kind, "model.safetensors"))
    size = 330
    for table in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[table] = normal(size, 64)
    with open(path(kind, "config.json"), encoding="utf-8") as file:
        config = json.load(file) | {"vocab_size": size}
    write(kind, config, tensors)
    content = trained(model, **more)
    with open(path(kind, "tokenizer.model"), "wb") as file:
        file.write(content)
    with open(path(kind, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"added_tokens_decoder": {"0": {"content": "<unk>", "special": True},
                                            "328": {"content": "<|added|>", "special": True}}}, file)
    pieces = sentencepiece.SentencePieceProcessor(model_proto=content)
    code, said = export(path(kind), "--to", "gguf", "--type", "f32", "--out", path(kind + ".gguf"))
    expect(code == 0, said)
    told = {name: field.contents() for name, field in gguf.GGUFReader(path(kind + ".gguf")).fields.items()
            if name.startswith("tokenizer.ggml.")}
    told = {name.removeprefix("tokenizer.ggml."): each for name, each in told.items()}
    count = pieces.get_piece_size()
    expect(told["model"] == kind, told["model"])
    expect(told["tokens"][:count] == [pieces.id_to_piece(i) for i in range(count)], kind + ": other tokens")
    expect(np.array_equal(np.float32(told["scores"][:count]), np.float32([pieces.get_score(i) for i in range(count)])),
           kind + ": other scores")
    for i in range(count):
        right = (2 if pieces.is_unknown(i) else 3 if pieces.is_control(i) else 6 if pieces.is_byte(i) else
                 4 if pieces.id_to_piece(i) == "<mark>" else 1)
        found = told["token_type"][i]
        expect(found == right, "%s: %s is of type %d" % (kind, told["tokens"][i], found))
    expect(told["tokens"][328] == "<|added|>" and told["token_type"][328:] == [3, 5], "added")
    expect((told["unknown_token_id"], told["bos_token_id"], told["eos_token_id"]) == (0, 1, 2), told)
    expect((told["add_bos_token"], told["add_eos_token"]) == (kind == "llama", kind == "t5"), told)
    expect(told["add_space_prefix"] is True, told)
    if xllamacpp is None:
        continue
    settings = xllamacpp.CommonParams()
    settings.model.path, settings.n_ctx, settings.n_parallel, settings.warmup = path(kind + ".gguf"), 128, 1, False
    settings.verbosity, settings.fit_params = -1, False
    server = xllamacpp.Server(settings)
    for line in LINES[:8] + ["a", " two  spaces ", "Ölands at 12 o'clock\n"]:
        done = server.handle_completions({"prompt": line, "max_tokens": 1})
        theirs = (json.loads(done) if isinstance(done, str) else done)["usage"]["prompt_tokens"]
        right = len(pieces.encode(line)) + 1  # with that at the beginning, or the end
        expect(theirs == right, "%s: %d tokens of %r in llama.cpp, not %d" % (kind, theirs, line, right))

# What llama.cpp does not have, and damaged files: a sentence, and no file.
for name, content, sentence in (("words", trained("word", vocab_size=40), "unigrams and byte pairs"),
                                ("plain", trained("bpe", vocab_size=120), "byte_fallback"),
                                ("many", trained("bpe", vocab_size=400, byte_fallback=True,
                                                 normalization_rule_name="identity"), "pieces, but the model has"),
                                ("cut", b"\x0a\x50abc", "ends beyond"), ("empty", b"", "not a file of sentencepiece")):
    llama(name, channels=32)
    with open(path(name, "tokenizer.model"), "wb") as file:
        file.write(content)
    found, said = export(path(name), "--to", "gguf")
    one = "tokenizer.model" in said and sentence in said and said.count("\n") == 1
    expect(found == 1 and one, "%s: %s" % (name, said))
    expect(not os.path.exists(path(name, "model-f16.gguf")), "a file was left")
finish()
