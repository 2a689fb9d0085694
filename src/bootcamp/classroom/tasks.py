"""Exercises: the task of a reader, how the answer is checked, and what an attempt can come to.

The answer to a FunctionTask is one function in a cell. That to a ScriptTask is a training script:
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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bootcamp.classroom import errors
from bootcamp.experiments import equality
from bootcamp.launcher import launch
from bootcamp.paths import LOGS, WORK, shown
from bootcamp.scripts import diff, strategies

RUNS_TO_ITS_END = "a script that runs to its end"
LONG_FLOAT = re.compile(r"\d+\.\d{7,}")
PLACE = "# YOUR TURN: lines are missing here"
# without a step while nobody computes; CPU ranks that compute get ten times as long
PATIENCE = launch.Options(hang_seconds=6)


class Wrong(Exception):
    """Why an attempt fails: what was expected and seen, its meaning (from attempt `since` on)."""

    def __init__(self, expected: str, seen: str, meaning: str = "", since: int = 1):
        super().__init__(f"expected {expected}, seen {seen}")
        self.expected, self.seen, self.meaning, self.since = expected, seen, meaning, since


class NotTried(Wrong):
    """Nothing was tried yet: a cell that is as the lesson left it. It counts as no attempt."""


class Plain(str):
    """Text that a notebook displays without quotes."""

    __repr__ = str.__str__


class PythonSource(Plain):
    """Python source that a notebook displays as code."""

    def _repr_markdown_(self) -> str:
        return f"```python\n{self}\n```"


@dataclass(frozen=True)
class Task:
    """A name, a task in words, a hint, and a stronger one.

    A kind of task adds `attempt`, which checks an answer: it says why it is right, or raises Wrong.
    """

    name: str
    task: str
    hint: str
    stronger: str

    def help(self, attempts: int = 1) -> str:
        """Return the hint, from the third attempt the stronger one, and how to see the solution."""
        if not attempts:
            return "Try it first: a hint comes with the first attempt."
        lines = [f"Hint: {self.hint}"]
        lines += [f"Stronger hint: {self.stronger}"] if attempts > 2 else []
        return "\n".join([*lines, f'The solution: exercise.solution("{self.name}")'])


def describe_failure(error: dict, script: Path) -> str:
    """Return a run's error in a few lines, and the line of the script that each rank was in."""
    if error["kind"] != "hang":
        text = errors.last_lines(error["traceback"] or error["message"])
        lines = _lines_in_script(script, error["traceback"])
        return f"{text}\nThis was rank {error['rank']}, in {lines[-1]}" if lines else text
    hangs, _, why = error["message"].partition(". ")
    text = [hangs, *filter(None, [why.rpartition(". If a step")[0]])]
    for stack in re.split(r"^(?=rank \d)", error["traceback"], flags=re.M)[1:]:
        call = re.search(r" in (\w+)$", stack, flags=re.M)
        inside = f"in {call[1]} of a library, " if call else ""
        nowhere = f"no line of the script: {inside}at its end, or not begun"
        line = next(iter(_lines_in_script(script, stack)), nowhere)
        text.append(f"{stack.partition(',')[0]} is in {line}")
    return "\n".join(text)


def _lines_in_script(script: Path, stack: str) -> list[str]:
    numbers = map(int, re.findall(rf"{re.escape(script.name)}\", line (\d+)", stack))
    lines = strategies.find(script).read_text().splitlines()
    return [f"line {number}: {lines[number - 1].strip()}" for number in numbers]


@contextlib.contextmanager
def explain_failures(script: Path, meanings: dict[str, str] | None = None):
    """Turn what is wrong with a script into Wrong: its syntax, the failure of its run or proof.

    meanings: fragment of an error's text -> what it means in this exercise. The meanings of other
    errors come from the index of errors.
    """
    try:
        if script.is_file():
            ast.parse(script.read_text(), filename=str(script))
        yield
    except SyntaxError as error:
        where = f"line {error.lineno} of {shown(script)}"
        line = (error.text or "").strip()
        raise Wrong("a script that Python can read", f"{where}: {error.msg}: {line}") from None
    except equality.NotTheSame as error:
        raise Wrong("the same training as the baseline", str(error)) from None
    except (ValueError, FileNotFoundError) as error:
        raise Wrong("a run that can be compared with the baseline", str(error)) from None
    except launch.LaunchError as error:
        known = [meaning for words, meaning in (meanings or {}).items() if words in str(error)]
        raise make_wrong(error.error, script, *known[:1]) from None


