# test-timeout: 300
"""The program serve: OpenAI's requests over HTTP. Python 3; the package openai is used where it is."""

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time

from serving import GENERATE, SERVE, Server, bytes_of, draw, expect, write_model, write_tokenizer

write_model("small", 256)
server = Server("small")
try:
    expect(server.name == "small", server.name)
    expect(json.loads(server.ask("/health")[1]) == {"status": "ok"}, "health")
    expect(b"<textarea" in server.ask("/")[1], "the page")
    expect(json.loads(server.ask("/v1/models")[1])["data"][0]["id"] == "small", "models")

    # The tokens of generate, whether alone, many at a time, or streamed.
    prompts = ["The ", "Once upon a time", "x", "Ferries cross the river \u2014 "]
    greedy = {}
    for prompt in prompts:
        shown = subprocess.run([GENERATE, "small", "--prompt", prompt, "--tokens", "40", "--temperature", "0"],
                               stdout=subprocess.PIPE, check=True).stdout
        greedy[prompt] = shown[len(prompt.encode()):-1]
        expect(len(greedy[prompt]) == 40, shown)
        answer = server.complete(model="small", prompt=prompt, max_tokens=40, temperature=0, logprobs=0)
        choice = answer["choices"][0]
        expect(bytes_of(choice["logprobs"]["tokens"]) == greedy[prompt], choice)
        expect(choice["text"] == greedy[prompt].decode(errors="replace"), choice["text"])
        expect(choice["finish_reason"] == "length", choice)
        expect(answer["usage"] == {"prompt_tokens": len(prompt.encode()), "completion_tokens": 40,
                                   "total_tokens": len(prompt.encode()) + 40}, answer["usage"])
    many = server.complete(prompt=prompts, max_tokens=40, temperature=0, n=2)["choices"]
    expect([choice["index"] for choice in many] == list(range(8)), many)
    for i, choice in enumerate(many):
        expect(choice["text"] == greedy[prompts[i // 2]].decode(errors="replace"), choice)
    for prompt in prompts:
        parts = list(server.stream(prompt=list(prompt.encode()), max_tokens=40, temperature=0, echo=True,
                                   stream_options={"include_usage": True}))
        text = "".join(part["choices"][0]["text"] for part in parts[:-1])
        expect(text == prompt + greedy[prompt].decode(errors="replace"), text)
        expect(parts[-2]["choices"][0]["finish_reason"] == "length", parts[-2])
        expect(parts[-1]["choices"] == [] and parts[-1]["usage"]["completion_tokens"] == 40, parts[-1])

    # Seeds, n and stop strings.
    seeded = [server.complete(prompt="A", max_tokens=20, seed=5, n=2)["choices"] for _ in range(2)]
    expect(seeded[0] == seeded[1] and seeded[0][0]["text"] != seeded[0][1]["text"], seeded)
    whole = greedy["The "].decode(errors="replace")
    stop = whole[7:9]
    for answer in (server.complete(prompt="The ", max_tokens=40, temperature=0, stop=[stop, "never"])["choices"][0],):
        expect(answer["text"] == whole[:whole.index(stop)] and answer["finish_reason"] == "stop", answer)
    parts = list(server.stream(prompt="The ", max_tokens=40, temperature=0, stop=stop))
    expect("".join(part["choices"][0]["text"] for part in parts) == whole[:whole.index(stop)], parts)

    # As lm-evaluation-harness asks: what is the probability of a text, and is it what the model would say?
    scored = [list(prompt.encode() + greedy[prompt][:12]) for prompt in prompts] + [list(b"hello world")]
    answer = server.complete(model="small", prompt=scored, temperature=0, max_tokens=1, logprobs=1, seed=1234,
                             echo=True)
    for tokens, choice in zip(scored, sorted(answer["choices"], key=lambda each: each["index"])):
        told = choice["logprobs"]
        expect(len(told["token_logprobs"]) == len(told["top_logprobs"]) == len(tokens) + 1, told)
        expect(bytes_of(told["tokens"])[:-1] == bytes(tokens), told["tokens"])
        expect(told["token_logprobs"][0] is None and told["top_logprobs"][0] is None, told)
        is_greedy = [p == max(top.values()) for p, top in zip(told["token_logprobs"][1:-1], told["top_logprobs"][1:-1])]
        begin = len(tokens) - 12
        expect(all(is_greedy[begin:-1]) if tokens != scored[-1] else not all(is_greedy), is_greedy)
        expect(all(p < 0 for p in told["token_logprobs"][1:]), told)
    alone = server.complete(prompt=scored[1], max_tokens=0, logprobs=1, echo=True)["choices"][0]["logprobs"]
    expect(alone["token_logprobs"] == answer["choices"][1]["logprobs"]["token_logprobs"][:-1], alone)

    # A chat without a template, and OpenAI's own client.
    said = server.complete("/v1/chat/completions", messages=[{"role": "user", "content": "The "}], max_tokens=40,
                           temperature=0, logprobs=True, top_logprobs=2)["choices"][0]
    expect(said["message"]["content"] == whole and said["message"]["role"] == "assistant", said)
    expect(bytes(b for token in said["logprobs"]["content"] for b in token["bytes"]) == greedy["The "], said)
    parts = list(server.stream("/v1/chat/completions", messages=[{"role": "user", "content": "The "}], max_tokens=40,
                               temperature=0))
    expect(parts[0]["choices"][0]["delta"]["role"] == "assistant", parts[0])
    expect("".join(part["choices"][0]["delta"]["content"] for part in parts) == whole, parts)
    try:
        import openai
    except ImportError:
        openai = None
    if openai:
        client = openai.OpenAI(base_url="http://127.0.0.1:%d/v1" % server.port, api_key="none", max_retries=0)
        expect([each.id for each in client.models.list()] == ["small"], "models")
        told = client.completions.create(model="small", prompt="The ", max_tokens=40, temperature=0)
        expect(told.choices[0].text == whole, told)
        asked = {"model": "small", "max_tokens": 40, "temperature": 0,
                 "messages": [{"role": "user", "content": "The "}]}
        expect(client.chat.completions.create(**asked).choices[0].message.content == whole, "a chat")
        parts = list(client.chat.completions.create(stream=True, **asked))
        expect("".join(part.choices[0].delta.content or "" for part in parts) == whole, parts)
        try:
            client.completions.create(model="other", prompt="a")
            raise AssertionError("another model was accepted")
        except openai.NotFoundError as problem:
            expect("there is \"small\"" in str(problem), problem)

    # Clients that go away: nothing is left of their requests.
    before = server.metrics()["requests_cancelled_total"]
    for i in range(24):
        body = {"prompt": "x" * draw.randrange(1, 60), "max_tokens": 190, "n": 4, "stream": i % 3 > 0}
        body = json.dumps(body).encode()
        client = socket.create_connection(("127.0.0.1", server.port))
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                       b"Content-Length: %d\r\n\r\n" % len(body) + body)
        if i % 3 == 1:
            client.recv(100)
        time.sleep(draw.uniform(0, 0.02))
        client.close()
    now = server.expect_idle()
    expect(now["request_errors_total"] == 0 and now["requests_cancelled_total"] > before, now)

    # Requests that cannot be answered.
    server.refuses(404, "there is \"small\"", "/v1/completions", {"model": "large", "prompt": "a"})
    server.refuses(404, "there is no \"/v2\"", "/v2")
    server.refuses(404, "there is no \"/v2\"", "/v2", {"prompt": "a"})
    server.refuses(405, "POST only", "/v1/completions")
    server.refuses(405, "GET only", "/metrics", {"prompt": "a"})
    server.refuses(415, "application/json", "/v1/completions", b"{}", headers={"Content-Type": "text/plain"})
    server.refuses(400, "not JSON", "/v1/completions", b"{\"prompt\": \"\xff\"}")
    server.refuses(400, "context is 256", "/v1/completions", {"prompt": "a" * 300})
    server.refuses(400, "0 to 255", "/v1/completions", {"prompt": [256]})
    error, _ = server.refuses(400, "0 to 256", "/v1/completions", {"prompt": "a", "max_tokens": 1000000})
    expect(error["param"] == "max_tokens" and error["type"] == "invalid_request_error", error)
    valid = [b"{\"model\": \"small\", \"prompt\": \"The \", \"max_tokens\": 3, \"stop\": [\"a\", \"b\"], \"n\": 2}",
             b"{\"prompt\": [[1, 2, 3], [4]], \"max_tokens\": 1, \"echo\": true, \"logprobs\": 1}",
             b"{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"max_tokens\": 2, \"seed\": 7}"]
    seen = set()
    for i in range(300):
        body = bytearray(valid[i % 3])
        for _ in range(draw.randrange(1, 4)):
            at = draw.randrange(len(body))
            change = draw.randrange(3)
            if change == 0:
                body[at] = draw.choice(b"\"{}[]:,0123456789-.eE\\a\xff\x00")
            elif change == 1:
                del body[at:at + draw.randrange(1, 9)]
            else:
                body[at:at] = bytes(body[at:at + draw.randrange(1, 9)])
        status, answer, _ = server.ask("/v1/chat/completions" if i % 3 == 2 else "/v1/completions", bytes(body))
        expect(status in (200, 400, 404), (status, answer, body))
        json.loads(answer)
        seen.add(status)
    expect(400 in seen, seen)
    for raw in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\n\r\n", b"A" * 20000,
                b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: -1\r\n\r\n",
                b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{",
                b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
                b"zz\r\n"):
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(raw)
            client.shutdown(socket.SHUT_WR)
            client.settimeout(30)
            try:
                answer = client.recv(1000)
                expect(not answer or b" 4" in answer[:14], answer)
            except ConnectionResetError:
                pass
    now = server.expect_idle()
    expect(now["request_errors_total"] == 0, now)

    # SIGTERM: what runs ends, nothing new begins, and the exit code is 0.
    parts = server.stream(prompt="The ", max_tokens=250, temperature=0)
    told = [next(parts)]  # on a busy machine it may be all of them
    server.process.send_signal(signal.SIGTERM)
    told += parts
    expect(told[-1]["choices"][0]["finish_reason"] == "length", told[-1:])
    expect(server.process.wait(60) == 0, server.process.returncode)
finally:
    server.process.kill()

# In bf16, from weights of 16 bits, and with products of integers: nearly the same probabilities, and a stream has the
# tokens of a whole answer.
write_model("half", 256, half=True)
told = {}
numbers = {"fp32": ["--precision", "fp32"], "bf16": ["--precision", "bf16"], "int8": ["--weights", "int8"],
           "int4": ["--precision", "bf16", "--weights", "int4"]}
for precision, given in numbers.items():
    server = Server("half", *given)
    try:
        answer = server.complete(prompt="Ferries", max_tokens=0, echo=True, logprobs=1)
        told[precision] = answer["choices"][0]["logprobs"]["token_logprobs"][1:]
        whole = server.complete(prompt="Ferries", max_tokens=20, temperature=0)["choices"][0]["text"]
        parts = list(server.stream(prompt="Ferries", max_tokens=20, temperature=0))
        expect("".join(part["choices"][0]["text"] for part in parts) == whole, (precision, whole))
        server.end()
    finally:
        server.process.kill()
for precision, most in (("bf16", 0.2), ("int8", 0.2), ("int4", 2)):
    apart = max(abs(a - b) for a, b in zip(told["fp32"], told[precision]))
    expect(0 < apart < most, (precision, apart, told))

# Over TLS, with a certificate that the client trusts; also a stream, and a client that goes away.
made = subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                       "-days", "2", "-subj", "/CN=serve", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout",
                       "key.pem", "-out", "cert.pem"], stderr=subprocess.DEVNULL,
                      check=False).returncode == 0 if shutil.which("openssl") else False
