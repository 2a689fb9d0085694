"""A collective after any of its steps: `collective_steps.step("all-reduce", "ring", 4, 2)`.

Columns are ranks, rows are chunks of the tensor. Everything drawn is what theory.collectives has
simulated.
"""

from textwrap import wrap

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from bootcamp.drawing.diagrams import canvas, label
from bootcamp.drawing.palette import BLUE, INK, LIGHT, MINT, PALE, PAPER, VERMILLION
from bootcamp.drawing.style import styled
from bootcamp.theory import collectives
from bootcamp.theory.collectives import Send, Simulation

COMPLETE, PARTIAL, OWN, NOTHING = MINT, LIGHT.orange, "white", PAPER
NAMES = {"ring": "a ring", "tree": "a tree", "pairwise": "pairs"}
REDUCING = ("all-reduce", "reduce-scatter")
LEFT, RIGHT = 12.0, 98.0  # of the columns
HIGH = {"wide": 4.6, "tree": 5.2}  # of a row
SMALLEST = 9  # points


@styled
def step(collective: str, algorithm: str, ranks: int, step: int) -> Figure:
    """Who has sent which chunk to whom in this step, what all hold after it, what they have sent.

    step: 0 is the state before the first; beyond the last it is the last.
    Raises ValueError for a collective, an algorithm or ranks that are not simulated.
    """
    run = collectives.simulate(collective, algorithm, ranks)
    step = min(step, len(run.steps))
    held, sends = run.moments[step], run.steps[step - 1] if step else []
    title = f"{collective.capitalize()} by {NAMES[algorithm]}, {ranks} ranks: " + (
        f"after step {step} of {len(run.steps)}" if step else f"before the {len(run.steps)} steps"
    )
    rows = _rows(run)
    tall = _row_height(run)
    height = tall * len(rows) + (31 if algorithm == "tree" else 26.5)
    figure, axes = canvas(title, _says(run, step), height / 10)
    top = height - 1.5
    label(axes, 0, top, _phase(run, step), at="left", bold=True, size=13)
    _columns(axes, run, step, top - 5, len(rows), tall)
    for row, (name, _) in enumerate(rows.items()):
        label(axes, 0, _middle(run, top, row), name, at="left", size=11)
    places = _cells(axes, run, held, sends, top, tall)
    _arrows(axes, run, sends, places, tall)
    _foot(axes, run)
    return figure


def _rows(run: Simulation) -> dict:
    """{the row's name: its chunk}; an all-to-all has a row for each step, the first without one."""
    if run.collective == "all-to-all":
        return {f"step {row}" if row else "stays": row for row in range(run.ranks)}
    if run.chunks == 1:
        return {"the tensor": 0}
    return {f"chunk {chunk}": chunk for chunk in range(run.chunks)}


def _row_height(run: Simulation) -> float:
    return HIGH["tree" if run.algorithm == "tree" else "wide"]


def _top_of_cells(run: Simulation, top: float) -> float:
    """Below the names of the ranks; a tree has its arcs between."""
    return top - (12 if run.algorithm == "tree" else 7.5)


def _middle(run: Simulation, top: float, row: int) -> float:
    return _top_of_cells(run, top) - _row_height(run) * (row + 0.5)


def _wide(run: Simulation) -> float:
    """A rank's column with the gap behind it."""
    return (RIGHT - LEFT) / run.ranks


def _phase(run: Simulation, step: int) -> str:
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


