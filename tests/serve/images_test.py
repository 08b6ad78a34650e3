"""The program serve with models of images, by KServe's protocol: the losses that PyTorch computes for them."""

import json
import math
import os

from serving import Server, expect, read_shapes, read_tensors, write_tensors

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden")


def write(folder, config, tensors):
    os.mkdir(folder)
    with open(folder + "/config.json", "w", encoding="utf-8") as file:
        json.dump(config, file)
    write_tensors(folder + "/model.safetensors", tensors)


def transposed(numbers, columns):
    return [numbers[i] for column in range(columns) for i in range(column, len(numbers), columns)]


def planes(numbers, shape):
    """(rows, height, width, channels) as (rows, channels, height, width)."""
    rows, height, width, channels = shape
    size = height * width * channels
    return [each for row in range(rows) for each in transposed(numbers[row * size:(row + 1) * size], channels)]


# A vision transformer: the tests of training have it in another layout than files.
golden, shapes = read_tensors(GOLDEN + "/vit.safetensors"), read_shapes(GOLDEN + "/vit.safetensors")
tensors = {}
for name, shape in shapes.items():
    if not name.startswith("parameter/"):
        continue
    numbers, short = golden[name], name[len("parameter/"):]
    if short.endswith("cls_token"):
        tensors[short] = ([1, 1, 24], numbers)
    elif short.endswith("position_embeddings"):
        tensors[short] = ([1] + shape, numbers)
    elif short.endswith("projection.weight"):  # (side, side, channels, outputs)
        squares = transposed(numbers, 24)  # (outputs, side, side, channels)
        tensors[short] = ([24, 2, 4, 4], planes(squares, (24, 4, 4, 2)))
    else:
        table = len(shape) == 2
        if table:
            numbers, shape = transposed(numbers, shape[1]), shape[::-1]
        if ".qkv." not in short:
            tensors[short] = (shape, numbers)
            continue
        third = len(numbers) // 3
        for i, part in enumerate(("query", "key", "value")):
            tensors[short.replace("qkv", part)] = ([24] + shape[1:], numbers[i * third:(i + 1) * third])
write("squares", {"model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 24,
                  "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40, "hidden_act": "gelu",
                  "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "layer_norm_eps": 1e-12,
                  "image_size": 12, "patch_size": 4, "num_channels": 2, "qkv_bias": True,
                  "id2label": {str(i): "LABEL_%d" % i for i in range(5)}}, tensors)
net, of_net = read_tensors(GOLDEN + "/convnet.safetensors"), read_shapes(GOLDEN + "/convnet.safetensors")
tensors = {name.split("/")[1]: (of_net[name], net[name]) for name in net if name.startswith(("parameter/", "buffer/"))}
write("residual", {"model_type": "convnet", "image_size": 7, "num_channels": 2, "num_labels": 3, "num_blocks": 1,
                   "hidden_size": 4}, tensors)

for name, numbers, shape, targets, right, classes in (
        ("squares", golden["images"], shapes["images"], golden["targets"], golden["loss"][0], 5),
        ("residual", net["images"], of_net["images"], net["targets"], net["evaluated"][0], 3)):
    rows, height, width, channels = shape
    pixels, infer = planes(numbers, shape), "/v2/models/%s/infer" % name
    given = {"name": "pixel_values", "shape": [rows, channels, height, width], "datatype": "FP32", "data": pixels}
    server = Server(name)
    try:
        answer = server.complete(infer, id="7", inputs=[given])
        expect(answer["model_name"] == name and answer["id"] == "7", answer)
        output, = answer["outputs"]
        expect((output["name"], output["datatype"], output["shape"]) == ("logits", "FP32", [rows, classes]), output)
        logits = [output["data"][i:i + classes] for i in range(0, rows * classes, classes)]
        loss = sum(math.log(sum(map(math.exp, row))) - row[target] for row, target in zip(logits, targets)) / rows
        expect(abs(loss - right) < 1e-5 * max(1, right), (name, loss, right))
        print("%s: loss %.7f, PyTorch's %.7f" % (name, loss, right))
        size = height * width * channels
        alone = server.complete(infer, inputs=[given | {"shape": [1, channels, height, width], "data": pixels[-size:]}])
        expect(all(abs(a - b) < 1e-5 for a, b in zip(alone["outputs"][0]["data"], logits[-1])), alone)
        told = json.loads(server.ask("/v2/models/" + name)[1])
        expect(told["inputs"] == [{"name": "pixel_values", "datatype": "FP32", "shape": [-1, channels, height, width]}],
               told)

        def refuses(status, words, body):
            got, text, _ = server.ask(infer, body)
            expect(got == status and words in json.loads(text)["error"] and text.count(b"\n") == 0, (got, text))

        flat = given | {"shape": [rows, size]}
        refuses(400, "but images are (rows, %d, %d, %d)" % (channels, height, width), {"inputs": [flat]})
        refuses(400, "there is no \"input_ids\"", {"inputs": [given | {"name": "input_ids"}]})
        refuses(400, "there is no \"scores\"", {"inputs": [given], "outputs": [{"name": "scores"}]})
        refuses(400, "it takes floats", {"inputs": [given | {"datatype": "INT32", "data": [1] * len(pixels)}]})
        refuses(400, "not JSON", b"{")
        server.refuses(404, "there is no \"/v1/embeddings\"", "/v1/embeddings", {"input": "a"})
        expect(server.metrics()["requests_total"] == 2, server.metrics())
        server.end()
    finally:
        server.process.kill()
print("ok")
