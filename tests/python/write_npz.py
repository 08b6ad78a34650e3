"""Writes archives with numpy and zipfile, sound and odd ones; npz_files_test.cpp and inflate_test.cpp read them.

x holds 100 s + 10 j + k at (s, j, k), y the number of the row."""
import io
import os
import sys
import zipfile

try:
    import numpy as np
except ImportError:
    sys.exit(77)

os.chdir(sys.argv[1])
s, j, k = np.meshgrid(range(5), range(2), range(3), indexing="ij")
x = (100 * s + 10 * j + k).astype("<f4")
y = np.arange(5, dtype=np.int64)
np.savez("stored.npz", x=x, y=y, other=np.zeros(2))
np.savez("columns.npz", x=np.asfortranarray(x), y=y)
np.savez("cut_0.npz", x=x[:2], y=y[:2])
np.savez("cut_1.npz", x=x[2:], y=y[2:])
np.savez("short.npz", x=x, y=y[:4])
np.savez("none.npz")
np.savez_compressed("deflated.npz", x=x, y=y)
np.savez_compressed("large.npz", x=np.arange(1 << 19, dtype=np.float64).reshape(-1, 4), y=np.arange(1 << 17))


def array(of):
    out = io.BytesIO()
    np.save(out, of)
    return out.getvalue()


def write(name, kind=zipfile.ZIP_STORED, members=(("x.npy", array(x)), ("y.npy", array(y))), to=None):
    with zipfile.ZipFile(to or name, "w", kind) as archive:
        for member, content in members:
            archive.writestr(member, content)


class Pipe(io.RawIOBase):
    """A stream that cannot seek: zipfile then writes sizes behind each member."""

    def __init__(self, to):
        self.to = to

    def writable(self):
        return True

    def write(self, letters):
        return self.to.write(letters)


for name, kind in (("descriptors.npz", zipfile.ZIP_STORED), ("descriptors_deflated.npz", zipfile.ZIP_DEFLATED)):
    with open(name, "wb") as file:
        write(name, kind, to=Pipe(file))
write("bzip2.npz", zipfile.ZIP_BZIP2)
write("twice.npz", members=(("x", array(x)), ("x.npy", array(x)), ("y.npy", array(y))))
write("text.npz", members=(("x.npy", b"not an array"), ("y.npy", array(y))))
with zipfile.ZipFile("comment.npz", "w") as archive:
    archive.comment = b"a comment"
    archive.writestr("x.npy", array(x))
    archive.writestr("y.npy", array(y))
limits = zipfile.ZIP64_LIMIT, zipfile.ZIP_FILECOUNT_LIMIT
zipfile.ZIP64_LIMIT, zipfile.ZIP_FILECOUNT_LIMIT = 1, 1
for name, kind in (("zip64.npz", zipfile.ZIP_STORED), ("zip64_deflated.npz", zipfile.ZIP_DEFLATED)):
    with zipfile.ZipFile(name, "w", kind) as archive:
        for member, content in (("x.npy", array(x)), ("y.npy", array(y))):
            with archive.open(member, "w", force_zip64=True) as to:
                to.write(content)
zipfile.ZIP64_LIMIT, zipfile.ZIP_FILECOUNT_LIMIT = limits


def changed(name, of, change):
    with open(of, "rb") as file:
        content = bytearray(file.read())
    with open(name, "wb") as out:
        out.write(change(content))


def flipped(at):
    def change(content):
        content[at(content)] ^= 1
        return content

    return change


changed("truncated.npz", "stored.npz", lambda content: content[:-1])
changed("half.npz", "stored.npz", lambda content: content[: len(content) // 2])
changed("prefix.npz", "stored.npz", lambda content: b"#!/bin/sh\n" + content)
changed("crc.npz", "stored.npz", flipped(lambda content: content.index(b"x.npy") + 200))
changed("encrypted.npz", "stored.npz", flipped(lambda content: content.index(b"PK\x01\x02") + 8))
changed("damaged.npz", "deflated.npz", flipped(lambda content: content.index(b"x.npy") + 60))
open("empty.npz", "wb").close()
