"""Data of four explorers, pictures with controls: `explorers.make_data("collective", ranks=5)`.

explorers.js draws them in notebooks (simulators.py), on static pages and in slides, from the
numbers of bootcamp.costs for every choice. Without JavaScript a table shows the initial choice.
"""

import functools
import itertools
from pathlib import Path

from bootcamp.costs import collectives, model_shapes, overlap, pipeline_schedules, published
from bootcamp.costs import memory as memory_costs
from bootcamp.costs.collectives import Simulation
from bootcamp.table import Table
from bootcamp.units import size, time
from bootcamp_lessons.diagrams import pipelines

SCRIPT = Path(__file__).with_suffix(".js")
GIGABITS = (1, 10, 25, 100, 200, 400)  # a second: what networks are sold with
MILLISECONDS = (2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
MICROSECONDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 32)
RANKS_OF_PIPELINE = (1, 2, 3, 4, 6, 8)


def make_data(kind: str, **initial) -> dict:
    """Return {"controls": [...], ...}: an explorer's controls and the numbers it draws, for JSON.

    kind: a key of KINDS. initial: {control's name: initial value}. A control is {"name", "label",
    "is_slider", "initial", "options"}: options are (label, value) pairs, "initial" an index into
    them. Raises ValueError for an unknown control or value.
    """
    build, _ = KINDS[kind]
    data = build()
    if unknown := ", ".join(initial.keys() - initial_values(data).keys()):
        raise ValueError(f"{kind} has no control {unknown}")
    for control in data["controls"]:
        name, known = control["name"], values(control)
        chosen = initial.get(name, known[control["initial"]])
        if chosen not in known:
            expected = ", ".join(map(str, known))
            raise ValueError(f"{name}: {chosen!r} can't be chosen, but {expected}")
        control["initial"] = known.index(chosen)
    return data


def _make_control(name: str, label: str, options, initial, is_slider: bool = False) -> dict:
    pairs = [list(each) if isinstance(each, tuple) else [f"{each}", each] for each in options]
    control = {"name": name, "label": label, "is_slider": is_slider, "options": pairs}
    return control | {"initial": values(control).index(initial)}


def values(control: dict) -> list:
    return [value for _, value in control["options"]]


def initial_values(data: dict) -> dict:
    """Return {name of a control: its initial value}."""
    return {each["name"]: values(each)[each["initial"]] for each in data["controls"]}


