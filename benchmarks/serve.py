#!/usr/bin/env python3
"""scripts/benchmark serve [--streams 1,4,16] [--rounds 3] [--tokens 64] [--prompt 128] [--model DIR] [--types bf16,f16]

Answers of our server (bf16) and of llama.cpp's (BF16 and F16, built here for this CPU) to the same prompts, one thread
each, in turns: SmolLM2 135M, or another model in DIR. A stream is a client that sends a prompt of so many random
tokens, reads an answer of so many, and sends the next one. Rows, one an engine and number of streams, over all rounds:

  tokens_per_second   of the answers, prompts included in the time: median of the rounds
  ttft_ms             from the request to the first token: median
  p50_ms, p95_ms, p99_ms   from a token to the next one of the same answer

and for each number of streams the ratio of tokens a second to llama.cpp's quicker type (median, lowest and highest of
the rounds), and to our own with one stream.

--llama-server FILE uses that program; otherwise llama.cpp is taken from PyPI's llama-cpp-python and built in
build/llama.cpp. Without network and without FILE our rows stand alone, as with --ours-only.
"""
# targets: none

import argparse
import glob
import json
import os
import random
import selectors
import socket
import statistics
import subprocess
import sys
import time

root = os.environ["TRIREME_SOURCE_DIR"]
parser = argparse.ArgumentParser(prog="serve", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--streams", default="1,4,16")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--answers", type=int, default=3, help="of each stream in a round")
parser.add_argument("--tokens", type=int, default=64)
parser.add_argument("--prompt", type=int, default=128)
parser.add_argument("--model", default=os.path.join(root, "runs", "data", "smollm2"))
parser.add_argument("--types", default="bf16,f16", help="of llama.cpp's file")
parser.add_argument("--llama-server")
parser.add_argument("--ours-only", action="store_true")
asked = parser.parse_args()
folder = os.path.join(root, "build", "serve_benchmark")
os.makedirs(folder, exist_ok=True)


def run(what, *command):
    """Its output is kept, and shown where it fails."""
    with open(os.path.join(folder, "log"), "w+", encoding="utf-8", errors="replace") as log:
        ended = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)
        if ended.returncode:
            log.seek(0)
            print("".join(log.readlines()[-20:]), "serve: ", what, " failed", sep="", file=sys.stderr)
        return ended.returncode == 0


def example(*arguments):
    return run("scripts/example", os.path.join(root, "scripts", "example"), *arguments) or sys.exit(1)


def llama_server():
    """llama.cpp's server, or None."""
    if asked.llama_server or asked.ours_only:
        return asked.llama_server
    place = os.path.join(root, "build", "llama.cpp")
    program = os.path.join(place, "build", "bin", "llama-server")
    if not os.path.exists(program):
        print("serve: building llama.cpp in build/llama.cpp, once", file=sys.stderr)
        os.makedirs(place, exist_ok=True)
        if not run("to download llama.cpp", sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary",
                   "llama-cpp-python", "--dest", place, "llama-cpp-python"):
            return None
        packed, = glob.glob(os.path.join(place, "llama_cpp_python-*.tar.gz"))
        if not run("to unpack llama.cpp", "tar", "-xzf", packed, "-C", place):
            return None
        source, = glob.glob(os.path.join(place, "llama_cpp_python-*", "vendor", "llama.cpp"))
        options = ("-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_BUILD_UI=OFF",
                   "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF")
        build = os.path.join(place, "build")
        if not (run("cmake of llama.cpp", "cmake", "-S", source, "-B", build, *options) and
                run("llama.cpp", "cmake", "--build", build, "--parallel", str(len(os.sched_getaffinity(0))), "--target",
                    "llama-server")):
            return None
    return program


