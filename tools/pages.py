"""python tools/pages.py [--course FOLDER]

The course as static pages that load nothing from the network: rendered lessons with their outputs,
a map, search, a glossary, the index of errors, the scripts. The lessons are the executed copies of
a course (`make course`), by default the newest complete one under logs/course, else the one with
most lessons; a lesson that is not in it says so on its page. The pages go to logs/site, in place of
those that are there. Sphinx with MyST-NB renders them. Exit code 1 where a link leads nowhere or a
page would ask another address for anything.
"""

import argparse
import ast
import io
import re
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

import course
import explorer_page
import lessons
import nbformat

from bootcamp.classroom import errors
from bootcamp.drawing.style import join_words
from bootcamp.paths import LOGS
from bootcamp_lessons import explorers

ROOT = Path(__file__).resolve().parents[1]
SITE = LOGS / "site"
TERMS = ROOT / "notebooks" / "terms.toml"
LOOK = Path(__file__).parent / "page_look"  # what is added to the theme, and the first page
PREDICTS = re.compile(r"(?<![\w.])predict\(")
EXPLORES = re.compile(rf"\bsimulators\.({'|'.join(explorers.KINDS)})\((.*)\)")
ELSEWHERE = re.compile(
    r'<(?:script|img|iframe|link|source)\b[^>]*\b(?:src|href)="((?:https?:)?//[^"]+)'
)
FOLDED = "hide-output"  # MyST-NB's tag for an output that a click opens
FILE_LINK = re.compile(r"\]\(\.\./(src/[\w./]+)\)")
SCRIPTS = ("src/_*.py", "src/serve/*.py", "src/snippets/*.py", "src/jobs/*.sbatch")
LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")
OUTWARDS = re.compile(r"\[([^]]+)\]\(\.\./[^)]+\)")


class PagesError(Exception):
    """Pages that can't be built. Its text says what is missing and how to get it."""


def newest_course(root: Path = LOGS / "course") -> Path:
    """Return the folder with most executed lessons, the newest of several: root, or one in it.

    Raises PagesError.
    """
    wanted = {lesson.notebook.name for lesson in lessons.notebooks().values()}
    found = {
        folder: len(wanted & {path.name for path in folder.glob("*.ipynb")})
        for folder in (root, *sorted(root.glob("*"), reverse=True))
    }
    if not any(found.values()):
        raise PagesError(f"{root} has no executed lesson: `make course` executes them all.")
    return max(found, key=found.get)


def executed_lessons(folder: Path) -> dict[str, nbformat.NotebookNode]:
    """Read every lesson's notebook, by its number: from the folder, else as it is stored."""
    found = {}
    for number, lesson in lessons.notebooks().items():
        executed = folder / lesson.notebook.name
        found[number] = nbformat.read(executed if executed.is_file() else lesson.notebook, 4)
    return found


