"""A task on a training script: the reader edits it, the checker trains with it and compares."""

import itertools
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bootcamp.classroom.tasks import Task, Wrong, check_syntax, failures_explained
from bootcamp.experiments import equality
from bootcamp.launcher import launch
from bootcamp.paths import LOGS, WORK
from bootcamp.scripts import diff, family, variants

PLACE = "# YOUR TURN: lines are missing here"
# without a step while nobody computes; CPU ranks that compute get ten times as long
PATIENCE = launch.Options(hang_seconds=6)


@dataclass(frozen=True)
class ScriptTask(Task):
    """A task whose solution is a script of the family.

    takes_out: lines of the solution that the reader is to find again; empty means that the starting
    point is the solution's parent. ranks: how many the checker starts. rehearse: also run it on the
    meta device, where a tensor that was not moved is an error. also: looks at more than equality,
    for a script that trains right; given it and the proofs of its runs, it says what is wrong, or
    nothing. errors: see failures_explained. flags: of the checker's runs, such as a model.
    """

    solution: str = ""
    takes_out: tuple[str, ...] = ()
    ranks: int = 1
    rehearse: bool = False
    also: Callable[[Path, list[equality.Proof]], str] | None = None
    errors: dict[str, str] = field(default_factory=dict)
    flags: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The reader's script."""
        return WORK / f"{self.name}.py"

    def starting_point(self) -> str:
        """The text that the reader starts from."""
        solution = family.SCRIPTS[self.solution]
        if not self.takes_out:
            return with_docstring(family.SCRIPTS[solution.parent].path.read_text(), self.task)
        lines, place_left = [], True
        for line in solution.path.read_text().splitlines():
            if line.strip() in self.takes_out:
                while diff.is_reason(lines[-1]) and not lines[-1].endswith(PLACE):
                    lines.pop()
                if place_left:
                    lines.append(line[: len(line) - len(line.lstrip())] + PLACE)
                    place_left = False
                continue
            lines.append(line)
        return with_docstring("\n".join(lines) + "\n", self.task)

    def solved(self) -> Path:
        """A script that solves it."""
        return family.SCRIPTS[self.solution].path

    def derived_solution(self, text: str) -> Path:
        """Write a solution that no file of the course has as it is."""
        path = LOGS / "variants" / f"{self.name}_solution.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def attempt(self, given: Path) -> str:
        """Run a script and compare it with the baseline. Raises Wrong."""
        check_syntax(given)
        with failures_explained(given, self.errors):
            return self.tried(given)

    def tried(self, path: Path) -> str:
        """As attempt; may also raise NotTheSame, ValueError or LaunchError."""
        variants.remember(path, self.solution)
        if self.rehearse:
            _rehearse(path)
        proofs = equality.prove(path, self.ranks, options=PATIENCE, **self.flags)
        self.look_further(path, proofs)
        return (
            "the same training as the baseline with both optimizers. "
            f"The largest difference of any step's loss is {worst_loss(proofs):.1e}."
        )

    def look_further(self, path: Path, proofs: list[equality.Proof]) -> None:
        """Raise Wrong for what `also` finds in a script that trains the same as the baseline."""
        if self.also and (wrong := self.also(path, proofs)):
            raise Wrong("more than the same training", f"it trains the same, but {wrong}")


def set_aside(path: Path, suffix: str) -> Path:
    """Move a file to the reader's scripts as NAME.suffix, with a number where that is taken."""
    place = WORK / path.name
    place.parent.mkdir(parents=True, exist_ok=True)
    marks = itertools.chain(["before"], (f"before-{number}" for number in itertools.count(2)))
    free = (place.with_suffix("." + suffix.replace("before", mark)) for mark in marks)
    return Path(shutil.move(path, next(beside for beside in free if not beside.exists())))


def with_docstring(text: str, task: str) -> str:
    """A script's text with its docstring replaced by the task."""
    return f'"""{task}"""' + text.split('"""', 2)[2]


def worst_loss(proofs: list[equality.Proof]) -> float:
    """The largest difference of any step's loss between a run and its baseline."""
    pairs = (pair for proof in proofs for pair in proof.pair.losses)
    return max(abs(mine - its) for mine, its in pairs)


def _rehearse(path: Path) -> None:
    """Every tensor must be on the device that --device names, here one that holds no numbers."""
    rank = launch.launch(path, 1, device="meta", steps=1, quiet=True).ranks[0]
    found = rank["parameter_device"]
    if found != "meta":
        raise equality.NotTheSame(f"with --device meta the model was on {found}: it was not moved.")
    if rank["activation_devices"] != ["meta"]:
        raise equality.NotTheSame("with --device meta a part of the batch was not moved.")
