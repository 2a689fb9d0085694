"""Four of the lessons' simulators as explorers: `explorers.data("collective", ranks=5)`.

explorers.js draws them, in the lab (simulators.py), on the static pages and in the slides (`page`,
`script`). It gets its controls from here and, for every choice, what bootcamp.costs says.
"""

import functools
import html
import itertools
import json
from pathlib import Path

from bootcamp.costs import collectives, ddp, model_shapes, pipeline_schedules, published
from bootcamp.costs import memory as memory_theory
from bootcamp_lessons.diagrams import (
    collective_steps,
    memory_by_kind,
    pipeline_gantt,
    predicted_ddp_step,
)

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
        f'<div class="explorer" data-kind="{html.escape(kind)}"{given}><noscript>This picture '
        f'needs JavaScript.</noscript><script type="application/json">{numbers}</script></div>'
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
    return {f"{name} by {collective_steps.NAMES[how]}": (name, how) for name, how in pairs}


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


def _run(run: collectives.Simulation) -> dict:
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
        "adds": run.collective in collective_steps.REDUCING,
        "steps": [[[s.source, s.target, number[s.chunk]] for s in sends] for sends in run.steps],
        "moments": [[_bits(held, named) for held in moment] for moment in run.moments],
        "wanted": [_bits(held, named) for held in wanted],
        "sent": [run.sent(step) for step in steps],
        "phases": [collective_steps.phase(run, step) for step in steps],
        "key": collective_steps.key(run),
        "totals": list(collective_steps.totals(run)),
    }


def _bits(held: dict, chunks: list) -> list[int]:
    return [sum(1 << rank for rank in held.get(chunk, ())) for chunk in chunks]


def ddp_step(
    model: str = "GPT-2, 124 M", bucket: str = predicted_ddp_step.DEFAULT, ranks: int = 8
) -> dict:
    millis = [(f"{count:,} ms", count / 1e3) for count in MILLISECONDS]
    micros = [(f"{count:,} µs", count / 1e6) for count in MICROSECONDS]
    rates, models = links(), predicted_ddp_step.MODELS
    return {
        "controls": [
            _control("bucket", "bucket cap, MiB", predicted_ddp_step.CAPS, bucket, slides=True),
            _control("model", "model", models, model),
            _control("ranks", "ranks", doubling(2, 1024), ranks, slides=True),
            _control("bytes_per_second", "link", rates.items(), rates["100 Gbit/s"]),
            _control("latency", "latency", micros, 20 / 1e6, slides=True),
            _control("compute_seconds", "forward + backward", millis, 200 / 1e3, slides=True),
        ],
        "models": {name: _buckets(name) for name in models},
        "notes": list(predicted_ddp_step.MODEL_OF_COSTS),
    }


@functools.cache
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


def _short(numbers, digits: int = 7) -> list[float]:
    rounded = (float(f"{number:.{digits}g}") for number in numbers)
    return [int(number) if number.is_integer() else number for number in rounded]


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


def memory(model: str = "7.5 B", ranks: int = 64, samples: int = 1) -> dict:
    precisions = [("bf16, state in fp32", "bf16 mixed"), ("fp32", "fp32")]
    batches = [("0 (state alone)", 0), *((f"{size}", size) for size in doubling(1, 32))]
    controls = [
        _control("model", "model", memory_theory.models(), model),
        _control("ranks", "ranks", doubling(1, 1024), ranks, slides=True),
        _control("precision", "precision", precisions, "bf16 mixed"),
        _control("samples", "micro-batch", batches, samples, slides=True),
        _control("kept", "activations", memory_theory.KEPT, memory_theory.KEPT[1]),
        _control("shard", "HSDP rows of", doubling(2, 64), 8, slides=True),
    ]
    chosen = {control["name"]: values(control) for control in controls}
    state, rows, activations = {}, {}, {}
    for name, how, many in itertools.product(*(chosen[n] for n in ("model", "precision", "ranks"))):
        of, shape = f"{name}|{how}|{many}", memory_theory.models()[name]
        for kept in chosen["kept"]:
            held = memory_theory.held(shape, many, 2, how, 1, kept)
            activations[f"{of}|{kept}"] = _activations(held)
        state[of] = [[*_state(pair), _place(pair[0])] for pair in held.items() if not _hsdp(pair)]
        for shard in chosen["shard"]:
            held = memory_theory.held(shape, many, shard, how, 0, memory_theory.KEPT[0])
            rows[f"{of}|{shard}"] = next(_state(pair)[1] for pair in held.items() if _hsdp(pair))
    return {
        "controls": controls,
        "gpus": memory_theory.gpus(),
        "state": state,
        "rows": rows,
        "activations": activations,
        "notes": list(memory_by_kind.FORMULAS),
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


KINDS = {each.__name__: each for each in (collective, ddp_step, memory, pipeline_schedule)}
