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
if not os.path.exists(GENERATE):
    skip(GENERATE + " is not built")

PROMPT = "The ferry "


def served(directory, context):
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
finish()
