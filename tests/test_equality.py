"""Every strategy trains what the baseline trains; the proof rejects those that do not."""

import pytest
import warm
from trained import PROOF, proved, trained

from bootcamp.experiments import equality
from bootcamp.launcher import launch
from bootcamp.scripts import strategies
from bootcamp.scripts.variants import variant


@pytest.mark.proves("ddp")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ddp_trains_what_the_baseline_trains(ranks):
    proofs = proved("ddp", ranks)
    assert [len(proof.run.losses) for proof in proofs] == [PROOF["steps"]] * 2
    assert not any(proof.failed for proof in proofs)


TEXT_MODELS = ("gpt", "mlp", "striped-lstm")


@pytest.mark.proves("ddp")
@pytest.mark.parametrize(("model", "ranks"), [("mlp", 2), ("striped-lstm", 4)])
def test_ddp_trains_every_model(model, ranks):
    proved("ddp", ranks, model=model)


@pytest.mark.proves("gpu", "ddp_by_hand")
@pytest.mark.parametrize(("script", "ranks"), [("gpu", 1), ("ddp_by_hand", 2)])
@pytest.mark.parametrize("model", TEXT_MODELS)
def test_the_other_scripts_do_too(script, ranks, model):
    own = {} if model == "gpt" else {"model": model}
    assert len(proved(script, ranks, **own)) == 2


@pytest.mark.proves("cpu")
def test_loss_falls():
    losses = equality.baseline(steps=20, global_batch=12, optimizer="adamw").losses
    assert losses[-1] < losses[0] - 1


LOSSES = {
    "sgd": [5.70896, 5.08592, 4.64494, 4.47627],
    "adamw": [5.70896, 5.09250, 4.74213, 4.63911],
}


@pytest.mark.proves("cpu")
@pytest.mark.parametrize(("optimizer", "losses"), LOSSES.items())
def test_the_losses_are_those_of_every_machine(optimizer, losses):
    """Whatever its Python and processor: the text is frozen, and rounding differs by far less."""
    run = equality.baseline(optimizer=optimizer, **PROOF)
    assert run.losses == pytest.approx(losses, abs=1e-4)


SUMMED = {"parameter.grad /= world": ""}
WHOLE_BATCH = {"batches = data.Batches(args, rank, world)": "batches = data.Batches(args, 0, 1)"}
OTHER_START = {
    "model = models.build(args).to(device)": "args.seed += rank\nmodel = models.build(args)",
    "dist.broadcast(parameter.data, src=0)": "pass",
}
DRAW = "batches = data.Batches(args, rank, world)"
OWN_CONTENTS = {  # every rank draws a corpus of its own, from its own generator
    DRAW: f"{DRAW}\nbatches.dataset._bytes.random_(generator=torch.Generator().manual_seed(rank))"
}
WRAP = "model = DistributedDataParallel(model)"
LEAVE_OUT = "DistributedDataParallel._set_params_and_buffers_to_ignore_for_model"
ONE_LAYER_LEFT_OUT = {WRAP: f'{LEAVE_OUT}(model, ["head.weight"])\n{WRAP}'}


def rejected(script, ranks=2, optimizer="sgd"):
    """The rows of the proof that fail for a script, with the quickest model."""
    flags = {**PROOF, "optimizer": optimizer, "model": "mlp"}
    run = trained(script, ranks, **flags)
    with pytest.raises(equality.NotTheSame) as error:
        equality.same_training(run, equality.baseline(**flags))
    assert "is not the same training as" in str(error.value)
    return " ".join(
        row["compared"] for row in equality.compare(run, equality.baseline(**flags)).failed
    )


@pytest.mark.rejects("gradients summed")
def test_rejects_gradients_that_are_summed():
    rows = rejected(variant("ddp_by_hand", "summed", SUMMED))
    assert "loss" in rows
    assert "final parameters" in rows


@pytest.mark.rejects("every rank trains the same batch")
def test_rejects_ranks_that_train_the_whole_batch():
    """Losses and parameters are the baseline's: only the samples tell."""
    rows = rejected(variant("ddp", "whole", WHOLE_BATCH))
    assert rows == "samples that two ranks trained on"


@pytest.mark.rejects("contents of each rank's own under equal ids")
def test_rejects_contents_of_each_ranks_own():
    """The ids are the baseline's: the checksums tell, and that it is the loss's cause."""
    script, flags = variant("ddp", "own_contents", OWN_CONTENTS), {**PROOF, "model": "mlp"}
    proof = equality.compare(
        trained(script, 2, optimizer="sgd", **flags), equality.baseline(optimizer="sgd", **flags)
    )
    contents, loss, _ = proof.failed
    assert contents["compared"] == "samples with the baseline's ids and other contents"
    assert contents["measured"] == PROOF["steps"] * PROOF["global_batch"]
    assert contents["hint"].startswith("Ranks 0 and 1 drew other data under the same ids")
    assert "the samples are not the baseline's" in loss["hint"]


@pytest.mark.rejects("other initial parameters")
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_rejects_a_rank_with_other_initial_weights(optimizer):
    rows = rejected(variant("ddp_by_hand", "other_start", OTHER_START), optimizer=optimizer)
    assert "initial parameters" in rows


@pytest.mark.rejects("a layer not synchronised")
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_rejects_a_layer_that_is_not_synchronised(optimizer):
    rows = rejected(variant("ddp", "one_layer", ONE_LAYER_LEFT_OUT), optimizer=optimizer)
    assert "final parameters" in rows


