#!/usr/bin/env python3
"""What the compiled library costs a small network on comm::mpi: the time of a step, from headers alone and compiled.

The same program (small_step/main.cpp) is compiled from headers alone and against trireme::compiled_mpi, with the same
flags. Both run in turns, first one and then the other, so that what else the machine does falls on both. Prints a JSON
object a row: {"ranks", "engine", "headers", "compiled" (median microseconds a step), "ratio" (median of the ratios of
neighbouring runs), "low", "high" (quartiles of the ratios), "pairs"}. Options: --pairs N (15), --steps N a part (2000),
--ranks 1 2, --library FOLDER and --flags as the library was compiled (-O2).
"""

# targets: trireme_compiled trireme_compiled_mpi
# needs: mpi
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

root = pathlib.Path(__file__).resolve().parent.parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--engines", nargs="+", default=["shared", "messages"])
    parser.add_argument("--library", default=os.environ.get("TRIREME_BINARY_DIR", str(root / "build/benchmark")))
    parser.add_argument("--include", default=str(root / "include"))
    parser.add_argument("--flags", default="-O2")
    parser.add_argument("--keep", help="a folder in which the two programs stay, and are not compiled again")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(options.keep or work)
        programs = {"headers": folder / "headers", "compiled": folder / "compiled"}
        base = ["mpicxx", "-std=c++20", *options.flags.split(), f"-I{options.include}", "-isystem",
                "/usr/include/eigen3", "-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX",
                str(root / "benchmarks/small_step/main.cpp")]
        library = ["-DTRIREME_COMPILED", "-DTRIREME_COMPILED_MPI", f"-L{options.library}", "-ltrireme_compiled_mpi",
                   "-ltrireme_compiled"]
        for name, program in programs.items():
            if not program.exists():
                own = library if name == "compiled" else []
                subprocess.run([*base, *own, "-lfmt", "-pthread", "-o", str(program)], check=True)
        for ranks in options.ranks:
            for engine in options.engines:
                seconds = {name: [] for name in programs}
                for pair in range(options.pairs):
                    turns = list(programs.items())
                    for name, program in turns if pair % 2 == 0 else reversed(turns):
                        said = subprocess.run(
                            ["bash", "-c", f'source "{root}/scripts/mpirun.bash"; exec mpirun "$@"', "mpirun", "-n",
                             str(ranks), str(program), str(options.steps), engine],
                            capture_output=True, text=True, check=True)
                        seconds[name].append(float(said.stdout.split()[-1]))
                ratios = [own / plain for own, plain in zip(seconds["compiled"], seconds["headers"])]
                low, _, high = statistics.quantiles(ratios, n=4)
                print(json.dumps({"ranks": ranks, "engine": engine,
                                  **{name: round(statistics.median(of), 2) for name, of in seconds.items()},
                                  "ratio": round(statistics.median(ratios), 3), "low": round(low, 3),
                                  "high": round(high, 3), "pairs": options.pairs}), flush=True)


if __name__ == "__main__":
    main()
