"""Runs graphs of our writer in onnxruntime, and compares their logits with ours.

usage: check_onnx.py FOLDER
Expects what nn/onnx_test.cpp and nn/onnx_images_test.cpp write: FOLDER/ours.safetensors and FOLDER/DIALECT/NAME.onnx;
NAME.alone.onnx has no past, NAME.apart.onnx has its weights in a second file, NAME.q4_0.onnx has weights of 4 bits,
NAME.genai is for onnxruntime-genai.
Exit code 77: the packages are missing.
"""

import os
import sys

try:
    import numpy as np
    import onnx
    import onnxruntime
    from safetensors.numpy import load_file
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

try:
    import gguf
except ImportError:
    gguf = None
try:
    import onnxruntime_genai
except ImportError:
    onnxruntime_genai = None

MOST = 1e-4
OPSETS = {"portable": {"": 18}, "native": {"": 23}, "ort": {"": 21, "com.microsoft": 1}}


def feeds(session, tokens, kinds, before=0, past=None, mask=None, positions=None):
    batch, length = tokens.shape
    usual = {"input_ids": tokens, "attention_mask": np.ones((batch, before + length)) if mask is None else mask,
             "position_ids": positions, "token_type_ids": kinds}
    if positions is None:
        usual["position_ids"] = np.tile(np.arange(before, before + length), (batch, 1))
    out = {}
    for each in session.get_inputs():
        if each.name in usual:
            out[each.name] = np.ascontiguousarray(usual[each.name], dtype=np.int64)
        elif past is not None:
            out[each.name] = past[each.name]
        else:
            out[each.name] = np.zeros((batch, each.shape[1], 0, each.shape[3]), np.float32)
    return out


def opened(path):
    onnx.checker.check_model(path, full_check=True)
    model = onnx.load(path, load_external_data=False)
    expected = OPSETS[os.path.basename(os.path.dirname(path))]
    for each in model.opset_import:
        assert expected[each.domain] == each.version, each
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def far(one, other):
    assert one.shape == other.shape, (one.shape, other.shape)
    return float(np.abs(one - other).max())


def decoder(name, ours, tokens, folder):
    session = opened(os.path.join(folder, name + ".onnx"))
    names = [each.name for each in session.get_outputs()]
    whole = session.run(None, feeds(session, tokens, None))
    worst = max(far(whole[0][:, t - 1], ours["%s/%d" % (name, t)]) for t in range(1, tokens.shape[1] + 1))

    # Piece by piece, each behind the keys and values of those before. GroupQueryAttention takes one sample then, unless
    # pieces are of one token.
    nodes = onnx.load(os.path.join(folder, name + ".onnx"), load_external_data=False).graph.node
    by_groups = any(each.op_type == "GroupQueryAttention" for each in nodes)
    longer = tokens.shape[1] - 6
    for rows, lengths in ((slice(0, 1), (1, 4, 1, longer)), (slice(None), (5,) + (1,) * (tokens.shape[1] - 5)),
                          (slice(None), (1, 4, 1, longer))):
        past, found, at = None, [], 0
        if by_groups and rows == slice(None) and lengths[1] > 1:
            continue
        for length in lengths:
            out = session.run(None, feeds(session, tokens[rows, at:at + length], None, at, past))
            past = {each.replace("present", "past_key_values"): value for each, value in zip(names[1:], out[1:])}
            found.append(out[0])
            at += length
        worst = max(worst, far(np.concatenate(found, 1), whole[0][rows]))

    # Two tokens of padding before the others are not seen.
    length = tokens.shape[1]
    padded = np.concatenate([np.full((len(tokens), 2), 5), tokens], 1)
    mask = np.concatenate([np.zeros((len(tokens), 2)), np.ones(tokens.shape)], 1)
    positions = np.maximum(np.tile(np.arange(-2, length), (len(tokens), 1)), 0)
    out = session.run(["logits"], feeds(session, padded, None, mask=mask, positions=positions))[0]
    worst = max(worst, far(out[:, 2:], whole[0]))

    # Samples of different lengths, padded on the left, and then one token more.
    length -= 1
    mask = np.arange(length) >= np.arange(len(tokens))[:, None]
    shifted = np.array([np.concatenate([np.full(i, 5), row[:length - i]]) for i, row in enumerate(tokens)])
    positions = np.maximum(np.cumsum(mask, 1) - 1, 0)
    out = session.run(None, feeds(session, shifted, None, mask=mask, positions=positions))
    past = {each.replace("present", "past_key_values"): value for each, value in zip(names[1:], out[1:])}
    following = np.array([row[length - i] for i, row in enumerate(tokens)])[:, None]
    mask = np.concatenate([mask, np.ones((len(tokens), 1), bool)], 1)
    more = session.run(["logits"], feeds(session, following, None, length, past, mask, positions[:, -1:] + 1))[0]
    for i in range(len(tokens)):
        worst = max(worst, far(out[0][i, i:], whole[0][i, :length - i]), far(more[i, 0], whole[0][i, length - i]))

    for other in ("alone", "apart"):
        path = os.path.join(folder, "%s.%s.onnx" % (name, other))
        if os.path.exists(path):
            again = opened(path)
            assert (other == "alone") == (len(again.get_outputs()) == 1)
            worst = max(worst, far(again.run(["logits"], feeds(again, tokens, None))[0], whole[0]))
    path = os.path.join(folder, name + ".q4_0.onnx")
    if os.path.exists(path):
        worst = max(worst, four_bits(path, session, tokens))
    chosen = os.path.join(folder, name + ".genai")
    if onnxruntime_genai is not None and os.path.exists(chosen):
        generated(session, chosen)
    return worst


