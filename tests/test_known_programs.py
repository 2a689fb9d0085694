"""Lesson 13b: programs from elsewhere train what one process trains, and what they hide shows."""

import json
import re
import signal
from importlib.metadata import version

import pytest
from trained import baseline, proved, trained

from bootcamp.experiments import equality
from bootcamp.launcher import launch, process_tree
from bootcamp.paths import NOTEBOOKS, ROOT
from bootcamp.scripts.variants import variant
from bootcamp_lessons import excerpts
from bootcamp_lessons.labs import known_programs, orphan_lab

LSTM = {"model": "striped-lstm"}
RESNET = known_programs.RESNET
OPTIMIZERS = pytest.mark.parametrize("optimizer", ["sgd", "adamw"])


@pytest.mark.proves("striped")
@pytest.mark.parametrize("ranks", [2, 4])
def test_stripes_over_ranks_train_what_the_baseline_trains(ranks):
    """With both optimizers; each rank holds its part of the layers and sends what is said."""
    for proof in proved("striped", ranks, **LSTM):
        run = proof.run
        sent = run.ranks[0]["sent_bytes_per_step"]
        assert sent == pytest.approx(known_programs.predict_sent_bytes(run), rel=0.02)
        whole = proof.baseline.ranks[0]["parameter_bytes"]
        ends = 4 * (2 * 256 * 64 + 256)  # embedding and head are on every rank
        assert {rank["parameter_bytes"] for rank in run.ranks} == {ends + (whole - ends) // ranks}


def rejected(script, ranks=1, **flags):
    """What the proof says of a run that is another training."""
    same = {name: value for name, value in flags.items() if name in equality.SAME_SETTINGS}
    proof = equality.compare(trained(script, ranks, **flags), baseline(**same))
    return " ".join(row["compared"] for row in proof.failed)


SGD = {**equality.settings(2), "optimizer": "sgd"}


@pytest.mark.rejects("stripes without the sum of gradients")
def test_rejects_stripes_without_the_sum_of_gradients():
    line = "return same.to_local(grad_placements=[Partial()])"
    script = variant("striped", "striped_unsummed", {line: "return same.to_local()"})
    rows = rejected(script, 2, **LSTM, **SGD)
    assert "step's loss" in rows
    assert "final parameters" in rows
    assert "initial" not in rows


@pytest.mark.rejects("stripes that two ranks keep")
def test_rejects_stripes_of_which_one_belongs_to_nobody():
    """Rank 1 takes rank 0's stripes: the fingerprint has those twice and its own not at all."""
    line = "layer.lstm.keep(range(rank * stripes, (rank + 1) * stripes))"
    script = variant("striped", "striped_twice", {line: "layer.lstm.keep(range(stripes))"})
    assert "initial parameters" in rejected(script, 2, **LSTM, **SGD)


def test_a_batch_cut_along_time_is_another_training():
    script = known_programs.cut_along_time()
    run = trained(script, 1, **LSTM, **SGD)
    assert run.losses[-1] < run.losses[0], "it trains something"
    assert "step's loss" in rejected(script, **LSTM, **SGD)


def test_stripes_that_do_not_divide_are_refused():
    with pytest.raises(launch.RunRefused) as error:
        launch.launch("striped", 3, device="cpu", quiet=True, **LSTM)
    assert "4 stripes do not divide over 3 ranks" in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_stripes_go_on_over_other_ranks_than_saved_them(tmp_path):
    flags = {**LSTM, "device": "cpu", "global_batch": 12, "quiet": True}
    saved = launch.launch("striped", 2, steps=2, save=tmp_path / "saved", **flags)
    resumed = launch.launch("striped", 4, steps=4, resume=tmp_path / "saved", **flags)
    whole = baseline(**LSTM, **equality.settings(2), optimizer="adamw")
    assert saved.losses + resumed.losses == pytest.approx(whole.losses, abs=1e-5)


@OPTIMIZERS
def test_resnet_50_with_its_layers_over_two_devices(optimizer):
    run = trained("mp", 1, optimizer=optimizer, **RESNET)
    equality.same_training(run, baseline(optimizer=optimizer, **RESNET))


@pytest.mark.rejects("layers that the optimizer does not have")
def test_rejects_resnet_50_whose_second_half_is_not_trained():
    line = "optimizer = optimizers.build(args, model.parameters())"
    half = {line: line.replace("model.param", "model[:half].param")}
    script = variant("mp", "mp_first_half", half)
    assert "final parameters" in rejected(script, optimizer="sgd", **RESNET)


@OPTIMIZERS
def test_resnet_50_in_shards_with_synchronised_statistics(optimizer):
    run = trained(known_programs.add_sync_batch_norm("fsdp"), 2, optimizer=optimizer, **RESNET)
    equality.same_training(run, baseline(optimizer=optimizer, **RESNET))


@OPTIMIZERS
def test_resnet_50_in_replicas_with_frozen_statistics(optimizer):
    flags = {"optimizer": optimizer, **RESNET}
    run = trained(known_programs.freeze_batch_norm("dp_by_hand"), 1, **flags)
    alone = trained(known_programs.freeze_batch_norm("cpu"), 1, **flags)
    equality.same_training(run, alone)
    assert equality.compare(run, baseline(**flags)).failed, "frozen is another training"


@pytest.mark.rejects("shards with statistics of a share")
def test_rejects_resnet_50_with_statistics_of_a_share():
    rows = rejected("fsdp", 2, optimizer="sgd", **RESNET)
    assert "step's loss" in rows


@pytest.mark.skipif(not launch.available("deepspeed"), reason="DeepSpeed is not installed")
def test_a_checkpoint_of_deepspeed_becomes_one_state_dict():
    flags = {"model": "mlp", **equality.settings(2), "stage": 3}
    (told,) = excerpts.parse_printed(trained(known_programs.save_as_deepspeed(), 2, **flags))
    assert told == {"apart": 0.0, "other names": 0}
    line = "with deepspeed.zero.GatheredParameters(list(model.parameters())):"
    later = {line: f"next(model.parameters()).ds_tensor.add_(1)\n{line}"}
    changed = variant(known_programs.save_as_deepspeed(), "zero_saves_changed", later)
    (told,) = excerpts.parse_printed(trained(changed, 2, **flags))
    assert told["apart"] == pytest.approx(1.0), "what changes after saving is seen"


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


def test_two_orphans_are_found_and_ended():
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
def test_what_ran_where_is_true(row):
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


def test_a_row_that_names_what_is_not_there_is_found(monkeypatch):
    row = {**known_programs.read_programs()[0], "proof": "test_one_device.py::test_of_nothing"}
    with pytest.raises(AssertionError):
        test_what_ran_where_is_true(row)
    assert len(known_programs.programs()) == len(known_programs.read_programs())
