"""The pictures of notebook 05: inside Horovod, a ring on real ranks, Horovod's own timeline."""

import gzip
import json
import re
import textwrap
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bootcamp.drawing.diagrams import arrow, box, canvas, label
from bootcamp.drawing.palette import INK, LIGHT_BLUE, LIGHT_GREEN, LIGHT_ORANGE, PALE, VERMILLION
from bootcamp.drawing.style import FOOT, FOOT_CHARACTERS, SMALL, begin, finish, legend, styled
from bootcamp.records.runs import Run


@styled
def inside() -> Figure:
    """Two ranks under Horovod: a script and a background thread each, and a coordinator."""
    says = (
        "Each of two ranks has a script and, in the same process, a background thread. The script's"
        " backward hands over each gradient with its name. Once in every cycle the background "
        "threads tell the coordinator, on rank 0, which names are ready. It answers which of them "
        "are ready on all ranks. Those are copied into one fusion buffer, reduced over the ring, "
        "and copied back. The script's optimizer step waits for them."
    )
    figure, axes = canvas("Inside Horovod: who talks to whom in one cycle", says, 4.9)
    for rank, y in enumerate((34, 3)):
        label(axes, 3.5, y + 5, f"rank {rank}", bold=True, size=14)
        box(axes, 9, y, 21, 10, "script: backward,\nthen optimizer.step()", colour=LIGHT_BLUE)
        box(axes, 43, y, 21, 10, "background thread:\nnames that are ready", colour=LIGHT_ORANGE)
        box(axes, 78, y, 22, 10, "fusion buffer:\nthese gradients", colour=LIGHT_GREEN)
        arrow(axes, (30.3, y + 6.7), (42.7, y + 6.7), "gradients", above=1.6)
        arrow(axes, (42.7, y + 3.3), (30.3, y + 3.3))
        label(axes, 36.5, y + 1.2, "means", size=SMALL)
        arrow(axes, (64.3, y + 6.7), (77.7, y + 6.7), "copied in", above=1.6)
        arrow(axes, (77.7, y + 3.3), (64.3, y + 3.3))
        label(axes, 71, y + 1.2, "copied out", size=SMALL)
    box(axes, 40, 18.5, 27, 10, "coordinator (on rank 0):\nready on all ranks?", colour="white")
    for start, end in (((51, 33.7), (51, 28.8)), ((51, 13.3), (51, 18.2))):
        arrow(axes, start, end)
        arrow(axes, (end[0] + 5, end[1]), (start[0] + 5, start[1]))
    label(axes, 49.5, 31.2, "names", at="right")
    label(axes, 57.5, 31.2, "reduce these, in this order", at="left")
    label(axes, 49.5, 15.8, "names", at="right")
    label(axes, 57.5, 15.8, "the same answer", at="left")
    arrow(axes, (89, 33.5), (89, 13.5), style="<->", colour=VERMILLION)
    label(axes, 90.5, 23.5, "ring\nall-reduce", at="left", ink=VERMILLION, bold=True)
    return figure


@styled
def ring(ranks: list[dict]) -> Figure:
    """A ring all-reduce as it went on real ranks: what each held after every step.

    ranks: of each rank, in order, what src/snippets/horovod_ring.py printed: `held`, its pieces
    before the first step and after each; `sent`, the piece it sent in each step; `total`.
    """
    world, moments = len(ranks), len(ranks[0]["held"])
    title = f"A ring all-reduce on {world} ranks, as they printed it"
    says = f"{world} ranks, each with {world} pieces of its numbers. " + "; ".join(
        f"rank {rank} held {record['held'][0]} at first and {record['held'][-1]} at the end"
        for rank, record in enumerate(ranks)
    )
    height = 1.25 * world + 1.2
    figure, axes = canvas(title, f"{says}.", height)
    total = _in_pieces(ranks[0])
    wide = 92 / moments
    for moment in range(moments):
        x, top = 8.5 + wide * moment, 10 * height
        does = "at first" if moment == 0 else f"after step {moment}"
        label(axes, x + wide / 2 - 1.2, top - 2, does, bold=True)
        for rank, record in enumerate(ranks):
            y = top - 6.5 - 12.5 * rank
            if moment == 0:
                label(axes, 3.5, y - 4, f"rank {rank}", bold=True)
            for piece, numbers in enumerate(record["held"][moment]):
                low = y - 3.1 * (piece + 1) + (0 if world < 4 else 0.4)
                colour = _colour(numbers, record["held"][0][piece], total[piece])
                words = "   ".join(map(str, numbers))
                box(axes, x, low, wide - 2.6, 2.8, words, colour=colour, size=10)
                if moment < moments - 1 and record["sent"][moment] == piece:
                    label(axes, x + wide - 1.3, low + 1.4, "▶", ink=VERMILLION, size=11)
    _halves(axes, wide, world, moments)
    label(axes, 0, 1, "▶: sent to the next rank now, from the last rank to rank 0.", at="left")
    return figure


def _in_pieces(record: dict) -> list[list[int]]:
    """The total, cut as the rank's own numbers are."""
    numbers = iter(record["total"])
    return [[next(numbers) for _ in piece] for piece in record["held"][0]]


def _colour(numbers: list[int], own: list[int], total: list[int]) -> str:
    return LIGHT_GREEN if numbers == total else "white" if numbers == own else LIGHT_ORANGE


