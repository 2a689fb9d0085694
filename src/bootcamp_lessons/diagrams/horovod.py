"""Lesson 05: one cycle of Horovod, a ring all-reduce, its timeline."""

import gzip
import json
import re
from itertools import pairwise
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure

from bootcamp.drawing.canvas import arrow, arrows, box, canvas, diagram, label
from bootcamp.drawing.charts import handles
from bootcamp.drawing.palette import GREY, LIGHT, PALE, VERMILLION
from bootcamp.drawing.style import SMALL, begin, finish, legend, styled
from bootcamp.records.runs import Run

ACTIVITIES = {
    "NEGOTIATE_ALLREDUCE": ("reported ready, waits", GREY),
    "GLOO_ALLREDUCE": ("in an all-reduce", VERMILLION),
}


@diagram("Inside Horovod: who talks to whom in one cycle", 4.9)
def one_cycle(axes) -> None:
    """Each of two ranks has a script and, in the same process, a background thread. The script's
    backward hands over each gradient with its name. Once in every cycle the background threads tell
    the coordinator, on rank 0, which names are ready. It answers which are ready on all ranks: they
    are copied into one fusion buffer, reduced over the ring, and copied back.
    """
    for rank, y in enumerate((34, 3)):
        label(axes, 3.5, y + 5, f"rank {rank}", bold=True, size=14)
        box(axes, 9, y, 21, 10, "script: backward,\nthen optimizer.step()", colour=LIGHT.blue)
        box(axes, 43, y, 21, 10, "background thread:\nnames that are ready", colour=LIGHT.orange)
        box(axes, 78, y, 22, 10, "fusion buffer:\nthese gradients", colour=LIGHT.green)
        between = ((30.3, 42.7, "gradients", "means"), (64.3, 77.7, "copied in", "copied out"))
        for left, right, there, back in between:
            arrow(axes, (left, y + 6.7), (right, y + 6.7), there, above=1.6)
            arrow(axes, (right, y + 3.3), (left, y + 3.3), back, above=-2.1)
    box(axes, 40, 18.5, 27, 10, "coordinator (on rank 0):\nready on all ranks?", colour="white")
    answers = (33.7, 28.8, "reduce these, in this order"), (13.3, 18.2, "the same answer")
    for start, end, answer in answers:
        arrows(axes, (51, start, 51, end), (56, end, 56, start))
        label(axes, 49.5, (start + end) / 2, "names", at="right")
        label(axes, 57.5, (start + end) / 2, answer, at="left")
    arrow(axes, (89, 33.5), (89, 13.5), style="<->", colour=VERMILLION)
    label(axes, 90.5, 23.5, "ring\nall-reduce", at="left", ink=VERMILLION, bold=True)


@styled
def ring(ranks: list[dict]) -> Figure:
    """Draw a ring all-reduce as src/snippets/horovod_ring.py printed it, rank by rank."""
    world, moments = len(ranks), len(ranks[0]["held"])
    title = f"A ring all-reduce on {world} ranks, as they printed it"
    says = "; ".join(
        f"rank {rank} held {record['held'][0]} at first and {record['held'][-1]} at the end"
        for rank, record in enumerate(ranks)
    )
    says = f"{world} ranks, each with {world} pieces of its numbers. {says}."
    each, wide = 3 * world + 2.6, 91 / moments
    high = 15 + each * world
    figure, axes = canvas(title, says, high / 10)
    for moment in range(moments):
        x, words = 9 + wide * moment, f"after step {moment}" if moment else "at first"
        label(axes, x + wide / 2 - 1.2, high - 2, words, bold=True)
        for rank, record in enumerate(ranks):
            top = high - 8 - each * rank
            if moment == 0:
                label(axes, 3.5, top + 3 - 1.5 * world, f"rank {rank}", bold=True)
            for piece, (text, colour) in enumerate(_colour_pieces(record, moment)):
                box(axes, x, top - 3 * piece, wide - 2.5, 2.7, text, colour=colour, size=11)
            if moment < len(record["sent"]):
                y = top - 3 * record["sent"][moment] + 1.3
                label(axes, x + wide - 1.2, y, "▶", ink=VERMILLION, size=11)
    edges = [9 + wide * moment for moment in (1, world, moments)]
    halves = ("add up: reduce-scatter", "pass on: all-gather")
    for (left, end), words in zip(pairwise(edges), halves, strict=True):
        arrow(axes, (left, 6.8), (end - 2.5, 6.8), style="<->", colour=PALE)
        label(axes, (left + end - 2.5) / 2, 4.6, words)
    way = "▶: it is sent to the next rank now, from the last rank to rank 0."
    label(axes, 0, 1, way, at="left", size=11)
    return figure


