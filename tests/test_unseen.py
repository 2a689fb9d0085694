"""Predictions for this machine: kernels by size, what frameworks add, runs not seen before."""

import json
from dataclasses import replace

import pytest

from bootcamp.costs import course, here
from bootcamp.experiments import unseen
from bootcamp.paths import LOGS
from bootcamp.records.runs import Run
from bootcamp.train import kernel_times

FORWARD, BACKWARD = 1e-3, 2e-3


def table(seconds):
    """A table of kernels on the axes of the real one. seconds: of (kind, sizes)."""
    axes = {kind: axes for kind, (_, axes) in kernel_times.KINDS.items()}
    axes["adamw"] = [kernel_times.TENSORS]
    corners = {
        kind: {key: seconds(kind, key) for key in kernel_times.keys(each)}
        for kind, each in axes.items()
    }
    return {
        kind: {
            "axes": each,
            "seconds": {",".join(map(str, key)): value for key, value in corners[kind].items()},
        }
        for kind, each in axes.items()
    }


def collectives(alpha=1e-4, beta=1e-9):
    sizes = [4096 * 4**power for power in range(6)]
    rows = [{"bytes": size, "seconds": alpha + beta * size} for size in sizes]
    return dict.fromkeys(("all-reduce", "all-gather", "reduce-scatter", "send"), rows)


@pytest.fixture
def flat():
    """A machine on which each kernel takes 1 ms forward, 2 ms backward, and AdamW 1 ms."""
    kernels = table(lambda kind, sizes: [FORWARD, 0.0 if kind == "adamw" else BACKWARD])
    return here.Machine(kernels, kernels, collectives(), {"4": 1e-5, "64": 1.6e-4})


def job(strategy, model="gpt", **sizes):
    sizes = {**unseen.SIZES[model], **sizes}
    return unseen.job(unseen._setting(strategy, model, sizes))


def test_a_measured_size_is_itself_and_those_between_follow_a_power():
    kernels = table(lambda kind, sizes: [1e-9 * sizes[0], 2e-9 * sizes[0]])
    machine = here.Machine(kernels, kernels, {}, {})
    for size in (2**13, 2**15, 2**17, 2**20, 2**23):  # the last is beyond what was measured
        forward, backward = machine.kernel("gelu", (size,), busy=False)
        assert forward == pytest.approx(1e-9 * size)
        assert backward == pytest.approx(2e-9 * size)


@pytest.mark.parametrize("model", ["gpt", "mlp"])
@pytest.mark.parametrize("strategy", ["cpu", "tp"])
def test_the_products_of_a_step_are_the_models_flops(model, strategy):
    if (strategy, model) == ("tp", "mlp"):
        return
    plan = job(strategy, model)
    samples, flops = plan.plan.batch, 0
    for layer in plan.layers:
        for (kind, sizes), count in here.of_layer(plan, layer, samples).items():
            if kind == "linear":
                flops += count * 2 * sizes[0] * sizes[1] * sizes[2]
            if kind == "attention":
                heads, context, width = sizes
                flops += count * 4 * heads * context**2 * width
    assert flops * plan.plan.tensor == samples * sum(layer.flops for layer in plan.layers)


def test_a_step_is_the_sum_of_its_kernels(flat):
    parts = here.seconds(job("cpu", layers=3), flat)
    # norms, projections, attention, out, up, GELU, down, biases
    block = 2 + 3 + 1 + 1 + 1 + 1 + 1 + 2
    kernels = 3 * block + 1 + 2 + 1  # embedding, head, loss
    sums = 3 * (2 * 2 + 2)  # residuals forward and backward, gradients of what three read
    assert parts["compute"] == pytest.approx(kernels * (FORWARD + BACKWARD) + sums * FORWARD)
    assert parts["optimizer"] == pytest.approx((3 * 12 + 5) * FORWARD)
    assert parts["communicate"] == parts["host"] == 0


def test_collectives_take_their_alpha_and_beta(flat):
    plan = job("tp", layers=2)
    calls = course.calls(plan)
    copied = FORWARD  # each is copied into what is sent
    expected = sum(count * (1e-4 + 1e-9 * size + copied) for (_, size), count in calls.items())
    assert here.seconds(plan, flat)["communicate"] == pytest.approx(expected, rel=0.01)
    slow = replace(flat, collectives=collectives(alpha=1e-2))
    assert here.seconds(plan, slow)["communicate"] > 5 * expected


def test_a_pipeline_waits_for_its_schedule(flat):
    quick = replace(flat, collectives=collectives(alpha=1e-9, beta=1e-15))
    plan = job("pp", layers=4)  # an embedding and two blocks; two blocks and a head
    stages = [here.computed(plan, plan.mine(rank)[0], 1, quick) for rank in range(2)]
    slow, fast = max(map(sum, stages)), min(map(sum, stages))
    took = here.seconds(plan, quick)["compute"]
    assert 4 * slow < took < 4 * slow + fast + 1e-3


