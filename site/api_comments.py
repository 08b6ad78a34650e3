"""api_comments.py FROM TO: copies the public headers below FROM to TO, with doc comments of the project's form
(CONTRIBUTING.md) rewritten as Doxygen's commands. Lines keep their numbers."""

import re
import sys
from pathlib import Path

commands = {"param", "tparam", "returns", "return", "see", "p", "ref"}
behind = re.compile(r"^(.*\S\s*///< ?)(.*)$")
comment = re.compile(r"^(\s*)///(?!/) ?(.*)$")
label = re.compile(r"^([A-Z][a-z]+)(?: {2,}|(?<=Numerics) )(\S.*)$")


def escaped(text):
    """Text in which only code spans and our commands mean something to Doxygen."""
    named = re.match(r"\s*@(t?param(?:\[\w+\])?\s+\w+(?:,\s*\w+)*|see\s+\w+(?!\s+\w))", text)
    if named:
        return named[0] + escaped(text[named.end():])
    parts = re.split(r"(`[^`]*`|\"[^\"]*\")", text)
    for i, part in enumerate(parts):
        if part.startswith("`"):
            if re.search(r"[<>\\@&*]", part):  # Doxygen reads tags and commands in code spans, too
                inside = re.sub(r"[\\@#<>&]|(?<=>)::", lambda found: "\\" + found[0], part[1:-1])
                parts[i] = f"<code>{inside}</code>"
            continue
        part = re.sub(r"[\\<>#]|(?<=>)::", lambda found: "\\" + found[0], part)
        if i % 2 == 0:
            # A word is a link only with a scope or an underscore: `data` or `product` is seldom meant as a name.
            part = re.sub(r"(?<!\S)[a-z]{2,}(?=[\s.,;)]|:?$|: )", lambda found: "%" + found[0], part)
            part = re.sub(r"(@t?param\s+)%", r"\1", part)
        parts[i] = re.sub(r"@(\w*)", lambda found: ("" if found[1] in commands else "\\") + found[0], part)
    return "".join(parts)


def rewritten(block):
    """The texts of one comment's lines, as Doxygen reads them."""
    out = []
    in_example = False
    in_code = False
    for i, text in enumerate(block):
        # Indented by four spaces after an empty line: code, which Doxygen shows as it is.
        in_code = text.startswith("    ") and (in_code or (i > 0 and not block[i - 1].strip()))
        if in_code:
            out.append(text)
            continue
        starts = not text.strip() or text.startswith("@") or label.match(text)
        if in_example and not starts:
            out.append(re.sub(r"^ {1,9}", "", text))  # as far as the code behind "@example "
        elif example := re.match(r"@example\s+(.*)", text):
            in_example = True
            out.append(f"@sample {example[1]}")
        else:
            in_example = False
            models = re.match(r"@models\s+(.*)", text)
            named = label.match(text)
            if models or named:
                name, rest = ("Models", models[1]) if models else (named[1], named[2])
                out.append(f"@labelled{{{name}}} " + escaped(rest).replace(" @see", " @also"))
            else:
                out.append(("@brief " if i == 0 and not starts else "") + escaped(text))
        last = i + 1 == len(block)
        if in_example and (last or not block[i + 1].strip() or block[i + 1].startswith("@") or label.match(block[i + 1])):
            out[-1] += " @endcode"
    return out


def header(text):
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        end = at
        while end < len(lines) and comment.match(lines[end]):
            end += 1
        if end > at:
            found = [comment.match(line) for line in lines[at:end]]
            for k, new in enumerate(rewritten([each[2] for each in found])):
                lines[at + k] = f"{found[k][1]}/// {new}".rstrip()
        elif found := behind.match(lines[at]):
            lines[at] = found[1] + escaped(found[2])
        at = max(end, at + 1)
    return "\n".join(lines)


def main():
    source, target = map(Path, sys.argv[1:])
    for path in sorted(source.rglob("*.hpp")):
        if "detail" in path.relative_to(source).parts:
            continue
        to = target / path.relative_to(source)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(header(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
