#!/usr/bin/env python3
"""docs/settings.md lists the options of CMake and the environment variables that programs read, and no others."""

import re
import sys
from pathlib import Path

root = Path(__file__).resolve().parents[2]
page = (root / "docs/settings.md").read_text(encoding="utf-8")
problems = []


def listed(title):
    part = page.split(f"## {title}\n")[1].split("\n## ")[0]
    return {name for line in part.splitlines() if line.startswith("| `")
            for name in re.findall(r"`(TRIREME_[A-Z0-9_]+)`", line.split("|")[1])}


def compare(what, found, said):
    if found - said:
        problems.append(f"docs/settings.md lacks {what}: {', '.join(sorted(found - said))}")
    if said - found:
        problems.append(f"docs/settings.md has {what} that are not there: {', '.join(sorted(said - found))}")


files = [root / "CMakeLists.txt", *(root / "cmake").glob("*.cmake")]
cmake = "\n".join(path.read_text(encoding="utf-8") for path in files)
options = set(re.findall(r"^option\((TRIREME_\w+)", cmake, re.M))
options |= set(re.findall(r"set\((TRIREME_\w+)[^()]*?CACHE (?:STRING|PATH)", cmake))
compare("options", options, listed("Options of CMake"))

readers = "getenv|environment_variable|has|word|required|rank_and_size|place_locally|variable|number"
read = re.compile(rf"(?:{readers})\(([^;{{}}]*?)\)")
variables = set(re.findall(r"\bTRIREME_LIBEXEC\b", (root / "packaging/program/trireme").read_text(encoding="utf-8")))
for path in (root / "include").rglob("*.[hipc]*"):
    for call in read.findall(path.read_text(encoding="utf-8")):
        variables |= set(re.findall(r'"(TRIREME_[A-Z0-9_]+)"', call))
compare("variables", variables, listed("Environment variables"))

sys.exit("\n".join(problems) or 0)
