"""What MkDocs does besides its own work, for scripts/docs: the tree of its pages, links of GitHub's kind, and lists and
tables as GitHub reads them."""

import html
import os
import posixpath
import re
import sys
from pathlib import Path

from mkdocs.structure.files import File, InclusionLevel

root = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(root / "site"))
import error_sentences  # noqa: E402  beside this file

# Pages of the site that are not at the same place below docs/.
moved = {
    "README.md": "index.md",
    "docs/README.md": "all_pages.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
origin = {page: path for path, page in moved.items()}
languages = {".hpp": "cpp", ".ipp": "cpp", ".cpp": "cpp", ".cu": "cpp", ".py": "python", ".cmake": "cmake",
             ".json": "json", ".sh": "bash", ".bash": "bash", ".md": "markdown", ".yml": "yaml"}

link = re.compile(r"(`+)(?:(?!`).)+\1(?!`)|(?P<before>\]\()(?P<path>[^)\s#]+)(?P<rest>(#[^)\s]*)?(\s+\"[^\"]*\")?\))")


def page_of(path):
    """The page of a file or folder of the project, relative to the site; None if there is no such file."""
    if path in moved:
        return moved[path]
    if not (root / path).exists() or path.startswith(("..", "build/")):
        return None
    if (root / path).is_dir():
        inside = posixpath.join(path, "README.md")
        return page_of(inside) if (root / inside).exists() else f"files/{path}/README.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"files/{path}.md"


def target(path, source):
    """The path that a link in the file `source` leads to, relative to the project; None for other addresses."""
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:|/", path):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), path))


def outside_code(markdown):
    """Pairs of a line and whether it is text, not code in a fence."""
    fence = None
    for line in markdown.split("\n"):
        mark = re.match(r" {0,3}(`{3,}|~{3,})", line)
        if fence is None and mark:
            fence = mark[1]
            yield line, False
        elif fence is not None:
            if mark and mark[1].startswith(fence) and line.strip() == mark[1]:
                fence = None
            yield line, False
        else:
            yield line, True


def linked(markdown, source):
    """The project's files that a page links to."""
    for line, text in outside_code(markdown):
        for found in link.finditer(line) if text else ():
            path = found["path"] and target(found["path"], source)
            if path is not None:
                yield path


def on_config(config):
    from markdown.extensions.toc import TocExtension  # noqa: F401  the settings below are its own

    def slug(text, separator):  # GitHub's anchors
        return re.sub(r"[^\w\- ]", "", html.unescape(re.sub(r"<[^>]*>", "", text)).strip().lower()).replace(" ", separator)

    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    decisions = sorted(path.name for path in (root / "docs/adr").glob("*.md"))
    for part in config.nav:
        for entry in part.get("Background", []):
            if "Decisions" in entry:
                entry["Decisions"] = [f"adr/{name}" for name in ["README.md", *(n for n in decisions if n != "README.md")]]
    return config


def text_page(path):
    """A page that shows a file of the project."""
    text = (root / path).read_text(encoding="utf-8", errors="replace")
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`{3,}", text))])
    head = f"---\nsearch:\n  exclude: true\ntitle: {path}\n---\n\n# {path}\n\n"
    return f"{head}{fence} {{.{languages.get(Path(path).suffix, 'text')}}}\n{text.rstrip()}\n{fence}\n"


def on_files(files, config):
    def add(page, **content):
        files.append(File.generated(config, page, **content))

    own = files.get_file_from_path("README.md")
    if own is not None:
        files.remove(own)
    for path, page in moved.items():
        add(page, content=(root / path).read_text(encoding="utf-8"))
    add("error_sentences.md", content=error_sentences.page(root))
    for path in sorted((root / "site/own").iterdir()):
        add(f"own/{path.name}", abs_src_path=str(path))
    api = Path(os.environ["TRIREME_API_PAGES"])
    for path in sorted(api.rglob("*")):
        if path.is_file():
            add(f"api/{path.relative_to(api).as_posix()}", abs_src_path=str(path))

    # Files of the project that a page links to are pages, too.
    pages = {page.src_uri: (origin.get(page.src_uri, f"docs/{page.src_uri}"), page.content_string)
             for page in files.documentation_pages()}
    for source, markdown in pages.values():
        for path in linked(markdown, source):
            page = page_of(path)
            if page is None or files.get_file_from_path(page) is not None or not page.startswith("files/"):
                continue
            if (root / path).is_dir():
                inside = sorted(each.name for each in (root / path).iterdir() if each.is_file())
                content = f"# {path}\n\n" + "".join(f"* [{name}]({name}.md)\n" for name in inside)
                for name in inside:
                    if files.get_file_from_path(f"files/{path}/{name}.md") is None:
                        add(f"files/{path}/{name}.md", content=text_page(f"{path}/{name}"))
            else:
                content = text_page(path)
            add(page, content=content)
    for file in files:
        if file.src_uri.startswith("files/"):
            file.inclusion = InclusionLevel.NOT_IN_NAV
    return files


def on_page_markdown(markdown, page, config, files):
    here = page.file.src_uri
    if here.startswith("files/") or here == "error_sentences.md":
        return markdown
    source = origin.get(here, f"docs/{here}")

    def moved_link(found):
        path = found["path"] and target(found["path"], source)
        there = path and page_of(path)
        if not there:
            return found[0]
        return found["before"] + posixpath.relpath(there, posixpath.dirname(here) or ".") + found["rest"]

    lines = []
    previous = ""
    for line, text in outside_code(markdown):
        if text:
            line = link.sub(moved_link, line)
            # A list or a table may follow a paragraph at once on GitHub; here it needs an empty line.
            item = r"(\s*)([*+-]|\d+[.)]) +\S"
            starts_list = re.match(item, line) and not re.match(item, previous) and not previous.startswith("  ")
            starts_table = line.startswith("|") and not previous.startswith("|")
            if previous.strip() and (starts_list or starts_table):
                lines.append("")
        previous = line
        lines.append(line)
    return "\n".join(lines)
