"""python tools/course.py [NAME ...] [--claims] [--expected FOLDER]

The whole course on this machine: every notebook in order, headless, with progress. Leaves under
logs/course/<time>/ the executed copies (.ipynb and .html) and report.html, a page with all figures
and results of this machine that loads nothing from the network. An interrupt ends the lesson that
runs, and the report is of those before it. --expected FOLDER also writes there what each cell
printed and drew, as text: the instructor's expected outputs.

--claims (`make claims`) prints a row for each claim of the lessons with its verdict, as the report
has it; claims.json beside it is for a program. BOOTCAMP_CLAIM_SECONDS gives every claim on time
that budget. Exit code 1 if a lesson failed, or with --claims if a claim is contradicted.
"""

import argparse
import asyncio
import contextlib
import html
import re
import socket
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import interrupts
import nbformat
from bs4 import BeautifulSoup
from lessons import LessonError, named
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbconvert import HTMLExporter

from bootcamp import files, machine, quietness, units
from bootcamp.experiments import claims, replay
from bootcamp.paths import LOGS, NOTEBOOKS
from bootcamp.records import runs
from bootcamp.table import Table

CELL_SECONDS = 600
INTERRUPTED = "interrupted"
EXPECTED_LINES = 60  # of a cell; more is not read in a class
OBJECT = re.compile(r"<[\w.]+ object(?: at 0x\w+)?>")  # how an object without words prints
FIGURE = re.compile(r'<img[^>]+src="data:image/png[^>]+>')
STYLE = Path(__file__).parent / "page_look" / "report.css"  # the class and the kit have it too
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
CODE_IN_OUTPUTS = ".jp-OutputArea .highlight pre { font-family: monospace; line-height: 1.3; }"


class Lesson:
    """One notebook: executed, with the time it took and the error that ended it, if one did."""

    def __init__(self, path: Path, folder: Path):
        self.path, self.folder = path, folder
        self.notebook = nbformat.read(path, 4)
        self.seconds, self.error = 0.0, None

    @property
    def title(self) -> str:
        first = next(cell.source for cell in self.notebook.cells if cell.cell_type == "markdown")
        return first.splitlines()[0].lstrip("# ")

    def run(self) -> None:
        """Execute every cell; the error of a cell is kept, not raised, and so is an interrupt."""
        client = NotebookClient(
            self.notebook,
            timeout=CELL_SECONDS,
            resources={"metadata": {"path": str(self.path.parent)}},
            on_cell_start=self._progress,
        )
        began = time.monotonic()
        # in a thread of its own, for in the main thread nbclient takes interrupts itself
        with asyncio.Runner() as runner, ThreadPoolExecutor(1) as pool:
            loop = runner.get_loop()
            task = loop.create_task(_execute(client))
            try:
                pool.submit(loop.run_until_complete, task).result()
            except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
                self.error = str(error)
            except KeyboardInterrupt:
                interrupts.ignore()  # the kernel ends, and the report is written
                self.error, client.shutdown_kernel = INTERRUPTED, "immediate"
                loop.call_soon_threadsafe(task.cancel)
        self.seconds = time.monotonic() - began
        ending = INTERRUPTED if self.error == INTERRUPTED else "failed" if self.error else "done"
        print(f"\r{self.path.stem}: {ending} in {self.seconds:.0f} s" + " " * 24, flush=True)

    def _progress(self, cell, cell_index) -> None:
        text = f"{self.path.stem}: cell {cell_index + 1} of {len(self.notebook.cells)}"
        print(f"\r{text}", end="", flush=True) if sys.stdout.isatty() else None

    def save(self) -> None:
        """The executed copy as a notebook that says where it ran, as a page, and its figures."""
        self.notebook.metadata["ran"] = where_and_when()
        nbformat.write(self.notebook, self.folder / self.path.name)
        exporter = HTMLExporter(
            embed_images=True, mathjax_url="", require_js_url="", jquery_url="", mermaid_js_url=""
        )
        page, _ = exporter.from_notebook_node(without_widgets(self.notebook))
        page = page.replace("</head>", f"<style>{CODE_IN_OUTPUTS}</style></head>", 1)
        (self.folder / f"{self.path.stem}.html").write_text(page)

    def expected(self) -> str:
        """What each code cell showed, as Markdown without this machine's paths.

        A cell is named by the heading above it and its number below that one: Jupyter shows no
        number that counts the cells of a notebook.
        """
        parts, heading, number = [f"# {self.title}"], "The beginning", 0
        for cell in without_widgets(self.notebook).cells:
            if cell.cell_type != "code":
                if headings := re.findall(r"^##+ (.+)$", cell.source, re.MULTILINE):
                    heading, number = headings[-1], 0
                continue
            number += 1
            begins = cell.source.strip().partition("\n")[0]
            shown = without_paths("\n".join(filter(None, map(_as_text, cell.get("outputs", [])))))
            lines = shown.strip().splitlines() or ["(nothing)"]
            if len(lines) > EXPECTED_LINES:
                lines[EXPECTED_LINES:] = [f"... and {len(lines) - EXPECTED_LINES} lines"]
            parts.append(
                "\n".join([f"## {heading}, cell {number}: `{begins}`\n\n~~~", *lines, "~~~"])
            )
        return "\n\n".join(parts) + "\n"

    def figures(self) -> list[str]:
        """Every figure that the notebook shows, as an <img> with its text alternative."""
        shown = []
        for cell in self.notebook.cells:
            for output in cell.get("outputs", []):
                page = output.get("data", {}).get("text/html", "")
                shown += FIGURE.findall("".join(page))
        return shown


