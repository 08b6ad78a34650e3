# test-timeout: 120
"""llama.cpp, as the package xllamacpp ships it, reads our F32 files: it writes the same greedy tokens as our generate,
and has the losses that transformers and this library compute for the models in tests/golden."""

import math
import shutil

from gguf_models import *

try:
    import xllamacpp
except ImportError as missing:
    skip(missing)
try:
    import tokenizers
except ImportError:
    tokenizers = None
if not os.path.exists(GENERATE):
    skip(GENERATE + " is not built")

PROMPT = "The ferry "


def served(directory, context, pooling=None):
    file = directory + ".gguf"
    code, said = export(directory, "--to", "gguf", "--type", "f32", "--out", file)
    expect(code == 0, said)
    settings = xllamacpp.CommonParams()
    settings.model.path, settings.n_ctx, settings.n_parallel, settings.warmup = file, context, 1, False
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
    settings.verbosity, settings.fit_params = -1, False
    # Attention in F32, as ours; its own choice rounds keys, values and products to F16.
    settings.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    settings.cache_type_k = settings.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    if pooling is not None:
        settings.embedding, settings.pooling_type, settings.embd_normalize = True, pooling, -1
    return xllamacpp.Server(settings)


def completed(server, **request):
    done = server.handle_completions({"temperature": 0, "ignore_eos": True, **request})
    done = json.loads(done) if isinstance(done, str) else done
    return done["choices"][0]


models = {"gpt": lambda name: gpt(name), "llama": lambda name: llama(name),
          "qwen2": lambda name: llama(name, "qwen2"), "qwen3": lambda name: llama(name, "qwen3"),
          "linear": lambda name: llama(name, rope_scaling={"rope_type": "linear", "factor": 4.0}),
          "llama3": lambda name: llama(name, rope_scaling={
              "rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64, "low_freq_factor": 1.0,
              "high_freq_factor": 4.0})}
for name, make in models.items():
    make(name)
    ours = subprocess.run([GENERATE, path(name), "--prompt", PROMPT, "--tokens", "100", "--temperature", "0"],
                          capture_output=True, text=True, check=True).stdout[len(PROMPT):-1]
    theirs = completed(served(path(name), 128), prompt=PROMPT, max_tokens=100)["text"]
    expect(len(ours) == 100 and ours == theirs, "%s wrote %r, llama.cpp %r" % (name, ours, theirs))
    print("%s: %d of 100 greedy tokens are equal" % (name, sum(a == b for a, b in zip(ours, theirs))))

