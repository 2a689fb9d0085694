"""python tools/slides.py [NAME ...]

Make slides/build/*.html from slides/*.md: one file each, which needs no network when it is shown.

A deck is Markdown; each heading of level 1 is a slide, with {minutes=2} and a `::: notes` block.
What may change elsewhere is not typed into a deck but asked for, and looked up at every build:

    {{diff gpu ddp}}            the lines in which a script differs from another, by heading
    {{added gpu ddp}}           how many code lines that diff adds; {{removed gpu ddp}} takes out
    {{lines cpu "TEXT"}}        the line of a script that begins with TEXT
    {{lines cpu "A" to "B"}}    all lines from the one that begins with A to the one with B
    {{record RUN FIELD}}        a number of the recorded run logs/reference/RUN, such as final_loss
    {{map}}                     the map of the course, from the table in README.md
    {{minutes}}                 the minutes of all slides of this deck
"""

import argparse
import html
import re
import shlex
import sys
import time
from pathlib import Path

import pypandoc

from bootcamp import compare, family, summary
from bootcamp.paths import REFERENCE, ROOT
from bootcamp.table import number

SLIDES = ROOT / "slides"
README = ROOT / "README.md"
PLACEHOLDER = re.compile(r"\{\{(.+?)\}\}")
MINUTES = re.compile(r"^# .*\{.*\bminutes=(\d+)", re.MULTILINE)
HEADING = re.compile(r"# \d\. ")
LESSON = re.compile(r"\[?(\d\d[a-z]?) ([^\]]+?)(?:\]\(.*\))?")
# what a browser would load or go to: an attribute or a style that names another host
EXTERNAL = re.compile(
    r"""(?:src|srcset|href|data|action|poster)\s*=\s*["']?\s*(?:https?:)?//[^\s"'>]+"""
    r"""|url\(\s*["']?\s*(?:https?:)?//[^\s"')]+|@import[^;]*""",
    re.IGNORECASE,
)


class SlideError(Exception):
    """A deck that can't be built. Its text says which file, what was asked for and what to do."""


def diff(parent: str, child: str) -> str:
    """The changed code lines under the headings that they stand under, marked + and -."""
    parent, child = _script(parent), _script(child)
    code = {"+": set(compare.code_lines(child)), "-": set(compare.code_lines(parent))}
    whole_file = len(child.read_text()) + len(parent.read_text())
    rows, heading = [], None
    for line in compare.ScriptDiff(child, parent, context=whole_file).lines[3:]:
        sign, text = line[:1], line[1:]
        if HEADING.match(text):
            heading = text
        elif sign in code and text in code[sign]:
            if heading:
                rows.append(f'<span class="heading">  {html.escape(heading)}</span>')
            heading = None
            kind = "added" if sign == "+" else "removed"
            rows.append(f'<span class="{kind}">{sign} {html.escape(text)}</span>')
    if not rows:
        raise SlideError(
            f"{child.name} does not differ from {parent.name}: there is no diff to show"
        )
    return f'\n~~~{{=html}}\n<pre class="diff">{"".join(rows)}</pre>\n~~~\n'


def added(parent: str, child: str) -> str:
    """How many code lines a script adds to its parent; a changed one counts."""
    return str(compare.changed_lines(_script(child), _script(parent))[0])


def removed(parent: str, child: str) -> str:
    """How many code lines a script takes from its parent; a changed one counts."""
    return str(compare.changed_lines(_script(child), _script(parent))[1])


def lines(script: str, first: str, *rest: str) -> str:
    """The lines of a script: one, or those from one to another."""
    path = _script(script)
    text = path.read_text().splitlines()
    if rest and (len(rest) != 2 or rest[0] != "to"):
        raise SlideError('expected {{lines SCRIPT "A"}} or {{lines SCRIPT "A" to "B"}}')
    begin = _find(text, first, path)
    end = _find(text, rest[1], path) if rest else begin
    if end < begin:
        raise SlideError(f"{path.name}: {rest[1]!r} stands above {first!r}. Turn them round.")
    return "\n~~~python\n" + "\n".join(text[begin : end + 1]) + "\n~~~\n"


def _find(text: list[str], start: str, path: Path) -> int:
    """The row of the one line that begins with this, indentation aside."""
    rows = [row for row, line in enumerate(text) if line.strip().startswith(start)]
    if len(rows) != 1:
        found = "no line begins" if not rows else f"{len(rows)} lines begin"
        raise SlideError(
            f"{path.name}: {found} with {start!r}. Give the beginning of one line in it."
        )
    return rows[0]


