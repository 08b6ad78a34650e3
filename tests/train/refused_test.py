#!/usr/bin/env python3
"""What make_trainer and make_exchange return after their one sentence has every public function of the real ones."""
import pathlib
import re
import sys

train = pathlib.Path(__file__).resolve().parents[2] / "include" / "trireme"


def public_functions(path, name):
    """Names of the public member functions of a class, by its text."""
    text = re.sub(r"//[^\n]*", "", (train / path).read_text(encoding="utf-8"))
    begin = re.search(r"\b(?:class|struct) " + name + r"\b[^;{(]*\{", text)
    body, depth, start = [], 1, begin.end()
    for at in range(start, len(text)):  # what is within braces of its own is a body
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            break
        if depth == 1:
            body.append(text[at])
    public = re.split(r"\b(?:private|protected):", "".join(body))[0]
    names = set(re.findall(r"(?:^|[\s&*])([a-z][a-z_0-9]*)\(", public, re.M))
    names = {each for each in names if not each.endswith("_")}  # members that a constructor makes
    return names - {"base", "sums_in_a_tree"} - {
        "requires", "if", "sizeof", "decltype", "for", "static_assert", "noexcept", name, "operator"}


def missing(real, stand_in):
    return sorted(set.union(*(public_functions(*each) for each in real)) - public_functions(*stand_in))


lacks = [(each, "detail::refused")
         for each in missing([("train/trainer.hpp", "basic_trainer")], ("train/make_trainer.hpp", "refused"))]
lacks += [(each, "detail::refused_exchange") for each in missing(
    [("parallel/distributed_parameters.hpp", "distributed_parameters"), ("parallel/exchange.hpp", "basic_exchange"),
     ("train/own_exchange.hpp", "own_exchange")],
    ("train/detail/slips.hpp", "refused_exchange"))]
for name, where in lacks:
    print(f"{where} lacks {name}(), which the real one has: a program that uses it gets a second error")
if not len(public_functions("train/trainer.hpp", "basic_trainer")) > 25:
    lacks.append("the parser finds too little")
sys.exit(1 if lacks else 0)
