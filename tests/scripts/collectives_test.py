#!/usr/bin/env python3
# test-timeout: 120
"""The benchmark of collectives: its rows have their fields, and its figures fit each other."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(os.environ["TRIREME_SOURCE_DIR"])
SCRIPT = SOURCE / "benchmarks" / "collectives.py"
FIELDS = ["communicator", "operation", "type", "bytes", "ranks", "microseconds", "algbw", "busbw"]


def build(folder):
    """The programs that need no library: the limit of memory, and threads."""
    programs = pathlib.Path(folder) / "benchmarks"
    programs.mkdir()
    compiler = os.environ.get("CXX", "c++")
    flags = ["-std=c++20", "-O1", "-pthread", "-DFMT_HEADER_ONLY=1", f"-I{SOURCE}/include",
             "-isystem", "/usr/include/eigen3"]
    built = []
    for name in ("memory", "threads"):
        source = SOURCE / "benchmarks" / "collectives" / f"{name}.cpp"
        command = [compiler, *flags, str(source), "-o", str(programs / f"collectives_{name}")]
        built.append(subprocess.Popen(["ccache", *command] if shutil.which("ccache") else command))
    assert all(process.wait() == 0 for process in built), "the programs do not build"


def run(folder, *options):
    return subprocess.run([sys.executable, SCRIPT, *options], capture_output=True, text=True, timeout=90, check=False,
                          env={**os.environ, "TRIREME_BINARY_DIR": str(folder)})


def main():
    with tempfile.TemporaryDirectory() as folder:
        build(folder)
        file = pathlib.Path(folder) / "rows.json"
        few = ["--quick", "--communicator", "memory_limit,threads,gloo", "--ranks", "2,3", "--type", "f32,bf16",
               "--max-bytes", "64K"]
        told = run(folder, *few, "--json", str(file))
        assert told.returncode == 0, told.stderr
        assert "# gloo is left out: its program was not built" in told.stderr, told.stderr
        for word in ("size", "count", "type", "op", "time", "algbw", "busbw", "times as fast", "threads / memory_limit",
                     "# machine", "# compiler", "# peers", "# pinning"):
            assert word in told.stdout, f"{word} is missing in:\n{told.stdout}"
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        # 5 operations, 2 numbers of ranks, 2 types, 3 sizes, 2 communicators
        assert len(rows) == 5 * 2 * 2 * 3 * 2, len(rows)
        for row in rows:
            assert list(row) == FIELDS, row
            assert row["microseconds"] > 0 and row["communicator"] in ("threads", "memory_limit"), row
            assert row["bytes"] % (2 if row["type"] == "bf16" else 4) == 0, row
            ranks = row["ranks"]
            factor = {"all_reduce": 2 * (ranks - 1) / ranks, "broadcast": 1}.get(row["operation"], (ranks - 1) / ranks)
            assert abs(row["algbw"] - row["bytes"] / row["microseconds"] * 1e-3) <= 2e-3 + row["algbw"] * 0.1, row
            assert abs(row["busbw"] - row["algbw"] * factor) <= 2e-3, row
        told = run(folder, "--quick", "--communicator", "threads", "--operation", "all_reduce", "--max-bytes", "4",
                   "--json")
        assert [list(json.loads(line)) for line in told.stdout.splitlines()] == [FIELDS], told.stdout
        assert run(folder, "--operation", "reduce_all").returncode == 2
    print("all is well")


if __name__ == "__main__":
    main()
