"""One plan among all of a cluster: what it holds, where its step goes, what limits it.

    planner.draw(table, tensor=4, pipeline=1, zero=3, micro_batch=1, recompute="none")

`show` puts controls over the picture. The tables come from bootcamp_lessons.planning, which knows
the planner: this room does not.
"""

from collections.abc import Callable

from matplotlib.figure import Figure

from bootcamp.drawing import plots
from bootcamp.widgets.controls import choice, follow, steps

COLUMNS = {name: name for name in ("tensor", "pipeline", "recompute")}
COLUMNS |= {"zero": "ZeRO", "micro_batch": "micro-batch"}
SIZES = {"tensor": [1, 2, 4, 8], "pipeline": [1, 2, 4, 8, 16, 32, 64], "zero": [0, 1, 2, 3]}
SIZES |= {"micro_batch": [1, 2, 4, 8]}
RECOMPUTE = ["none", "selective op", "full"]


def draw(table, **choices) -> Figure:
    """The plan with these choices among all plans of the table. Raises ValueError if it has none.

    table: rows of planning.plans_of. choices: keys of COLUMNS.
    """
    for row in table:
        if all(row[COLUMNS[name]] == value for name, value in choices.items()):
            return plots.chosen_plan(table, row)
    said = ", ".join(f"{COLUMNS[name]} {value}" for name, value in choices.items())
    raise ValueError(f"there is no plan with {said}")


def show(
    tables: Callable, models: list, kinds: list, counts: list, links: dict[str, float], **first
) -> dict:
    """Controls and the picture that follows them; returns the controls by name.

    tables: of all choices a table that has the chosen plan. models, kinds (of GPUs), counts (of
    GPUs), links {words: GB/s of a host}: what can be chosen. first: the choices to begin with.
    """

    def drawn(**choices) -> Figure:
        return draw(tables(**choices), **{name: choices[name] for name in COLUMNS})

    return follow(
        drawn,
        model=choice("model", models, first["model"]),
        kind=choice("GPU", kinds, first["kind"]),
        gpus=steps("GPUs", first["gpus"], counts),
        **{name: steps(COLUMNS[name], first[name], sizes) for name, sizes in SIZES.items()},
        recompute=choice("recompute", RECOMPUTE, first["recompute"]),
        host_gb_s=choice("link", list(links.items()), first["host_gb_s"]),
    )
