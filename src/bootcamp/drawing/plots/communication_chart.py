"""Rooflines of communication: how much of its arithmetic a rank reaches beside what it sends."""

import numpy as np
from matplotlib.figure import Figure

from bootcamp.costs import overlap
from bootcamp.drawing.palette import BLACK, INK, ORANGE, PAPER, SKY
from bootcamp.drawing.style import begin, device_word, finish, legend, styled

AXES = {  # axis of a mesh -> what its panel shows
    "FSDP": "FSDP: computing / sending,\ngrows with the tokens on a rank",
    "tensor": "tensor: computing / sending,\ngrows with the width",
    "pipeline": "pipeline: computing / waiting,\nmicro-batches / (stages - 1)",
}


@styled
def communication_roofline(table) -> Figure:
    """A panel for each kind of parallelism: share reached by computing over sending, two roofs.

    table: rows of `axis` (a key of AXES), `name`, `ratio`, `reached` (shares), `source`, and `run`:
    None for a published row, which is drawn hollow. Raises ValueError for another axis.
    """
    if unknown := {row["axis"] for row in table} - AXES.keys():
        raise ValueError(f"axis {unknown}: expected of {', '.join(AXES)}")
    figure, panels = begin("Rooflines of communication", 6.6, ncols=3, sharey=True)
    ratios = np.geomspace(0.01, 100, 200)
    for axes, (axis, shows) in zip(panels, AXES.items(), strict=True):
        rows = [row for row in table if row["axis"] == axis]
        roofs = {"computes, then sends": ("--", overlap.in_turn)}
        if axis == "FSDP":
            roofs["sends while it computes"] = ("-", overlap.hidden)
        for label, (line, roof) in roofs.items():
            heights = [roof(ratio) for ratio in ratios]
            axes.plot(ratios, heights, line, color=BLACK, label=f"at most: {label}")
        axes.fill_between(ratios, heights, color=PAPER, linewidth=0)
        for row in rows:
            axes.plot(row["ratio"], row["reached"], **_look(row), zorder=4)
        axes.set(xscale="log", xlim=(0.01, 100), ylim=(0, 1.1))
        axes.set_xlabel(shows)
        axes.set_xticks([0.01, 0.1, 1, 10, 100], minor=False)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.grid()
    panels[0].set_ylabel("reached (a rank alone: 1)")
    handles = {h.get_label(): h for axes in panels for h in axes.get_lines()}
    legend(figure, [h for label, h in handles.items() if not label.startswith("_")])
    says = "; ".join(
        f"{row['axis']}, {row['name']}: {row['reached']:.2f} at {row['ratio']:.2f}" for row in table
    )
    runs = [row["run"] for row in table if row["run"]]
    sources = "; ".join(sorted({row["source"] for row in table if not row["run"]}))
    note = "Hollow: published, as a share of the GPU's best matrix product. Filled: measured."
    notes = (note, f"Published: {sources}.")
    return finish(figure, runs, f"Reached at computing over sending: {says}.", notes)


def _look(row: dict) -> dict:
    if row["run"] is None:
        return {
            "marker": "o",
            "markerfacecolor": "white",
            "markeredgecolor": ORANGE,
            "linestyle": "none",
            "label": "published, GPUs",
        }
    word = device_word(row["run"])
    colour = SKY if word == "CPU" else ORANGE
    look = {"marker": "D", "color": colour, "markeredgecolor": INK, "linestyle": "none"}
    return look | {"label": f"measured, {word} ranks"}