# With a tokenizer whose tokens are printable, so that llama.cpp reports the probability of each.
golden = os.path.join(os.environ.get("TRIREME_TEST_DATA", "tests"), "golden", "pretrained")
numbers = load_file(os.path.join(golden, "golden.safetensors"))
for name in ("gpt2", "llama", "llama3", "mistral", "qwen2", "qwen3"):
    shutil.copytree(os.path.join(golden, name), path("golden", name))
    with open(path("golden", name, "config.json"), encoding="utf-8") as file:
        vocabulary = json.load(file)["vocab_size"]
    tokens = [chr(33 + i % 94) * (1 + i // 94) for i in range(vocabulary)]
    with open(path("golden", name, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
                   "model": {"type": "BPE", "vocab": {each: i for i, each in enumerate(tokens)}, "merges": []}}, file)
    server, loss, count = served(path("golden", name), 16), 0.0, 0
    for sample, targets in zip(numbers["tokens"].tolist(), numbers["targets"].tolist()):
        for at, target in enumerate(targets):
            if target < 0:
                continue
            first = completed(server, prompt=sample[:at + 1], max_tokens=1, logprobs=vocabulary)
            chances = {each["id"]: each["logprob"] for each in first["logprobs"]["content"][0]["top_logprobs"]}
            loss, count = loss - chances[target], count + 1
    right = float(numbers[name + "/loss"][0])
    ratio = math.exp(loss / count - right)
    expect(abs(ratio - 1) < 1e-3, "%s has the loss %g in llama.cpp, not %g" % (name, loss / count, right))
    print("%s: perplexity / ours = 1 %+.1e" % (name, ratio - 1))

# DeepSeek: greedy tokens, with the norms' epsilon that llama.cpp has for all of them.
shutil.copytree(os.path.join(golden, os.pardir, "deepseek"), path("golden", "deepseek"))
with open(path("golden", "deepseek", "config.json"), encoding="utf-8") as file:
    config = json.load(file)
vocabulary = config["vocab_size"]
with open(path("golden", "deepseek", "config.json"), "w", encoding="utf-8") as file:
    json.dump(config | {"rms_norm_eps": 1e-6, "max_position_embeddings": 128}, file)
with open(path("golden", "deepseek", "tokenizer.json"), "w", encoding="utf-8") as file:
    json.dump({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}, "decoder": {"type": "ByteLevel"},
               "model": {"type": "BPE", "vocab": {chr(48 + i): i for i in range(vocabulary)}, "merges": []}}, file)
with open(path("golden", "deepseek", "tokenizer_config.json"), "w", encoding="utf-8") as file:
    json.dump({"eos_token": "X"}, file)  # llama.cpp never draws it here, and ours does not write it
ours = subprocess.run([GENERATE, path("golden", "deepseek"), "--prompt", "8CALL", "--tokens", "100",
                       "--temperature", "0"], capture_output=True, text=True, check=True).stdout[5:-1]
theirs = completed(served(path("golden", "deepseek"), 128), prompt="8CALL", max_tokens=100)["text"]
expect(len(ours) == 100 and ours == theirs, "deepseek wrote %r, llama.cpp %r" % (ours, theirs))
print("deepseek: %d of 100 greedy tokens are equal" % sum(a == b for a, b in zip(ours, theirs)))

# Tokenizers: llama.cpp counts as many tokens as the package tokenizers, special ones included; what it does not have is
# refused.
TEXTS = ("The ferry crosses the river at dawn, and at dusk it comes back.", "a", "HELLO World  unknown \u00df",
         "two  spaces, 12345 and 3.14; it's what we'll do", "def f(x): return x[0] + 1  # done",
         "na\u00efve caf\u00e9 \u4e2d\u6587 \U0001f600 tab\there\nnew line\n\n")
SPECIAL = {"bos": ("<s>",), "eos": ("</s>",), "unk": ("<unk>", "[UNK]"), "cls": ("[CLS]",), "sep": ("[SEP]",)}
files = os.path.join(os.environ.get("TRIREME_TEST_DATA", "tests"), "golden", "tokenizers")
for name in ("gpt2", "smollm2", "llama3", "qwen2", "deepseek", "llama2", "mistral", "bert", "bert_cased", "roberta",
             "forms", "t5", "unigram") if tokenizers else ():
    file = os.path.join(files, name + ".json")
    ours = tokenizers.Tokenizer.from_file(file)
    model = llama(name)
    for table in ("model.embed_tokens.weight", "lm_head.weight"):
        model[table] = normal(ours.get_vocab_size(), 64)
    with open(path(name, "config.json"), encoding="utf-8") as config:
        write(name, json.load(config) | {"vocab_size": ours.get_vocab_size()}, model)
    shutil.copy(file, path(name, "tokenizer.json"))
    with open(path(name, "tokenizer_config.json"), "w", encoding="utf-8") as config:
        json.dump({which + "_token": each for which, all_of in SPECIAL.items() for each in all_of
                   if ours.token_to_id(each) is not None}, config)
    if name in ("roberta", "forms", "t5", "unigram"):
        code, said = export(path(name), "--to", "gguf")
        expect(code == 1 and "llama.cpp " in said and said.count("\n") == 1, name + " is not refused: " + said)
        continue
    server = served(path(name), 256)
    for text in TEXTS:
        done = server.handle_completions({"prompt": text, "max_tokens": 1})
        done = json.loads(done) if isinstance(done, str) else done
        theirs, right = done["usage"]["prompt_tokens"], len(ours.encode(text).ids)
        expect(theirs == right, "%s makes %d tokens of %r in llama.cpp, not %d" % (name, theirs, text, right))

# The encoder of a BERT: what becomes of the first token, up to its length, which the server takes away.
shutil.copytree(os.path.join(golden, "bert_encoder"), path("golden", "bert"))
with open(path("golden", "bert", "config.json"), encoding="utf-8") as file:
    config = json.load(file)
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"] + ["a%d" % i for i in range(config["vocab_size"] - 4)]
with open(path("golden", "bert", "tokenizer.json"), "w", encoding="utf-8") as file:
    json.dump({"normalizer": {"type": "BertNormalizer", "lowercase": True},
               "added_tokens": [{"id": i, "content": words[i], "special": True} for i in range(4)],
               "model": {"type": "WordPiece", "unk_token": "[UNK]",
                         "vocab": {each: i for i, each in enumerate(words)}}}, file)
with open(path("golden", "bert", "tokenizer_config.json"), "w", encoding="utf-8") as file:
    json.dump({"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]"}, file)
weights = load_file(path("golden", "bert", "model.safetensors"))
weights = {name.removeprefix("bert."): values.astype(np.float64) for name, values in weights.items()}


def norm(x, name):
    names = [name + ".weight", name + ".bias"]
    if names[0] not in weights:
        names = [name + ".gamma", name + ".beta"]
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + config["layer_norm_eps"])
    return x * weights[names[0]] + weights[names[1]]


def dense(x, name):
    return x @ weights[name + ".weight"].T + weights[name + ".bias"]


def encoded(ids):
    tables = "embeddings.%s_embeddings.weight"
    x = weights[tables % "word"][ids] + weights[tables % "position"][:len(ids)] + weights[tables % "token_type"][0]
    x = norm(x, "embeddings.LayerNorm")
    heads = config["num_attention_heads"]
    for i in range(config["num_hidden_layers"]):
        block = "encoder.layer.%d." % i
        q, k, v = (dense(x, block + "attention.self." + which).reshape(len(ids), heads, -1).swapaxes(0, 1)
                   for which in ("query", "key", "value"))
        scores = np.exp(q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1]))
        mixed = (scores / scores.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(len(ids), -1)
        x = norm(x + dense(mixed, block + "attention.output.dense"), block + "attention.output.LayerNorm")
        h = dense(x, block + "intermediate.dense")
        h = h * (1 + np.vectorize(math.erf)(h / math.sqrt(2))) / 2
        x = norm(x + dense(h, block + "output.dense"), block + "output.LayerNorm")
    return x


ids = [2, 9, 17, 30, 11, 3]
server = served(path("golden", "bert"), 32, xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_CLS)
done = server.handle_embeddings({"input": ids, "embd_normalize": -1})
done = json.loads(done) if isinstance(done, str) else done
theirs, right = np.array(done["data"][0]["embedding"]).ravel(), encoded(ids)[0]
angle = 1 - theirs @ right / np.linalg.norm(theirs) / np.linalg.norm(right)
expect(abs(angle) < 1e-4, "a BERT's embedding is %s in llama.cpp, not %s" % (theirs, right))
print("bert: 1 - cosine of embeddings = %.1e" % angle)
finish()
