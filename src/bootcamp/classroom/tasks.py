"""Exercises: what a reader is given, how the answer is checked, what an attempt can come to.

The answer of a FunctionTask is one function in a cell. That of a ScriptTask is a training script:
the reader edits it, the checker trains with it and compares.
"""

import ast
import contextlib
import copy
import inspect
import io
import itertools
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy

from bootcamp.classroom import errors
from bootcamp.experiments import equality
from bootcamp.launcher import launch
from bootcamp.paths import LOGS, WORK, shown
from bootcamp.scripts import diff, family

RUNS_TO_ITS_END = "a script that runs to its end"
LONG_FLOAT = re.compile(r"\d+\.\d{7,}")
PLACE = "# YOUR TURN: lines are missing here"
# without a step while nobody computes; CPU ranks that compute get ten times as long
PATIENCE = launch.Options(hang_seconds=6)


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
    lines = family.find(script).read_text().splitlines()
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


@dataclass(frozen=True, kw_only=True)
class FunctionTask(Task):
    """The reader's function must give what `solved_by` gives, on every case.

    cases: the arguments of each call. within: the relative error that a number may have.
    name: of the exercise, by default the solution's. unit: of what it returns, for the message.
    mistakes: what readers do -> what to say. They write a function, pieces of the solution's text
    and what stands there instead, or a factor of what it returns.
    """

    solved_by: Callable
    cases: tuple[tuple, ...]
    unit: str = ""
    within: float = 1e-3
    name: str = ""
    task: str = field(init=False)
    mistakes: dict[Callable | tuple[str, ...] | float, str] = field(default_factory=dict)

    def __post_init__(self):
        called = f"{self.solved_by.__name__}{inspect.signature(self.solved_by)}"
        object.__setattr__(self, "name", self.name or self.solved_by.__name__)
        object.__setattr__(self, "task", f"Write {called}: {inspect.getdoc(self.solved_by)}")

    def attempt(self, given: Callable | None) -> str:
        """Compare the reader's function with the solution. Raises Wrong."""
        if given is None:
            raise NotTried("your function as the second argument", "no function")
        if not callable(given):
            raise Wrong("a function", f"{given!r}, which can't be called: leave its brackets out")
        answers = [self._call(given, case) for case in self.cases]
        right = self._all(self.solved_by)
        for case, answer, expected in zip(self.cases, answers, right, strict=True):
            if not same(answer, expected, self.within):
                meaning = self._known_mistake(answers) or self._wrong_type(answer, expected)
                call = f"{_call_as_text(given, case)} to return {self._as_text(expected)}"
                raise Wrong(call, self._as_text(answer), meaning)
        return f"all {len(right)} cases come out right."

    def _call(self, given: Callable, case: tuple):
        call, arguments, printed = _call_as_text(given, case), copy.deepcopy(case), io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                answer = given(*arguments)
        except Exception as error:
            raise Wrong(f"{call} to return a value", f"{type(error).__name__}: {error}") from None
        finally:
            print(printed.getvalue(), end="")
        if answer is None and printed.getvalue().strip():
            raise Wrong(
                f"{call} to return a value",
                f"None, and printed: {printed.getvalue().splitlines()[0]}",
                "print shows a value to you, only return gives it to the code that calls.",
            )
        if answer is None or answer is Ellipsis:
            raise NotTried(
                "a value from your function", "None: it is not written yet, or lacks return"
            )
        if not same(arguments, case, 0):
            raise Wrong(
                f"{call} to leave its arguments as they are",
                f"it turned them into {', '.join(map(repr, arguments))}",
                "The code that calls still needs its list: work on a copy, list(...) makes one.",
            )
        return answer

    def _all(self, function: Callable) -> list:
        """What a function gives on each case; on a copy, for it may change what it is given."""
        return [function(*copy.deepcopy(case)) for case in self.cases]

    def _known_mistake(self, answers: list) -> str:
        for mistake, says in self.mistakes.items():
            would = self._all(self.mistaken(mistake))
            if all(same(a, b, self.within) for a, b in zip(answers, would, strict=True)):
                return says
        return ""

    def mistaken(self, mistake: Callable | tuple[str, ...] | float) -> Callable:
        """Return the function that makes one of `mistakes`."""
        if callable(mistake):
            return mistake
        if isinstance(mistake, tuple):
            return self._changed(mistake)
        return lambda *given: mistake * self.solved_by(*given)

    def _changed(self, pieces: tuple[str, ...]) -> Callable:
        """Return the solution with pieces of its text replaced: old, new, old, new and so on."""
        text, names = inspect.getsource(self.solved_by), dict(self.solved_by.__globals__)
        for old, new in zip(pieces[::2], pieces[1::2], strict=True):
            if old not in text:
                raise ValueError(f"{old!r} is not in {self.name}")
            text = text.replace(old, new)
        exec(text, names)
        return names[self.solved_by.__name__]

    def _wrong_type(self, answer, expected) -> str:
        if isinstance(answer, str):
            return "That is a string."
        kind = type(answer).__name__
        if isinstance(expected, list | tuple) and hasattr(answer, "tolist"):
            right, wanted = same(answer.tolist(), expected, self.within), type(expected).__name__
            return f"The numbers are right, but this is a {kind}: return a {wanted}." * right
        if inspect.isgenerator(answer):
            return "That is a generator, not yet a list: list(...) makes one."
        return ""

    def _as_text(self, value) -> str:
        text = f"{value:,.6g}" if isinstance(value, float) else repr(value)
        six_digits = LONG_FLOAT.sub(lambda found: f"{float(found[0]):.6g}", text)
        return f"{six_digits} {self.unit}".strip()

    def solution_shown(self) -> Shown:
        """The solution's source."""
        return Shown(inspect.getsource(self.solved_by))


def _call_as_text(function: Callable, case: tuple) -> str:
    return f"{getattr(function, '__name__', 'your function')}({', '.join(map(repr, case))})"


def same(answer, expected, within: float) -> bool:
    """Numbers by relative error, sequences and tensors by entry (a tuple may be a list), or ==."""
    if isinstance(answer, numpy.bool_):
        answer = bool(answer)
    if hasattr(expected, "tolist"):
        return same(getattr(answer, "tolist", lambda: answer)(), expected.tolist(), within)
    if isinstance(expected, bool) or isinstance(answer, bool | str):
        return type(answer) is type(expected) and answer == expected
    if isinstance(expected, int | float):
        try:
            return math.isclose(float(answer), expected, rel_tol=within, abs_tol=1e-12)
        except (TypeError, ValueError):
            return False
    if isinstance(expected, list | tuple):
        if not isinstance(answer, list | tuple) or len(answer) != len(expected):
            return False
        return all(same(a, b, within) for a, b in zip(answer, expected, strict=True))
    if isinstance(expected, dict):
        keys = isinstance(answer, dict) and answer.keys() == expected.keys()
        return keys and all(same(answer[key], expected[key], within) for key in expected)
    return answer == expected


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
        lines = []
        for line in solution.path.read_text().splitlines():
            if line.strip() not in self.takes_out:
                lines.append(line)
                continue
            while diff.is_reason(lines[-1]) and not lines[-1].endswith(PLACE):
                lines.pop()
            if not any(before.endswith(PLACE) for before in lines):
                lines.append(line[: len(line) - len(line.lstrip())] + PLACE)
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
        family.remember(path, self.solution)
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
