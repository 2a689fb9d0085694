"""Lesson 07: shards by stage of ZeRO, memory of a rank, and FSDP's gathers in a step."""

import json
import re
from collections import Counter
from itertools import accumulate
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bootcamp.drawing.canvas import box, canvas, label
from bootcamp.drawing.charts import bar, handles, marker_line, rows, stack_bars
from bootcamp.drawing.palette import BLACK, GREY, KINDS, LIGHT, PALE, SKY, VERMILLION
from bootcamp.drawing.style import begin, finish, legend, styled
from bootcamp.records.runs import Run

TINTS = {"parameters": LIGHT.blue, "gradients": LIGHT.orange, "optimizer": LIGHT.green}
SHARDED_FROM = {"optimizer": 1, "gradients": 2, "parameters": 3}  # the stage
ADDED = ("nothing (DDP)", "optimizer state", "gradients too", "parameters too")
PHASES = {"all-gather": (SKY, ""), "complete": (GREY, ""), "reduce-scatter": (VERMILLION, "//")}


@styled
def stages(world: int = 4) -> Figure:
    """Draw the parameters, gradients and optimizer state of each rank, by stage of ZeRO."""
    says = ""
    for stage, added in enumerate(ADDED):
        kept = [
            f"{'its part' if stage >= SHARDED_FROM[kind] else 'all'} of the "
            f"{'optimizer state' if kind == 'optimizer' else kind}"
            for kind in TINTS
        ]
        says += f"Stage {stage} shards {added}: each of {world} ranks keeps {', '.join(kept)}. "
    figure, axes = canvas("What each rank keeps, ZeRO stage by stage", says.strip(), 5.0)
    wide = 76 / world
    for rank in range(world):
        label(axes, 24 + wide * (rank + 0.45), 48, f"rank {rank}", bold=True)
    for stage, added in enumerate(ADDED):
        y = 35.5 - 11.5 * stage
        label(axes, 0, y + 6.3, f"stage {stage}", at="left", bold=True, size=14)
        label(axes, 0, y + 2.6, f"shards {added}", at="left")
        for rank in range(world):
            x = 24 + wide * rank
            for place, (kind, tint) in enumerate(TINTS.items()):
                low = y + 6.6 - 3.3 * place
                _draw_kept(axes, (x, low, 0.88 * wide), rank, world, kind, tint, stage)
    return figure


def _draw_kept(axes, place: tuple, rank: int, world: int, kind: str, tint: str, stage: int) -> None:
    """Draw a kind of a rank at (x, y), so wide: a full bar, or the rank's part of one."""
    x, y, wide = place
    if stage < SHARDED_FROM[kind]:
        box(axes, x, y, wide, 2.9, kind, colour=tint, size=11)
        return
    dots = {"color": PALE, "linewidth": 1.2, "linestyle": ":", "zorder": 0}
    axes.plot([x, x + wide], [y + 1.45] * 2, **dots)
    part = wide / world
    box(axes, x + rank * part, y, part, 2.9, kind[0].upper(), colour=tint, size=11)


@styled
def rank_memory(counted: dict[str, dict[str, float]], formula: dict[str, float], runs) -> Figure:
    """Draw a rank's {name: {kind: bytes}} as bars, and formula {name: bytes} as marks."""
    figure, axes = begin("What one rank holds", 2.4 + 0.62 * len(counted), grid="x")
    for row, (name, sizes) in enumerate(counted.items()):
        stack_bars(axes, row, sizes, 1e6)
        if name in formula:
            marker_line(axes, row, formula[name] / 1e6)
    rows(axes, list(counted))
    axes.set_xlabel("MB on rank 0")
    mark = Line2D([], [], color=BLACK, label="the first three, by formula")
    legend(figure, [*handles(KINDS), mark])
    says = "; ".join(
        f"{name}: " + ", ".join(f"{kind} {size / 1e6:.2f}" for kind, size in sizes.items())
        for name, sizes in counted.items()
    )
    return finish(figure, runs, f"MB that rank 0 holds. {says}.")


