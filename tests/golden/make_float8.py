#!/usr/bin/env python3
"""Makes float8.txt: what the package ml-dtypes makes of floats of 8 and 4 bits (ml_dtypes 0.6.0, numpy 2.4.6).

A line "format decode": the bits of the 256 (e2m1: 16) codes as floats; NaN as 7fc00000. A line "format encode": pairs
of the bits of a float and its code: each code's own number, every number halfway between two neighbours, and the
floats next to those on both sides; all with both signs, and the same around the end of the range, and numbers far
outside of it.
"""
import pathlib

import ml_dtypes
import numpy as np

np.seterr(all="ignore")
lines = []
for name, kind in (("e4m3", ml_dtypes.float8_e4m3fn), ("e5m2", ml_dtypes.float8_e5m2),
                   ("e2m1", ml_dtypes.float4_e2m1fn), ("e8m0", ml_dtypes.float8_e8m0fnu)):
    decoded = np.arange(16 if name == "e2m1" else 256, dtype=np.uint8).view(kind).astype(np.float32)
    bits = decoded.view(np.uint32).copy()
    bits[np.isnan(decoded)] = 0x7fc00000
    lines.append(name + " decode " + " ".join("%x" % each for each in bits))
    if name == "e8m0":  # powers of two, which are never asked for from other numbers
        continue
    finite = np.unique(decoded[np.isfinite(decoded) & (decoded >= 0)])
    largest, spacing = finite[-1], finite[-1] - finite[-2]
    ends = [largest + spacing / 2, largest + spacing]
    ties = np.concatenate([(finite[1:] + finite[:-1]) / 2, ends]).astype(np.float32)
    far = np.array([1e-45, 1e-38, 1e5, 3e38, np.inf], np.float32)
    asked = np.concatenate([finite, ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(1e9)), far])
    asked = np.concatenate([asked, -asked, np.array([np.nan], np.float32)]).astype(np.float32)
    codes = asked.astype(kind).view(np.uint8)
    lines.append(name + " encode " +
                 " ".join("%x:%x" % pair for pair in zip(asked.view(np.uint32).tolist(), codes.tolist())))
pathlib.Path(__file__).with_name("float8.txt").write_text("\n".join(lines) + "\n")