def page_of(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Make a copy for the site: widgets as text, links to pages, answers of predictions folded."""
    copy, asked = course.without_widgets(notebook), False
    for cell in copy.cells:
        if cell.cell_type == "markdown":
            cell.source = to_pages(cell.source)
            continue
        if found := EXPLORES.search(cell.source):
            cell.outputs = [explorer(*found.groups())]
        elif PREDICTS.search(cell.source):  # shows its question
            asked = True
        elif asked and cell.get("outputs"):
            cell.metadata["tags"] = [*cell.metadata.get("tags", []), FOLDED]
        for output in cell.get("outputs", []):
            _without_paths(output)
    return copy


def explorer(kind: str, arguments: str = "") -> nbformat.NotebookNode:
    """Make an output in which explorers.js draws, beginning with the arguments of a cell's call."""
    call = ast.parse(f"call({arguments})", mode="eval").body
    initial = {given.arg: ast.literal_eval(given.value) for given in call.keywords}
    return nbformat.v4.new_output(
        "display_data", {"text/html": explorer_page.render_div(kind, **initial)}
    )


def _without_paths(output: nbformat.NotebookNode) -> None:
    """Take this machine's folders out of an output's texts, in place."""
    if "text" in output:
        output.text = course.without_paths(output.text)
    data = output.get("data", {})
    for kind in (kind for kind in data if kind.startswith("text/")):
        text = "".join(data[kind])
        if "base64" not in text:
            data[kind] = course.without_paths(text)


def to_pages(text: str) -> str:
    """Return Markdown whose links to scripts lead to their page, and others out are words."""
    text = FILE_LINK.sub(lambda found: f"](scripts.md#{anchor(found[1])})", text)
    return OUTWARDS.sub(r"\1", text)


def paragraphs(notebook: nbformat.NotebookNode) -> list[str]:
    """List paragraphs and points of a lesson's text, each in one line."""
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    parts = [part for text in texts for part in re.split(r"\n\s*\n|\n(?=- |\d+\. )", text)]
    return [re.sub(r"^(- |\d+\. )", "", " ".join(part.split())) for part in parts]


def glossary() -> str:
    """List the terms of TERMS, each with the first paragraph of its lesson in which it is bold.

    Raises PagesError for one that is bold nowhere.
    """
    entries = {}
    for number, names in tomllib.loads(TERMS.read_text()).items():
        lesson = lessons.find(number)
        said = paragraphs(nbformat.read(lesson.notebook, 4))
        for name in names:
            bold = re.compile(rf"\*\*{re.escape(name)}\*\*", re.IGNORECASE)
            text = next(filter(bold.search, said), None)
            if text is None:
                raise PagesError(f"{name!r} is bold nowhere in {lesson.source.name}")
            entries[name] = f"{name}\n  {to_pages(text)} ({lesson.link})"
    text = "\n\n".join(entries[name] for name in sorted(entries, key=str.lower))
    return f"# Terms\n\nEach as its lesson explains it first.\n\n```{{glossary}}\n{text}\n```\n"


def error_pages() -> str:
    """Write the index of errors, by the layer that speaks."""
    known, parts = lessons.notebooks(), ["# Errors: what they mean\n"]
    layers = list(dict.fromkeys(entry.layer for entry in errors.ENTRIES))
    texts = {one["entry"]: one["text"] for one in errors.read_recorded()}
    for layer in layers:
        parts.append(f"## {layer}\n")
        for entry in (each for each in errors.ENTRIES if each.layer == layer):
            lesson = known[entry.lesson]
            text = texts.get(entry.name, "")
            shown = f"~~~text\n{text}\n~~~\n\n" if text else ""
            parts.append(
                f"### {entry.means.rstrip('.')}\n\n{shown}Look at {entry.look_at}. {entry.fix} "
                f"Lesson {lesson.link}.\n"
            )
    return "\n".join(parts)


def anchor(path: str) -> str:
    """Return the name by which a script's heading is reached."""
    return re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-")


def scripts() -> str:
    """Write the page of every script of the course."""
    parts = ["# The scripts\n"]
    for pattern in SCRIPTS:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            kind = "python" if path.suffix == ".py" else "bash"
            parts.append(f"({anchor(name)})=\n## `{name}`\n\n~~~{kind}\n{path.read_text()}~~~\n")
    return "\n".join(parts)


def note(lesson: lessons.Lesson, notebook: nbformat.NotebookNode) -> str:
    """Write the box under a lesson's title: how to run it, and where it ran."""
    outputs = "**This page has no outputs**: the lesson has not run for it."
    if ran := notebook.metadata.get("ran"):  # which tools/course.py writes
        outputs = (
            f"The outputs are from a machine with {ran['machine']} on {ran['date']}; *measured "
            "here* means there. What answers a prediction is folded: predict, then open it."
        )
    needs = f"What it needs: {lesson.needs}."
    needs += f" It builds on {join_words(lesson.after)}." if lesson.after else ""
    return f"""```{{admonition}} Run it yourself
:class: tip

`make lab LESSON={lesson.number}` opens this lesson in JupyterLab. {needs}

{outputs}
```"""


def index(executed: dict[str, nbformat.NotebookNode]) -> str:
    """Write the first page: what the course is, how to run it, its map."""
    live = [
        lessons.find(number).link
        for number, notebook in executed.items()
        if any(EXPLORES.search(cell.source) for cell in notebook.cells)
    ]
    has_run = (ROOT / "README.md").read_text().partition("\n## What has run where\n")[2]
    text = (LOOK / "index.md").read_text()
    return text.format(
        map=lessons.course_map(),
        ways=lessons.ways(),
        files="\n".join(one.file for one in lessons.notebooks().values()),
        live=join_words(live),
        ran=LINK.sub(r"\1", has_run.partition("\n## ")[0].strip()),
    )


def write_sources(executed: Path, folder: Path) -> None:
    """Write what Sphinx reads."""
    notebooks = executed_lessons(executed)
    for number, notebook in notebooks.items():
        lesson, page = lessons.find(number), page_of(notebook)
        page.cells.insert(1, nbformat.v4.new_markdown_cell(note(lesson, notebook)))
        nbformat.write(page, folder / lesson.notebook.name)
    (folder / "index.md").write_text(index(notebooks))
    for name, text in (("glossary", glossary), ("errors", error_pages), ("scripts", scripts)):
        (folder / f"{name}.md").write_text(text())


def build(executed: Path, output: Path) -> list[str]:
    """Build the pages into an empty folder; return Sphinx's warnings and what would be loaded."""
    from sphinx.application import Sphinx

    with tempfile.TemporaryDirectory() as scratch:
        sources, doctrees, static = (Path(scratch, name) for name in ("in", "doctrees", "static"))
        sources.mkdir()
        static.mkdir()
        write_sources(executed, sources)
        (static / "explorers.js").write_text(explorer_page.script())
        files = [*map(str, LOOK.glob("course.*")), str(static)]
        said = io.StringIO()
        Sphinx(
            sources,
            LOOK,
            output,
            doctrees,
            "html",
            confoverrides={"html_static_path": files},
            status=None,
            warning=said,
            parallel=2,
        ).build(force_all=True)
    loaded = [
        f"{path.name} loads {address}"
        for path in sorted(output.rglob("*.html"))
        for address in ELSEWHERE.findall(path.read_text())
    ]
    return [*filter(None, said.getvalue().splitlines()), *loaded]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--course", type=Path, default=LOGS / "course", help="executed notebooks")
    try:
        executed = newest_course(parser.parse_args().course)
        shutil.rmtree(SITE, ignore_errors=True)
        complaints = build(executed, SITE)
    except PagesError as problem:
        print(problem)
        return 2
    print("\n".join(complaints))
    print(f"The course is in {SITE / 'index.html'}")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
