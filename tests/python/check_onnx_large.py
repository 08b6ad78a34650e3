"""Runs a graph whose weights have more than 4 GiB in onnxruntime.

usage: check_onnx_large.py FOLDER
Expects what formats/onnx_test.cpp writes: FOLDER/large.onnx and its data, mostly a hole.
Exit code 77: the packages are missing.
"""

import os
import sys

try:
    import numpy as np
    import onnx
    import onnxruntime
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)


def main(folder):
    path = os.path.join(folder, "large.onnx")
    onnx.checker.check_model(path, full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"which": np.array([2**24, 0, 2**23])})
    behind = np.arange(64, 128) + 0.5
    expected = np.array([behind + np.arange(64) + 0.5, behind, behind], np.float32)
    assert np.array_equal(y, expected), y
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
