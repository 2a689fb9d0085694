"""Layers over devices: what each rank holds, what crosses the cut, who works when, what is refused.

The layer split over ranks is the pipeline script with a single micro-batch.
"""

import json
from argparse import Namespace

import pytest
from trained import trained

from bootcamp.costs import pipeline_schedules
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
def costs():
    run = trained(SRC / "snippets" / "stage_costs.py", 1, **SNIPPET)
    return [json.loads(line) for line in run.output(0).splitlines() if line.startswith("{")]


def test_a_rank_holds_the_state_of_its_stages_alone(split):
    """4 bytes a parameter, 4 its gradient, 8 AdamW's means, and 4 a tensor for its step count."""
    model = models.build(SHAPE)
    half = len(model) // 2
    for rank, part in zip(split.ranks, (model[:half], model[half:]), strict=True):
        tensors = list(part.parameters())
        count = sum(tensor.numel() for tensor in tensors)
        assert rank["parameter_bytes"] == rank["gradient_bytes"] == 4 * count
        assert rank["optimizer_bytes"] == 8 * count + 4 * len(tensors)


def test_activations_of_a_stage_by_formula(costs):
    tokens = 32 * SIZE["context"]
    width, heads = SIZE["width"], SIZE["heads"]
    numbers = {"embedding": width, "head": width + 2 + gpt.VOCABULARY}
    assert [row["stage"] for row in costs] == models.stage_names(SHAPE)
    for row in costs:
        said = 4 * tokens * numbers.get(row["stage"], 16 * width + heads + 4)
        assert row["activation_bytes"] == pytest.approx(said, rel=0.05), row["stage"]
        assert row["forward_seconds"] > 0
        assert row["backward_seconds"] > 0


def test_activations_and_their_gradient_cross_the_cut(split):
    crossing = BATCH * SIZE["context"] * SIZE["width"] * 4
    for rank in split.ranks:
        if rank["sent_bytes_per_step"] is not None:  # counted on Linux
            assert rank["sent_bytes_per_step"] == pytest.approx(crossing, rel=0.02)


def test_one_rank_works_at_a_time(split):
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


@pytest.mark.parametrize("device_ids", ["[0, 1]", "[rank]"])
def test_ddp_mp_with_device_ids_fails_at_once(device_ids):
    wrapped = "model = DistributedDataParallel(model, device_ids=None)"
    wrong = variant("ddp_mp", "ddp_mp_ids", {wrapped: wrapped.replace("None", device_ids)})
    with pytest.raises(launch.RankFailed, match="device_ids"):
        launch.launch(wrong, 2, device="cpu", steps=2, global_batch=BATCH, quiet=True)


DEVICES = "device, second_device = (torch.device(name) for name in context.devices)"
TWO_KINDS = {
    DEVICES: 'device, second_device = torch.device("cpu"), torch.device("meta")',
    "loss.backward()": "",
}
HOOK = "model[half].register_forward_pre_hook(lambda stage, inputs: inputs[0].to(second_device))"
LOSS = "loss = models.loss(model(inputs), targets.to(second_device))"


@pytest.mark.parametrize(
    ("name", "change", "status"),
    [
        ("whole", {}, "ok"),
        ("no_hook", {HOOK: ""}, "failed"),
        ("targets_left", {LOSS: LOSS.replace(".to(second_device)", "")}, "failed"),
        ("early_hook", {HOOK: HOOK.replace("[half]", "[half - 1]")}, "failed"),
    ],
)
def test_a_forward_over_two_kinds_of_devices_shows_what_was_not_moved(name, change, status):
    script = variant("mp", f"mp_{name}", {**TWO_KINDS, **change})
    run = launch.launch(script, 1, device="cpu", steps=1, quiet=True, raises=False)
    assert run.status == status
    if status == "failed":
        assert "expected device" in run.summary["error"]["message"]
        error, *lines = excerpts.trace_error(run).splitlines()
        assert "expected device" in error
        assert "models.loss" in lines[0]
