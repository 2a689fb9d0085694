"""Rows of lesson 06b's tables: bubbles and the bytes that ranks hold, measured and predicted."""

import json

from bootcamp.costs import memory
from bootcamp.costs import pipeline_schedules as schedules
from bootcamp.costs.model_shapes import course_model
from bootcamp.costs.plans import Plan
from bootcamp.records.runs import Run


def compare_bubbles(runs: dict[str, Run], micro_batches: int) -> list[dict]:
    """Compare bubbles: by formula, as planned for equal stages and with their own times, measured.

    The formula is of equally long stages too.
    """
    rows = []
    for name, run in runs.items():
        spans, plan = run.actions(), schedules.plan(name, run.world, micro_batches)
        own_times = schedules.simulate(plan, **schedules.median_seconds(spans))
        row = {
            "schedule": name,
            "by formula": schedules.bubble_by_formula(name, run.world, micro_batches),
            "by plan": schedules.bubble(schedules.timetable(name, run.world, micro_batches)),
            "by plan, own times": schedules.bubble(own_times),
            "measured": schedules.bubble(spans),
            "handing over, ms": 1e3 * schedules.hand_over_seconds(spans),
        }
        rows.append(row)
    return rows


def read_peak_bytes(run: Run, ranks: int) -> list[int]:
    """Return the bytes that each rank of snippets/pipeline_memory.py held at its peak."""
    printed = [json.loads(run.output(rank).splitlines()[-1]) for rank in range(ranks)]
    return [max(max(before, after) for *_, before, after in seen) for seen in printed]


def compare_peaks(found: dict[str, list[int]], samples: int, micro_batches: int) -> list[dict]:
    """Compare peaks {schedule: bytes of each rank} of the tiny GPT with the formula, in MB."""
    rows = []
    for name, of_ranks in found.items():
        ranks, stages = len(of_ranks), schedules.CHUNKS[name]
        flight = schedules.most_in_flight(schedules.timetable(name, ranks, micro_batches))
        split = {"pipeline": ranks, "schedule": name, "virtual": stages}
        plan = Plan(**split, batch=samples, micro_batch=samples // micro_batches)
        for rank, measured in enumerate(of_ranks):
            row = {"schedule": name, "rank": rank, "micro-batches in flight": flight[rank] / stages}
            row["formula"] = memory.pipeline_bytes(course_model(), plan, rank) / 1e6
            rows.append(row | {"measured": measured / 1e6})
    return rows
