"""Exercises on the scripts themselves: `exercise.start(name)`, edit, `exercise.check(name)`.

The solution of an exercise is a script of the course. Its starting point is made from it, or from
its parent, when the reader starts: nothing is kept twice. The checker runs the reader's own script.
The tasks themselves are in tasks.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bootcamp import check as proof
from bootcamp import compare, family, launch
from bootcamp.paths import ROOT, WORK
from bootcamp.runs import Run

PLACE = "# YOUR TURN: lines are missing here"


@dataclass(frozen=True)
class Exercise:
    """One task. `takes_out`: lines of the solution that the reader is to find again; empty means
    that the starting point is the solution's parent. `ranks`: how many the checker starts.
    `rehearse`: also run it on the meta device, where a tensor that was not moved is an error.
    `also`: looks at more than equality, for a script that trains right; given it and the proofs of
    its runs, it says what is wrong, or nothing.
    """

    name: str
    task: str
    solution: str
    takes_out: tuple[str, ...] = ()
    ranks: int = 1
    rehearse: bool = False
    also: Callable[[Path, list[proof.Proof]], str] | None = None
    hint: str = ""

    @property
    def path(self) -> Path:
        """The reader's script."""
        return WORK / f"{self.name}.py"

    def starting_point(self) -> str:
        """The text that the reader starts from."""
        solution = family.SCRIPTS[self.solution]
        if not self.takes_out:
            return _with_docstring(family.SCRIPTS[solution.parent].path.read_text(), self.task)
        lines, place_left = [], True
        for line in solution.path.read_text().splitlines():
            if line.strip() in self.takes_out:
                if place_left:
                    lines.append(line[: len(line) - len(line.lstrip())] + PLACE)
                    place_left = False
                continue
            lines.append(line)
        return _with_docstring("\n".join(lines) + "\n", self.task)

    def solved(self) -> Path:
        """A script that solves it."""
        return family.SCRIPTS[self.solution].path

    def tried(self, path: Path) -> "Result":
        """Run a script and hold it against the baseline with both optimizers.

        Raises check.NotTheSame, ValueError or launch.LaunchError where it can't be right.
        """
        if self.rehearse:
            _rehearse(path)
        proofs = proof.prove(path, self.ranks, steps=5, hang_seconds=30)
        wrong = self.also(path, proofs) if self.also else ""
        if wrong:
            return Result(
                False, f"Not solved yet: it trains the same, but {wrong}\n{help_on(self)}"
            )
        worst = max(_worst_loss(each.run, each.baseline) for each in proofs)
        return Result(
            True,
            "Solved: the same training as the baseline with both optimizers. "
            f"The largest difference of any step's loss is {worst:.1e}.",
        )


def _with_docstring(text: str, task: str) -> str:
    """A script's text with its docstring replaced by the task."""
    return f'"""{task}"""' + text.split('"""', 2)[2]


class Result:
    """What a checker found: `solved`, and a text that helps."""

    def __init__(self, solved: bool, text: str):
        self.solved, self.text = solved, text

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


def find(name: str) -> Exercise:
    """The exercise of this name. Raises KeyError with the names that there are."""
    from bootcamp.tasks import EXERCISES

    if name not in EXERCISES:
        raise KeyError(f"no exercise {name!r}: choose one of {', '.join(EXERCISES)}")
    return EXERCISES[name]


def start(name: str, again: bool = False) -> str:
    """Write the starting point for the reader, unless a script of theirs is there already.

    again: begin anew; what was there is kept beside it with the ending .before.
    """
    exercise = find(name)
    path = exercise.path
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    if path.exists() and not again:
        return f"Your script is {shown}: open it from the file browser on the left and edit it."
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.replace(path.with_suffix(".py.before"))
    path.write_text(exercise.starting_point())
    return f"Wrote {shown}: open it from the file browser on the left, edit it, save it."


def check(name: str) -> Result:
    """Run the reader's script and hold it against the CPU baseline, with both optimizers.

    Raises nothing: an unsolved exercise is a result too.
    """
    exercise = find(name)
    if not exercise.path.exists():
        return Result(False, f'Not started yet: run exercise.start("{name}") first.')
    if exercise.path.read_text() == exercise.starting_point():
        return Result(
            False, "Not solved yet: the script is still the starting point.\n" + help_on(exercise)
        )
    return check_script(exercise, exercise.path)


def check_script(exercise: Exercise, path: Path) -> Result:
    """As check, for any file."""
    try:
        return exercise.tried(path)
    except (proof.NotTheSame, ValueError) as error:
        return Result(False, f"Not solved yet: it runs, but {error}\n{help_on(exercise)}")
    except launch.LaunchError as error:
        return Result(
            False, f"Not solved yet: the script ended with an error.\n{error}\n{help_on(exercise)}"
        )


def _rehearse(path: Path) -> None:
    """Every tensor must be on the device that --device names, here one that holds no numbers."""
    rank = launch.launch(path, 1, device="meta", steps=1, quiet=True).ranks[0]
    found = rank["parameter_device"]
    if found != "meta":
        raise proof.NotTheSame(f"with --device meta the model was on {found}: it was not moved.")
    if rank["activation_devices"] != ["meta"]:
        raise proof.NotTheSame("with --device meta a part of the batch was not moved.")


def _worst_loss(run: Run, baseline: Run) -> float:
    return max(abs(a - b) for a, b in zip(run.losses, baseline.losses, strict=True))


def help_on(exercise: Exercise) -> str:
    """The hint, and where the solution is."""
    return f'Hint: {exercise.hint}\nThe solution: exercise.solution("{exercise.name}")'


def solution(name: str) -> compare.ScriptDiff:
    """What is between the reader's script (or the starting point) and the solution, as a diff."""
    exercise = find(name)
    if not exercise.path.exists():
        start(name)
    return compare.ScriptDiff(exercise.solved(), exercise.path)
