"""Test a lesson's sentences where it draws them.

    from bootcamp import claim, trial

    claim.faster(
        "ddp_beats_one_process",
        "Two ranks train more samples a second than one process.",
        trial("ddp", ranks=2, **same),
        trial("cpu", **same),
    )

A claim on time is measured in pairs until the answer is clear or its seconds are spent, and no
verdict fails a cell: other load is no fault of the reader. A claim on bytes, memory or counts must
hold on any machine, and fails the cell where it does not. Each is noted, for `claim.table()` and
`make claims`; logs/reference/claims.json has what the reference machine found.
"""

import contextlib
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import fmean, stdev

from bootcamp import files, machine, quiet, units
from bootcamp.launcher.launch import launch
from bootcamp.launcher.progress import counter
from bootcamp.paths import LOGS, REFERENCE
from bootcamp.records.runs import Run
from bootcamp.table import Table, with_code

FILE = "claims.json"
SUPPORTED, UNCLEAR, CONTRADICTED = "supported", "not distinguishable", "contradicted"
NOT_COUNTED = "not countable"
SECONDS = 12.0  # of a claim on time, if its cell gives no other budget
FEWEST, MOST = 3, 12  # pairs
# Student's t, two-sided 99 %, for that many pairs: quantiles 0.995 with one degree of freedom less
T_99 = {3: 9.925, 4: 5.841, 5: 4.604, 6: 4.032, 7: 3.707, 8: 3.499, 9: 3.355, 10: 3.250}
T_99 |= {11: 3.169, 12: 3.106}
# Okabe and Ito's hues, dark enough for text on white
COLOURS = {SUPPORTED: "#007756", UNCLEAR: "#56606a", CONTRADICTED: "#A84A00"}
MARKS = {SUPPORTED: "✓", UNCLEAR: "?", CONTRADICTED: "✗", NOT_COUNTED: "–"}


class Contradicted(AssertionError):
    """A claim on bytes, memory or counts does not hold here."""


@dataclass
class Claim:
    """A sentence and its verdict.

    kind: time, bytes, memory or count. measured: the effect in words. low, effect, high: for time,
    how many times as fast, and its 99 % interval. text: what the verdict means.
    """

    name: str
    sentence: str
    kind: str
    verdict: str
    measured: str
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    pairs: int = 0
    seconds: float = 0.0
    text: str = ""
    reference: str = field(default="", repr=False)

    @property
    def supported(self) -> bool:
        return self.verdict == SUPPORTED

    @property
    def lines(self) -> list[str]:
        """All that a reader sees, the sentence first."""
        verdict = f"{self.verdict.capitalize()} here: {self.measured}."
        return [line for line in (self.sentence, verdict, self.text, self.reference) if line]

    def __str__(self) -> str:
        sentence, verdict, *rest = self.lines
        return "\n".join([f"Claim: {sentence}", f"{MARKS[self.verdict]} {verdict}", *rest])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        sentence, verdict, *rest = map(with_code, self.lines)
        colour = COLOURS.get(self.verdict, COLOURS[UNCLEAR])
        verdict = f'<b style="color: {colour}">{MARKS[self.verdict]} {verdict}</b>'
        body = "<br>".join([f"<b>Claim.</b> {sentence}", verdict, *rest])
        return f'<div style="border-left: 4px solid {colour}; padding-left: 1em">{body}</div>'


def trial(script, ranks: int | None = None, **flags) -> Callable[[], Run]:
    """Prepare a run that a claim may repeat: launch() with these arguments, quietly."""
    return partial(launch, script, ranks, **{"quiet": True, **flags})


def faster(name: str, sentence: str, this, that, *, by: float = 1.0, **how) -> Claim:
    """Claim that `this` is more than `by` times as fast as `that`.

    this, that: trials, or functions without arguments that return seconds, or a Run.
    how: see compare().
    """

    def judge(low: float, high: float) -> str:
        return SUPPORTED if low > by else CONTRADICTED if high < by else UNCLEAR

    return compare(name, sentence, this, that, judge, **how)