def _columns(axes, run: Simulation, step: int, y: float, rows: int, tall: float) -> None:
    """Above each column its rank; below it what the rank sends now and what it has sent so far."""
    bottom = _top_of_cells(run, y + 5) - tall * rows
    sends = run.steps[step - 1] if step else []
    sent = run.sent(step)
    most = max(run.sent(len(run.steps)))
    body = _wide(run) * 0.8
    for name, y_of in (("sends now", bottom - 2.6), ("has sent", bottom - 6.4)):
        label(axes, 0, y_of, name, at="left", size=11)
    for rank in range(run.ranks):
        x = LEFT + _wide(run) * rank
        label(axes, x + body / 2, y, f"rank {rank}", bold=True)
        now = [send for send in sends if send.source == rank]
        words = "\n".join(f"{_chunk_word(run, send)}to rank {send.target}" for send in now)
        ink = VERMILLION if now else PALE
        label(axes, x + body / 2, bottom - 2.6, words or "nothing", size=10, ink=ink)
        label(axes, x + body / 2, bottom - 6.4, f"{sent[rank]:.3g} S", size=11)
        share = body * sent[rank] / most
        bar = (x, bottom - 9.4)
        axes.add_patch(Rectangle(bar, share, 1.4, color=BLUE, linewidth=0))
        axes.add_patch(Rectangle(bar, body, 1.4, facecolor="none", edgecolor=INK, linewidth=0.8))


def _chunk_word(run: Simulation, send: Send) -> str:
    if run.chunks == 1 or run.collective == "all-to-all":
        return ""
    return f"chunk {send.chunk}\n"


def _cells(axes, run: Simulation, held: list, sends: list, top: float, tall: float) -> dict:
    """A box for each chunk of each rank; returns {(rank, chunk): (left, right, y) of its box}."""
    wanted = collectives.result(run.collective, run.ranks, run.chunks)
    moved = {(s.source, s.chunk) for s in sends} | {(s.target, s.chunk) for s in sends}
    places = {}
    for rank in range(run.ranks):
        for chunk, row, left, wide in _slots(run, rank):
            y = _middle(run, top, row)
            places[rank, chunk] = (left, left + wide, y)
            now = held[rank].get(chunk)
            done = now is not None and wanted[rank].get(chunk) == now
            heavy = (rank, chunk) in moved
            frame = (left, y - 0.41 * tall, wide, 0.82 * tall)
            _cell(axes, frame, now, _inside(run, chunk, now), done, heavy)
    return places


def _slots(run: Simulation, rank: int):
    """(chunk, row, left edge, width) of each box of a rank; an all-to-all has two in each row."""
    x, body = LEFT + _wide(run) * rank, _wide(run) * 0.8
    if run.collective != "all-to-all":
        for chunk in range(run.chunks):
            yield chunk, chunk, x, body
        return
    yield (rank, rank), 0, x, body
    for row in range(1, run.ranks):
        yield (rank, (rank + row) % run.ranks), row, x, 0.49 * body
        yield ((rank - row) % run.ranks, rank), row, x + 0.51 * body, 0.49 * body


def _cell(axes, frame: tuple, now, text: str, done: bool, heavy: bool) -> None:
    """One chunk: what is in it as text, how complete it is as a colour, moved now as a frame."""
    x, y, wide, high = frame
    colour = NOTHING if now is None else COMPLETE if done else PARTIAL if len(now) > 1 else OWN
    look = {"facecolor": colour, "edgecolor": VERMILLION if heavy else INK}
    look |= {"linewidth": 2.6 if heavy else 1.0, "linestyle": "-" if now else ":"}
    axes.add_patch(Rectangle((x, y), wide, high, zorder=2 + heavy, **look))
    look = {"fontsize": 11 if wide > 10 else SMALLEST, "fontweight": "bold" if done else "normal"}
    look |= {"ha": "center", "va": "center", "linespacing": 1.0, "zorder": 4}
    axes.text(x + wide / 2, y + high / 2, text, **look)


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


def _arrows(axes, run: Simulation, sends: list, places: dict, tall: float) -> None:
    """An arrow for each send, from the box of the sender to that of the receiver.

    In an all-to-all they would cross everything: there each box says from whom it is for whom.
    """
    for send in sends if run.collective != "all-to-all" else ():
        left, right, y = places[send.source, send.chunk]
        to_left, to_right, to_y = places[send.target, send.chunk]
        if run.algorithm == "tree":
            start, end, above = (left + right) / 2, (to_left + to_right) / 2, y + 0.45 * tall
            bend = min(0.42, 8 / abs(end - start))  # long arcs stay below the ranks' names
            bend = -bend if end > start else bend
            _arrow(axes, (start, above), (end, above), bend)
        elif send.target > send.source:
            _arrow(axes, (right, y), (to_left, y))
        else:  # from the last rank to the first: out on the right, in on the left
            _arrow(axes, (right, y), (right + 2.4, y))
            _arrow(axes, (to_left - 2.4, y), (to_left, y))