def make_wrong(
    error: dict, script: Path, meaning: str = "", expected: str = RUNS_TO_ITS_END
) -> Wrong:
    """Make the Wrong of a run that failed: the end of its error, and what it means."""
    entry = errors.find(f"{error['message']}\n{error['traceback']}")
    if entry and not meaning:
        meaning = f"{entry.means} {entry.fix}"
    return Wrong(expected, f"an error.\n{describe_failure(error, script)}", meaning)


@dataclass(frozen=True, kw_only=True)
class FunctionTask(Task):
    """A task to write a function that returns what `solved_by` returns, on every case."""

    solved_by: Callable
    cases: tuple[tuple, ...]  # the arguments of each call
    unit: str = ""  # of the result, for messages
    within: float = 1e-3  # the relative error that a number may have
    # {a typical mistake: what to say}: a function, or pieces of the solution's text and their
    # replacements (old, new, old, new ...), or a factor of the solution's result
    mistakes: dict[Callable | tuple[str, ...] | float, str] = field(default_factory=dict)

    @classmethod
    def from_solution(cls, **fields) -> Callable[[Callable], Callable]:
        """Decorator: make the function the solution of a task, which becomes its `exercise`.

        The task is its docstring; its name is the exercise's too, unless `fields` have one.
        """

        def decorate(solution: Callable) -> Callable:
            name = solution.__name__
            task = f"Write {name}{inspect.signature(solution)}: {inspect.getdoc(solution)}"
            given = {"name": name, "task": task, "solved_by": solution} | fields
            solution.exercise = cls(**given)
            return solution

        return decorate

    def attempt(self, given: Callable | None) -> str:
        """Compare the reader's function with the solution. Raises Wrong."""
        if given is None:
            raise NotTried("your function as the second argument", "no function")
        if not callable(given):
            raise Wrong("a function", f"{given!r}, which can't be called: leave its brackets out")
        answers = [self._call(given, case) for case in self.cases]
        results = self._results(self.solved_by)
        for case, answer, expected in zip(self.cases, answers, results, strict=True):
            if not is_same(answer, expected, self.within):
                meaning = self._known_mistake(answers) or self._wrong_type(answer, expected)
                call = f"{_as_call(given, case)} to return {self._as_text(expected)}"
                raise Wrong(call, self._as_text(answer), meaning)
        return f"right in all cases ({len(results)})."

    def _call(self, given: Callable, case: tuple):
        call, arguments, printed = _as_call(given, case), copy.deepcopy(case), io.StringIO()
        returns = f"{call} to return a value"
        try:
            with contextlib.redirect_stdout(printed):
                answer = given(*arguments)
        except Exception as error:
            raise Wrong(returns, f"{type(error).__name__}: {error}") from None
        finally:
            print(printed.getvalue(), end="")
        if answer is None and (text := printed.getvalue()).strip():
            meaning = "print shows a value to you, only return gives it to the code that calls."
            raise Wrong(returns, f"None, and printed: {text.splitlines()[0]}", meaning)
        if answer is None or answer is Ellipsis:
            unwritten = "None: it is not written yet, or lacks return"
            raise NotTried("a value from your function", unwritten)
        if not is_same(arguments, case, 0):
            raise Wrong(
                f"{call} to leave its arguments as they are",
                f"it turned them into {', '.join(map(repr, arguments))}",
                "The code that calls still needs its list: work on a copy, list(...) makes one.",
            )
        return answer

    def _results(self, function: Callable) -> list:
        return [function(*copy.deepcopy(case)) for case in self.cases]  # it may change arguments

    def _known_mistake(self, answers: list) -> str:
        for mistake, meaning in self.mistakes.items():
            if is_same(answers, self._results(self.make_mistake(mistake)), self.within):
                return meaning
        return ""

    def make_mistake(self, mistake: Callable | tuple[str, ...] | float) -> Callable:
        """Return the function that makes one of `mistakes`."""
        if callable(mistake):
            return mistake
        if not isinstance(mistake, tuple):
            return lambda *given: mistake * self.solved_by(*given)
        text, names = self.solution_text(), dict(self.solved_by.__globals__)
        for old, new in zip(mistake[::2], mistake[1::2], strict=True):
            text = text.replace(old, new)
        exec(text, names)
        return names[self.solved_by.__name__]

    def _wrong_type(self, answer, expected) -> str:
        if isinstance(answer, str) and not isinstance(expected, str):
            return "That is a string."
        if hasattr(answer, "tolist") and is_same(answer.tolist(), expected, self.within):
            kind, wanted = type(answer).__name__, type(expected).__name__
            return f"The numbers are right, but this is a {kind}: return a {wanted}."
        if inspect.isgenerator(answer):
            return "That is a generator, not yet a list: list(...) makes one."
        return ""

    def _as_text(self, value) -> str:
        text = f"{value:,.6g}" if isinstance(value, float) else repr(value)
        six_digits = LONG_FLOAT.sub(lambda found: f"{float(found[0]):.6g}", text)
        return f"{six_digits} {self.unit}".strip()

    def solution_text(self) -> PythonSource:
        """Return the source of the solution, without its decorators."""
        source = inspect.getsource(self.solved_by)
        return PythonSource(re.sub(r"\A@.*?^(?=def )", "", source, flags=re.S | re.M))


