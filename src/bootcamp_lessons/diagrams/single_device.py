"""Lessons 02 to 02c: host and GPU, parts of a step, speeds, batches, number formats, memory."""

import math

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bootcamp.costs.hardware import shown_in_lessons
from bootcamp.drawing.canvas import arrow, box, diagram, label, labels
from bootcamp.drawing.charts import BOLD, WHITE, above, bar, beside, handles, log_axis, rows
from bootcamp.drawing.palette import BLUE, GREEN, INK, LIGHT, ORANGE, PALE, VERMILLION
from bootcamp.drawing.style import SMALL, begin, finish, legend, styled
from bootcamp.units import scale, size, three_digits

FORMATS = {"float32": (BLUE, "s"), "TF32": (VERMILLION, "D"), "16 bits": (GREEN, "o")}
FATES = {  # of a gradient's elements in fp16: colour and hatch
    "zero": (VERMILLION, "xx"),
    "few digits": (ORANGE, "//"),
    "all digits": (LIGHT.mint, ""),
    "infinite": ("black", ""),
}


@diagram("Two memories, and a bus between them", 3.8)
def host_and_device(axes) -> None:
    """The host, with CPU and main memory, runs the Python script and reads the data. The device,
    with its own memory, holds parameters, gradients, optimizer state and activations. The model is
    copied once. In every step the batch is copied, kernels are launched, and the loss comes back.
    """
    box(axes, 1, 3, 33, 33)
    box(axes, 66, 3, 33, 33)
    host, device = "host: CPU and main memory", "device: GPU and its memory"
    labels(axes, (17.5, 32.5, host), (82.5, 32.5, device), bold=True, size=13)
    box(axes, 4, 17, 27, 11, "the Python script\nand the record", colour=LIGHT.blue)
    box(axes, 4, 5.5, 27, 8, "the data", colour=LIGHT.blue)
    held_there = ("activations", "optimizer state", "gradients", "parameters")
    for y, text in zip((5.5, 11.5, 17.5, 23.5), held_there, strict=True):
        box(axes, 69, y, 27, 5, text, colour=LIGHT.green)
    arrow(axes, (35, 29), (65, 29), "once: the model")
    arrow(axes, (35, 21.5), (65, 21.5), "each step: the batch")
    arrow(axes, (35, 14), (65, 14), "each step: kernel launches")
    arrow(axes, (65, 6.5), (35, 6.5), "each step: the loss", colour=VERMILLION)


@diagram("The CPU launches, the GPU computes later (not to scale)", 3.6)
def queue(axes) -> None:
    """In the upper lane the CPU launches four kernels, one quickly after another, and then waits.
    In the lower lane the GPU computes them, each longer than its launch took. A clock read after
    the last launch stops too early. loss.item() waits for the GPU.
    """
    labels(axes, (6, 25, "CPU"), (6, 12, "GPU"), bold=True, size=14)
    for number in range(4):
        launch, kernel = 13 + 8 * number, 17 + 16 * number
        box(axes, launch, 21.5, 7.4, 7, f"launch\n{number + 1}", colour=LIGHT.blue, size=11)
        box(axes, kernel, 8.5, 15.4, 7, f"kernel {number + 1}", colour=LIGHT.green)
        arrow(axes, (launch + 3.7, 21), (kernel + 2, 16), colour=PALE)
    box(axes, 45.5, 21.5, 36, 7, "loss.item() waits", colour="white", line="--")
    early = "clock read here:\nmuch too early"
    for x, y, text, colour in ((45, 33.5, early, VERMILLION), (82, 32.8, "here: right", BLUE)):
        axes.plot((x, x), (4.5, 31), color=colour, linestyle=":", linewidth=2.5)
        label(axes, x, y, text, ink=colour)
    arrow(axes, (12, 4), (97, 4), colour=PALE)
    label(axes, 94, 1.5, "time")


