"""The program serve with a BERT: embeddings for OpenAI's clients, and tensors by KServe's protocol."""

import base64
import json
import math
import os
import shutil
import struct

from serving import Server, expect, read_tensors

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "pretrained")


def close(a, b, apart=1e-5):
    return len(a) == len(b) and all(abs(x - y) <= apart * max(1, abs(y)) for x, y in zip(a, b))


for name in ("bert_classifier", "bert_encoder"):
    shutil.copytree(os.path.join(GOLDEN, name), name)
    with open(name + "/config.json", encoding="utf-8") as file:
        config = json.load(file)
    with open(name + "/config.json", "w", encoding="utf-8") as file:
        json.dump(config | {"sep_token_id": 3}, file)
golden = read_tensors(os.path.join(GOLDEN, "golden.safetensors"))
ROWS, LENGTH = 4, 13
ids, types = golden["bert/tokens"], golden["bert/types"]


def tensor(name, data, kind="INT64"):
    return {"name": name, "shape": [ROWS, LENGTH], "datatype": kind, "data": data}


asked = {"id": "42", "inputs": [tensor("input_ids", ids), tensor("attention_mask", [int(each != 0) for each in ids]),
                                tensor("token_type_ids", types, "INT32")]}
INFER = "/v2/models/bert_classifier/infer"
server = Server("bert_classifier")
try:
    # As transformers computes: the loss of these rows.
    answer = server.complete(INFER, **asked)
    expect(answer["model_name"] == "bert_classifier" and answer["id"] == "42", answer)
    output, = answer["outputs"]
    expect((output["name"], output["datatype"], output["shape"]) == ("logits", "FP32", [ROWS, 3]), output)
    logits = [output["data"][i:i + 3] for i in range(0, 3 * ROWS, 3)]
    loss = sum(math.log(sum(map(math.exp, row))) - row[target]
               for row, target in zip(logits, golden["bert_classifier/targets"])) / ROWS
    right, = golden["bert_classifier/loss"]
    expect(abs(loss - right) < 1e-5, (loss, right))
    nested = [ids[i:i + LENGTH] for i in range(0, len(ids), LENGTH)]
    for inputs in ([tensor("input_ids", nested)], [tensor("input_ids", ids, "INT32")]):
        expect(server.complete(INFER, inputs=inputs, outputs=[{"name": "logits"}])["outputs"] == [output], inputs)

    for path in ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/bert_classifier/ready"):
        expect(server.ask(path)[0] == 200, path)
    told = json.loads(server.ask("/v2/models/bert_classifier")[1])
    expect(told["outputs"] == [{"name": "logits", "datatype": "FP32", "shape": [-1, 3]}], told)

    def refuses(status, words, path, body):
        got, answer, _ = server.ask(path, body)
        expect(got == status and words in json.loads(answer)["error"] and answer.count(b"\n") == 0, (got, answer))

    refuses(404, "there is no", "/v2/models/other/infer", asked)
    refuses(400, "neither text nor input_ids", INFER, {"inputs": [asked["inputs"][1]]})
    refuses(400, "not JSON", INFER, b"{")
    refuses(400, "there is no \"x\"", INFER, {"inputs": [tensor("x", ids)]})
    refuses(400, "shape asks for 52", INFER, {"inputs": [tensor("input_ids", ids[1:])]})
    refuses(400, "0 to 36", INFER, {"inputs": [tensor("input_ids", [37] * 52)]})
    refuses(400, "nothing but padding", INFER, {"inputs": [tensor("input_ids", [0] * 52)]})
    refuses(400, "between its tokens", INFER, {"inputs": [tensor("input_ids", [2, 0, 3] + [2] * 49)]})
    refuses(400, "token_type_ids", INFER, {"inputs": [asked["inputs"][0], tensor("token_type_ids", [1] * 52)]})
    refuses(400, "context is 16", INFER,
            {"inputs": [{"name": "input_ids", "shape": [1, 17], "datatype": "INT64", "data": [5] * 17}]})
    refuses(400, "binary data", INFER, asked | {"parameters": {"binary_data_output": True}})
    server.refuses(404, "there is no \"/v1/embeddings\"", "/v1/embeddings", {"input": "a"})
    server.refuses(404, "there is no \"/v1/completions\"", "/v1/completions", {"prompt": "a"})
    expect(server.metrics()["requests_total"] == 3, server.metrics())
    server.end()
finally:
    server.process.kill()

server = Server("bert_encoder")
try:
    states = server.complete("/v2/models/bert_encoder/infer", inputs=[tensor("input_ids", ids)])["outputs"][0]
    expect(states["name"] == "last_hidden_state" and states["shape"] == [ROWS, LENGTH, 16], states["shape"])
    states = [states["data"][i:i + 16] for i in range(0, len(states["data"]), 16)]
    # What the classifier makes of its first token: its encoder is the same.
    weights = read_tensors("bert_classifier/model.safetensors")

    def product(x, name):
        matrix, bias = weights[name + ".weight"], weights[name + ".bias"]
        return [sum(a * b for a, b in zip(x, matrix[i * len(x):])) + bias[i] for i in range(len(bias))]

    for row in range(ROWS):
        pooled = [math.tanh(each) for each in product(states[row * LENGTH], "bert.pooler.dense")]
        expect(close(product(pooled, "classifier"), logits[row], 1e-4), (row, logits[row]))

    # Embeddings: the mean over a text's tokens, of length 1; in any company the same.
    texts = [[each for each in row if each != 0] for row in nested]
    right = []
    for row, tokens in enumerate(texts):
        begin = row * LENGTH + nested[row].index(tokens[0])
        mean = [sum(column) for column in zip(*states[begin:begin + len(tokens)])]
        length = math.sqrt(sum(each * each for each in mean))
        right.append([each / length for each in mean])
    answer = server.complete("/v1/embeddings", model="bert_encoder", input=texts, encoding_format="base64")
    expect(answer["usage"] == {"prompt_tokens": sum(map(len, texts)), "total_tokens": sum(map(len, texts))}, answer)
    for i, each in enumerate(answer["data"]):
        bytes_told = base64.b64decode(each["embedding"])
        vector = struct.unpack("<16f", bytes_told)
        expect(each["index"] == i and close(vector, right[i]), (vector, right[i]))
        alone = server.complete("/v1/embeddings", input=texts[i])["data"][0]["embedding"]
        expect(struct.pack("<16f", *alone) == bytes_told, alone)
    try:
        import openai
    except ImportError:
        openai = None
    if openai:
        client = openai.OpenAI(base_url="http://127.0.0.1:%d/v1" % server.port, api_key="none", max_retries=0)
        told = client.embeddings.create(model="bert_encoder", input=texts)
        expect(all(close(each.embedding, right[i]) for i, each in enumerate(told.data)), told)
    server.refuses(400, "context is 16", "/v1/embeddings", {"input": [5] * 17})
    server.refuses(400, "have 16 numbers", "/v1/embeddings", {"input": [5], "dimensions": 8})
    server.refuses(400, "does not know", "/v1/embeddings", {"input": [5], "temperature": 1})
    server.refuses(400, "input: there is none", "/v1/embeddings", {})
    server.end()
finally:
    server.process.kill()
print("ok")
