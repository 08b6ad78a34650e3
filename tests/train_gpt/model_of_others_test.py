# test-timeout: 600
"""A model as others keep it (bfloat16, several files, links, two tokens that end a text, a chat template, keys that
nothing here knows) comes out of a run as it went in, but for the weights; and generate stops where it says."""

from runs import *

GOLDEN = os.path.join(os.environ["TRIREME_TEST_DATA"], "golden", "tokenizers")
GENERATE = os.path.join(BINARIES, "generate")
folder = work_folder()
random.seed(5)
LAYERS, CHANNELS, HEADS, KEYS, INNER = 2, 32, 4, 2, 48


def bfloat16(count, scale, around=0.0):
    return b"".join(struct.pack("<f", around + random.gauss(0, scale))[2:] for _ in range(count))


def llama(vocabulary):
    """{name: (shape, bytes)}"""
    out = {"model.embed_tokens.weight": (vocabulary, CHANNELS), "lm_head.weight": (vocabulary, CHANNELS),
           "model.norm.weight": (CHANNELS,)}
    for layer in range(LAYERS):
        for name, shape in {"self_attn.q_proj": (CHANNELS, CHANNELS), "self_attn.o_proj": (CHANNELS, CHANNELS),
                            "self_attn.k_proj": (CHANNELS // 2, CHANNELS),
                            "self_attn.v_proj": (CHANNELS // 2, CHANNELS),
                            "mlp.gate_proj": (INNER, CHANNELS), "mlp.up_proj": (INNER, CHANNELS),
                            "mlp.down_proj": (CHANNELS, INNER), "input_layernorm": (CHANNELS,),
                            "post_attention_layernorm": (CHANNELS,)}.items():
            out["model.layers.%d.%s.weight" % (layer, name)] = shape
    return {name: (shape, bfloat16(math.prod(shape), 0.1 if len(shape) == 1 else 0.2, 1.0 if len(shape) == 1 else 0.0))
            for name, shape in out.items()}


def write_safetensors(path, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (shape, numbers) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(numbers)]}
        data += numbers
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path):
    whole = bytes_of(path)
    length = struct.unpack_from("<Q", whole)[0]
    header = json.loads(whole[8 : 8 + length])
    header.pop("__metadata__", None)
    return {name: (tuple(entry["shape"]), entry["dtype"],
                   whole[8 + length + entry["data_offsets"][0] : 8 + length + entry["data_offsets"][1]])
            for name, entry in header.items()}


def as_transformers(value):
    """The text of a JSON file as transformers prints it."""
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def config(vocabulary, **more):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocabulary,
            "hidden_size": CHANNELS, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS, "num_key_value_heads": KEYS, "head_dim": CHANNELS // HEADS,
            "max_position_embeddings": 64, "hidden_act": "silu", "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
            "rope_scaling": None, "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
            "attention_dropout": 0.0, "initializer_range": 0.02, "pretraining_tp": 1, "torch_dtype": "bfloat16",
            "transformers_version": "4.57.0", "use_cache": True} | more


# --- what goes in: files that are links into a folder beside them, as a download keeps them
with open(os.path.join(GOLDEN, "llama3.json"), encoding="utf-8") as file:
    tokenizer = file.read()
words = json.loads(tokenizer)
vocabulary = 1 + max([*words["model"]["vocab"].values(), *(each["id"] for each in words["added_tokens"])])
ends = [each["id"] for each in words["added_tokens"]][:2]
theirs = llama(vocabulary)
os.makedirs("blobs")
half, pairs = len(theirs) // 2, list(theirs.items())
shards = {"model-00001-of-00002.safetensors": dict(pairs[:half]),
          "model-00002-of-00002.safetensors": dict(pairs[half:])}
for name, tensors_of in shards.items():
    write_safetensors("blobs/" + name, tensors_of)
index = {"metadata": {"total_size": sum(len(each[1]) for each in theirs.values())},
         "weight_map": {name: shard for shard, tensors_of in shards.items() for name in tensors_of}}
beside = {"generation_config.json": as_transformers({"bos_token_id": ends[0], "do_sample": True, "eos_token_id": ends,
                                                     "temperature": 0.6, "transformers_version": "4.57.0"}),
          "config.json": as_transformers(config(vocabulary, bos_token_id=ends[0], eos_token_id=ends, pad_token_id=None,
                                                a_key_of_theirs={"deep": [1, 2.50, 1e-07, "\u00e4", None]})),
          "tokenizer.json": tokenizer,
          "tokenizer_config.json": json.dumps({"chat_template": "{{ x }}", "model_max_length": 64}, indent=1),
          "special_tokens_map.json": "{\"eos_token\":   \"<|end_of_text|>\"}",
          "chat_template.jinja": "{% for message in messages %}\u2014{{ message['content'] }}\r\n{% endfor %}"}
