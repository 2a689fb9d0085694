"""A collective after any of its steps: `collective_steps.step("all-reduce", "ring", 4, 2)`.

Columns are ranks, rows are chunks of the tensor, all as theory.collectives has simulated them.
"""

from textwrap import wrap

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from bootcamp.costs import collectives
from bootcamp.costs.collectives import Simulation
from bootcamp.drawing.canvas import arrow, canvas, label
from bootcamp.drawing.palette import BLUE, INK, LIGHT, MINT, PALE, PAPER, VERMILLION
from bootcamp.drawing.style import styled

NAMES = {"ring": "a ring", "tree": "a tree", "pairwise": "pairs"}
REDUCING = ("all-reduce", "reduce-scatter")
LEFT, RIGHT = 12.0, 98.0  # of the columns


@styled
def step(collective: str, algorithm: str, ranks: int, step: int) -> Figure:
    """Who has sent which chunk to whom in this step, what all hold after it, what they have sent.

    step: 0 is the state before the first; beyond the last it is the last.
    Raises ValueError for a collective, an algorithm or ranks that are not simulated.
    """
    run = collectives.simulate(collective, algorithm, ranks)
    step = min(step, len(run.steps))
    title = f"{collective.capitalize()} by {NAMES[algorithm]}, {ranks} ranks: " + (
        f"after step {step} of {len(run.steps)}" if step else f"before the {len(run.steps)} steps"
    )
    rows, is_tree = _rows(run), algorithm == "tree"
    tall = 5.2 if is_tree else 4.6
    height = tall * len(rows) + (31 if is_tree else 26.5)
    figure, axes = canvas(title, _says(run, step), height / 10)
    label(axes, 0, height - 1.5, phase(run, step), at="left", bold=True, size=13)
    top = height - (13.5 if is_tree else 9)  # of the cells; a tree has its arcs above them
    for row, name in enumerate(rows):
        label(axes, 0, top - tall * (row + 0.5), name, at="left", size=11)
    _columns(axes, run, step, height - 6.5, top - tall * len(rows))
    places = _places(run, top, tall)
    _cells(axes, run, step, places, tall)
    if collective != "all-to-all":  # there arrows would cross everything, and each box names both
        _arrows(axes, run, step, places, tall)
    for y, text in zip((4.9, 2.6, 0.3), (key(run), *totals(run)), strict=True):
        label(axes, 0, y, text, at="left", size=11)
    return figure


def _rows(run: Simulation) -> list[str]:
    """The names of the rows: of chunks, or of an all-to-all's steps."""
    if run.collective == "all-to-all":
        return ["stays", *(f"step {row}" for row in range(1, run.ranks))]
    return [f"chunk {chunk}" for chunk in range(run.chunks)] if run.chunks > 1 else ["the tensor"]


def _column(run: Simulation, rank: int) -> tuple[float, float]:
    """The left edge of a rank's column, and its width without the gap behind it."""
    wide = (RIGHT - LEFT) / run.ranks
    return LEFT + wide * rank, 0.8 * wide


def _places(run: Simulation, top: float, tall: float) -> dict:
    """{(rank, chunk): (left, right, y) of its box}; an all-to-all has two boxes in each row."""
    places = {}
    for rank in range(run.ranks):
        x, body = _column(run, rank)
        left, right = (x, x + 0.49 * body), (x + 0.51 * body, x + body)
        if run.collective == "all-to-all":
            places[rank, (rank, rank)] = (x, x + body, top - 0.5 * tall)
            for row in range(1, run.ranks):
                y = top - tall * (row + 0.5)
                places[rank, (rank, (rank + row) % run.ranks)] = (*left, y)
                places[rank, ((rank - row) % run.ranks, rank)] = (*right, y)
        else:
            for chunk in range(run.chunks):
                places[rank, chunk] = (x, x + body, top - tall * (chunk + 0.5))
    return places


