"""python tools/slides.py [NAME ...] [--records logs/reference/epyc-2core] [--html]

Make slides/build/*.html and *.pdf from slides/*.md: files that need no network when they are shown.
The PDF is printed by Chromium; where there is none, a sentence says so and the HTML is made alone.

A deck is Markdown; each heading of level 1 is a slide, with {minutes=2} and a `::: notes` block.
What may change elsewhere is not typed into a deck but asked for, and looked up at every build:

    {{diff gpu ddp}}            the lines in which a script differs from another, by heading;
    {{diff gpu ddp 2 5}}        those under its headings 2 and 5 alone
    {{added gpu ddp}}           how many code lines that diff adds; {{removed gpu ddp}} takes out
    {{lines cpu "TEXT"}}        the line of a script that begins with TEXT
    {{lines cpu "A" to "B"}}    all lines from the one that begins with A to the one with B
    {{picture ddp_overview.overlap}}     what a function of bootcamp.drawing.diagrams draws
    {{figure plots.throughput cpu-1 ddp-2}}   what a function draws of recorded runs
    {{record RUN FIELD}}        a number of a recorded run, such as final_loss
    {{bytes RUN FIELD}}         bytes that its rank 0 recorded, such as gradient_bytes, in MB
    {{origin RUN}}              where a record comes from: machine, torch, name
    {{lesson 04}}               the minutes of a lesson and what it needs, from README.md's map
    {{timetable 09:00 slides 00 break=15 01}}   a day's plan, with the minutes of the map
    {{map}}                     the map of the course, from the table in README.md
    {{minutes}}                 the minutes of all slides of this deck

--records says which machine's runs are meant: those in the folders that begin so, which
tools/reference.py makes. A run with a slash, such as 08_hsdp/ddp-open, is one of logs/reference/.
"""

import argparse
import ast
import html
import importlib
import inspect
import re
import shlex
import sys
import textwrap
import time
from pathlib import Path

import pypandoc

from bootcamp.drawing import style as figures
from bootcamp.paths import REFERENCE, ROOT, shown
from bootcamp.records import runs, summary
from bootcamp.scripts import diff as compare
from bootcamp.scripts import family
from bootcamp.units import number

SLIDES = ROOT / "slides"
README = ROOT / "README.md"
RECORDS = REFERENCE / "epyc-2core"
sys.path[:0] = [str(SLIDES), str(ROOT / "tests")]
import chromium  # noqa: E402
import embed  # noqa: E402

PLACEHOLDER = re.compile(r"\{\{(.+?)\}\}")
MINUTES = re.compile(r"^# .*\{.*\bminutes=(\d+)", re.MULTILINE)
HEADING = re.compile(r"# (\d)\. ")
LESSON = re.compile(r"\[?(\d\d[a-z]?) ([^\]]+?)(?:\]\(.*\))?")
PICTURE_HEIGHT, FIGURE_HEIGHT = 540, 465  # pixels of the stage
LONG_DIFF = 15  # rows; a longer one is set a little smaller
# what a browser would load or go to: an attribute or a style that names another host
EXTERNAL = re.compile(
    r"""(?:src|srcset|href|data|action|poster)\s*=\s*["']?\s*(?:https?:)?//[^\s"'>]+"""
    r"""|url\(\s*["']?\s*(?:https?:)?//[^\s"')]+|@import[^;]*""",
    re.IGNORECASE,
)


class SlideError(Exception):
    """A deck that can't be built. Its text says which file, what was asked for and what to do."""


def diff(parent: str, child: str, *headings: str) -> str:
    """The changed code lines under the headings that they stand under, marked + and -.

    headings: numbers of those wanted; none for all, and for what stands above the first.
    """
    parent, child = _script(parent), _script(child)
    code = {"+": set(compare.code_lines(child)), "-": set(compare.code_lines(parent))}
    whole_file = len(child.read_text()) + len(parent.read_text())
    shown, heading, wanted = [], None, not headings
    for line in compare.ScriptDiff(child, parent, context=whole_file).lines[3:]:
        sign, text = line[:1], line[1:]
        if match := HEADING.match(text):
            heading, wanted = text, not headings or match[1] in headings
        elif wanted and sign in code and _bare(text) in code[sign]:
            shown += [("heading", " ", heading)] if heading else []
            shown.append(("added" if sign == "+" else "removed", sign, _bare(text)))
            heading = None
    if not shown:
        raise SlideError(
            f"{child.name} does not differ from {parent.name}: there is no diff to show"
        )
    return _shown(shown)


def _shown(rows: list[tuple[str, str, str]]) -> str:
    """(kind, sign, line) as HTML, without the indentation that all code lines have."""
    code = [line for kind, _, line in rows if kind != "heading"]
    spare = min(len(line) - len(line.lstrip()) for line in code)
    spans = "".join(
        f'<span class="{kind}">{sign} '
        f"{html.escape(line if kind == 'heading' else line[spare:])}</span>"
        for kind, sign, line in rows
    )
    many = " long" if len(rows) > LONG_DIFF else ""
    return f'\n~~~{{=html}}\n<pre class="diff{many}">{spans}</pre>\n~~~\n'