class Server:
    """A program that answers at a port of its own."""

    def __init__(self, engine, command, body):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.engine, self.body = engine, body
        self.process = subprocess.Popen([*command, "--port", str(self.port)], stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                with socket.create_connection(("127.0.0.1", self.port)) as connection:
                    connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                    if b" 200 " in connection.recv(100):
                        return
            except OSError:
                if self.process.poll() is not None:
                    break
            time.sleep(0.1)
        self.process.kill()
        sys.exit("serve: %s does not answer" % engine)

    def end(self):
        self.process.terminate()
        self.process.wait()

    def send(self, prompt, tokens):
        body = json.dumps({"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True} | self.body)
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(("POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                            "Content-Length: %d\r\n\r\n%s" % (len(body), body)).encode())
        return connection


def measure(server, prompts, tokens):
    """prompts: a list for each stream. Tokens a second, times to the first token, and times between tokens."""
    waiting = selectors.DefaultSelector()
    first, between, count = [], [], 0
    begin = last = time.perf_counter()

    def start(rest):
        connection = server.send(rest[0], tokens)
        waiting.register(connection, selectors.EVENT_READ, [rest[1:], b"", time.perf_counter(), 0])

    for each in prompts:
        start(each)
    while waiting.get_map():
        for key, _ in waiting.select():
            state, connection = key.data, key.fileobj
            received = connection.recv(1 << 16)
            now = time.perf_counter()
            state[1] += received
            *lines, state[1] = state[1].split(b"\n")
            events = sum(line.startswith(b"data: {") and b'"finish_reason":"' not in line.replace(b": ", b":")
                         for line in lines)
            ends = any(line.startswith(b"data: [DONE]") for line in lines)
            for _ in range(events):
                (between if state[3] else first).append(now - state[2])
                state[2], state[3] = now, state[3] + 1
            if ends or not received:
                if not ends:
                    sys.exit("serve: %s ended an answer early: %r" % (server.engine, state[1][-300:]))
                waiting.unregister(connection)
                connection.close()
                count, last = count + tokens, now
                if state[0]:
                    start(state[0])
    return count / (last - begin), first, between


def percentile(numbers, percent):
    numbers = sorted(numbers)
    return 1000 * numbers[min(len(numbers) - 1, len(numbers) * percent // 100)]


if not os.path.exists(os.path.join(asked.model, "config.json")):
    if not run("scripts/prepare-smollm2", os.path.join(root, "scripts", "prepare-smollm2"), asked.model):
        sys.exit(1)
example("serve", "--help")
serve = os.path.join(root, "build", "release", "examples", "serve")
with open(os.path.join(asked.model, "config.json"), encoding="utf-8") as file:
    vocabulary = json.load(file)["vocab_size"]
program = llama_server()
files = {}
for kind in asked.types.split(",") if program else ():
    files[kind] = os.path.join(folder, kind + ".gguf")
    example("export", asked.model, "--to", "gguf", "--type", kind, "--out", files[kind])

one_stream = None
for streams in map(int, asked.streams.split(",")):
    servers = [Server("trireme bf16", [serve, asked.model, "--precision", "bf16", "--running", str(streams)],
                      {"ignore_eos": True})]
    positions = asked.prompt + asked.tokens + 16
    for kind, path in files.items():
        servers.append(Server("llama.cpp " + kind,
                              [program, "--model", path, "--parallel", str(streams), "--ctx-size",
                               str(positions * streams), "--threads", "1", "--threads-batch", "1", "--offline"],
                              {"ignore_eos": True, "cache_prompt": False}))
    draw = random.Random(streams)
    told = {server.engine: [] for server in servers}
    for turn in range(asked.rounds + 1):  # the first one is for warming up
        prompts = [[[draw.randrange(vocabulary) for _ in range(asked.prompt)] for _ in range(asked.answers)]
                   for _ in range(streams)]
        for i in range(len(servers)):
            server = servers[(i + turn) % len(servers)]
            told[server.engine].append(measure(server, prompts, asked.tokens))
    for server in servers:
        server.end()
        rounds = told[server.engine] = told[server.engine][1:]
        first = [1000 * each for _, some, _ in rounds for each in some]
        between = [each for _, _, some in rounds for each in some]
        print(json.dumps({"engine": server.engine, "streams": streams,
                          "tokens_per_second": round(statistics.median(speed for speed, _, _ in rounds), 1),
                          "ttft_ms": round(statistics.median(first), 1)} |
                         {"p%d_ms" % p: round(percentile(between, p), 2) for p in (50, 95, 99)}), flush=True)
    ours = [speed for speed, _, _ in told["trireme bf16"]]
    one_stream = one_stream or (streams, statistics.median(ours))
    row = {"streams": streams}
    if files:
        peers = [[speed for speed, _, _ in told["llama.cpp " + kind]] for kind in files]
        theirs = max(peers, key=statistics.median)
        ratios = sorted(a / b for a, b in zip(ours, theirs))
        row |= {"ratio": round(statistics.median(ratios), 2), "lowest": round(ratios[0], 2),
                "highest": round(ratios[-1], 2)}
    if one_stream[0] == 1:
        row["to_one_stream"] = round(statistics.median(ours) / one_stream[1], 2)
    print(json.dumps(row), flush=True)
