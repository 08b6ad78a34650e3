"""undocumented.py LOG: reads Doxygen's warnings (WARN_IF_UNDOCUMENTED) and prints those that the project's rule is about,
as FILE:LINE: error: ...; the exit code is then 1.

The rule: every class, struct, concept and enumeration, and every function, variable and type of a namespace has a
comment; declarations without an empty line between them may share one. Members may go without, since names say what most
are, and so may an overload of a name that has a comment in the same header, what every type has (to_string, name_of, and
how a layer is written as ONNX), and deduction guides.
"""

import re
import sys
from pathlib import Path

of_every_type = {"to_string", "name_of", "onnx_nodes", "in_onnx", "append_nodes", "TORCH_MODULE_IMPL"}
warning = re.compile(r"^(.*?):(\d+): warning: (?:Member (.+?) (?:\(.+\) )?of (namespace|file) \S+|(?:Compound|Concept) (\S+)) "
                     r"is not documented\.$")


def has_comment(text, name):
    """Whether a declaration of that name has a comment: in the lines above it as far as an empty one, or beside it."""
    for found in re.finditer(rf"(?<![\w:.>]){re.escape(name)}(?!\w)", text):
        line = text.rfind("\n", 0, found.start()) + 1
        if re.match(r"\s*(//|return\b|throw\b|if\b|for\b|\}|[\w.]+\()", text[line:found.end()]):
            continue
        block = text[text.rfind("\n\n", 0, line) + 2:text.find("\n", found.end())]
        if "///" in block:
            return True
    return False


def main():
    found = []
    for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
        match = warning.match(line)
        if not match:
            continue
        path, number, member, _, compound = match.groups()
        name = re.split(r"[\s(<\[]", member or compound)[0].split("::")[-1]
        text = Path(path).read_text(encoding="utf-8")
        guide = member and "->" in member
        if name in of_every_type or guide or has_comment(text, name):
            continue
        found.append(f"{path}:{number}: error: {member or compound} has no comment")
    if found:
        print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
