"""presets.py [--only WORD]: every preset of train_gpt trains, is killed once and resumed bit for bit, and stands in the
table of docs/composition.md, or is refused in one sentence.

The presets are each value of --parallel, --precision, --optimizer and --model, and each value of --compression under
data, zero1 and diloco. Of each a run is trained to its end, and another is killed by SIGKILL after its first checkpoint
and resumed: both must have one state. What the program refuses is tried, too, and must say so in one line; so must
what the table refuses. A line of JSON each; the last line counts, and the exit code is 1 if anything was otherwise.
"""

import argparse

from runs import *

TABLE = os.path.join(os.environ.get("TRIREME_SOURCE_DIR", os.path.join(os.path.dirname(__file__), "..", "..")), "docs",
                     "composition.md")
EXPERTS = {"experts": 4, "experts_a_token": 2}
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zbh1", "zbv", "dualpipe", "dualpipev")
CODECS = ("none", "bf16", "int8", "int4", "int2", "sign", "random_k", "top_k", "top_k_sampled", "dgc", "power_sgd")
# How the table calls them: those with error feedback are all of one kind.
IN_TABLE = {"none": "none", "bf16": "cast<bf16>", "int8": "quantise<8>", "int4": "quantise<8>",
            "power_sgd": "power_sgd"}
FED = "error_feedback<compression::top_k>"


def presets():
    """(axes of the table, options)."""
    for name in ("data", "zero1", "zero2", "zero3", "tensor", "context", "context:ring", "context:ulysses"):
        yield name.split(":")[0], {"parallel": name}
    yield "diloco", {"parallel": "diloco:4"}
    yield "parameter_server", {"parallel": "parameter_server:1"}
    yield "tensor, sequence", {"parallel": "sequence"}
    yield "expert", {"parallel": "expert"} | EXPERTS
    for name in SCHEDULES:
        yield "pipeline", {"parallel": "pipeline:" + name, "layers": 6}
    yield "diloco, tensor", {"parallel": "diloco:4,tensor=2", "ranks": 4}
    yield "zero1, diloco", {"parallel": "diloco:4,zero1=2", "ranks": 4}
    for name in ("bf16", "fp16", "fp8", "mxfp8", "nvfp4"):
        yield "data", {"precision": name}
    for name in ("sgd", "muon", "adafactor", "lamb", "adamw8"):
        yield "zero1", {"optimizer": name, "parallel": "zero1"}
    for name in ("llama", "deepseek"):
        yield "data", {"model": name, "dropout": None}
    for parallel in ("data", "zero1", "diloco:4"):
        for name in CODECS[1:]:
            more = {"optimizer": "sgd"} if name == "dgc" else {}
            yield parallel.split(":")[0], {"parallel": parallel, "compression": name} | more


def refusals():
    """(what the sentence has, options)."""
    for parallel in ("zero2", "zero3", "parameter_server", "tensor", "context", "pipeline:1f1b"):
        yield "--compression works only with", {"parallel": parallel, "compression": "int8"}
    for name in ("muon", "adafactor", "lamb", "adamw8"):
        yield "needs whole tensors", {"parallel": "tensor", "optimizer": name}
    yield "momentum", {"compression": "dgc"}
    yield "two", {"parallel": "data,data=2", "ranks": 4}


def table():
    """{axes: the cell of models in units}."""
    with open(TABLE, encoding="utf-8") as file:
        rows = [line.split(" | ") for line in file if line.startswith("| ")]
    return {row[0][2:]: row[1] for row in rows if len(row) > 2}


def works(cell, codec):
    """Whether the table's cell lets this codec train."""
    if cell == "works":
        return True
    name = "`%s`" % IN_TABLE.get(codec, FED)
    return any(name in part and part.endswith("works") for part in re.split("; |<br>", cell))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only presets whose line has this word")
    only = parser.parse_args().only
    folder = work_folder()
    cells, trained, killed, refused = table(), 0, 0, 0
    for axes, options in presets():
        row = " ".join(as_arguments(options))
        if only not in row:
            continue
        chosen = {"steps": 30} | options
        ranks = chosen.pop("ranks", 2)
        cell = cells.get(axes, "no row")
        expect(works(cell, options.get("compression", "none")), "%s: the table says %s" % (row, cell))
        whole = train("whole", ranks, **chosen)
        found, early = train_killed("killed", ranks, **chosen)
        same = found["state_hash"] == whole["state_hash"]
        expect(same, "%s: another state after the kill" % row)
        expect(whole["held_out_last"] < whole["held_out_first"], "%s does not learn: %r" % (row, whole))
        trained, killed = trained + 1, killed + early
        print(json.dumps({"preset": row, "ranks": ranks, "table": "works", "killed": early, "same_state": same,
                          "held_out": [round(whole[key], 4) for key in ("held_out_first", "held_out_last")]}),
              flush=True)
        for name in ("whole", "killed"):
            shutil.rmtree("runs/" + name)
    for sentence, options in refusals():
        row = " ".join(as_arguments(options))
        if only not in row:
            continue
        chosen = dict(options)
        code, _, err = attempt("refused", chosen.pop("ranks", 2), **chosen)
        said = sentences(err)
        expect(code != 0 and len(said) == 1 and sentence in said[0], "%s: %d, %r" % (row, code, err))
        refused += 1
        print(json.dumps({"preset": row, "refused": said[:1]}), flush=True)
    print(json.dumps({"trained": trained, "killed": killed, "refused": refused, "failures": len(failures)}), flush=True)
    finish(folder)


if __name__ == "__main__":
    main()