def _halves(axes, wide: float, world: int, moments: int) -> None:
    """Name the two halves of the steps below the columns that show their results."""
    edges = (8.5 + wide, 8.5 + wide * world, 8.5 + wide * moments)
    for left, right, text in zip(
        edges, edges[1:], ("add up: reduce-scatter", "pass on: all-gather"), strict=False
    ):
        arrow(axes, (left, 6.4), (right - 2.6, 6.4), style="<->", colour=PALE)
        label(axes, (left + right - 2.6) / 2, 4.2, text)


ACTIVITIES = {
    "NEGOTIATE_ALLREDUCE": ("reported ready, waits", "#D0D0D0"),
    "GLOO_ALLREDUCE": ("in an all-reduce", VERMILLION),
}


def read_timeline(path: Path, last_of_step: str = "mean_loss") -> list[dict]:
    """The steps of a file that HOROVOD_TIMELINE has written.

    A step ends with the all-reduce named `last_of_step`. Each is {"spans", "all_reduces"}: spans
    as (tensor, activity, start, end) in µs, and how many all-reduces were run: of tensors that were
    fused the file has one all-reduce several times. A file that ends too early is read as far as it
    goes. Where there is no such file, it is looked for with the ending .gz.
    """
    path = Path(path)
    if path.exists():
        text = path.read_text()
    else:
        with gzip.open(f"{path}.gz", "rt") as file:
            text = file.read()
    names, steps = {}, []
    step, open_spans, reducing = _new_step(), {}, 0
    for event in _events(text):
        if event.get("name") == "process_name" and "name" in event["args"]:
            names[event["pid"]] = event["args"]["name"]
        if event["ph"] not in "BE":
            continue
        stack = open_spans.setdefault(event["pid"], [])
        if event["ph"] == "B":
            stack.append((event["name"], event["ts"]))
            if event["name"] == "GLOO_ALLREDUCE":
                step["all_reduces"] += reducing == 0
                reducing += 1
            continue
        activity, start = stack.pop()
        tensor = re.sub(r"^\w*reduce\.", "", names[event["pid"]])
        step["spans"].append((tensor, activity, start, event["ts"]))
        reducing -= activity == "GLOO_ALLREDUCE"
        if tensor == last_of_step and activity == "ALLREDUCE":
            steps.append(step)
            step = _new_step()
    return steps


def _new_step() -> dict:
    return {"spans": [], "all_reduces": 0}


def _events(text: str) -> list[dict]:
    try:
        return json.loads(text)
    except ValueError:  # a rank that was killed has not closed the list
        return json.loads(text[: text.rfind("}") + 1] + "]")


@styled
def timeline(step: dict, run: Run) -> Figure:
    """One step on Horovod's own timeline: a line for each tensor, from ready to reduced.

    step: one of read_timeline's. run: the run that it is from.
    """
    spans = [span for span in step["spans"] if span[1] in ACTIVITIES]
    order = {}
    for tensor, _, start, _ in sorted(spans, key=lambda span: span[2]):
        order.setdefault(tensor, start)
    begin_at, tensors = min(order.values()), list(order)
    title = f"One step in Horovod: {len(tensors)} tensors, {step['all_reduces']} all-reduces"
    figure, axes = begin(title, 6.2)
    for tensor, activity, start, end in spans:
        place, (_, colour) = tensors.index(tensor), ACTIVITIES[activity]
        left, wide = (start - begin_at) / 1e3, (end - start) / 1e3
        look = {"color": colour, "edgecolor": colour, "linewidth": 1.2}  # seen if ever so short
        axes.barh(place, wide, left=left, height=0.75, **look)
    axes.set_ylim(len(tensors), -1)
    axes.set_xlim(0)
    ends = (0, len(tensors) - 1)
    axes.set_yticks(ends, [_short(tensors[place]) for place in ends], fontsize=SMALL)
    axes.set_ylabel("a line for each tensor")
    axes.set_xlabel("milliseconds since the first gradient was reported ready")
    axes.grid(axis="x")
    legend(figure, [Patch(facecolor=c, edgecolor=INK, label=w) for w, c in ACTIVITIES.values()])
    last = (max(end for *_, end in spans) - begin_at) / 1e3
    words = f"{title}, {last:.0f} ms from the first gradient to the mean of the loss."
    return finish(figure, (run,), words, ("From the file that HOROVOD_TIMELINE names, rank 0's.",))


def _short(tensor: str) -> str:
    return tensor if len(tensor) < 22 else f"…{tensor[-20:]}"


@styled
def published_scaling(rows: list[dict]) -> Figure:
    """Published scaling efficiency of Horovod, a bar for each model.

    rows: of src/bootcamp/theory/published/horovod.csv.
    """
    first = rows[0]
    title = f"Published: Horovod on {first['gpus']} GPUs, scaling efficiency"
    figure, axes = begin(title, 2.1 + 0.7 * len(rows))
    for place, row in enumerate(rows):
        percent = float(row["scaling_efficiency_pct"])
        axes.barh(place, percent, height=0.6, color=PALE)
        axes.text(percent - 1.5, place, f"{percent:.0f} %", ha="right", va="center", color="white")
    axes.set_yticks(range(len(rows)), [row["model"] for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel(f"% of {first['gpus']} times the speed of one GPU")
    setting = (
        f"{first['servers']} servers with {first['gpus_per_server']} {first['gpu']} GPUs each, "
        f"{first['network']}. Source: {first['source']}."
    )
    foot = textwrap.fill(setting, FOOT_CHARACTERS, break_on_hyphens=False)
    figure.supxlabel(foot, x=0.012, ha="left", fontsize=FOOT, linespacing=1.4)
    values = ", ".join(f"{row['model']} {row['scaling_efficiency_pct']} %" for row in rows)
    figure.alt = f"{title}: {values}. {setting}"
    return figure