def test_what_a_framework_adds_is_found_again(flat):
    """Nearly empty runs that take what kernels take, and known seconds for each layer on top."""
    known = {
        "layers": 1e-3,
        "ddp": 2e-4,
        "fsdp": 3e-3,
        "fsdp tensors": 4e-4,
        "tp": 5e-3,
        "tp ends": 7e-3,
    }
    machine = replace(flat, host={**known, "pp": 6e-4})
    measured = {
        key: {"median": sum(here.seconds(unseen.job(unseen.empty(key)), machine).values())}
        for key in unseen.EMPTY
    }
    found = unseen.host(flat, measured)
    assert found == pytest.approx(machine.host, rel=0.02)


def test_settings_are_drawn_by_the_seed():
    drawn = unseen.draw(1)
    assert drawn == unseen.draw(1) != unseen.draw(2)
    assert len({json.dumps(setting) for setting in drawn}) == 20
    strategies = [setting["strategy"] for setting in drawn]
    assert {name: strategies.count(name) for name in strategies} == dict.fromkeys(unseen.RANKS, 4)
    empty = [unseen.empty(key) for key in unseen.EMPTY]
    assert not [setting for setting in drawn if setting in empty]


@pytest.fixture
def trial(tmp_path, flat):
    """trial(run) -> the record of a trial on the machine that was made up."""

    def begin(run):
        return unseen.trial(
            tmp_path / "new", 1, measure=lambda: flat, run=run, say=lambda line: None
        )

    return begin


def test_predictions_are_there_before_the_runs_and_stay(trial, tmp_path):
    seen = []

    def run(setting):
        seen.append((tmp_path / "new" / "predictions.json").read_bytes())
        return {"median": 2 * setting["predicted_seconds"], "fastest": 1.0}

    record = trial(run)
    assert len(seen) == 20
    assert set(seen) == {(tmp_path / "new" / "predictions.json").read_bytes()}
    promised = [row["predicted_seconds"] for row in json.loads(seen[0])["settings"]]
    assert [row["predicted_seconds"] for row in record["rows"]] == promised
    assert [row["error"] for row in record["rows"]] == pytest.approx([-0.5] * 20)
    assert record["median_error"] == pytest.approx(0.5)
    started = [row["measured"]["started_unix_seconds"] for row in record["rows"]]
    assert record["predictions_written_unix_seconds"] <= min(started)
    assert json.loads((tmp_path / "new" / "unseen.json").read_text())["versions"]["torch"]


def test_predictions_that_were_changed_are_no_record(trial, tmp_path):
    def run(setting):
        path = tmp_path / "new" / "predictions.json"
        path.chmod(0o644)
        path.write_text(path.read_text().replace("1", "2"))
        return {"median": 1.0, "fastest": 1.0}

    with pytest.raises(ValueError, match="has changed since the runs began"):
        trial(run)
    assert not (tmp_path / "new" / "unseen.json").exists()


def test_a_trial_does_not_write_over_another(trial, tmp_path):
    (tmp_path / "new").mkdir()
    with pytest.raises(FileExistsError):
        trial(lambda setting: {"median": 1.0})


def test_the_median_error_is_of_sizes():
    rows = [{"predicted_seconds": value} for value in (0.9, 1.3, 1.0)]
    off = unseen.errors(rows, [{"median": 1.0}] * 3)
    assert off == pytest.approx([-0.1, 0.3, 0.0])
    assert unseen.median_error(off) == pytest.approx(0.1)


def test_a_setting_runs_as_it_is_predicted():
    """The script trains a model of the setting's own size."""
    setting = unseen._setting("cpu", "mlp", {**unseen.SIZES["mlp"], "layers": 3, "width": 48})
    found = unseen.run(setting)
    assert 0 < found["fastest"] <= found["median"]
    (rank,) = Run(LOGS / found["run"]).ranks
    said = course.held(unseen.job(setting))
    for kind, recorded in (("parameters", "parameter"), ("optimizer", "optimizer")):
        assert said[kind] == rank[f"{recorded}_bytes"]
    assert said["activations"] == rank["activation_bytes"]


def test_kernels_are_measured_on_the_axes_that_are_looked_up(monkeypatch):
    small = {
        kind: (make, [axis[:2] for axis in axes])
        for kind, (make, axes) in kernel_times.KINDS.items()
    }
    monkeypatch.setattr(kernel_times, "KINDS", small)
    monkeypatch.setattr(kernel_times, "BUDGET", 0.0)
    found = kernel_times.measure()
    machine = here.Machine(found, found, {}, {})
    assert set(found) == {*small, "adamw"}
    for kind, (_, axes) in small.items():
        assert min(machine.kernel(kind, tuple(axis[0] for axis in axes), False)) > 0


def test_of_two_measurements_the_shorter_time_counts():
    first = {"linear": {"axes": [[1, 2]], "seconds": {"1": [3.0, 5.0]}}}
    second = {"linear": {"axes": [[1, 2]], "seconds": {"1": [4.0, 2.0]}}}
    said = unseen._shorter(first, second)
    assert said == {"linear": {"axes": [[1, 2]], "seconds": {"1": [3.0, 2.0]}}}
