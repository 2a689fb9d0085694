"""Four of the lessons' simulators as explorers: `explorers.data("collective", ranks=5)`.

explorers.js draws them, in the lab (simulators.py), on the static pages and in the slides (`page`,
`script`). It gets its controls from here and, for every choice, what bootcamp.costs says. Where
there is no JavaScript, `still` shows the first choice as a table.
"""

import functools
import html
import itertools
import json
from pathlib import Path

from bootcamp.costs import collectives, ddp, model_shapes, pipeline_schedules, published
from bootcamp.costs import memory as memory_costs
from bootcamp.costs.collectives import Simulation
from bootcamp.table import Table
from bootcamp.units import size, time
from bootcamp_lessons.diagrams import pipeline_gantt

SCRIPT = Path(__file__).with_suffix(".js")
EXPORTS = "export default { render };"
GIGABITS = (1, 10, 25, 100, 200, 400)  # a second: what networks are sold with
MILLISECONDS = (2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
MICROSECONDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 32)
RANKS_OF_PIPELINE = (1, 2, 3, 4, 6, 8)
NO_RUN = "none"


def data(kind: str, **first) -> dict:
    """{"controls", and what the picture of this kind is drawn from}, ready for JSON.

    kind: of KINDS. first: where controls begin, by name; a number that a control does not list is
    added to its list. A control is {"name", "label", "slides", "first", "options"}: options are
    pairs of words and value, first is the position of the one to begin with.
    Raises ValueError for what can't be chosen.
    """
    return KINDS[kind](**first)


def page(kind: str, size: tuple[float, float] | None = None, **first) -> str:
    """A div with the numbers of an explorer, which `script` starts.

    size: in pixels, the width where it is hidden at first, and the most that its picture is high.
    """
    numbers = json.dumps(data(kind, **first), separators=(",", ":")).replace("<", "\\u003c")
    given = ' data-width="{}" style="--explorer-height: {}px"'.format(*size) if size else ""
    return (
        f'<div class="explorer" data-kind="{html.escape(kind)}"{given}><noscript>'
        f"{still(kind, data(kind, **first))._repr_html_()}</noscript>"
        f'<script type="application/json">{numbers}</script></div>'
    )


def script() -> str:
    """explorers.js for pages opened from a disk, which load no modules: it starts every `page`."""
    text = SCRIPT.read_text().replace(EXPORTS, "")
    return (
        f'(() => {{\n{text}\ndocument.addEventListener("DOMContentLoaded", exploreAll);\n}})();\n'
    )


def _control(name: str, label: str, options, first, slides: bool = False) -> dict:
    pairs = [list(one) if isinstance(one, tuple) else [f"{one}", one] for one in options]
    known = [value for _, value in pairs]
    if first not in known:
        if not (slides and isinstance(first, int) and min(known) < first < max(known)):
            raise ValueError(
                f"{label}: {first!r} can't be chosen, but {', '.join(map(str, known))}"
            )
        pairs = sorted([*pairs, [f"{first}", first]], key=lambda pair: pair[1])
    place = [value for _, value in pairs].index(first)
    return {"name": name, "label": label, "slides": slides, "first": place, "options": pairs}


def values(control: dict) -> list:
    """What can be chosen."""
    return [value for _, value in control["options"]]


def first_choice(data: dict) -> dict:
    """The values of all controls at the beginning, by name."""
    return {one["name"]: values(one)[one["first"]] for one in data["controls"]}


def moved(data: dict, choice: dict, name: str) -> dict:
    """All choices after the control of this name was moved, and is so in `choice`.

    A measured run brings the values of other controls, and is let go when one of these is moved.
    """
    after = dict(choice)
    for bringer, brings in data.get("brings", {}).items():
        brought = brings.get(choice[bringer], {})
        if name == bringer:
            after |= brought
        elif any(choice[other] != value for other, value in brought.items()):
            after[bringer] = NO_RUN
    return after


