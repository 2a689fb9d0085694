"""The pictures of notebook 03: the phases of a step, threads and processes, who holds what."""

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bootcamp.drawing.diagrams import arrow, box, canvas, label
from bootcamp.drawing.palette import (
    BLUE,
    GREEN,
    INK,
    LIGHT_BLUE,
    LIGHT_GREEN,
    LIGHT_ORANGE,
    ORANGE,
    PALE,
    SKY,
    VERMILLION,
)
from bootcamp.drawing.style import SMALL, begin, finish, legend, styled
from bootcamp.records import trace
from bootcamp.records.runs import Run, names

WORKS = ("parallel forward", "backward")
MOVES = ("scatter", "replicate", "gather", "reduce")
KINDS = {
    "parameters": (BLUE, ""),
    "gradients": (ORANGE, "//"),
    "optimizer state": (GREEN, ".."),
    "activations": ("#DDDDDD", "\\\\"),
    "outputs": (VERMILLION, "xx"),
}


@styled
def five_phases() -> Figure:
    """One step of DataParallel on two devices: what goes where, and when."""
    says = (
        "One process drives two devices, with a thread for each. Device 0 holds the batch, the "
        "model and the optimizer. Scatter: device 1 gets a half of the batch. Replicate: it gets "
        "a copy of the model. Forward: each thread runs its replica on its half. Gather: the "
        "outputs go to device 0, which computes the loss of the whole batch. Then the backward "
        "goes through both replicas. Reduce: the gradients go to device 0 and are added up there. "
        "Its optimizer changes its parameters, and device 1's replica is thrown away."
    )
    figure, axes = canvas("One step of DataParallel on two devices", says, 4.3)
    box(axes, 0, 0.5, 100, 36.5, colour="white", line="--")
    label(axes, 1.5, 34.6, "one process, one Python interpreter", at="left", size=11)
    upper, lower = 21.5, 4
    for y, name in ((upper, "device 0"), (lower, "device 1")):
        label(axes, 5.5, y + 4.5, name, bold=True)
    for x, title in ((18, "1 scatter"), (32, "2 replicate"), (47, "3 forward"), (63, "4 gather")):
        label(axes, x, 40, title, bold=True)
    label(axes, 88, 40, "5 reduce", bold=True)
    label(axes, 76, 40, "(backward)")
    box(axes, 12, upper, 12, 9, "the batch", colour=LIGHT_ORANGE)
    box(axes, 12, lower, 12, 9, "its half", colour=LIGHT_ORANGE)
    box(axes, 26, upper, 12, 9, "the model", colour=LIGHT_BLUE)
    box(axes, 26, lower, 12, 9, "a replica", colour=LIGHT_BLUE)
    box(axes, 40, upper, 14, 9, "thread 0:\nits half", colour=SKY)
    box(axes, 40, lower, 14, 9, "thread 1:\nits half", colour=SKY)
    box(axes, 56, upper, 13, 9, "all outputs,\nthe loss", colour=LIGHT_ORANGE)
    box(axes, 56, lower, 13, 9, "its outputs", colour=LIGHT_ORANGE)
    box(axes, 71, upper, 10, 9, "gradients", colour=LIGHT_GREEN, size=11)
    box(axes, 71, lower, 10, 9, "gradients", colour=LIGHT_GREEN, size=11)
    box(axes, 83, upper, 16, 9, "sum,\noptimizer", colour=LIGHT_GREEN)
    for x in (18, 32):
        arrow(axes, (x, upper - 0.4), (x, lower + 9.4), colour=VERMILLION)
    arrow(axes, (62.5, lower + 9.4), (62.5, upper - 0.4), colour=VERMILLION)
    arrow(axes, (81.5, lower + 5), (90, upper - 0.4), colour=VERMILLION, bend=0.25)
    for x, text in ((18, "inputs"), (32, "parameters"), (62.5, "outputs"), (90.8, "gradients")):
        label(axes, x + 0.8, 16.9, text, at="left", ink=VERMILLION, size=10.5)
    arrow(axes, (91, upper + 9.4), (32, upper + 9.4), bend=0.07, colour=PALE)
    label(axes, 62, 35.4, "next step: changed parameters, new replicas", size=11)
    return figure


@styled
def phases(*runs: Run) -> Figure:
    """The phases of each run's traced step one after another, each with its milliseconds.

    Needs runs with trace_step= whose scripts name their phases; see timeline.phases.
    """
    rows = [_phases(run) for run in runs]
    total = max(1e3 * run.timeline()["seconds"] for run in runs)
    heights = {"height_ratios": [len(parts) for parts in rows]}
    height = 1.6 + sum(0.42 * len(parts) + 0.45 for parts in rows)
    title = "One step, phase after phase"
    figure, axes = begin(title, height, nrows=len(runs), sharex=True, squeeze=False, **heights)
    says = []
    for axis, name, parts in zip(axes[:, 0], names(runs), rows, strict=True):
        begun = 0.0
        for place, (part, seconds) in enumerate(parts.items()):
            colour, hatch = _phase_look(part)
            look = {"color": colour, "hatch": hatch, "edgecolor": INK, "linewidth": 0.8}
            axis.barh(place, 1e3 * seconds, left=begun, height=0.7, **look)
            begun += 1e3 * seconds
            text, at = f" {1e3 * seconds:.1f} ms", begun
            axis.text(at, place, text, va="center", fontsize=SMALL, fontweight="bold")
        axis.set_yticks(range(len(parts)), list(parts))
        axis.tick_params(axis="y", length=0)
        axis.set_ylim(len(parts) - 0.4, -0.6)
        axis.set_xlim(0, 1.12 * total)
        axis.grid(axis="x")
        axis.set_title(name, loc="left", fontsize=SMALL, fontweight="bold")
        words = ", ".join(f"{part} {1e3 * seconds:.1f} ms" for part, seconds in parts.items())
        says.append(f"{name}: {words}")
    axes[-1][0].set_xlabel("milliseconds, the phases put end to end")
    legend(figure, [Patch(facecolor=BLUE, edgecolor=INK, label="the replicas compute"), _moves()])
    note = "Rest: the batch, the loss's record, and what the profiler itself takes."
    return finish(figure, runs, f"{title}. {'; '.join(says)}.", (note,))


