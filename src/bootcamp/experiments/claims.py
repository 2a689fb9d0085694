"""Test a lesson's sentences where it draws them: `claim.faster("name", "Two are faster.", a, b)`.

A claim on time is measured in pairs until the answer is clear or its seconds are spent, and no
verdict fails a cell. One on bytes, memory or counts must hold on any machine, or fails the cell.
"""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from itertools import count
from statistics import median

from bootcamp import files, machine, quietness, units
from bootcamp.experiments import turns
from bootcamp.launcher.launch import Call
from bootcamp.launcher.progress import make_counter
from bootcamp.paths import LOGS, REFERENCE
from bootcamp.records.runs import Run
from bootcamp.table import with_code

FILE = "claims.json"
SUPPORTED, UNCLEAR, CONTRADICTED = "supported", "not distinguishable", "contradicted"
NOT_COUNTED = "not countable"
SECONDS = 12.0  # of a claim on time, if its cell gives no other budget
# Pairs after which the verdict is looked for, and once more when the seconds are spent. Identical
# sides get one in at most ERROR of the looks: together in less than 1 of 100 claims.
LOOKS, ERROR = (10, 20, 40, 80), 0.002
ALIKE = 1.02  # two launches of one program differ by as much
COLOURS = {SUPPORTED: "#007756", CONTRADICTED: "#A84A00"}  # Okabe and Ito's hues, but darker
PLACES = {"formula": "by the formula", "planner": "by the planner"}  # kind -> nothing is measured
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
    low: float | None = None  # its interval
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
        found = self.verdict if self.pairs >= LOOKS[0] or not self.pairs else "undecided"
        verdict = f"{found.capitalize()} {PLACES.get(self.kind, 'here')}: {self.measured}."
        return [line for line in (self.sentence, verdict, self.text, self.reference) if line]

    def __repr__(self) -> str:
        sentence, verdict, *rest = self.lines
        return "\n".join([f"Claim: {sentence}", f"{MARKS[self.verdict]} {verdict}", *rest])

    def _repr_html_(self) -> str:
        sentence, verdict, *rest = map(with_code, repr(self).splitlines())
        colour = COLOURS.get(self.verdict, "#56606a")
        body = "<br>".join([sentence, f'<b style="color: {colour}">{verdict}</b>', *rest])
        return f'<div style="border-left: 4px solid {colour}; padding-left: 1em">{body}</div>'


def trial(script, ranks: int | None = None, **how) -> Call:
    """Prepare a run for a claim; called, it runs quietly. how: as launch's."""
    known = {each.name for each in fields(Call)}
    own = {name: how.pop(name) for name in known & how.keys()}
    return Call(script, ranks, **{"quiet": True, **own}, flags=how)


def faster(
    name: str,
    sentence: str,
    this: Callable | list[float],
    that: Callable | list[float],
    *,
    by: float = 1.0,
    seconds: float = SECONDS,
    names: tuple[str, str] = ("this", "that"),
    supported: str = "",
    otherwise: str = "",
) -> Claim:
    """Claim that `this` is more than `by` times as fast as `that`.

    Pairs are timed until the verdict is clear or `seconds` are spent. this, that: trials, which
    take turns (turns.py), or functions or lists of seconds, with their names.
    """
    budget = float(os.environ.get("BOOTCAMP_CLAIM_SECONDS", seconds))
    if isinstance(this, Call) and isinstance(that, Call):
        names = _name_beside(this, that), _name_beside(that, this)
    began = last = time.monotonic()
    longest, ratios = 0.0, list[float]()
    show = make_counter("measuring in pairs", f"at most {budget:.0f} s")
    with closing(_measure_pairs(this, that, in_turns=budget > 0)) as pairs:
        for ratio in pairs:
            ratios.append(ratio)
            show(f"pair {len(ratios)}")
            now = time.monotonic()
            longest, last = max(longest, now - last) if len(ratios) > 1 else 0.0, now
            is_clear = len(ratios) in LOOKS and judge(ratios, by) != UNCLEAR
            if is_clear or len(ratios) == LOOKS[-1] or now - began + longest > budget:
                break
    show("")
    verdict, found = judge(ratios, by), (*interval(ratios), len(ratios))
    text, known = supported if verdict == SUPPORTED else otherwise, _describe_speed(names, *found)
    return _note(Claim(name, sentence, "time", verdict, known, *found, text))


def _measure_pairs(this, that, in_turns: bool) -> Iterator[float]:
    """Yield how many times as fast `this` is, in pairs of alternating order."""
    if in_turns and isinstance(this, Call) and isinstance(that, Call):
        yield from turns.ratios(replace(this), replace(that))
    if isinstance(this, list):
        yield from (slow / fast for fast, slow in zip(this, that, strict=True))
        return
    for pair in count():
        if pair % 2 == 0:
            fast, slow = _measure(this), _measure(that)
        else:
            slow, fast = _measure(that), _measure(this)
        yield slow / fast


def _measure(trial: Callable) -> float:
    result = trial()
    return 1 / result.samples_per_second if isinstance(result, Run) else float(result)


