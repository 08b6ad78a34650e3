"""Writes the same tokens into a folder as each program stores them, with numpy and by the documented bytes of llm.c's
and Megatron-LM's files. token_shards_test.cpp compares what it reads with `expected` (int32)."""
import os
import sys

try:
    import numpy as np
except ImportError:
    sys.exit(77)

os.chdir(sys.argv[1])
draw = np.random.default_rng(1)
lengths = [int(n) for n in draw.integers(1, 400, size=50)]
tokens = draw.integers(1, 50000, size=sum(lengths))
ends = np.cumsum(lengths)
tokens[ends - 1] = 0  # the separator
tokens.astype("<i4").tofile("expected")
np.array(lengths, "<i4").tofile("lengths")


def llm_c(path, part, magic, version, dtype):
    header = np.zeros(256, np.int32)
    header[:3] = magic, version, len(part)
    with open(path, "wb") as file:
        file.write(header.tobytes())
        file.write(part.astype(dtype).tobytes())


cut = len(tokens) // 3
llm_c("gpt2_000.bin", tokens[:cut], 20240520, 1, np.uint16)
llm_c("gpt2_001.bin", tokens[cut:], 20240520, 1, np.uint16)
llm_c("llama3_000.bin", tokens, 20240801, 7, np.uint32)
tokens.astype(np.uint16).tofile("nano.bin")  # nanoGPT's prepare.py
tokens.astype(np.uint32).tofile("wide.bin")
np.save("array16.npy", tokens.astype(np.uint16))
np.save("array64.npy", tokens.astype(np.int64))


def megatron(path, code, dtype, lengths=lengths):
    tokens[:sum(lengths)].astype(dtype).tofile(path + ".bin")
    width = np.dtype(dtype).itemsize
    begins = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    with open(path + ".idx", "wb") as file:
        file.write(b"MMIDIDX\x00\x00")
        file.write(np.uint64(1).tobytes())
        file.write(np.uint8(code).tobytes())
        file.write(np.uint64(len(lengths)).tobytes())
        file.write(np.uint64(len(lengths) + 1).tobytes())
        file.write(np.array(lengths, np.int32).tobytes())
        file.write((begins * width).astype(np.int64).tobytes())
        file.write(np.arange(len(lengths) + 1, dtype=np.int64).tobytes())


megatron("megatron_u16", 8, np.uint16)
megatron("megatron_i32", 4, np.int32)
megatron("megatron_i64", 5, np.int64)
megatron("part", 8, np.uint16, lengths[:20])
try:
    from safetensors.numpy import save_file
    save_file({"tokens": tokens.astype(np.int32), "scale": np.zeros(3, np.float32)}, "tensor.safetensors")
except ImportError:
    pass


def megatron_samples(context, samples, seed, used):
    """The samples of Megatron-LM's GPTDataset, context + 1 tokens each, as its documentation describes them: equal to
    those of the package megatron-core 0.16.1."""
    per_epoch = sum(lengths[i] for i in used)
    epochs = 1
    while epochs * per_epoch < samples * context + 1:
        epochs += 1
    before_last, in_one = ((epochs - 1) * per_epoch - 1) // context, (per_epoch - 1) // context
    apart = epochs > 1 and samples - before_last < int(0.80 * in_one)
    random = np.random.RandomState(seed)

    def shuffled(array):
        random.shuffle(array)
        return array

    parts = [epochs - 1, 1] if apart else [epochs]
    order = np.concatenate([shuffled(np.tile(np.array(used, np.int32), n)) for n in parts])
    stream = np.concatenate([tokens[ends[i] - lengths[i]:ends[i]] for i in order])
    windows = (epochs * per_epoch - 1) // context
    cuts = [(0, before_last), (before_last, windows)] if apart else [(0, windows)]
    order = np.concatenate([shuffled(np.arange(a, b, dtype=np.uint32)) for a, b in cuts])
    return np.stack([stream[i * context:i * context + context + 1] for i in order])


def megatron_order(name, context, samples, seed, used):
    all_of_them = megatron_samples(context, samples, seed, used)
    all_of_them[:samples or len(all_of_them)].astype("<i4").tofile(name)


megatron_order("order_one", 64, 0, 1234, range(50))
megatron_order("order_apart", 32, 1000, 7, range(50))
megatron_order("order_together", 100, 390, 42, range(10, 45))


def megatron_blend(name, context, samples, seed, weights):
    """Those of its BlendedDataset, of all documents and of the first 20; equal to those of the package, too."""
    wanted = [int(np.ceil(samples * weight / sum(weights))) if weights else 0 for weight in weights or (0, 0)]
    parts = [megatron_samples(context, int(np.ceil(count * 1.005)), seed, range(used))
             for count, used in zip(wanted, (50, 20))]
    shares = np.array(weights or [len(part) for part in parts], float)
    shares /= shares.sum()
    size = samples if weights else min(samples or 1 << 40, sum(len(part) for part in parts))
    taken, out = [0, 0], []
    for n in range(size):
        behind = [share * max(n, 1) - count for share, count in zip(shares, taken)]
        if samples == 0:
            behind = [each if count < len(part) else -1e9 for each, count, part in zip(behind, taken, parts)]
        best = int(np.argmax(behind))
        out.append(parts[best][taken[best]])
        taken[best] += 1
    np.stack(out).astype("<i4").tofile(name)


megatron_blend("blend", 64, 500, 1234, (30, 70))
megatron_blend("blend_sized", 64, 100, 3, None)
megatron_blend("blend_all", 64, 0, 3, None)
