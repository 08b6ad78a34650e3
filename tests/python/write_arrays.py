"""Writes arrays with numpy; array_files_test.cpp compares what it reads. Element (s, j, k) is 100 s + 10 j + k."""
import os
import sys

try:
    import numpy as np
except ImportError:
    sys.exit(77)

os.chdir(sys.argv[1])
s, j, k = np.meshgrid(range(5), range(2), range(3), indexing="ij")
whole = (100 * s + 10 * j + k).astype("<f4")
np.save("rows_f32.npy", whole)
np.save("columns_f32.npy", np.asfortranarray(whole))
for version in (2, 3):
    with open("v%d.npy" % version, "wb") as file:
        np.lib.format.write_array(file, whole, version=(version, 0))
np.save("cut_0.npy", whole[:2])
np.save("cut_1.npy", np.asfortranarray(whole[2:]))
np.save("rows_y.npy", np.arange(5, dtype=np.float32))
for kind in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"):
    np.save("as_%s%d.npy" % (kind[0], 8 * int(kind[1])), np.arange(5).astype("<" + kind))
np.save("beyond.npy", np.array([0, 1e300, np.inf, 3, 4]))
np.save("wide.npy", np.arange(5, dtype=np.int64) << 30)
np.save("big.npy", whole.astype(">f4"))
np.save("objects.npy", np.array([None, 1], dtype=object))
with open("rows_f32.npy", "rb") as file, open("short.npy", "wb") as out:
    out.write(file.read()[:-1])
