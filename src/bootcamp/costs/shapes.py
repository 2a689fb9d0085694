"""The shape of a transformer: its parameters and its floating-point operations.

Parameters of a GPT are those of bootcamp.costs.memory.Gpt; models with gated MLPs and grouped keys
and values are counted matrix by matrix. FLOPs are Narayanan et al.'s (arXiv:2104.04473, section
5.1): 6 for each parameter in a matrix and token, and attention in full, as if not causal, or
causal: half of it. Standard library only.
"""

import re
from dataclasses import dataclass, replace
from functools import cache

from bootcamp.costs import published
from bootcamp.costs.memory import Gpt


@dataclass(frozen=True)
class Shape:
    """A transformer with `experts` MLPs in each layer, of which a token passes `chosen`.

    key_heads: heads of keys and values. gated: an MLP of three matrices (SwiGLU), not two.
    tied: the head uses the embedding's matrix. plain: a GPT with biases and learned positions.
    head_width: of one head, where the heads together are not as wide as the model.
    """

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    key_heads: int = 0
    inner: int = 0
    gated: bool = False
    tied: bool = True
    experts: int = 1
    chosen: int = 1
    head_width: int = 0

    def __post_init__(self):
        object.__setattr__(self, "key_heads", self.key_heads or self.heads)
        object.__setattr__(self, "inner", self.inner or 4 * self.hidden)

    @property
    def of_head(self) -> int:
        """Width of one head."""
        return self.head_width or self.hidden // self.heads

    @property
    def attended(self) -> int:
        """Width of all heads together: what attention computes."""
        return self.heads * self.of_head

    @property
    def qkv(self) -> int:
        """Outputs of the projections to queries, keys and values."""
        return self.attended + 2 * self.key_heads * self.of_head

    @property
    def attention_parameters(self) -> int:
        """Of a layer's attention, matrices alone."""
        return self.hidden * (self.qkv + self.attended)

    @property
    def expert_parameters(self) -> int:
        """Of one MLP, matrices alone."""
        return (3 if self.gated else 2) * self.hidden * self.inner

    @property
    def plain(self) -> bool:
        """A GPT: equation 2 of arXiv:2104.04473 counts it."""
        return not self.gated and self.experts == 1 and self.key_heads == self.heads

    def layer_parameters(self, tensor: int = 1, expert_ranks: int = 1) -> float:
        """Of a layer on one rank."""
        if self.plain and self.inner == 4 * self.hidden:
            gpt = Gpt(1, self.hidden, self.heads, 0, 0)
            return gpt.by_formula(split=tensor)
        experts = self.experts / expert_ranks * self.expert_parameters
        router = self.hidden * self.experts if self.experts > 1 else 0
        return (self.attention_parameters + experts) / tensor + router + 2 * self.hidden

    def divided_parameters(self, tensor: int = 1, expert_ranks: int = 1) -> float:
        """Of a layer's experts on one rank where the data ranks share them; 0 where they don't."""
        here = self.experts / expert_ranks * self.expert_parameters / tensor
        return here if expert_ranks > 1 else 0.0

    def embedding_parameters(self, tensor: int = 1) -> float:
        """Of the token embedding, and of a GPT's positions."""
        positions = self.sequence * self.hidden if self.plain and self.tied else 0
        return self.vocabulary * self.hidden / tensor + positions

    @property
    def parameters(self) -> float:
        """Of the whole model."""
        head = 0 if self.tied else self.vocabulary * self.hidden
        return self.layers * self.layer_parameters() + self.embedding_parameters() + head

    @property
    def computed(self) -> float:
        """Parameters in matrices that a token passes, the head among them."""
        layer = self.attention_parameters + self.chosen * self.expert_parameters
        return self.layers * layer + self.vocabulary * self.hidden

    def flops_of_token(self, causal: bool = False) -> float:
        """Of forward and backward, without recomputation."""
        attention = 12 * self.layers * self.sequence * self.attended
        return 6 * self.computed + (attention / 2 if causal else attention)

    def recomputed_of_token(self, recompute: str, causal: bool = False) -> float:
        """What recomputation adds: a forward of all layers, or of attention's products alone."""
        attention = 4 * self.layers * self.sequence * self.attended / (2 if causal else 1)
        if recompute == "full":
            return 2 * (self.computed - self.vocabulary * self.hidden) + attention
        return attention if recompute == "selective" else 0.0


@cache
def named(name: str) -> Shape | None:
    """The shape of a model of published/models.csv by its name, spelled freely; None if unknown."""
    wanted = _plain(name)
    for row in published.table("models"):
        if wanted in {_plain(row["name"]), *map(_plain, row["spellings"].split(";"))}:
            shared = _shared().get(row["published"], {})
            names = {key: key for key in ("layers", "heads", "vocabulary", "inner", "head_width")}
            names |= {"hidden": "width", "sequence": "context", "key_heads": "key_value_heads"}
            sizes = {key: int(row[key] or shared.get(name) or 0) for key, name in names.items()}
            more = {key: int(row[key] or 1) for key in ("experts", "chosen")}
            return Shape(**sizes, gated=row["gated"] == "yes", tied=row["tied"] == "yes", **more)
    return None


@cache
def _shared() -> dict[str, dict[str, str]]:
    """{name: row} of the shapes that the course's other rooms use too."""
    return {row["name"]: row for t in ("gpt_sizes", "served_models") for row in published.table(t)}


def at(shape: Shape, **sizes) -> Shape:
    """The shape with other sizes where they are given (not None)."""
    given = {key: value for key, value in sizes.items() if value is not None}
    return replace(shape, **given)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower())
