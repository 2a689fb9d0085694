"""Lesson 07b: two ways to save, shards of a parameter, resumed losses, the time that is lost."""

import math

from matplotlib.figure import Figure

from bootcamp.costs.failures import lost_share
from bootcamp.costs.failures import young_interval as best_interval
from bootcamp.drawing.canvas import boxes, canvas, diagram, label
from bootcamp.drawing.charts import log_axis
from bootcamp.drawing.palette import COLOURS, GREY, LIGHT, PALE, SKY, TINTS, VERMILLION, line_look
from bootcamp.drawing.style import FOOT, begin, finish, legend, styled


@diagram("What a kill leaves, moment by moment", 3.9)
def two_ways_to_save(axes) -> None:
    """Two time lines of a save, and below each what a reader finds under the checkpoint's name if
    the process is killed at that moment. Straight to its place: first the old checkpoint, then for
    the whole time of writing a torn file, then the new one. Beside, sync, rename: the old
    checkpoint while the new file is written beside it and synced to the disk, then the new one from
    the rename on. There is no moment with a torn file.
    """
    old, new, torn = ("old one", LIGHT.green), ("new one", LIGHT.blue), ("TORN", LIGHT.red)
    straight = ((14, 15.5, "step 41"), (30, 39.5, "write the new state"), (70, 27.5, "step 42 ..."))
    beside = ((14, 15.5, "step 41"), (30, 32.5, "write beside it"), (63, 10.5, "sync"))
    beside += ((74, 5.5, "re-\nname"), (80, 17.5, "step 42 ..."))
    for y, name, does, leaves in (
        (21, "straight to its place", straight, ((14, 15.5, *old), (70, 27.5, *new))),
        (2, "beside, sync, rename", beside, ((14, 62.5, *old), (77, 20.5, *new))),
    ):
        label(axes, 0, y + 15.6, name, at="left", bold=True, size=14)
        label(axes, 0, y + 10, "it does", at="left")
        label(axes, 0, y + 3, "a kill\nleaves", at="left")
        boxes(axes, y + 7.5, 5, *does, colour="white", size=FOOT)
        boxes(axes, y + 0.5, 5, *leaves)
    boxes(axes, 21.5, 5, (30, 39.5, *torn), bold=True)


@styled
def pieces(name: str, shape: tuple[int, int], places: dict[str, list[dict]]) -> Figure:
    """Draw the pieces of a matrix in files: {title: [{file, offsets, sizes}]}."""
    says = " ".join(
        f"{title}: " + "; ".join(f"{p['file']} has {_describe_piece(p)}" for p in found) + "."
        for title, found in places.items()
    )
    rows, columns = shape
    figure, axes = canvas(f"Who has which piece of {name}", says, 4.1)
    wide = 100 / len(places)
    width, height = min(wide - 6, 30), 30
    for place, (title, found) in enumerate(places.items()):
        left = place * wide + (wide - width) / 2
        label(axes, left + width / 2, 38.5, title, bold=True)
        for number, piece in enumerate(found):
            (row, column), (down, across) = piece["offsets"], piece["sizes"]
            x = left + width * column / columns
            w, h = width * across / columns, height * down / rows
            text = piece["file"] if w > width / 3 else piece["file"].replace("_", "_\n", 3)
            part = (x + 0.2, w - 0.4, text, TINTS[number % len(TINTS)])
            boxes(axes, 34.2 - height * row / rows - h, h - 0.4, part, size=FOOT)
    shown = f"{rows} rows from top to bottom, {columns} columns from left to right"
    label(axes, 0, 1.5, shown, at="left", size=FOOT)
    return figure


def _describe_piece(piece: dict) -> str:
    spans = zip(("rows", "columns"), piece["offsets"], piece["sizes"], strict=True)
    return ", ".join(f"{what} {start} to {start + size - 1}" for what, start, size in spans)


@styled
def resumed_losses(baseline, attempts: list, names: list[str], title: str) -> Figure:
    """Draw the losses of attempts, each resumed from the last, over the baseline's."""
    shape = {"nrows": 2, "sharex": True, "gridspec_kw": {"height_ratios": [3, 1.5]}}
    figure, (upper, lower) = begin(title, 6.4, **shape)
    wide = {"color": SKY, "linewidth": 9, "alpha": 0.55}
    upper.plot(baseline.losses, label=f"never stopped: {baseline.label}", **wide)
    lower.axhline(1e-5, color=VERMILLION, linewidth=2, linestyle="--")
    lower.text(0, 1.25e-5, "allowed: 1e-5", color=VERMILLION, fontsize=FOOT, va="bottom")
    texts = []
    for number, (run, name) in enumerate(zip(attempts, names, strict=True)):
        if not run.steps:
            continue
        steps = [row["step"] for row in run.steps]
        # neither of the blues: the baseline is sky
        look = line_look(number) | {"color": COLOURS[number % 5 + 1], "markersize": 6}
        upper.plot(steps, run.losses, linewidth=2, label=name, **look)
        distances = [abs(a - baseline.losses[s]) for s, a in zip(steps, run.losses, strict=True)]
        lower.plot(steps, [max(a, 1e-8) for a in distances], linewidth=0, **look)
        where = f"steps {steps[0]} to {steps[-1]}, at most {max(distances):.1e} from the baseline"
        texts.append(f"{name}: {where}")
    upper.set_ylabel("mean loss (nats)")
    upper.grid(axis="y")
    lower.set_yscale("log")
    lower.set(ylim=(5e-9, max(1e-4, lower.get_ylim()[1])), ylabel="distance", xlabel="step")
    lower.xaxis.get_major_locator().set_params(integer=True)
    legend(figure, upper.get_lines())
    notes = ("Equal losses are drawn at 1e-8.",)
    return finish(figure, [baseline, *attempts], f"{title}. {'; '.join(texts)}.", notes)


@styled
def lost_time(
    save_seconds: list[float], between_failures: float, restart_seconds: float = 0
) -> Figure:
    """Draw the lost share of time over the interval between saves."""
    title = f"Time lost, with a failure every {between_failures / 3600:.1f} hours"
    figure, axes = begin(title, 4.8)
    texts = []
    for number, save in enumerate(save_seconds):
        best = best_interval(save, between_failures)

        def lost(interval: float, save=save) -> float:
            return 100 * lost_share(interval, save, between_failures, restart_seconds)

        intervals = [best * 10 ** (k / 20 - 1) for k in range(41)]
        shares = [share if (share := lost(each)) < 50 else math.nan for each in intervals]
        look, minutes = line_look(number), [each / 60 for each in intervals]
        axes.plot(minutes, shares, color=look["color"], label=f"a save of {save:g} s")
        axes.plot(best / 60, lost(best), **look)
        words = f"every {best / 60:.1f} minutes, {lost(best):.1f} % lost"
        texts.append(f"a save of {save:g} s: {words}")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    log_axis(axes.yaxis, (1, 2, 5, 10, 20, 50))
    axes.set(xlabel="minutes between saves", ylabel="% of the time lost")
    axes.grid(True, which="both", color=GREY)
    corner = {"transform": axes.transAxes, "ha": "right", "fontsize": FOOT, "color": PALE}
    axes.text(0.99, 0.03, "marks: the best interval", **corner)
    legend(figure, axes.get_lines()[::2])
    restart = f" A restart takes {restart_seconds / 60:g} minutes." if restart_seconds else ""
    notes = (f"By the formula of Young (1974), drawn up to 50 %; not measured.{restart}",)
    return finish(figure, [], f"{title}. {'; '.join(texts)}.", notes)
