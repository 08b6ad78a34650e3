"""Writes archives with tarfile in its three formats, and beside each what tarfile finds in it: NAME.txt has a line for
each file, its bytes, where they begin, and its name. tar_samples_test.cpp compares."""
import io
import os
import sys
import tarfile

os.chdir(sys.argv[1])
names = {
    "ustar": ["plain/1.txt", "x" * 60 + "/" + "y" * 60 + "/" + "z" * 30 + ".txt", "empty.bin"],
    "gnu": ["plain/1.txt", "long/" * 60 + "name.txt", "ä" * 80 + ".txt", "x" * 100, "y" * 101 + ".b"],
    "pax": ["plain/1.txt", "long/" * 60 + "name.txt", "ä" * 80 + ".txt", "x" * 100, "日本.jpg"],
}
formats = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def entry(name, size, **fields):
    info = tarfile.TarInfo(name)
    info.size = size
    for field, value in fields.items():
        setattr(info, field, value)
    return info


for kind, number in formats.items():
    with tarfile.open(kind + ".tar", "w", format=number) as archive:
        archive.addfile(entry("folder", 0, type=tarfile.DIRTYPE))
        for i, name in enumerate(names[kind]):
            data = bytes((i + j) % 251 for j in range(0 if name.startswith("empty") else 511 + i))
            time = 1700000000.5 if kind == "pax" else 1700000000
            archive.addfile(entry(name, len(data), mtime=time), io.BytesIO(data))
        archive.addfile(entry("link", 0, type=tarfile.SYMTYPE, linkname="k" * (150 if kind != "ustar" else 90)))
        archive.addfile(entry("hard", 0, type=tarfile.LNKTYPE, linkname="plain/1.txt"))
        archive.addfile(entry("last.txt", 3), io.BytesIO(b"end"))

with tarfile.open("global.tar", "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "of all"}) as archive:
    archive.addfile(entry("a.txt", 1, pax_headers={"comment": "of one"}), io.BytesIO(b"a"))

for name in sorted(os.listdir(".")):
    if not name.endswith(".tar"):
        continue
    with tarfile.open(name) as archive, open(name + ".txt", "w", encoding="utf-8", errors="surrogateescape") as out:
        for each in archive:
            if each.isreg():
                out.write(f"{each.size} {each.offset_data} {each.name}\n")
