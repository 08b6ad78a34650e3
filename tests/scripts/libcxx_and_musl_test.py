#!/usr/bin/env python3
# test-timeout: 300
# test-takes: 20
"""All headers with clang 20, libc++ 20 and musl, in C++26: Zig's C++ compiler has them (Python's package ziglang)."""

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

root = Path(__file__).resolve().parents[2]
found = importlib.util.find_spec("ziglang")
if found is None:
    print("skipped: Python's package ziglang is missing; scripts/test --with-torch installs it")
    sys.exit(77)
zig = Path(found.origin).parent / "zig"
with tempfile.TemporaryDirectory() as folder:
    for name in ("eigen3/Eigen", "fmt"):  # and nothing else of the system's headers
        if not Path("/usr/include", name).is_dir():
            print(f"skipped: /usr/include/{name} is missing")
            sys.exit(77)
        os.symlink(f"/usr/include/{name}", f"{folder}/{Path(name).name}")
    # Zig leaves -fsyntax-only without the file that it expects; without optimisation code costs little.
    command = [zig, "c++", "-target", "x86_64-linux-musl", "-std=c++26", "-O0", "-g0", "-fno-sanitize=undefined",
               "-Wall", "-Wextra", "-Werror", "-DFMT_HEADER_ONLY=1", f"-I{root}/include", "-isystem", folder,
               "-c", root / "tests/support/among_strangers.cpp", "-o", f"{folder}/object.o"]
    environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": f"{folder}/cache", "ZIG_LOCAL_CACHE_DIR": f"{folder}/cache"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0 or "error:" in done.stdout:
        sys.exit(done.stdout)