def as_fast(name: str, sentence: str, this, that, *, within: float = 0.1, **how) -> Claim:
    """Claim that `this` and `that` are equally fast, up to a share of `within`."""

    def judge(low: float, high: float) -> str:
        least, most = 1 / (1 + within), 1 + within
        if least < low and high < most:
            return SUPPORTED
        return CONTRADICTED if high < least or low > most else UNCLEAR

    return compare(name, sentence, this, that, judge, **how)


def compare(
    name: str,
    sentence: str,
    this: Callable,
    that: Callable,
    judge: Callable[[float, float], str],
    *,
    seconds: float = SECONDS,
    of: Callable[[Run], float] | None = None,
    supported: str = "",
    otherwise: str = "",
) -> Claim:
    """Time both in pairs of alternating order until the verdict is clear or `seconds` are spent.

    The interval is Student's t for the mean logarithm of the pairs' ratios, at 99 % since it is
    looked at after every pair.

    judge: (low, high) of "how many times as fast" -> verdict. of: which seconds of a Run are
    compared; by default those of a sample, median over its steps.
    supported, otherwise: what follows from the measurement if it supports the claim, and if not.
    """
    budget = float(os.environ.get("BOOTCAMP_CLAIM_SECONDS", seconds))
    began, ratios, longest = time.monotonic(), [], 0.0
    low = high = effect = None
    verdict, show = UNCLEAR, counter("measuring in pairs", f"at most {budget:.0f} s")
    while len(ratios) < MOST:
        left = budget - (time.monotonic() - began)
        if ratios and left < longest:
            break
        show(f"pair {len(ratios) + 1}")
        pair_began = time.monotonic()
        ratios.append(_ratio(this, that, of, swapped=len(ratios) % 2 == 1))
        longest = max(longest, time.monotonic() - pair_began)
        effect, low, high = interval(ratios)
        verdict = judge(low, high)
        if verdict != UNCLEAR:
            break
    show("")
    text = supported if verdict == SUPPORTED else otherwise
    measured = f"{effect:.2f} times as fast, {_range(low, high, len(ratios))}"
    spent = time.monotonic() - began
    found = Claim(
        name, sentence, "time", verdict, measured, effect, low, high, len(ratios), spent, text
    )
    return _noted(found)


def equal(
    name: str,
    sentence: str,
    measured: float | None,
    expected: float,
    *,
    within: float = 0.0,
    kind: str = "bytes",
    **text,
) -> Claim:
    """Claim that a counted number is the expected one, up to a share of `within`.

    measured: None where this system does not count it. Raises Contradicted.
    """
    if measured is None:
        return _counted(name, sentence, kind, None, f"expected {_amount(expected, kind)}", text)
    holds = abs(measured - expected) <= within * abs(expected)
    words = f"{_amount(measured, kind)}, expected {_amount(expected, kind)}"
    return _counted(name, sentence, kind, holds, words, text)


def larger(
    name: str,
    sentence: str,
    large: float | None,
    small: float | None,
    *,
    by: float = 1.0,
    kind: str = "bytes",
    **text,
) -> Claim:
    """Claim that a counted number is more than `by` times another one.

    large, small: None where this system does not count it. Raises Contradicted.
    """
    if large is None or small is None:
        return _counted(name, sentence, kind, None, "no count on this system", text)
    words = f"{_amount(large, kind)} and {_amount(small, kind)}"
    if small:
        words += f", {units.number(large / small)} times as much"
    return _counted(name, sentence, kind, large > by * small, words, text)


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Return the ratios' geometric mean and 99 % interval; 0 to infinity for fewer than three."""
    logarithms = [math.log(ratio) for ratio in ratios]
    middle, count = fmean(logarithms), len(ratios)
    if count < FEWEST:
        return math.exp(middle), 0.0, math.inf
    half = T_99[count] * stdev(logarithms) / math.sqrt(count)
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def untested(name: str, sentence: str, why: str) -> Claim:
    """Note a claim on time that this machine can't test, and why."""
    return _noted(Claim(name, sentence, "time", NOT_COUNTED, why))


