"""Reads files of our writer with the safetensors package, and writes one with it for our reader.

usage: check_safetensors.py FOLDER
Expects FOLDER/ours.safetensors (what reference_readers_test.cpp writes); makes FOLDER/theirs.safetensors.
Exit code 77: the packages are missing.
"""

import sys

try:
    import numpy
    import safetensors
    from safetensors.numpy import load_file, save_file
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)


def main(folder):
    path = folder + "/ours.safetensors"
    tensors = load_file(path)
    names = ["empty", "f32", "f64", "i32", "i64", "i8", "scalar", "\u00e9 \"quoted\"\n"]
    assert sorted(tensors) == names, sorted(tensors)
    assert tensors["f32"].dtype == numpy.float32 and tensors["f32"].shape == (2, 3)
    assert (tensors["f32"] == numpy.arange(6, dtype=numpy.float32).reshape(2, 3) / 4).all()
    assert (tensors["f64"] == numpy.array([1e300, -0.1])).all()
    assert (tensors["i64"] == numpy.array([-(2**62), 7])).all()
    assert (tensors["i32"] == numpy.array([[-5], [6]])).all() and tensors["i32"].shape == (2, 1)
    assert (tensors["i8"] == numpy.array([-1, 2, -3], dtype=numpy.int8)).all()
    assert tensors["scalar"].shape == () and tensors["scalar"] == numpy.float32(2.5)
    assert tensors["empty"].shape == (0, 4)
    with safetensors.safe_open(path, "numpy") as file:
        assert file.metadata() == {"step": "12", "note": "two\nlines \u00e9"}, file.metadata()

    save_file(
        {
            "b": numpy.arange(12, dtype=numpy.float32).reshape(3, 4),
            "a": numpy.array([1, -2, 3], dtype=numpy.int64),
            "half": numpy.array([0.5, 2], dtype=numpy.float16),
            "truth": numpy.array([True, False, True]),
        },
        folder + "/theirs.safetensors",
        metadata={"format": "np"},
    )


main(sys.argv[1])
