"""Which error means what: `errors.explain(text)`, and `errors.index()`, a table to search.

An entry knows its error by fragments that stay the same over versions. What it means, where to look
and how to fix it is written by hand, in known_errors/, one file for each layer that speaks when a
run fails. The texts beside it are real: tools/errors.py provokes errors and keeps how they end.
"""

import html
import re
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from bootcamp.files import read_json
from bootcamp.paths import REFERENCE
from bootcamp.table import Table

KNOWN = Path(__file__).parent / "known_errors"
RECORDED = REFERENCE / "errors.json"
LINES = 8  # of an error's end that are worth keeping
# What an entry's fragment tells, the least first. A text may have several: a notice that follows
# most failures, one process that reports another's end, what came of the error, and the error.
TELLS = ("notice", "echo", "symptom", "cause")
# What launchers put before a line: [rank1]: and [default1]: (torchrun), [1,0]<stderr>: (mpirun and
# horovodrun), 1: (srun --label); a frame of rich; colours.
PUT_BEFORE = re.compile(
    r"^\s*(?:\[(?:rank|default)\d+\]:|\[\d+,\d+\](?:<\w+>)?:|\d+: )|[│╭╰╮╯]|\x1b\[[\d;]*m",
    re.MULTILINE,
)
FIRST_THINGS = (
    "the first error of all ranks, by time: the others often only report that one is gone",
    "the last line of the traceback that is in your own script",
    "whether all ranks were about to call the same collective, in the same order",
)


@dataclass(frozen=True)
class Entry:
    """One kind of error.

    pattern: regular expressions, one a line, that find it in a text as `plain` gives it.
    tells: one of TELLS. layer: the title of the file that it is in.
    """

    name: str
    lesson: str
    layer: str
    tells: str
    pattern: str
    means: str
    look_at: str
    fix: str

    @cached_property
    def found_by(self) -> re.Pattern:
        return re.compile("|".join(self.pattern.splitlines()))

    @property
    def texts(self) -> list[str]:
        """Recorded texts of this error."""
        return [record["text"] for record in recorded() if record["entry"] == self.name]


def plain(text: str) -> str:
    """A text without what launchers put before its lines, and with single spaces."""
    return " ".join(PUT_BEFORE.sub("", text).split())


def read(folder: Path) -> tuple[Entry, ...]:
    """The entries of a folder's files: `layer`, then a table ["lesson".name] for each cause.

    What tells less than a cause says so first: [echo."lesson".name].
    """
    entries = []
    for path in sorted(folder.glob("*.toml")):
        content = tomllib.loads(path.read_text())
        layer = content.pop("layer")
        lesser = {tells: content.pop(tells, {}) for tells in TELLS[:-1]}
        for tells, lessons in {"cause": content, **lesser}.items():
            for lesson, named in lessons.items():
                entries += [Entry(n, lesson, layer, tells, **each) for n, each in named.items()]
    return tuple(entries)


ENTRIES = read(KNOWN)


@cache
def recorded() -> tuple[dict, ...]:
    """The recorded errors: entry, provoked_by, text, torch, machine; empty without a record."""
    return tuple(read_json(RECORDED).get("errors", ()))


def last_lines(text: str, lines: int = LINES) -> str:
    """The end of an error's text: from the last line that names an exception, at most so many."""
    rows = text.rstrip().splitlines()
    named = [i for i, row in enumerate(rows) if re.match(r"[\w.]+(Error|Exception|Refused)\b", row)]
    begin = named[-1] if named else max(0, len(rows) - lines)
    return "\n".join(row.rstrip() for row in rows[begin:][:lines]).strip()


def find(text: str, entries: tuple[Entry, ...] = ENTRIES) -> Entry | None:
    """The entry of an error's text, None for an unknown one.

    Of several that fit: a cause before its symptoms, these before echoes, notices last; among
    equals the one whose fragment comes last, as a traceback ends with what was raised.
    """
    text = plain(text)
    found = [
        (TELLS.index(entry.tells), at.start(), len(at[0]), i)
        for i, entry in enumerate(entries)
        for at in entry.found_by.finditer(text)
    ]
    return entries[max(found)[-1]] if found else None


