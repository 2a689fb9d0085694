"""Models in parts over devices and ranks: the same training, clear refusals, no waiting ranks."""

import time

import pytest
from trained import PROOF, proved, trained

from bootcamp.experiments import equality
from bootcamp.launcher import launch
from bootcamp.scripts.variants import variant
from bootcamp.train import pipeline_stages

FLAGS = {"device": "cpu", "global_batch": 24}  # 24 divides into many micro-batches
# two steps: the second one's update has the momentum of the first; 8 samples are 8 micro-batches
SGD = {**FLAGS, "global_batch": 8, "steps": 2, "optimizer": "sgd", "quiet": True}
BASE = {name: SGD[name] for name in ("steps", "global_batch", "optimizer")}
LESSON_06B = {"steps": 4, "global_batch": 32}
LESSON_08C = {"steps": 3, "global_batch": 24, "micro_batches": 2}  # AdamW rounds less


@pytest.mark.proves("mp", "ddp_mp")
@pytest.mark.parametrize(
    ("script", "ranks", "model"),
    [("mp", 1, "gpt"), ("mp", 1, "striped-lstm"), ("ddp_mp", 4, "gpt")],
)
def test_a_model_cut_over_two_devices(script, ranks, model):
    own = {} if model == "gpt" else {"model": model}
    proved(script, ranks, **own)


@pytest.mark.proves("pp")
@pytest.mark.parametrize("schedule", pipeline_stages.NAMES_IN_TORCH)
def test_every_schedule_on_two_ranks(schedule):
    """With both optimizers; lesson 06b names the micro-batches of the runs with SGD."""
    for own in ({}, {"micro_batches": 8, "optimizer": "sgd"}):
        run = trained("pp", 2, schedule=schedule, **LESSON_06B, **own)
        base = equality.baseline(**LESSON_06B, optimizer=run.config["optimizer"])
        equality.same_training(run, base)


@pytest.mark.proves("pp")
@pytest.mark.parametrize("schedule", pipeline_stages.NAMES_IN_TORCH)
def test_every_schedule_on_four_ranks(schedule):
    run = trained("pp", 4, schedule=schedule, micro_batches=8, **SGD)
    equality.same_training(run, equality.baseline(**BASE))
    held = [rank["stages"] for rank in run.ranks]
    assert sum(map(len, held)) == 8, "each stage of the model lies on one rank"


@pytest.mark.proves("pp")
@pytest.mark.parametrize(("model", "dtype"), [("striped-lstm", "float32"), ("mlp", "float64")])
def test_other_models_in_a_pipeline(model, dtype):
    """The MLP in float64: micro-batches round differently, and its ReLUs have a kink."""
    own = {} if dtype == "float32" else {"dtype": dtype}
    proved("pp", 2, model=model, **own)


@pytest.mark.proves("tp")
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("ranks", [2, 4])
def test_tensor_parallelism(ranks, sequence_parallel):
    """With both optimizers on two ranks."""
    own = {"sequence_parallel": True} if sequence_parallel else {}
    if ranks == 2:
        proved("tp", ranks, **PROOF, **own)
        return
    run = trained("tp", ranks, **SGD, **own)
    equality.same_training(run, equality.baseline(**BASE))


def test_shared_heads_of_keys_over_tensor_ranks():
    """Grouped-query attention: two query heads and one head of keys on each of two ranks."""
    run = trained("tp", 2, kv_heads=2, **SGD)
    equality.same_training(run, equality.baseline(kv_heads=2, **BASE))


@pytest.mark.proves("ddp_pp")
@pytest.mark.parametrize("schedule", ["gpipe", "zero-bubble", "dualpipe"])
def test_data_by_pipeline(schedule):
    """With both optimizers by the schedule that is the script's own."""
    if schedule == "gpipe":
        proved("ddp_pp", 4, mesh="2x2", **LESSON_06B)
        return
    run = trained("ddp_pp", 4, schedule=schedule, **SGD)
    equality.same_training(run, equality.baseline(**BASE))


@pytest.mark.proves("fsdp_tp")
@pytest.mark.parametrize(("mesh", "ranks"), [("2x2", 4), ("2x1", 2), ("1x2", 2)])
def test_data_by_tensor(mesh, ranks):
    run = trained("fsdp_tp", ranks, mesh=mesh, sequence_parallel=True, **SGD)
    equality.same_training(run, equality.baseline(**BASE))
    assert run.config["mesh"] == dict(
        zip(("data", "tensor"), map(int, mesh.split("x")), strict=True)
    )


@pytest.mark.proves("3d", "fsdp_pp")
@pytest.mark.parametrize(("script", "ranks"), [("3d", 8), ("fsdp_pp", 4)])
def test_three_axes_and_shards_in_stages(script, ranks):
    """What fails of a wrong one: test_silent.py."""
    proofs = proved(script, ranks, **LESSON_08C)
    held = [rank["parameter_bytes"] for rank in proofs[0].run.ranks]
    whole = proofs[0].baseline.ranks[0]["parameter_bytes"]
    if script == "fsdp_pp":
        assert max(held) < 0.3 * whole, "a rank holds half of half of the model"
    else:
        assert max(held) < 0.4 * whole, "a rank holds half of half, and norms and embedding"


def rejected(script, ranks, **flags):
    run = trained(script, ranks, **SGD, **flags)
    proof = equality.compare(run, equality.baseline(**BASE))
    return " ".join(row["compared"] for row in proof.failed)


