"""Files that export writes, read with the package gguf: tensors have the bytes that it computes. Wrong arguments."""

from gguf_models import *

try:
    import gguf
except ImportError as missing:
    skip(missing)

np.seterr(all="ignore")
KINDS = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")


def paired(rows, width):
    """Halves of a head as neighbours."""
    return rows.reshape(-1, 2, width // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


tensors = llama("llama", hidden=80)  # rows of 80 are not whole blocks
table = tensors["model.embed_tokens.weight"]
half = np.float32(0.5)
table[0], table[1], table[2], table[3] = 0, half, -half, normal(64) * np.float32(1e-42)
table[4], table[5], table[6] = normal(64) * np.float32(1e38), normal(64) * np.float32(1e-38), np.arange(64) - 32
table[7, ::2], table[7, 1::2], table[8] = 1, -1, normal(64) * np.float32(1e6)
table[9, 3], table[10, 40], table[11, 0], table[12, 31] = np.inf, -np.inf, np.nan, np.float32(1e-45)
table[13] = np.linspace(-127, 127, 64) / 2
write("llama", json.load(open(path("llama", "config.json"), encoding="utf-8")), tensors)
NAMES = {"token_embd.weight": table, "output.weight": tensors["lm_head.weight"],
         "output_norm.weight": tensors["model.norm.weight"]}
for i in range(2):
    block = "model.layers.%d." % i
    for ours, theirs in (("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm"),
                         ("attn_v", "self_attn.v_proj"), ("attn_output", "self_attn.o_proj"),
                         ("ffn_gate", "mlp.gate_proj"), ("ffn_up", "mlp.up_proj"), ("ffn_down", "mlp.down_proj")):
        NAMES["blk.%d.%s.weight" % (i, ours)] = tensors[block + theirs + ".weight"]
    for which in "qk":
        NAMES["blk.%d.attn_%s.weight" % (i, which)] = paired(tensors[block + "self_attn.%s_proj.weight" % which], 16)

for kind in KINDS:
    code, said = export(path("llama"), "--to", "gguf", "--type", kind, "--out", path(kind + ".gguf"))
    expect(code == 0, "export --type %s: %s" % (kind, said))
    reader = gguf.GGUFReader(path(kind + ".gguf"))
    expect(sorted(each.name for each in reader.tensors) == sorted(NAMES), "the names of tensors")
    for each in reader.tensors:
        values = NAMES[each.name]
        wanted = gguf.GGMLQuantizationType[kind.upper()]
        if values.ndim == 1:
            wanted = gguf.GGMLQuantizationType.F32
        elif values.shape[-1] % gguf.GGML_QUANT_SIZES[wanted][0] != 0:
            wanted = gguf.GGMLQuantizationType.F16
        expect(each.tensor_type == wanted, "%s is %s" % (each.name, each.tensor_type))
        expect(list(each.shape) == list(reversed(values.shape)), "%s has the shape %s" % (each.name, each.shape))
        expect(each.data_offset % 32 == 0, each.name + " is not aligned")
        right = np.ascontiguousarray(gguf.quants.quantize(values, wanted)).view(np.uint8).ravel()
        found = np.ascontiguousarray(each.data).view(np.uint8).ravel()
        different = np.flatnonzero(right != found) if len(right) == len(found) else [0]
        expect(len(right) == len(found) and len(different) == 0,
               "%s as %s has other bytes, at %s" % (each.name, wanted.name, different[:8]))
    told = {name: field.contents() for name, field in reader.fields.items()}
    expect(told["general.architecture"] == "llama" and told["llama.attention.head_count_kv"] == 2, "metadata")
    expect(told["tokenizer.ggml.merges"] == [] and len(told["tokenizer.ggml.tokens"]) == 256, "the tokenizer of bytes")

# GPT-2's products are transposed.
tensors = gpt("gpt")
export(path("gpt"), "--to", "gguf", "--type", "q8_0", "--out", path("gpt.gguf"))
reader = {each.name: each for each in gguf.GGUFReader(path("gpt.gguf")).tensors}
for ours, theirs in (("attn_qkv", "attn.c_attn"), ("attn_output", "attn.c_proj"), ("ffn_up", "mlp.c_fc"),
                     ("ffn_down", "mlp.c_proj")):
    values = np.ascontiguousarray(tensors["transformer.h.1.%s.weight" % theirs].T)
    found = reader["blk.1.%s.weight" % ours].data
    expect(np.array_equal(gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0), found), "gpt2's " + ours)
