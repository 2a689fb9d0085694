"""Four of the lessons' simulators for pages without a kernel: `explorers.data("collective")`.

Each gives explorers.js its controls and, for every choice, what bootcamp.theory says. The lessons'
own simulators (simulators.py) draw any choice; these have fewer, since each is written down.
"""

import itertools
from pathlib import Path

from bootcamp.theory import collectives, ddp, memory, model_shapes, pipeline_schedules
from bootcamp_lessons import simulators
from bootcamp_lessons.diagrams import collective_steps, pipeline_gantt, predicted_ddp_step

SCRIPT = Path(__file__).with_suffix(".js")
RANKS_OF_ALL_TO_ALL = 4  # a chunk for each pair of ranks is a row: more are too many to look at
DDP_MODELS = ("GPT-2, 124 M", "GPT-2, 774 M", "GPT tiny", "ResNet-50")
MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 32)
RANKS_OF_PIPELINE = (1, 2, 3, 4, 6, 8)
RANKS_OF_MEMORY = (1, 2, 4, 8, 16, 64, 256, 1024)
SAMPLES = (0, 1, 8)


def data(kind: str) -> dict:
    """{"controls", and what the picture of this kind is drawn from}, ready for JSON.

    kind: of KINDS. A control is {"name", "label", "slides", "first", "options"}: options are pairs
    of words and value, first is the position of the one to begin with.
    """
    return KINDS[kind]()


def _control(name: str, label: str, options: list, first, slides: bool = False) -> dict:
    pairs = [list(one) if isinstance(one, tuple) else [f"{one}", one] for one in options]
    place = [value for _, value in pairs].index(first)
    return {"name": name, "label": label, "slides": slides, "first": place, "options": pairs}


def _collective() -> dict:
    ways = [(name, how) for name, hows in collectives.ALGORITHMS.items() for how in hows]
    runs = {
        f"{name} {how} {ranks}": _run(collectives.simulate(name, how, ranks))
        for name, how in ways
        for ranks in collectives.RANKS
        if name != "all-to-all" or ranks <= RANKS_OF_ALL_TO_ALL
    }
    longest = max(len(run["steps"]) for run in runs.values())
    return {
        "controls": [
            _control(
                "way",
                "collective",
                [(" by ".join(way), list(way)) for way in ways],
                ["all-reduce", "ring"],
            ),
            _control("ranks", "ranks", list(collectives.RANKS), 4, slides=True),
            _control("step", "step", list(range(longest + 1)), 2, slides=True),
        ],
        "most_ranks": {"all-to-all": RANKS_OF_ALL_TO_ALL},
        "runs": runs,
    }


def _run(run: collectives.Simulation) -> dict:
    """A simulation as numbers: contributions are bits, bit k is rank k's; chunks are positions."""
    named = sorted({chunk for held in run.moments[-1] for chunk in held}, key=str)
    wanted = collectives.result(run.collective, run.ranks, run.chunks)
    number = {chunk: i for i, chunk in enumerate(named)}
    words = ["the tensor"] if run.chunks == 1 else [_named(chunk) for chunk in named]
    return {
        "names": words,
        "adds": run.collective in collective_steps.REDUCING,
        "steps": [[[s.source, s.target, number[s.chunk]] for s in sends] for sends in run.steps],
        "moments": [[_bits(held, named) for held in moment] for moment in run.moments],
        "wanted": [_bits(held, named) for held in wanted],
        "phases": [collective_steps.phase(run, step) for step in range(len(run.steps) + 1)],
        "totals": list(collective_steps.totals(run)),
    }


def _named(chunk) -> str:
    return f"{chunk[0]}→{chunk[1]}" if isinstance(chunk, tuple) else f"chunk {chunk}"


def _bits(held: dict, chunks: list) -> list[int]:
    return [sum(1 << rank for rank in held.get(chunk, ())) for chunk in chunks]


