"""torch.nn.DataParallel (lesson 03): its phases, threads against processes, memory by device."""

from matplotlib.figure import Figure

from bootcamp import units
from bootcamp.drawing.canvas import arrow, arrows, box, diagram, label, labels
from bootcamp.drawing.charts import BOLD, above, bar, beside, handles, rows, stack_bars
from bootcamp.drawing.palette import BLUE, GREY, INK, KINDS, LIGHT, ORANGE, PALE, SKY, VERMILLION
from bootcamp.drawing.style import SMALL, begin, finish, legend, styled
from bootcamp.records import trace
from bootcamp.records.runs import Run, name_runs

COMPUTES, COPIES, OTHER = (BLUE, ""), (ORANGE, "//"), (GREY, "")
PHASES = dict.fromkeys(("parallel forward", "backward"), COMPUTES)
PHASES |= dict.fromkeys(("scatter", "replicate", "gather", "reduce"), COPIES)
KINDS_AND_OUTPUTS = {**KINDS, "outputs": (VERMILLION, "xx")}
WORKERS = {  # key of a measurement: name, colour, hatch
    "alone": ("one worker\nalone", PALE, ""),
    "threads": ("two\nthreads", VERMILLION, "//"),
    "processes": ("two\nprocesses", BLUE, ""),
}


@diagram("One step of DataParallel on two devices", 4.3)
def five_phases(axes) -> None:
    """One process drives two devices, with a thread for each. Device 0 holds the batch, the model
    and the optimizer. Scatter: device 1 gets a half of the batch. Replicate: it gets a copy of the
    model. Forward: each thread runs its replica on its half. Gather: the outputs go to device 0,
    which computes the loss of the whole batch. Then the backward goes through both replicas.
    Reduce: the gradients go to device 0 and are added up there. Its optimizer changes its
    parameters, and device 1's replica is thrown away.
    """
    box(axes, 0, 0.5, 100, 36.5, colour="white", line="--")
    label(axes, 1.5, 34.6, "one process, one Python interpreter", at="left", size=11)
    upper, lower = 21.5, 4
    labels(axes, (5.5, upper + 4.5, "device 0"), (5.5, lower + 4.5, "device 1"), bold=True)
    titles = (18, 40, "1 scatter"), (32, 40, "2 replicate"), (47, 40, "3 forward")
    labels(axes, *titles, (63, 40, "4 gather"), (88, 40, "5 reduce"), bold=True)
    label(axes, 76, 40, "(backward)")
    for x, width, upper_text, lower_text, colour in (
        (12, 12, "the batch", "its half", LIGHT.orange),
        (26, 12, "the model", "a replica", LIGHT.blue),
        (40, 14, "thread 0:\nits half", "thread 1:\nits half", SKY),
        (56, 13, "all outputs,\nthe loss", "its outputs", LIGHT.orange),
        (71, 10, "gradients", "gradients", LIGHT.green),
    ):
        look = {"colour": colour, "size": 11 if x == 71 else SMALL}
        box(axes, x, upper, width, 9, upper_text, **look)
        box(axes, x, lower, width, 9, lower_text, **look)
    box(axes, 83, upper, 16, 9, "sum,\noptimizer", colour=LIGHT.green)
    high, low = upper - 0.4, lower + 9.4
    vertical = (18, high, 18, low), (32, high, 32, low), (62.5, low, 62.5, high)
    arrows(axes, *vertical, colour=VERMILLION)
    arrow(axes, (81.5, lower + 5), (90, upper - 0.4), colour=VERMILLION, bend=0.25)
    sent = (18.8, 16.9, "inputs"), (32.8, 16.9, "parameters"), (63.3, 16.9, "outputs")
    labels(axes, *sent, (91.6, 16.9, "gradients"), at="left", ink=VERMILLION, size=11)
    arrow(axes, (91, upper + 9.4), (32, upper + 9.4), bend=0.07, colour=PALE)
    label(axes, 62, 35.4, "next step: changed parameters, new replicas", size=11)


