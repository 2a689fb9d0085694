"""Exercises: `exercise.start(name)`, edit, `exercise.check(name)`, `exercise.solution(name)`.

Most are scripts that begin as one of the course's. Others are a function in a cell:
`exercise.check(name, function)`. A check raises nothing: it says what was expected and seen.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bootcamp.classroom import journal
from bootcamp.classroom.tasks import NotTried, PythonSource, ScriptTask, Task, Wrong
from bootcamp.paths import shown
from bootcamp.scripts import diff, strategies
from bootcamp_lessons import lesson_times
from bootcamp_lessons.exercises import EXERCISES

lesson_times.watch()


@dataclass(frozen=True)
class Result:
    """Whether an attempt solves an exercise, and a text that helps."""

    solved: bool
    text: str

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


def find(name: str) -> Task:
    """Return the exercise of this name. Raises KeyError with all names."""
    if name not in EXERCISES:
        raise KeyError(f"no exercise {name!r}: choose one of {', '.join(EXERCISES)}")
    return EXERCISES[name]


def start(name: str) -> str:
    """Write the starting point of a script, unless the reader has begun, and say where it is."""
    exercise = find(name)
    if not isinstance(exercise, ScriptTask):
        return exercise.task
    path, open_it = exercise.path, "open it from the file browser on the left"
    if path.exists():
        return f"Your script is {shown(path)}: {open_it} and edit it."
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(exercise.starting_point())
    if exercise.solution in strategies.SCRIPTS:
        strategies.record_copy(path, exercise.solution)
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
    """Check any script or function. note: records whether it is solved, returns the attempts."""
    try:
        why = exercise.attempt(given)
    except Wrong as wrong:
        attempts = 0 if isinstance(wrong, NotTried) else note(False)
        lines = ["Not solved yet.", f"Expected: {wrong.expected}.", f"Seen: {wrong.seen}"]
        lines += [wrong.meaning] if wrong.meaning and attempts >= wrong.since else []
        return Result(False, "\n".join([*lines, exercise.help(attempts)]))
    note(True)
    return Result(True, f"Solved: {why}")


def solution(name: str) -> diff.ScriptDiff | PythonSource:
    """Show the solution: as a diff to the reader's script, or as a function's text."""
    exercise = find(name)
    if not isinstance(exercise, ScriptTask):
        return exercise.solution_text()
    if not exercise.path.exists():
        start(name)
    return diff.ScriptDiff(exercise.solution_path(), exercise.path)