@diagram("The parts of a step, and what shortens each (not to scale)", 2.6)
def parts_of_a_step(axes) -> None:
    """Five boxes in a row: the step waits for its batch, copies it, calls operators, moves numbers
    through memory, and computes products. Below each stands what shortens it: workers of the
    DataLoader; pinned memory and non-blocking copies; fused and foreach operators or CUDA graphs;
    torch.compile and fused operators; TF32 and 16 bits.
    """
    parts = (
        ("waits for\nits batch", LIGHT.orange, "DataLoader\nworkers"),
        ("copies it", LIGHT.orange, "pinned memory,\nnon_blocking"),
        ("calls\noperators", LIGHT.blue, "fused, foreach,\nCUDA graphs"),
        ("moves numbers\nthrough memory", LIGHT.green, "torch.compile,\nfused"),
        ("computes\nproducts", LIGHT.green, "TF32,\n16 bits"),
    )
    for left, (name, colour, remedy) in zip(range(1, 100, 20), parts, strict=True):
        box(axes, left, 14, 18, 10, name, colour=colour)
        arrow(axes, (left + 9, 8), (left + 9, 13.5))
        label(axes, left + 9, 4.5, remedy)


@styled
def speeds(core=None) -> Figure:
    """Draw GPUs' published arithmetic and bandwidth; core: a Roofline of float32 beside them."""
    gpus, devices = shown_in_lessons(), []
    if core is not None:
        measured = {"float32": core.peak_flops_per_second / 1e12}
        devices = [("one core here", measured, core.bandwidth_bytes_per_second / 1e9)]
    devices += map(_read_speed, gpus)
    title = "Arithmetic and memory bandwidth, device by device"
    figure, panels = begin(title, 2.4 + 0.6 * len(devices), ncols=2, sharey=True)
    says = []
    for row, (name, peaks, bandwidth) in enumerate(devices):
        for form, peak in peaks.items():
            colour, marker = FORMATS[form]
            panels[0].plot(peak, row, marker, color=colour, markersize=11)
        panels[1].plot(bandwidth, row, "o", color=INK, markersize=11)
        words = ", ".join(f"{form} {peak:,.3g}" for form, peak in peaks.items())
        says.append(f"{name}: {words} TFLOP/s, {bandwidth:,.3g} GB/s")
        beside(panels[1], bandwidth, row, f"{bandwidth:,.0f}", right=11, fontsize=SMALL, **BOLD)
    for axes, unit in zip(panels, ("TFLOP/s, dense", "GB/s"), strict=True):
        values = [line.get_xdata()[0] for line in axes.lines]
        lowest, highest = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        powers = range(lowest, highest + 1)
        log_axis(axes.xaxis, [10.0**p for p in powers], [f"$10^{{{p}}}$" for p in powers])
        axes.set(xlim=(10.0**lowest / 2, 10.0**highest * 8), xlabel=unit)
        axes.grid()
    rows(panels[0], [name for name, *_ in devices])
    look = {"linestyle": "", "markersize": 11}
    marks = [Line2D([], [], color=c, marker=m, label=x, **look) for x, (c, m) in FORMATS.items()]
    legend(figure, marks)
    here = "One core: measured here. " if core is not None else ""
    foot = (
        f"{here}GPUs: published peaks. 16 bits and bandwidth: {gpus[0]['source']}; "
        "float32 and TF32: NVIDIA's data sheets."
    )
    return finish(figure, (), f"{title}. {'; '.join(says)}. {foot}", (foot,))


def _read_speed(gpu: dict[str, str]) -> tuple[str, dict[str, float], float]:
    """Return a GPU's name, {number format: TFLOP/s}, and GB/s."""
    columns = ("peak_fp32_tflops", "peak_tf32_tflops", "peak_tflops")
    peaks = {form: gpu[column] for form, column in zip(FORMATS, columns, strict=True)}
    numbers = {form: float(peak) for form, peak in peaks.items() if peak}
    return gpu["lessons"], numbers, 1e3 * float(gpu["hbm_tb_s"])