class Explanation:
    """What an error means, as text and as HTML; `entry` is None if the index does not know it."""

    def __init__(self, entry: Entry | None):
        self.entry = entry
        if entry is None:
            self.rows = [("It means", "the index does not know this error.")]
            places = ("Look first at", "Then at", "And at")
            pairs = zip(places, FIRST_THINGS, strict=True)
            self.rows += [(place, f"{what}.") for place, what in pairs]
            return
        self.rows = [("It means", entry.means), ("Look at", f"{entry.look_at}.")]
        self.rows += [("Fix it", entry.fix), ("Lesson", entry.lesson)]
        record = next((each for each in recorded() if each["entry"] == entry.name), None)
        self.rows += [(f"Recorded by {record['provoked_by']}", record["text"])] if record else []

    def __str__(self) -> str:
        return "\n".join(f"{title}: {text}" for title, text in self.rows)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = (f"<dt><b>{t}</b></dt><dd>{html.escape(text)}</dd>" for t, text in self.rows)
        return f"<dl>{''.join(rows)}</dl>"


def explain(error: str | BaseException | None = None) -> Explanation:
    """What an error means: a pasted text, an exception, or the last one that a cell raised."""
    error = getattr(sys, "last_value", None) if error is None else error
    if error is None:
        raise ValueError("no cell has failed so far: paste a text, errors.explain('...')")
    if isinstance(error, BaseException):
        error = f"{type(error).__name__}: {error}"
    return Explanation(find(error))


def table(words: str = "") -> Table:
    """The index as a table: all of it, what has all of these words, or a pasted error's entry."""
    if words and (known := find(words)):
        entries = [known]
    else:
        wanted = words.lower().split()
        entries = [entry for entry in ENTRIES if all(word in _all_words(entry) for word in wanted)]
    columns = {
        "lesson": "lesson",
        "the error says": _gist,
        "it means": "means",
        "look at": "look_at",
        "fix it": "fix",
    }
    caption = f"{len(entries)} of {len(ENTRIES)} errors. Texts recorded with {_with_what()}."
    return Table.of(entries, columns, caption)


def _gist(entry: Entry) -> str:
    """The words around the fragment in a recorded text; the fragment where none was recorded."""
    if not entry.texts:
        return f"(not recorded) {_fragment(entry.pattern)}"
    text = plain(entry.texts[0])
    found = entry.found_by.search(text)
    before, after = text[: found.start()].split(" "), text[found.end() :].split(" ")
    cut = "... " if len(before) > 8 else ""
    return cut + " ".join(before[-8:]) + found[0] + " ".join(after[:8])


def _fragment(pattern: str) -> str:
    """The first of a pattern's alternatives, as words: roughly, for the eye alone."""
    first = re.split(r"[|\n]", re.sub(r"\(\?<?[!=].*?\)", "", pattern))[0]
    gaps = re.sub(r"(\\[dwS]|\.(?=[*{]))([*+]\??|\{.*?\})?", "...", first)
    return re.sub(r"\[(\w)\w\]|\\b|[\\()?]", r"\1", gaps).strip()


def _all_words(entry: Entry) -> str:
    about = (entry.layer, entry.means, entry.look_at, entry.fix, f"lesson {entry.lesson}")
    return " ".join((entry.name, *about, entry.pattern.replace("\\", ""), *entry.texts)).lower()


def _with_what() -> str:
    kinds = sorted({f"torch {r['torch']} on {r['machine']}" for r in recorded()})
    return "; ".join(kinds) or "nothing: run python tools/errors.py"


def layers() -> Table:
    """How many errors the index knows of each layer, and how many of them were recorded."""
    known, provoked = Counter(e.layer for e in ENTRIES), {r["entry"] for r in recorded()}
    seen = Counter(e.layer for e in ENTRIES if e.name in provoked)
    rows = [{"layer": name, "errors": n, "recorded": seen[name]} for name, n in known.items()]
    return Table(rows, f"{len(ENTRIES)} errors, {len(provoked)} recorded with {_with_what()}.")


def index(words: str = "") -> dict:
    """Show the index by layer, with a box to search it: words, or an error. Returns the control."""
    from bootcamp.widgets import controls

    box = controls.words("search", "words, or an error that you paste", words)
    return controls.follow(lambda words: table(words) if words else layers(), words=box)