def _as_call(function: Callable, case: tuple) -> str:
    return f"{getattr(function, '__name__', 'your function')}({', '.join(map(repr, case))})"


def is_same(answer, expected, within: float) -> bool:
    """Compare numbers by relative error, collections and tensors by entry, others by ==.

    A list may be a tuple or a range, a number a scalar of NumPy or torch.
    """
    if hasattr(answer, "tolist") and not isinstance(expected, list | tuple):
        answer = answer.tolist()
    if hasattr(expected, "tolist"):
        expected = expected.tolist()
    if isinstance(expected, bool) or isinstance(answer, bool | str):
        return type(answer) is type(expected) and answer == expected
    if isinstance(expected, int | float):
        try:
            return math.isclose(float(answer), expected, rel_tol=within, abs_tol=1e-12)
        except (TypeError, ValueError):
            return False
    if isinstance(expected, list | tuple):
        alike = isinstance(answer, list | tuple | range) and len(answer) == len(expected)
        return alike and all(map(is_same, answer, expected, itertools.repeat(within)))
    if isinstance(expected, dict):
        alike = isinstance(answer, dict) and answer.keys() == expected.keys()
        return alike and all(is_same(answer[key], expected[key], within) for key in expected)
    return answer == expected


@dataclass(frozen=True)
class ScriptTask(Task):
    """A task whose solution is a script of the family."""

    solution: str = ""
    # its lines that the reader is to find again; without any, the reader begins with its parent
    takes_out: tuple[str, ...] = ()
    ranks: int = 1  # that the checker starts
    # called with a script that trains the same and its proofs: says what else is wrong, or ""
    also: Callable[[Path, list[equality.Proof]], str] | None = None
    errors: dict[str, str] = field(default_factory=dict)  # see explain_failures
    flags: dict[str, str] = field(default_factory=dict)  # of the checker's runs, such as a model

    @property
    def path(self) -> Path:
        return WORK / f"{self.name}.py"

    def starting_point(self) -> str:
        solution = strategies.SCRIPTS[self.solution]
        if not self.takes_out:
            return replace_docstring(
                strategies.SCRIPTS[solution.parent].path.read_text(), self.task
            )
        lines = []
        for line in solution.path.read_text().splitlines():
            if line.strip() not in self.takes_out:
                lines.append(line)
                continue
            while diff.is_reason(lines[-1]) and not lines[-1].endswith(PLACE):
                lines.pop()
            if not any(before.endswith(PLACE) for before in lines):
                lines.append(line[: len(line) - len(line.lstrip())] + PLACE)
        return replace_docstring("\n".join(lines) + "\n", self.task)

    def solution_path(self) -> Path:
        """Return a script that solves the task."""
        return strategies.SCRIPTS[self.solution].path

    def write_solution(self, text: str) -> Path:
        """Write a solution that is not a file of the course."""
        path = LOGS / "variants" / f"{self.name}_solution.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def attempt(self, given: Path) -> str:
        """Run a script and compare it with the baseline. Raises Wrong."""
        with explain_failures(given, self.errors):
            return self.check_script(given)

    def check_script(self, path: Path) -> str:
        """Do as attempt; may also raise NotTheSame, ValueError or LaunchError."""
        strategies.record_copy(path, self.solution)
        proofs = equality.prove(path, self.ranks, options=PATIENCE, **self.flags)
        same = "the same training as the baseline with both optimizers."
        return self.look_further(path, proofs, same)

    def look_further(self, path: Path, proofs: list[equality.Proof], same: str) -> str:
        """Return `same` and how far any loss is from the baseline's. Raises Wrong for `also`."""
        if self.also and (wrong := self.also(path, proofs)):
            raise Wrong("more than the same training", f"it trains the same, but {wrong}")
        pairs = (pair for proof in proofs for pair in proof.pair.losses)
        largest = max(abs(mine - baseline) for mine, baseline in pairs)
        return f"{same} The largest difference of any step's loss is {largest:.1e}."


def replace_docstring(text: str, task: str) -> str:
    """Return a script's text with the task in place of its docstring."""
    return f'"""{task}"""' + text.split('"""', 2)[2]
