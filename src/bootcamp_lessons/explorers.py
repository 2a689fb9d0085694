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


def data(kind: str, **first) -> dict:
    """{"controls", and what the picture of this kind is drawn from}, ready for JSON.

    kind: of KINDS. first: where controls begin, by name. A control is {"name", "label", "slides",
    "first", "options"}: options are pairs of words and value, first is the position of the one to
    begin with. Raises ValueError for what can't be chosen.
    """
    made = KINDS[kind]()
    if unknown := ", ".join(first.keys() - first_choice(made).keys()):
        raise ValueError(f"{kind} has no control {unknown}")
    for control in made["controls"]:
        name, known = control["name"], values(control)
        chosen = first.get(name, known[control["first"]])
        if chosen not in known:
            expected = ", ".join(map(str, known))
            raise ValueError(f"{name}: {chosen!r} can't be chosen, but {expected}")
        control["first"] = known.index(chosen)
    return made


def page(kind: str, size: tuple[float, float] | None = None, **first) -> str:
    """A div with the numbers of an explorer, which `script` starts.

    size: in pixels, the width where it is hidden at first, and the most that its picture is high.
    """
    given = data(kind, **first)
    numbers = json.dumps(given, separators=(",", ":")).replace("<", "\\u003c")
    look = ' data-width="{}" style="--explorer-height: {}px"'.format(*size) if size else ""
    return (
        f'<div class="explorer" data-kind="{html.escape(kind)}"{look}><noscript>'
        f"{still(kind, given)._repr_html_()}</noscript>"
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
    place = [value for _, value in pairs].index(first)
    return {"name": name, "label": label, "slides": slides, "first": place, "options": pairs}


def values(control: dict) -> list:
    """What can be chosen."""
    return [value for _, value in control["options"]]


def first_choice(data: dict) -> dict:
    """The values of all controls at the beginning, by name."""
    return {one["name"]: values(one)[one["first"]] for one in data["controls"]}


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
    return {f"{name} by {NAMES[how]}": (name, how) for name, how in collectives.PLANS}


# A collective step by step

NAMES = {"ring": "a ring", "tree": "a tree", "pairwise": "pairs"}
REDUCING = ("all-reduce", "reduce-scatter")


def collective() -> dict:
    runs = {
        f"{name} {count}": _run(collectives.simulate(*way, count))
        for name, way in ways().items()
        for count in collectives.RANKS
    }
    steps = range(1 + max(len(run["steps"]) for run in runs.values()))
    return {
        "controls": [
            _control("way", "collective", ways(), "all-reduce by a ring"),
            _control("ranks", "ranks", collectives.RANKS, 4, slides=True),
            _control("step", "step", steps, 2, slides=True),
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

    def bits(held: dict) -> list[int]:
        return [sum(1 << rank for rank in held.get(chunk, ())) for chunk in named]

    return {
        "chunks": ["the tensor"] if run.chunks == 1 else [f"chunk {chunk}" for chunk in named],
        "pairs": [list(chunk) for chunk in named] if pairs else None,
        "adds": run.collective in REDUCING,
        "steps": [[[s.source, s.target, number[s.chunk]] for s in sends] for sends in run.steps],
        "moments": [[bits(held) for held in moment] for moment in run.moments],
        "wanted": [bits(held) for held in wanted],
        "sent": [run.sent(step) for step in steps],
        "phases": [_phase(run, step) for step in steps],
        "key": KEYS.get(run.collective, KEY.format("from 0: it is rank 0's")),
        "totals": list(_totals(run)),
    }


ASKED = {
    "broadcast": "Only rank 0 has the tensor; every rank is to get it.",
    "all-reduce": "Each rank has its own tensor; every rank is to get the sum of all.",
    "reduce-scatter": "Each rank has its own tensor; rank k is to get chunk k of their sum.",
    "all-gather": "Rank k has chunk k; every rank is to get all chunks.",
    "all-to-all": "Each rank has a chunk for every rank, itself included.",
}
# how boxes are read
KEY = "{}. Bold on green: as asked for. Thick frame: sent or received in this step."
KEYS = dict.fromkeys(REDUCING, KEY.format("0+2: the sum of rank 0's and rank 2's"))
KEYS["all-to-all"] = (
    "0→2: from rank 0, for rank 2. Left: to be sent. Right, bold on green: received. "
    "Thick frame: in this step."
)


def _phase(run: Simulation, step: int) -> str:
    """What this step is there for, in words."""
    if step == 0:
        return ASKED[run.collective]
    done = " All is done." if step == len(run.steps) else ""
    if run.collective == "all-to-all":
        ordinal = {1: "next", 2: "2nd", 3: "3rd"}.get(step, f"{step}th")
        return f"Step {step}: each rank sends to the {ordinal} rank after it.{done}"
    adds, half = run.steps[step - 1][0].adds, ""
    if run.collective == "all-reduce" and run.algorithm == "ring":
        half = f" (this half is {'a reduce-scatter' if adds else 'an all-gather'})"
    elif run.algorithm == "tree":
        half = f", {'towards' if adds else 'away from'} rank 0"
    return f"Step {step}: {'add up' if adds else 'pass on'}{half}.{done}"


def _totals(run: Simulation) -> tuple[str, str]:
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
    run = data["runs"][f"{way} {ranks}"]
    step = min(step, len(run["steps"]))
    names, sends = run["chunks"], run["steps"][step - 1] if step else []

    def holds(rank: int) -> str:
        held = zip(names, run["moments"][step][rank], strict=True)
        parts = {name: [f"{one}" for one in range(ranks) if bits >> one & 1] for name, bits in held}
        return ", ".join(f"{name} ({'+'.join(of)})" for name, of in parts.items() if of)

    columns = {
        "rank": lambda rank: rank,
        "sends": lambda rank: ", ".join(f"{names[c]} to {to}" for of, to, c in sends if of == rank),
        "holds, and of which ranks": holds,
        "has sent, S": lambda rank: run["sent"][step][rank],
    }
    when = f"{way}, {ranks} ranks, after step {step} of {len(run['steps'])}."
    return Table.of(range(ranks), columns, f"{when} {run['phases'][step]}")


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
MODEL_OF_COSTS = (
    "Predicted by a model, nothing here is measured. An all-reduce costs what the alpha-beta model "
    "(Hockney, 1994) says of a ring: 2(N-1) messages of bytes/N; one bucket after another.",
    "The backward takes twice the forward, layers share the time by their operations. "
    "Communicating takes nothing from it. Gradients of 4 bytes. Without the optimizer. Buckets by "
    "DDP's rule. Default: the first bucket has 1 MiB, the others 25.",
)


def ddp_step() -> dict:
    millis = [(f"{count:,} ms", count / 1e3) for count in MILLISECONDS]
    micros = [(f"{count:,} µs", count / 1e6) for count in MICROSECONDS]
    rates = links()
    return {
        "controls": [
            _control("bucket", "bucket cap, MiB", CAPS, "default", slides=True),
            _control("model", "model", MODELS, "GPT-2, 124 M"),
            _control("ranks", "ranks", doubling(2, 1024), 8, slides=True),
            _control("bytes_per_second", "link", rates.items(), rates["100 Gbit/s"]),
            _control("latency", "latency", micros, 20 / 1e6, slides=True),
            _control("compute_seconds", "forward + backward", millis, 200 / 1e3, slides=True),
        ],
        "models": {name: _buckets(name) for name in MODELS},
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
    layers = model_shapes.layers(*MODELS[model])
    steps = {
        name: ddp.step(layers, cap, compute_seconds=compute_seconds, **costs)
        for name, cap in CAPS.items()
    }
    columns = {
        "bucket cap, MiB": lambda name: name,
        "buckets": lambda name: len(steps[name].sizes),
        "waits": lambda name: time(steps[name].ended - steps[name].computed),
        "step": lambda name: time(steps[name].ended),
    }
    caption = f"{model} on {costs['ranks']} ranks. {data['notes'][0].split('.')[0]}."
    return Table.of(list(steps), columns, caption)


# A pipeline's schedule


def pipeline_schedule() -> dict:
    names = list(pipeline_schedules.SCHEDULES)
    choices = itertools.product(names, RANKS_OF_PIPELINE, MICRO_BATCHES)
    return {
        "controls": [
            _control("schedule", "schedule", names, "1f1b"),
            _control("ranks", "ranks", RANKS_OF_PIPELINE, 4, slides=True),
            _control("micro_batches", "micro-batches", MICRO_BATCHES, 8, slides=True),
        ],
        "micro_batches": list(MICRO_BATCHES),
        "charts": {" ".join(map(str, choice)): _chart(*choice) for choice in choices},
    }


@functools.cache
def _chart(schedule: str, ranks: int, micro_batches: int) -> dict | str:
    """Of each rank its actions: kind, whether of its second stage, micro-batch, begin, end.

    Where there is no timetable, why.
    """
    try:
        spans = pipeline_schedules.timetable(schedule, ranks, micro_batches)
    except pipeline_schedules.Impossible as why:
        return str(why)
    by_rank = pipeline_schedules.by_rank(spans)
    stages = len({span.action.stage for span in by_rank[0]})
    drawn = []
    for mine in by_rank:
        lowest = min(span.action.stage for span in mine)
        drawn.append(
            [
                [kind, int(stage != lowest), number, *_short((began, ended))]
                for _, (kind, stage, number), began, ended in mine
            ]
        )
    return {
        "ranks": drawn,
        "long": pipeline_schedules.makespan(spans),
        "bubble": pipeline_schedules.bubble(spans),
        "held": [most / stages for most in pipeline_schedules.most_in_flight(spans)],
        "says": pipeline_gantt.facts(spans),
    }


def _pipeline_still(data: dict, schedule: str, ranks: int, micro_batches: int) -> Table:
    chart = data["charts"][f"{schedule} {ranks} {micro_batches}"]
    head = f"{schedule}, {ranks} ranks, {micro_batches} micro-batches"
    if isinstance(chart, str):
        return Table([], f"{head}: {chart}.")
    columns = {
        "rank": lambda rank: rank,
        "forward F, backward B, its halves I and W": lambda rank: " ".join(
            f"{kind}{batch}" for kind, _, batch, *_ in chart["ranks"][rank]
        ),
    }
    return Table.of(range(ranks), columns, f"{head}: {chart['says']}.")


# Memory of one rank by kind

FORMULAS = (
    "By formula, nothing here is measured. State: arXiv:1910.02054, section 5. Activations of a "
    "forward pass: arXiv:2205.05198.",
    "Left out: what is gathered for a moment (a unit of ZeRO-3, two with prefetch), DDP's buckets, "
    "gaps, the libraries. Pipeline: 1F1B, as many micro-batches in flight as stages. Sizes of GPU "
    "memory as sold; fits: the smallest that does.",
)


def memory() -> dict:
    precisions = [("bf16, state in fp32", "bf16 mixed"), ("fp32", "fp32")]
    batches = [("0 (state alone)", 0), *((f"{size}", size) for size in doubling(1, 32))]
    controls = [
        _control("model", "model", model_shapes.published_gpts(), "7.5 B"),
        _control("ranks", "ranks", doubling(1, 1024), 64, slides=True),
        _control("precision", "precision", precisions, "bf16 mixed"),
        _control("samples", "micro-batch", batches, 1, slides=True),
        _control("kept", "activations", memory_costs.KEPT, list(memory_costs.KEPT)[1]),
        _control("shard", "HSDP rows of", doubling(2, 64), 8, slides=True),
    ]
    chosen = {control["name"]: values(control) for control in controls}
    gpts, state, rows, activations = model_shapes.published_gpts(), {}, {}, {}
    for name, how, many in itertools.product(*(chosen[n] for n in ("model", "precision", "ranks"))):
        key, shape = f"{name}|{how}|{many}", gpts[name]
        for kept in chosen["kept"]:
            held = memory_costs.by_strategy(shape, many, chosen["shard"][0], how, 1, kept)
            activations[f"{key}|{kept}"] = _activations(held)
        state[key] = [
            [strategy, _state(kinds), 1 + SPLIT.index(strategy) if strategy in SPLIT else 0]
            for strategy, kinds in held.items()
            if not strategy.startswith("HSDP")
        ]
        for shard in chosen["shard"]:
            held = memory_costs.by_strategy(shape, many, shard, how, 0, kept)
            rows[f"{key}|{shard}"] = _state(held[f"HSDP, rows of {shard}"])
    return {
        "controls": controls,
        "gpus": [int(row["gb"]) for row in published.table("gpu_memory")],
        "state": state,
        "rows": rows,
        "activations": activations,
        "notes": list(FORMULAS),
    }


SPLIT = ("tensor parallel", "pipeline, first stage")  # ranks share the model, not the batch


def _state(kinds: dict | str) -> list[float] | str:
    """Bytes of parameters, gradients and optimizer state, or why a strategy is not possible."""
    return kinds if isinstance(kinds, str) else _short(list(kinds.values())[:3], 4)


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


def still(kind: str, data: dict) -> Table:
    """The first choice of an explorer as a table."""
    stills = (_collective_still, _ddp_still, _memory_still, _pipeline_still)
    return dict(zip(KINDS, stills, strict=True))[kind](data, **first_choice(data))