for name, text in beside.items():
    with open("blobs/" + name, "w", encoding="utf-8", newline="") as file:
        file.write(text)
write("blobs/model.safetensors.index.json", json.dumps(index))
write("blobs/README.md", "theirs to keep")
os.makedirs("snapshot")
for name in os.listdir("blobs"):
    os.symlink("../blobs/" + name, "snapshot/" + name)
if "built without" in attempt("probe", ranks=1, steps=0, tokenizer="snapshot/tokenizer.json")[2]:
    skip("train_gpt was built without utf8proc")


def expect_theirs(run, same_weights):
    found = {os.path.basename(path): bytes for path, bytes in content("runs/%s/model" % run).items()}
    weights_of = read_safetensors("runs/%s/model/model.safetensors" % run)
    expect(sorted(found) == sorted([*beside, "model.safetensors"]), "%s: %s" % (run, sorted(found)))
    for name, text in beside.items():
        expect(found.get(name) == text.encode(), "%s: %s is not as it was: %s" % (run, name, found.get(name)))
    expect({name: (shape, "BF16") for name, (shape, _) in theirs.items()} ==
           {name: each[:2] for name, each in weights_of.items()}, run + ": names, shapes or types")
    same = all(weights_of[name][2] == numbers for name, (_, numbers) in theirs.items())
    expect(same == same_weights, run + ": the weights have changed" if same_weights else run + ": nothing was trained")


sizes = {"layers": None, "heads": None, "channels": None, "dropout": None, "context": 16, "batch": 4,
         "from": "snapshot", "tokenizer": "snapshot/tokenizer.json"}
# Steps that are too small for bfloat16 leave every bit where it was, with low-rank changes or without.
train("still", ranks=1, steps=1, rate=1e-12, **sizes)
expect_theirs("still", True)
train("still.lora", parallel="tensor", steps=1, rate=1e-12, lora=2, **sizes)
expect_theirs("still.lora", True)
# A run that is resumed when their directory is gone.
train("trained", parallel="zero1", steps=4, stop_after=2, rate=0.01, **sizes)
os.rename("snapshot", "moved")
train("trained", resume=True)
expect_theirs("trained", False)

# --- where generate stops: with bytes as tokens what it prints are the tokens
os.makedirs("bytes")
write_safetensors("bytes/model.safetensors", llama(256))
write("bytes/config.json", as_transformers(config(256, eos_token_id=None)))


def generated():
    done = subprocess.run([GENERATE, "bytes", "--prompt", "a", "--tokens", "40", "--temperature", "1", "--seed", "3"],
                          capture_output=True, timeout=60)
    expect(done.returncode == 0 and done.stdout[:1] == b"a", repr(done))
    return done.stdout[1:-1]


whole = generated()
expect(len(whole) == 40 and len(set(whole)) > 10, "a text of %d bytes: %r" % (len(whole), whole))
first, second = whole[12], next(byte for byte in whole[20:] if byte not in whole[:13])
unused = next(byte for byte in range(1, 256) if byte not in whole)
for of_config, of_generation, wanted in (
        (first, None, [first]), ([second, unused], None, [second]), ([unused, second, first], None, [first, second]),
        (None, {"eos_token_id": [second, first]}, [first, second]), (second, {"eos_token_id": first}, [first]),
        (second, {"temperature": 1.0}, [second]), (unused, {"eos_token_id": None}, [unused])):
    write("bytes/config.json", as_transformers(config(256, eos_token_id=of_config)))
    if os.path.exists("bytes/generation_config.json"):
        os.remove("bytes/generation_config.json")
    if of_generation is not None:
        write("bytes/generation_config.json", as_transformers(of_generation))
    end = min([whole.index(byte) for byte in wanted if byte in whole], default=len(whole))
    seen = generated()
    expect(seen == whole[:end], "%s, %s: %r, not %r" % (of_config, of_generation, seen, whole[:end]))

# --- fine_tune says before the training, not after it, that it cannot write the model
FINE_TUNE = os.path.join(BINARIES, "fine_tune")
if os.path.exists(FINE_TUNE):
    write("file", "")
    done = subprocess.run([FINE_TUNE, "--from", "-", "--to", "file"], capture_output=True, timeout=60)
    expect(done.returncode == 1 and b"fine_tune: file: " in done.stderr and b"epoch" not in done.stdout, repr(done))
finish(folder)