def _colour_pieces(record: dict, moment: int) -> list[tuple[str, str]]:
    """Return text and colour of each piece that a rank holds; the total is green."""
    own, numbers, pieces = record["held"][0], iter(record["total"]), []
    for piece, first in zip(record["held"][moment], own, strict=True):
        total = [next(numbers) for _ in piece]
        colour = LIGHT.green if piece == total else "white" if piece == first else LIGHT.orange
        pieces.append(("   ".join(map(str, piece)), colour))
    return pieces


def read_timeline(path: Path) -> list[dict]:
    """Read the complete steps of a HOROVOD_TIMELINE file, or of its .gz; it may break off.

    A step ends with the all-reduce of the loss. Each step has `spans`, (tensor, activity, start,
    end) in microseconds, and `all_reduces`, the number that ran: a fused one counts once.
    """
    packed = Path(f"{path}.gz")
    text = gzip.decompress(packed.read_bytes()).decode() if packed.exists() else path.read_text()
    names, steps, open_spans, open_reduces = {}, [], {}, 0
    spans, all_reduces = [], 0
    for event in _read_events(text):
        if event.get("name") == "process_name" and "name" in event["args"]:
            names[event["pid"]] = event["args"]["name"]
        elif event["ph"] == "B":
            open_spans.setdefault(event["pid"], []).append((event["name"], event["ts"]))
            if event["name"] == "GLOO_ALLREDUCE":
                all_reduces += open_reduces == 0
                open_reduces += 1
        elif event["ph"] == "E":
            activity, start = open_spans[event["pid"]].pop()
            tensor = re.sub(r"^\w*reduce\.", "", names[event["pid"]])
            spans.append((tensor, activity, start, event["ts"]))
            open_reduces -= activity == "GLOO_ALLREDUCE"
            if tensor == "mean_loss" and activity == "ALLREDUCE":
                steps.append({"spans": spans, "all_reduces": all_reduces})
                spans, all_reduces = [], 0
    return steps


def count_all_reduces(run: Run) -> float:
    """Return the median number of all-reduces in a step of a run's timeline, but the first."""
    steps = read_timeline(run.folder / "timeline.json")
    return median(step["all_reduces"] for step in steps[1:])


def count_tensors(run: Run) -> int:
    """Count the tensors in the last step of a run's timeline."""
    return len({name for name, *_ in read_timeline(run.folder / "timeline.json")[-1]["spans"]})


def find_last_lines(stacks: str, script: Path) -> list[str]:
    """Return the script's line where each rank stood, from the stacks in horovodrun's output."""
    lines = script.read_text().splitlines()
    found = re.findall(rf"\[(\d)\].*{script.name}\", line (\d+)", stacks)
    return [f"rank {rank} stands in line {n}: {lines[int(n) - 1].strip()}" for rank, n in found]


def _read_events(text: str) -> list[dict]:
    try:
        return json.loads(text)
    except ValueError:  # a rank that was killed has not closed the list
        return json.loads(text[: text.rfind("}") + 1] + "]")


@styled
def timeline(step: dict, run: Run) -> Figure:
    """Draw a step of read_timeline: a line for each tensor, from ready to reduced."""
    spans = [span for span in step["spans"] if span[1] in ACTIVITIES]
    first = min(start for *_, start, _ in spans)
    by_start = sorted(spans, key=lambda span: span[2])
    tensors = list(dict.fromkeys(tensor for tensor, *_ in by_start))
    title = f"One step in Horovod: {len(tensors)} tensors, {step['all_reduces']} all-reduces"
    figure, axes = begin(title, 6.2, grid="x")
    for tensor, activity, start, end in spans:
        colour = ACTIVITIES[activity][1]
        look = {"color": colour, "edgecolor": colour, "linewidth": 1.2}  # seen if ever so short
        left, wide = (start - first) / 1e3, (end - start) / 1e3
        axes.barh(tensors.index(tensor), wide, left=left, height=0.75, **look)
    axes.set(ylim=(len(tensors), -1), xlim=(0, None))
    ends = [name if len(name) < 22 else f"…{name[-20:]}" for name in (tensors[0], tensors[-1])]
    axes.set_yticks([0, len(tensors) - 1], ends, fontsize=SMALL)
    since = "milliseconds since the first gradient was reported ready"
    axes.set(ylabel="a line for each tensor", xlabel=since)
    legend(figure, handles({words: (colour, "") for words, colour in ACTIVITIES.values()}))
    last = (max(end for *_, end in spans) - first) / 1e3
    words = f"{title}, {last:.0f} ms from the first gradient to the mean of the loss."
    return finish(figure, (run,), words, ("From the file that HOROVOD_TIMELINE names, rank 0's.",))
