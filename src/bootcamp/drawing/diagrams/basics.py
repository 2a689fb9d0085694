"""The pictures of notebooks 00 to 02: a run's way, the scripts, one step, batches, a GPU."""

import math

from matplotlib.figure import Figure

from bootcamp.drawing.diagrams import arrow, box, canvas, label
from bootcamp.drawing.style import BLUE, GREEN, ORANGE, PALE, SKY, SMALL, VERMILLION, begin, styled
from bootcamp.scripts import diff, family

LIGHT_BLUE, LIGHT_GREEN, LIGHT_ORANGE = "#D6ECFA", "#D3EFE5", "#FBEBCB"


@styled
def run_path() -> Figure:
    """How a run goes: cell, supervisor, ranks, records, and back to the notebook."""
    says = (
        "A notebook cell calls launch. A supervisor process starts, watches and ends the ranks, "
        "here rank 0 and rank 1, which exchange data. The ranks write records into a folder below "
        "logs. The notebook reads the records and makes tables, plots and proofs of them."
    )
    figure, axes = canvas("How a run goes", says, 4.1)
    box(axes, 0, 22, 22, 12, 'a cell\nlaunch("ddp", ranks=2)', colour=LIGHT_BLUE)
    box(axes, 31, 22, 20, 12, "supervisor\nstarts, watches,\nends the ranks")
    for rank, y in enumerate((30, 17)):
        box(axes, 63, y, 13, 8, f"rank {rank}\none process", colour=LIGHT_GREEN)
    box(axes, 85, 21, 14, 14, "logs/<run>/\nthe record", colour=LIGHT_ORANGE)
    box(axes, 31, 2, 20, 9, "table, plot,\nproof", colour=LIGHT_BLUE)
    arrow(axes, (22.5, 28), (30.5, 28), "asks")
    for y in (33, 22):
        arrow(axes, (51.5, 28), (62.5, y))
        arrow(axes, (76.5, y), (84.5, 28))
    arrow(axes, (69.5, 29.6), (69.5, 25.4), style="<->", colour=VERMILLION)
    label(axes, 71.2, 27.5, "exchange data", at="left", ink=VERMILLION, size=10.5)
    box(axes, 85, 2, 14, 9, "read back", colour="white", line="--")
    arrow(axes, (92, 20.5), (92, 11.5))
    arrow(axes, (84.5, 6.5), (51.5, 6.5))
    label(axes, 11, 37, "the notebook", bold=True)
    label(axes, 69.5, 40.5, "your cores or GPUs", bold=True)
    label(axes, 92, 38, "your disk", bold=True)
    label(axes, 24, 6.5, "the notebook", bold=True, at="right")
    return figure


@styled
def family_tree() -> Figure:
    """Every training script under its parent, with the code lines that it adds: from the files."""
    generations = _generations()
    widest = max(len(generation) for generation in generations)
    height = 1.45 * len(generations) - 0.6
    names = ", ".join(
        f"{script.path.name} adds {_added(script)} lines to {script.parent}"
        for script in family.SCRIPTS.values()
        if script.parent
    )
    says = f"The first is _train_cpu.py, the baseline. Each other has one parent: {names}."
    figure, axes = canvas("The scripts: each differs from its parent by a few lines", says, height)
    step, places = 100 / widest, {}
    width = min(30, step - 2)
    for depth, generation in enumerate(generations):
        for position, script in enumerate(generation):
            x = 50 + (position - (len(generation) - 1) / 2) * step
            y = 10 * height - 7.5 - 14.5 * depth
            places[script.name] = (x, y)
            box(axes, x - width / 2, y, width, 7, script.path.name, colour=LIGHT_BLUE, bold=True)
            if script.parent:
                above = places[script.parent]
                arrow(axes, (above[0], above[1] - 0.4), (x, y + 7.4))
                left = x < above[0]
                side = (above[0] + x) / 2 + (-2.5 if left else 2.5)
                at = "right" if left else "left"
                label(axes, side, y + 11.5, f"+{_added(script)} code lines", at=at)
    return figure


def _generations() -> list[list[family.Script]]:
    """The scripts by their distance from the baseline."""
    rows, waiting = [], list(family.SCRIPTS.values())
    while waiting:
        above = {script.name for script in rows[-1]} if rows else {None}
        rows.append([script for script in waiting if script.parent in above])
        waiting = [script for script in waiting if script.parent not in above]
    return rows


