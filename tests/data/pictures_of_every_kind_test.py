# test-takes: 10
"""classify_images --data learns from the same pictures in each kind of file that it reads."""

import io
import os
import random
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib

PROGRAM = os.path.join(os.environ.get("TRIREME_BINARY_DIR", ""), "examples", "classify_images")
if not os.path.exists(PROGRAM):
    print("skipped:", PROGRAM, "is not built")
    sys.exit(77)
folder = tempfile.mkdtemp(prefix="pictures.")
os.chdir(folder)
draw = random.Random(1)
SIDE, COUNT = 32, 60
# Dark pictures are of class 0, bright ones of class 1.
labels = [i % 2 for i in range(COUNT)]
pictures = [bytes(draw.randrange(60) + 150 * label for _ in range(SIDE * SIDE)) for label in labels]
colours = [bytes(value for value in picture for _ in range(3)) for picture in pictures]


def write(path, content):
    with open(path, "wb") as file:
        file.write(content)


def npy(description, shape, content):
    header = repr({"descr": description, "fortran_order": False, "shape": shape}).encode()
    header += b" " * (117 - len(header)) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def png(picture):
    def part(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
    rows = b"".join(b"\0" + picture[i * SIDE:(i + 1) * SIDE] for i in range(SIDE))
    return (b"\x89PNG\r\n\x1a\n" + part(b"IHDR", struct.pack(">IIBBBBB", SIDE, SIDE, 8, 0, 0, 0, 0)) +
            part(b"IDAT", zlib.compress(rows)) + part(b"IEND", b""))


def tar(path, numbers):
    with tarfile.open(path, "w") as file:
        for i in numbers:
            for name, content in (("%04d.png" % i, png(pictures[i])), ("%04d.cls" % i, b"%d" % labels[i])):
                about = tarfile.TarInfo(name)
                about.size = len(content)
                file.addfile(about, io.BytesIO(content))


def run(*arguments):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=100)
    return done.returncode, done.stdout, done.stderr


def expect(condition, message):
    if not condition:
        sys.exit(str(message))


def learns(*arguments):
    code, out, err = run("--data", *arguments)
    if code == 77:
        print("left out:", err.strip())
        return
    expect(code == 0 and out.count("epoch") == 4, (arguments, code, out, err))
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in out.splitlines()]
    expect(losses[-1] < 0.3, (arguments, out))  # of labels that are those of other pictures it stays at 0.6


def refused(part, *arguments):
    code, _, err = run("--data", *arguments)
    expect(code in (1, 77) and (part in err or code == 77), (arguments, code, err))


os.mkdir("cifar10")
planes = [bytes([label]) + 3 * picture for label, picture in zip(labels, pictures)]
write("cifar10/data_batch_1.bin", b"".join(planes[:30]))
write("cifar10/data_batch_2.bin", b"".join(planes[30:50]))
write("cifar10/test_batch.bin", b"".join(planes[50:]))
learns("cifar10", "4")
os.mkdir("cifar100")
write("cifar100/train.bin", b"".join(b"\0" + each for each in planes[:50]))
write("cifar100/test.bin", b"".join(b"\0" + each for each in planes[50:]))
learns("cifar100", "4")
write("x.npy", npy("|u1", (COUNT, SIDE, SIDE), b"".join(pictures)))
write("y.npy", npy("<i8", (COUNT,), struct.pack("<%dq" % COUNT, *labels)))
learns("x.npy", "4", "--labels", "y.npy", "--test", "x.npy", "--test-labels", "y.npy")
with zipfile.ZipFile("all.npz", "w") as file:
    file.writestr("pictures.npy", npy("|u1", (COUNT, SIDE, SIDE, 3), b"".join(colours)))
    file.writestr("labels.npy", npy("<i8", (COUNT,), struct.pack("<%dq" % COUNT, *labels)))
learns("all.npz", "4", "--features", "pictures", "--targets", "labels")
os.mkdir("archives")
tar("archives/0.tar", range(0, 25))
tar("archives/1.tar", range(25, 50))
tar("test.tar", range(50, COUNT))
learns("archives", "4", "--size", "16", "--test", "test.tar")
for i in range(COUNT):
    path = "folders/%s/%s" % ("train" if i < 50 else "val", "bright" if labels[i] else "dark")
    os.makedirs(path, exist_ok=True)
    write("%s/%d.png" % (path, i), png(pictures[i]))
learns("folders", "4", "--size", "16")

write("cifar10/test_batch.bin", planes[0][:-1])
refused("cifar10/test_batch.bin: byte 0: ", "cifar10")
refused("x.npy holds pictures; name the .npy file of their labels", "x.npy")
refused("has no member \"x\"", "all.npz")
refused("none", "none")
refused("classify_images: trireme::data::cifar: no file matches", "none.bin")
code, out, _ = run("--help")
expect(code == 0 and out.startswith("usage: classify_images "), out)
for part, given in (("--size is \"2\"; it is a whole number of at least 8", ["--size", "2"]),
                    ("EPOCHS is \"no\"; it is a whole number of at least 1", ["-", "no"]),
                    ("there is no --epochs", ["--epochs", "1"]), ("--test needs a value", ["--test"])):
    code, _, err = run(*given)
    expect(code == 2 and err.startswith("classify_images: " + part + "\nusage: "), (given, code, err))
shutil.rmtree(folder)
