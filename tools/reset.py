"""python tools/reset.py LESSON, or: python tools/reset.py --catch-up LESSON

Put a lesson back to its starting state: its notebook as git has it, and none of the reader's
scripts for its exercises. What was there is kept in notebooks/work/ with `.before` in its name.

--catch-up is for those who begin at this lesson: the solutions of the exercises before it, where
the reader has nothing of their own, what the lessons before it were for, and which of them it
needs.
"""

import argparse
import contextlib
import itertools
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import lessons
import nbformat

import notebooks
from bootcamp.paths import OWN, WORK, shown
from bootcamp_lessons import exercise

NOTEBOOKS = OWN / "notebooks"


def scripts(lesson: lessons.Lesson) -> list[str]:
    """The names of a lesson's exercises whose answer is a script."""
    return [name for name in lesson.exercises if hasattr(exercise.find(name), "starting_point")]


def reset(number: str) -> list[str]:
    """Put a lesson back; what was done, a sentence each. Raises lessons.LessonError."""
    lesson = lessons.find(number)
    said = [reset_notebook(lesson)]
    for name in scripts(lesson):
        path = exercise.find(name).path
        if path.exists():
            beside = set_aside(path, f"{path.suffix[1:]}.before")
            said.append(f"{shown(path)} is now {shown(beside)}.")
    return said


def set_aside(path: Path, suffix: str) -> Path:
    """Move a file to the reader's scripts as NAME.suffix, with a number where that is taken."""
    WORK.mkdir(parents=True, exist_ok=True)
    marks = itertools.chain(["before"], (f"before-{number}" for number in itertools.count(2)))
    places = (WORK / f"{path.stem}.{suffix.replace('before', mark)}" for mark in marks)
    return Path(shutil.move(path, next(place for place in places if not place.exists())))


def reset_notebook(lesson: lessons.Lesson) -> str:
    """Write the notebook as it came, unless it still is."""
    path = NOTEBOOKS / f"{lesson.file}.ipynb"
    wanted, there, kept = as_it_came(lesson), path.exists(), ""
    if there and path.read_bytes() == wanted:
        return f"{shown(path)} is in its starting state: it is left as it is."
    if there:
        kept = f" What was there is now {shown(set_aside(path, 'before.ipynb'))}."
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(wanted)
    reload = "If it is open, say File > Reload Notebook from Disk."
    return f"{shown(path)} is in its starting state again.{kept} {reload}"


def as_it_came(lesson: lessons.Lesson) -> bytes:
    """The notebook of the commit that is checked out, so that `git status` stays clean.

    Without git it is made from its source, with the outputs that are the same on every machine as
    the reader's copy has them.
    """
    name = f"notebooks/{lesson.file}.ipynb"
    if lessons.ROOT != OWN:  # the reader has copies of the notebooks: tools/lab.py
        return (lessons.ROOT / name).read_bytes()
    with contextlib.suppress(OSError, subprocess.CalledProcessError):  # no git, or no clone
        show = ["git", "-C", str(lessons.ROOT), "show", f"HEAD:./{name}"]
        return subprocess.run(show, capture_output=True, check=True).stdout
    made = notebooks.from_source(lesson.source)
    with contextlib.suppress(Exception):  # none, half a file, or none of Jupyter's: it raises many
        notebooks.take_over_outputs(made, NOTEBOOKS / f"{lesson.file}.ipynb")
    return (nbformat.writes(made) + "\n").encode()


def catch_up(number: str) -> list[str]:
    """Fill in the solutions of the lessons before; what to know of them. Raises LessonError."""
    lesson = lessons.find(number)
    said = [f"Before lesson {number}, {lesson.title}:"]
    for each in lessons.lessons().values():
        if each.number == number:
            break
        said += ["", f"{each.number} {each.title}", *indented(goals(each))]
        said += [line for name in scripts(each) for line in indented(fill_in(name))]
    needed = lessons.path_to(number)
    minutes = sum(lessons.find(name).minutes for name in needed)
    names = ", ".join(needed) or "none"
    return [*said, "", f"The shortest path to lesson {number}: {names} ({minutes} minutes)."]


def fill_in(name: str) -> str:
    """Write an exercise's solution where the reader has none; what was done, in a sentence."""
    task = exercise.find(name)
    path, solution = task.path, task.solution_path().read_text()
    if path.exists() and path.read_text() == solution:
        return f"{shown(path)} is the solution already."
    if path.exists() and path.read_text() != task.starting_point():
        return f"{shown(path)} is yours: it is left as it is."
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(solution)
    return f"{shown(path)} is the solution now."


def goals(lesson: lessons.Lesson) -> str:
    """What one can do after a lesson, as the head of its notebook says."""
    head = lesson.source.read_text().split("# %%")[1].splitlines()[1:]
    parts = "\n".join(line.removeprefix("#").strip() for line in head).split("\n\n")
    found = [part for part in parts if part.startswith("After this lesson you can")]
    return " ".join(found[0].split()) if found else ""


def indented(text: str) -> list[str]:
    lines = textwrap.wrap(text, 92, break_on_hyphens=False)
    return [f"    {line}" for line in lines]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("lesson", nargs="?", help="such as 04")
    parser.add_argument("--catch-up", action="store_true", help="fill in what is before it")
    args = parser.parse_args()
    try:
        print("\n".join((catch_up if args.catch_up else reset)(args.lesson)))
    except lessons.LessonError as error:
        print(error)
        return 2
    except OSError as error:
        print(f"{error.filename or 'A file'} can't be written: {error.strerror}.")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