ended = subprocess.run([SERVE, "small", "--port", "0", "--tls-cert", "small/config.json", "--tls-key", "key.pem"],
                       stderr=subprocess.PIPE, text=True, check=False, timeout=60)
expect(ended.returncode == 1 and ("private key" in ended.stderr or "libssl-dev" in ended.stderr), ended.stderr)
if made and "libssl-dev" not in ended.stderr:
    server = Server("small", "--tls-cert", "cert.pem", "--tls-key", "key.pem", certificate="cert.pem")
    try:
        for prompt in prompts[:2]:
            answer = server.complete(prompt=prompt, max_tokens=40, temperature=0)
            expect(answer["choices"][0]["text"] == greedy[prompt].decode(errors="replace"), answer)
            parts = list(server.stream(prompt=prompt, max_tokens=40, temperature=0))
            text = "".join(part["choices"][0]["text"] for part in parts)
            expect(text == greedy[prompt].decode(errors="replace"), parts)
        for stream in (False, True):
            connection = server.connect()
            connection.request("POST", "/v1/completions",
                               json.dumps({"prompt": "x", "max_tokens": 240, "n": 64, "stream": stream}),
                               server.headers())
            connection.sock.close()
        server.expect_idle()
        with socket.create_connection(("127.0.0.1", server.port)) as client:  # without TLS
            client.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            client.settimeout(30)
            try:
                expect(b" 200 " not in client.recv(100), "an answer without TLS")
            except ConnectionResetError:
                pass
        expect(server.ask("/health")[0] == 200, "health over TLS")
        server.end()
    finally:
        server.process.kill()

