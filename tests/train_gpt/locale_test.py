"""Whole programs say and write the same under any locale: as it is set in a shell, and as a library may set it that a
program loads (of C and of C++; LD_PRELOAD stands for such a library here)."""

from runs import *

SETS = """
#include <clocale>
#include <cstdio>
#include <locale>
__attribute__((constructor)) static void set() {
  std::setlocale(LC_ALL, "");
  std::locale::global(std::locale(""));
  char number[8];
  std::snprintf(number, sizeof number, "%.1f", 0.5);
  if (number[1] == ',') std::fputs("a comma\\n", stderr);
}
"""
LOCALES = {"fr": "fr_FR", "de": "de_DE"}

folder = work_folder()
compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
if compiler is None or shutil.which("localedef") is None:
    skip("no compiler or no localedef")
for name, source in LOCALES.items():  # of names that no machine has
    if subprocess.run(["localedef", "-i", source, "-f", "UTF-8", folder + "/" + name],
                      capture_output=True).returncode != 0:
        skip("no definitions of locales here (Debian's package locales)")
with open("sets.cpp", "w", encoding="utf-8") as file:
    file.write(SETS)
subprocess.run([compiler, "-shared", "-fPIC", "-o", "sets.so", "sets.cpp"], check=True)


def under(locale, program, *arguments):
    """(exit code, stdout, stderr) in a folder of its own that has text.txt."""
    where = os.path.join(folder, "in." + locale)
    os.makedirs(where, exist_ok=True)
    shutil.copy("text.txt", where)
    line, variables = [os.path.join(BINARIES, program)] + [str(each) for each in arguments], {"LC_ALL": locale}
    if locale in LOCALES:
        variables |= {"LOCPATH": folder}
        line = ["env", "LD_PRELOAD=" + folder + "/sets.so"] + line
    done = subprocess.run(line, capture_output=True, cwd=where, env=environment() | variables, timeout=100)
    err = done.stderr.decode(errors="replace")
    if locale in LOCALES:
        expect(err.startswith("a comma\n"), "the locale was not set: " + err)
        err = err.replace("a comma\n", "")
    return done.returncode, done.stdout.decode(errors="replace"), err


def without_times(text):
    """Without what no two runs have alike: rates, times, and how much memory is free."""
    text = re.sub(r"\d+ tokens/s", "N tokens/s", text)
    return re.sub(r"\d[\d.]*(e[+-]\d+)? ?([kMGTP]?B|s)\b", "N", text)


runs = TINY | {"steps": 4, "ranks": 2, "name": "one", "keep_best": 1, "save_every": 2}
large = TINY | {"steps": 4, "ranks": 2, "name": "large", "layers": 900, "channels": 8192, "heads": 2}
programs = [("train_gpt", as_arguments(runs)), ("train_gpt", as_arguments(large)),
            ("generate", ["runs/one/model", "--tokens", "20", "--temperature", "0.5", "--top-p", "0.9"]),
            ("generate", ["runs/one/model", "--temperature", "0,5"])]
for program, line in programs:
    if not os.path.exists(os.path.join(BINARIES, program)):
        expect(program != "train_gpt", program)
        continue
    wanted, said = None, []
    for locale in ["C"] + list(LOCALES):
        code, out, err = under(locale, program, *line)
        shown = re.findall(r"\d,\d|\d[\u00a0\u202f]\d", out + err)
        said = said if wanted else shown  # what the model or the user has written is not meant
        expect(set(shown) <= set(said), "%s under %s: %s in %s%s" % (program, locale, shown, out, err))
        seen = (code, without_times(out),
                [each for each in without_times(err).splitlines() if each.startswith(program + ":")])
        wanted = wanted or seen
        expect(seen == wanted, "%s %s under %s: %s, not %s" % (program, line, locale, seen, wanted))

# The same bytes of what has no times in it.
for locale in LOCALES:
    theirs = {os.path.relpath(path, "in.C"): bytes for path, bytes in content("in.C/runs/one/model").items()}
    ours = {os.path.relpath(path, "in." + locale): bytes
            for path, bytes in content("in." + locale + "/runs/one/model").items()}
    expect(ours == theirs and ours, "the model under " + locale)
    with open("in.%s/runs/one/summary.json" % locale, encoding="utf-8") as file:
        ours = json.load(file)
    with open("in.C/runs/one/summary.json", encoding="utf-8") as file:
        theirs = json.load(file)
    for name in ("loss_first", "loss_last", "held_out_last", "best_held_out", "state_hash", "model", "optimizer"):
        expect(ours[name] == theirs[name], "%s under %s: %s, not %s" % (name, locale, ours[name], theirs[name]))
finish(folder)