def judge(ratios: list[float], by: float = 1.0) -> str:
    """Return the verdict on `by` that the interval of these ratios allows."""
    _, low, high = interval(ratios)
    return SUPPORTED if low > by * ALIKE else CONTRADICTED if high < by / ALIKE else UNCLEAR


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Return the ratios' median and an interval for it; 0 to infinity for fewer than ten.

    It is the sign test's: without an assumption on how times scatter it misses the true median with
    a probability of at most ERROR.
    """
    ordered, outside = sorted(ratios), count_outside(len(ratios))
    if outside is None:
        return median(ordered), 0.0, math.inf
    return median(ordered), ordered[outside], ordered[-1 - outside]


@cache
def count_outside(pairs: int) -> int | None:
    """Count the pairs that the interval leaves out at each end; None for too few pairs."""
    probability = 0.0  # that so few of fair coins show heads, or so few tails
    for outside in range(pairs + 1):
        probability += 2 * math.comb(pairs, outside) / 2**pairs
        if probability > ERROR:
            return outside - 1 if outside else None
    return None


def _name_beside(call: Call, other: Call) -> str:
    """Name a run by what the other one has not: its script, its ranks, or flags."""
    if call.script != other.script:
        return call.name
    if call.ranks != other.ranks:
        return f"{call.ranks} ranks"
    own = {name: value for name, value in call.flags.items() if value != other.flags.get(name)}
    own |= {} if call.options == other.options else call.options.env or {"env": "as it was"}
    return ", ".join(f"{name}={value}" for name, value in own.items())


def _describe_speed(names, effect: float, low: float, high: float, pairs: int) -> str:
    """Say which side is faster, by how much, and how sure that is."""
    fast, slow = names if effect >= 1 else names[::-1]
    ends = (low, high) if effect >= 1 else (1 / high, 1 / low if low else math.inf)
    known = f"between {ends[0]:.2f} and {ends[1]:.2f}, {pairs} pairs"
    if pairs < LOOKS[0]:
        fast, known = f"so far {fast}", f"{pairs} of the {LOOKS[0]} pairs that a verdict needs"
    return f"{fast} {max(effect, 1 / effect):.2f} times as fast as {slow} ({known})"


def equal(
    name: str, sentence: str, measured: float | None, expected: float, within: float = 0.0, **how
) -> Claim:
    """Claim that a counted number is the expected one, up to a share of `within`.

    measured: None where this system does not count it. how: kind ("bytes", "memory", "count", or
    one of PLACES), unit ("bytes" too), supported, otherwise. Raises Contradicted.
    """
    holds = None if measured is None else abs(measured - expected) <= within * abs(expected)
    words = "{}, as expected" if measured == expected else "{}, expected {}"
    return _note_counted(name, sentence, holds, words, measured, expected, **how)


def at_most(name: str, sentence: str, measured: float | None, most: float, **how) -> Claim:
    """Claim that a counted number is no larger than `most`. Otherwise as equal."""
    holds = None if measured is None else measured <= most
    return _note_counted(name, sentence, holds, "{}, at most {}", measured, most, **how)


def larger(
    name: str, sentence: str, large: float | None, small: float | None, by: float = 1.0, **how
) -> Claim:
    """Claim that a counted number is more than `by` times another one. Otherwise as equal."""
    holds, words = None, "{} and {}"
    if large is not None and small is not None:
        holds = large > by * small
        words += f", {units.number(large / small)} times as much" if small else ""
    return _note_counted(name, sentence, holds, words, large, small, **how)


def untested(name: str, sentence: str, why: str) -> Claim:
    """Note a claim on time that this machine can't test, and why."""
    return _note(Claim(name, sentence, "time", NOT_COUNTED, why))


def read_notes(since: float = 0.0) -> dict[str, dict]:
    """Read the last test of each claim on this machine, by name. since: Unix seconds."""
    kept = files.read_json(LOGS / FILE).get("claims", {})
    return {name: claim for name, claim in kept.items() if claim["unix_seconds"] >= since}


def _note_counted(
    name, sentence, holds, words, *numbers, kind="bytes", unit="", supported="", otherwise=""
) -> Claim:
    """Note a claim that holds, does not, or (None) can't be counted. words: for its numbers."""
    verdict = NOT_COUNTED if holds is None else SUPPORTED if holds else CONTRADICTED
    amount = units.size if {kind, unit} & {"bytes", "memory"} else units.number
    shown = (f"{amount(n)} {unit.removeprefix('bytes')}".rstrip() for n in numbers)
    measured = "this system does not count it" if holds is None else words.format(*shown)
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
    if claim.pairs and not claim.supported and last and not last.is_quiet:
        claim.text += f" This was {last.words}: ask again on a quiet one."
    entry = asdict(claim) | {"quiet": last and last.is_quiet, "unix_seconds": time.time()}
    del entry["text"], entry["reference"]

    def change(kept: dict) -> None:
        kept["machine"] = machine.describe()
        kept.setdefault("claims", {})[claim.name] = entry

    with suppress(OSError):  # a folder that can't be written: the cell shows it anyway
        files.update_json(LOGS / FILE, change)
    return claim
