"""A reader's predictions, and how far off they were: `predictions.show()`."""

import math
import textwrap
from statistics import median

from matplotlib.figure import Figure

from bootcamp.classroom import journal
from bootcamp.classroom.predict import MEASURED
from bootcamp.drawing import style
from bootcamp.drawing.charts import BOLD, beside, log_axis, rows
from bootcamp.drawing.palette import BLUE, GREEN, PALE, VERMILLION
from bootcamp.table import Table
from bootcamp.units import number, three_digits

KINDS = {  # kinds of questions by the units of their answers; other units are counts
    "times and speeds": ("s", "ms", "samples/s", "tokens/s"),
    "sizes in memory and files": ("bytes", "kB", "MB", "GB"),
    "ratios and shares": ("times", "%", "models"),
    "plain numbers": ("",),
}
MIN_ANSWERS = 3  # below this, no verdict on a kind or on a direction
MAX_DRAWN_FACTOR = 100.0  # a factor beyond this is drawn at the figure's edge
OWN_QUESTIONS = "your own"  # in place of a lesson, for a reader's own question


def list_predictions() -> list[dict]:
    """List the journal's scored predictions by lesson, each with lesson, kind, ratio and factor.

    ratio: answer over measurement; factor: 2.0 for half and for double. Both are None where one of
    the two numbers is not positive.
    """
    lessons = _find_lessons()
    order = [*dict.fromkeys(lessons.values()), OWN_QUESTIONS]
    found = []
    for one in journal.list_scored_predictions():
        answer, measured = one["answer"], one["measured"]
        ratio = answer / measured if measured > 0 and 0 < answer / measured < math.inf else None
        kind = next((name for name, units in KINDS.items() if one["unit"] in units), "counts")
        about = {"lesson": lessons.get(one["name"], OWN_QUESTIONS), "kind": kind}
        found.append(one | about | {"ratio": ratio, "factor": ratio and max(ratio, 1 / ratio)})
    return sorted(found, key=lambda one: order.index(one["lesson"]))


def _find_lessons() -> dict[str, str]:
    lessons = journal.list_lessons().items()
    return {name: lesson.partition("_")[0] for lesson, (names, _) in lessons for name in names}


def table() -> Table:
    """Return a table of all predictions; columns `how` and `machine` only if values differ."""
    found = list_predictions()
    columns = {
        "lesson": "lesson",
        "question": lambda one: textwrap.shorten(one["question"], 80, placeholder=" ..."),
        "you said": lambda one: f"{number(one['answer'])} {one['unit']}".strip(),
        "it was": lambda one: f"{number(one['measured'])} {one['unit']}".strip(),
        "off by a factor of": "factor",
        "result": lambda one: "right" if one["right"] else "wrong",
    }
    columns |= {key: key for key in ("how", "machine") if len({one[key] for one in found}) > 1}
    unanswered = len(_find_lessons().keys() - {one["name"] for one in found})
    caption = f"Your predictions: {len(found)}. Questions of the course without one: {unanswered}."
    return Table.of(found, columns, caption)


def score_kinds(found: list[dict]) -> list[tuple[str, int, int, float | None]]:
    """List (kind, right, all, median factor if known) of the kinds predicted, worst first."""
    scores = []
    for kind in dict.fromkeys(one["kind"] for one in found):
        group = [one for one in found if one["kind"] == kind]
        factors = [one["factor"] for one in group if one["factor"]]
        off = median(factors) if factors else None
        scores.append((kind, sum(one["right"] for one in group), len(group), off))
    return sorted(scores, key=lambda score: (score[1] / score[2], -(score[3] or 1)))


