#!/usr/bin/env python3
"""What including a header costs: g++ -O2 on one core, for every public header and for the programs of README.md.

Prints one JSON object a row: {"header", "seconds" (best of the runs), "megabytes" (peak memory of the compiler)}.
Options: --runs N (default 3), --compiler NAME, and names of headers to measure instead of all.
"""

# targets: none
# needs: mpi
import argparse
import json
import os
import pathlib
import subprocess
import tempfile
import time

root = pathlib.Path(__file__).resolve().parent.parent


def measure(command, runs):
    seconds, megabytes = float("inf"), 0.0
    for _ in range(runs):
        begin = time.monotonic()
        process = subprocess.Popen(command)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            return None
        seconds = min(seconds, time.monotonic() - begin)
        megabytes = max(megabytes, usage.ru_maxrss / 1024)
    return {"seconds": round(seconds, 3), "megabytes": round(megabytes, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("headers", nargs="*", help="as in #include, for instance trireme/core/tensor.hpp")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--compiler", default="g++")
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    include = root / "include"
    headers = options.headers or sorted(
        str(path.relative_to(include)) for path in include.rglob("*.hpp") if "detail" not in path.parts)
    mpi = subprocess.run(["mpicxx", "--showme:compile"], capture_output=True, text=True, check=False)
    base = [options.compiler, "-std=c++20", "-O2", f"-I{include}", "-isystem", "/usr/include/eigen3",
            "-DFMT_HEADER_ONLY=1", "-c", "-o", os.devnull]
    failed = 0
    with tempfile.TemporaryDirectory() as work:
        units = []
        for header in headers:
            unit = pathlib.Path(work) / (header.replace("/", "_") + ".cpp")
            unit.write_text(f'#include "{header}"\n')
            units.append((header, unit))
        if not options.headers:
            extracted = subprocess.run([root / "scripts/extract-examples", f"{work}/readme", root / "README.md"],
                                       capture_output=True, text=True, check=True)
            units += [(f"README.md: {name}", pathlib.Path(work) / "readme" / f"{name}.cpp")
                      for name in extracted.stdout.split()]
        for name, unit in units:
            command = base + [str(unit)]
            if "comm/mpi.hpp" in name or "comm/mpi.hpp" in unit.read_text():
                if mpi.returncode != 0:
                    continue
                command += mpi.stdout.split()
            row = measure(command, options.runs)
            failed += row is None
            print(json.dumps({"header": name, **(row or {"error": "does not compile"})}), flush=True)
    return failed > 0


if __name__ == "__main__":
    raise SystemExit(main())
