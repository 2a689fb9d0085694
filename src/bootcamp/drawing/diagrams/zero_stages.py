"""The pictures of notebook 07: what each stage of ZeRO shards, and what a rank held and when."""

import json
import re
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bootcamp.drawing.diagrams import box, canvas, label
from bootcamp.drawing.palette import BLACK, BLUE, GREEN, INK, ORANGE, PALE, SKY, VERMILLION
from bootcamp.drawing.style import SMALL, begin, finish, legend, styled
from bootcamp.records.runs import Run

KINDS = {
    "parameters": (BLUE, ""),
    "gradients": (ORANGE, "//"),
    "optimizer": (GREEN, ".."),
    "activations": ("#DDDDDD", "\\\\"),
}
TINTS = {"parameters": "#D6ECFA", "gradients": "#FBEBCB", "optimizer": "#D3EFE5"}
ADDED = ("nothing (DDP)", "optimizer state", "gradients too", "parameters too")
PHASES = {
    "all-gather": (SKY, ""),
    "whole": ("#EEEEEE", ""),
    "reduce-scatter": (VERMILLION, "//"),
}


@styled
def stages(world: int = 4) -> Figure:
    """For each stage of ZeRO, what of parameters, gradients and optimizer state each rank keeps."""
    kept = [
        f"Stage {stage} shards {added}: each of {world} ranks keeps "
        + ", ".join(
            f"{'its part' if _sharded(kind, stage) else 'all'} of the {kind}"
            + (" state" if kind == "optimizer" else "")
            for kind in TINTS
        )
        for stage, added in enumerate(ADDED)
    ]
    figure, axes = canvas("What each rank keeps, stage by stage", ". ".join(kept) + ".", 5.0)
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
                _kept(axes, x, y + 6.6 - 3.3 * place, 0.88 * wide, rank, world, kind, tint, stage)
    return figure


def _sharded(kind: str, stage: int) -> bool:
    return stage >= {"optimizer": 1, "gradients": 2, "parameters": 3}[kind]


def _kept(axes, x, y, wide, rank, world, kind, tint, stage) -> None:
    """One line of a rank: a full bar, or its part of an empty one."""
    if not _sharded(kind, stage):
        box(axes, x, y, wide, 2.9, kind, colour=tint, size=11)
        return
    axes.plot(
        [x, x + wide], [y + 1.45, y + 1.45], color=PALE, linewidth=1.2, linestyle=":", zorder=0
    )
    part = wide / world
    box(axes, x + rank * part, y, part, 2.9, kind[0].upper(), colour=tint, size=11)


@styled
def held(rows: dict[str, dict[str, float]], formula: dict[str, float], runs) -> Figure:
    """Bytes on one rank by kind, a bar for each way of sharding, and the formula's sum as a mark.

    rows: {name: {kind: bytes}}, counted. formula: {name: bytes of the state}. runs: the measured.
    """
    figure, axes = begin("What one rank holds", 2.4 + 0.62 * len(rows))
    for place, (name, bytes_of) in enumerate(rows.items()):
        left = 0.0
        for kind, (colour, hatch) in KINDS.items():
            size = bytes_of[kind] / 1e6
            look = {"color": colour, "hatch": hatch, "edgecolor": "white", "height": 0.62}
            axes.barh(place, size, left=left, **look)
            left += size
        if name in formula:
            mark = formula[name] / 1e6
            axes.plot([mark, mark], [place - 0.4, place + 0.4], color=BLACK, linewidth=2.5)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlabel("MB on rank 0")
    axes.grid(axis="x")
    words = {"optimizer": "optimizer state"}
    patches = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=words.get(kind, kind))
        for kind, (colour, hatch) in KINDS.items()
    ]
    mark = Line2D([], [], color=BLACK, label="the first three, by formula")
    legend(figure, [*patches, mark])
    says = "; ".join(
        f"{name}: " + ", ".join(f"{kind} {size / 1e6:.2f}" for kind, size in bytes_of.items())
        for name, bytes_of in rows.items()
    )
    return finish(figure, runs, f"MB that rank 0 holds. {says}.")


@styled
def accumulated(records: list[dict], world: int, runs) -> Figure:
    """Gradient bytes through a step of two micro-batches, for each stage.

    records: what src/snippets/zero_accumulate.py printed on rank 0.
    """
    figure, axes = begin("Gradients that a rank holds in a step of two micro-batches", 5.2)
    whole = records[0]["whole"] / 1e3
    half, says = len(records[0]["looks"]) // 2, []
    for record, colour, marker in zip(records, (VERMILLION, BLUE), "os", strict=True):
        looks, ends = record["looks"], record["ends"]
        places = [*range(1, half + 1), half + 0.7, *range(half + 1, 2 * half + 1), 2 * half + 0.7]
        sizes = [*looks[:half], ends[0], *looks[half:], ends[1]]
        name = f"stage {record['stage']}"
        style = {"color": colour, "marker": marker, "markersize": 7, "linewidth": 2.5}
        axes.plot(places, [size / 1e3 for size in sizes], label=name, **style)
        said = " and ".join(f"{size / 1e3:.0f} kB" for size in ends)
        says.append(f"{name} holds {said} when the backwards have ended")
    axes.axvline(half + 0.85, color=PALE, linewidth=1.5)
    for size, words in ((whole, "all gradients"), (whole / world, f"1/{world} of them")):
        axes.axhline(size, color=PALE, linestyle=":", linewidth=1.5)
        axes.text(0.62 * half, size, words, va="bottom", ha="right", fontsize=SMALL, color=INK)
    for place, words in ((half / 2 + 0.5, "first backward"), (1.5 * half + 0.7, "second backward")):
        axes.text(place, whole * 1.2, words, ha="center", fontsize=SMALL, color=INK)
    axes.set_ylim(0, whole * 1.32)
    axes.set_xlim(0.5, 2 * half + 1)
    axes.set_xticks([])
    axes.set_xlabel("gradients come in, last layer first; then the backward has ended")
    axes.set_ylabel("kB")
    legend(figure, axes.get_lines()[:2])
    return finish(figure, runs, f"{'; '.join(says)}; all gradients are {whole:.0f} kB.")


