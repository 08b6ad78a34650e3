#!/usr/bin/env python3
# test-timeout: 240
# test-takes: 30
"""The site that scripts/docs builds, in a browser without a network: every page has text, is no wider than a telephone
and fetches nothing from elsewhere; the search finds names, with a server and in files; colours change to dark. Broken
links, anchors and parameters are errors of scripts/docs."""

import contextlib
import functools
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

root = Path(__file__).resolve().parents[2]

# A page that opens the site's pages in frames, as wide as a telephone or a desk's screen, and reports what it sees.
driver = """<!doctype html><meta charset="utf-8"><body><script>
const pages = PAGES, report = { pages: {}, elsewhere: [] };
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
async function until(test) {
  for (let i = 0; i < 400; ++i) {
    const found = test();
    if (found) return found;
    await wait(25);
  }
  return null;
}
async function open(page, width) {
  const frame = document.createElement("iframe");
  frame.style = `width: ${width}px; height: 800px`;
  const loaded = new Promise((done) => frame.addEventListener("load", done));
  frame.src = page;
  document.body.appendChild(frame);
  await loaded;
  return frame;
}
async function look(page) {
  const frame = await open(page, 390);
  const inside = frame.contentDocument;
  report.pages[page] = {
    width: Math.max(inside.documentElement.scrollWidth, inside.body.scrollWidth),
    text: (inside.querySelector("article, .contents")?.innerText ?? "").trim().length,
  };
  for (const each of frame.contentWindow.performance.getEntriesByType("resource"))
    if (/^https?:/.test(each.name) && !each.name.startsWith(location.origin)) report.elsewhere.push(each.name);
  frame.remove();
}
async function search(word) {
  const frame = await open("index.html", 1300);
  const inside = frame.contentDocument;
  const input = await until(() => inside.querySelector("[data-md-component=search-query]"));
  const toggle = inside.querySelector("#__search");
  if (!toggle.checked) toggle.click();
  input.focus();
  input.value = word;
  input.dispatchEvent(new frame.contentWindow.KeyboardEvent("keyup", { bubbles: true }));
  const first = await until(() => inside.querySelector(".md-search-result__link"));
  report.search = first && first.getAttribute("href");
  report.found = inside.querySelectorAll(".md-search-result__item").length;
  frame.remove();
}
async function colours() {
  const frame = await open("index.html", 1300);
  const inside = frame.contentDocument;
  const style = frame.contentWindow.getComputedStyle(inside.body);
  const look = () => [inside.body.dataset.mdColorScheme, style.backgroundColor];
  report.colours = [look()];
  const shown = [...inside.querySelectorAll("form[data-md-component=palette] label")].find((each) => !each.hidden);
  shown.click();
  await wait(100);
  report.colours.push(look());
  frame.remove();
}
(async () => {
  try {
    await search("make_trainer");
    await colours();
    for (const page of pages) await look(page);
  } catch (error) {
    report.error = String(error);
  }
  console.log("REPORT " + JSON.stringify(report) + " TROPER");
})();
</script>"""


def skip(reason):
    print("skipped:", reason)
    sys.exit(77)


def python_with_mkdocs():
    for python in (sys.executable, root / "build/venv/bin/python"):
        command = [python, "-c", "import material, mkdocs"]
        if Path(python).exists() and subprocess.run(command, capture_output=True).returncode == 0:
            return str(python)
    skip("mkdocs-material is missing; scripts/docs installs it")


def build(project, site, python):
    done = subprocess.run([project / "scripts/docs", "--no-install", "--output", site], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, env={**os.environ, "TRIREME_PYTHON": python})
    return done.returncode, done.stdout


def missed_faults(folder, python):
    """Faults put into a copy of the project that scripts/docs does not report."""
    project = folder / "project"
    project.mkdir()
    for name in ("docs", "include", "site", "scripts"):
        shutil.copytree(root / name, project / name)
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"):
        shutil.copy(root / name, project)
    plan = project / "docs/plan.md"
    sound = plan.read_text(encoding="utf-8")
    faults = "\n[a](no_page.md) [b](design.md#no-anchor) [c](../examples/no_program.cpp)\n"
    plan.write_text(sound + faults, encoding="utf-8")
    (project / "docs/unlisted.md").write_text("# A page\n", encoding="utf-8")
    status, said = build(project, folder / "broken", python)
    for name in ("no_page.md", "no-anchor", "no_program.cpp", "unlisted.md"):
        if status == 0 or name not in said:
            yield f"scripts/docs does not report {name}:\n{said}"
    header = project / "include/trireme/version.hpp"
    wrong = ("namespace trireme {\n/// Nothing.\n/// @param missing  is not there.\nvoid nothing(int present);\n\n"
             "void without_a_word();\n}\n")
    header.write_text(header.read_text(encoding="utf-8") + wrong, encoding="utf-8")
    status, said = build(project, folder / "broken", python)
    if status == 0 or not re.search(r"version\.hpp:\d+: error: argument 'missing'", said):
        yield f"scripts/docs does not report a parameter that is not there:\n{said}"
    if not re.search(r"version\.hpp:\d+: error: without_a_word.* has no comment", said):
        yield f"scripts/docs does not report a function without a comment:\n{said}"
    occupied = folder / "occupied"
    occupied.mkdir()
    (occupied / "own.txt").write_text("keep", encoding="utf-8")
    status, said = build(project, occupied, python)
    if status != 2 or not (occupied / "own.txt").exists():
        yield f"scripts/docs writes over a folder that is not a site:\n{said}"


