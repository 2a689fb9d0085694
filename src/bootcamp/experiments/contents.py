"""What was in the samples that ranks trained on: ids can agree where contents do not."""


def other(pair) -> dict[int, int] | None:
    """{rank: how many of its samples have a baseline's id, and not what is in that one}, of a Pair.

    Ranks without any are left out. None where a record has no checksums: older ones, and
    DataLoaders with worker processes.
    """
    expected = _drawn(pair.baseline.ranks[0])
    found = {rank["rank"]: _drawn(rank) for rank in pair.run.ranks}
    if not expected or not all(found.values()):
        return None
    counts = {
        rank: sum(expected.get(key, crc) != crc for key, crc in drawn.items())
        for rank, drawn in found.items()
    }
    return {rank: count for rank, count in counts.items() if count}


def _drawn(rank: dict) -> dict[tuple[int, int], int]:
    """{(step, id of a sample): its checksum} as far as the rank's record has them."""
    both = zip(rank["sample_ids"], rank.get("sample_checksums", ()), strict=False)
    return {
        (step, sample): crc
        for step, (ids, crcs) in enumerate(both, rank["first_step"])
        for sample, crc in zip(ids, crcs, strict=False)
    }