@styled
def batch_curve(runs: list) -> Figure:
    """Draw throughput and activation bytes of runs over their global batches."""
    batches = [run.config["global_batch"] for run in runs]
    speed = [run.samples_per_second for run in runs]
    kept = [run.ranks[0]["activation_bytes"] for run in runs]
    thousands = (1e3, "thousand samples/s") if max(speed) >= 1e4 else (1.0, "samples/s")
    factor, unit = scale(max(kept))
    title = "Larger batches: throughput and memory"
    figure, panels = begin(title, 4.4, ncols=2)
    for axes, values, (each, name), colour in (
        (panels[0], speed, thousands, BLUE),
        (panels[1], kept, (factor, f"{unit} of activations"), VERMILLION),
    ):
        values = [value / each for value in values]  # short numbers: they stand side by side
        axes.plot(batches, values, "o-", color=colour)
        for batch, value in zip(batches, values, strict=True):
            above(axes, batch, value, three_digits(value), up=8, fontsize=SMALL, bbox=WHITE)
        log_axis(axes.xaxis, batches)
        axes.set(xlabel="samples in a step", ylabel=name, ylim=(0, 1.18 * max(values) or 1))
        axes.margins(x=0.1)
    says = "; ".join(
        f"batch {batch}: {three_digits(rate)} samples/s, {size(held)}"
        for batch, rate, held in zip(batches, speed, kept, strict=True)
    )
    return finish(figure, runs, f"{title}. {says}.")


@styled
def fp16_fates(shares: dict[str, list[dict]], exponents: list[int], origin: str) -> Figure:
    """Draw what becomes of gradients' elements in fp16, by loss scale.

    shares: {name of a gradient: [{fate of FATES: share}, one for each exponent]}. exponents: of
    two, the loss scales. origin: of the numbers, for the foot.
    """
    title = "A gradient times the loss scale, stored in fp16"
    figure, panels = begin(title, 5.6, ncols=len(shares), sharey=True, squeeze=False)
    says = []
    for axes, (name, scales) in zip(panels[0], shares.items(), strict=True):
        for row, share in enumerate(scales):
            left = 0.0
            for fate, look in FATES.items():
                bar(axes, row, 100 * share[fate], look, left, height=0.8, edgecolor="white")
                left += 100 * share[fate]
        axes.set_title(name, loc="left")
        axes.set(xlabel="share of the elements, %", xlim=(0, 100))
        zero = f"at a scale of 2^{exponents[0]} {100 * scales[0]['zero']:.0f} % become zero"
        infinite = f"at 2^{exponents[-1]} {100 * scales[-1]['infinite']:.0f} % infinite"
        says.append(f"{name}: {zero}, {infinite}")
    rows(panels[0][0], [f"$2^{{{power}}}$" for power in exponents])
    panels[0][0].set_ylabel("loss scale")
    legend(figure, handles(FATES))
    return finish(figure, (), f"{title}. {'; '.join(says)}. {origin}", (origin,))


@styled
def activations_in_step(blocks: int, block_bytes: float, kept_bytes: float) -> Figure:
    """Draw the blocks' activations during one step, plain and checkpointed, by formula.

    block_bytes: of a block for its backward; kept_bytes: if it is checkpointed. A block's forward
    takes one unit of time, its backward two.
    """
    title = "Activations that are held during one step (by formula)"
    figure, axes = begin(title, 4.6, grid="y")
    highest, says = 0.0, []
    curves = (("all kept", block_bytes, BLUE, "-"), ("inputs kept", kept_bytes, GREEN, "--"))
    for name, kept, colour, line in curves:
        times, sizes = zip(*trace_activations(blocks, block_bytes, kept), strict=True)
        megabytes = [size / 1e6 for size in sizes]
        axes.plot(times, megabytes, line, color=colour, label=name)
        says.append(f"{name}: at most {max(megabytes):.1f} MB, ended at {times[-1]:g}")
        highest = max(highest, *megabytes)
    axes.axvline(blocks, color=INK, linestyle=":", linewidth=1.5)
    axes.set_ylim(0, 1.22 * highest)
    for x, text, at in ((-0.15, "forward ", "right"), (0.15, " backward", "left")):
        axes.annotate(text, (blocks + x, 1.13 * highest), ha=at)
    axes.set(xlabel="time (one unit: the forward of one block)", ylabel="MB in the blocks")
    axes.legend(loc="center right")
    figure.alt = f"{title}, {blocks} blocks. {'; '.join(says)}."
    return figure


def trace_activations(blocks: int, block_bytes: float, kept_bytes: float) -> list[tuple]:
    """Return (time, bytes) at each change; a block that kept less is computed again."""
    again = [(1, block_bytes - kept_bytes)] if kept_bytes < block_bytes else []
    time, size, points = 0.0, 0.0, [(0.0, 0.0)]
    for duration, change in [(1, kept_bytes)] * blocks + [*again, (2, -block_bytes)] * blocks:
        time += duration
        points += [(time, size), (time, size + change)]
        size += change
    return points
