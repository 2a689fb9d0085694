"""Test a lesson's sentences where it draws them: `claim.faster("name", "Two are faster.", a, b)`.

A claim on time is measured in pairs until the answer is clear or its seconds are spent, and no
verdict fails a cell. One on bytes, memory or counts must hold on any machine, or fails the cell.
"""

import contextlib
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean, stdev

from bootcamp import files, machine, quietness, units
from bootcamp.launcher.launch import launch
from bootcamp.launcher.progress import make_counter
from bootcamp.paths import LOGS, REFERENCE
from bootcamp.records.runs import Run
from bootcamp.table import with_code

FILE = "claims.json"
SUPPORTED, UNCLEAR, CONTRADICTED = "supported", "not distinguishable", "contradicted"
NOT_COUNTED = "not countable"
SECONDS = 12.0  # of a claim on time, if its cell gives no other budget
FEWEST, MOST = 3, 12  # pairs
# Student's t, two-sided 99 %, for that many pairs: quantile 0.995, with a degree of freedom less
T_99 = dict(enumerate((9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.25, 3.169, 3.106), 3))
COLOURS = {SUPPORTED: "#007756", CONTRADICTED: "#A84A00"}  # Okabe and Ito's hues, but darker
MARKS = {SUPPORTED: "✓", UNCLEAR: "?", CONTRADICTED: "✗", NOT_COUNTED: "–"}


class Contradicted(AssertionError):
    """A claim on bytes, memory or counts does not hold here."""


@dataclass
class Claim:
    """A sentence and its verdict."""

    name: str
    sentence: str
    kind: str
    verdict: str
    measured: str  # the effect in words
    effect: float | None = None  # of time: how many times as fast
    low: float | None = None  # its 99 % interval
    high: float | None = None
    pairs: int = 0
    text: str = ""  # what the verdict means
    reference: str = ""

    @property
    def supported(self) -> bool:
        return self.verdict == SUPPORTED

    @property
    def lines(self) -> list[str]:
        """All that a reader sees, the sentence first."""
        verdict = f"{self.verdict.capitalize()} here: {self.measured}."
        return [line for line in (self.sentence, verdict, self.text, self.reference) if line]

    def __repr__(self) -> str:
        sentence, verdict, *rest = self.lines
        return "\n".join([f"Claim: {sentence}", f"{MARKS[self.verdict]} {verdict}", *rest])

    def _repr_html_(self) -> str:
        sentence, verdict, *rest = map(with_code, repr(self).splitlines())
        colour = COLOURS.get(self.verdict, "#56606a")
        body = "<br>".join([sentence, f'<b style="color: {colour}">{verdict}</b>', *rest])
        return f'<div style="border-left: 4px solid {colour}; padding-left: 1em">{body}</div>'


def trial(script, ranks: int | None = None, **flags) -> Callable[[], Run]:
    """Prepare a run that a claim may repeat: launch() with these arguments, quietly."""
    return partial(launch, script, ranks, **{"quiet": True, **flags})


def faster(
    name: str,
    sentence: str,
    this: Callable,
    that: Callable,
    *,
    by: float = 1.0,
    seconds: float = SECONDS,
    of: Callable[[Run], float] = lambda run: 1 / run.samples_per_second,
    supported: str = "",
    otherwise: str = "",
) -> Claim:
    """Claim that `this` is more than `by` times as fast as `that`.

    Both are timed in pairs of alternating order until the verdict is clear or `seconds` are spent.
    this, that: trials, or functions without arguments that return seconds, or a Run. of: which
    seconds of a Run are compared. supported, otherwise: what follows if it is, and if not.
    """
    budget = float(os.environ.get("BOOTCAMP_CLAIM_SECONDS", seconds))
    began, longest, ratios, verdict = time.monotonic(), 0.0, [], UNCLEAR
    show = make_counter("measuring in pairs", f"at most {budget:.0f} s")
    while verdict == UNCLEAR and len(ratios) < MOST:
        pair_began = time.monotonic()
        if ratios and pair_began - began + longest > budget:
            break
        show(f"pair {len(ratios) + 1}")
        if len(ratios) % 2 == 0:
            fast, slow = _measure(this, of), _measure(that, of)
        else:
            slow, fast = _measure(that, of), _measure(this, of)
        ratios.append(slow / fast)
        longest = max(longest, time.monotonic() - pair_began)
        effect, low, high = interval(ratios)
        verdict = SUPPORTED if low > by else CONTRADICTED if high < by else UNCLEAR
    show("")
    pairs = len(ratios)
    known = f"between {low:.2f} and {high:.2f} at 99 % ({pairs} pairs)"
    if pairs < FEWEST:
        known = f"{pairs} of {FEWEST} pairs that an interval needs"
    measured = f"{effect:.2f} times as fast, {known}"
    text = supported if verdict == SUPPORTED else otherwise
    return _note(Claim(name, sentence, "time", verdict, measured, effect, low, high, pairs, text))


