"""Formulas of bytes and seconds against numbers worked out by hand: nothing is launched."""

import pytest

from bootcamp.costs import (
    memory,
    overlap,
    pipeline_schedules,
    sharding,
    traffic,
)


@pytest.mark.parametrize(
    ("parameters", "ranks", "expected"),
    [(12, 2, 6), (12, 3, 4), (13, 2, 8), (13, 3, 6), (1, 4, 2)],
    ids=["divides", "divides by 3", "one too many for 2", "one too many for 3", "fewer than ranks"],
)
def test_a_flat_row_is_padded_to_a_multiple_of_twice_the_ranks(parameters, ranks, expected):
    assert sharding.flat_part(parameters, ranks) == expected


@pytest.mark.parametrize(
    ("rank", "expected"), [(0, 2 * 3 + 1), (1, 2 * 3 + 1), (2, 1 * 3 + 0)], ids=lambda v: str(v)
)
def test_rows_go_to_the_first_ranks_and_the_last_gets_what_is_left(rank, expected):
    assert sharding.rows_of_rank([(5, 3), (2,)], ranks=3, rank=rank) == expected


def test_three_ways_to_cut_pad_differently():
    """19 numbers on two ranks: all in a row, each tensor by itself, each by its rows."""
    shapes = [(3, 5), (4,)]
    assert sharding.flat_part(19, 2) == 10
    assert sharding.parts_one_by_one(shapes, 2) == 8 + 2
    assert [sharding.rows_of_rank(shapes, 2, rank) for rank in (0, 1)] == [10 + 2, 5 + 2]


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (0, {"parameters": 200, "gradients": 200, "optimizer": 1200}),
        (1, {"parameters": 200, "gradients": 200, "optimizer": 300}),
        (2, {"parameters": 200, "gradients": 50, "optimizer": 300}),
        (3, {"parameters": 50, "gradients": 50, "optimizer": 300}),
    ],
)
def test_the_bytes_of_each_stage_of_zero(stage, expected):
    assert sharding.rank_bytes(100, ranks=4, stage=stage) == expected


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("ddp", 2 * 3 / 4), ("zero1", 2 * 3 / 4), ("zero2", 2 * 3 / 4), ("fsdp", 3 * 3 / 4)],
)
def test_what_a_rank_sends_as_multiples_of_the_model(strategy, expected):
    assert sharding.sent_bytes(strategy, 1, ranks=4) == expected


def test_hsdp_sends_three_quarters_of_its_row_and_its_share_between_rows():
    in_row, between_rows = 3 * (1 / 2), 2 * (1 / 2) * (1 / 2)
    assert sharding.sent_bytes("hsdp", 1, ranks=4, shard=2) == in_row + between_rows


def test_a_ring_takes_two_rounds_over_all_but_one_rank():
    # 4 ranks, 400 bytes at 100 bytes/s: 6 messages of 100 bytes, 1 s and 0.5 s of latency each
    assert overlap.ring_seconds(400, 4, 100, 0.5) == 6 * 1.5


def test_what_a_rank_sends_for_tensor_parallelism():
    counts = {("all-reduce", 100): 2, ("all-gather", 80): 1}
    assert sharding.bytes_of_calls(counts, 4) == (2 * 2 * 100 + 80) * 3 / 4


def test_device_0_of_data_parallel_holds_the_state_and_all_outputs():
    rank = {"parameter_bytes": 10, "gradient_bytes": 10, "optimizer_bytes": 20}
    held = memory.data_parallel(rank | {"activation_bytes": 48}, 4, outputs=8)
    totals = [sum(kinds.values()) for kinds in held.values()]
    assert totals == [10 + 10 + 20 + 10 + 16, 10 + 10 + 10 + 2, 10 + 10 + 20 + 10 + 4]


def test_when_computing_takes_longer_than_sending():
    """F/W tokens in 16 bit, 4/3 of it with gradients in 32; for tensor ranks 14/9 of a width."""
    assert 1 / overlap.fsdp_ratio(1, 4e14, 5e10) == pytest.approx(8000)
    assert 1 / overlap.fsdp_ratio(1, 4e14, 5e10, reduced=4) == pytest.approx(8000 * 4 / 3)
    assert 1 / overlap.fsdp_ratio(1, 4e14, 5e10, recompute=True) == pytest.approx(6000)
    assert overlap.tensor_ratio(14, 8, 1.0, 1.0) == pytest.approx(9)
    assert 1 / overlap.tensor_ratio(1, 8, 1.0, 1.0) == pytest.approx(14 / 9)
    assert (overlap.share_if_at_once(0.5), overlap.share_if_at_once(3.0)) == (0.5, 1.0)
    assert overlap.share_if_in_turn(1.0) == 0.5


@pytest.mark.parametrize("micro_batches", [1, 4, 12])
def test_a_pipelines_roof_is_its_bubble(micro_batches):
    spans = pipeline_schedules.timetable("gpipe", 4, micro_batches)
    bubble = pipeline_schedules.bubble_by_formula("gpipe", 4, micro_batches)
    roof = overlap.share_if_in_turn(1 / bubble)
    assert roof == pytest.approx(1 / (1 + pipeline_schedules.bubble(spans)))


@pytest.mark.parametrize(
    ("way", "forward", "backward"),
    [("all-gather", 6144, 6144), ("ring", 6144, 14336), ("ulysses", 4608, 4608)],
)
def test_what_context_parallelism_sends(way, forward, backward):
    """4 ranks, 64 tokens, 4 heads of queries on 2 of keys, 8 wide: keys and values are 8 KiB."""
    sent = traffic.context_bytes(way, 64, 4, 2, 8, 4)
    assert sent == {"forward": forward, "backward": backward}


def test_parameters_that_two_neighbours_keep_are_gathered_by_two():
    """4 ranks: gathered 3/4, again 1/2 between two, reduced 3/4; for each of 3 micro-batches."""
    how = {"micro_batches": 3, "once": True, "reshard": 2}
    assert sharding.sent_bytes("fsdp", 4.0, 4, **how) == 3 * (3 + 2) + 3
    assert sharding.link_bytes("fsdp", 4.0, 4, 2, **how) == 3 * 3 + 3, (
        "two neighbours are on one host"
    )
