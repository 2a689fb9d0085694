"""What a server keeps of each request: keys and values of all the tokens that it has, by formula.

    model = kv_cache.models()["Llama 3 8B"]
    model.cache_bytes(length=8192), model.requests_that_fit(length=8192, memory_bytes=80e9)

The next token attends to every earlier one. Their keys and values do not change, so they are kept
rather than computed again: Shazeer, arXiv:1911.02150, section 2.4, describes it, and what it costs.
Grouped-query attention (Ainslie et al., arXiv:2305.13245) lets several query heads share a head of
keys and values. Standard library only.
"""

from dataclasses import dataclass, replace

from bootcamp.costs import memory, published


def cache_bytes(
    layers: int,
    key_value_heads: int,
    width_of_head: int,
    length: int,
    batch: int = 1,
    number_bytes: int = 2,
) -> int:
    """Bytes of the keys and values of `batch` requests with `length` tokens each."""
    return 2 * layers * key_value_heads * width_of_head * number_bytes * length * batch


@dataclass(frozen=True)
class Served:
    """A model that answers requests. heads: of queries; key_value_heads: of keys and of values.

    context: the most tokens of a request. number_bytes below is that of bfloat16 unless given.
    """

    parameters: float
    layers: int
    width: int
    heads: int
    key_value_heads: int
    context: int
    source: str

    @property
    def width_of_head(self) -> int:
        return self.width // self.heads

    def weight_bytes(self, number_bytes: int = 2) -> float:
        """Bytes of the parameters."""
        return number_bytes * self.parameters

    def cache_bytes(
        self, length: int, batch: int = 1, number_bytes: int = 2, tensor_ranks: int = 1
    ) -> int:
        """Bytes of the cache of `batch` requests of `length` tokens, on each tensor-parallel rank.

        With more ranks than heads of keys and values each keeps a copy of one: a cache does not
        get smaller than that.
        """
        heads = max(1, self.key_value_heads // tensor_ranks)
        shape = self.layers, heads, self.width_of_head
        return cache_bytes(*shape, length, batch, number_bytes)

    def without_groups(self) -> "Served":
        """The same model with keys and values for every query head: multi-head attention."""
        return replace(self, key_value_heads=self.heads)

    def requests_that_fit(self, length: int, memory_bytes: float, number_bytes: int = 2) -> int:
        """How many requests of this length fit beside the weights; 0 if these do not fit.

        What a server needs beyond both, such as activations, is left out.
        """
        left = memory_bytes - self.weight_bytes(number_bytes)
        return max(0, int(left // self.cache_bytes(length, number_bytes=number_bytes)))


def models() -> dict[str, Served]:
    """Published shapes by name: GPTs with keys for every query head, and models with groups."""
    shapes = memory.models()
    served = {
        row["name"]: _served(row, shapes[row["name"]].parameters)
        for row in published.table("gpt_sizes")
    }
    for row in published.table("served_models"):
        served[row["name"]] = _served(row, 1e9 * float(row["billion_parameters"]))
    return served


def _served(row: dict[str, str], parameters: float) -> Served:
    layers, width, heads, context = (
        int(row[key]) for key in ("layers", "width", "heads", "context")
    )
    groups = int(row.get("key_value_heads", heads))
    return Served(parameters, layers, width, heads, groups, context, row["source"])


def rows(lengths: tuple[int, ...], gigabytes: float = 80) -> list[dict]:
    """Rows for a Table: each model's GB of a request, and how many fit on a GPU of this memory.

    None at a length beyond the model's context. Models whose weights do not fit are left out; those
    with groups are there once more without.
    """
    found, room = [], 1e9 * gigabytes
    for name, model in models().items():
        if model.weight_bytes() < room:
            found.append(_row(name, model, lengths, room))
            if model.key_value_heads < model.heads:
                name = f"{name}, with multi-head attention"
                found.append(_row(name, model.without_groups(), lengths, room))
    return found


def _row(name: str, model: Served, lengths: tuple[int, ...], room: float) -> dict:
    row = {"model": name, "weights GB": model.weight_bytes() / 1e9}
    row |= {"query heads": model.heads, "key-value heads": model.key_value_heads}
    for length in lengths:
        takes = length <= model.context
        row[f"GB at {length:,}"] = model.cache_bytes(length) / 1e9 if takes else None
        row[f"fit at {length:,}"] = model.requests_that_fit(length, room) if takes else None
    return row