@pytest.mark.rejects("tensor ranks with different batches")
def test_rejects_tensor_ranks_with_different_batches():
    line = "batches = data.Batches(args, 0, 1)"
    other = {line: f"{line}\nif rank:\n    batches.global_ids = lambda step: torch.arange(8)"}
    assert "batches that differ among the ranks of one model" in rejected(
        variant("tp", "tp_other_batch", other), 2
    )


@pytest.mark.rejects("tensor ranks with different norms")
def test_rejects_tensor_ranks_with_different_norms():
    """Replicated parameters that drift apart: each rank's own copy is in its fingerprint."""
    line = "models.initialise(model, args)"
    drift = {line: f"{line}\nif rank:\n    model.block0.mlp_norm.weight.data += 0.01"}
    assert "initial parameters" in rejected(variant("tp", "tp_drift", drift), 2)


@pytest.mark.rejects("gradients summed over micro-batches")
def test_rejects_a_pipeline_whose_gradients_are_summed_over_micro_batches():
    line = "schedule = schedule_class(stage_or_stages, args.micro_batches, loss_fn=models.loss)"
    summed = {line: line[:-1] + ", scale_grads=False)"}
    rows = rejected(variant("pp", "pp_summed", summed), 2)
    assert "loss" in rows
    assert "final parameters" in rows


@pytest.mark.rejects("a stage lost")
def test_rejects_a_pipeline_that_lost_a_stage():
    line = "model = pipeline_stages.join(parts[i] for i in mine)"
    lost = variant("pp", "pp_lost", {line: f"{line}\nif rank == 0:\n    del model[-1]"})
    assert "stages that a model has" in rejected(lost, 2)


@pytest.mark.rejects("pipelines that train one share")
def test_rejects_pipelines_that_train_the_same_share():
    line = "batches = data.Batches(args, copies.get_local_rank(), copies.size())"
    same = {line: "batches = data.Batches(args, 0, copies.size())"}
    assert "shares of the batch" in rejected(variant("ddp_pp", "ddp_pp_same", same), 4)


@pytest.mark.parametrize(
    ("script", "ranks", "flags", "sentence"),
    [
        ("pp", 4, {"schedule": "1f1b", "micro_batches": 2}, "needs at least 4 micro-batches"),
        ("pp", 2, {"schedule": "dualpipe", "micro_batches": 2}, "needs at least 4 micro-batches"),
        (
            "pp",
            2,
            {"schedule": "interleaved", "micro_batches": 5, "global_batch": 25},
            "rounds of equal size",
        ),
        ("pp", 2, {"micro_batches": 5}, "does not divide the 24 samples"),
        ("pp", 4, {"schedule": "zero-bubble", "model": "mlp"}, "need 8 stages, mlp"),
        ("pp", 2, {"model": "resnet50"}, "normalise each micro-batch by itself"),
        (
            "ddp_pp",
            4,
            {"mesh": "3x2"},
            "--mesh 3x2: data x pipeline is 3 x 2 = 6 ranks, and 4 were started",
        ),
        ("ddp_pp", 3, {}, "3 ranks need --mesh: data x pipeline is 1 x 2 = 2 ranks"),
        ("3d", 6, {}, "Give sizes that multiply to 6, such as 6x1x1."),
        ("3d", 3, {"mesh": "1x1x3"}, "4 heads do not divide over 3 ranks"),
        ("pp", 1, {"resume": "nothing"}, "there is no such file"),
        (
            "pp",
            2,
            {"micro_batches": 0, "schedule": "gpipe"},
            "needs at least 1 micro-batches, not 0",
        ),
        ("fsdp_tp", 4, {"mesh": "2"}, "expected 2 numbers, data x tensor"),
        ("fsdp_tp", 4, {"global_batch": 25}, "does not divide over 2 models"),
        ("tp", 3, {}, "4 heads do not divide over 3 ranks"),
        ("tp", 2, {"model": "mlp"}, "Say --model gpt"),
        ("tp", 2, {"kv_heads": 1}, "--kv-heads 1: key-value heads do not divide over 2 ranks"),
        ("tp", 2, {"kv_heads": 3}, "Give a number that divides gpt's"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(script, ranks, flags, sentence):
    with pytest.raises(launch.RunRefused) as error:
        launch.launch(script, ranks, quiet=True, **{**FLAGS, **flags})
    assert sentence in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_one_micro_batch_is_enough_for_gpipe():
    assert launch.launch("pp", 2, schedule="gpipe", micro_batches=1, **SGD).status == "ok"


@pytest.mark.parametrize("schedule", ["gpipe", "zero-bubble"])
def test_a_rank_that_raises_within_a_schedule_ends_all(schedule):
    line = "pipeline_stages.record_actions(context.run_dir, rank, stages)"
    fails = "def fails(*inputs):\n    raise ValueError('in the middle')\n"
    script = variant(
        "pp", "pp_raises", {line: f"{fails}if rank == 1:\n    model[0].forward = fails\n{line}"}
    )
    began = time.monotonic()
    with pytest.raises(launch.RankFailed) as error:
        launch.launch(script, 2, schedule=schedule, **SGD)
    assert time.monotonic() - began < 10
    assert "rank 1" in str(error.value)
    assert "ValueError: in the middle" in str(error.value)


def test_every_action_is_recorded():
    run = launch.launch("pp", 2, schedule="gpipe", micro_batches=3, **{**SGD, "global_batch": 6})
    text = (run.folder / "ranks" / "1.actions.jsonl").read_text()
    assert len(text.splitlines()) == 2 * 2 * 3, "steps x (F and B) x micro-batches"
