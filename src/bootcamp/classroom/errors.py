"""The index of errors: `errors.explain(text)`, and `errors.index()`, a table to search.

Its entries are in known_errors/, a file for each layer that speaks when a run fails. The texts
beside them are real: errors were provoked, and how they end was kept (logs/README.md).
"""

import html
import re
import sys
import tomllib
from collections import Counter
from dataclasses import astuple, dataclass
from functools import cache, cached_property
from pathlib import Path

from bootcamp.files import read_json
from bootcamp.paths import REFERENCE
from bootcamp.table import Table

KNOWN = Path(__file__).parent / "known_errors"
RECORDED = REFERENCE / "errors.json"
# What a fragment tells, the least first: a notice that follows most failures, one process that
# reports another's end, what came of the error, and the error itself.
TELLS = ("notice", "echo", "symptom", "cause")
EXCEPTION = re.compile(r"[\w.]+(Error|Exception|Refused)\b")
# [rank1]: [default1]: (torchrun), [1,0]<stderr>: (mpirun, horovodrun), 1: (srun); rich; colours
PREFIXES = re.compile(
    r"^\s*(?:\[(?:rank|default)\d+\]:|\[\d+,\d+\](?:<\w+>)?:|\d+: )|[│╭╰╮╯]|\x1b\[[\d;]*m",
    re.MULTILINE,
)
UNKNOWN = {
    "It means": "the index does not know this error.",
    "Look first at": "the first error of all ranks, by time: others often only report its end.",
    "Then at": "the last line of the traceback that is in your own script.",
    "And at": "whether all ranks were about to call the same collective, in the same order.",
}


@dataclass(frozen=True)
class Entry:
    """One kind of error."""

    name: str
    lesson: str
    layer: str  # the title of the file that it is in
    tells: str  # one of TELLS
    pattern: str  # regular expressions, one a line, that find it in a text without prefixes
    means: str
    look_at: str
    fix: str

    @cached_property
    def found_by(self) -> re.Pattern:
        return re.compile("|".join(self.pattern.splitlines()))

    @property
    def records(self) -> list[dict]:
        return [record for record in read_recorded() if record["entry"] == self.name]


def strip_prefixes(text: str) -> str:
    """Return a text without the prefixes of launchers, and with single spaces."""
    return " ".join(PREFIXES.sub("", text).split())


def _read_entries() -> tuple[Entry, ...]:
    """Read `layer`, tables ["lesson".name] of causes, and [echo."lesson".name] of less."""
    entries = []
    for path in sorted(KNOWN.glob("*.toml")):
        content = tomllib.loads(path.read_text())
        layer = content.pop("layer")
        lesser = {tells: content.pop(tells, {}) for tells in TELLS[:-1]}
        for tells, lessons in {"cause": content, **lesser}.items():
            for lesson, named in lessons.items():
                entries += [Entry(n, lesson, layer, tells, **each) for n, each in named.items()]
    return tuple(entries)


ENTRIES = _read_entries()


@cache
def read_recorded() -> tuple[dict, ...]:
    """Read the recorded errors: entry, provoked_by, text, torch, machine."""
    return tuple(read_json(RECORDED).get("errors", ()))


def last_lines(text: str) -> str:
    """Return the end of an error: at most eight lines from the last that names an exception."""
    lines = text.rstrip().splitlines()
    named = [i for i, line in enumerate(lines) if EXCEPTION.match(line)]
    begin = named[-1] if named else -8
    return "\n".join(line.rstrip() for line in lines[begin:][:8]).strip()


def find(text: str, entries: tuple[Entry, ...] = ENTRIES) -> Entry | None:
    """Return the entry of an error's text, None for an unknown one.

    Of several that fit: a cause before its symptoms, these before echoes, notices last; among
    equals the one whose fragment comes last, as a traceback ends with what was raised.
    """
    text = strip_prefixes(text)
    found = [
        (TELLS.index(entry.tells), at.start(), len(at[0]), i)
        for i, entry in enumerate(entries)
        for at in entry.found_by.finditer(text)
    ]
    return entries[max(found)[-1]] if found else None


