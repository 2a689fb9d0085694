"""python tools/reset.py LESSON, or: python tools/reset.py --catch-up LESSON

Put a lesson back to its starting state: its notebook without outputs, and none of the reader's
scripts for its exercises. What was there is kept in notebooks/work/ with `.before` in its name.

--catch-up is for who begins at this lesson: the solutions of the exercises before it, where the
reader has nothing of their own, what the lessons before it were for, and which of them it needs.
All of this is read from notebooks/sources/ and the map in README.md.
"""

import argparse
import ast
import re
import shutil
import sys
import textwrap
from pathlib import Path

import nbformat

import notebooks
from bootcamp.classroom import exercise
from bootcamp.paths import NOTEBOOKS, ROOT, WORK, shown

AFTER = re.compile(r"\bafter lessons? (\d\d[a-z]?(?:(?:, | and )\d\d[a-z]?)*)")


class UnknownLesson(Exception):
    """A lesson that is not here. Its text names those that are."""


def lessons() -> dict[str, Path]:
    """{"04b": its source}, in the order of the course."""
    return {path.stem.split("_")[0]: path for path in notebooks.sources()}


def find(lesson: str | None) -> Path:
    """The source of a lesson. Raises UnknownLesson."""
    if lesson not in lessons():
        given = f"There is no lesson {lesson}" if lesson else "Say which lesson"
        raise UnknownLesson(f"{given}: give LESSON= one of {', '.join(lessons())}.")
    return lessons()[lesson]


def exercises(source: Path) -> list[str]:
    """The names of a lesson's exercises whose answer is a script: those that it starts."""
    return [
        call.args[0].value
        for call in ast.walk(ast.parse(source.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "exercise.start"
    ]


def reset(lesson: str) -> list[str]:
    """Put a lesson back; what was done, a sentence each. Raises UnknownLesson."""
    source = find(lesson)
    said = [reset_notebook(source)]
    for name in exercises(source):
        path = WORK / f"{name}.py"
        if path.exists():
            said.append(f"{shown(path)} is now {shown(set_aside(path, 'py.before'))}.")
    return said


def reset_notebook(source: Path) -> str:
    """Make the notebook anew from its source, unless it is as it was."""
    path = NOTEBOOKS / f"{source.stem}.ipynb"
    kept = ""
    if path.exists():
        if is_untouched(path, source):
            return f"{shown(path)} is in its starting state: it is left as it is."
        kept = f" What was there is now {shown(set_aside(path, 'before.ipynb'))}."
    nbformat.write(notebooks.from_source(source), path)
    reload = "If it is open, say File > Reload Notebook from Disk."
    return f"{shown(path)} is made anew from its source.{kept} {reload}"


def is_untouched(path: Path, source: Path) -> bool:
    try:
        return notebooks.same_cells(nbformat.read(path, 4), source)
    except Exception:  # half a file, or none of Jupyter's: nbformat raises many kinds
        return False


def set_aside(path: Path, suffix: str) -> Path:
    """Move a file to the readers' scripts as NAME.suffix, with a number where that is taken."""
    place, number = WORK / path.name, 1
    place.parent.mkdir(parents=True, exist_ok=True)
    while (beside := place.with_suffix(f".{numbered(suffix, number)}")).exists():
        number += 1
    return Path(shutil.move(path, beside))


def numbered(suffix: str, number: int) -> str:
    return suffix if number == 1 else suffix.replace("before", f"before-{number}")


def catch_up(lesson: str) -> list[str]:
    """Fill in the solutions of the lessons before; what to know of them. Raises UnknownLesson."""
    source = find(lesson)
    before = [name for name in lessons() if lessons()[name] < source]
    said = [f"Before lesson {lesson}, {title(source)}:"]
    for name in before:
        said += ["", f"{name} {title(lessons()[name])}", *indented(goals(lessons()[name]))]
        said += [line for each in exercises(lessons()[name]) for line in indented(fill_in(each))]
    needed = path_to(lesson)
    minutes = sum(minutes_of(lessons()[name]) for name in needed)
    names = ", ".join(needed) or "none"
    return [*said, "", f"The shortest path to lesson {lesson}: {names} ({minutes} minutes)."]


def fill_in(name: str) -> str:
    """Write an exercise's solution where the reader has none; what was done, in a sentence."""
    task = exercise.find(name)
    path = WORK / f"{name}.py"
    if path.exists() and path.read_text() != task.starting_point():
        return f"{shown(path)} is yours: it is left as it is."
    solved = task.solved()
    text = solved.read_text()
    if solved.parent == WORK:  # made for this question only
        solved.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return f"{shown(path)} is the solution now."


def head(source: Path) -> list[str]:
    """The paragraphs of a lesson's first cell, without comment marks and line breaks."""
    cell = source.read_text().split("# %%")[1]
    lines = [line.removeprefix("#").strip() for line in cell.splitlines()[1:]]
    return [" ".join(part.split("\n")) for part in "\n".join(lines).strip().split("\n\n")]


def title(source: Path) -> str:
    return head(source)[0].lstrip("# ").split(" ", 1)[1]


def goals(source: Path) -> str:
    """What one can do after a lesson, in its own words."""
    found = [text for text in head(source) if text.startswith("After this lesson you can")]
    return found[0] if found else ""


def minutes_of(source: Path) -> int:
    match = re.search(r"\*\*(\d+) minutes\*\*", " ".join(head(source)))
    return int(match[1]) if match else 0


def path_to(lesson: str) -> list[str]:
    """The lessons that one needs before it: the first of all, and those that each says it is after.

    They stand at a lesson's head ("after lessons 04 and 06"), or in its row of the map.
    """
    needed, open_ones = {next(iter(lessons()))}, [lesson]
    while open_ones:
        name = open_ones.pop()
        row = re.search(rf"^\| \[{name} .*$", (ROOT / "README.md").read_text(), re.MULTILINE)
        text = " ".join([*head(lessons()[name]), row[0] if row else ""])
        direct = {
            each for match in AFTER.findall(text) for each in re.findall(r"\d\d[a-z]?", match)
        }
        open_ones += direct - needed
        needed |= direct
    return [name for name in lessons() if name in needed - {lesson}]


def indented(text: str) -> list[str]:
    return textwrap.wrap(text, 96, initial_indent="    ", subsequent_indent="    ")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("lesson", nargs="?", help="such as 04")
    parser.add_argument("--catch-up", action="store_true", help="fill in what is before it")
    args = parser.parse_args()
    try:
        print("\n".join((catch_up if args.catch_up else reset)(args.lesson)))
    except UnknownLesson as unknown:
        print(unknown)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