@styled
def published(computed: dict[int, dict[str, float]], rows: list[dict]) -> Figure:
    """A published row of memory for each stage, and the formula's parts as bars.

    computed: {stage: {kind: bytes}}. rows: of src/bootcamp/theory/published/zero_figure1.csv.
    """
    first = rows[0]
    title = f"{float(first['parameters']) / 1e9:g} billion parameters on {first['ranks']} GPUs"
    figure, axes = begin(f"{title}: GB on each of them", 4.2)
    for place, row in enumerate(rows):
        left = 0.0
        for kind, size in computed[int(row["stage"])].items():
            colour, hatch = KINDS[kind]
            look = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0}
            axes.barh(place, size / 1e9, left=left, height=0.62, **look)
            left += size / 1e9
        axes.text(left + 1.2, place, f"published {row['gb']} GB", va="center", color=INK)
    axes.set_yticks(range(len(rows)), [f"stage {row['stage']}" for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, 150)
    axes.set_xlabel("GB on each GPU: bars by formula, numbers as published")
    axes.grid(axis="x")
    names = {"optimizer": "optimizer state"}
    legend(
        figure,
        [
            Patch(facecolor=c, hatch=h, edgecolor="white", label=names.get(kind, kind))
            for kind, (c, h) in list(KINDS.items())[:3]
        ],
    )
    figure.supxlabel(f"Published: {first['source']}.", x=0.012, ha="left", fontsize=11)
    says = ", ".join(
        f"stage {row['stage']}: {sum(computed[int(row['stage'])].values()) / 1e9:.1f} by formula, "
        f"{row['gb']} published"
        for row in rows
    )
    figure.alt = f"{title}, GB on each: {says}. Source: {first['source']}."
    return figure


def read_gathers(path: Path) -> dict:
    """The traced step of a rank, as FSDP2 named its phases: ms since the step began.

    {"seconds": of the step, "groups": {name: [(phase, start, end)]}}, phases as in PHASES: a group
    is "whole" from the end of its all-gather until it is resharded. The group "rest" is what the
    outermost fully_shard holds.
    """
    events = [event for event in json.loads(path.read_text())["traceEvents"] if "dur" in event]
    events.sort(key=lambda event: event["ts"])
    (step,) = [event for event in events if event["name"] == "training_step"]
    groups, whole_since = {}, {}
    for event in events:
        phase, name = _named(event["name"])
        if phase is None:
            continue
        start = (event["ts"] - step["ts"]) / 1e3
        end = start + event["dur"] / 1e3
        spans = groups.setdefault(name, [])
        if phase == "all_gather":
            spans.append(("all-gather", start, end))
            whole_since[name] = end
        elif phase == "post_backward_reduce":
            spans.append(("reduce-scatter", start, end))
        elif phase in ("post_forward", "post_backward_reshard") and name in whole_since:
            spans.append(("whole", whole_since.pop(name), end))
    return {"seconds": step["dur"] / 1e6, "groups": groups}


def _named(text: str) -> tuple[str | None, str]:
    """Phase and group of one of FSDP's events."""
    match = re.fullmatch(r"FSDP::(\w+)(?: \((\w*)\))?", text)
    return (match[1], match[2] or "rest") if match else (None, "")


@styled
def gathers(step: dict, run: Run) -> Figure:
    """When each group of parameters was gathered, whole, and its gradients reduced, on one rank.

    step: what read_gathers returns.
    """
    groups = step["groups"]
    title = "One step of FSDP on rank 0: a line for each block"
    figure, axes = begin(title, 2.6 + 0.5 * len(groups))
    for place, spans in enumerate(groups.values()):
        for phase, start, end in sorted(spans, key=lambda span: span[0] != "whole"):
            colour, hatch = PHASES[phase]
            high = 0.8 if phase == "whole" else 0.56
            look = {"color": colour, "hatch": hatch, "edgecolor": INK, "linewidth": 0.6}
            axes.barh(place, end - start, left=start, height=high, **look)
    axes.set_yticks(range(len(groups)), [_group_words(name) for name in groups])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0)
    axes.set_xlabel("milliseconds since the step began")
    legend(
        figure,
        [Patch(facecolor=c, hatch=h, edgecolor=INK, label=w) for w, (c, h) in PHASES.items()],
    )
    counts = {
        name: sum(phase == "all-gather" for phase, *_ in spans) for name, spans in groups.items()
    }
    says = ", ".join(f"{_group_words(name)} {count} times" for name, count in counts.items())
    notes = ("rest: what is in no block, embedding and head. Waiting for other ranks is included.",)
    return finish(figure, (run,), f"All-gathers in a step of {run.label}: {says}.", notes)


def _group_words(name: str) -> str:
    return re.sub(r"(\D)(\d)", r"\1 \2", name)
