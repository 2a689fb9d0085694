"""Lesson 13b: programs from elsewhere train what one process trains, and what they hide shows."""

import json
import re
import signal
from importlib.metadata import version

import pytest
from trained import baseline, trained

from bootcamp.costs import memory, model_shapes, plans, sharding, traffic
from bootcamp.experiments import equality
from bootcamp.launcher import launch, process_tree
from bootcamp.paths import NOTEBOOKS, ROOT
from bootcamp.scripts.variants import variant
from bootcamp_lessons import excerpts
from bootcamp_lessons.labs import known_programs, orphan_lab

LSTM = {"model": "striped-lstm"}
RESNET = known_programs.RESNET
SGD = {**equality.settings(2), "optimizer": "sgd"}


@pytest.mark.parametrize("ranks", [2, 4])
def test_stripes_over_ranks_hold_and_send_what_is_said(ranks):
    run, whole = trained("striped", ranks, **LSTM, **SGD), baseline(**LSTM, **SGD)
    sent = run.ranks[0]["sent_bytes_per_step"]
    assert sent == pytest.approx(known_programs.predict_sent_bytes(run), rel=0.02)
    ends = 4 * (2 * 256 * 64 + 256)  # embedding and head are on every rank
    layers = whole.ranks[0]["parameter_bytes"] - ends
    assert {rank["parameter_bytes"] for rank in run.ranks} == {ends + layers // ranks}


def test_batch_cut_along_time_is_another_training():
    run = trained(known_programs.cut_along_time(), 1, **LSTM, **SGD)
    assert run.losses[-1] < run.losses[0], "it trains something"
    failed = equality.compare(run, baseline(**LSTM, **SGD)).failed
    assert any("step's loss" in row["compared"] for row in failed)


@pytest.mark.parametrize("optimizer", equality.PROVEN_WITH)
def test_resnet_50_in_replicas_equals_one_with_frozen_statistics(optimizer):
    flags = {"optimizer": optimizer, **RESNET}
    run = trained(known_programs.freeze_batch_norm("dp_by_hand"), 1, **flags)
    alone = trained(known_programs.freeze_batch_norm("cpu"), 1, **flags)
    equality.same_training(run, alone)
    assert equality.compare(run, baseline(**flags)).failed, "frozen is another training"


@pytest.mark.skipif(not launch.available("deepspeed"), reason="DeepSpeed is not installed")
def test_checkpoint_of_deepspeed_becomes_one_state_dict():
    flags = {"model": "mlp", **equality.settings(2), "stage": 3}
    (told,) = excerpts.parse_printed(trained(known_programs.save_as_deepspeed(), 2, **flags))
    assert told == {"apart": 0.0, "other names": 0}
    line = "with deepspeed.zero.GatheredParameters(list(model.parameters())):"
    later = {line: f"next(model.parameters()).ds_tensor.add_(1)\n{line}"}
    changed = variant(known_programs.save_as_deepspeed(), "zero_saves_changed", later)
    (told,) = excerpts.parse_printed(trained(changed, 2, **flags))
    assert told["apart"] == pytest.approx(1.0), "what changes after saving is seen"


@pytest.mark.skipif(not launch.available("megatron"), reason="Megatron-core is not installed")
def test_megatron_holds_and_sends_what_the_formulas_say():
    run = trained("megatron", 2, optimizer="adamw", steps=4, global_batch=8)
    held = memory.rank_memory(*plans.of_run(run.config))
    for rank in run.ranks:
        assert rank["parameter_bytes"] == held["parameters"]
        assert rank["gradient_bytes"] == held["gradients"]
        assert rank["optimizer_bytes"] == held["optimizer"]
        assert rank["activation_bytes"] == pytest.approx(held["activations"], rel=0.05)
    sent = run.ranks[0]["sent_bytes_per_step"]
    theory = traffic.tensor_calls(model_shapes.course_model(), 8)
    assert sent is None or sent == pytest.approx(sharding.bytes_of_calls(theory, 2), rel=0.05)


def test_lightnings_strategies_train_what_the_bare_script_trains():
    """As recorded with the version at hand: what ran, and what was refused in whose words."""
    found = json.loads(known_programs.LIGHTNING.read_text())
    if launch.available("lightning"):
        assert found["lightning"] == version("lightning"), "record them anew"
    rows = {row["name"]: row for row in found["rows"]}
    assert list(rows) == list(known_programs.STRATEGIES)
    ran = {name for name, row in rows.items() if "refusal" not in row}
    assert ran == {"ddp", "ddp_spawn", "ddp_fork", "ddp_notebook"}
    assert all(rows[name]["processes"] == 2 and rows[name]["loss_apart"] < 1e-5 for name in ran)
    refused = {name: row["refusal"] for name, row in rows.items() if name not in ran}
    assert all(re.match(r"(Value|Runtime)Error: \w", text) for text in refused.values())
    for _, script in known_programs.STRATEGIES.values():
        assert (ROOT / "src" / script).exists(), script
    assert len(known_programs.strategies()) == len(rows)


def test_orphans_are_found_and_ended():
    """By TERM the one that heeds it; the other one by the end of the block, an error's too."""
    orphans = orphan_lab.Orphans()

    def cell():
        with orphans:
            assert orphans.find_with_tools().column("found") == [2, 2, 0], (
                "they still have a parent"
            )
            orphans.lose_their_parent()
            assert orphans.find_with_tools().column("found")[:2] == [2, 2]
            orphans.end(signal.SIGTERM)
            raise KeyboardInterrupt(orphans.look("after TERM"))

    with pytest.raises(KeyboardInterrupt) as error:
        cell()
    polite, stubborn = error.value.args[0]
    assert (polite["process"], polite["port"], polite["file"]) == ("gone", "free", "gone")
    assert (stubborn["process"], stubborn["port"], stubborn["file"]) == ("alive", "taken", "there")
    assert not any(process_tree.is_alive(each.pid) for each in orphans.processes.values())
    assert not any(file.exists() for file in orphans.files.values())


@pytest.mark.parametrize("row", known_programs.read_programs(), ids=lambda row: row["program"])
def test_table_of_programs_is_true(row):
    """Its lesson, file and proof exist, and the lesson names the file, its script or the helper."""
    assert (ROOT / row["file"]).exists()
    (lesson,) = NOTEBOOKS.glob(f"{row['lesson']}_*.ipynb")
    name = row["file"].rpartition("/")[2].partition(".")[0].removeprefix("_train_").strip("_")
    shorter = name.partition("_")[2] or name  # as in serve_triton
    assert re.search(rf"\b({name}|{shorter})\b", lesson.read_text()), row["program"]
    place, _, test = row["proof"].partition("::")
    if not test:
        assert (ROOT / place).exists()
        return
    assert f"def {test}(" in (ROOT / "tests" / place).read_text()
