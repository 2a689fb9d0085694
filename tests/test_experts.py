"""Expert parallelism: where tokens go, the mixture's arithmetic, the planner's experts.

That it trains what the baseline trains: test_equality.py. What ranks hold and send: lesson 08b.
"""

from argparse import Namespace

import pytest
import torch
from trained import PROOF, trained

from bootcamp.costs import experts, memory, model_shapes, plans, traffic
from bootcamp.costs.hardware import Cluster, gpu
from bootcamp.experiments import equality
from bootcamp.train import models
from bootcamp_lessons import sharding_tables
from bootcamp_lessons.exercises import sharding as solutions
from snippets import experts_grouped

TINY = model_shapes.MOE["tiny"]
FLAGS = {**PROOF, "model": "moe"}


def test_tokens_go_to_two_experts_each_and_none_is_dropped():
    flags = {**FLAGS, "optimizer": "adamw"}
    run = trained(sharding_tables.make_counting_script("ep"), 4, **flags)
    tokens = FLAGS["global_batch"] * TINY["context"]
    alone = equality.baseline(**flags).ranks[0]["expert_counts"]
    for step in range(FLAGS["steps"]):
        ranks = (rank["expert_counts"][step] for rank in run.ranks)
        layers = list(zip(*ranks, strict=True))
        assert [sum(map(sum, layer)) for layer in layers] == [2 * tokens] * TINY["layers"]
        together = [[sum(column) for column in zip(*layer, strict=True)] for layer in layers]
        assert together == alone[step], "the ranks' routers choose what one process chooses"


def build(**flags):
    return models.build(Namespace(model="moe", size="tiny", seed=0, dtype="float64", **flags))


def test_mixture_is_the_weighted_sum_of_each_tokens_experts():
    block, tokens = build()[1], torch.randn(50, TINY["width"], dtype=torch.float64)
    weights, chosen = block.router(tokens)
    assert weights.sum(1).allclose(torch.ones(50, dtype=torch.float64))
    expected = [
        sum(w * block.experts[e](token) for w, e in zip(*both, strict=True))
        for token, *both in zip(tokens, weights, chosen.tolist(), strict=True)
    ]
    assert block.mixture(tokens).allclose(torch.stack(expected))


def test_expert_without_a_token_has_a_gradient_of_zero():
    block = build()[1]
    block.router.balance[0] = -1e9  # no token chooses it
    block.mixture(torch.randn(20, TINY["width"], dtype=torch.float64)).sum().backward()
    assert block.router.counts[0] == 0
    assert not block.experts[0].up.weight.grad.any()


def test_grouped_products_are_the_loops_and_starts_for_ends_are_not():
    *apart, right = experts_grouped.compare().values()
    assert max(apart) < 1e-6
    assert right == 0, "no row met its own expert"


def test_rows_and_imbalance_by_hand():
    """Two ranks with two experts each: rank 1 is sent 5 of 8 rows, 3 of them by rank 0."""
    counts = [[1, 0, 2, 1], [2, 0, 1, 1]]
    assert experts.rows_of_ranks(counts) == [3, 5]
    assert experts.imbalance([3, 5]) == 5 / 4
    assert experts.sent_rows(counts) == [2 * (3 + 2), 2 * (2 + 3)]


def test_planner_sends_the_formulas_rows():
    """Mixtral, its experts over the eight GPUs of a host, each with one text of 4,096 tokens."""
    shape, plan = model_shapes.find_model("Mixtral 8x7B"), plans.Plan(data=8, expert=8, batch=8)
    assert shape.parameters == pytest.approx(46.7e9, rel=0.01)  # arXiv:2401.04088: 47B, 13B
    assert shape.matrix_parameters == pytest.approx(13e9, rel=0.03)
    sent = traffic.traffic(shape, Cluster(gpu("H100"), 8), plan)["expert"]
    rows = experts.EXCHANGES * shape.layers * experts.rows_bytes(4096, shape.hidden, 2, number=2)
    assert sent == {"inside": pytest.approx(7 / 8 * rows), "between": 0}


def test_rows_of_the_exercise_are_the_formulas():
    for (counts,) in solutions.rows_between.exercise.cases:
        assert solutions.rows_between(counts) == experts.rows_between(counts)


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_planned_ranks_hold_each_expert_as_often_as_it_has_replicas(stage):
    """16 ranks, 8 of them share the experts: two replicas, over which ZeRO shards."""
    shape = model_shapes.find_model("Mixtral 8x7B")
    own = shape.layers * shape.experts * shape.expert_parameters
    held = {
        ways: sum(memory.states(numbers, plan, own / ways if ways > 1 else 0.0).values())
        for ways in (1, 8)
        for plan in [plans.Plan(data=16, expert=ways, stage=stage, batch=16)]
        for numbers in [shape.parameters - own + own / ways]
    }
    saved = {0: 16 * own * 7 / 8, 1: 4 * own * 7 / 8, 3: 0}[stage]
    assert held[1] - held[8] == pytest.approx(saved, abs=1e-6 * held[1])


def test_planned_gradients_of_experts_go_to_their_replicas_alone():
    shape, cluster = model_shapes.find_model("Mixtral 8x7B"), Cluster(gpu("H100"), 8)
    sent = traffic.traffic(shape, cluster, plans.Plan(data=8, expert=8, batch=8))
    own = shape.layers * shape.experts * shape.expert_parameters
    assert sent["shard"]["inside"] == pytest.approx(2 * 7 / 8 * 2 * (shape.parameters - own))
    assert sent["shard of experts"] == {"inside": 0, "between": 0}