def phase(run: Simulation, step: int) -> str:
    """What this step is there for, in words."""
    if step == 0:
        return {
            "broadcast": "Only rank 0 has the tensor; every rank is to get it.",
            "all-reduce": "Each rank has its own tensor; every rank is to get the sum of all.",
            "reduce-scatter": "Each rank has its own tensor; rank k is to get chunk k of "
            "their sum.",
            "all-gather": "Rank k has chunk k; every rank is to get all chunks.",
            "all-to-all": "Each rank has a chunk for every rank, itself included.",
        }[run.collective]
    done = " All is done." if step == len(run.steps) else ""
    if run.collective == "all-to-all":
        ordinal = {1: "next", 2: "2nd", 3: "3rd"}.get(step, f"{step}th")
        return f"Step {step}: each rank sends to the {ordinal} rank after it.{done}"
    adds, half = run.steps[step - 1][0].adds, ""
    if run.collective == "all-reduce" and run.algorithm == "ring":
        half = " (this half is a reduce-scatter)" if adds else " (this half is an all-gather)"
    elif run.algorithm == "tree":
        half = ", towards rank 0" if adds else ", away from rank 0"
    return f"Step {step}: {'add up' if adds else 'pass on'}{half}.{done}"


def _columns(axes, run: Simulation, step: int, above: float, below: float) -> None:
    """Above each column its rank; below it what the rank sends now and what it has sent so far."""
    sent, most = run.sent(step), max(run.sent(len(run.steps)))
    for name, y in (("sends now", below - 2.6), ("has sent", below - 6.4)):
        label(axes, 0, y, name, at="left", size=11)
    named = run.chunks > 1 and run.collective != "all-to-all"
    for rank in range(run.ranks):
        x, body = _column(run, rank)
        words = "\n".join(
            (f"chunk {send.chunk}\n" if named else "") + f"to rank {send.target}"
            for send in _sends(run, step)
            if send.source == rank
        )
        middle, ink = x + body / 2, VERMILLION if words else PALE
        label(axes, middle, above, f"rank {rank}", bold=True)
        label(axes, middle, below - 2.6, words or "nothing", size=11, ink=ink)
        label(axes, middle, below - 6.4, f"{sent[rank]:.3g} S", size=11)
        frame = {"facecolor": "none", "edgecolor": INK, "linewidth": 0.8}
        for wide, look in (
            (body * sent[rank] / most, {"color": BLUE, "linewidth": 0}),
            (body, frame),
        ):
            axes.add_patch(Rectangle((x, below - 9.4), wide, 1.4, **look))


def _sends(run: Simulation, step: int) -> list:
    return run.steps[step - 1] if step else []


def _cells(axes, run: Simulation, step: int, places: dict, tall: float) -> None:
    """A box for each place: the chunk as text, how complete as a colour, moved now as a frame."""
    wanted = collectives.result(run.collective, run.ranks, run.chunks)
    moved = {(r, s.chunk) for s in _sends(run, step) for r in (s.source, s.target)}
    for (rank, chunk), (left, right, y) in places.items():
        now = run.moments[step][rank].get(chunk)
        done, heavy = now is not None and wanted[rank].get(chunk) == now, (rank, chunk) in moved
        partial = LIGHT.orange if now and len(now) > 1 else "white"
        look = {"facecolor": PAPER if now is None else MINT if done else partial}
        look |= {"edgecolor": VERMILLION if heavy else INK, "linewidth": 2.6 if heavy else 1.0}
        look |= {"linestyle": "-" if now else ":", "zorder": 2 + heavy}
        axes.add_patch(Rectangle((left, y - 0.41 * tall), right - left, 0.82 * tall, **look))
        look = {"size": 11, "bold": done, "linespacing": 1.0}
        label(axes, (left + right) / 2, y, _inside(run, chunk, now), zorder=4, **look)


def _inside(run: Simulation, chunk, now: frozenset | None) -> str:
    """Whose contributions a chunk holds."""
    if now is None:
        return ""
    if run.collective == "all-to-all":
        return f"{chunk[0]}→{chunk[1]}"
    if run.collective not in REDUCING:
        return f"from {min(now)}"
    if len(now) == run.ranks:
        return f"sum of {run.ranks}"
    words = "+".join(map(str, sorted(now)))
    return "\n+".join(wrap(words.replace("+", " "), 8)).replace(" ", "+")


