"""Lesson 04c: strong and weak scaling, overhead, and the loss for each learning rate."""

import math
from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean

from matplotlib.figure import Figure

from bootcamp.drawing.canvas import box, diagram, label
from bootcamp.drawing.charts import BOLD, WHITE, above, cross, log_axis, margin, shared_note
from bootcamp.drawing.palette import BLUE, LIGHT, ORANGE, PALE, PAPER, VERMILLION
from bootcamp.drawing.style import begin, finish, styled
from bootcamp.records.runs import Run
from bootcamp.table import Table

DIVERGED = 4.0  # a loss above it is drawn at the upper edge: a model that knows nothing has ln 256


@styled
def speed_up_by_batch(pairs: list[tuple[Run, Run]]) -> Figure:
    """Draw the speed-up of (run of one process, run of several ranks) over the global batch.

    Pairs with shared cores are left out; if there are no others, all are drawn on crossed ground.
    """
    runs = [run for pair in pairs for run in pair]
    alone = [pair for pair in pairs if not any(run.shared_cores for run in pair)]
    crossed, left_out = () if alone else shared_note(runs), len(pairs) - len(alone or pairs)
    ranks, models = pairs[0][1].world, {run.config["model"] for run in runs}
    title = f"{ranks} ranks against one process, by the size of the batch ({', '.join(models)})"
    figure, axes = begin(title, 5.0)
    speed_ups = {
        one.config["global_batch"]: many.samples_per_second / one.samples_per_second
        for one, many in alone or pairs
    }
    axes.axhspan(0, 1, color=PAPER)
    axes.plot(list(speed_ups), list(speed_ups.values()), "o-", color=BLUE)
    for batch, speed_up in speed_ups.items():
        above(axes, batch, speed_up, f"{speed_up:.2f}×", up=12, bbox=WHITE, **BOLD)
    for height, text, va in ((1, "as fast as\none process", "top"), (ranks, "ideal", "bottom")):
        axes.axhline(height, color=PALE, linestyle="--")
        margin(axes, height, text, va=va)  # where nothing comes near it, nor they to each other
    log_axis(axes.xaxis, list(speed_ups), base=2)
    axes.set(ylim=(0, 1.15 * max(ranks, *speed_ups.values())), ylabel="speed-up")
    axes.set_xlabel("global batch (samples per step)")
    if crossed:
        cross(axes)
    words = "; ".join(f"{batch} samples: {times:.2f} times" for batch, times in speed_ups.items())
    notes = ("Below the lower line the ranks together are slower than one of them alone.", *crossed)
    if left_out:
        notes += (f"Left out: {left_out} pair(s) of runs on shared cores.",)
    return finish(figure, runs, " ".join([f"{title}: {words}.", *crossed]), notes)


def overhead_table(pairs: list[tuple[Run, Run]]) -> Table:
    """Table what a step of N ranks takes beyond 1/N of one process's, for each pair of runs."""
    rows = []
    for one, many in pairs:
        alone, together = 1e3 * one.seconds_per_step, 1e3 * many.seconds_per_step
        row = {"global batch": one.config["global_batch"], "one process, ms": alone}
        row |= {"of that 1/N": alone / many.world, f"{many.world} ranks, ms": together}
        rows.append(row | {"overhead, ms": together - alone / many.world})
    return Table(rows)


def _group_by_setting(trainings: list[dict]) -> dict[tuple, dict[float, list[float]]]:
    """Return {(batch, steps of warm-up): {rate: held-out losses, one for each seed}}."""
    found = defaultdict(lambda: defaultdict(list))
    for row in sorted(trainings, key=lambda row: (row["batch"], row["warm_up"], row["rate"])):
        found[row["batch"], row["warm_up"]][row["rate"]].append(row["held_out"])
    return found


def _mean(losses: list[float]) -> float:
    return fmean(losses) if all(map(math.isfinite, losses)) else math.inf