async def _execute(client: NotebookClient) -> None:
    """Execute a notebook; its kernel is gone afterwards, also one that was only being started."""
    try:
        await client.async_execute()
    finally:
        if client.km is not None and client.km.has_kernel:
            await client.km.shutdown_kernel(now=True)


def where_and_when() -> dict[str, str]:
    """This machine and this day, as tools/pages.py shows them."""
    about = machine.describe()
    parts = [*about["gpus"], about["cpu"], units.count(about["cores"], "core")]
    return {"machine": ", ".join(parts), "date": time.strftime("%d %B %Y").lstrip("0")}


def _as_text(output) -> str:
    """An output as the lines that a reader sees; of a figure its text alternative."""
    if output.output_type == "stream":
        return output.text.rstrip()
    if output.output_type == "error":
        return f"{output.ename}: {output.evalue}"
    data = output.get("data", {})
    page, plain, markdown = (
        "".join(data.get(f"text/{kind}", "")) for kind in ("html", "plain", "markdown")
    )
    soup = BeautifulSoup(page, "html.parser")
    if figures := soup.find_all("img", alt=True):
        return "\n".join(f"[figure: {figure['alt']}]" for figure in figures)
    if plain and not OBJECT.fullmatch(plain.strip()):
        return plain.rstrip()
    if any(kind.startswith("image/") for kind in data):
        return "[figure without words]"
    return markdown.rstrip() or soup.get_text(" ", strip=True)


def without_paths(text: str) -> str:
    """Without this machine's folders and the escapes that colour a terminal."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    # the folder for temporary files, or one that tempfile has made in it
    made = rf"{re.escape(tempfile.gettempdir())}(/tmp\w{{8}})?(?!\w)"
    text = re.sub(made, "(temporary folder)", replay.hide_own_folders(text))
    host = rf"(?<![\w-]){re.escape(socket.gethostname())}(?![\w-])"
    text = re.sub(host, "this-host", text.replace(str(Path.home()), "~"))
    return re.sub(r"(?:/[\w.+-]+){2,}/(?=(?:lib/)?python3)", ".../", text)


def without_widgets(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A copy in which a widget is the text it ended with: a live one would fetch its code."""
    copy = nbformat.from_dict(notebook)
    states = copy.metadata.pop("widgets", {}).get(WIDGET_STATE, {}).get("state", {})
    for cell in copy.cells:
        for output in cell.get("outputs", []):
            view = output.get("data", {}).pop(WIDGET_VIEW, None)
            if view and "text/html" not in output["data"]:  # else it has a still of its own
                said = _values(view["model_id"], states)
                output["data"]["text/html"] = f"<p>{'<br>'.join(said)}</p>"
                texts = [BeautifulSoup(value, "html.parser").get_text() for value in said]
                output["data"]["text/plain"] = "\n".join(texts)
    return copy


def _values(model: str, states: dict) -> list[str]:
    """The texts of a widget and of those within it, from top to bottom."""
    state = states.get(model.removeprefix("IPY_MODEL_"), {}).get("state", {})
    own = state.get("value")
    found = [own] if isinstance(own, str) and own else []  # an empty field says nothing
    for child in state.get("children", []):
        found += _values(child, states)
    return found


def list_claims(found: dict[str, dict]) -> Table:
    """List claims of claims.read_notes, in the order of their first test."""
    columns = {"claim": "name", "kind": "kind", "verdict here": "verdict"}
    columns |= {"measured": "measured", "sentence": "sentence"}
    return Table.of(found.values(), columns, f"{len(found)} claims tested on this machine")


