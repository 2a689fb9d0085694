"""Megatron-core's layers train the baseline's model, and call four all-reduces in a block."""

import pytest

from bootcamp.costs import memory, model_shapes, plans, sharding, traffic
from bootcamp.experiments import equality
from bootcamp.launcher import launch

FLAGS = {"device": "cpu", "global_batch": 8}
needs_megatron = pytest.mark.skipif(
    not launch.available("megatron"), reason="Megatron-core is not installed"
)


@pytest.mark.proves("megatron")
@needs_megatron
def test_two_ranks_train_the_baselines_model():
    """Two launches: importing Megatron-core takes seconds."""
    proofs = equality.prove("megatron", 2, steps=4, **FLAGS)
    run = next(proof.run for proof in proofs if proof.run.config["optimizer"] == "adamw")
    held = memory.rank_memory(*plans.of_run(run.config))
    for rank in run.ranks:
        assert rank["parameter_bytes"] == held["parameters"]
        assert rank["gradient_bytes"] == held["gradients"]
        assert rank["optimizer_bytes"] == held["optimizer"]
        assert rank["activation_bytes"] == pytest.approx(held["activations"], rel=0.05)
    sent = run.ranks[0]["sent_bytes_per_step"]
    theory = traffic.tensor_calls(model_shapes.course_model(), FLAGS["global_batch"])
    ring = sharding.bytes_of_calls(theory, 2)
    assert sent is None or sent == pytest.approx(ring, rel=0.05)


def test_where_it_is_missing_one_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setenv("BOOTCAMP_WITHOUT", "megatron")
    with pytest.raises(launch.RunRefused, match="Megatron is not installed here. Install it with"):
        launch.launch("megatron", 2, quiet=True, **FLAGS)
