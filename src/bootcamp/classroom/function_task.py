"""An exercise whose answer is one function that the reader writes in a cell."""

import contextlib
import copy
import inspect
import io
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy

from bootcamp.classroom.tasks import NotTried, Shown, Task, Wrong


@dataclass(frozen=True)
class FunctionTask(Task):
    """The reader's function must give what `solved_by` gives, on every case.

    cases: the arguments of each call. within: the relative error that a number may have.
    unit: of what the function returns, for the message.
    mistakes: what to say -> a function that goes wrong as readers do. A reader hears it whose
    function gives the same on all cases.
    """

    solved_by: Callable
    cases: tuple[tuple, ...]
    unit: str = ""
    within: float = 1e-3
    mistakes: dict[str, Callable] = field(default_factory=dict)

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
                raise Wrong(
                    f"{_said_call(given, case)} to return {self._said(expected)}",
                    self._said(answer),
                    self._known_mistake(answers),
                )
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
        for says, mistaken in self.mistakes.items():
            would = self._all(mistaken)
            if all(same(a, b, self.within) for a, b in zip(answers, would, strict=True)):
                return says
        return ""

    def _said(self, value) -> str:
        text = f"{value:,.6g}" if isinstance(value, float) else repr(value)
        return f"{text} {self.unit}".strip()

    def solution_shown(self) -> Shown:
        """The solution's source."""
        return Shown(inspect.getsource(self.solved_by))


def _said_call(function: Callable, case: tuple) -> str:
    return f"{getattr(function, '__name__', 'your function')}({', '.join(map(repr, case))})"


def same(answer, expected, within: float) -> bool:
    """Numbers by relative error, sequences entry by entry (a tuple may be a list), rest by ==."""
    if isinstance(answer, numpy.bool_):
        answer = bool(answer)
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
