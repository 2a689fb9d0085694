"""What all exercises have in common, and what an attempt at one can come to."""

import ast
import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

from bootcamp.classroom import errors
from bootcamp.experiments import equality
from bootcamp.launcher import launch
from bootcamp.paths import shown

RUNS_TO_ITS_END = "a script that runs to its end"


class Wrong(Exception):
    """Why an attempt does not solve an exercise: what was expected, what was seen, its meaning."""

    def __init__(self, expected: str, seen: str, meaning: str = ""):
        super().__init__(f"expected {expected}, seen {seen}")
        self.expected, self.seen, self.meaning = expected, seen, meaning


class NotTried(Wrong):
    """Nothing was tried yet: a cell that is as the lesson left it. It counts as no attempt."""


class Shown(str):
    """Python source that a notebook shows as such."""

    def _repr_markdown_(self) -> str:
        return f"```python\n{self}\n```"


class Plain(str):
    """Text that a notebook shows as it is."""

    __repr__ = str.__str__


@dataclass(frozen=True)
class Task:
    """A name, a task in words, a hint, and a stronger one."""

    name: str
    task: str
    hint: str
    stronger: str

    def attempt(self, given) -> str:
        """Try what the reader has given; a sentence on why it is right. Raises Wrong."""
        raise NotImplementedError

    def help(self, attempts: int = 1) -> str:
        """The hint, from the second attempt on a stronger one too; how to see the solution."""
        if not attempts:
            return "Try it first: a hint comes with the first attempt."
        lines = [f"Hint: {self.hint}"]
        lines += [f"Stronger hint: {self.stronger}"] if attempts > 1 else []
        return "\n".join([*lines, f'The solution: exercise.solution("{self.name}")'])


def told(error: dict, script: Path) -> str:
    """A run's error in a few lines, and the line of the script that each rank was in."""
    if error["kind"] != "hang":
        text = errors.last_lines(error["traceback"] or error["message"])
        lines = _lines_of(script, error["traceback"])
        return f"{text}\nThis was rank {error['rank']}, in {lines[-1]}" if lines else text
    text = [error["message"].partition(". ")[0]]
    for stack in re.split(r"^(?=rank \d)", error["traceback"], flags=re.M)[1:]:
        call = re.search(r" in (\w+)$", stack, flags=re.M)
        inside = f"in {call[1]} of a library, " if call else ""
        nowhere = f"no line of the script: {inside}at its end, or not begun"
        line = next(iter(_lines_of(script, stack)), nowhere)
        text.append(f"{stack.partition(',')[0]} is in {line}")
    return "\n".join(text)


def _lines_of(script: Path, stack: str) -> list[str]:
    numbers = map(int, re.findall(rf"{re.escape(script.name)}\", line (\d+)", stack))
    lines = script.read_text().splitlines()
    return [f"line {number}: {lines[number - 1].strip()}" for number in numbers]


@contextlib.contextmanager
def failures_explained(script: Path, meanings: dict[str, str] | None = None):
    """Turn a run of a script that fails, or its proof, into Wrong.

    meanings: fragment of an error's text -> what it means in this exercise; of other errors the
    index of errors knows the meaning.
    """
    try:
        yield
    except equality.NotTheSame as error:
        raise Wrong("the same training as the baseline", str(error)) from None
    except (ValueError, FileNotFoundError) as error:
        raise Wrong("a run that can be compared with the baseline", str(error)) from None
    except launch.LaunchError as error:
        known = [meaning for words, meaning in (meanings or {}).items() if words in str(error)]
        raise failed(error.error, script, *known[:1]) from None


def failed(error: dict, script: Path, meaning: str = "", expected: str = RUNS_TO_ITS_END) -> Wrong:
    """Why a run that failed counts as wrong: the end of its error, and what it means."""
    entry = errors.find(f"{error['message']}\n{error['traceback']}")
    if entry and not meaning:
        meaning = f"{entry.means} {entry.fix}"
    return Wrong(expected, f"an error.\n{told(error, script)}", meaning)


def check_syntax(script: Path) -> None:
    """Raise Wrong, naming file and line, if Python cannot parse a script."""
    try:
        ast.parse(script.read_text(), filename=str(script))
    except SyntaxError as error:
        line = (error.text or "").strip()
        where = f"line {error.lineno} of {shown(script)}"
        raise Wrong("a script that Python can read", f"{where}: {error.msg}: {line}") from None
