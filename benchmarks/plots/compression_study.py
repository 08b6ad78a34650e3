#!/usr/bin/env python3
"""The rows of examples/compression_study as a table in Markdown, and as bars.

    build/release/examples/compression_study > rows
    python3 benchmarks/plots/compression_study.py rows [--plot FILE.svg]
"""

import json
import pathlib
import sys

from bars import bars

MODELS = ("gpt", "classifier")


def named(row):
    own = row["codec"].startswith("power_sgd")  # feedback is part of it
    return row["codec"] + (", with feedback" if row["feedback"] and not own else "")


def main(words):
    rows = [json.loads(line) for line in pathlib.Path(words[0]).read_text().splitlines() if line.startswith("{")]
    models = [each for each in MODELS if any(row["model"] == each for row in rows)]
    found = {(named(row), row["model"]): row for row in rows}
    names = list(dict.fromkeys(named(row) for row in rows))
    print("| codec | " + " | ".join("%s: steps, MB, loss" % each for each in models) + " |")
    print("|---" * (1 + len(models)) + "|")
    for name in names:
        cells = []
        for model in models:
            row = found.get((name, model))
            if row is None:
                cells.append("-")
            elif row["steps_to_target"] is None:
                cells.append("not reached, %.3g, %.3f" % (row["megabytes_to_target"], row["loss"]))
            else:
                cells.append("%d, %.3g, %.3f" % (row["steps_to_target"], row["megabytes_to_target"], row["loss"]))
        print("| %s | %s |" % (name, " | ".join(cells)))
    if "--plot" in words:
        def megabytes(name, model):
            row = found.get((name, model))
            return row["megabytes_to_target"] if row and row["steps_to_target"] is not None else None
        groups = [(name, [megabytes(name, model) for model in models]) for name in names]
        picture = bars("Sent until the target loss (-: not reached)", groups, models, " MB")
        pathlib.Path(words[words.index("--plot") + 1]).write_text(picture)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] == "--help":
        sys.exit(__doc__)
    main(sys.argv[1:])
