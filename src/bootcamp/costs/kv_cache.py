"""What a server keeps of each request: keys and values of all the tokens that it has, by formula.

    model = kv_cache.models()["Llama 3 8B"]
    model.cache_bytes(length=8192), model.requests_that_fit(length=8192, memory_bytes=80e9)

The next token attends to every earlier one. Their keys and values do not change, so they are kept
rather than computed again: Shazeer, arXiv:1911.02150, section 2.4, describes it, and what it costs.
Grouped-query attention (Ainslie et al., arXiv:2305.13245) lets several query heads share a head of
keys and values.
"""

from bootcamp.costs import published
from bootcamp.costs.model_shapes import Model, published_gpts

NUMBER = 2  # bytes, in bfloat16


def models() -> dict[str, Model]:
    """Published shapes by name: GPTs with keys for every query head, and models with groups."""
    found = dict(list(published_gpts().items())[1:])
    for row in published.table("served_models"):
        sizes = (int(row[key]) for key in ("layers", "width", "heads", "context"))
        groups, known = int(row["key_value_heads"]), 1e9 * float(row["billion_parameters"])
        found[row["name"]] = Model(*sizes, vocabulary=0, key_heads=groups, known=known)
    return found


def rows(lengths: tuple[int, ...], gigabytes: float = 80) -> list[dict]:
    """Rows for a Table: each model's GB of a request, and how many fit on a GPU of this memory.

    None at a length beyond the model's context. Models whose weights do not fit are left out; those
    with groups are there once more without.
    """
    found, room = [], 1e9 * gigabytes
    for name, model in models().items():
        if NUMBER * model.parameters < room:
            found.append(_row(name, model, lengths, room))
            if model.key_heads < model.heads:
                name = f"{name}, with multi-head attention"
                found.append(_row(name, model.without_groups(), lengths, room))
    return found


def _row(name: str, model: Model, lengths: tuple[int, ...], room: float) -> dict:
    row = {"model": name, "weights GB": NUMBER * model.parameters / 1e9}
    row |= {"query heads": model.heads, "key-value heads": model.key_heads}
    for length in lengths:
        takes = length <= model.sequence
        row[f"GB at {length:,}"] = model.cache_bytes(length) / 1e9 if takes else None
        row[f"fit at {length:,}"] = model.requests_that_fit(length, room) if takes else None
    return row