def doubling(least: int, most: int) -> list[int]:
    """Return least, 2 * least, 4 * least and so on, up to most."""
    return [least * 2**power for power in range((most // least).bit_length())]


def links() -> dict[str, float]:
    """Return {name of a link: bytes per second that a rank sends}."""
    rates = {f"{gigabits} Gbit/s": gigabits * 1e9 / 8 for gigabits in GIGABITS}
    for row in published.table("network"):
        if row["link"].startswith("NVLink"):
            rates[row["link"]] = float(row["gb_s_per_gpu"]) * 1e9
    return rates


def list_algorithms() -> dict[str, tuple[str, str]]:
    """Return {name: (collective, algorithm)}."""
    return {f"{name} by {ALGORITHM_NAMES[how]}": (name, how) for name, how in collectives.PLANS}


ALGORITHM_NAMES = {"ring": "a ring", "tree": "a tree", "pairwise": "pairs"}
REDUCING = ("all-reduce", "reduce-scatter")


def _build_collective() -> dict:
    runs = {
        f"{name} {count}": _encode_simulation(collectives.simulate(*way, count))
        for name, way in list_algorithms().items()
        for count in collectives.RANKS
    }
    steps = range(1 + max(len(run["steps"]) for run in runs.values()))
    return {
        "controls": [
            _make_control("way", "collective", list_algorithms(), "all-reduce by a ring"),
            _make_control("ranks", "ranks", collectives.RANKS, 4, is_slider=True),
            _make_control("step", "step", steps, 2, is_slider=True),
        ],
        "runs": runs,
    }


def _encode_simulation(run: Simulation) -> dict:
    """Encode a simulation: chunks as indices, and what a rank holds as a bitmask for each chunk.

    Bit k of the mask: rank k's contribution is in the chunk. pairs: (source, target) of chunks.
    """
    named = sorted({chunk for held in run.moments[-1] for chunk in held}, key=str)
    wanted = collectives.make_result(run.collective, run.ranks, run.chunks)
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
        "phases": [_describe_step(run, step) for step in steps],
        "key": LEGENDS.get(run.collective, LEGEND.format("from 0: it is rank 0's")),
        "totals": list(_describe_totals(run)),
    }


PURPOSES = {
    "broadcast": "Only rank 0 has the tensor; every rank is to get it.",
    "all-reduce": "Each rank has its own tensor; every rank is to get the sum of all.",
    "reduce-scatter": "Each rank has its own tensor; rank k is to get chunk k of their sum.",
    "all-gather": "Rank k has chunk k; every rank is to get all chunks.",
    "all-to-all": "Each rank has a chunk for every rank, itself included.",
}
# how the boxes of a picture are read
LEGEND = "{}. Bold on green: as asked for. Thick frame: sent or received in this step."
LEGENDS = dict.fromkeys(REDUCING, LEGEND.format("0+2: the sum of rank 0's and rank 2's"))
LEGENDS["all-to-all"] = (
    "0→2: from rank 0, for rank 2. Left: to be sent. Right, bold on green: received. "
    "Thick frame: in this step."
)


def _describe_step(run: Simulation, step: int) -> str:
    if step == 0:
        return PURPOSES[run.collective]
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


def _describe_totals(run: Simulation) -> tuple[str, str]:
    """Say how much is sent in how many steps: counted, and by formula."""
    formula = collectives.formula(run.collective, run.algorithm, run.ranks)
    most, steps = (
        words if words == f"{value:.3g}" else f"{words} = {value:.3g}"
        for words, value in (formula["most"], formula["steps"])
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


def _tabulate_collective(data: dict, way: str, ranks: int, step: int) -> Table:
    run = data["runs"][f"{way} {ranks}"]
    step = min(step, len(run["steps"]))
    names, sends = run["chunks"], run["steps"][step - 1] if step else []

    def holds(rank: int) -> str:
        held = zip(names, run["moments"][step][rank], strict=True)
        parts = {name: [f"{k}" for k in range(ranks) if bits >> k & 1] for name, bits in held}
        return ", ".join(f"{name} ({'+'.join(its)})" for name, its in parts.items() if its)

    columns = {
        "rank": lambda rank: rank,
        "sends": lambda rank: ", ".join(
            f"{names[chunk]} to {target}" for source, target, chunk in sends if source == rank
        ),
        "holds, and of which ranks": holds,
        "has sent, S": lambda rank: run["sent"][step][rank],
    }
    when = f"{way}, {ranks} ranks, after step {step} of {len(run['steps'])}."
    return Table.of(range(ranks), columns, f"{when} {run['phases'][step]}")


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
ONE_BUCKET = 10_000  # MiB: more than any of these models
BUCKET_CAPS_MIB = (0.05, 0.2, 1, 2, 5, 10, None, 25, 50, 100, 200, ONE_BUCKET)  # None: DDP's rule
BUCKET_CAP_NAMES = {None: "default", ONE_BUCKET: "all"}
BUCKET_CAPS = {BUCKET_CAP_NAMES.get(cap, f"{cap}"): cap for cap in BUCKET_CAPS_MIB}
DDP_NOTES = (
    "Predicted by a model, nothing here is measured. An all-reduce costs what the alpha-beta model "
    "(Hockney, 1994) says of a ring: 2(N-1) messages of bytes/N; one bucket after another.",
    "The backward takes twice the forward, layers share the time by their operations. "
    "Communicating takes nothing from it. Gradients of 4 bytes. Without the optimizer. Buckets by "
    "DDP's rule. Default: the first bucket has 1 MiB, the others 25.",
)


def _build_ddp_step() -> dict:
    millis = [(f"{count:,} ms", count / 1e3) for count in MILLISECONDS]
    micros = [(f"{count:,} µs", count / 1e6) for count in MICROSECONDS]
    rates = links()
    return {
        "controls": [
            _make_control("bucket", "bucket cap, MiB", BUCKET_CAPS, "default", is_slider=True),
            _make_control("model", "model", MODELS, "GPT-2, 124 M"),
            _make_control("ranks", "ranks", doubling(2, 1024), 8, is_slider=True),
            _make_control("bytes_per_second", "link", rates.items(), rates["100 Gbit/s"]),
            _make_control("latency", "latency", micros, 20 / 1e6, is_slider=True),
            _make_control("compute_seconds", "forward + backward", millis, 0.2, is_slider=True),
        ],
        "models": {name: _list_buckets(name) for name in MODELS},
        "notes": list(DDP_NOTES),
    }


@functools.cache
def _list_buckets(model: str) -> dict:
    """List when layers are computed and buckets become full, in units of forward plus backward."""
    layers = model_shapes.layers(*MODELS[model])
    costs = {"ranks": 2, "bytes_per_second": 1.0, "latency": 0.0, "compute_seconds": 1.0}
    steps = {name: overlap.predict_step(layers, cap, **costs) for name, cap in BUCKET_CAPS.items()}
    buckets = {
        name: {"sizes": step.sizes, "ready": _round_numbers(step.ready)}
        for name, step in steps.items()
    }
    passes = {"forward": steps["default"].forward, "backward": steps["default"].backward}
    spans = {
        name: [_round_numbers((span.began, span.ended)) for span in layers]
        for name, layers in passes.items()
    }
    return {"buckets": buckets, **spans}


def _round_numbers(numbers, digits: int = 7) -> list[float]:
    rounded = (float(f"{number:.{digits}g}") for number in numbers)
    return [int(number) if number.is_integer() else number for number in rounded]


def _tabulate_buckets(
    data: dict, model: str, bucket: str, compute_seconds: float, **costs
) -> Table:
    layers = model_shapes.layers(*MODELS[model])
    steps = {
        name: overlap.predict_step(layers, cap, compute_seconds=compute_seconds, **costs)
        for name, cap in BUCKET_CAPS.items()
    }
    columns = {
        "bucket cap, MiB": lambda name: name,
        "buckets": lambda name: len(steps[name].sizes),
        "waits": lambda name: time(steps[name].ended - steps[name].backward_end),
        "step": lambda name: time(steps[name].ended),
    }
    caption = f"{model} on {costs['ranks']} ranks. {data['notes'][0].split('.')[0]}."
    return Table.of(list(steps), columns, caption)


def _build_pipeline_schedule() -> dict:
    names = list(pipeline_schedules.SCHEDULES)
    choices = itertools.product(names, RANKS_OF_PIPELINE, MICRO_BATCHES)
    return {
        "controls": [
            _make_control("schedule", "schedule", names, "1f1b"),
            _make_control("ranks", "ranks", RANKS_OF_PIPELINE, 4, is_slider=True),
            _make_control("micro_batches", "micro-batches", MICRO_BATCHES, 8, is_slider=True),
        ],
        "micro_batches": list(MICRO_BATCHES),
        "charts": {" ".join(map(str, choice)): _lay_out_schedule(*choice) for choice in choices},
    }


@functools.cache
def _lay_out_schedule(schedule: str, ranks: int, micro_batches: int) -> dict | str:
    """Return a schedule's chart, or the sentence that says why it is not possible.

    ranks: each rank's [kind, whether in its second stage, micro-batch, begin, end].
    """
    try:
        spans = pipeline_schedules.timetable(schedule, ranks, micro_batches)
    except pipeline_schedules.Impossible as why:
        return str(why)
    by_rank = pipeline_schedules.group_by_rank(spans)
    stages = [sorted({span.action.stage for span in mine}) for mine in by_rank]
    return {
        "ranks": [
            [
                [kind, int(stage != lowest), number, *_round_numbers((began, ended))]
                for _, (kind, stage, number), began, ended in mine
            ]
            for mine, (lowest, *_) in zip(by_rank, stages, strict=True)
        ],
        "long": pipeline_schedules.makespan(spans),
        "bubble": pipeline_schedules.bubble(spans),
        "held": [most / len(stages[0]) for most in pipeline_schedules.most_in_flight(spans)],
        "says": pipelines.describe(spans),
    }


def _tabulate_schedule(data: dict, schedule: str, ranks: int, micro_batches: int) -> Table:
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


MEMORY_NOTES = (
    "By formula, nothing here is measured. State: arXiv:1910.02054; activations: arXiv:2205.05198.",
    "Left out: what is gathered for a moment (a unit of ZeRO-3, two with prefetch), DDP's buckets, "
    "gaps, the libraries. Pipeline: 1F1B, as many micro-batches in flight as stages. Sizes of GPU "
    "memory as sold; fits: the smallest that does.",
)


def _build_memory() -> dict:
    precisions = [("bf16, state in fp32", "bf16 mixed"), ("fp32", "fp32")]
    batches = [("0 (state alone)", 0), *((f"{count}", count) for count in doubling(1, 32))]
    controls = [
        _make_control("model", "model", model_shapes.published_gpts(), "7.5 B"),
        _make_control("ranks", "ranks", doubling(1, 1024), 64, is_slider=True),
        _make_control("precision", "precision", precisions, "bf16 mixed"),
        _make_control("samples", "micro-batch", batches, 1, is_slider=True),
        _make_control("kept", "activations", memory_costs.KEPT, list(memory_costs.KEPT)[1]),
        _make_control("shard", "HSDP rows of", doubling(2, 64), 8, is_slider=True),
    ]
    chosen = {control["name"]: values(control) for control in controls}
    gpts, state, hsdp_states, activations = model_shapes.published_gpts(), {}, {}, {}
    model_precision_ranks = (chosen[name] for name in ("model", "precision", "ranks"))
    for model, precision, ranks in itertools.product(*model_precision_ranks):
        key, shape = f"{model}|{precision}|{ranks}", gpts[model]
        for kept in chosen["kept"]:
            shard = chosen["shard"][0]
            by_strategy = memory_costs.by_strategy(shape, ranks, shard, precision, 1, kept)
            activations[f"{key}|{kept}"] = _activation_bytes(by_strategy)
        state[key] = [
            [
                strategy,
                _state_bytes(kinds),
                1 + SPLIT_MODEL.index(strategy) if strategy in SPLIT_MODEL else 0,
            ]
            for strategy, kinds in by_strategy.items()
            if not strategy.startswith("HSDP")
        ]
        for shard in chosen["shard"]:
            by_strategy = memory_costs.by_strategy(shape, ranks, shard, precision, 0, kept)
            hsdp_states[f"{key}|{shard}"] = _state_bytes(by_strategy[f"HSDP, rows of {shard}"])
    return {
        "controls": controls,
        "gpus": [int(row["gb"]) for row in published.table("gpu_memory")],
        "state": state,
        "rows": hsdp_states,
        "activations": activations,
        "notes": list(MEMORY_NOTES),
    }


SPLIT_MODEL = ("tensor parallel", "pipeline, first stage")  # they split the model, not the batch


def _state_bytes(kinds: dict | str) -> list[float] | str:
    """Return bytes of parameters, gradients and optimizer, or why a strategy is not possible."""
    return kinds if isinstance(kinds, str) else _round_numbers(list(kinds.values())[:3], 4)


def _activation_bytes(by_strategy: dict) -> list[float]:
    """Return activation bytes of one sample: on one device, and with each of SPLIT_MODEL."""
    found = [by_strategy[name] for name in ("one device", *SPLIT_MODEL)]
    counted = [0 if isinstance(kinds, str) else kinds["activations"] for kinds in found]
    return _round_numbers(counted, 6)


def _tabulate_memory(data: dict, model: str, ranks: int, shard: int, **choice) -> Table:
    shape, rows = model_shapes.published_gpts()[model], []
    for name, kinds in memory_costs.by_strategy(shape, ranks, shard, **choice).items():
        if isinstance(kinds, str):
            rows.append({"strategy": name, "fits": kinds})
            continue
        total = sum(kinds.values())
        fits = next((f"{gpu} GB" for gpu in data["gpus"] if total <= gpu * 1e9), "none")
        row = {"strategy": name, **{kind: size(count) for kind, count in kinds.items()}}
        rows.append(row | {"all": size(total), "fits": fits})
    return Table(rows, f"One of {ranks} ranks, {model}. {data['notes'][0].split('.')[0]}.")


KINDS = {  # how its data are built, how a choice is tabulated
    "collective": (_build_collective, _tabulate_collective),
    "ddp_step": (_build_ddp_step, _tabulate_buckets),
    "memory": (_build_memory, _tabulate_memory),
    "pipeline_schedule": (_build_pipeline_schedule, _tabulate_schedule),
}


def make_fallback_table(kind: str, data: dict) -> Table:
    """Return an explorer's initial state as a table, shown where there is no JavaScript."""
    _, tabulate = KINDS[kind]
    return tabulate(data, **initial_values(data))
