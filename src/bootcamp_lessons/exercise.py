"""Exercises: `exercise.start(name)`, edit, `exercise.check(name)`, `exercise.solution(name)`.

Most are scripts: starting points are made from the course's own. Others are a function in a cell:
`exercise.check(name, function)`. A checker raises nothing: it says what was expected and seen.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bootcamp.classroom import journal
from bootcamp.classroom.tasks import NotTried, ScriptTask, Shown, Task, Wrong
from bootcamp.paths import shown
from bootcamp.scripts import diff, family
from bootcamp_lessons.exercises import EXERCISES


@dataclass(frozen=True)
class Result:
    """What a checker found: `solved`, and a text that helps."""

    solved: bool
    text: str

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


def find(name: str) -> Task:
    """The exercise of this name. Raises KeyError with the names that there are."""
    if name not in EXERCISES:
        raise KeyError(f"no exercise {name!r}: choose one of {', '.join(EXERCISES)}")
    return EXERCISES[name]


def start(name: str) -> str:
    """Write the starting point, unless the reader has begun."""
    exercise = find(name)
    if not isinstance(exercise, ScriptTask):
        return exercise.task
    path, open_it = exercise.path, "open it from the file browser on the left"
    if path.exists():
        return f"Your script is {shown(path)}: {open_it} and edit it."
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(exercise.starting_point())
    if exercise.solution in family.SCRIPTS:
        family.remember(path, exercise.solution)
    return f"Wrote {shown(path)}: {open_it}, edit it, save it."


def check(name: str, given=None) -> Result:
    """Check the reader's script or function, and note the attempt in the journal."""
    exercise = find(name)
    if isinstance(exercise, ScriptTask):
        given = exercise.path
        if not given.exists():
            return Result(False, f'Not started yet: run exercise.start("{name}") first.')
        if given.read_text() == exercise.starting_point():
            as_it_was = "Not solved yet: the script is still the starting point."
            return Result(False, f"{as_it_was}\n{exercise.help(0)}")
        print(f"Running {shown(given)} on {exercise.ranks} CPU rank(s) ...", flush=True)
    return try_out(exercise, given, partial(journal.note_exercise, name))


def try_out(exercise: Task, given, note: Callable[[bool], int] = lambda solved: 1) -> Result:
    """As check, for any script or function. note: writes an attempt down, returns how many."""
    try:
        why = exercise.attempt(given)
    except Wrong as wrong:
        attempts = 0 if isinstance(wrong, NotTried) else note(False)
        lines = ["Not solved yet.", f"Expected: {wrong.expected}.", f"Seen: {wrong.seen}"]
        lines += [wrong.meaning] if wrong.meaning else []
        return Result(False, "\n".join([*lines, exercise.help(attempts)]))
    note(True)
    return Result(True, f"Solved: {why}")


def solution(name: str) -> diff.ScriptDiff | Shown:
    """As a diff to the reader's script (or the starting point), or as a function's text."""
    exercise = find(name)
    if not isinstance(exercise, ScriptTask):
        return exercise.solution_shown()
    if not exercise.path.exists():
        start(name)
    return diff.ScriptDiff(exercise.solved(), exercise.path)
