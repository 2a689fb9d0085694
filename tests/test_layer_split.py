"""Layers over devices: what crosses the cut, who works when, where to cut, what was not moved.

The layer split over ranks is the pipeline script with a single micro-batch.
"""

import json
from argparse import Namespace

import pytest
from trained import trained

from bootcamp.costs import layer_cut, pipeline_schedules
from bootcamp.launcher import launch
from bootcamp.paths import SRC
from bootcamp.scripts.variants import variant
from bootcamp.train import models
from bootcamp.train.models import gpt
from bootcamp_lessons import excerpts
from bootcamp_lessons.diagrams import pipelines

BATCH, RANKS = 24, 2
SIZE = gpt.SIZES["tiny"]
SHAPE = Namespace(model="gpt", size="tiny", seed=0, dtype="float32")
SNIPPET = {"device": "cpu", "quiet": True}


@pytest.fixture(scope="module")
def split():
    flags = {"schedule": "gpipe", "micro_batches": 1, "global_batch": BATCH, "steps": 6}
    return trained("pp", RANKS, **flags)


@pytest.fixture(scope="module")
def costs_of_stages():
    run = trained(SRC / "snippets" / "stage_costs.py", 1, **SNIPPET)
    return [json.loads(line) for line in run.output(0).splitlines() if line.startswith("{")]


def test_activations_of_a_stage_by_formula(costs_of_stages):
    tokens = 32 * SIZE["context"]
    width, heads = SIZE["width"], SIZE["heads"]
    numbers = {"embedding": width, "head": width + 2 + gpt.VOCABULARY}
    assert [row["stage"] for row in costs_of_stages] == models.stage_names(SHAPE)
    for row in costs_of_stages:
        said = 4 * tokens * numbers.get(row["stage"], 16 * width + heads + 4)
        assert row["activation_bytes"] == pytest.approx(said, rel=0.05), row["stage"]
        assert row["forward_seconds"] > 0
        assert row["backward_seconds"] > 0


def test_activations_and_their_gradient_cross_the_cut(split):
    crossing = BATCH * SIZE["context"] * SIZE["width"] * 4
    for rank in split.ranks:
        if rank["sent_bytes_per_step"] is not None:  # counted on Linux
            assert rank["sent_bytes_per_step"] == pytest.approx(crossing, rel=0.02)


def test_split_ranks_work_one_at_a_time(split):
    assert pipelines.most_active_ranks(split) == 1
    busy = [1 - share for share in pipeline_schedules.idle_share(split.actions())]
    assert 0 < sum(busy) <= 1
    assert "rank 1 backward" in pipelines.one_step(split).alt


def test_ddp_takes_a_model_on_several_devices_without_ids():
    run = trained(SRC / "snippets" / "ddp_device_ids.py", 2, **SNIPPET)
    lines = run.output(0).splitlines()
    answers = dict(zip(lines[::2], lines[1::2], strict=False))
    assert "single element" in answers["two device_ids"]
    assert "but got device_ids [0]" in answers["a CPU model, one device_id"]
    assert "same type of devices" in answers["two kinds of devices"]
    assert answers["a CPU model, device_ids=None"].strip() == "accepted"


DEVICES = "device, second_device = (torch.device(name) for name in context.devices)"
TWO_KINDS = {
    DEVICES: 'device, second_device = torch.device("cpu"), torch.device("meta")',
    "loss.backward()": "",
}
HOOK = "model[half].register_forward_pre_hook(lambda stage, inputs: inputs[0].to(second_device))"


def test_forward_over_two_kinds_of_devices_shows_what_was_not_moved():
    """Lesson 06 shows the whole script, which passes, and other places of the hook."""
    early = {HOOK: HOOK.replace("[half]", "[half - 1]")}
    script = variant("mp", "mp_early_hook", {**TWO_KINDS, **early})
    run = launch.launch(script, 1, device="cpu", steps=1, quiet=True, raises=False)
    assert "expected device" in run.summary["error"]["message"]
    error, *lines = excerpts.trace_error(run).splitlines()
    assert "expected device" in error
    assert "models.loss" in lines[0]


def test_best_cut_has_the_cheapest_most_expensive_part():
    assert layer_cut.best([1, 1, 1, 1], 2) == (0, 2, 4)
    assert layer_cut.best([0, 1, 1, 4], 2) == (0, 3, 4)
    assert layer_cut.part_costs([0, 1, 1, 4], (0, 3, 4)) == [2, 4]
    assert layer_cut.equal(14, 4) == (0, 3, 7, 10, 14)


def test_head_of_gpt_2_is_worth_more_than_four_blocks():
    costs = layer_cut.gpt2("small")
    assert costs["time"][0] == 0
    assert 4 < costs["time"][-1] / costs["time"][1] < 5
    rows = layer_cut.compare(costs, 4)
    assert rows[0]["stages"] == "3 + 4 + 3 + 4"
    assert rows[0]["time, largest / mean"] == pytest.approx(1.813, abs=1e-3)
    for row, kind in zip(rows[1:], costs, strict=True):
        best = min(each[f"{kind}, largest / mean"] for each in rows)
        assert row[f"{kind}, largest / mean"] == best
