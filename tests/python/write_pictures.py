"""Writes PNG and JPEG files with Pillow, and what Pillow reads of them: NAME.raw beside NAME has height, width (int32)
and the bytes of RGB. NAME.H.W.raw is the same resized to H x W. picture_folders_test.cpp compares."""
import os
import struct
import sys
import zlib

try:
    import numpy as np
    from PIL import Image, ImageOps
except ImportError:
    sys.exit(77)

os.chdir(sys.argv[1])
dice = np.random.default_rng(1)
pixels = np.kron(dice.integers(0, 256, (6, 8, 4)), np.ones((5, 4, 1)))
pixels = (pixels + dice.integers(-9, 10, pixels.shape)).clip(0, 255).astype("u1")
height, width = pixels.shape[:2]
colours, grey = Image.fromarray(pixels[:, :, :3].copy()), Image.fromarray(pixels[:, :, 0].copy())
names = []


def save(name, picture, **options):
    picture.save(name, **options)
    names.append(name)


def png16(name, interlaced):  # Pillow writes no colours of 16 bits
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    wide = (pixels[:, :, :3].astype(">u2") * 256 + 77).astype(">u2")
    parts = [wide]
    if interlaced:  # Adam7
        parts = [wide[y::dy, x::dx] for y, x, dy, dx in ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4),
                                                         (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))]
    rows = b"".join(b"\0" + row.tobytes() for part in parts for row in part)
    with open(name, "wb") as file:
        head = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, interlaced)
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head)
                   + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
    names.append(name)


save("colours.png", colours)
save("alpha.png", Image.fromarray(pixels, "RGBA"))
save("grey.png", grey)
save("grey_alpha.png", Image.merge("LA", (grey, grey)))
save("palette.png", colours.quantize(200))
save("palette_of_4.png", colours.quantize(4), bits=2)
save("transparent.png", colours.quantize(20), transparency=3)
save("black_and_white.png", grey.point(lambda value: 255 * (value > 99)).convert("1"))
png16("16_bits.png", 0)
png16("interlaced.png", 1)
save("pixel.png", colours.crop((0, 0, 1, 1)))
save("colours.jpg", colours, quality=90)
save("grey.jpg", grey)
save("progressive.jpg", colours, progressive=True)
save("all_colours.jpg", colours, subsampling=0)
save("half_the_colours.jpg", colours, subsampling=1)
save("inks.jpg", Image.fromarray(pixels, "CMYK"), quality=95)
save("row.jpg", colours.crop((0, 0, 17, 1)))
for orientation in range(1, 9):
    exif = Image.Exif()
    exif[0x0112] = orientation
    save(f"turned_{orientation}.jpg", colours, exif=exif.tobytes())
    save(f"turned_{orientation}.png", colours, exif=exif.tobytes())


def write(name, picture):
    with open(name, "wb") as file:
        file.write(struct.pack("<ii", picture.height, picture.width) + picture.tobytes())


for name in names:
    read = ImageOps.exif_transpose(Image.open(name)).convert("RGB")
    write(name + ".raw", read)
    if name in ("colours.png", "turned_6.jpg", "pixel.png", "row.jpg"):
        for h, w in ((32, 32), (5, 7), (1, 1), (70, 50), (31, 65)):
            write(f"{name}.{h}.{w}.raw", read.resize((w, h), Image.BILINEAR))
with open("names", "w") as file:
    file.write("\n".join(names))
