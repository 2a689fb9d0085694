"""python tools/lessons.py [--check]

Read notebooks/lessons.toml, and write what notebooks/README.md shows of it: the map of the course
and the ways through it, each between two marks. --check writes nothing and fails where the page is
not as it would be written. Both fail where a lesson's parts are not its notebook's headings, or do
not add up to its minutes.
"""

import argparse
import re
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "notebooks" / "lessons.toml"
PAGE = ROOT / "notebooks" / "README.md"
BEGIN = "<!-- {}: `make readme` writes it from notebooks/lessons.toml -->"
END = "<!-- end of {} -->"
SLIDE = re.compile(r"^# .*\{.*\bminutes=(\d+)", re.MULTILINE)
MARKDOWN = re.compile(r"^# %% \[markdown\].*\n((?:#.*\n)*)", re.MULTILINE)  # cells of a source
HEADING = re.compile(r"^# ## (.+)$", re.MULTILINE)
OPTIONAL = "(optional)"  # at the end of a heading that may be skipped
TAKES_NO_TIME = "Sources"
LONGEST = 75  # minutes of an agenda without a pause
FULL_MINUTES = 5  # a block of an agenda takes a multiple of it


class LessonError(Exception):
    """A lesson that is not there, or data that can't be right. Its text says which and why."""


@dataclass(frozen=True)
class Lesson:
    """One lesson, or the appendix; notebooks/lessons.toml explains the fields."""

    number: str
    title: str
    teaches: str
    file: str
    minutes: int
    needs: str
    parts: tuple[tuple[str, int], ...] = ()
    after: tuple[str, ...] = ()
    exercises: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    appendix: bool = False

    @property
    def notebook(self) -> Path:
        return ROOT / "notebooks" / f"{self.file}.ipynb"

    @property
    def source(self) -> Path:
        return ROOT / "notebooks" / "sources" / f"{self.file}.py"

    @property
    def link(self) -> str:
        return f"[{self.number} {self.title}]({self.file}.ipynb)"

    @property
    def deck(self) -> Path:
        return ROOT / "slides" / f"{self.file}.md"

    @property
    def deck_minutes(self) -> int:
        return minutes_of_deck(self.deck.read_text())

    @property
    def core(self) -> list[tuple[str, int]]:
        """The parts that are taught to everybody."""
        return [(heading, minutes) for heading, minutes in self.parts if not optional(heading)]


@dataclass(frozen=True)
class Block:
    """A part of an agenda: minutes from its beginning, of which the first deck_minutes are slides.

    lesson: None for a break and the like.
    """

    begins: int
    minutes: int
    deck_minutes: int
    title: str
    lesson: Lesson | None
    remark: str


@dataclass(frozen=True)
class Agenda:
    """One half day or day. taught: the lessons that it and the days before it teach."""

    name: str
    audience: str
    most_minutes: int
    blocks: tuple[Block, ...]
    taught: frozenset[str]

    @property
    def minutes(self) -> int:
        return sum(block.minutes for block in self.blocks)


@cache
def notebooks() -> dict[str, Lesson]:
    """{number: lesson} in the order of the course, the appendix among them."""
    rows = tomllib.loads(DATA.read_text())["lesson"]
    as_tuples = [{k: tuple(v) if isinstance(v, list) else v for k, v in r.items()} for r in rows]
    return {row["number"]: Lesson(**row) for row in as_tuples}


def lessons() -> dict[str, Lesson]:
    """{number: lesson} without the appendix, which is no lesson."""
    return {number: lesson for number, lesson in notebooks().items() if not lesson.appendix}


def find(number: str | None) -> Lesson:
    """A lesson, or the appendix, by its number. Raises LessonError, with a list."""
    if number not in notebooks():
        given = f"There is no lesson {number}" if number else "No lesson was given"
        raise LessonError(f"{given}: give LESSON= one of {', '.join(notebooks())}.")
    return notebooks()[number]