def _bare(line: str) -> str:
    """A line of code without the comment behind it."""
    return line.partition("  # ")[0].rstrip()


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
    return f"\n~~~python\n{textwrap.dedent(chr(10).join(text[begin : end + 1]))}\n~~~\n"


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
    """A script of the family, or a file of the project such as src/snippets/teardown.py."""
    try:
        return family.find(ROOT / name if name.endswith(".py") else name)
    except FileNotFoundError as error:
        raise SlideError(str(error)) from None


def picture(name: str, *arguments: str) -> str:
    """What one of the lessons' pictures draws. `height=480` leaves more room for text."""
    return _embedded(name, arguments, PICTURE_HEIGHT, title=False)


def figure(name: str, *arguments: str) -> str:
    """What a drawing function makes of recorded runs, under its own title, with its foot."""
    return _embedded(name, arguments, FIGURE_HEIGHT, title=True)


def _embedded(name: str, arguments: tuple[str, ...], height: float, title: bool) -> str:
    given, named = [], {}
    for each in arguments:
        key, is_named, value = each.partition("=")
        if is_named:
            named[key] = ast.literal_eval(value)
        else:
            given.append(ast.literal_eval(each) if each.isdigit() else each)
    height = named.pop("height", height)
    draw = _drawing(name)
    if title and name not in BY_WORDS:
        given = [_run(each) if isinstance(each, str) else each for each in given]
    drawn = embed.to_html(draw(*given, **named), height, title)
    return f"\n~~~{{=html}}\n{drawn}\n~~~\n"


BY_WORDS = ("prepared.some_schedules",)  # figures that take names of something else than runs


def _drawing(name: str):
    """A function that returns a Figure: of drawing.plots, of a diagram's module, or prepared."""
    module, _, function = name.partition(".")
    places = {"plots": "bootcamp.drawing.plots", "prepared": "prepared"}
    place = places.get(module, f"bootcamp.drawing.diagrams.{module}")
    try:
        draw = getattr(importlib.import_module(place), function)
        assert inspect.isfunction(draw)
    except (ImportError, AttributeError, AssertionError):
        raise SlideError(
            f"there is no drawing {name!r}: give a function of bootcamp.drawing.plots, of a module "
            "of bootcamp.drawing.diagrams, or of slides/prepared.py, such as plots.throughput"
        ) from None
    return draw


def _run(name: str) -> runs.Run:
    """A recorded run, by its name behind the machine's, or by its lesson's folder and name."""
    folder = REFERENCE / name if "/" in name else Path(f"{RECORDS}-{name}")
    if not (folder / "summary.json").exists():
        raise SlideError(
            f"{shown(folder)}: there is no such record. Make it with tools/reference.py, or change "
            "the run."
        )
    return runs.Run(folder)


def record(run: str, key: str) -> str:
    """A number in a recorded run's summary; `samples_per_second.median` for a nested one."""
    folder = _run(run).folder
    value = summary.read(folder)
    for each in key.split("."):
        if not isinstance(value, dict) or each not in value:
            raise SlideError(f"{folder.name}/summary.json has no {key}")
        value = value[each]
    return number(value)


def bytes_of(run: str, key: str) -> str:
    """Bytes that rank 0 of a run recorded, in MB (10^6 bytes)."""
    ranks = _run(run).ranks
    if not ranks or not isinstance(ranks[0].get(key), int | float):
        raise SlideError(f"{run}: its rank 0 has recorded no {key}")
    return f"{ranks[0][key] / 1e6:.3g} MB"


def origin(*names: str) -> str:
    """Machine, torch and names of recorded runs."""
    return " ".join(figures.origins([_run(name) for name in names]))


def map_rows() -> list[tuple[str, str, list[str]]]:
    """(number, name, cells) of each lesson in README.md's map."""
    rows = [line.strip("| \n").split(" | ") for line in README.read_text().splitlines()]
    lessons = [(LESSON.fullmatch(row[0]), row) for row in rows if len(row) >= 3]
    return [(match[1], match[2], row) for match, row in lessons if match]


def _lesson(wanted: str) -> tuple[str, int, str]:
    """(name, minutes, needs) of a lesson that is there."""
    for name, title, row in map_rows():
        if name == wanted and row[0].startswith("["):
            return title, int(row[2]), row[3].rstrip(" |")
    raise SlideError(f"README.md: its map has no lesson {wanted} that is here")


def lesson(wanted: str) -> str:
    """Minutes of a lesson and what it needs."""
    _, minutes, needs = _lesson(wanted)
    return f"{minutes} minutes · {needs}"


