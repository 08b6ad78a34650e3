"""What the tests of the program serve share: a random model, and a server."""

import http.client
import json
import math
import os
import random
import re
import signal
import ssl
import struct
import subprocess
import sys
import tempfile
import time

BINARIES = os.path.join(os.environ.get("TRIREME_BINARY_DIR", ""), "examples")
SERVE = os.path.join(BINARIES, "serve")
GENERATE = os.path.join(BINARIES, "generate")
for program in (SERVE, GENERATE):
    if not os.path.exists(program):
        print("skipped:", program, "is not built")
        sys.exit(77)
os.chdir(tempfile.mkdtemp(prefix="serve."))
draw = random.Random(7)


def expect(true, what):
    if not true:
        raise AssertionError(what)


# ---- a random model


def write_model(folder, vocabulary, channels=48, heads=4, layers=2, hidden=64, context=256, half=False):
    os.mkdir(folder)
    width = channels // heads
    shapes = {"model.embed_tokens.weight": (vocabulary, channels), "model.norm.weight": (channels,),
              "lm_head.weight": (vocabulary, channels)}
    for i in range(layers):
        layer = "model.layers.%d." % i
        for name in ("input", "post_attention"):
            shapes[layer + name + "_layernorm.weight"] = (channels,)
        for name, rows in (("q", channels), ("k", channels // 2), ("v", channels // 2)):
            shapes[layer + "self_attn.%s_proj.weight" % name] = (rows, channels)
        shapes[layer + "self_attn.o_proj.weight"] = (channels, channels)
        for name, shape in (("gate", (hidden, channels)), ("up", (hidden, channels)), ("down", (channels, hidden))):
            shapes[layer + "mlp.%s_proj.weight" % name] = shape
    header, data = {}, bytearray()
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        numbers = [1.0] * count if len(shape) == 1 else [draw.gauss(0, 0.25) for _ in range(count)]
        begin = len(data)
        data += struct.pack("<%d%s" % (count, "e" if half else "f"), *numbers)
        header[name] = {"dtype": "F16" if half else "F32", "shape": list(shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder + "/model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    with open(folder + "/config.json", "w", encoding="utf-8") as file:
        json.dump({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": vocabulary,
                   "max_position_embeddings": context, "hidden_size": channels, "intermediate_size": hidden,
                   "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads // 2,
                   "head_dim": width, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                   "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None}, file)


def read_shapes(path):
    """The shapes of the tensors of a safetensors file."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    return {name: told["shape"] for name, told in header.items() if name != "__metadata__"}


def read_tensors(path):
    """The tensors of a safetensors file, as flat lists."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    letters = {"F32": "f", "F64": "d", "I32": "i", "I64": "q"}
    return {name: list(struct.unpack("<%d%s" % (math.prod(told["shape"]), letters[told["dtype"]]),
                                     data[slice(*told["data_offsets"])]))
            for name, told in header.items() if name != "__metadata__"}


def write_tensors(path, tensors):
    """Writes lists of numbers as F32; tensors has shapes and lists."""
    header, data = {}, bytearray()
    for name, (shape, numbers) in tensors.items():
        begin = len(data)
        data += struct.pack("<%df" % math.prod(shape), *numbers)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def write_tokenizer(path):
    # Byte-level, without merges: the printable bytes are their own letters, the others letters from U+0100.
    plain = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    letters = [chr(b) for b in plain] + [chr(256 + i) for i in range(256 - len(plain))]
    specials = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"version": "1.0", "truncation": None, "padding": None,
                   "added_tokens": [{"id": 256 + i, "content": text, "single_word": False, "lstrip": False,
                                     "rstrip": False, "normalized": False, "special": True}
                                    for i, text in enumerate(specials)],
                   "normalizer": None, "post_processor": None,
                   "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                                     "use_regex": True},
                   "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
                   "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                             "vocab": {letter: i for i, letter in enumerate(letters)}, "merges": []}}, file)


# ---- a server


class Server:
    def __init__(self, *arguments, key=None, certificate=None):
        """certificate: the file of one that the client trusts, over TLS."""
        self.key, self.trusts = key, certificate and ssl.create_default_context(cafile=certificate)
        self.process = subprocess.Popen([SERVE, *arguments, "--port", "0"], stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        found = re.fullmatch(r"(.*) at (https?)://127\.0\.0\.1:(\d+)\n", line)
        expect(found and (found[2] == "https") == (certificate is not None), "the first line is %r" % line)
        self.name, self.port = found[1], int(found[3])

    def connect(self):
        if self.trusts:
            return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60, context=self.trusts)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def headers(self):
        return {"Content-Type": "application/json"} | ({"Authorization": "Bearer " + self.key} if self.key else {})

    def ask(self, path, body=None, headers=None, method=None):
        """Status, body and headers; a body that is not bytes becomes JSON."""
        connection = self.connect()
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        connection.request(method or ("GET" if body is None else "POST"), path, body,
                           self.headers() if headers is None else headers)
        answer = connection.getresponse()
        out = answer.status, answer.read(), answer.headers
        connection.close()
        return out

    def complete(self, path="/v1/completions", **asked):
        status, body, _ = self.ask(path, asked)
        expect(status == 200, (status, body))
        return json.loads(body)

    def stream(self, path="/v1/completions", **asked):
        """The parts of a stream, without the last line."""
        connection = self.connect()
        connection.request("POST", path, json.dumps(asked | {"stream": True}), self.headers())
        answer = connection.getresponse()
        expect(answer.status == 200 and answer.headers["Content-Type"] == "text/event-stream", answer.status)
        last = None
        for line in answer:
            line = line.decode().rstrip("\n")
            if line:
                expect(line.startswith("data: "), line)
                last = line[6:]
                if last != "[DONE]":
                    yield json.loads(last)
        expect(last == "[DONE]", last)
        connection.close()

    def refuses(self, status, words, path, body=None, **how):
        got, answer, headers = self.ask(path, body, **how)
        expect(got == status, (got, answer))
        error = json.loads(answer)["error"]
        expect(set(error) == {"message", "type", "param", "code"} and words in error["message"], error)
        return error, headers

    def metrics(self):
        status, body, _ = self.ask("/metrics")
        expect(status == 200, status)
        return {name: int(n) for name, n in re.findall(r"^trireme_(\w+) (\d+)$", body.decode(), re.M)}

    def expect_idle(self):
        for _ in range(200):
            now = self.metrics()
            if now["pages_used"] == now["requests_running"] == now["requests_waiting"] == 0:
                return now
            time.sleep(0.05)
        raise AssertionError(now)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        expect(self.process.wait(60) == 0, "the exit code is %s" % self.process.returncode)


def bytes_of(names):
    """The bytes of tokens, from their names."""
    out = b""
    for name in names:
        if name.startswith("bytes:"):
            out += bytes(int(digits, 16) for digits in name[6:].split("\\x")[1:])
        else:
            out += name.encode()
    return out
