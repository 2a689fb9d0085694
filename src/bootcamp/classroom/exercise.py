"""Exercises: `exercise.start(name)`, edit, `exercise.check(name)`, `exercise.solution(name)`.

Most are on the scripts themselves: the solution is a script of the course, and the starting point
is made from it, or from its parent, when the reader starts, so nothing is kept twice. The checker
runs the reader's own script. Others ask for a function in a cell (exercises/functions.py):
`exercise.check(name, function)`. The tasks are in exercises/.

A checker raises nothing. It says what was expected, what was seen, and gives a hint; from the
second attempt on a stronger one.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bootcamp.classroom import journal
from bootcamp.experiments import equality as proof
from bootcamp.launcher import launch
from bootcamp.paths import WORK, shown
from bootcamp.records.runs import Run
from bootcamp.scripts import diff, family

PLACE = "# YOUR TURN: lines are missing here"


class Wrong(Exception):
    """Why an attempt does not solve an exercise: what was expected, what was seen, its meaning."""

    def __init__(self, expected: str, seen: str, meaning: str = ""):
        super().__init__(f"expected {expected}, seen {seen}")
        self.expected, self.seen, self.meaning = expected, seen, meaning


class NotTried(Wrong):
    """Nothing was tried yet: a cell that is as the lesson left it. It counts as no attempt."""


@contextlib.contextmanager
def failures_explained(errors: tuple[tuple[str, str], ...] = ()):
    """A run that fails, or a proof, becomes a Wrong that says what was expected.

    errors: words of an error, each with what it means here.
    """
    try:
        yield
    except proof.NotTheSame as error:
        raise Wrong("the same training as the baseline", str(error)) from None
    except (ValueError, FileNotFoundError) as error:
        raise Wrong("a run that can be compared with the baseline", str(error)) from None
    except launch.LaunchError as error:
        seen = f"an error.\n{error}"
        means = [meaning for words, meaning in errors if words in seen]
        raise Wrong("a script that runs to its end", seen, *means[:1]) from None


class Shown(str):
    """Python source that a notebook shows as such."""

    def _repr_markdown_(self) -> str:
        return f"```python\n{self}\n```"


@dataclass(frozen=True)
class Task:
    """What all exercises have: a name, a task in words, a hint, and a stronger one."""

    name: str
    task: str
    hint: str
    stronger: str

    def attempt(self, given) -> str:
        """Try what the reader has given; says in a sentence why it is right. Raises Wrong."""
        raise NotImplementedError

    def help(self, attempts: int = 1) -> str:
        """The hint, from the second attempt on the stronger one too, and where the solution is."""
        if not attempts:
            return "Try it first: a hint comes with the first attempt."
        lines = [f"Hint: {self.hint}"]
        lines += [f"Stronger hint: {self.stronger}"] if attempts > 1 else []
        return "\n".join([*lines, f'The solution: exercise.solution("{self.name}")'])


@dataclass(frozen=True)
class Exercise(Task):
    """A task on a script. `takes_out`: lines of the solution that the reader is to find again;
    empty means that the starting point is the solution's parent. `ranks`: how many the checker
    starts. `rehearse`: also run it on the meta device, where a tensor that was not moved is an
    error. `also`: looks at more than equality, for a script that trains right; given it and the
    proofs of its runs, it says what is wrong, or nothing. `errors`: words of an error that a
    wrong answer ends with, each with what it means here.
    """

    solution: str = ""
    takes_out: tuple[str, ...] = ()
    ranks: int = 1
    rehearse: bool = False
    also: Callable[[Path, list[proof.Proof]], str] | None = None
    errors: tuple[tuple[str, str], ...] = ()

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
                if place_left:
                    lines.append(line[: len(line) - len(line.lstrip())] + PLACE)
                    place_left = False
                continue
            lines.append(line)
        return with_docstring("\n".join(lines) + "\n", self.task)

    def solved(self) -> Path:
        """A script that solves it."""
        return family.SCRIPTS[self.solution].path

    def attempt(self, given: Path) -> str:
        """Run a script and hold it against the baseline with both optimizers."""
        with failures_explained(self.errors):
            return self.tried(given)

    def tried(self, path: Path) -> str:
        """As attempt; raises check.NotTheSame, ValueError or launch.LaunchError too."""
        if self.rehearse:
            _rehearse(path)
        proofs = proof.prove(path, self.ranks, steps=5, hang_seconds=30)
        wrong = self.also(path, proofs) if self.also else ""
        if wrong:
            raise Wrong("more than the same training", f"it trains the same, but {wrong}")
        worst = max(_worst_loss(each.run, each.baseline) for each in proofs)
        return (
            "the same training as the baseline with both optimizers. "
            f"The largest difference of any step's loss is {worst:.1e}."
        )

    def solution_shown(self, path: Path) -> diff.ScriptDiff:
        """What is between the reader's script and the solution, as a diff."""
        return diff.ScriptDiff(self.solved(), path)