class Explanation:
    """The meaning of an error, as text and as HTML; `entry` is None for an unknown one."""

    def __init__(self, entry: Entry | None):
        self.entry, self.rows = entry, UNKNOWN
        if entry:
            self.rows = {"It means": entry.means, "Look at": f"{entry.look_at}."}
            self.rows |= {"Fix it": entry.fix, "Lesson": entry.lesson}
            self.rows |= {f"Recorded by {r['provoked_by']}": r["text"] for r in entry.records[:1]}

    def __str__(self) -> str:
        return "\n".join(f"{title}: {text}" for title, text in self.rows.items())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = (f"<dt><b>{t}</b></dt><dd>{html.escape(text)}</dd>" for t, text in self.rows.items())
        return f"<dl>{''.join(rows)}</dl>"


def explain(error: str | BaseException | None = None) -> Explanation:
    """Explain a pasted text, an exception, or the last exception that a cell raised."""
    error = getattr(sys, "last_value", None) if error is None else error
    if error is None:
        raise ValueError("no cell has failed so far: paste a text, errors.explain('...')")
    if isinstance(error, BaseException):
        error = f"{type(error).__name__}: {error}"
    return Explanation(find(error))


def table(words: str = "") -> Table:
    """Table the index: all of it, the entries that have all words, or that of a pasted error."""
    if words and (known := find(words)):
        entries = [known]
    else:
        wanted = words.lower().split()
        entries = [entry for entry in ENTRIES if all(word in _all_words(entry) for word in wanted)]
    columns = {"lesson": "lesson", "the error says": _excerpt, "it means": "means"}
    columns |= {"look at": "look_at", "fix it": "fix"}
    caption = f"{len(entries)} of {len(ENTRIES)} errors. Texts recorded with {_recorded_with()}."
    return Table.of(entries, columns, caption)


def _excerpt(entry: Entry) -> str:
    """Return the words around the fragment in a recorded text; without one roughly the fragment."""
    if not entry.records:
        first = re.split(r"[|\n]", re.sub(r"\(\?<?[!=].*?\)", "", entry.pattern))[0]
        gaps = re.sub(r"(\\[dwS]|\.(?=[*{]))([*+]\??|\{.*?\})?", "...", first)
        return "(not recorded) " + re.sub(r"\[(\w)\w\]|\\b|[\\()?]", r"\1", gaps).strip()
    text = strip_prefixes(entry.records[0]["text"])
    found = entry.found_by.search(text)
    before, after = text[: found.start()].split(" "), text[found.end() :].split(" ")
    cut = "... " if len(before) > 8 else ""
    return cut + " ".join(before[-8:]) + found[0] + " ".join(after[:8])


def _all_words(entry: Entry) -> str:
    texts = [record["text"] for record in entry.records]
    return " ".join([*astuple(entry), "lesson", *texts]).replace("\\", "").lower()


def _recorded_with() -> str:
    kinds = sorted({f"torch {r['torch']} on {r['machine']}" for r in read_recorded()})
    return "; ".join(kinds) or "nothing"


def layers() -> Table:
    """Count the errors of each layer, and those that were recorded."""
    known = Counter(entry.layer for entry in ENTRIES)
    seen = Counter(entry.layer for entry in ENTRIES if entry.records)
    columns = {"layer": lambda name: name, "errors": known.get, "recorded": seen.__getitem__}
    caption = f"{len(ENTRIES)} errors, {seen.total()} recorded with {_recorded_with()}."
    return Table.of(list(known), columns, caption)


def index(words: str = "") -> dict:
    """Show the index by layer, with a box to search it; return the control."""
    from bootcamp.widgets import controls

    look = {"placeholder": "words, or an error that you paste", "layout": {"width": "40em"}}
    box = controls.control("Text", "search", words, continuous_update=False, **look)
    return controls.follow(
        lambda words: (table(words) or Explanation(None)) if words else layers(), words=box
    )
