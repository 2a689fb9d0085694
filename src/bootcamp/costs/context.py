"""What context parallelism sends by formula: three ways of attention over a text in parts.

Keys and values are gathered (Llama 3, arXiv:2407.21783, section 3.3.2), go round a ring (Liu et
al., arXiv:2310.01889), or an all-to-all gives each rank some heads of the complete text (DeepSpeed
Ulysses, Jacobs et al., arXiv:2309.14509).
"""

from bootcamp.costs.sharding import RING, ring_bytes

WAYS = ("all-gather", "ring", "ulysses")


def keys_bytes(tokens: float, key_heads: float, of_head: int, number: int = 4) -> float:
    """Keys and values of so many tokens in one layer. of_head: a head's width."""
    return 2 * number * tokens * key_heads * of_head


def sent_bytes(
    way: str,
    tokens: int,
    heads: int,
    key_heads: int,
    of_head: int,
    ranks: int,
    factors: dict[str, int] = RING,
) -> dict[str, float]:
    """{"forward", "backward"}: bytes that a rank sends for the attention of one layer, in float32.

    tokens: of the complete texts of a batch. heads, key_heads: of queries, and of keys and values.
    way: of WAYS. The gathered keys are kept for the backward pass. Round the ring keys and values
    go N - 1 times in each pass; their gradients go once more, home.
    """
    keys = keys_bytes(tokens, key_heads, of_head)
    gathered = ring_bytes("all-gather", keys, ranks)
    if way == "all-gather":
        return {"forward": gathered, "backward": ring_bytes("reduce-scatter", keys, ranks, factors)}
    if way == "ring":
        return {"forward": gathered, "backward": gathered + keys}
    queries = keys_bytes(tokens, heads, of_head)  # and outputs; of each a rank has its part alone
    each = ring_bytes("all-to-all", (queries + keys) / ranks, ranks)
    return {"forward": each, "backward": each}
