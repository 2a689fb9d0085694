"""Notebook 06c: split matrices by hand, collectives and memory by theory, a ring of keys."""

import pytest
from trained import PROOF, trained

from bootcamp.costs import sharding, traffic
from bootcamp.costs.model_shapes import course_model
from bootcamp.scripts.variants import variant
from bootcamp_lessons import excerpts, exercise, sharding_tables

TINY = course_model()
SNIPPET = {"device": "cpu", "quiet": True}
FLAGS = {**PROOF, "optimizer": "adamw"}  # of proofs in lessons 06c and 08, and in other tests


def printed(snippet, ranks, **flags):
    return excerpts.parse_printed(
        trained(excerpts.SNIPPETS / f"{snippet}.py", ranks, **SNIPPET, **flags)
    )


@pytest.mark.parametrize("ranks", [2, 4])
def test_split_by_hand_is_the_whole(ranks):
    rows = printed("tensor_by_hand", ranks)
    assert [row["part"] for row in rows] == ["mlp", "attention"]
    for row in rows:
        assert max(value for name, value in row.items() if "apart" in name) < 1e-10
        assert row["all-reduces, forward"] == row["all-reduces, backward"] == 1


@pytest.mark.parametrize(("order", "ranks"), [("straight", 2), ("zigzag", 3)])
def test_ring_attention_is_plain_attention(order, ranks):
    records = printed("context_parallel", ranks, order=order, text=96)
    assert sorted(sum((record["tokens"] for record in records), [])) == list(range(96))
    for record in records:
        assert record["output_apart"] < 1e-5
        assert record["gradients_apart"] < 1e-5
        assert sorted(record["held"]) == list(range(ranks)), "every block came by"
    work = [sum(record["computed"]) for record in records]
    assert (len(set(work)) == 1) == (order == "zigzag"), "only zigzag shares the work equally"


@pytest.mark.rejects("keys without other ranks' gradients")
@pytest.mark.parametrize(("ranks", "key_heads"), [(2, 8), (4, 4)])
@pytest.mark.parametrize("way", traffic.CONTEXT_WAYS)
def test_three_ways_of_context_parallelism(way, ranks, key_heads):
    """Plain attention, and bytes within 1 %; the other ways' formulas are further off."""
    order = "zigzag" if ranks == 4 else "straight"
    sizes = {"text": 1024, "heads": 8, "key_heads": key_heads, "width": 64}
    records = printed("context_parallel", ranks, way=way, order=order, **sizes)
    for record in records:
        assert max(record["output_apart"], record["gradients_apart"]) < 1e-5
    for other in traffic.CONTEXT_WAYS if records[0]["forward_bytes"] else ():  # Linux counts them
        how = (1024, 8, key_heads, 64, ranks)
        formula = traffic.context_bytes(other, *how, factors=sharding.GLOO)
        sent = [record[f"{each}_bytes"] for record in records for each in formula]
        near = sent == pytest.approx(list(formula.values()) * ranks, rel=0.01)
        assert near == (other == way)


def test_gradients_are_far_where_keys_have_those_of_a_ranks_own_queries():
    """The forward pass is right; a rank's keys lack the gradients of other ranks' queries."""
    line = "dist.reduce_scatter(own, list(d_parts.contiguous()))"
    path = excerpts.SNIPPETS / "context_parallel.py"
    script = variant(path, "context_not_reduced", {line: "own.copy_(d_parts[rank])"})
    run = trained(script, 2, way="all-gather", order="zigzag", **SNIPPET)
    for record in excerpts.parse_printed(run):
        assert record["output_apart"] < 1e-5 < 1e-3 < record["gradients_apart"]


ONE_F = (
    'plan["attention"] = PrepareModuleInput(input_layouts=layout, '
    "desired_input_layouts=Replicate())"
)


@pytest.mark.parametrize(
    ("changes", "flags", "how"),
    [
        ({}, {}, {}),
        ({}, {"sequence_parallel": True}, {"sequence_parallel": True}),
        ({ONE_F: ""}, {}, {"separate": True}),
    ],
    ids=["plain", "sequence parallel", "query, key and value apart"],
)
def test_collectives_are_those_of_the_theory(changes, flags, how):
    script = sharding_tables.make_counting_script(
        "tp", changes, "tp_test_counted" if changes else ""
    )
    run = trained(script, 2, **flags, **FLAGS)
    theory = traffic.tensor_calls(TINY, FLAGS["global_batch"], **how)
    assert run.collective_counts() == theory
    sent = run.ranks[0]["sent_bytes_per_step"]
    said = sharding.bytes_of_calls(theory, 2, sharding.GLOO)
    assert sent is None or sent == pytest.approx(said, rel=0.05)


def test_theory_of_tensor_ranks_is_four_all_reduces_a_block():
    theory = traffic.tensor_calls(TINY, 8)
    large = 4 * 8 * TINY.sequence * TINY.hidden
    assert theory["all-reduce", large] == 4 * TINY.layers + 1


def test_exercise_names_a_missing_sum():
    """The checker says that a plan without its sums is not the baseline's training."""
    line = 'plan["down"] = RowwiseParallel(output_layouts={})'
    imported = "from torch.distributed.tensor import {}Replicate, Shard"
    changes = {
        line.format("layout"): line.format("Partial()"),
        imported.format(""): imported.format("Partial, "),
    }
    script = variant("tp", "tp_test_no_sum", changes)
    result = exercise.try_out(exercise.find("split_the_blocks"), script)
    assert not result.solved
    assert "largest difference of a step's loss" in str(result)


def test_slowest_rank_of_a_round_sets_its_time():
    tensor_parallel = pytest.importorskip("bootcamp_lessons.diagrams.tensor_parallel")
    straight, zigzag = ([4, 0], [4, 4]), ([3, 2], [3, 2])
    assert tensor_parallel.sum_slowest([{"computed": row} for row in straight]) == 8
    assert tensor_parallel.sum_slowest([{"computed": row} for row in zigzag]) == 5
