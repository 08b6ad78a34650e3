"""Writes HDF5 files with h5py; hdf5_test.cpp compares what it reads. Element (s, j, k) of x is 100 s + 10 j + k, y is
the number of the row."""
import os
import sys

try:
    import h5py
    import numpy as np
except ImportError:
    sys.exit(77)

os.chdir(sys.argv[1])
s, j, k = np.meshgrid(range(5), range(2), range(3), indexing="ij")
x = (100 * s + 10 * j + k).astype("<f4")
y = np.arange(5)
for name, part in (("cut_0.h5", slice(0, 2)), ("cut_1.h5", slice(2, 5))):
    with h5py.File(name, "w") as file:
        file["x"] = x[part]
        file.create_dataset("y", data=y[part], chunks=(1,), compression="gzip")
with h5py.File("new.h5", "w", libver=("v108", "v110")) as file:
    file.create_dataset("x", data=x, chunks=(2, 2, 3), compression="gzip", maxshape=(None, 2, 3))
    file["y"] = y
with h5py.File("whole.h5", "w") as file:
    file["y"] = y
    for order, letter in (("little", "<"), ("big", ">")):
        for kind in ("f2", "f4", "f8", "i2", "i4", "i8", "u2", "u4", "u8"):
            file[order + "/" + kind] = x.astype(letter + kind)
    file.create_dataset("chunked", data=x, chunks=(2, 1, 2))
    file.create_dataset("gzip", data=x, chunks=(3, 2, 2), compression="gzip", compression_opts=9)
    file.create_dataset("lzf", data=x, chunks=(3, 2, 2), compression="lzf")
    file.create_dataset("shuffled", data=x, chunks=(4, 2, 3), compression="gzip", shuffle=True, fletcher32=True)
    growing = file.create_dataset("growing", (0, 2, 3), dtype="<f4", maxshape=(None, 2, 3), chunks=(2, 2, 3))
    growing.resize(5, axis=0)
    growing[...] = x
    file["linked"] = h5py.SoftLink("/gzip")
    file["nowhere"] = h5py.SoftLink("/nothing")
    file["elsewhere"] = h5py.ExternalLink("new.h5", "/x")
    layout = h5py.VirtualLayout(shape=(5, 2, 3), dtype="<f4")
    layout[:2] = h5py.VirtualSource("cut_0.h5", "x", shape=(2, 2, 3))
    layout[2:] = h5py.VirtualSource("cut_1.h5", "x", shape=(3, 2, 3))
    file.create_virtual_dataset("virtual", layout)
    file["flags"] = y >= 3
    file["names"] = ["a", "b", "c", "d", "e"]
    file["records"] = np.zeros(5, dtype=[("a", "<f4"), ("b", "<i4")])
    ragged = file.create_dataset("ragged", (5,), dtype=h5py.vlen_dtype(np.int32))
    ragged[0] = [1, 2, 3]