def with_docstring(text: str, task: str) -> str:
    """A script's text with its docstring replaced by the task."""
    return f'"""{task}"""' + text.split('"""', 2)[2]


class Result:
    """What a checker found: `solved`, and a text that helps."""

    def __init__(self, solved: bool, text: str):
        self.solved, self.text = solved, text

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


def find(name: str) -> Task:
    """The exercise of this name. Raises KeyError with the names that there are."""
    from bootcamp.classroom.exercises import EXERCISES

    if name not in EXERCISES:
        raise KeyError(f"no exercise {name!r}: choose one of {', '.join(EXERCISES)}")
    return EXERCISES[name]


def start(name: str, again: bool = False) -> str:
    """Write the starting point for the reader, unless a script of theirs is there already.

    again: begin anew; what was there is kept beside it with the ending .before.
    """
    exercise = find(name)
    if not isinstance(exercise, Exercise):
        return exercise.task
    path = exercise.path
    if path.exists() and not again:
        return (
            f"Your script is {shown(path)}: open it from the file browser on the left and edit it."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.replace(path.with_suffix(".py.before"))
    path.write_text(exercise.starting_point())
    return f"Wrote {shown(path)}: open it from the file browser on the left, edit it, save it."


def check(name: str, given=None) -> Result:
    """Check an exercise: the reader's script, or the function that is given.

    Raises nothing: an unsolved exercise is a result too. Each attempt is written down (journal.py).
    """
    exercise = find(name)
    if isinstance(exercise, Exercise):
        given = exercise.path
        if not given.exists():
            return Result(False, f'Not started yet: run exercise.start("{name}") first.')
        if given.read_text() == exercise.starting_point():
            return Result(
                False,
                f"Not solved yet: the script is still the starting point.\n{exercise.help(0)}",
            )
    return _noted(exercise, given)


def _noted(exercise: Task, given) -> Result:
    try:
        says = exercise.attempt(given)
    except NotTried as wrong:
        return _unsolved(exercise, wrong, attempts=0)
    except Wrong as wrong:
        attempts = journal.note_exercise(exercise.name, solved=False)
        return _unsolved(exercise, wrong, attempts)
    journal.note_exercise(exercise.name, solved=True)
    return Result(True, f"Solved: {says}")


def try_out(exercise: Task, given, attempts: int = 1) -> Result:
    """As check, for any script or function, and without writing it down."""
    try:
        return Result(True, f"Solved: {exercise.attempt(given)}")
    except Wrong as wrong:
        return _unsolved(exercise, wrong, attempts)


def _unsolved(exercise: Task, wrong: Wrong, attempts: int) -> Result:
    lines = ["Not solved yet.", f"Expected: {wrong.expected}.", f"Seen: {wrong.seen}"]
    lines += [wrong.meaning] if wrong.meaning else []
    return Result(False, "\n".join([*lines, exercise.help(attempts)]))


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


def solution(name: str) -> diff.ScriptDiff | Shown:
    """As a diff to the reader's script (or the starting point), or as a function's text."""
    exercise = find(name)
    if not isinstance(exercise, Exercise):
        return exercise.solution_shown()
    if not exercise.path.exists():
        start(name)
    return exercise.solution_shown(exercise.path)