def verdict() -> str:
    """Name the kind with the smallest share of right answers, and the direction of the errors."""
    found = list_predictions()
    if not found:
        return "No predictions yet: type one into the field under a question, then run the cells."
    right = sum(one["right"] for one in found)
    text = f"{right} of {len(found)} predictions were right."
    enough = [score for score in score_kinds(found) if score[2] >= MIN_ANSWERS]
    if right == len(found):
        return text
    if len(enough) < 2:
        return f"{text} Too few to compare kinds: {MIN_ANSWERS} each of two kinds are needed."
    kind, good, count, off = enough[0]
    text += f" Worst: {kind}, {good} of {count} right"
    text += f", typically off by a factor of {three_digits(off)}." if off else "."
    wrong = [one["ratio"] > 1 for one in found if one["ratio"] and not one["right"]]
    if len(wrong) >= MIN_ANSWERS:
        text += f" Of {len(wrong)} wrong ones {sum(wrong)} were too large."
    return text


@style.styled
def figure() -> Figure:
    """Draw predicted / measured by lesson, and beside it how many were right by kind."""
    found = list_predictions()
    if not found:
        raise ValueError(verdict())
    drawn = [one for one in found if one["ratio"]]
    lessons = list(dict.fromkeys(one["lesson"] for one in found))
    kinds = score_kinds(found)
    height = 3.4 + 0.27 * max(len(lessons), 2 * len(kinds))
    title = "Your predictions: how far off, by lesson and by kind"
    drawing, panels = style.begin(title, height, [["ratios", "ratios", "kinds"]])
    _draw_ratios(panels["ratios"], drawn, lessons)
    rows(panels["kinds"], [textwrap.fill(kind, 14) for kind, *_ in kinds])
    for row, (_, good, count, _) in enumerate(kinds):
        panels["kinds"].barh(row, 100 * good / count, color=GREEN, height=0.5)
        beside(panels["kinds"], 100 * good / count, row, f"{good} of {count}", right=6, **BOLD)
    panels["kinds"].set(xlim=(0, 150), xticks=[0, 50, 100], xlabel="right, %")
    style.legend(drawing, panels["ratios"].get_legend_handles_labels()[0])
    notes = ["Each machine's first answer to a question counts. Right: as close as its cell asks."]
    if left := len(found) - len(drawn):
        notes.append(f"Without a ratio, as one of the two numbers is not above 0: {left}.")
    if any(one["factor"] > MAX_DRAWN_FACTOR for one in drawn):
        notes.append(f"At the edge: off by more than a factor of {MAX_DRAWN_FACTOR:g}.")
    if planned := sum(one["how"] != MEASURED for one in found):
        notes.append(f"Not measured, but by formula or what the planner says: {planned}.")
    machines = dict.fromkeys(one["machine"] for one in found)
    notes.append(f"Measured on {'; '.join(machines)}.")
    return style.finish(drawing, [], verdict(), tuple(notes))


def _draw_ratios(axes, drawn: list[dict], lessons: list[str]) -> None:
    rows(axes, lessons)
    for label, colour, marker in (("right", BLUE, "o"), ("wrong", VERMILLION, "X")):
        mine = [one for one in drawn if one["right"] == (label == "right")]
        ratios = [min(MAX_DRAWN_FACTOR, max(1 / MAX_DRAWN_FACTOR, one["ratio"])) for one in mine]
        places = [lessons.index(one["lesson"]) for one in mine]
        axes.plot(ratios, places, marker, color=colour, label=label)
    most = max((one["factor"] for one in drawn), default=1.0)
    above = {f"{tick:g}": tick for tick in (2, 10, MAX_DRAWN_FACTOR) if tick <= max(2, 3 * most)}
    ticks = {"1": 1} | above | {f"1/{word}": 1 / tick for word, tick in above.items()}
    log_axis(axes.xaxis, ticks.values(), list(ticks))
    axes.axvline(1, color=PALE, linewidth=1.5, zorder=0)
    axes.grid(axis="y")
    axes.set(xlim=(min(ticks.values()) / 1.3, max(ticks.values()) * 1.3))
    axes.set(xlabel="predicted / measured", ylabel="lesson")


def show() -> None:
    """Show the figure, the table and the verdict; a sentence where there are no predictions."""
    from IPython.display import display

    if list_predictions():
        style.show(figure())
        display(table())
    print(verdict())