@styled
def phases(*runs: Run) -> Figure:
    """Draw the phases of each run's traced step, in milliseconds."""
    steps = [_read_phases(run) for run in runs]
    total = max(sum(parts.values()) for parts in steps)
    title, height = "One step, phase after phase", 1.6 + sum(0.42 * len(p) + 0.45 for p in steps)
    shape = {"nrows": len(runs), "height_ratios": [len(parts) for parts in steps]}
    figure, axes = begin(title, height, sharex=True, squeeze=False, **shape)
    says = []
    for axis, name, parts in zip(axes[:, 0], name_runs(runs), steps, strict=True):
        begun = 0.0
        for row, (part, millis) in enumerate(parts.items()):
            bar(axis, row, millis, PHASES.get(part, OTHER), begun, height=0.7)
            begun += millis
            beside(axis, begun, row, f"{millis:.1f} ms", right=4, fontsize=SMALL, **BOLD)
        rows(axis, list(parts))
        axis.set_xlim(0, 1.12 * total)
        axis.grid(axis="x")
        axis.set_title(name, loc="left", fontsize=SMALL, fontweight="bold")
        words = ", ".join(f"{part} {millis:.1f} ms" for part, millis in parts.items())
        says.append(f"{name}: {words}")
    axes[-1][0].set_xlabel("milliseconds, the phases put end to end")
    legend(figure, handles({"the replicas compute": COMPUTES, "copies between them": COPIES}))
    note = "Rest: the batch, the loss's record, and what the profiler itself takes."
    return finish(figure, runs, f"{title}. {'; '.join(says)}.", (note,))


def _read_phases(run: Run) -> dict[str, float]:
    parts = trace.time_phases(next((run.folder / "ranks").glob("0.trace.json*")))
    parts = {name.replace("Optimizer.", "optimizer "): 1e3 * s for name, s in parts.items()}
    return parts | {"rest": 1e3 * run.timeline()["seconds"] - sum(parts.values())}


@styled
def workers(measured: list[dict], cores: int) -> Figure:
    """Draw each task's fastest round; measured: `work`, and seconds by key of WORKERS."""
    title = "Two workers with the same task: threads against processes"
    figure, axes = begin(title, 1.8 + 0.95 * len(measured), ncols=len(measured))
    fastest = [{key: min(rounds[key]) for key in WORKERS} for rounds in measured]
    largest, says = max(max(row.values()) for row in fastest), []
    unit, factor, digits = ("s", 1, 2) if largest >= 1 else ("ms", 1e3, 0)
    for axis, rounds, row in zip(axes, measured, fastest, strict=True):
        for place, (key, (_, colour, hatch)) in enumerate(WORKERS.items()):
            height = factor * row[key]
            axis.bar(place, height, width=0.7, color=colour, hatch=hatch, edgecolor=INK)
            times = "" if key == "alone" else f"\n{row[key] / row['alone']:.1f}×"
            words = f"{height:.{digits}f} {unit}{times}"
            above(axis, place, height, words, fontsize=SMALL, **BOLD)
        ticks = [name for name, *_ in WORKERS.values()]
        axis.set_xticks(range(len(WORKERS)), ticks, fontsize=SMALL)
        axis.tick_params(axis="x", length=0)
        axis.set_ylim(0, 1.35 * factor * max(row.values()))
        axis.set_title(rounds["work"], fontsize=14, fontweight="bold")
        words = ", ".join(f"{key} {1e3 * row[key]:.0f} ms" for key in WORKERS)
        says.append(f"{rounds['work']}: {words}")
    axes[0].set_ylabel({"s": "seconds", "ms": "milliseconds"}[unit])
    foot = f"The fastest of some rounds; measured here, on {units.count(cores, 'core')}. "
    foot += "1.0×: side by side, 2.0×: one after the other."
    return finish(figure, (), f"{title}. {'; '.join(says)}. {foot}", (foot,))


@styled
def memory_by_device(bars: dict[str, dict[str, float]], note: str) -> Figure:
    """Draw {device: {kind of KINDS_AND_OUTPUTS: bytes}}; note: the formula's inputs."""
    title = "What each device holds (computed, not measured)"
    figure, axes = begin(title, 2.4 + 0.62 * len(bars), grid="x")
    largest = max(sum(kinds.values()) for kinds in bars.values())
    factor, unit = units.scale(largest)
    says = []
    for row, (name, kinds) in enumerate(bars.items()):
        end = stack_bars(axes, row, kinds, factor, looks=KINDS_AND_OUTPUTS)
        beside(axes, end, row, f"{end:.3g} {unit}", right=4, fontsize=SMALL, **BOLD)
        words = ", ".join(f"{kind} {size / factor:.3g}" for kind, size in kinds.items())
        says.append(f"{name} {end:.3g} {unit} ({words})")
    rows(axes, [name.replace(", ", ",\n") for name in bars])
    axes.set(xlim=(0, 1.14 * largest / factor), xlabel=unit)
    legend(figure, handles(KINDS_AND_OUTPUTS))
    return finish(figure, (), f"{title}: {'; '.join(says)}. {note}", (note,))
