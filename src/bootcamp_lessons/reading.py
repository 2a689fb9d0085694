"""What lessons read from snippets and from runs, so that a cell says it in a line."""

import json
from pathlib import Path

from bootcamp import Run, Table, recorded, run_command
from bootcamp.paths import SRC

SNIPPETS = SRC / "snippets"
TORCHRUN = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def show_snippet(name: str) -> None:
    """Display a program of src/snippets as code."""
    from IPython.display import Markdown, display

    display(Markdown(f"```python\n{(SNIPPETS / name).read_text()}```"))


def run_with_torchrun(name: str, ranks: int) -> str:
    """What a program of src/snippets prints when torchrun starts it."""
    one_thread = {"OMP_NUM_THREADS": "1"}  # what torchrun sets itself, with a warning
    return run_command([*TORCHRUN, str(ranks), str(SNIPPETS / name)], env=one_thread)


def json_lines(run: Run) -> list[dict]:
    """The objects that a program's ranks printed, a line each, rank by rank."""
    return [json.loads(line) for line in recorded.said(run) if line.startswith("{")]


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
    lines, said = script.read_text().splitlines(), []
    for line in run.summary["error"]["traceback"].splitlines():
        if line.startswith("rank"):
            said.append(line.partition(",")[0])
        elif script.name in line:
            number = int(line.split("line ")[1].split()[0])
            said.append(f"    line {number}: {lines[number - 1].strip()}")
    return "\n".join(said)