def named(names: list[str], paths: list[Path]) -> list[Path]:
    """The files of these lessons, all without names: by number, or by how their names begin.

    Raises LessonError for a name of no lesson.
    """
    begins = [f"{name}_" if name in notebooks() else name for name in names]  # 04 is not 04b
    for name, begin in zip(names, begins, strict=True):
        if not name or not any(path.stem.startswith(begin) for path in paths):
            raise LessonError(f"There is no lesson {name!r}: there are {', '.join(notebooks())}.")
    return [path for path in paths if not names or path.stem.startswith(tuple(begins))]


def path_to(number: str) -> list[str]:
    """The lessons that one needs, directly or through another, in the order of the course."""
    needed, open_ones = set(), [number]
    while open_ones:
        new = set(find(open_ones.pop()).after) - needed
        open_ones += new
        needed |= new
    return [name for name in lessons() if name in needed]


def optional(heading: str) -> bool:
    return heading.endswith(OPTIONAL)


def headings(source: str) -> list[str]:
    """The second-level headings of a notebook's source, in order."""
    return [words.strip() for cell in MARKDOWN.findall(source) for words in HEADING.findall(cell)]


def wrong_parts(lesson: Lesson, source: str) -> list[str]:
    """What is wrong with a lesson's parts, a sentence each; nothing for one without parts."""
    if not lesson.parts:
        return []
    found, named = headings(source), [heading for heading, _ in lesson.parts]
    wanted = [heading for heading in found if heading != TAKES_NO_TIME or heading in named]
    core = sum(minutes for _, minutes in lesson.core)
    wrong = [f"has no heading {heading!r}" for heading in named if heading not in found]
    wrong += [f"lacks its heading {heading!r}" for heading in wanted if heading not in named]
    if not wrong and named != wanted:
        wrong.append("has its headings in another order than the notebook")
    if core != lesson.minutes:
        wrong.append(f"has core parts of {core} minutes, but minutes = {lesson.minutes}")
    return [f"lesson {lesson.number} {words}" for words in wrong]


def go_to(lesson: Lesson, minutes: int = 10) -> str:
    """The heading to go to when so many minutes remain: what follows it fits, if anything does."""
    heading, left = "", minutes
    for heading_before, needs in reversed(lesson.core):
        if heading_before == TAKES_NO_TIME:
            continue
        left -= needs
        if heading and left < 0:
            break
        heading = heading_before
    return heading


def minutes_of_deck(text: str) -> int:
    return sum(int(minutes) for minutes in SLIDE.findall(text))


@cache
def agendas(path: Path = DATA) -> dict[str, Agenda]:
    """Read {name: agenda}. Raises LessonError for a file without, or one that can't be taught."""
    found = {}
    try:
        for row in tomllib.loads(path.read_text())["agenda"]:
            follows = row.pop("follows", None)
            taught = found[follows].taught if follows else frozenset()
            found[row["name"]] = _agenda(**row, taught=taught)
    except (OSError, ValueError, KeyError, TypeError) as error:
        about = f"{path.name} has no agendas as notebooks/lessons.toml has"
        raise LessonError(f"{about}: {error}") from None
    return found


def _agenda(
    name: str, audience: str, most_minutes: int, blocks: list[dict], taught: frozenset[str]
) -> Agenda:
    """Add up an agenda's blocks, and check them."""
    done, now, without_pause = [], 0, 0
    for row in blocks:
        lesson = find(row["lesson"]) if "lesson" in row else None
        if lesson and lesson.number not in taught:
            _check_needs(name, lesson, taught, row)
            taught |= {lesson.number}
        title = f"{lesson.number} {lesson.title}" if lesson else row.get("what") or row["pause"]
        deck_minutes = lesson.deck_minutes if lesson and row.get("deck", True) else 0
        work, remark = _work(lesson, row)
        minutes = deck_minutes + work
        minutes += -minutes % FULL_MINUTES
        done.append(Block(now, minutes, deck_minutes, title, lesson, remark))
        now += minutes
        without_pause = 0 if "pause" in row else without_pause + minutes
        if without_pause > LONGEST:
            raise LessonError(
                f"{name}: {without_pause} minutes without a pause until the end of {title}, at "
                f"most {LONGEST}"
            )
    if now > most_minutes:
        raise LessonError(f"{name}: {now} minutes, at most {most_minutes}")
    return Agenda(name, audience, most_minutes, tuple(done), taught)