def noted(since: float = 0.0) -> dict[str, dict]:
    """Read the last test of each claim on this machine, by name. since: Unix seconds."""
    kept = files.read_json(LOGS / FILE).get("claims", {})
    return {name: claim for name, claim in kept.items() if claim["unix_seconds"] >= since}


def recorded() -> dict:
    """Read what the reference machine found: {"machine": ..., "claims": {name: ...}}."""
    return files.read_json(REFERENCE / FILE)


def table(found: dict[str, dict] | None = None) -> Table:
    """List the claims that were tested here, in the order of their first test."""
    found = noted() if found is None else found
    rows = [
        {
            "claim": name,
            "kind": claim["kind"],
            "verdict here": claim["verdict"],
            "measured": claim["measured"],
            "sentence": claim["sentence"],
        }
        for name, claim in found.items()
    ]
    return Table(rows, f"{len(rows)} claims tested on this machine")


def counts(found: dict[str, dict]) -> Table:
    """Count the claims of each kind and verdict."""
    rows = []
    for kind in dict.fromkeys(claim["kind"] for claim in found.values()):
        of_kind = [claim["verdict"] for claim in found.values() if claim["kind"] == kind]
        row = {verdict: of_kind.count(verdict) for verdict in MARKS}
        rows.append({"kind": kind, "claims": len(of_kind)} | row)
    return Table(rows, "Claims by kind and verdict")


def _ratio(this, that, of, swapped: bool) -> float:
    """Measure one pair: the seconds of `that` over those of `this`."""
    if swapped:
        slow = _seconds(that(), of)
        return slow / _seconds(this(), of)
    fast = _seconds(this(), of)
    return _seconds(that(), of) / fast


def _seconds(result, of) -> float:
    if not isinstance(result, Run):
        return float(result)
    return of(result) if of else 1 / result.samples_per_second


def _range(low: float, high: float, pairs: int) -> str:
    if not math.isfinite(high):
        return f"{pairs} of {FEWEST} pairs that an interval needs"
    return f"between {low:.2f} and {high:.2f} at 99 % ({pairs} pairs)"


def _amount(value: float, kind: str) -> str:
    return units.size(value) if kind in ("bytes", "memory") else units.number(value)


def _counted(name, sentence, kind, holds: bool | None, measured: str, text: dict) -> Claim:
    verdict = NOT_COUNTED if holds is None else SUPPORTED if holds else CONTRADICTED
    words = text.get("supported" if holds else "otherwise", "")
    found = _noted(Claim(name, sentence, kind, verdict, measured, text=words))
    if verdict == CONTRADICTED:
        raise Contradicted(f"{sentence} {found.lines[1]}")
    return found


def _noted(claim: Claim) -> Claim:
    """Note the claim; beside one that is not supported here put the reference's verdict."""
    if not claim.supported:
        claim.reference = _of_the_reference(claim.name)
    entry = asdict(claim)
    del entry["text"], entry["reference"]
    last = quiet.last()
    entry |= {"quiet": last.is_quiet if last else None, "unix_seconds": time.time()}

    def change(kept: dict) -> None:
        kept["machine"] = machine.describe()
        kept.setdefault("claims", {})[claim.name] = entry

    with contextlib.suppress(OSError):  # a folder that can't be written: the cell shows it anyway
        files.update_json(LOGS / FILE, change)
    return claim


def _of_the_reference(name: str) -> str:
    kept = recorded()
    claim = kept.get("claims", {}).get(name)
    if claim is None:
        return ""
    where = f"{kept['machine']['cpu']}, {kept['machine']['cores']} cores"
    return f"Recorded on the reference machine ({where}): {claim['verdict']}, {claim['measured']}."