def _script(name: str) -> Path:
    try:
        return family.find(name)
    except FileNotFoundError as error:
        raise SlideError(str(error)) from None


def record(run: str, field: str) -> str:
    """A number in a recorded run's summary; `samples_per_second.median` for a nested one."""
    if not (REFERENCE / run / "summary.json").exists():
        raise SlideError(
            f"logs/reference/{run}: there is no such record. Record it, or change the run."
        )
    value = summary.read(REFERENCE / run)
    for key in field.split("."):
        if not isinstance(value, dict) or key not in value:
            raise SlideError(f"logs/reference/{run}/summary.json has no {field}")
        value = value[key]
    return number(value)


def course_map() -> str:
    """The lessons of README.md's map: those that are here large, the others by name."""
    rows = [line.strip("| \n").split(" | ") for line in README.read_text().splitlines()]
    lessons = [(LESSON.fullmatch(row[0]), row) for row in rows if len(row) >= 3]
    here, later = [], []
    for match, row in lessons:
        if not match:
            continue
        name = f"<b>{match[1]} {html.escape(match[2])}</b>"
        if row[0].startswith("["):
            minutes = f"<i>{int(row[2])} min</i>"
            here.append(f'<div class="here">{name}{html.escape(row[1])}{minutes}</div>')
        else:
            later.append(f'<div class="later">{name}</div>')
    if not here:
        raise SlideError(
            "README.md: no lesson with a link is in its map. Mend the table, or {{map}}."
        )
    return f'\n~~~{{=html}}\n<div class="map">{"".join(here + later)}</div>\n~~~\n'


ASKED = {
    "diff": diff,
    "added": added,
    "removed": removed,
    "lines": lines,
    "record": record,
    "map": course_map,
}


def resolve(deck: str, name: str) -> str:
    """A deck's text with every placeholder looked up. Raises SlideError, naming deck and line."""

    def look_up(match):
        try:
            word, *arguments = shlex.split(match[1])
            if word == "minutes":
                return str(sum(int(each) for each in MINUTES.findall(deck)))
            if word not in ASKED:
                raise SlideError(f"there is no {word!r}: choose one of {', '.join(ASKED)}, minutes")
            return ASKED[word](*arguments)
        except (SlideError, TypeError, ValueError) as error:
            row = deck[: match.start()].count("\n") + 1
            raise SlideError(f"{name}, line {row}, {match[0]}: {error}") from None

    return PLACEHOLDER.sub(look_up, deck)


def external_addresses(page: str) -> list[str]:
    """Whatever in a page would make a browser ask another host."""
    return [match[0] for match in EXTERNAL.finditer(page)]


def build(source: Path, folder: Path) -> Path:
    """Write one deck as one HTML file and return its path. Raises SlideError."""
    deck = resolve(source.read_text(), source.name)
    if found := external_addresses(_pandoc(deck)):  # before pandoc would fetch it
        raise SlideError(f"{source.name}: {found[0]} is on another host. Put a copy into slides/.")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{source.stem}.html"
    target.write_text(_pandoc(deck, "--embed-resources"))
    return target


def _pandoc(deck: str, *more: str) -> str:
    options = ["--standalone", "--mathml", "--slide-level=1", f"--template={SLIDES / 'deck.html'}"]
    options += [f"--resource-path={SLIDES}", "--fail-if-warnings", *more]
    return pypandoc.convert_text(
        deck, "dzslides", format="markdown-implicit_figures", extra_args=options
    )


def decks() -> list[Path]:
    """The sources of all decks."""
    return sorted(path for path in SLIDES.glob("*.md") if path.name != "README.md")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="decks to make, such as opening (default: all)")
    names = parser.parse_args().names
    unknown = set(names) - {path.stem for path in decks()}
    if unknown:
        parser.error(f"no deck {', '.join(unknown)}: there is {', '.join(p.stem for p in decks())}")
    for source in decks():
        if names and source.stem not in names:
            continue
        began = time.monotonic()
        try:
            target = build(source, SLIDES / "build")
        except (SlideError, RuntimeError) as error:
            print(f"{error}", file=sys.stderr)
            return 1
        size = target.stat().st_size / 1e3
        seconds = time.monotonic() - began
        print(f"{target.relative_to(ROOT)}: {size:.0f} kB, {seconds:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
