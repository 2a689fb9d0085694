"""What a lesson gives to read: pieces of the course's code, and what a run printed or raised."""

import inspect
import itertools
import json
import re
import textwrap
from pathlib import Path

from IPython.display import display

from bootcamp import Run, Table, replay, run_command
from bootcamp.classroom.tasks import Shown
from bootcamp.paths import SRC

SNIPPETS = SRC / "snippets"
TORCHRUN = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
PLACES = ("variants", "bootcamp/train/models")  # of the course's code that a reader can change
ERROR = re.compile(r"^\w+(?:Error|Exception): \S.*", re.MULTILINE)


# Code


def code(text: str) -> Shown:
    """Python code as a block of its own, moved to the left margin."""
    return Shown(textwrap.dedent(text).strip())


def show_snippet(name: str) -> None:
    """Display a program of src/snippets as code."""
    display(code((SNIPPETS / name).read_text()))


def piece(path: Path, begin: str, end: str) -> Shown:
    """A file from the line in which `begin` stands up to the text `end`."""
    before, rest = path.read_text().split(begin, 1)
    return code(before.rpartition("\n")[2] + begin + rest[: rest.index(end)])


def source(*functions) -> Shown:
    """Functions as they stand in the course."""
    return code("\n\n".join(map(inspect.getsource, functions)))


# What ran


def run_with_torchrun(name: str, ranks: int) -> str:
    """What a program of src/snippets prints when torchrun starts it."""
    one_thread = {"OMP_NUM_THREADS": "1"}  # what torchrun sets itself, with a warning
    return run_command([*TORCHRUN, str(ranks), str(SNIPPETS / name)], env=one_thread)


def printed(run: Run) -> list[dict]:
    """The objects that a program's ranks printed, a line of JSON each, rank by rank."""
    return [json.loads(line) for line in replay.printed_lines(run) if line.startswith('{"')]


def epochs_of(run: Run, steps: int = 4, caption: str = "") -> Table:
    """What each epoch of so many steps trained on: how each rank begins, what is trained twice."""
    rows = []
    for epoch, first in enumerate(range(0, len(run.steps), steps)):
        shares = [sum(rank["sample_ids"][first : first + steps], []) for rank in run.ranks]
        ids = sum(shares, [])
        row = {"epoch": epoch}
        row |= {f"rank {rank} begins with": str(share[:5]) for rank, share in enumerate(shares)}
        row |= {"trained": len(ids), "different": len(set(ids))}
        rows.append(row | {"twice": str([i for i in sorted(set(ids)) if ids.count(i) > 1])})
    return Table(rows, caption)


def where_ranks_stand(run: Run, script: Path) -> str:
    """The line of the script that each rank was in when the launcher asked a run that hung."""
    lines = script.read_text().splitlines()
    in_script = rf'^(rank \d+)|{re.escape(script.name)}", line (\d+)'
    found = re.findall(in_script, run.summary["error"]["traceback"], re.MULTILINE)
    return "\n".join(rank or f"    line {n}: {lines[int(n) - 1].strip()}" for rank, n in found)


def first_error(run: Run) -> str:
    """The first error of a failed run: where one error led to another, the one that began it."""
    error = run.summary["error"]
    found = ERROR.search(error["traceback"])
    return found[0] if found else error["message"]


def where_it_failed(run: Run) -> str:
    """The first error of a failed run, and the lines of its script and model that led there."""
    lines = [line.strip() for line in run.summary["error"]["traceback"].splitlines()]
    pairs = itertools.pairwise(lines)
    ours = [
        code for file, code in pairs if file.startswith("File") and any(p in file for p in PLACES)
    ]
    return "\n       ".join([first_error(run), *ours])