def browse(browser, address, folder):
    """What the driver reports at an address, on the browser's console."""
    command = [browser, "--headless=new", "--disable-gpu", "--no-first-run", "--disable-background-networking",
               "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", f"--user-data-dir={folder}",
               "--allow-file-access-from-files", "--window-size=1400,1000", "--enable-logging=stderr",
               "--remote-debugging-port=0"]  # without the last the browser ends at once
    if os.geteuid() == 0:
        command.append("--no-sandbox")
    log = []
    with subprocess.Popen([*command, address], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          start_new_session=True) as running:
        end = lambda: os.killpg(running.pid, signal.SIGKILL)
        timer = threading.Timer(90, end)
        timer.start()
        try:
            for line in running.stderr:
                log.append(line)
                found = re.search(r'REPORT (.*) TROPER', line)
                if found:
                    return json.loads(found[1])
        finally:
            timer.cancel()
            with contextlib.suppress(ProcessLookupError):
                end()
    sys.exit(f"{address}: the browser reports nothing\n{''.join(log)[-3000:]}")


def faults(where, report, pages):
    if "error" in report:
        yield f"{where}: {report['error']}"
        return
    if not report["search"] or report["found"] < 3:
        yield f"{where}: the search for make_trainer finds {report['found']} pages"
    schemes = [scheme for scheme, _ in report["colours"]]
    if sorted(schemes) != ["default", "slate"] or report["colours"][0][1] == report["colours"][1][1]:
        yield f"{where}: the colours before and after the toggle are {report['colours']}"
    for address in report["elsewhere"]:
        yield f"{where}: fetches {address}"
    for page in pages:
        seen = report["pages"].get(page, {"text": 0, "width": 0})
        if seen["text"] < 100:
            yield f"{where}: {page} has no text"
        if seen["width"] > 390:
            yield f"{where}: {page} is {seen['width']} pixels wide on a telephone of 390"


def main():
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not browser:
        skip("chromium is missing")
    if not shutil.which("doxygen"):
        skip("doxygen is missing; scripts/docs installs it")
    python = python_with_mkdocs()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        site = Path(folder) / "site"
        status, said = build(root, site, python)
        if status != 0:
            sys.exit(f"scripts/docs failed:\n{said}")
        pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html")
                       if path.relative_to(site).parts[0] != "api" and path.name != "404.html")
        pages += ["api/index.html", "api/namespacetrireme_1_1compression.html"]
        problems = list(missed_faults(Path(folder), python))
        for path in site.rglob("*.html"):
            text = path.read_text(encoding="utf-8")
            for address in re.findall(r'<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)="((?:https?:)?//[^"]*)"',
                                      text):
                problems.append(f"{path.relative_to(site)} fetches {address}")
        for page in set(pages):
            text = (site / page).read_text(encoding="utf-8")
            for address in re.findall(r'<a\b[^>]*\bhref="([^"#?]+)', text):
                if not re.match(r"[a-z]+:", address) and not (site / page).parent.joinpath(address).resolve().exists():
                    problems.append(f"{page} links to {address}, which is not there")

        (site / "driver.html").write_text(driver.replace("PAGES", json.dumps(pages)), encoding="utf-8")

        class quiet(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(quiet, directory=site))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/driver.html"
        problems += faults("served", browse(browser, address, f"{folder}/served"), pages)
        (site / "driver.html").write_text(driver.replace("PAGES", "[]"), encoding="utf-8")
        problems += faults("in files", browse(browser, (site / "driver.html").as_uri(), f"{folder}/files"), [])
        server.shutdown()
    if problems:
        sys.exit("\n".join(problems))
    print(f"{len(pages)} pages are as they should be")


if __name__ == "__main__":
    main()
