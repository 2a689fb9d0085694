"""What a deck can ask for: {{ diff("gpu", "ddp") }} in slides/*.md is a call of a function below.

Scripts, records and the lessons' data are looked up at every build, and what is no longer there
stops it with a SlideError. slides/README.md lists the functions with examples.
"""

import html
import importlib
import re
import textwrap
from pathlib import Path

import embed
import explorer_page
import lessons

from bootcamp.drawing import style as figures
from bootcamp.paths import REFERENCE, ROOT, shown
from bootcamp.records import runs, summary
from bootcamp.scripts import diff as compare
from bootcamp.scripts import strategies
from bootcamp.table import Table
from bootcamp.units import number

MODULES = {  # other than the diagrams' whose functions a deck may call
    "prepared": "prepared",
    "plots": "bootcamp.drawing.plots",
    "memory": "bootcamp.costs.memory",
    "published": "bootcamp.costs.published",
    "communication": "bootcamp_lessons.communication",
    "forecasts": "bootcamp_lessons.forecasts",
    "experts_lab": "bootcamp_lessons.labs.experts_lab",
}
RECORDS = REFERENCE / "xeon-2core"  # the machine whose runs are meant
HEADING = re.compile(r"# (\d)\. ")
PICTURE_HEIGHT, FIGURE_HEIGHT, EXPLORER_HEIGHT = 540, 465, 395  # pixels of the stage
LONG_DIFF = 15  # rows; a longer one is set a little smaller


class SlideError(Exception):
    """A deck that can't be built. Its text says which file, what was asked for and what to do."""


def diff(parent: str, child: str, *headings: int) -> str:
    """The changed code lines under the headings that they belong to, marked + and -.

    headings: numbers of those wanted; none for all, and for what is above the first.
    """
    parent, child = _script(parent), _script(child)
    code = {"+": set(compare.list_code_lines(child)), "-": set(compare.list_code_lines(parent))}
    whole_file = len(child.read_text()) + len(parent.read_text())
    rows, heading, wanted = [], None, not headings
    for line in compare.ScriptDiff(child, parent, context=whole_file).lines[3:]:
        sign, text = line[:1], line[1:]
        if match := HEADING.match(text):
            heading, wanted = text, not headings or int(match[1]) in headings
        elif wanted and sign in code and _bare(text) in code[sign]:
            rows += [("heading", " ", heading)] if heading else []
            rows.append(("added" if sign == "+" else "removed", sign, _bare(text)))
            heading = None
    if not rows:
        raise SlideError(
            f"{child.name} does not differ from {parent.name}: there is no diff to show"
        )
    # without the indentation that all code lines have
    code = [line for kind, _, line in rows if kind != "heading"]
    spare = min(len(line) - len(line.lstrip()) for line in code)
    spans = "".join(
        f'<span class="{kind}">{sign} '
        f"{html.escape(line if kind == 'heading' else line[spare:])}</span>"
        for kind, sign, line in rows
    )
    return _raw(f'<pre class="diff{" long" if len(rows) > LONG_DIFF else ""}">{spans}</pre>')


def _raw(words: str) -> str:
    """HTML that pandoc leaves as it is."""
    return f"\n~~~{{=html}}\n{words}\n~~~\n"


def _bare(line: str) -> str:
    """A line of code without the comment behind it."""
    return line.partition("  # ")[0].rstrip()


def added(parent: str, child: str) -> int:
    """How many code lines a script adds to its parent; a changed one counts."""
    return compare.count_changed_lines(_script(child), _script(parent))[0]


def removed(parent: str, child: str) -> int:
    """How many code lines a script takes from its parent; a changed one counts."""
    return compare.count_changed_lines(_script(child), _script(parent))[1]


def lines(script: str, first: str, to: str | None = None) -> str:
    """The line of a script that begins with `first`, or all from there to the one with `to`.

    A training script's lines come without the reasons above them.
    """
    path = _script(script)
    text = path.read_text().splitlines()
    if script in strategies.SCRIPTS:
        text = [line for line, _ in compare.pair_lines_with_reasons(path)]
    begin = _find(text, first, path)
    end = _find(text, to, path) if to else begin
    if end < begin:
        raise SlideError(f"{path.name}: {to!r} comes before {first!r}. Swap them.")
    language = "bash" if path.suffix == ".sbatch" else "python"
    code = re.sub(r" +# noqa.*", "", textwrap.dedent("\n".join(text[begin : end + 1])))
    return f"\n~~~{language}\n{code}\n~~~\n"


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
    """A script of the family, or a file of the project such as src/snippets/meet.py, a job file."""
    if name.endswith(".sbatch") and (ROOT / name).is_file():
        return ROOT / name
    try:
        return strategies.find(ROOT / name if name.endswith(".py") else name)
    except FileNotFoundError as error:
        raise SlideError(str(error)) from None