def _check_needs(name: str, lesson: Lesson, taught: frozenset[str], row: dict) -> None:
    """Raise LessonError where a lesson comes before one that it needs and no remark says so."""
    skips = row.get("skips", ())
    if missing := [each for each in lesson.after if each not in {*taught, *skips}]:
        needed = ", ".join(missing)
        raise LessonError(f"{name}: lesson {lesson.number} comes before what it needs, {needed}")
    if silent := [each for each in skips if each not in row.get("remark", "")]:
        skipped = f"lesson {lesson.number} skips {', '.join(silent)}"
        raise LessonError(f"{name}: {skipped}, and its remark does not say what to say instead")


def _work(lesson: Lesson | None, row: dict) -> tuple[int, str]:
    """Return a block's minutes without slides, and its remark, with the parts that are taught."""
    remark = row.get("remark", "")
    if not lesson or "minutes" in row:
        return row["minutes"], remark
    headings = [heading for heading, _ in lesson.core]
    since, until = row.get("since", headings[0]), row.get("until", headings[-1])
    taught = lesson.core[headings.index(since) : headings.index(until) + 1]
    limits = [f"from *{since}*"] * ("since" in row) + [f"to *{until}*"] * ("until" in row)
    parts = f"in part, {' '.join(limits)}" if limits else ""
    return sum(minutes for _, minutes in taught), ": ".join(filter(None, [parts, remark]))


def clock(begins: str, minutes: int) -> str:
    """Return the time so many minutes after "09:00"."""
    hour, minute = map(int, begins.split(":"))
    return f"{hour + (minute + minutes) // 60}:{(minute + minutes) % 60:02}"


def course_map() -> str:
    """The map of the course as a Markdown table."""
    lines = ["| Lesson | What it teaches | Minutes | What it needs |", "|---|---|--:|---|"]
    for each in notebooks().values():
        lines.append(f"| {each.link} | {each.teaches} | {each.minutes} | {each.needs} |")
    return "\n".join(lines)


def way(numbers: list[str]) -> list[Lesson]:
    """These lessons and all that they need, in the order of the course. Raises LessonError."""
    wanted = {*numbers, *(needed for number in numbers for needed in path_to(number))}
    return [lesson for number, lesson in notebooks().items() if number in wanted]


def ways() -> str:
    """The ways through the course as a Markdown table."""
    lines = ["| You want to | Lessons | Hours |", "|---|---|--:|"]
    for row in tomllib.loads(DATA.read_text())["way"]:
        taken = way(row["lessons"])
        links = ", ".join(f"[{each.number}]({each.file}.ipynb)" for each in taken)
        hours = sum(each.minutes for each in taken) / 60
        lines.append(f"| {row['aim']} | {links} | {hours:.1f} |")
    return "\n".join(lines)


def with_tables(page: str) -> str:
    """The page's text with today's tables between their marks. Raises LessonError without one."""
    for name, table in (("map", course_map), ("ways", ways)):
        begin, end = BEGIN.format(name), END.format(name)
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise LessonError(f"notebooks/README.md: a mark is missing: {begin} or {end}")
        page = f"{before}{begin}\n{table()}\n{end}{after}"
    return page


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    check, text = parser.parse_args().check, PAGE.read_text()
    try:
        wanted = with_tables(text)
    except LessonError as error:
        print(error)
        return 1
    known = lessons().values()
    wrong = [words for each in known for words in wrong_parts(each, each.source.read_text())]
    if wrong:
        print("notebooks/lessons.toml:", *wrong, sep="\n  ")
        return 1
    if text == wanted:
        return 0
    if check:
        print("notebooks/README.md is not that of notebooks/lessons.toml. Run `make readme`.")
        return 1
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
