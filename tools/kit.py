"""python tools/kit.py [--agenda FILE] [--begins 09:00]

Make slides/build/kit.html, the instructor's guide, from slides/kit/*.md: agendas, what to say in
each lesson, the classroom. Minutes come from notebooks/lessons.toml, and agendas too, or from a
FILE of your own, which are added up and checked as those. Goals come from the notebooks, answers
from the exercises, expected outputs from slides/kit/expected/MACHINE/, which
`make course ARGS="--expected FOLDER"` records. One file that needs no network.
"""

import argparse
import difflib
import re
import sys
from pathlib import Path

import course
import jinja2
import lessons
import pypandoc
import reset

from bootcamp.paths import OWN, shown
from bootcamp.scripts.diff import is_reason
from bootcamp_lessons import exercise

ROOT = Path(__file__).resolve().parents[1]
KIT = ROOT / "slides" / "kit"
LESSON = re.compile(r"^## (\d\d[a-z]?) .+$", re.MULTILINE)


class KitError(Exception):
    """A guide that can't be built. Its text says which file lacks what."""


def guide() -> str:
    """Put goals, minutes, answers and expected outputs into lessons.md. Raises KitError."""
    before, *rest = re.split(LESSON, (KIT / "lessons.md").read_text())
    said, known = dict(zip(rest[::2], rest[1::2], strict=True)), lessons.lessons()
    if list(said) != list(known):
        raise KitError(
            f"slides/kit/lessons.md has {list(said)}, notebooks/lessons.toml {list(known)}"
        )
    parts = [before]
    for number, lesson in known.items():
        minutes = f"**{lesson.minutes} minutes, and {lesson.deck_minutes} of slides.**"
        parts.append(
            f"## {number} {lesson.title}\n\n{minutes} {reset.goals(lesson)}{plan(lesson)}"
            f"{said[number]}{answers(lesson)}{expected(lesson)}"
        )
    return "".join(parts)


def plan(lesson: lessons.Lesson) -> str:
    """Table when each part of a lesson begins, and where to go when time runs out."""
    if not lesson.parts:
        return ""
    rows, now = [], 0
    for heading, minutes in lesson.parts:
        free = lessons.optional(heading)
        rows.append(f"| {'' if free else f'{now // 60}:{now % 60:02}'} | {minutes} | {heading} |")
        now += 0 if free else minutes
    head = "| Begins | Minutes | Part |\n|--:|--:|---|"
    ending = f"If ten minutes remain, go to *{lessons.go_to(lesson)}*."
    return "\n\n" + "\n".join([head, *rows]) + f"\n\n{ending}"


def answers(lesson: lessons.Lesson) -> str:
    """Return the answer of each exercise of a lesson, folded: a function, or lines to write."""
    shown = [
        f"**{name}**\n\n~~~{'diff' if hasattr(task, 'starting_point') else 'python'}\n"
        f"{_answer(task)}\n~~~"
        for name in lesson.exercises
        for task in [exercise.find(name)]
    ]
    text = "\n\n".join(shown)
    return f"\n<details><summary>Answers of the exercises</summary>\n\n{text}\n</details>\n\n"


def _answer(task) -> str:
    """Return a function's source; of a script the lines that differ from its starting point."""
    if not hasattr(task, "starting_point"):
        return str(task.solution_text()).rstrip()
    texts = task.starting_point(), task.solution_path().read_text()
    if task.path.suffix == ".py":
        texts = [text.split('"""', 2)[2] for text in texts]  # without docstrings
    begins, solved = ([line for line in text.splitlines() if not is_reason(line)] for text in texts)
    lines = list(difflib.unified_diff(begins, solved, n=1, lineterm=""))[2:]
    return "\n".join("" if line.startswith("@@") else line for line in lines).strip("\n")


def agendas(path: Path = lessons.DATA, begins: str = "09:00") -> str:
    """Return agenda.md with a table for each agenda of a file: one row a block."""
    tables, planned = [], set()
    for agenda in lessons.agendas(path).values():
        planned |= agenda.taught
        rows = [
            f"| {lessons.clock(begins, each.begins)} | {each.deck_minutes or ''} "
            f"| {each.minutes - each.deck_minutes} | {each.title} | {each.remark} |"
            for each in agenda.blocks
        ]
        ends = lessons.clock(begins, agenda.minutes)
        about = f"For {agenda.audience}. {agenda.minutes} minutes, until {ends}."
        head = "| Begins | Slides | Minutes | What | Remark |\n|--:|--:|--:|---|---|"
        tables.append("\n".join([f"## {agenda.name}\n\n{about}\n\n{head}", *rows]))
    left = [f"{n} {each.title}" for n, each in lessons.lessons().items() if n not in planned]
    text = jinja2.Template((KIT / "agenda.md").read_text(), undefined=jinja2.StrictUndefined)
    return text.render(agendas="\n\n".join(tables), left=", ".join(left) or "nothing")


def expected(lesson: lessons.Lesson) -> str:
    """Return a lesson's expected outputs, folded."""
    shown = []
    for path in sorted(KIT.glob(f"expected/*/{lesson.file}.md")):
        text = re.sub(r"^#+ (.*)$", r"**\1**", path.read_text(), flags=re.MULTILINE)
        summary = f"Expected output of each cell, recorded on {path.parent.name}"
        shown.append(f"\n<details><summary>{summary}</summary>\n\n{text}\n</details>\n\n")
    return "".join(shown)


def build(folder: Path, path: Path = lessons.DATA, begins: str = "09:00") -> Path:
    """Write the guide as one HTML file and return its path. Raises KitError and LessonError."""
    pages = [(KIT / name).read_text() for name in ("assessment.md", "room.md", "machines.md")]
    text = "\n\n".join([agendas(path, begins), guide(), *pages]).replace("](../../", "](../")
    text = text.replace("](machines.md)", "](#machines-for-a-class)").replace("(machines.md#", "(#")
    text = text.replace("](assessment.md)", "](#before-and-after)")
    text = text.replace("](trials.md)", "](../kit/trials.md)")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "kit.html"
    options = ["--standalone", "--toc", "--toc-depth=2", "--metadata", "pagetitle=Instructor's kit"]
    options += ["--embed-resources", f"--css={course.STYLE}"]
    pypandoc.convert_text(text, "html", format="markdown", extra_args=options, outputfile=target)
    return target


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agenda", type=Path, default=lessons.DATA, help="a file of your own")
    parser.add_argument("--begins", default="09:00", help="when the agendas begin (default: 09:00)")
    chosen = parser.parse_args()
    if not re.fullmatch(r"[0-2]?\d:[0-5]\d", chosen.begins):
        parser.error(f"{chosen.begins} is no time such as 09:00")
    try:
        target = build(OWN / "slides" / "build", chosen.agenda, chosen.begins)
    except (KitError, lessons.LessonError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{shown(target)}: {target.stat().st_size / 1e3:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