@dataclass(frozen=True)
class BestRates:
    """The best rate of two batches; share_closed: % of the loss's gap at the small batch's rate."""

    rate_of_base: float
    rate_of_large: float
    share_closed: float


def find_best_rates(trainings: list[dict]) -> BestRates:
    """Find the rates with the least mean held-out loss over the seeds, without warm-up."""
    losses = {
        batch: {rate: _mean(each) for rate, each in rates.items()}
        for (batch, warm_up), rates in _group_by_setting(trainings).items()
        if not warm_up
    }
    small, large = (losses[batch] for batch in sorted(losses))
    best_small, best_large = min(small, key=small.get), min(large, key=large.get)
    unscaled = large[best_small]
    closed = (unscaled - large[best_large]) / (unscaled - small[best_small])
    return BestRates(best_small, best_large, 100 * closed)


@styled
def rate_sweep(trainings: list[dict], run: Run) -> Figure:
    """Draw held-out loss against learning rate, by batch and warm-up; run: names the machine."""
    figure, axes = begin("Held-out loss by learning rate, for two batches", 5.6, grid="y")
    rates, says, edge = sorted({row["rate"] for row in trainings}), [], 0.0
    for number, ((batch, warm_up), by_rate) in enumerate(_group_by_setting(trainings).items()):
        name = f"batch {batch}" + (f", warm-up of {warm_up} steps" if warm_up else "")
        means = [min(_mean(losses), DIVERGED) for losses in by_rate.values()]
        look = {"color": (BLUE, ORANGE, VERMILLION)[number], "marker": "osD"[number]}
        axes.plot(list(by_rate), means, label=name, linestyle=("-", "-", "--")[number], **look)
        for rate, losses in by_rate.items():
            seen = [min(loss if math.isfinite(loss) else math.inf, DIVERGED) for loss in losses]
            axes.plot([rate] * len(seen), seen, linestyle="", markersize=5, alpha=0.5, **look)
            edge = max(edge, *seen)
        words = (f"{rate:g}: {_mean(losses):.2f}" for rate, losses in by_rate.items())
        says.append(f"{name}: {', '.join(words)}")
    log_axis(axes.xaxis, rates)
    axes.set(xlabel="learning rate", ylabel="loss on held-out text (nats)")
    axes.set_ylim(top=DIVERGED + 0.06 if edge >= DIVERGED else None)
    axes.legend(loc="best")
    notes = ["Small marks: one seed each; lines: their mean."]
    if edge >= DIVERGED:
        notes.append(f"At {DIVERGED:g}: it diverged.")
    return finish(figure, [run], f"{'. '.join(says)}.", tuple(notes))


@diagram("What a rank does in a step when ranks are added", 3.9)
def strong_and_weak(axes) -> None:
    """Bars of one step of a rank on one, two and four ranks. Strong scaling, the same global batch:
    computing halves each time, and the overhead of averaging gradients stays as it is. Weak
    scaling, the same batch per rank: computing stays, and so does the overhead.
    """
    for x, name, shares in (
        (12, "strong scaling: the same batch", (1, 1 / 2, 1 / 4)),
        (60, "weak scaling: the same batch per rank", (1, 1, 1)),
    ):
        label(axes, x + 14, 37, name, bold=True)
        for row, (ranks, share) in enumerate(zip((1, 2, 4), shares, strict=True)):
            y, width = 26 - 10 * row, 28 * share
            label(axes, x - 1.5, y + 3.5, f"{ranks} rank{'s' if ranks > 1 else ''}", at="right")
            box(axes, x, y, width, 7, "compute" if share > 0.3 else "", colour=LIGHT.blue)
            if ranks > 1:
                box(axes, x + width, y, 6, 7, colour=LIGHT.orange)
    box(axes, 12, 0.4, 3, 3.4, colour=LIGHT.orange)
    label(axes, 16, 2.1, "overhead: averaging the gradients, waiting for each other", at="left")