def _ddp_step() -> dict:
    millis = [(f"{count:,} ms", count / 1e3) for count in simulators.MILLISECONDS]
    micros = [(f"{count:,} µs", count / 1e6) for count in simulators.MICROSECONDS]
    links, caps = simulators.links(), predicted_ddp_step.CAPS
    ranks = simulators.doubling(2, 1024)
    return {
        "controls": [
            _control("bucket", "bucket cap, MiB", list(caps), "default", slides=True),
            _control("model", "model", list(DDP_MODELS), DDP_MODELS[0]),
            _control("ranks", "ranks", ranks, 8, slides=True),
            _control("link", "link", list(links), "100 Gbit/s"),
            _control("latency", "latency", micros, 20 / 1e6, slides=True),
            _control("compute", "forward + backward", millis, 200 / 1e3, slides=True),
        ],
        "links": links,
        "models": {name: _buckets(name) for name in DDP_MODELS},
    }


def _buckets(model: str) -> dict:
    """Forward and backward as shares of both; each bucket's bytes and when it is full."""
    layers = model_shapes.layers(*predicted_ddp_step.MODELS[model])
    found = {"buckets": {}}
    for name, cap in predicted_ddp_step.CAPS.items():
        step = ddp.step(
            layers, cap, ranks=2, bytes_per_second=1.0, latency=0.0, compute_seconds=1.0
        )
        found["buckets"][name] = {"sizes": step.sizes, "ready": _short(step.ready)}
    for way in ("forward", "backward"):
        found[way] = [_short((span.began, span.ended)) for span in getattr(step, way)]
    return found


def _short(values) -> list[float]:
    return [float(f"{value:.7g}") for value in values]


def _pipeline_schedule() -> dict:
    schedules = list(pipeline_schedules.SCHEDULES)
    choices = itertools.product(schedules, RANKS_OF_PIPELINE, MICRO_BATCHES)
    return {
        "controls": [
            _control("schedule", "schedule", schedules, "1f1b"),
            _control("ranks", "ranks", list(RANKS_OF_PIPELINE), 4, slides=True),
            _control("micro_batches", "micro-batches", list(MICRO_BATCHES), 8, slides=True),
        ],
        "charts": {
            f"{name} {ranks} {many}": _chart(name, ranks, many) for name, ranks, many in choices
        },
    }


def _chart(schedule: str, ranks: int, micro_batches: int) -> dict | str:
    """The spans of a schedule's timetable, or why there is none."""
    try:
        spans = pipeline_schedules.timetable(schedule, ranks, micro_batches)
    except pipeline_schedules.Impossible as why:
        return str(why)
    lowest = [min(s.action.stage for s in mine) for mine in pipeline_schedules.by_rank(spans)]
    rows = [
        [
            s.rank,
            s.action.kind,
            int(s.action.stage != lowest[s.rank]),
            s.action.micro_batch,
            *_short((s.began, s.ended)),
        ]
        for s in spans
    ]
    says = pipeline_gantt.facts(spans)
    return {"long": pipeline_schedules.makespan(spans), "spans": rows, "says": says}


def _memory() -> dict:
    models, kept = memory.models(), memory.KEPT
    choices = itertools.product(models, RANKS_OF_MEMORY, memory.PRECISIONS, SAMPLES, kept)
    held = {}
    for model, ranks, precision, samples, what in choices:
        bars = memory.held(models[model], ranks, 8, precision, samples, what)
        held["|".join(map(str, (model, ranks, precision, samples, what)))] = [
            [name, kinds if isinstance(kinds, str) else [float(f"{n:.4g}") for n in kinds.values()]]
            for name, kinds in bars.items()
        ]
    return {
        "controls": [
            _control("model", "model", list(models), "7.5 B"),
            _control("ranks", "ranks", list(RANKS_OF_MEMORY), 64, slides=True),
            _control("precision", "precision", list(memory.PRECISIONS), "bf16 mixed"),
            _control("samples", "micro-batch", [("0 (state alone)", 0), 1, 8], 1, slides=True),
            _control("kept", "activations kept", list(kept), kept[1]),
        ],
        "gpus": memory.gpus(),
        "held": held,
    }


KINDS = {
    "collective": _collective,
    "ddp_step": _ddp_step,
    "memory": _memory,
    "pipeline_schedule": _pipeline_schedule,
}