expect(reader["position_embd.weight"].tensor_type == gguf.GGMLQuantizationType.F32, "the positions' table is F32")

# A tokenizer of byte pairs; ids without a token are unused ones.
pieces = {chr(33 + i): i for i in range(94)} | {"Ġ": 94, "ab": 95, "<|end|>": 96}
tokenizer = {"added_tokens": [{"id": 96, "content": "<|end|>", "special": True}], "normalizer": None,
             "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                 {"type": "Digits", "individual_digits": True},
                 {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]},
             "model": {"type": "BPE", "vocab": pieces, "merges": [["a", "b"]]}}
with open(path("gpt", "tokenizer.json"), "w", encoding="utf-8") as file:
    json.dump(tokenizer, file)
with open(path("gpt", "tokenizer_config.json"), "w", encoding="utf-8") as file:
    json.dump({"eos_token": "<|end|>", "chat_template": "{{ messages }}"}, file)
code, said = export(path("gpt"), "--to", "gguf")
told = {name: field.contents() for name, field in gguf.GGUFReader(path("gpt", "model-f16.gguf")).fields.items()}
expect(told["tokenizer.ggml.pre"] == "smollm" and told["tokenizer.ggml.merges"] == ["a b"], "byte pairs: " + said)
expect(told["tokenizer.ggml.eos_token_id"] == 96 and told["tokenizer.ggml.token_type"][94:98] == [1, 1, 3, 5],
       "special tokens")
expect(told["tokenizer.ggml.tokens"][97] == "[PAD97]" and told["tokenizer.chat_template"] == "{{ messages }}", "tokens")

# Wrong arguments and files: a sentence, an exit code, and no file.
tokenizer["pre_tokenizer"]["pretokenizers"][0] = {"type": "WhitespaceSplit"}
with open(path("gpt", "tokenizer.json"), "w", encoding="utf-8") as file:
    json.dump(tokenizer, file)
before = sorted(os.listdir(path("gpt")))
for code, sentence, arguments in (
        (1, "WhitespaceSplit", (path("gpt"), "--to", "gguf", "--type", "f32")),
        (1, "config.json", (path("nothing"), "--to", "gguf", "--out", path("gpt", "x"))),
        (1, "no such file", (path("llama"), "--to", "gguf", "--out", path("nothing", "x"))),
        (2, "only gguf, onnx and huggingface are written", (path("gpt"), "--to", "onxx")),
        (2, "it is portable", (path("gpt"), "--to", "onnx", "--dialect", "fused")),
        (2, "it is yes or no", (path("gpt"), "--to", "onnx", "--past", "2")),
        (2, "--type of onnx is f32", (path("gpt"), "--to", "onnx", "--type", "f16")),
        (2, "--past is of onnx", (path("gpt"), "--to", "gguf", "--past", "no")),
        (2, "q8_0", (path("gpt"), "--to", "gguf", "--type", "q3_k")),
        (2, "--to gguf or --to onnx", (path("gpt"),)), (2, "unknown option", (path("gpt"), "--from", "x"))):
    found, said = export(*arguments)
    expect(found == code and sentence in said and said.count("\n") == 1, "%s: %d %s" % (arguments, found, said))
expect(sorted(os.listdir(path("gpt"))) == before, "files were left: %s" % os.listdir(path("gpt")))
finish()