def _arrows(axes, run: Simulation, step: int, places: dict, tall: float) -> None:
    """An arrow for each send, from the box of the sender to that of the receiver."""
    look = {"colour": VERMILLION, "mutation_scale": 13, "shrinkA": 0, "shrinkB": 0, "zorder": 5}
    for send in _sends(run, step):
        left, right, y = places[send.source, send.chunk]
        to_left, to_right, to_y = places[send.target, send.chunk]
        if run.algorithm == "tree":
            start, end, above = (left + right) / 2, (to_left + to_right) / 2, y + 0.45 * tall
            bend = min(0.42, 8 / abs(end - start))  # long arcs stay below the ranks' names
            bend = -bend if end > start else bend
            arrow(axes, (start, above), (end, above), bend=bend, **look)
        elif send.target > send.source:
            arrow(axes, (right, y), (to_left, y), **look)
        else:  # from the last rank to the first: out on the right, in on the left
            arrow(axes, (right, y), (right + 2.4, y), **look)
            arrow(axes, (to_left - 2.4, y), (to_left, y), **look)


def key(run: Simulation) -> str:
    """How its boxes are read."""
    inside = "from 0: it is rank 0's"
    if run.collective in REDUCING:
        inside = "0+2: the sum of rank 0's and rank 2's"
    elif run.collective == "all-to-all":
        return (
            "0→2: from rank 0, for rank 2. Left: to be sent. Right, bold on green: received. "
            "Thick frame: in this step."
        )
    return f"{inside}. Bold on green: as asked for. Thick frame: sent or received in this step."


def totals(run: Simulation) -> tuple[str, str]:
    """What is sent until the end and in how many steps: counted, and by formula."""
    told = collectives.formula(run.collective, run.algorithm, run.ranks)
    most, steps = (
        words if words == f"{told[what]:.3g}" else f"{words} = {told[what]:.3g}"
        for what, words in ((what, told["words"][what]) for what in ("most", "steps"))
    )
    sent = run.sent(len(run.steps))
    busiest = "each rank" if len(set(sent)) == 1 else "the busiest rank"
    carries = "the whole tensor" if run.chunks == 1 else f"1/{run.chunks} of it"
    return (
        f"Sent by {busiest} in all: counted {max(sent):.3g} S, by formula {most}. "
        f"All ranks together: {sum(sent):.3g} S.",
        f"S: bytes of the whole tensor; a message carries {carries}. "
        f"Steps: {len(run.steps)}, by formula {steps}.",
    )


def _says(run: Simulation, step: int) -> str:
    """The picture in words."""
    parts = [phase(run, step)]
    if step:
        sends = [
            f"rank {s.source} sends {_said_chunk(run, s.chunk)} to rank {s.target}"
            for s in _sends(run, step)
        ]
        parts.append(f"In this step {', '.join(sends)}.")
    for rank, chunks in enumerate(run.moments[step]):
        inside = [f"{_said_chunk(run, c)}{_said(run, now)}" for c, now in sorted(chunks.items())]
        parts.append(f"Rank {rank} now holds {', '.join(inside) or 'nothing'}.")
    sent = ", ".join(f"rank {rank} {size:.3g}" for rank, size in enumerate(run.sent(step)))
    parts.append(f"Sent so far, in sizes of the whole tensor, S: {sent}.")
    return " ".join([*parts, *totals(run)])


def _said_chunk(run: Simulation, chunk) -> str:
    if run.collective == "all-to-all":
        return f"the chunk from {chunk[0]} for {chunk[1]}"
    return "the tensor" if run.chunks == 1 else f"chunk {chunk}"


def _said(run: Simulation, now: frozenset) -> str:
    if run.collective in REDUCING:
        return f" ({'+'.join(map(str, sorted(now)))})"
    return "" if run.collective == "all-to-all" else f" of rank {min(now)}"