def _arrow(axes, start: tuple, end: tuple, bend: float = 0.0) -> None:
    look = {"arrowstyle": "-|>", "mutation_scale": 13, "linewidth": 2.2, "color": VERMILLION}
    look |= {"shrinkA": 0, "shrinkB": 0, "connectionstyle": f"arc3,rad={bend}", "zorder": 5}
    axes.add_patch(FancyArrowPatch(start, end, **look))


def _foot(axes, run: Simulation) -> None:
    """The key, and what is sent until the end: counted, and by formula."""
    lines = (_key(run), _count_words(run), _step_words(run))
    for y, text in zip((4.9, 2.6, 0.3), lines, strict=True):
        label(axes, 0, y, text, at="left", size=11)


def _key(run: Simulation) -> str:
    inside = "from 0: it is rank 0's"
    if run.collective in REDUCING:
        inside = "0+2: the sum of rank 0's and rank 2's"
    elif run.collective == "all-to-all":
        return (
            "0→2: from rank 0, for rank 2. Left: to be sent. Right, bold on green: received. "
            "Thick frame: in this step."
        )
    return f"{inside}. Bold on green: as asked for. Thick frame: sent or received in this step."


def _count_words(run: Simulation) -> str:
    sent = run.sent(len(run.steps))
    told = collectives.formula(run.collective, run.algorithm, run.ranks)
    busiest = "each rank" if len(set(sent)) == 1 else "the busiest rank"
    return (
        f"Sent by {busiest} in all: counted {max(sent):.3g} S, by formula "
        f"{_equals(told['words']['most'], told['most'])}. All ranks together: {sum(sent):.3g} S."
    )


def _step_words(run: Simulation) -> str:
    told = collectives.formula(run.collective, run.algorithm, run.ranks)
    carries = "the whole tensor" if run.chunks == 1 else f"1/{run.chunks} of it"
    return (
        f"S: bytes of the whole tensor; a message carries {carries}. "
        f"Steps: {len(run.steps)}, by formula {_equals(told['words']['steps'], told['steps'])}."
    )


def _equals(words: str, value: float) -> str:
    return words if words == f"{value:.3g}" else f"{words} = {value:.3g}"


def _says(run: Simulation, step: int) -> str:
    """The picture in words."""
    parts = [_phase(run, step)]
    if step:
        sends = [
            f"rank {s.source} sends {_said_chunk(run, s.chunk)} to rank {s.target}"
            for s in run.steps[step - 1]
        ]
        parts.append(f"In this step {', '.join(sends)}.")
    for rank, chunks in enumerate(run.moments[step]):
        inside = [f"{_said_chunk(run, c)}{_said(run, now)}" for c, now in sorted(chunks.items())]
        parts.append(f"Rank {rank} now holds {', '.join(inside) or 'nothing'}.")
    sent = ", ".join(f"rank {rank} {size:.3g}" for rank, size in enumerate(run.sent(step)))
    parts.append(f"Sent so far, in sizes of the whole tensor, S: {sent}.")
    return " ".join([*parts, _count_words(run), _step_words(run)])


def _said_chunk(run: Simulation, chunk) -> str:
    if run.collective == "all-to-all":
        return f"the chunk from {chunk[0]} for {chunk[1]}"
    return "the tensor" if run.chunks == 1 else f"chunk {chunk}"


def _said(run: Simulation, now: frozenset) -> str:
    if run.collective in REDUCING:
        return f" ({'+'.join(map(str, sorted(now)))})"
    return "" if run.collective == "all-to-all" else f" of rank {min(now)}"