def _added(script: family.Script) -> int:
    return diff.changed_lines(script.path, family.SCRIPTS[script.parent].path)[0]


@styled
def training_step() -> Figure:
    """One training step in its four parts, and what each leaves in memory."""
    says = (
        "A batch goes through the forward, which makes the loss and keeps activations. The "
        "backward uses the activations up and makes a gradient for every parameter. The optimizer "
        "changes the parameters with the gradients and keeps a state of its own. Then the next "
        "batch comes."
    )
    figure, axes = canvas("One training step, and what it keeps in memory", says, 3.6)
    parts = (
        (1, 14, "batch\ninputs, targets", "#F4F4F4", ""),
        (21, 17, "forward\nmodel(inputs)", LIGHT_BLUE, "keeps\nactivations"),
        (44, 12, "loss\none number", LIGHT_BLUE, ""),
        (
            61,
            16,
            "backward\nloss.backward()",
            LIGHT_ORANGE,
            "uses activations up,\nadds to the gradients",
        ),
        (
            82,
            16,
            "optimizer\noptimizer.step()",
            LIGHT_GREEN,
            "keeps its state,\nchanges parameters",
        ),
    )
    for (x, width, text, colour, keeps), after in zip(parts, [*parts[1:], None], strict=True):
        box(axes, x, 16, width, 10, text, colour=colour)
        if keeps:
            box(axes, x - 2, 1, width + 4, 8, keeps, size=11, line="--", colour="white")
            arrow(axes, (x + width / 2, 15.5), (x + width / 2, 9.5), colour=PALE)
        if after:
            arrow(axes, (x + width + 0.5, 21), (after[0] - 0.5, 21))
    arrow(axes, (90, 26.5), (8, 26.5), bend=0.1)
    label(axes, 50, 32.5, "next step: a new batch, changed parameters", bold=True)
    label(axes, 8, 5, "in memory:", bold=True)
    return figure


@styled
def batch_shares(shares: dict[int, list[list[int]]]) -> Figure:
    """One global batch as several numbers of ranks share it.

    shares: {number of ranks: the sample ids of each rank}.
    """
    says = " ".join(
        f"With {world} rank(s): {'; '.join(f'rank {r} has {ids}' for r, ids in enumerate(ranks))}."
        for world, ranks in shares.items()
    )
    height = 1.15 * len(shares)
    figure, axes = canvas("One global batch, shared by more and more ranks", says, height)
    colours = (SKY, ORANGE, "#8FD1B8", "#E3B6CE")
    for row, (world, ranks) in enumerate(shares.items()):
        y, x = 10 * height - 10 - 11.5 * row, 16.0
        label(axes, 7, y + 2.5, f"{world} rank{'s' if world > 1 else ''}", bold=True)
        width = 83 / sum(len(ids) for ids in ranks)
        for rank, ids in enumerate(ranks):
            label(axes, x + width * len(ids) / 2, y + 7, f"rank {rank}")
            for sample in ids:
                box(axes, x, y, width - 0.6, 5, f"{sample}", colour=colours[rank % 4], size=11)
                x += width
    return figure


@styled
def host_and_device() -> Figure:
    """What lies in the host's memory and in the GPU's, and what goes over the bus between them."""
    says = (
        "The host, with CPU and main memory, runs the Python script and reads the data. The "
        "device, with its own memory, holds parameters, gradients, optimizer state and "
        "activations. The model is copied to it once. In every step the batch is copied from host "
        "to device, kernels are ordered, and the loss comes back."
    )
    figure, axes = canvas("Two memories, and a bus between them", says, 3.8)
    box(axes, 1, 3, 33, 33)
    box(axes, 66, 3, 33, 33)
    label(axes, 17.5, 32.5, "host: CPU and main memory", bold=True, size=13)
    label(axes, 82.5, 32.5, "device: GPU and its memory", bold=True, size=13)
    box(axes, 4, 17, 27, 11, "the Python script\nand the record", colour=LIGHT_BLUE)
    box(axes, 4, 5.5, 27, 8, "the data", colour=LIGHT_BLUE)
    for y, text in ((23.5, "parameters"), (17.5, "gradients"), (11.5, "optimizer state")):
        box(axes, 69, y, 27, 5, text, colour=LIGHT_GREEN)
    box(axes, 69, 5.5, 27, 5, "activations", colour=LIGHT_GREEN)
    arrow(axes, (35, 29), (65, 29), "once: the model")
    arrow(axes, (35, 21.5), (65, 21.5), "each step: the batch")
    arrow(axes, (35, 14), (65, 14), "each step: orders (kernels)")
    arrow(axes, (65, 6.5), (35, 6.5), "each step: the loss", colour=VERMILLION)
    return figure


