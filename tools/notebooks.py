"""python tools/notebooks.py [--check | --words] [NAME ...]

Make notebooks/*.ipynb from their reviewable sources, notebooks/sources/*.py (jupytext percent).

Each notebook is executed; only the outputs of cells tagged nbval-check-output are stored, because
they are the same on every machine. A stored measurement would give the predictions away, and would
be another machine's. --check only compares the notebooks' cells with the sources, without running.
--words is for a change of text: it runs nothing and keeps the outputs of cells that stay the same.
"""

import argparse
import re
import sys
import time
from pathlib import Path

import jupytext
import lessons
import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
CELL_SECONDS = 240
CHECKED = "nbval-check-output"
ARXIV = re.compile(r"(?<![\[/])arXiv:(\d{4}\.\d{5}|\d{4}\.\d{4})\b")


def sources() -> list[Path]:
    """The sources in the order of the lessons."""
    return sorted((NOTEBOOKS / "sources").glob("*.py"))


def from_source(source: Path) -> nbformat.NotebookNode:
    """A source as a notebook without outputs, with ids that stay the same from build to build.

    Papers on arXiv become links.
    """
    notebook = jupytext.read(source)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"{source.stem[:2]}-{number:03d}"
        if cell.cell_type == "code":
            cell["outputs"], cell["execution_count"] = [], None
        else:
            cell["source"] = ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", cell.source)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def execute(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Run every cell as JupyterLab would, in the notebooks' folder; raises at the first error."""
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        coalesce_streams=True,  # one print may arrive in pieces, cut at random
        resources={"metadata": {"path": str(NOTEBOOKS)}},
    )
    return client.execute()


def keep_deterministic_outputs(notebook: nbformat.NotebookNode) -> None:
    """Drop what differs from machine to machine: other outputs, execution times, widget states."""
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.metadata.pop("execution", None)
            if not _is_checked(cell):  # else nbval wants its execution count
                cell["outputs"], cell["execution_count"] = [], None


def take_over_outputs(notebook: nbformat.NotebookNode, stored: Path) -> None:
    """Take over the outputs of a notebook's tagged cells. Raises ValueError if one has changed."""
    known = {cell.source: cell for cell in nbformat.read(stored, 4).cells}
    tagged = [cell for cell in notebook.cells if _is_checked(cell)]
    for cell in tagged:
        if same := known.get(cell.source):
            cell.outputs, cell.execution_count = same.outputs, same.execution_count
    if any(cell.source not in known for cell in tagged):
        raise ValueError(f"{stored.name}: a cell with a stored output has changed, run it")


def _is_checked(cell) -> bool:
    return CHECKED in cell.metadata.get("tags", [])


def is_made(source: Path) -> bool:
    """Whether a source's notebook has its cells, and stores no other outputs."""
    if not notebook_of(source).exists():
        return False
    notebook, expected = nbformat.read(notebook_of(source), 4), from_source(source)
    if any(cell.get("outputs") and not _is_checked(cell) for cell in notebook.cells):
        return False

    def content(of):
        return [(c.cell_type, c.source, list(c.metadata.get("tags", []))) for c in of.cells]

    return content(notebook) == content(expected)


def notebook_of(source: Path) -> Path:
    return NOTEBOOKS / f"{source.stem}.ipynb"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="lessons to make, such as 04 (default: all)")
    parser.add_argument("--check", action="store_true", help="compare, do not run")
    parser.add_argument("--words", action="store_true", help="keep stored outputs, do not run")
    args = parser.parse_args()
    try:
        wanted = lessons.named(args.names, sources())
    except lessons.LessonError as error:
        print(error)
        return 2
    if args.check:
        stale = [source.stem for source in wanted if not is_made(source)]
        if stale:
            print(f"Not as their sources: {', '.join(stale)}. Run `make notebooks`.")
        return 1 if stale else 0
    for source in wanted:
        target, notebook, began = notebook_of(source), from_source(source), time.monotonic()
        if args.words:
            notebook.metadata = nbformat.read(target, 4).metadata
            take_over_outputs(notebook, target)
        else:
            keep_deterministic_outputs(execute(notebook))
        nbformat.write(notebook, target)
        print(f"{target.name}: {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
