"""Runs graphs of our writer in onnxruntime, and compares their logits with ours.

usage: check_onnx.py FOLDER
Expects what nn/onnx_test.cpp writes: FOLDER/ours.safetensors and FOLDER/NAME.onnx.
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

MOST = 1e-4


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
    for each in onnx.load(path, load_external_data=False).opset_import:
        assert each.domain == "" and each.version == 18, each
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

    # Piece by piece, each behind the keys and values of those before.
    past, found, at = None, [], 0
    for length in (1, 4, 1, tokens.shape[1] - 6):
        out = session.run(None, feeds(session, tokens[:, at:at + length], None, at, past))
        past = {each.replace("present", "past_key_values"): value for each, value in zip(names[1:], out[1:])}
        found.append(out[0])
        at += length
    worst = max(worst, far(np.concatenate(found, 1), whole[0]))

    # Two tokens of padding before the others are not seen.
    length = tokens.shape[1]
    padded = np.concatenate([np.full((len(tokens), 2), 5), tokens], 1)
    mask = np.concatenate([np.zeros((len(tokens), 2)), np.ones(tokens.shape)], 1)
    positions = np.maximum(np.tile(np.arange(-2, length), (len(tokens), 1)), 0)
    out = session.run(["logits"], feeds(session, padded, None, mask=mask, positions=positions))[0]
    worst = max(worst, far(out[:, 2:], whole[0]))

    for other in ("alone", "apart"):
        path = os.path.join(folder, "%s.%s.onnx" % (name, other))
        if os.path.exists(path):
            again = opened(path)
            assert (other == "alone") == (len(again.get_outputs()) == 1)
            worst = max(worst, far(again.run(["logits"], feeds(again, tokens, None))[0], whole[0]))
    return worst


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
        if name.startswith("bert"):
            worst = encoder(name, ours, golden["bert/tokens"], golden["bert/types"], folder)
        elif name.startswith("images"):
            worst = images(name, ours, folder)
        else:
            worst = decoder(name, ours, golden["tokens"], folder)
        print("%s: the largest difference of logits is %.1e" % (name, worst))
        wrong = wrong or not worst <= MOST
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
