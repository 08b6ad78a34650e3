"""The recipe for Spack, without Spack: its version, variants and arguments are those of the project."""

import os
import pathlib
import re
import sys
import types

root = pathlib.Path(__file__).resolve().parents[2]
said = {"version": [], "variant": [], "depends_on": [], "conflicts": [], "license": []}


def directive(name):
    return lambda what, **words: said[name].append((what, words))


def define(name, value):
    return f"-D{name}={('OFF', 'ON')[value] if isinstance(value, bool) else value}"


class Spec:
    def __init__(self, *on):
        self.on = on

    def satisfies(self, what):
        return what[1:] in self.on

    def __getitem__(self, name):
        return types.SimpleNamespace(package=types.SimpleNamespace(cmake_prefix_paths=["/site/torch/share/cmake"]))


def ancestor(path, levels):
    return ancestor(os.path.dirname(path), levels - 1) if levels else path


package = types.ModuleType("spack.package")
package.CMakePackage = type("CMakePackage", (), {"define": staticmethod(define)})
package.ancestor = ancestor
for each in said:
    setattr(package, each, directive(each))
sys.modules["spack"] = types.ModuleType("spack")
sys.modules["spack.package"] = package

names = {}
exec(compile((root / "packaging/spack/package.py").read_text(), "package.py", "exec"), names)


def expect(condition, sentence):
    if not condition:
        sys.exit(sentence)


version = re.search(r'TRIREME_VERSION "([0-9.]+)"', (root / "include/trireme/version.hpp").read_text()).group(1)
expect([each for each, _ in said["version"]] == [version], f"package.py has {said['version']}, version.hpp {version}")

text = (root / "CMakeLists.txt").read_text()
options = set(re.findall(r'^option\(TRIREME_([A-Z0-9]+) "(?:Look for|Build, offer)', text, re.M)) | {"CUDA", "TORCH"}
variants = {each.upper() for each, _ in said["variant"]}
expect(variants == options | {"NCCL"}, f"variants {sorted(variants)} are not options {sorted(options)}")

libraries = {words["when"][1:].upper() for _, words in said["depends_on"] if "when" in words}
expect(libraries == variants - {"COMPILED"}, f"variants {sorted(variants)} bring {sorted(libraries)}")

recipe = names["Trireme"]()
for on in [(), *((each.lower(),) for each in options), tuple(each.lower() for each in options)]:
    recipe.spec = Spec(*on)
    args = recipe.cmake_args()
    for each in options:
        wanted = f"-DTRIREME_{each}={'ON' if each.lower() in on else 'OFF'}"
        expect(wanted in args, f"with {on} the arguments {args} lack {wanted}")
    expect(("-DTRIREME_TORCH_ROOT=/site/torch" in args) == ("torch" in on), f"with {on}: {args}")
    for each in args:
        expect(re.search(rf"(option|set)\({each[2:].split('=')[0]} ", text + (root / "cmake/torch.cmake").read_text()),
               f"{each} is not an option")
