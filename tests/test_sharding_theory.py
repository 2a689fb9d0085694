"""The formulas of sharding on small numbers, without a run."""

import pytest

from bootcamp.theory import sharding


@pytest.mark.parametrize(
    ("parameters", "ranks", "part"), [(12, 4, 4), (16, 4, 4), (10, 3, 4), (2, 4, 2), (7, 1, 8)]
)
def test_a_flat_part_has_room_for_the_padding(parameters, ranks, part):
    """The row is as long as the next multiple of twice the ranks."""
    assert sharding.flat_part(parameters, ranks) == part
    assert ranks * part >= parameters


def test_three_ways_to_cut_pad_differently():
    """19 numbers on two ranks: all in a row, each tensor by itself, each by its rows."""
    shapes = [(3, 5), (4,)]
    assert sharding.flat_part(19, 2) == 10
    assert sharding.parts_one_by_one(shapes, 2) == 8 + 2
    assert [sharding.rows_of_rank(shapes, 2, rank) for rank in (0, 1)] == [10 + 2, 5 + 2]
