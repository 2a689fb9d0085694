"""Texts that lessons show: pieces of the course's code, and what a run printed or raised."""

import inspect
import itertools
import json
import re
import textwrap
from pathlib import Path

from IPython.display import display

from bootcamp import Run, Table, replay, run_command
from bootcamp.classroom.tasks import PythonSource
from bootcamp.paths import SRC

SNIPPETS = SRC / "snippets"
TORCHRUN = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
PLACES = ("variants", "bootcamp/train/models")  # of the course's code that a reader can change
ERROR = re.compile(r"^\w+(?:Error|Exception): \S.*", re.MULTILINE)


def code(text: str) -> PythonSource:
    """Make a block of Python code, moved to the left margin."""
    return PythonSource(textwrap.dedent(text).strip())


def show_snippet(name: str) -> None:
    """Display a program of src/snippets as code."""
    display(code((SNIPPETS / name).read_text()))


def piece(path: Path, begin: str, end: str) -> PythonSource:
    """Return a file from the line in which `begin` stands up to the text `end`."""
    before, rest = path.read_text().split(begin, 1)
    return code(before.rpartition("\n")[2] + begin + rest[: rest.index(end)])


def source(*functions) -> PythonSource:
    """Return the code of functions of the course."""
    return code("\n\n".join(map(inspect.getsource, functions)))


def run_with_torchrun(name: str, ranks: int) -> str:
    """Run a program of src/snippets with torchrun and return what it prints."""
    one_thread = {"OMP_NUM_THREADS": "1"}  # what torchrun sets itself, with a warning
    return run_command([*TORCHRUN, str(ranks), str(SNIPPETS / name)], env=one_thread)


def parse_printed(said: Run | str) -> list[dict]:
    """Return the objects that ranks, or a text, have printed: a line of JSON each, rank by rank."""
    lines = said.splitlines() if isinstance(said, str) else replay.read_printed_lines(said)
    return [json.loads(line) for line in lines if line.startswith('{"')]


def list_epochs(run: Run, steps: int = 4, caption: str = "") -> Table:
    """Table each epoch of so many steps: how each rank begins, what is trained twice."""
    rows = []
    for epoch, first in enumerate(range(0, len(run.steps), steps)):
        shares = [sum(rank["sample_ids"][first : first + steps], []) for rank in run.ranks]
        ids = sum(shares, [])
        row = {"epoch": epoch}
        row |= {f"rank {rank} begins with": str(share[:5]) for rank, share in enumerate(shares)}
        row |= {"trained": len(ids), "different": len(set(ids))}
        rows.append(row | {"twice": str([i for i in sorted(set(ids)) if ids.count(i) > 1])})
    return Table(rows, caption)


def find_waiting_lines(run: Run, script: Path) -> str:
    """Return the line of the script in which each rank of a run that hung waited."""
    lines = script.read_text().splitlines()
    in_script = rf'^(rank \d+)|{re.escape(script.name)}", line (\d+)'
    found = re.findall(in_script, run.summary["error"]["traceback"], re.MULTILINE)
    return "\n".join(rank or f"    line {n}: {lines[int(n) - 1].strip()}" for rank, n in found)


def first_error(run: Run) -> str:
    """Return the first error of a failed run, the one that led to the others."""
    error = run.summary["error"]
    found = ERROR.search(error["traceback"])
    return found[0] if found else error["message"]


def trace_error(run: Run) -> str:
    """Return a failed run's first error, and the lines of its script and model that led there."""
    lines = [line.strip() for line in run.summary["error"]["traceback"].splitlines()]
    pairs = itertools.pairwise(lines)
    ours = [
        code for file, code in pairs if file.startswith("File") and any(p in file for p in PLACES)
    ]
    return "\n       ".join([first_error(run), *ours])