def _measure(trial: Callable, of: Callable[[Run], float]) -> float:
    result = trial()
    return of(result) if isinstance(result, Run) else float(result)


def equal(
    name: str,
    sentence: str,
    measured: float | None,
    expected: float,
    within: float = 0.0,
    kind: str = "bytes",
    **text,
) -> Claim:
    """Claim that a counted number is the expected one, up to a share of `within`.

    measured: None where this system does not count it. Raises Contradicted.
    """
    words, holds = f"expected {_amount(expected, kind)}", None
    if measured is not None:
        words = f"{_amount(measured, kind)}, {words}"
        holds = abs(measured - expected) <= within * abs(expected)
    return _note_counted(name, sentence, kind, holds, words, **text)


def larger(
    name: str, sentence: str, large: float | None, small: float | None, by=1.0, kind="bytes", **text
) -> Claim:
    """Claim that a counted number is more than `by` times another one.

    large, small: None where this system does not count it. Raises Contradicted.
    """
    words, holds = "no count on this system", None
    if large is not None and small is not None:
        words, holds = f"{_amount(large, kind)} and {_amount(small, kind)}", large > by * small
        words += f", {units.number(large / small)} times as much" if small else ""
    return _note_counted(name, sentence, kind, holds, words, **text)


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Return the ratios' geometric mean and 99 % interval; 0 to infinity for fewer than three.

    It is Student's t for the mean logarithm. Looked at after each pair, it errs in 5 of 100 tests.
    """
    logarithms = [math.log(ratio) for ratio in ratios]
    middle, count = fmean(logarithms), len(ratios)
    if count < FEWEST:
        return math.exp(middle), 0.0, math.inf
    half = T_99[count] * stdev(logarithms) / math.sqrt(count)
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def untested(name: str, sentence: str, why: str) -> Claim:
    """Note a claim on time that this machine can't test, and why."""
    return _note(Claim(name, sentence, "time", NOT_COUNTED, why))


def read_notes(since: float = 0.0) -> dict[str, dict]:
    """Read the last test of each claim on this machine, by name. since: Unix seconds."""
    kept = files.read_json(LOGS / FILE).get("claims", {})
    return {name: claim for name, claim in kept.items() if claim["unix_seconds"] >= since}


def _amount(value: float, kind: str) -> str:
    return units.size(value) if kind in ("bytes", "memory") else units.number(value)


def _note_counted(name, sentence, kind, holds, measured, supported="", otherwise="") -> Claim:
    verdict = NOT_COUNTED if holds is None else SUPPORTED if holds else CONTRADICTED
    text = supported if holds else otherwise
    found = _note(Claim(name, sentence, kind, verdict, measured, text=text))
    if verdict == CONTRADICTED:
        raise Contradicted(f"{sentence} {found.lines[1]}")
    return found


def _note(claim: Claim) -> Claim:
    """Note the claim; beside one that is not supported here put the reference's verdict."""
    known = files.read_json(REFERENCE / FILE)
    if not claim.supported and (its := known.get("claims", {}).get(claim.name)):
        where = f"{known['machine']['cpu']}, {known['machine']['cores']} cores"
        found = f"{its['verdict']}, {its['measured']}"
        claim.reference = f"Recorded on the reference machine ({where}): {found}."
    last = quietness.read_last()
    entry = asdict(claim) | {"quiet": last and last.is_quiet, "unix_seconds": time.time()}
    del entry["text"], entry["reference"]

    def change(kept: dict) -> None:
        kept["machine"] = machine.describe()
        kept.setdefault("claims", {})[claim.name] = entry

    with contextlib.suppress(OSError):  # a folder that can't be written: the cell shows it anyway
        files.update_json(LOGS / FILE, change)
    return claim