# Keys, limits and a chat template.
write_model("chat", 259)
write_tokenizer("chat/tokenizer.json")
with open("keys", "w", encoding="utf-8") as file:
    file.write("# a comment\nfirst-key\nsecond-key\n")
described = subprocess.run([GENERATE, "chat", "--tokens", "1"], stderr=subprocess.PIPE, text=True, check=False)
if "built without it" in described.stderr:
    os.remove("chat/tokenizer.json")
server = Server("chat", "--api-key-file", "keys", "--max-body", "2000", "--queue", "1", "--running", "1",
                "--name", "talker", key="second-key")
try:
    expect(json.loads(server.ask("/v1/models")[1])["data"][0]["id"] == "talker", "models")
    for headers in ({}, {"Authorization": "Bearer other-key"}, {"Authorization": "second-key"}):
        _, told = server.refuses(401, "needs an API key", "/v1/models", headers=headers)
        expect(told["WWW-Authenticate"] == "Bearer", told)
        server.refuses(401, "needs an API key", "/v1/completions", {"prompt": "a"},
                       headers=headers | {"Content-Type": "application/json"})
    expect(server.ask("/health", headers={})[0] == 200, "health")
    server.refuses(413, "larger than 2000 bytes", "/v1/completions", {"prompt": "a" * 3000})
    try:
        server.refuses(413, "larger than 2000 bytes", "/v1/completions", {"prompt": "a" * 1000000})
    except (BrokenPipeError, ConnectionResetError):
        pass  # the server has answered and closed before all of it was sent
    expect(server.ask("/health", headers={})[0] == 200, "health after a body that is too large")

    if os.path.exists("chat/tokenizer.json"):
        text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        chat = server.complete("/v1/chat/completions", messages=[{"role": "user", "content": "Hi"}], max_tokens=30,
                               temperature=0, ignore_eos=True)
        same = server.complete(prompt=text, max_tokens=30, temperature=0, ignore_eos=True)
        expect(chat["choices"][0]["message"]["content"] == same["choices"][0]["text"], (chat, same))
        expect(chat["usage"]["prompt_tokens"] == 3 + len("user\nHi\nassistant\n"), chat["usage"])

    # One request is computed and one waits; others are told to come again.
    answers = []

    def ask():
        answers.append(server.ask("/v1/completions", {"prompt": "a", "max_tokens": 250, "ignore_eos": True}))

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    statuses = [status for status, _, _ in answers]
    expect(set(statuses) == {200, 429}, statuses)
    for status, body, headers in answers:
        if status == 429:
            expect(headers["Retry-After"] == "1" and "try again" in json.loads(body)["error"]["message"], body)
    server.expect_idle()
    server.end()
finally:
    server.process.kill()

for arguments, words in ((["nowhere"], "nowhere"), (["small", "--port", "x"], "--port"), ([], "usage"),
                         (["small", "--what", "1"], "--what"), (["small", "--chat-template", "x"], "chatml"),
                         (["small", "--host", "256.0.0.1"], "256.0.0.1"), (["small", "--precision", "int8"], "bf16"),
                         (["small", "--weights", "int2"], "int8 or int4"),
                         (["small", "--tls-cert", "x"], "--tls-key")):
    ended = subprocess.run([SERVE, *arguments], stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    expect(ended.returncode == 1 and words in ended.stderr and ended.stderr.count("\n") == 1, ended.stderr)
print("ok")