def picture(name: str, *given, height: float = PICTURE_HEIGHT, title: bool = False, **named) -> str:
    """What a drawing function makes of plain values; a smaller height leaves room for text."""
    return _raw(embed.to_html(_function(name)(*given, **named), height, title))


def figure(name: str, *given, height: float = FIGURE_HEIGHT, **named) -> str:
    """What a drawing function makes of recorded runs, under its own title, with its foot."""
    given = [_run(each) if isinstance(each, str) else each for each in given]
    return picture(name, *given, height=height, title=True, **named)


def table(name: str, *given, **named) -> str:
    """The Table that a function of prepared.py returns, with its caption as a foot."""
    found = _function(name)(*given, **named)
    foot = f'<p class="foot">{html.escape(found.caption)}</p>'
    return _raw(Table(found.rows)._repr_html_() + foot)


def explorer(kind: str, height: float = EXPLORER_HEIGHT, **initial) -> str:
    """An explorer that moves in the HTML and is a picture in the PDF. initial: where it begins."""
    return _raw(explorer_page.render_div(kind, (embed.WIDTH, height), **initial))


def data(name: str, *given, **named):
    """What a function of the course's costs or forecasts returns, for a figure to draw."""
    return _function(name)(*given, **named)


def _function(name: str):
    """A function of prepared.py, or of a module of the course that draws or computes."""
    module, _, function = name.partition(".")
    file = MODULES.get(module, f"bootcamp_lessons.diagrams.{module}")
    try:
        found = getattr(importlib.import_module(file), function)
        assert callable(found)
    except (ImportError, AttributeError, AssertionError):
        raise SlideError(
            f"there is no drawing {name!r}: give a function of slides/prepared.py, of a module of "
            f"bootcamp_lessons.diagrams, or of {', '.join(MODULES)}, such as plots.throughput"
        ) from None
    return found


def _run(name: str) -> runs.Run:
    """A recorded run, by its name behind the machine's, or by its lesson's folder and name."""
    folder = REFERENCE / name if "/" in name else Path(f"{RECORDS}-{name}")
    if not (folder / "summary.json").exists():
        raise SlideError(
            f"{shown(folder)}: there is no such record. Make it with "
            "tools/recorders/reference.py, or change the run."
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


def megabytes(run: str, key: str, times: float = 1) -> str:
    """Bytes that rank 0 of a run recorded, times a formula's factor, in MB (10^6 bytes)."""
    ranks = _run(run).ranks
    if not ranks or not isinstance(ranks[0].get(key), int | float):
        raise SlideError(f"{run}: its rank 0 has recorded no {key}")
    return f"{times * ranks[0][key] / 1e6:.3g} MB"


def origin(*names: str) -> str:
    """Machine, torch and names of recorded runs."""
    return " ".join(figures.describe_origins([_run(name) for name in names]))


def lesson(number: str) -> str:
    """Minutes of a lesson and what it needs."""
    found = lessons.find(number)
    return f"{found.minutes} minutes · {found.needs}"


def timetable(begins: str, name: str) -> str:
    """An agenda with its times: a row for each block, and the end."""
    if name not in lessons.agendas():
        raise SlideError(f"there is no agenda {name!r}: choose of {', '.join(lessons.agendas())}")
    agenda = lessons.agendas()[name]
    rows = [
        (block.begins, "here" if block.lesson else "pause", block.title, f"{block.minutes} min")
        for block in agenda.blocks
    ]
    cells = [
        f'<div class="{kind}"><i>{lessons.clock(begins, at)}</i><span>{_with_number(title)}</span>'
        f"<i>{minutes}</i></div>"
        for at, kind, title, minutes in [*rows, (agenda.minutes, "pause", "end", "")]
    ]
    return _raw(f'<div class="timetable">{"".join(cells)}</div>')


def _with_number(title: str) -> str:
    """A title as HTML, with a lesson's number in bold."""
    return re.sub(r"^(\d\S*)", r"<b>\1</b>", html.escape(title))


def course_map() -> str:
    """The lessons of the course with their minutes."""
    cells = [
        f'<div class="here"><b>{each.number}</b> {html.escape(each.title)}'
        f"<i>{each.minutes} min</i></div>"
        for each in lessons.lessons().values()
    ]
    return _raw(f'<div class="map">{"".join(cells)}</div>')


ASKED = [diff, added, removed, lines, picture, figure, explorer, table, data, record, megabytes]
ASKED = {each.__name__: each for each in (*ASKED, origin, lesson, timetable, course_map)}
