"""Rows of lesson 06b's tables: bubbles and what ranks hold, measured beside the prediction."""

import json

from bootcamp.costs import layer_cut
from bootcamp.costs import pipeline_schedules as schedules
from bootcamp.costs.model_shapes import NUMBER, VOCABULARY, ours
from bootcamp.records.runs import Run

TINY = ours()
WIDTH, TOKENS = TINY.hidden, TINY.sequence
# numbers of each layer for a sample: from the forward to the backward, and from half I to half W on
# top of it; the head holds its scores beside their logarithms
KEPT = [int(layer.kept_numbers()) for layer in TINY.parts]
KEPT[-1] += TOKENS * VOCABULARY
FOR_W = [0, *[TOKENS * 11 * WIDTH] * TINY.layers, TOKENS * 2 * WIDTH]


def slept(runs: dict[str, Run], micro_batches: int) -> list[dict]:
    """The bubbles of runs whose stages sleep equally long, by schedule.

    By formula: the papers', where they have one. By plan: the schedule, simulated.
    """
    rows = []
    for name, run in runs.items():
        spans = run.actions()
        row = {
            "schedule": name,
            "by formula": schedules.bubble_by_formula(name, run.world, micro_batches),
            "by plan": _planned(name, run, micro_batches),
            "measured": schedules.bubble(spans),
        }
        rows.append(row | {"handing over, ms": 1e3 * schedules.hand_over_seconds(spans)})
    return rows


def trained(runs: dict[str, Run], micro_batches: int) -> list[dict]:
    """The bubbles of runs that trained a model, by schedule.

    With their own times: the schedule, simulated with the median times that each stage took.
    """
    rows = []
    for name, run in runs.items():
        spans = run.actions()
        plan = schedules.plan(name, run.world, micro_batches)
        with_own = schedules.simulate(plan, **schedules.measured_seconds(spans))
        row = {"schedule": name, "plan, equal stages": _planned(name, run, micro_batches)}
        row["plan, their own times"] = schedules.bubble(with_own)
        rows.append(row | {"measured": schedules.bubble(spans)})
    return rows


def _planned(schedule: str, run: Run, micro_batches: int) -> float:
    return schedules.bubble(schedules.timetable(schedule, run.world, micro_batches))


def held_bytes(run: Run, ranks: int) -> list[int]:
    """What each rank of a run of snippets/pipeline_memory.py holds at its peak."""
    printed = [json.loads(run.output(rank).splitlines()[-1]) for rank in range(ranks)]
    return [max(max(before, after) for *_, before, after in seen) for seen in printed]


def held_by_formula(schedule: str, rank: int, ranks: int, samples: int, micro_batches: int) -> int:
    """The same by formula, for the tiny GPT: each rank's plan, followed action by action.

    Two things are held longer than a micro-batch is in flight: except under 1F1B, torch keeps what
    a rank has sent, outputs and gradients, until the step ends.
    """
    last = ranks * schedules.CHUNKS[schedule] - 1
    bytes_of_one = NUMBER * samples // micro_batches
    stays = 0 if schedule == "1f1b" else bytes_of_one * TOKENS * WIDTH
    outputs = {stage: stays * (stage < last) for stage in range(last + 1)}
    gradients = {stage: stays * (stage > 0) for stage in range(last + 1)}
    edges = layer_cut.equal(len(KEPT), last + 1)
    kept, between = (
        {stage: bytes_of_one * part for stage, part in enumerate(layer_cut.part_costs(own, edges))}
        for own in (KEPT, FOR_W)
    )
    between[0] = 0  # stage 0 has no half I
    order = schedules.plan(schedule, ranks, micro_batches)[rank]
    return schedules.most_held(order, kept, between, outputs, gradients)


def held(found: dict[str, list[int]], samples: int, micro_batches: int) -> list[dict]:
    """Megabytes that each rank holds at its peak, by schedule: {schedule: bytes of each rank}."""
    rows = []
    for name, of_ranks in found.items():
        ranks = len(of_ranks)
        flight = schedules.most_in_flight(schedules.timetable(name, ranks, micro_batches))
        for rank, measured in enumerate(of_ranks):
            formula = held_by_formula(name, rank, ranks, samples, micro_batches) / 1e6
            row = {"schedule": name, "rank": rank}
            row["micro-batches in flight"] = flight[rank] / schedules.CHUNKS[name]
            rows.append(row | {"formula": formula, "measured": measured / 1e6})
    return rows
