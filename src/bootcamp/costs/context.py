"""What context parallelism sends by formula: three ways of attention over a text in parts.

Keys and values are gathered (Llama 3, arXiv:2407.21783, section 3.3.2), go round a ring (Liu et
al., arXiv:2310.01889), or an all-to-all gives each rank some heads of the complete text (DeepSpeed
Ulysses, Jacobs et al., arXiv:2309.14509).
"""

from bootcamp.costs.sharding import RING

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
    number: int = 4,
    factors: dict[str, int] = RING,
) -> dict[str, float]:
    """{"forward", "backward"}: bytes that a rank sends for the attention of one layer.

    tokens: of the complete texts of a batch. heads, key_heads: of queries, and of keys and values.
    The gathered keys are kept for the backward pass. Round the ring keys and values go N - 1 times
    in each pass; their gradients go once more, home.
    """
    n, keys = ranks, keys_bytes(tokens, key_heads, of_head, number)
    others = (n - 1) / n
    if way == "all-gather":
        reduced = factors["reduce-scatter"]
        return {"forward": others * keys, "backward": others * keys * reduced}
    if way == "ring":
        return {"forward": others * keys, "backward": others * keys + keys}
    if way == "ulysses":  # queries and outputs too, but of each a rank has its part alone
        both = 2 * number * tokens * heads * of_head
        each = others * (both + keys) / n
        return {"forward": each, "backward": each}
    raise ValueError(f"way={way}: expected one of {', '.join(WAYS)}")
