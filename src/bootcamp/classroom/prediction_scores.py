"""All predictions of a reader, and how far off they were: `predictions.show()`.

Each machine's first answer to a question counts.
"""

import math
import textwrap
from statistics import median

from matplotlib.figure import Figure

from bootcamp.classroom import journal
from bootcamp.classroom.predict import MEASURED
from bootcamp.drawing import style
from bootcamp.drawing.charts import BOLD, beside, log_axis, rows
from bootcamp.drawing.palette import BLUE, GREEN, PALE, VERMILLION
from bootcamp.paths import NOTEBOOKS
from bootcamp.table import Table
from bootcamp.units import number, three_digits

KINDS = {  # of questions, by the unit of their answers; other units count something
    "times and speeds": ("s", "ms", "samples/s", "tokens/s"),
    "sizes in memory and files": ("bytes", "kB", "MB", "GB"),
    "ratios and shares": ("times", "%", "models"),
    "plain numbers": ("",),
}
COUNTS = "counts"
FEWEST = 3  # predictions of a kind before anything is said of it
FARTHEST = 100.0  # a factor beyond this is drawn at the figure's edge
LOOKS = {True: (BLUE, "o", "right"), False: (VERMILLION, "X", "wrong")}
MINE = "your own"  # lesson of a question that no lesson asks


def kind(unit: str) -> str:
    """The kind of question that has answers in a unit."""
    return next((name for name, units in KINDS.items() if unit in units), COUNTS)


def collected() -> list[dict]:
    """List the journal's scored predictions by lesson, each with its lesson, kind and ratio.

    ratio: answer over measurement; None where one of them is no positive number.
    """
    lessons = _lessons()
    order = [*dict.fromkeys(lessons.values()), MINE]
    found = []
    for one in journal.scored_predictions():
        answer, measured = one["answer"], one["measured"]
        ratio = answer / measured if measured > 0 and 0 < answer / measured < math.inf else None
        lesson = lessons.get(one["name"], MINE)
        found.append({**one, "lesson": lesson, "kind": kind(one["unit"]), "ratio": ratio})
    return sorted(found, key=lambda one: order.index(one["lesson"]))


def _lessons() -> dict[str, str]:
    """{name of a question: the number of the lesson that asks it}."""
    return {
        name: path.stem.partition("_")[0]
        for path in sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))
        for name in journal.things_to_do(path)[0]
    }


def factor(one: dict) -> float | None:
    """Return by what factor a prediction is off: 2.0 for half and for double, None for no ratio."""
    return one["ratio"] and max(one["ratio"], 1 / one["ratio"])


def table() -> Table:
    """List all predictions; with columns `how` and `machine` only where they differ."""
    found = collected()
    columns = {
        "lesson": "lesson",
        "question": lambda one: textwrap.shorten(one["question"], 80, placeholder=" ..."),
        "you said": lambda one: f"{number(one['answer'])} {one['unit']}".strip(),
        "it was": lambda one: f"{number(one['measured'])} {one['unit']}".strip(),
        "off by a factor of": factor,
        "result": lambda one: "right" if one["right"] else "wrong",
    }
    columns |= {key: key for key in ("how", "machine") if len({one[key] for one in found}) > 1}
    open_ones = len(_lessons().keys() - {one["name"] for one in found})
    caption = f"Your predictions: {len(found)}. Questions of the course without one: {open_ones}."
    return Table.of(found, columns, caption)


def shares(found: list[dict]) -> dict[str, tuple[int, int, float | None]]:
    """{kind: (right, all, median factor)} of the kinds that there are."""
    kinds = {}
    for one in found:
        kinds.setdefault(one["kind"], []).append(one)
    return {name: _share(group) for name, group in kinds.items()}


def _share(group: list[dict]) -> tuple[int, int, float | None]:
    factors = [factor(one) for one in group if one["ratio"]]
    return sum(one["right"] for one in group), len(group), median(factors) if factors else None


