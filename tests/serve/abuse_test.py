# test-timeout: 120
"""The program serve under clients that go away and requests that are wrong: `abuse_test.py [CANCELLED] [MIXED]`.

So many requests are cancelled at a random time, then so many good and bad ones are mixed, by 8 clients at a time.
Afterwards no page is used, nothing has failed inside, and memory is as it was.
"""

import json
import random
import socket
import sys
import threading
import time

from serving import Server, expect, write_model

CANCELLED = int(sys.argv[1]) if len(sys.argv) > 1 else 100
MIXED = int(sys.argv[2]) if len(sys.argv) > 2 else 400
CLIENTS = 8


def memory(server):
    """Of the program, in MiB."""
    with open("/proc/%d/status" % server.process.pid, encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:")) / 1024


def in_turns(count, work):
    """Calls work(draw, i) for all i below count, in several threads."""
    problems = []

    def run(which):
        draw = random.Random(which)
        try:
            for i in range(which, count, CLIENTS):
                work(draw, i)
        except BaseException as problem:
            problems.append(problem)
            raise

    threads = [threading.Thread(target=run, args=(which,)) for which in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expect(not problems, problems)


write_model("small", 256)
server = Server("small", "--positions", "2048")  # few, so that answers lose their pages


def cancelled(draw, _):
    body = json.dumps({"prompt": "x" * draw.randrange(1, 200), "max_tokens": draw.randrange(1, 240),
                       "n": draw.randrange(1, 4), "stream": draw.random() < 0.6, "echo": draw.random() < 0.2,
                       "logprobs": 2}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        whole = (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                 b"Content-Length: %d\r\n\r\n" % len(body)) + body
        client.sendall(whole[:draw.randrange(len(whole))] if draw.random() < 0.1 else whole)
        time.sleep(draw.choice((0, 0.001, 0.01, 0.05)) * draw.random())
        if draw.random() < 0.5:
            client.settimeout(0.02)
            try:
                client.recv(draw.randrange(1, 2000))
            except OSError:
                pass


GOOD = ({"prompt": "The ", "max_tokens": 8}, {"prompt": [[1, 2, 3], [4]], "max_tokens": 1, "echo": True, "logprobs": 1},
        {"prompt": "Once", "max_tokens": 20, "n": 3, "stop": ["a", "bc"], "temperature": 0.9, "top_k": 7},
        {"prompt": "x", "max_tokens": 12, "stream": True},
        {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4})
BAD = (b"", b"{", b"[]", b"null", b"{\"prompt\": 1}", b"{\"prompt\": \"\xff\"}",
       b"{\"prompt\": \"a\", \"max_tokens\": 1e400}",
       b"{\"prompt\": \"a\", \"n\": -1}", b"{\"prompt\": [256]}", b"{\"prompt\": \"a\", \"top_p\": 0}", b"[" * 5000,
       b"{\"prompt\": \"a\", \"stop\": [\"\"]}", b"{\"prompt\": \"" + b"a" * 300 + b"\"}",
       b"{\"prompt\": \"a\", \"x\": {}}",
       b"{\"prompt\": \"a\", \"seed\": 99999999999999999999999}", b"{\"messages\": []}", b"\x00" * 100,
       b"{\"prompt\": \"a\", \"logit_bias\": {\"7\": \"x\"}}", b"{\"prompt\": \"a\", \"temperature\": NaN}")
statuses = {}


def mixed(draw, _):
    good = draw.random() < 0.5
    what = draw.choice(GOOD if good else BAD)
    chat = good and "messages" in what or draw.random() < 0.1 and not good
    body = json.dumps(what).encode() if good else what
    if good and draw.random() < 0.3:  # nearly good
        body, good = bytearray(body), None
        body[draw.randrange(len(body))] = draw.randrange(256)
        body = bytes(body)
    status, answer, _ = server.ask("/v1/chat/completions" if chat else "/v1/completions", body)
    expect(status in ((200,) if good else (200, 400, 404) if good is None else (400,)), (status, body, answer))
    if status != 200:
        expect(set(json.loads(answer)["error"]) == {"message", "type", "param", "code"}, answer)
    statuses[status] = statuses.get(status, 0) + 1


try:
    in_turns(CANCELLED // 5, cancelled)
    in_turns(MIXED // 5, mixed)
    server.expect_idle()
    before = memory(server)
    in_turns(CANCELLED, cancelled)
    now = server.expect_idle()
    between = memory(server)
    expect(now["request_errors_total"] == 0 and now["requests_cancelled_total"] > CANCELLED // 10, now)
    in_turns(MIXED, mixed)
    now = server.expect_idle()
    after = memory(server)
    expect(now["request_errors_total"] == 0, now)
    print("%d cancelled requests: %d pages used; %d mixed: statuses %s, %d preemptions; memory %.1f, %.1f, %.1f MiB" %
          (CANCELLED, now["pages_used"], MIXED, dict(sorted(statuses.items())), now["preemptions_total"], before,
           between, after))
    # Threads and their memory come with the first clients, so what is compared comes late.
    expect(between < before + 32 and after < between * 1.1 + 4, (before, between, after))
    server.end()
finally:
    server.process.kill()
print("ok")
