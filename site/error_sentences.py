"""error_sentences.py: the page of all error sentences, made of the sources: what headers throw and what the compiler is
told (static_assert and #error). site/hooks.py puts it on the site; each sentence says what is wrong, where, and what to do.
"""

import re
import sys
from pathlib import Path

literal = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
thrown = re.compile(r"\b((?:config|format|comm|io|numeric|assertion|overloaded|sample|memory)?_?error)\s*[({]")


def arguments(text, begin):
    """The text between a parenthesis and its partner, and where it ends."""
    depth = 0
    at = begin
    while at < len(text):
        found = literal.match(text, at) if text[at] == '"' else None
        if found:
            at = found.end()
            continue
        if text[at] in "([{":
            depth += 1
        elif text[at] in ")]}":
            depth -= 1
            if depth == 0:
                return text[begin + 1:at], at
        at += 1
    return text[begin + 1:], len(text)


def counted(argument):
    """how_many(n, "rank") is "… ranks"; of agreeing(n, "has", "have") the second word stands."""
    while found := re.search(r"\b(how_many|agreeing)\s*\(", argument):
        inside, end = arguments(argument, found.end() - 1)
        words = literal.findall(inside)
        said = words[-1] if found[1] == "agreeing" and words else f"… {words[0]}s" if words else "…"
        argument = f'{argument[:found.start()]}"{said}"{argument[end + 1:]}'
    return argument


def sentence(argument):
    """The words of an expression that makes a sentence; what is computed is an ellipsis."""
    argument = counted(argument)
    out = []
    rest = 0
    for found in literal.finditer(argument):
        if re.search(r"\w", re.sub(r"\b(text|fmt::format|std::string|how_many)\b", "", argument[rest:found.start()])):
            out.append("…")
        out.append(re.sub(r"\\(.)", lambda each: {"n": " "}.get(each[1], each[1]), found[1]))
        rest = found.end()
    if re.search(r"\w", argument[rest:]):
        out.append("…")
    words = re.sub(r"…(\s*…)+", "…", "".join(out))
    return re.sub(r"\s+", " ", words).strip()


def sentences(text):
    """Pairs of a kind of error and its sentence, in the order of a source."""
    code = re.sub(r"(?m)^\s*//.*$|(?<=[;{}]) *//.*$", "", text)
    for found in re.finditer(r"(?m)^#error((?:.*\\\n)*.*)", code):
        yield "compiler", sentence(found[1].replace("\\\n", " "))
    for found in re.finditer(r"\bstatic_assert\s*\(", code):
        inside, _ = arguments(code, found.end() - 1)
        said = sentence(",".join(re.split(r',\s*(?=")', inside, maxsplit=1)[1:]))
        yield "compiler", said
    for found in re.finditer(r"(?<!define )\bTRIREME_RULE\s*\(", code):
        inside, _ = arguments(code, found.end() - 1)
        words = re.match(r'\s*\w+,\s*"[^"]*",((?:\s*"(?:[^"\\]|\\.)*")+),((?:\s*"(?:[^"\\]|\\.)*")+)', inside)
        if words:
            yield "compiler", f"trireme: {sentence(words[1])}; {sentence(words[2])}"
    for found in re.finditer(r"(?<![\w.:>])(?:fail|refuse)\s*\(", code):
        inside, _ = arguments(code, found.end() - 1)
        yield "error", sentence(inside)
    for found in thrown.finditer(code):
        if re.match(r"\s*(class|struct)\b", code[code.rfind("\n", 0, found.start()) + 1:found.start()]):
            continue
        inside, _ = arguments(code, found.end() - 1)
        yield found[1], sentence(inside)


def page(root):
    kinds = {}
    count = 0
    for path in sorted((root / "include/trireme").rglob("*")):
        if path.suffix not in (".hpp", ".ipp", ".inl", ".cpp", ".cu"):
            continue
        name = path.relative_to(root / "include/trireme").as_posix()
        room = name.split("/")[0] if "/" in name else "trireme"
        found = list(dict.fromkeys(pair for pair in sentences(path.read_text(encoding="utf-8"))
                                   if len(re.findall(r"[A-Za-z]{2,}", pair[1])) >= 4))
        if found:
            kinds.setdefault(room, []).append((name, found))
            count += len(found)
    out = ["# Error sentences", "",
           f"What the library says when something is wrong: {count} sentences, by the header that says them. Each one says "
           "what is wrong, where, and what to do; `…` stands for what is known only then: names, numbers, ranks. Search this "
           "page for words of the sentence that you have seen.", "",
           "`config_error` is a description or a call that cannot work, `format_error` a file that is not what it should be "
           "(with path and byte), `io_error` what the system refused (with path), `comm_error` ranks that failed, are late or "
           "do not agree, `numeric_error` numbers that are not finite, `compiler` an error while compiling.", ""]
    for room, headers in kinds.items():
        out += [f"## {room}", ""]
        for name, found in headers:
            out += [f"### {name}", "", "| error | sentence |", "|---|---|"]
            for kind, said in found:
                code = said.replace("|", "\\|")
                ticks = "``" if "`" in code else "`"
                out.append(f"| {kind} | {ticks}{' ' if ticks == '``' else ''}{code}{' ' if ticks == '``' else ''}{ticks} |")
            out.append("")
    return "\n".join(out)


if __name__ == "__main__":
    print(page(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parents[1])))