def verdict() -> str:
    """Name the kind with the smallest share of right answers, and the direction of the errors."""
    found = collected()
    if not found:
        return "No predictions yet: type one into the field under a question, then run the cells."
    right = sum(one["right"] for one in found)
    text = f"{right} of {len(found)} predictions were right."
    enough = {name: share for name, share in shares(found).items() if share[1] >= FEWEST}
    if right == len(found):
        return text
    if len(enough) < 2:
        return f"{text} Too few to compare kinds: {FEWEST} each of two kinds are needed."
    name, (good, count, off) = min(
        enough.items(), key=lambda item: (item[1][0] / item[1][1], -(item[1][2] or 1))
    )
    text += f" Worst: {name}, {good} of {count} right"
    text += f", typically off by a factor of {three_digits(off)}." if off else "."
    wrong = [one["ratio"] > 1 for one in found if one["ratio"] and not one["right"]]
    if len(wrong) >= FEWEST:
        text += f" Of {len(wrong)} wrong ones {sum(wrong)} were too large."
    return text


@style.styled
def figure() -> Figure:
    """Draw predicted / measured by lesson, and beside it how many were right by kind."""
    found = collected()
    if not found:
        raise ValueError(verdict())
    drawn = [one for one in found if one["ratio"]]
    lessons = list(dict.fromkeys(one["lesson"] for one in found))
    kinds = dict(sorted(shares(found).items(), key=lambda item: item[1][0] / item[1][1]))
    height = 3.4 + 0.27 * max(len(lessons), 2 * len(kinds))
    title = "Your predictions: how far off, by lesson and by kind"
    drawing, panels = style.begin(title, height, [["ratios", "ratios", "kinds"]])
    _draw_ratios(panels["ratios"], drawn, lessons)
    _draw_kinds(panels["kinds"], kinds)
    style.legend(drawing, panels["ratios"].get_legend_handles_labels()[0])
    notes = ["Each machine's first answer to a question counts. Right: as close as its cell asks."]
    if left := len(found) - len(drawn):
        notes.append(f"Without a ratio, as one of the two numbers is not above 0: {left}.")
    if any(factor(one) > FARTHEST for one in drawn):
        notes.append(f"At the edge: off by more than a factor of {FARTHEST:g}.")
    if planned := sum(one["how"] != MEASURED for one in found):
        notes.append(f"Not measured, but by formula or what the planner says: {planned}.")
    machines = dict.fromkeys(one["machine"] for one in found)
    notes.append(f"Measured on {'; '.join(machines)}.")
    return style.finish(drawing, [], verdict(), tuple(notes))


def _draw_ratios(axes, drawn: list[dict], lessons: list[str]) -> None:
    """A mark for each prediction in its lesson's row; the line is where the two are equal."""
    rows(axes, lessons)
    for right, (colour, marker, label) in LOOKS.items():
        mine = [one for one in drawn if one["right"] == right]
        ratios = [min(FARTHEST, max(1 / FARTHEST, one["ratio"])) for one in mine]
        places = [lessons.index(one["lesson"]) for one in mine]
        axes.plot(ratios, places, marker, color=colour, label=label)
    most = max((factor(one) for one in drawn), default=1.0)
    ticks = [tick for tick in (2, 10, FARTHEST) if tick <= max(2, 3 * most)]
    below = [1 / tick for tick in reversed(ticks)]
    words = [*(f"1/{tick:g}" for tick in reversed(ticks)), "1", *(f"{tick:g}" for tick in ticks)]
    log_axis(axes.xaxis, [*below, 1, *ticks], words)
    axes.set_xlim(below[0] / 1.3, ticks[-1] * 1.3)
    axes.axvline(1, color=PALE, linewidth=1.5, zorder=0)
    axes.grid(axis="y")
    axes.set_ylabel("lesson")
    axes.set_xlabel("predicted / measured")


def _draw_kinds(axes, kinds: dict[str, tuple[int, int, float | None]]) -> None:
    rows(axes, [textwrap.fill(name, 14) for name in kinds])
    for row, (good, all_, _) in enumerate(kinds.values()):
        axes.barh(row, 100 * good / all_, color=GREEN, height=0.5)
        beside(axes, 100 * good / all_, row, f"{good} of {all_}", right=6, **BOLD)
    axes.set_xlim(0, 150)
    axes.set_xticks([0, 50, 100])
    axes.set_xlabel("right, %")


def show() -> None:
    """The figure, the table and the verdict; one sentence where there are no predictions."""
    from IPython.display import display

    if collected():
        style.show(figure())
        display(table())
    print(verdict())