def four_bits(path, session, tokens):
    """Weights of 4 bits: the graph of F32 computes the same with the numbers that gguf's Q4_0 has for its weights."""
    coarse = opened(path)
    whole, blocks = (onnx.load(each) for each in (path.replace(".q4_0", ""), path))
    held = {each.name: onnx.numpy_helper.to_array(each) for each in blocks.graph.initializer}
    values = {each.name: onnx.numpy_helper.to_array(each) for each in whole.graph.initializer}
    names = [node.input[1] for node in blocks.graph.node if node.op_type == "MatMulNBits"]
    assert names, path
    for name in (each.removesuffix(".q4_0") for each in names):
        stored, scales = held[name + ".q4_0"], held[name + ".scales"]
        numbers = np.stack([stored & 15, stored >> 4], -1).reshape(*scales.shape, 32).astype(np.int8) - 8
        numbers = (numbers * scales[..., None]).astype(np.float32).reshape(len(scales), -1)  # (outputs, inputs)
        products = [node for node in whole.graph.node if node.op_type == "MatMul" and node.input[1] == name]
        turns = [node for node in whole.graph.node if node.op_type == "Transpose" and node.input[0] == name]
        assert len(products) + len(turns) == 1, name
        if gguf is not None:
            kind = gguf.GGMLQuantizationType.Q4_0
            rows = np.ascontiguousarray(values[name].T if products else values[name])
            right = gguf.quants.dequantize(gguf.quants.quantize(rows, kind), kind)
            assert np.array_equal(numbers, right), (path, name)
        whole.graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(numbers.T), name + ".4"))
        for node in products:
            node.input[1] = name + ".4"
        for node in turns:
            node.op_type, node.input[0] = "Identity", name + ".4"
            del node.attribute[:]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3  # without warnings of the weights that are left
    same = onnxruntime.InferenceSession(whole.SerializeToString(), options, providers=["CPUExecutionProvider"])
    one, other = (each.run(["logits"], feeds(each, tokens, None))[0] for each in (coarse, same))
    assert far(one, session.run(["logits"], feeds(session, tokens, None))[0]) > MOST  # it is coarse
    return far(one, other)


def generated(session, folder):
    """onnxruntime-genai goes on with the most probable tokens."""
    model = onnxruntime_genai.Model(folder)
    how = onnxruntime_genai.GeneratorParams(model)
    how.set_search_options(max_length=12)
    generator = onnxruntime_genai.Generator(model, how)
    tokens = [1, 5, 9]
    generator.append_tokens(np.array([tokens], dtype=np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    while len(tokens) < 12 and (len(tokens) == 3 or tokens[-1] != 0):  # what it takes for the end if none is named
        tokens.append(int(session.run(["logits"], feeds(session, np.array([tokens]), None))[0][0, -1].argmax()))
    found = [int(each) for each in generator.get_sequence(0)]
    assert found == tokens, (folder, found, tokens)


def encoder(name, ours, tokens, kinds, folder):
    session = opened(os.path.join(folder, name + ".onnx"))
    worst = 0.0
    for t in range(1, tokens.shape[1] + 1):
        some = tokens[:, :t]
        rows = some[:, -1] != 0  # ours gives the logits of the last row, which may be padding
        out = session.run(["logits"], feeds(session, some, kinds[:, :t], mask=some != 0))[0]
        if out.ndim == 3:
            out = out[:, -1]
        worst = max(worst, far(out[rows], ours["%s/%d" % (name, t)][rows]))
    return worst


def images(name, ours, folder):
    session = opened(os.path.join(folder, name + ".onnx"))
    pixels = np.ascontiguousarray(ours[name + "/x"].transpose(0, 3, 1, 2))
    (given,) = session.get_inputs()
    if given.name == "inputs":  # numbers in our order
        pixels = ours[name + "/x"].reshape(len(pixels), -1)
    worst = 0.0
    for count in (len(pixels), 1, 2):
        out = session.run(["logits"], {given.name: pixels[:count]})[0]
        worst = max(worst, far(out, ours[name + "/y"][:count]))
    return worst


def main(folder):
    golden = load_file(os.path.join(os.environ["TRIREME_TEST_DATA"], "golden", "pretrained", "golden.safetensors"))
    ours = load_file(os.path.join(folder, "ours.safetensors"))
    wrong = False
    for name in sorted({each.split("/")[0] for each in ours}):
        for dialect in OPSETS:
            of = os.path.join(folder, dialect)
            if not os.path.exists(os.path.join(of, name + ".onnx")):
                continue
            if name.startswith("bert"):
                worst = encoder(name, ours, golden["bert/tokens"], golden["bert/types"], of)
            elif name.startswith("images"):
                worst = images(name, ours, of)
            else:
                worst = decoder(name, ours, golden["tokens"], of)
            print("%s, %s: the largest difference of logits is %.1e" % (name, dialect, worst))
            wrong = wrong or not worst <= MOST
    if onnxruntime_genai is None:
        print("left out: onnxruntime_genai is not installed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
