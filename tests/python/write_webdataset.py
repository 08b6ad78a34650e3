"""Writes an archive with WebDataset's writer and one with names that are odd, and beside each the samples that
WebDataset finds in it: NAME.tar.txt has a line for each, its key and, sorted, endings with the CRC-32 of their bytes.
tar_samples_test.cpp compares."""
import io
import os
import sys
import tarfile
import zlib

try:
    import numpy
    import webdataset
except ImportError:
    sys.exit(77)

os.chdir(sys.argv[1])
with webdataset.TarWriter("written.tar") as sink:
    for i in range(40):
        sample = {"__key__": "train/%02d/picture_%04d" % (i % 3, i), "x.npy": numpy.arange(3, dtype=numpy.float32) * i,
                  "cls": i, "json": {"width": i}, "seg.txt": "line %d" % i}
        if i % 4 == 0:
            sample["jpg"] = b"\xff\xd8" * i
        sink.write(sample)
names = ["a.txt", "a.Seg.PNG", "b/c.txt", "b.d/c.txt", "b.d/c.cls", "no_ending", "e.x.y.z", "f.", "folder/g.txt",
         "folder/g.txt2", "__meta__.json", "__x__.txt", "h-1.txt", "h_1.txt", "i j.txt"]
with tarfile.open("names.tar", "w") as archive:
    for i, name in enumerate(names):
        info = tarfile.TarInfo(name)
        info.size = i
        archive.addfile(info, io.BytesIO(bytes(range(i))))
for name in ("written.tar", "names.tar"):
    with open(name + ".txt", "w", encoding="utf-8") as out:
        for sample in webdataset.WebDataset(name, shardshuffle=False):
            files = {ending: value for ending, value in sample.items() if not ending.startswith("__")}
            fields = sorted((ending, zlib.crc32(value)) for ending, value in files.items())
            out.write(" ".join([sample["__key__"]] + ["%s=%08x" % field for field in fields]) + "\n")