def count_verdicts(found: dict[str, dict]) -> Table:
    """Count the claims of each kind and verdict."""
    kinds = Counter(claim["kind"] for claim in found.values())
    both = Counter((claim["kind"], claim["verdict"]) for claim in found.values())
    rows = [
        {"kind": kind, "claims": count, **{mark: both[kind, mark] for mark in claims.MARKS}}
        for kind, count in kinds.items()
    ]
    return Table(rows, "Claims by kind and verdict")


def report(lessons: list[Lesson], made: list[runs.Run], found: dict, folder: Path) -> Path:
    """One page: the machine, claims tested, how each lesson went, its figures, every run."""
    parts = [f"<p>{time.strftime('%d %B %Y, %H:%M')}</p>"]
    parts.append(machine.table()._repr_html_())
    if found:
        parts.append("<h2>What the lessons claim</h2>")
        parts += [table._repr_html_() for table in (count_verdicts(found), list_claims(found))]
    parts.append("<h2>Lessons</h2>")
    for lesson in lessons:
        name = html.escape(lesson.title)
        link = f'<a href="{lesson.path.stem}.html">the executed notebook</a>'
        parts.append(f"<h3>{name}</h3><p>{lesson.seconds:.0f} s. {link}</p>")
        if lesson.error:
            parts.append(f'<p class="failed">Failed:</p><pre>{html.escape(lesson.error)}</pre>')
        parts += lesson.figures()
    good = [run for run in made if run.status == "ok" and run.steps]
    good = [run for run in good if run.ranks[0]["fingerprint_final"]]
    if good:
        parts.append("<h2>Every run</h2>")
        parts.append(runs.table(*good, caption="Median over the steps after warm-up")._repr_html_())
    more = "without a record, a rehearsal, or broken on purpose"
    parts.append(f"<p>{len(made) - len(good)} more runs are {more}.</p>")
    page = folder / "report.html"
    write_page("The bootcamp on this machine", "\n".join(parts), page)
    return page


def write_page(title: str, body: str, target: Path) -> None:
    """Write one HTML file that loads nothing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE.read_text()}</style><body><h1>{title}</h1>{body}</body></html>\n"
    )


def keep_claims(found: dict[str, dict], folder: Path, show_each: bool) -> None:
    """Write the claims as data; print their counts, and each of them if asked to."""
    about = {"machine": machine.describe(), "date": time.strftime("%Y-%m-%d")}
    files.write_json(folder / claims.FILE, {**about, "claims": found})
    if found:
        print(*([list_claims(found)] * show_each), count_verdicts(found), sep="\n\n")


def run_lessons(paths: list[Path], folder: Path, expected: Path | None) -> list[Lesson]:
    """Run and save the lessons one after another, none after an interrupt."""
    lessons = []
    with contextlib.suppress(KeyboardInterrupt):  # between two of them
        for path in paths:
            lesson = Lesson(path, folder)
            lesson.run()
            lessons.append(lesson)
            lesson.save()
            if expected:
                (expected / f"{path.stem}.md").write_text(lesson.expected())
            if lesson.error == INTERRUPTED or interrupts.came:
                break
    return lessons


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="lessons to run, such as 04 (default: all)")
    parser.add_argument("--expected", type=Path, help="a folder for the expected outputs as text")
    parser.add_argument("--claims", action="store_true", help="print every claim with its verdict")
    args = parser.parse_args()
    interrupts.accept()
    folder = LOGS / "course" / time.strftime("%Y%m%d-%H%M%S")
    try:
        wanted = named(args.names, sorted(NOTEBOOKS.glob("*.ipynb")))
        for each in filter(None, (args.expected, folder)):
            each.mkdir(parents=True, exist_ok=True)
    except LessonError as error:
        print(error)
        return 2
    except OSError as error:
        print(f"{error.filename} can't be written: {error.strerror}.")
        return 2
    if args.expected and not (found := quietness.measure()).is_quiet:
        print(f"{found}\nExpected outputs are recorded on a quiet machine only.")
        return 2
    if args.claims:
        print(quietness.measure())
    began = time.time()
    lessons = run_lessons(wanted, folder, args.expected)
    interrupts.ignore()  # the report is written now, whatever is pressed
    made = [run for run in runs.all_runs() if run.config.get("started_unix_seconds", 0) >= began]
    found = claims.read_notes(since=began)
    page = report(lessons, made, found, folder)
    keep_claims(found, folder, args.claims)
    finished = sum(not lesson.error for lesson in lessons)
    if len(lessons) < len(wanted) or lessons[-1].error == INTERRUPTED:
        print(f"Interrupted: {finished} of {len(wanted)} lessons ran to their end.")
    print(f"The report is {page}", flush=True)
    contradicted = any(claim["verdict"] == claims.CONTRADICTED for claim in found.values())
    return 1 if finished < len(wanted) or (args.claims and contradicted) else 0


if __name__ == "__main__":
    sys.exit(main())
