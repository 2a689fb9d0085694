"""An exercise whose answer is one function that the reader writes in a cell."""

import contextlib
import copy
import inspect
import io
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy

from bootcamp.classroom.tasks import NotTried, Shown, Task, Wrong

LONG_FLOAT = re.compile(r"\d+\.\d{7,}")


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
                call = f"{_said_call(given, case)} to return {self._said(expected)}"
                raise Wrong(call, self._said(answer), meaning)
        return f"all {len(right)} cases come out right."

    def _call(self, given: Callable, case: tuple):
        call, arguments, printed = _said_call(given, case), copy.deepcopy(case), io.StringIO()
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

    def _said(self, value) -> str:
        text = f"{value:,.6g}" if isinstance(value, float) else repr(value)
        six_digits = LONG_FLOAT.sub(lambda found: f"{float(found[0]):.6g}", text)
        return f"{six_digits} {self.unit}".strip()

    def solution_shown(self) -> Shown:
        """The solution's source."""
        return Shown(inspect.getsource(self.solved_by))


def _said_call(function: Callable, case: tuple) -> str:
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
