#!/usr/bin/env python3
"""The cost of including a header: CPU seconds of g++ -O2 for every public header and for the programs of README.md.

Headers and programs are compiled in both ways: from headers alone, and with trireme::compiled (bodies in a library).
Without options also: Eigen alone, torch/torch.h and dlib/dnn.h, if they are installed.
Prints one JSON object per row: {"header", "way", "seconds" (user and system, minimum of the runs), "megabytes" (peak
memory of the compiler)}. Options: --runs N (default 3), --compiler NAME, --short (the umbrella and the programs only),
and names of headers to measure instead of all.
"""

# targets: none
# needs: mpi dlib
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

root = pathlib.Path(__file__).resolve().parent.parent


def measure(command, runs):
    seconds, megabytes = float("inf"), 0.0
    for _ in range(runs):
        process = subprocess.Popen(command)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            return None
        # CPU time of all processes that the driver started: other work on the machine has little influence.
        seconds = min(seconds, usage.ru_utime + usage.ru_stime)
        megabytes = max(megabytes, usage.ru_maxrss / 1024)
    return {"seconds": round(seconds, 2), "megabytes": round(megabytes, 1)}


def torch_flags():
    """How a program includes torch/torch.h: from a wheel (of TRIREME_PYTHON, or this Python), or libtorch-dev."""
    folders = []
    for python in (os.environ.get("TRIREME_PYTHON"), sys.executable):
        if python:
            found = subprocess.run([python, "-c", "import importlib.util as u; s = u.find_spec('torch'); "
                                    "print(s.submodule_search_locations[0] if s else '')"],
                                   capture_output=True, text=True, check=False).stdout.strip()
            folders += [pathlib.Path(found) / "include"] if found else []
    for include in [*folders, pathlib.Path("/usr/include")]:
        api = include / "torch/csrc/api/include"
        if (api / "torch/torch.h").exists():
            # Not /usr/include itself: named here, it would come before the headers that go with the compiler.
            own = [] if include == pathlib.Path("/usr/include") else ["-isystem", str(include)]
            return [*own, "-isystem", str(api)]
    return None


def peers():
    """(name, line, flags) of what is compared with; one that is missing is left out with a line."""
    yield "Eigen/Core", "#include <Eigen/Core>\n", []
    flags = torch_flags()
    if flags is None:
        print("compile: torch/torch.h is not here and is left out", file=sys.stderr)
    else:
        yield "torch/torch.h", "#include <torch/torch.h>\n", flags
    if not pathlib.Path("/usr/include/dlib/dnn.h").exists():
        print("compile: dlib/dnn.h is not here (libdlib-dev) and is left out", file=sys.stderr)
    else:
        yield "dlib/dnn.h", "#include <dlib/dnn.h>\n", []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("headers", nargs="*", help="as in #include, for instance trireme/core/tensor.hpp")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--short", action="store_true")
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    include = root / "include"
    headers = options.headers or (["trireme/trireme.hpp"] if options.short else sorted(
        str(path.relative_to(include)) for path in include.rglob("*.hpp") if "detail" not in path.parts))
    mpi = subprocess.run(["mpicxx", "--showme:compile"], capture_output=True, text=True, check=False)
    base = [options.compiler, "-std=c++20", "-O2", f"-I{include}", "-isystem", "/usr/include/eigen3", "-c", "-o",
            os.devnull]
    failed = 0

    def row(name, way, command):
        nonlocal failed
        result = measure(command, options.runs)
        failed += result is None
        print(json.dumps({"header": name, "way": way, **(result or {"error": "does not compile"})}), flush=True)

    with tempfile.TemporaryDirectory() as work:
        units = []
        for header in headers:
            unit = pathlib.Path(work) / (header.replace("/", "_") + ".cpp")
            unit.write_text(f'#include "{header}"\n', encoding="utf-8")
            units.append((header, unit))
        if not options.headers:
            extracted = subprocess.run([root / "scripts/extract-examples", f"{work}/readme", root / "README.md"],
                                       capture_output=True, text=True, check=True)
            units += [(f"README.md: {name}", pathlib.Path(work) / "readme" / f"{name}.cpp")
                      for name in extracted.stdout.split()]
        for name, unit in units:
            command = base + [str(unit)]
            if "comm/mpi.hpp" in name or "comm/mpi.hpp" in unit.read_text(encoding="utf-8"):
                if mpi.returncode != 0:
                    continue
                command += mpi.stdout.split()
            row(name, "headers", command)
            row(name, "compiled", command + ["-DTRIREME_COMPILED"])
        if not options.headers:
            for name, line, flags in peers():
                unit = pathlib.Path(work) / "peer.cpp"
                unit.write_text(line, encoding="utf-8")
                row(name, "peer", base + flags + [str(unit)])
    return failed > 0


if __name__ == "__main__":
    raise SystemExit(main())