def timetable(begins: str, *items: str) -> str:
    """A day's plan: a row with its time for each lesson, and for each pause as `lunch=60`.

    `slides` stands for this deck's own minutes.
    """
    hour, minute = (int(each) for each in begins.split(":"))
    now, rows = 60 * hour + minute, []
    for item in items:
        name, is_pause, value = item.partition("=")
        title, minutes = (name, int(value)) if is_pause else _lesson(name)[:2]
        word = f"<b>{item}</b> {html.escape(title)}" if not is_pause else html.escape(title)
        kind = "pause" if is_pause else "here"
        rows.append(
            f'<div class="{kind}"><i>{now // 60}:{now % 60:02}</i><span>{word}</span>'
            f"<i>{minutes} min</i></div>"
        )
        now += minutes
    rows.append(f'<div class="pause"><i>{now // 60}:{now % 60:02}</i><span>end</span></div>')
    return f'\n~~~{{=html}}\n<div class="timetable">{"".join(rows)}</div>\n~~~\n'


def course_map() -> str:
    """The lessons of README.md's map: those that are here with minutes, the others by name."""
    cells = []
    for name, title, row in map_rows():
        words = f"<b>{name}</b> {html.escape(title)}"
        is_here = row[0].startswith("[")
        minutes = f"<i>{int(row[2])} min</i>" if is_here else ""
        cells.append(f'<div class="{"here" if is_here else "later"}">{words}{minutes}</div>')
    if not any('class="here"' in cell for cell in cells):
        raise SlideError(
            "README.md: no lesson with a link is in its map. Mend the table, or {{map}}."
        )
    return f'\n~~~{{=html}}\n<div class="map">{"".join(cells)}</div>\n~~~\n'


ASKED = {
    "diff": diff,
    "added": added,
    "removed": removed,
    "lines": lines,
    "picture": picture,
    "figure": figure,
    "record": record,
    "bytes": bytes_of,
    "origin": origin,
    "lesson": lesson,
    "timetable": timetable,
    "map": course_map,
}


def resolve(deck: str, name: str) -> str:
    """A deck's text with every placeholder looked up. Raises SlideError, naming deck and line."""
    minutes = str(sum(int(each) for each in MINUTES.findall(deck)))

    def look_up(match):
        try:
            word, *arguments = shlex.split(match[1].replace("slides=", f"slides={minutes}"))
            if word == "minutes":
                return minutes
            if word not in ASKED:
                raise SlideError(f"there is no {word!r}: choose one of {', '.join(ASKED)}, minutes")
            return ASKED[word](*arguments)
        except (SlideError, TypeError, ValueError, OSError) as error:
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


def why_no_pdf() -> str | None:
    """The sentence that says what is missing for a PDF; None if nothing is."""
    if chromium.PATH is None:
        return "No PDF: there is no Chromium here (Debian's package chromium will do)."
    if importlib.util.find_spec("playwright") is None:
        return "No PDF: there is no playwright here. Install the packages of the group test."
    return None


def print_pdfs(pages: list[Path]) -> list[Path]:
    """Print each HTML file as a PDF beside it, a page for each slide, in one Chromium."""
    from playwright.sync_api import sync_playwright

    targets = [page.with_suffix(".pdf") for page in pages]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium.PATH, args=chromium.FLAGS)
        tab = browser.new_page()
        for page, target in zip(pages, targets, strict=True):
            tab.goto(page.as_uri())
            tab.pdf(path=target, prefer_css_page_size=True, print_background=True)
        browser.close()
    return targets


def decks() -> list[Path]:
    """The sources of all decks."""
    return sorted(path for path in SLIDES.glob("*.md") if path.name != "README.md")


def main() -> int:
    global RECORDS
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="decks to make, such as day 04_ddp (default: all)")
    parser.add_argument("--records", type=Path, default=RECORDS, help="FOLDER/MACHINE of the runs")
    parser.add_argument("--html", action="store_true", help="print no PDF")
    args = parser.parse_args()
    RECORDS = (ROOT / args.records).resolve()
    unknown = set(args.names) - {path.stem for path in decks()}
    if unknown:
        parser.error(f"no deck {', '.join(unknown)}: there is {', '.join(p.stem for p in decks())}")
    wanted = [source for source in decks() if not args.names or source.stem in args.names]
    began, pages = time.monotonic(), []
    try:
        for source in wanted:
            pages.append(build(source, SLIDES / "build"))
            print(f"{pages[-1].relative_to(ROOT)}: {pages[-1].stat().st_size / 1e3:.0f} kB")
        if not args.html and (why := why_no_pdf()):
            print(why)
        elif not args.html:
            for path in print_pdfs(pages):
                print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e3:.0f} kB")
    except (SlideError, RuntimeError) as error:
        print(f"{error}", file=sys.stderr)
        return 1
    print(f"{len(pages)} decks in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