@styled
def queue() -> Figure:
    """Why a clock on the CPU tells little about a GPU: it orders now, the GPU computes later."""
    says = (
        "On the upper lane the CPU orders four kernels one after another, each in a short time, "
        "and then waits. On the lower lane the GPU computes them, each longer than its order took. "
        "A clock that is read after the last order stops too early. loss.item() waits for the GPU."
    )
    figure, axes = canvas("The CPU orders, the GPU computes later (not to scale)", says, 3.6)
    label(axes, 6, 25, "CPU", bold=True, size=14)
    label(axes, 6, 12, "GPU", bold=True, size=14)
    for number in range(4):
        order, kernel = 13 + 8 * number, 17 + 16 * number
        box(axes, order, 21.5, 7.4, 7, f"order\n{number + 1}", colour=LIGHT_BLUE, size=11)
        box(axes, kernel, 8.5, 15.4, 7, f"kernel {number + 1}", colour=LIGHT_GREEN)
        arrow(axes, (order + 3.7, 21), (kernel + 2, 16), colour=PALE)
    box(axes, 45.5, 21.5, 36, 7, "loss.item() waits", colour="white", line="--")
    for x, text, colour in (
        (45, "clock read here:\nmuch too early", VERMILLION),
        (82, "here: right", BLUE),
    ):
        axes.plot((x, x), (4.5, 31), color=colour, linestyle=":", linewidth=2.5)
        label(axes, x, 33.5 if "early" in text else 32.8, text, ink=colour)
    arrow(axes, (12, 4), (97, 4), colour=PALE)
    label(axes, 94, 1.5, "time")
    return figure


@styled
def speeds(rows: list[dict], source: str) -> Figure:
    """Arithmetic and memory bandwidth of several devices, both on logarithmic axes.

    rows: dictionaries with `device`, `flops_per_second`, `bytes_per_second`, `measured` (a bool;
    published otherwise). source: where the published values are from.
    """
    height = 2.4 + 0.6 * len(rows)
    title = "Arithmetic and memory bandwidth, device by device"
    figure, axes = begin(title, height, ncols=2, sharey=True)
    says = []
    for axis, key, unit, scale in (
        (axes[0], "flops_per_second", "TFLOP/s", 1e12),
        (axes[1], "bytes_per_second", "GB/s", 1e9),
    ):
        values = [row[key] / scale for row in rows]
        for place, (row, value) in enumerate(zip(rows, values, strict=True)):
            marker, colour = ("s", BLUE) if row["measured"] else ("o", GREEN)
            axis.plot(value, place, marker, color=colour, markersize=12)
            axis.annotate(
                f"{value:,.3g}" if value < 1000 else f"{value:,.0f}",
                (value, place),
                (11, 0),
                textcoords="offset points",
                va="center",
                fontsize=SMALL,
                fontweight="bold",
            )
            says.append(f"{row['device']} {value:,.3g} {unit}")
        lowest, highest = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        axis.set_xscale("log")
        axis.set_xlim(10.0**lowest / 2, 10.0**highest * 12)
        axis.set_xticks([10.0**power for power in range(lowest, highest + 1, 2)])
        axis.minorticks_off()
        axis.set_xlabel(unit)
        axis.grid()
    axes[0].set_yticks(range(len(rows)), [row["device"] for row in rows])
    axes[0].tick_params(axis="y", length=0)
    axes[0].set_ylim(len(rows) - 0.4, -0.6)
    foot = (
        f"Blue square: measured here. Green circle: published peak ({source}).\n"
        "From one upright grid line to the next it is a hundred times."
    )
    figure.supxlabel(foot, x=0.012, ha="left", fontsize=11, linespacing=1.4)
    figure.alt = f"{figure.get_suptitle()}. {'; '.join(says)}. {foot}".replace("\n", " ")
    return figure