def _phases(run: Run) -> dict[str, float]:
    """The run's phases and what is left of the step."""
    parts = trace.phases(run.folder / "ranks" / "0.trace.json")
    parts = {name.replace("Optimizer.", "optimizer "): value for name, value in parts.items()}
    return parts | {"rest": run.timeline()["seconds"] - sum(parts.values())}


def _phase_look(name: str) -> tuple[str, str]:
    if name in WORKS:
        return BLUE, ""
    return (ORANGE, "//") if name in MOVES else ("#DDDDDD", "")


def _moves() -> Patch:
    return Patch(facecolor=ORANGE, hatch="//", edgecolor=INK, label="copies between them")


@styled
def workers(rows: list[dict], cores: int) -> Figure:
    """How long two workers take for a work each: as threads, as processes, and one of them alone.

    rows: `work` and the seconds `alone`, `threads`, `processes`. cores: that they could run on.
    """
    title = "Two workers, the same work each: threads against processes"
    figure, axes = begin(title, 1.8 + 0.95 * len(rows), ncols=len(rows))
    bars = (
        ("one worker\nalone", "alone", PALE, ""),
        ("two\nthreads", "threads", VERMILLION, "//"),
        ("two\nprocesses", "processes", BLUE, ""),
    )
    says = []
    for axis, row in zip(axes, rows, strict=True):
        for place, (_, key, colour, hatch) in enumerate(bars):
            height = 1e3 * row[key]
            axis.bar(place, height, width=0.7, color=colour, hatch=hatch, edgecolor=INK)
            times = row[key] / row["alone"]
            text = f"{height:.0f} ms" if key == "alone" else f"{height:.0f} ms\n{times:.1f}×"
            axis.annotate(
                text,
                (place, height),
                (0, 4),
                textcoords="offset points",
                ha="center",
                fontsize=SMALL,
                fontweight="bold",
            )
        axis.set_xticks(range(len(bars)), [name for name, *_ in bars], fontsize=SMALL)
        axis.tick_params(axis="x", length=0)
        axis.set_ylim(0, 1.35e3 * max(row[key] for _, key, *_ in bars))
        axis.set_title(row["work"], fontsize=14, fontweight="bold")
        words = ", ".join(f"{key} {1e3 * row[key]:.0f} ms" for _, key, *_ in bars)
        says.append(f"{row['work']}: {words}")
    axes[0].set_ylabel("milliseconds")
    where = "1 core" if cores == 1 else f"{cores} cores"
    foot = f"The fastest of some rounds; measured here, on {where}. 1.0× would be perfect, 2.0× is "
    foot += "one after the other."
    figure.supxlabel(foot, x=0.012, ha="left", fontsize=11)
    figure.alt = f"{title}. {'; '.join(says)}. {foot}"
    return figure


@styled
def memory_by_device(bars: dict[str, dict[str, float]], note: str) -> Figure:
    """What fills each device's memory, computed by formula: device -> kind -> bytes.

    The kinds are those of KINDS. note: from what it is computed.
    """
    figure, axes = begin("What each device holds (computed, not measured)", 2.4 + 0.62 * len(bars))
    totals = {name: sum(kinds.values()) for name, kinds in bars.items()}
    scale, unit = (1e9, "GB") if max(totals.values()) >= 1e9 else (1e6, "MB")
    says = []
    for place, (name, kinds) in enumerate(bars.items()):
        left = 0.0
        for kind, (colour, hatch) in KINDS.items():
            size = kinds.get(kind, 0) / scale
            look = {"color": colour, "hatch": hatch, "edgecolor": INK, "linewidth": 0.8}
            axes.barh(place, size, left=left, height=0.6, **look)
            left += size
        text = f" {left:.3g} {unit}"
        axes.text(left, place, text, va="center", fontsize=SMALL, fontweight="bold")
        words = ", ".join(f"{kind} {size / scale:.3g}" for kind, size in kinds.items())
        says.append(f"{name} {left:.3g} {unit} ({words})")
    axes.set_yticks(range(len(bars)), list(bars))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlim(0, 1.14 * max(totals.values()) / scale)
    axes.set_xlabel(unit)
    axes.grid(axis="x")
    legend(
        figure,
        [Patch(facecolor=c, hatch=h, edgecolor=INK, label=kind) for kind, (c, h) in KINDS.items()],
    )
    figure.supxlabel(note, x=0.012, ha="left", fontsize=11)
    figure.alt = f"{figure.get_suptitle()}: {'; '.join(says)}. {note}"
    return figure
