"""GGUF files are read as Hugging Face's files, and written again: the same tensors, byte for byte. Refusals."""

import shutil

from gguf_models import *

try:
    import gguf
except ImportError as missing:
    skip(missing)


def tensors_of(file):
    return [(each.name, each.tensor_type, list(each.shape), each.data.tobytes())
            for each in gguf.GGUFReader(file).tensors]


def told_in(file):
    out = {name: field.contents() for name, field in gguf.GGUFReader(file).fields.items() if field.types}
    return {name: each for name, each in out.items() if name.startswith(("tokenizer.", "llama.", "gpt2.", "qwen"))}


models = {"gpt": gpt("gpt"), "llama": llama("llama", tie_word_embeddings=False), "qwen2": llama("qwen2", "qwen2"),
          "qwen3": llama("qwen3", "qwen3", rope_theta=500000.0),
          "llama3": llama("llama3", rope_scaling={
              "rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64, "low_freq_factor": 1.0,
              "high_freq_factor": 4.0}),
          "linear": llama("linear", rope_scaling={"rope_type": "linear", "factor": 4.0}, rms_norm_eps=1e-6)}
pieces = {chr(33 + i): i for i in range(94)} | {"Ġ": 94, "ab": 95, "<|end|>": 96}
with open(path("gpt", "tokenizer.json"), "w", encoding="utf-8") as file:
    json.dump({"added_tokens": [{"id": 96, "content": "<|end|>", "special": True}], "normalizer": None,
               "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                   {"type": "Digits", "individual_digits": True},
                   {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]},
               "model": {"type": "BPE", "vocab": pieces, "merges": [["a", "b"]]}}, file)
with open(path("gpt", "tokenizer_config.json"), "w", encoding="utf-8") as file:
    json.dump({"eos_token": "<|end|>", "chat_template": "{{ messages }}"}, file)
for name, tensors in models.items():
    for kind in ("f32", "bf16", "q8_0", "q4_1", "q4_0", "q5_0") if name == "llama" else ("f32", "q4_0"):
        first, back, again = path("first.gguf"), path("back"), path("again.gguf")
        code, said = export(path(name), "--to", "gguf", "--type", kind, "--out", first)
        expect(code == 0, said)
        code, said = export(first, "--to", "huggingface", "--out", back)
        expect(code == 0, said)
        code, said = export(back, "--to", "gguf", "--like", first, "--out", again)
        expect(code == 0, said)
        expect(tensors_of(first) == tensors_of(again), "%s as %s: other tensors" % (name, kind))
        expect(told_in(first) == told_in(again), "%s as %s: other metadata: %s" % (
            name, kind, [key for key, each in told_in(first).items() if told_in(again).get(key) != each]))
        if kind == "f32":
            now = load_file(os.path.join(back, "model.safetensors"))
            expect(sorted(now) == sorted(tensors), "%s: %s" % (name, sorted(now)))
            expect(all(np.array_equal(now[each], tensors[each]) for each in tensors), name + ": other numbers")
        shutil.rmtree(back)

# Types and order are those of another file, whatever it is of.
code, said = export(path("llama"), "--to", "gguf", "--type", "f32", "--out", path("first.gguf"))
entries = tensors_of(path("first.gguf"))
writer = gguf.GGUFWriter(path("like.gguf"), "llama")
for i, (name, _, shape, data) in enumerate(reversed(entries)):
    values = np.frombuffer(data, np.float32).reshape(shape[::-1])
    kind = (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_1)[i % 2]
    if values.ndim == 1 or "norm" in name:
        kind = gguf.GGMLQuantizationType.F32
    writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()
code, said = export(path("llama"), "--to", "gguf", "--like", path("like.gguf"), "--out", path("again.gguf"))
expect(code == 0 and tensors_of(path("like.gguf")) == tensors_of(path("again.gguf")), "like: " + said)

# What is not read: a sentence, an exit code, and no file.
export(path("llama"), "--to", "gguf", "--type", "f16", "--out", path("good.gguf"))
llama("turned", rope_scaling={"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64,
                              "low_freq_factor": 2.0, "high_freq_factor": 4.0})
export(path("turned"), "--to", "gguf", "--type", "f16", "--out", path("turned.gguf"))
with open(path("cut.gguf"), "wb") as file:
    file.write(open(path("good.gguf"), "rb").read()[:9000])
for name, architecture, context in (("other", "mamba", 0), ("empty", "llama", 0), ("wide", "llama", 1 << 40),
                                    ("deep", "llama", 16)):
    writer = gguf.GGUFWriter(path(name + ".gguf"), architecture)
    if context:
        writer.add_uint64("llama.context_length", context)
        writer.add_embedding_length(32)
        writer.add_block_count(1 << 24)
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()
for code, sentence, arguments in (
        (1, "gpt2, llama, qwen2 and qwen3 are", (path("other.gguf"), "--out", path("x"))),
        (1, "llama.context_length", (path("empty.gguf"), "--out", path("x"))),
        (1, "it is from 1 to", (path("wide.gguf"), "--out", path("x"))),
        (1, "but it has 1 tensor", (path("deep.gguf"), "--out", path("x"))),
        (1, "rope_freqs.weight", (path("turned.gguf"), "--out", path("x"))),
        (1, "cut.gguf", (path("cut.gguf"), "--out", path("x"))),
        (2, "needs --out", (path("good.gguf"),)),
        (2, "--like is of gguf", (path("good.gguf"), "--out", path("x"), "--like", path("good.gguf"))),
        (2, "--type is of gguf", (path("good.gguf"), "--out", path("x"), "--type", "f16"))):
    found, said = export(arguments[0], "--to", "huggingface", *arguments[1:])
    expect(found == code and sentence in said and said.count("\n") == 1, "%s: %d %s" % (arguments, found, said))
code, said = export(path("gpt"), "--to", "gguf", "--like", path("good.gguf"), "--out", path("y.gguf"))
expect(code == 1 and "which the model does not have" in said, said)
expect(not os.path.exists(path("x")) and not os.path.exists(path("y.gguf")), "files were left")
finish()