def doubling(least: int, most: int) -> list[int]:
    return [least * 2**power for power in range((most // least).bit_length())]


def links() -> dict[str, float]:
    """Bytes per second that a rank sends over some links, by name."""
    rates = {f"{gigabits} Gbit/s": gigabits * 1e9 / 8 for gigabits in GIGABITS}
    for row in published.table("network"):
        if row["link"].startswith("NVLink"):
            rates[row["link"]] = float(row["gb_s_per_gpu"]) * 1e9
    return rates


def ways() -> dict[str, tuple[str, str]]:
    """Each collective with each of its algorithms: {words: (collective, algorithm)}."""
    pairs = ((name, how) for name, hows in collectives.ALGORITHMS.items() for how in hows)
    return {f"{name} by {NAMES[how]}": (name, how) for name, how in pairs}


# A collective step by step

NAMES = {"ring": "a ring", "tree": "a tree", "pairwise": "pairs"}
REDUCING = ("all-reduce", "reduce-scatter")


def collective(
    collective: str = "all-reduce", algorithm: str = "ring", ranks: int = 4, step: int = 2
) -> dict:
    collectives.simulate(collective, algorithm, ranks)  # raises, with what there is
    runs = {
        f"{name} {count}": _run(collectives.simulate(*way, count))
        for name, way in ways().items()
        for count in collectives.RANKS
    }
    way = next(name for name, pair in ways().items() if pair == (collective, algorithm))
    steps = range(1 + max(len(run["steps"]) for run in runs.values()))
    step = min(step, len(runs[f"{way} {ranks}"]["steps"]))
    return {
        "controls": [
            _control("way", "collective", ways(), way),
            _control("ranks", "ranks", collectives.RANKS, ranks, slides=True),
            _control("step", "step", steps, step, slides=True),
        ],
        "runs": runs,
    }


def _run(run: Simulation) -> dict:
    """A simulation as numbers: contributions are bits, bit k is rank k's; chunks are positions.

    pairs: of an all-to-all, the rank that each chunk is from and the one it is for.
    """
    named = sorted({chunk for held in run.moments[-1] for chunk in held}, key=str)
    wanted = collectives.result(run.collective, run.ranks, run.chunks)
    number = {chunk: i for i, chunk in enumerate(named)}
    pairs = isinstance(named[0], tuple)
    steps = range(len(run.steps) + 1)
    return {
        "chunks": ["the tensor"] if run.chunks == 1 else [f"chunk {chunk}" for chunk in named],
        "pairs": [list(chunk) for chunk in named] if pairs else None,
        "adds": run.collective in REDUCING,
        "steps": [[[s.source, s.target, number[s.chunk]] for s in sends] for sends in run.steps],
        "moments": [[_bits(held, named) for held in moment] for moment in run.moments],
        "wanted": [_bits(held, named) for held in wanted],
        "sent": [run.sent(step) for step in steps],
        "phases": [phase(run, step) for step in steps],
        "key": key(run),
        "totals": list(totals(run)),
    }


def _bits(held: dict, chunks: list) -> list[int]:
    return [sum(1 << rank for rank in held.get(chunk, ())) for chunk in chunks]


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
    formula = collectives.formula(run.collective, run.algorithm, run.ranks)
    most, steps = (
        words if words == f"{formula[what]:.3g}" else f"{words} = {formula[what]:.3g}"
        for what, words in ((what, formula["words"][what]) for what in ("most", "steps"))
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


def _collective_still(data: dict, way: str, ranks: int, step: int) -> Table:
    run, rows = data["runs"][f"{way} {ranks}"], []
    names = run["chunks"]
    for rank, held in enumerate(run["moments"][step]):
        sends = [(chunk, to) for source, to, chunk in run["steps"][step - 1] if source == rank]
        row = {"rank": rank, "sends": [f"{names[c]} to {to}" for c, to in sends if step]}
        row["holds, and of which ranks"] = [
            f"{name} ({'+'.join(str(one) for one in range(ranks) if bits >> one & 1)})"
            for name, bits in zip(names, held, strict=True)
            if bits
        ]
        row = {name: ", ".join(what) if name != "rank" else what for name, what in row.items()}
        rows.append(row | {"has sent, S": run["sent"][step][rank]})
    when = f"{way}, {ranks} ranks, after step {step} of {len(run['steps'])}."
    return Table(rows, f"{when} {run['phases'][step]}")


# A step of DDP

MODELS = {  # name: (model, size)
    "GPT-2, 124 M": (model_shapes.GPT2, "small"),
    "GPT-2, 355 M": (model_shapes.GPT2, "medium"),
    "GPT-2, 774 M": (model_shapes.GPT2, "large"),
    "GPT-2, 1558 M": (model_shapes.GPT2, "xl"),
    "GPT tiny": ("gpt", "tiny"),
    "MLP tiny": ("mlp", "tiny"),
    "MLP small": ("mlp", "small"),
    "StripedLSTM small": ("striped-lstm", "small"),
    "ResNet-50": ("resnet50", "medium"),
}
ONE = 10_000  # MiB: more than any of these models
SIZES = (0.05, 0.2, 1, 2, 5, 10, None, 25, 50, 100, 200, ONE)  # MiB; None: DDP's own rule
CAPS = {{None: "default", ONE: "all"}.get(cap, f"{cap}"): cap for cap in SIZES}
DEFAULT = "default"
MODEL_OF_COSTS = (
    "Predicted by a model, nothing here is measured. An all-reduce costs what the alpha-beta model "
    "(Hockney, 1994) says of a ring: 2(N-1) messages of bytes/N; one bucket after another.",
    "The backward takes twice the forward, layers share the time by their operations. "
    "Communicating takes nothing from it. Gradients of 4 bytes. Without the optimizer. Buckets by "
    "DDP's rule. Default: the first bucket has 1 MiB, the others 25.",
)


def ddp_step(model: str = "GPT-2, 124 M", bucket: str = DEFAULT, ranks: int = 8) -> dict:
    millis = [(f"{count:,} ms", count / 1e3) for count in MILLISECONDS]
    micros = [(f"{count:,} µs", count / 1e6) for count in MICROSECONDS]
    rates, models = links(), MODELS
    return {
        "controls": [
            _control("bucket", "bucket cap, MiB", CAPS, bucket, slides=True),
            _control("model", "model", models, model),
            _control("ranks", "ranks", doubling(2, 1024), ranks, slides=True),
            _control("bytes_per_second", "link", rates.items(), rates["100 Gbit/s"]),
            _control("latency", "latency", micros, 20 / 1e6, slides=True),
            _control("compute_seconds", "forward + backward", millis, 200 / 1e3, slides=True),
        ],
        "models": {name: _buckets(name) for name in models},
        "notes": list(MODEL_OF_COSTS),
    }


@functools.cache
def _buckets(model: str) -> dict:
    """Forward and backward as shares of both; each bucket's bytes and when it is full."""
    layers = model_shapes.layers(*MODELS[model])
    found = {"buckets": {}}
    for name, cap in CAPS.items():
        step = ddp.step(
            layers, cap, ranks=2, bytes_per_second=1.0, latency=0.0, compute_seconds=1.0
        )
        found["buckets"][name] = {"sizes": step.sizes, "ready": _short(step.ready)}
    for way in ("forward", "backward"):
        found[way] = [_short((span.began, span.ended)) for span in getattr(step, way)]
    return found


def _short(numbers, digits: int = 7) -> list[float]:
    rounded = (float(f"{number:.{digits}g}") for number in numbers)
    return [int(number) if number.is_integer() else number for number in rounded]


def _ddp_still(data: dict, model: str, bucket: str, compute_seconds: float, **costs) -> Table:
    layers, rows = model_shapes.layers(*MODELS[model]), []
    for name, cap in CAPS.items():
        step = ddp.step(layers, cap, compute_seconds=compute_seconds, **costs)
        waits = time(step.ended - step.computed)
        row = {"bucket cap, MiB": name, "buckets": len(step.sizes), "waits": waits}
        rows.append(row | {"step": time(step.ended)})
    return Table(rows, f"{model} on {costs['ranks']} ranks. {data['notes'][0].split('.')[0]}.")


# A pipeline's schedule


def pipeline_schedule(
    measured: dict[str, list] | None = None,
    run: str = NO_RUN,
    schedule: str = "1f1b",
    ranks: int = 4,
    micro_batches: int = 8,
) -> dict:
    brings = {name: choices_of(spans) for name, spans in (measured or {}).items()}
    first = {"schedule": schedule, "ranks": ranks, "micro_batches": micro_batches}
    first |= brings.get(run, {})
    asked = [first, *brings.values()]
    names = list(pipeline_schedules.SCHEDULES)
    many = sorted({*MICRO_BATCHES, *(one["micro_batches"] for one in asked)})
    counts = sorted({*RANKS_OF_PIPELINE, *(one["ranks"] for one in asked)})
    controls = [
        _control("schedule", "schedule", names, first["schedule"]),
        _control("ranks", "ranks", counts, first["ranks"], slides=True),
        _control("micro_batches", "micro-batches", many, first["micro_batches"], slides=True),
        _control("run", "measured", [NO_RUN, *brings], run),
    ]
    choices = itertools.product(names, counts, many)
    return {
        "controls": controls if brings else controls[:-1],
        "brings": {"run": brings} if brings else {},
        "measured": {name: _beside_theory(spans) for name, spans in (measured or {}).items()},
        "micro_batches": many,
        "charts": {" ".join(map(str, choice)): _planned(*choice) for choice in choices},
    }


def choices_of(spans: list) -> dict:
    """The schedule, ranks and micro-batches of a measured run, from its actions.

    Raises ValueError if it followed no schedule's plan.
    """
    if (schedule := pipeline_schedules.which(spans)) is None:
        raise ValueError("these spans follow no schedule's plan: the run did something else")
    micro_batches = 1 + max(span.action.micro_batch for span in spans)
    ranks = len(pipeline_schedules.by_rank(spans))
    return {"schedule": schedule, "ranks": ranks, "micro_batches": micro_batches}


@functools.cache
def _planned(schedule: str, ranks: int, micro_batches: int) -> dict | str:
    """A schedule's timetable, or why there is none."""
    try:
        return _chart(pipeline_schedules.timetable(schedule, ranks, micro_batches))
    except pipeline_schedules.Impossible as why:
        return str(why)


def _beside_theory(spans: list) -> dict:
    """A measured run, and its schedule with the run's own median durations."""
    plan = pipeline_schedules.plan(**choices_of(spans))
    theory = pipeline_schedules.simulate(plan, **pipeline_schedules.measured_seconds(spans))
    return {"spans": _chart(spans), "theory": _chart(theory)}


def _chart(spans: list) -> dict:
    """Of each rank its actions: kind, whether of its second stage, micro-batch, begin, end."""
    by_rank = pipeline_schedules.by_rank(spans)
    stages = len({span.action.stage for span in by_rank[0]})
    ranks = []
    for mine in by_rank:
        lowest = min(span.action.stage for span in mine)
        ranks.append([[*_action(span, lowest), *_short((span.began, span.ended))] for span in mine])
    return {
        "ranks": ranks,
        "long": pipeline_schedules.makespan(spans),
        "bubble": pipeline_schedules.bubble(spans),
        "held": [most / stages for most in pipeline_schedules.most_in_flight(spans)],
        "says": pipeline_gantt.facts(spans),
    }


def _action(span, lowest: int) -> tuple[str, int, int]:
    return span.action.kind, int(span.action.stage != lowest), span.action.micro_batch


def _pipeline_still(
    data: dict, schedule: str, ranks: int, micro_batches: int, run: str = NO_RUN
) -> Table:
    measured = data["measured"].get(run)
    chart = measured["spans"] if measured else data["charts"][f"{schedule} {ranks} {micro_batches}"]
    head = f"{schedule}, {ranks} ranks, {micro_batches} micro-batches"
    if isinstance(chart, str):
        return Table([], f"{head}: {chart}.")
    rows = []
    for rank, actions in enumerate(chart["ranks"]):
        words = " ".join(f"{kind}{batch}" for kind, _, batch, *_ in actions)
        rows.append({"rank": rank, "forward F, backward B, its halves I and W": words})
    return Table(rows, f"{head}: {chart['says']}.")


# Memory of one rank by kind

FORMULAS = (
    "By formula, nothing here is measured. State: arXiv:1910.02054, section 5. Activations of a "
    "forward pass: arXiv:2205.05198.",
    "Left out: what is gathered for a moment (a unit of ZeRO-3, two with prefetch), DDP's buckets, "
    "gaps, the libraries. Pipeline: 1F1B, as many micro-batches in flight as stages. Sizes of GPU "
    "memory as sold; fits: the smallest that does.",
)


def memory(model: str = "7.5 B", ranks: int = 64, samples: int = 1) -> dict:
    precisions = [("bf16, state in fp32", "bf16 mixed"), ("fp32", "fp32")]
    batches = [("0 (state alone)", 0), *((f"{size}", size) for size in doubling(1, 32))]
    controls = [
        _control("model", "model", model_shapes.published_gpts(), model),
        _control("ranks", "ranks", doubling(1, 1024), ranks, slides=True),
        _control("precision", "precision", precisions, "bf16 mixed"),
        _control("samples", "micro-batch", batches, samples, slides=True),
        _control("kept", "activations", memory_costs.KEPT, list(memory_costs.KEPT)[1]),
        _control("shard", "HSDP rows of", doubling(2, 64), 8, slides=True),
    ]
    chosen = {control["name"]: values(control) for control in controls}
    state, rows, activations = {}, {}, {}
    for name, how, many in itertools.product(*(chosen[n] for n in ("model", "precision", "ranks"))):
        of, shape = f"{name}|{how}|{many}", model_shapes.published_gpts()[name]
        for kept in chosen["kept"]:
            held = memory_costs.by_strategy(shape, many, 2, how, 1, kept)
            activations[f"{of}|{kept}"] = _activations(held)
        state[of] = [[*_state(pair), _place(pair[0])] for pair in held.items() if not _hsdp(pair)]
        for shard in chosen["shard"]:
            held = memory_costs.by_strategy(shape, many, shard, how, 0, "all")
            rows[f"{of}|{shard}"] = next(_state(pair)[1] for pair in held.items() if _hsdp(pair))
    return {
        "controls": controls,
        "gpus": [int(row["gb"]) for row in published.table("gpu_memory")],
        "state": state,
        "rows": rows,
        "activations": activations,
        "notes": list(FORMULAS),
    }


SPLIT = ("tensor parallel", "pipeline, first stage")  # ranks share the model, not the batch


def _hsdp(pair: tuple) -> bool:
    return pair[0].startswith("HSDP")


def _place(name: str) -> int:
    """Where a strategy's activations are in the list of them."""
    return 1 + SPLIT.index(name) if name in SPLIT else 0


def _state(pair: tuple) -> list:
    """[strategy, bytes of parameters, gradients and optimizer state], or why it is not possible."""
    name, held = pair
    return [name, held if isinstance(held, str) else _short(list(held.values())[:3], 4)]


def _activations(held: dict) -> list[float]:
    """Of one sample: of every strategy that has the model in one piece, and of SPLIT's."""
    found = [held[name] for name in ("one device", *SPLIT)]
    return _short([0 if isinstance(one, str) else one["activations"] for one in found], 6)


def _memory_still(data: dict, model: str, ranks: int, shard: int, **choice) -> Table:
    held = memory_costs.by_strategy(model_shapes.published_gpts()[model], ranks, shard, **choice)
    rows = []
    for name, kinds in held.items():
        if isinstance(kinds, str):
            rows.append({"strategy": name, "fits": kinds})
            continue
        total = sum(kinds.values())
        fits = next((f"{gpu} GB" for gpu in data["gpus"] if total <= gpu * 1e9), "none")
        row = {"strategy": name, **{kind: size(held) for kind, held in kinds.items()}}
        rows.append(row | {"all": size(total), "fits": fits})
    return Table(rows, f"One of {ranks} ranks, {model}. {data['notes'][0].split('.')[0]}.")


KINDS = {each.__name__: each for each in (collective, ddp_step, memory, pipeline_schedule)}
STILLS = (_collective_still, _ddp_still, _memory_still, _pipeline_still)


def still(kind: str, data: dict) -> Table:
    """The first choice of an explorer as a table."""
    return dict(zip(KINDS, STILLS, strict=True))[kind](data, **first_choice(data))