@styled
def published_memory(computed: dict[int, dict[str, float]], table: list[dict]) -> Figure:
    """Draw the memory of each stage in zero_figure1.csv beside computed {stage: {kind: bytes}}."""
    first = table[0]
    title = f"{float(first['parameters']) / 1e9:g} billion parameters on {first['data']} GPUs"
    figure, axes = begin(f"{title}: GB on each of them", 4.2, grid="x")
    says = []
    for row, line in enumerate(table):
        end = stack_bars(axes, row, computed[int(line["stage"])], 1e9)
        axes.text(end + 1.2, row, f"published {line['published_peak_gb']} GB", va="center")
        both = f"{end:.1f} by formula, {line['published_peak_gb']} published"
        says.append(f"stage {line['stage']}: {both}")
    rows(axes, [f"stage {line['stage']}" for line in table])
    axes.set(xlim=(0, 150), xlabel="GB on each GPU: bars by formula, numbers as published")
    legend(figure, handles(KINDS)[:3])
    source = f"Published: {first['source']}."
    return finish(figure, (), f"{title}, GB on each: {', '.join(says)}. {source}", (source,))


def read_gathers(path: Path) -> dict:
    """Read FSDP2's phases from a rank's traced step, in ms since the step began.

    Returns {"seconds", "groups": {name: [(phase of PHASES, start, end)]}}. A group is "complete"
    from the end of its all-gather until it is resharded; "root" is the outermost one.
    """
    events = [event for event in json.loads(path.read_text())["traceEvents"] if "dur" in event]
    events.sort(key=lambda event: event["ts"])
    (step,) = [event for event in events if event["name"] == "training_step"]
    groups, complete_since = {}, {}
    named = [(re.fullmatch(r"FSDP::(\w+)(?: \((\w*)\))?", each["name"]), each) for each in events]
    phases = [(found[1], found[2] or "root", event) for found, event in named if found]
    gathered = Counter(name for phase, name, _ in phases if phase == "all_gather")
    for phase, name, event in phases:
        if phase == "post_forward" and gathered[name] < 2:
            continue  # it stays gathered for the backward pass
        start = (event["ts"] - step["ts"]) / 1e3
        end = start + event["dur"] / 1e3
        spans = groups.setdefault(name, [])
        if phase == "all_gather":
            spans.append(("all-gather", start, end))
            complete_since[name] = end
        elif phase == "post_backward_reduce":
            spans.append(("reduce-scatter", start, end))
        elif phase in ("post_forward", "post_backward_reshard") and name in complete_since:
            spans.append(("complete", complete_since.pop(name), end))
    return {"seconds": step["dur"] / 1e6, "groups": groups}


@styled
def gathers(step: dict, run: Run, sizes: dict[str, float]) -> Figure:
    """Draw when each unit is gathered, complete and reduced, and the bytes that are complete.

    step: of read_gathers. sizes: bytes of each unit, complete; a root without any is left out.
    """
    groups = {re.sub(r"(\D)(\d)", r"\1 \2", name): spans for name, spans in step["groups"].items()}
    groups = {name: spans for name, spans in groups.items() if name in sizes}
    title = "One step of FSDP on rank 0: a line for each unit"
    panels = {"nrows": 2, "sharex": True, "height_ratios": (3, 1.4)}
    figure, (axes, below) = begin(title, 4.4 + 0.5 * len(groups), **panels)
    changes = []
    for row, (name, spans) in enumerate(groups.items()):
        changes += [(start, sizes[name]) for phase, start, _ in spans if phase == "all-gather"]
        changes += [(end, -sizes[name]) for phase, _, end in spans if phase == "complete"]
        for phase, start, end in sorted(spans, key=lambda span: span[0] != "complete"):
            high = 0.8 if phase == "complete" else 0.56
            bar(axes, row, end - start, PHASES[phase], start, height=high)
    rows(axes, list(groups))
    moments, steps = zip(*sorted(changes), strict=True)
    complete = [size / 1e3 for size in accumulate(steps)]
    below.step([0, *moments], [0, *complete], where="post", color=BLACK, linewidth=2)
    below.axhline(sum(sizes.values()) / 1e3, color=PALE, linestyle=":")
    below.set(xlim=(0, None), ylim=(0, None), ylabel="kB complete\n(dotted: all)")
    below.set_xlabel("milliseconds since the step began")
    legend(figure, handles(PHASES))
    says = ", ".join(
        f"{name} {sum(phase == 'all-gather' for phase, *_ in spans)} times"
        for name, spans in groups.items()
    )
    says += f"; at most {max(complete):,.0f} kB are complete at once"
    notes = ("The head stays gathered. Waiting for other ranks is included.",)
    return finish(figure, (run,), f"All-gathers in a step of {run.label}: {says}.", notes)