@pytest.mark.rejects("ranks that never met")
def test_rejects_ranks_that_never_met():
    """Two processes that each believe to be alone: what a forgotten process group looks like."""
    assert "ranks in the process group" in rejected(strategies.SCRIPTS["gpu"].path)


def test_refuses_to_compare_what_differs():
    a = equality.baseline(**PROOF, optimizer="sgd")
    b = equality.baseline(**PROOF, optimizer="adamw")
    with pytest.raises(ValueError, match="optimizer is sgd here and adamw"):
        equality.same_training(a, b)


@pytest.mark.rejects("another seed")
def test_another_seed_is_another_training():
    flags = {**PROOF, "optimizer": "sgd"}
    run = equality.baseline(seed=1, **flags)
    run.config["seed"] = 0
    proof = equality.compare(run, equality.baseline(**flags))
    assert len(proof.failed) == 4  # samples, losses, both fingerprints


LESSON_05 = {"steps": 12, "global_batch": 32}
# each framework with several ranks and both optimizers, and every model with one of them
FRAMEWORKS = [
    ("horovod", "gpt", "adamw", 2),
    ("horovod", "gpt", "sgd", 2),
    ("horovod", "striped-lstm", "sgd", 4),
    ("lightning", "gpt", "adamw", 2),
    ("lightning", "mlp", "sgd", 4),
    ("accelerate", "gpt", "adamw", 1),
    ("accelerate", "gpt", "sgd", 2),
]


@pytest.mark.proves("horovod", "lightning", "accelerate")
@pytest.mark.parametrize(("script", "model", "optimizer", "ranks"), FRAMEWORKS)
def test_frameworks_train_what_the_baseline_trains(script, model, optimizer, ranks):
    if not launch.available(script):
        pytest.skip(f"{script} is not installed. {launch.HOW_TO_GET[script]}")
    own = {} if model == "gpt" else {"model": model}
    settings = LESSON_05 if (script, ranks) == ("horovod", 2) else PROOF
    flags = {**settings, "optimizer": optimizer, **own}
    with warm.workers():
        run = trained(script, ranks, **flags)
    equality.same_training(run, equality.baseline(**flags))
    assert run.summary["world_size"] == ranks
    assert [rank["world_size"] for rank in run.ranks] == [ranks] * ranks
    launcher = "horovodrun" if script == "horovod" else "bootcamp.launch"
    assert run.summary["launcher"] == launcher
    if script == "horovod":
        command = f"horovodrun --gloo -np {ranks} python src/_train_horovod.py"
        assert run.config["command"].startswith(command)


RESNET = {"model": "resnet50", "dtype": "float64", "steps": 5, "global_batch": 16}  # lesson 04b's


@pytest.mark.proves("ddp_sync_batchnorm")
@pytest.mark.parametrize(("optimizer", "ranks"), [("adamw", 4), ("sgd", 2)])
def test_resnet_with_synchronised_statistics(optimizer, ranks):
    flags = {**RESNET, "optimizer": optimizer}
    run = trained("ddp_sync_batchnorm", ranks, **flags)
    equality.same_training(run, equality.baseline(**flags), tolerance=1e-6)


@pytest.mark.rejects("batch statistics of each rank's own")
def test_rejects_resnet_with_each_ranks_own_statistics():
    run = trained("ddp", 2, optimizer="sgd", **RESNET)
    proof = equality.compare(run, equality.baseline(optimizer="sgd", **RESNET))
    assert {row["compared"].split(" ")[0] for row in proof.failed} == {"largest", "final"}
    assert all("The model has 53 BatchNorm layers" in row["hint"] for row in proof.failed)


@pytest.mark.proves("ddp_options")
def test_options_of_ddp_that_change_no_gradient():
    own = {"bucket_mb": 0.2, "bucket_view": True, "static_graph": True}
    proved("ddp_options", 2, **own)


@pytest.mark.proves("ddp_options")
@pytest.mark.parametrize(
    ("hook", "bytes_of_exact", "loss_apart"),
    [("fp16", 0.5, 1e-3), ("bf16", 0.5, 1e-2), ("powersgd", 0.2, 1.0)],
)
def test_hooks_send_less_and_stay_near(hook, bytes_of_exact, loss_apart):
    flags = {**PROOF, "steps": 10, "optimizer": "sgd"}  # PowerSGD begins in the third step
    run = trained("ddp_options", 2, hook=hook, **flags)
    exact = trained("ddp_options", 2, **flags)
    sent, all_sent = (each.ranks[0]["sent_bytes_per_step"] for each in (run, exact))
    assert sent < (bytes_of_exact + 0.02) * all_sent
    apart = [abs(a - b) for a, b in zip(run.losses, exact.losses, strict=True)]
    assert 0 < max(apart) < loss_apart


@pytest.mark.proves("local_sgd")
def test_averaging_parameters_every_step_is_sgd_and_nothing_else():
    """With SGD every step is linear in the gradients; AdamW's is not, and fewer averages drift."""

    def apart(optimizer, every):
        run = trained("local_sgd", 2, optimizer=optimizer, average_every=every, **PROOF)
        return equality.compare(run, equality.baseline(optimizer=optimizer, **PROOF))

    assert not apart("sgd", 1).failed
    assert apart("sgd", 2).failed
    assert apart("adamw", 1).failed
