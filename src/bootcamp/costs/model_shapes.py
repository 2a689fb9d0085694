"""Models: the layers of this course's by size, and any transformer by its shape.

layers("gpt", "tiny"), named("Llama 3 405B")
"""

import itertools
import re
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import prod
from typing import NamedTuple

from bootcamp.costs import published

VOCABULARY = 256  # bytes
NUMBER = 4  # bytes of a number in float32
GPT = {
    "tiny": {"layers": 6, "width": 64, "heads": 4, "context": 64},
    "small": {"layers": 12, "width": 768, "heads": 12, "context": 1024},
    "medium": {"layers": 24, "width": 1024, "heads": 16, "context": 1024},
    "large": {"layers": 36, "width": 1280, "heads": 20, "context": 1024},
    "xl": {"layers": 48, "width": 1600, "heads": 25, "context": 1024},
}
# each block has several MLPs, of which a token passes two
MOE = {size: {**shape, "experts": 8, "chosen": 2} for size, shape in GPT.items()}
MLP = {
    "tiny": {"layers": 4, "width": 128, "context": 16},
    "small": {"layers": 4, "width": 1024, "context": 16},
    "medium": {"layers": 8, "width": 2048, "context": 16},
    "large": {"layers": 8, "width": 4096, "context": 16},
    "xl": {"layers": 16, "width": 8192, "context": 16},
}
EMBEDDING_WIDTH = 16  # of the MLP
STRIPED_LSTM = {
    "tiny": {"layers": 4, "width": 64, "stripes": 4, "context": 32},
    "small": {"layers": 4, "width": 1024, "stripes": 4, "context": 256},
    "medium": {"layers": 8, "width": 2048, "stripes": 8, "context": 256},
    "large": {"layers": 8, "width": 4096, "stripes": 8, "context": 256},
    "xl": {"layers": 16, "width": 4096, "stripes": 8, "context": 256},
}
RESNET50 = {
    "tiny": {"width": 8, "image_size": 64, "classes": 10},
    "small": {"width": 32, "image_size": 128, "classes": 100},
    "medium": {"width": 64, "image_size": 224, "classes": 1000},  # ResNet-50 itself
    "large": {"width": 128, "image_size": 224, "classes": 1000},
    "xl": {"width": 192, "image_size": 224, "classes": 1000},
}
BLOCKS_OF_GROUP = (3, 4, 6, 3)
EXPANSION = 4  # a bottleneck block puts out four times the channels of its 3x3 convolution
GPT2 = "gpt-2"
GPT2_VOCABULARY = 50257  # Radford et al., Language Models are Unsupervised Multitask Learners, 2019
SIZES = {
    "gpt": GPT,
    "moe": MOE,
    "mlp": MLP,
    "striped-lstm": STRIPED_LSTM,
    "resnet50": RESNET50,
    # GPT-2 has the same numbers of layers and widths, and reads tokens instead of bytes
    GPT2: {size: shape for size, shape in GPT.items() if size != "tiny"},
}


class Layer(NamedTuple):
    """A layer's parameters, and what a sample's forward computes and keeps.

    shapes: of the parameters, in the order of parameters(). divided: how many numbers of them
    tensor ranks divide; of_experts: how many of those are experts'. kept: numbers that stay for the
    backward: what sequence-parallel ranks divide, what every rank has, what tensor ranks divide.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    flops: int
    divided: int = 0
    of_experts: int = 0
    kept: tuple[int, int, int] | None = None

    @property
    def numbers(self) -> list[int]:
        """How many numbers each parameter has."""
        return [prod(shape) for shape in self.shapes]

    def parameters(self, tensor: int = 1, expert_ranks: int = 1) -> float:
        """Count the numbers of one rank."""
        divided = self.divided - self.of_experts + self.of_experts / expert_ranks
        return divided / tensor + sum(self.numbers) - self.divided

    def kept_numbers(self, tensor: int = 1, sequence_parallel: bool = False) -> float:
        """Count what one rank keeps of a sample."""
        between, whole, inside = self.kept
        return between / (tensor if sequence_parallel else 1) + whole + inside / tensor


def layers(model: str, size: str, **own: int) -> list[Layer]:
    """The layers from the first to the last; own: numbers other than the size's, as kv_heads=1."""
    if model not in SIZES:
        raise ValueError(f"model={model}: expected one of {', '.join(SIZES)}")
    if size not in SIZES[model]:
        raise ValueError(f"size={size}: {model} has no such size")
    return list(_LAYERS[model](**SIZES[model][size] | own))


def parameters(model: str, size: str) -> int:
    """Count the numbers of all layers."""
    return sum(sum(layer.numbers) for layer in layers(model, size))


def _gpt(layers: int, width: int, heads: int, context: int, kv_heads: int | None = None):
    """As bootcamp.train.models.gpt, without biases in attention.

    Kept is what Korthikanti et al. count (arXiv:2205.05198), no dropout and no attention's matrix:
    residuals and norms' statistics; norms' outputs; queries to attention's output, the MLP's wide
    half twice, softmax's sums.
    """
    w, v, norm = width, VOCABULARY, ((width,), (width,))
    kv = w // heads * (kv_heads or heads)
    matrices = (w, w), (kv, w), (kv, w), (w, w)
    shapes = (*norm, *matrices, *norm, (4 * w, w), (4 * w,), (w, 4 * w), (w,))
    flops = _block_flops(w, context) - 4 * context * w * (w - kv)
    divided = 2 * w * (w + kv) + 8 * w * w + 4 * w
    kept = context * 2 * (w + 2), context * 2 * w, context * (12 * w + heads)
    yield Layer("embedding", ((v, w), (context, w)), 0, kept=(context * w, 0, 0))
    for number in range(layers):
        yield Layer(f"block {number}", shapes, flops, divided, kept=kept)
    kept = context * 2, context * w, context * v
    yield Layer("head", (*norm, (v, w)), 2 * w * v * context, v * w, kept=kept)


def expert_width(width: int, chosen: int) -> int:
    """Inner width of an expert: the chosen ones together have that of gpt's MLP."""
    return 4 * width // chosen


def _moe(layers: int, width: int, heads: int, context: int, experts: int, chosen: int):
    """As gpt; the router's products come on top of a block's."""
    embedding, *_, head = _gpt(layers, width, heads, context)
    w, norm, inner = width, ((width,), (width,)), expert_width(width, chosen)
    of_experts = 2 * w * inner * experts
    block = (*norm, *((w, w),) * 4, *norm, (experts, w), *((inner, w), (w, inner)) * experts)
    yield embedding
    for number in range(layers):
        flops = _block_flops(w, context) + 2 * context * w * experts
        yield Layer(f"block {number}", block, flops, of_experts, of_experts)
    yield head


def _gpt2(layers: int, width: int, heads: int, context: int):
    """Biases everywhere, and a head that uses the embedding's matrix again."""
    w, norm = width, ((width,), (width,))
    attention = ((w, 3 * w), (3 * w,), (w, w), (w,))
    block = (*norm, *attention, *norm, (w, 4 * w), (4 * w,), (4 * w, w), (w,))
    yield Layer("embedding", ((GPT2_VOCABULARY, w), (context, w)), 0)
    for number in range(layers):
        yield Layer(f"block {number}", block, _block_flops(width, context))
    yield Layer("head", norm, 2 * w * GPT2_VOCABULARY * context)


def _block_flops(width: int, context: int) -> int:
    """Products and attention in full, as if not causal (PaLM, arXiv:2204.02311, appendix B)."""
    return context * (24 * width**2 + 4 * context * width)


def _mlp(layers: int, width: int, context: int):
    inputs = context * EMBEDDING_WIDTH
    yield Layer("embedding", ((VOCABULARY, EMBEDDING_WIDTH),), 0, kept=(0, inputs, 0))
    for number in range(layers):
        shapes, flops = ((width, inputs), (width,)), 2 * inputs * width
        yield Layer(f"hidden {number}", shapes, flops, kept=(0, width, 0))
        inputs = width
    shapes, flops = ((VOCABULARY, width), (VOCABULARY,)), 2 * width * VOCABULARY
    yield Layer("head", shapes, flops, kept=(0, VOCABULARY, 0))


def _striped_lstm(layers: int, width: int, stripes: int, context: int):
    units = width // stripes  # four gates of each read the input and their own stripe's state
    stripe = ((4 * units, width), (4 * units, units), (4 * units,), (4 * units,))
    yield Layer("embedding", ((VOCABULARY, width),), 0)
    for number in range(layers):
        flops = 2 * context * 4 * width * (width + units)
        yield Layer(f"layer {number}", stripe * stripes, flops)
    head = ((VOCABULARY, width), (VOCABULARY,))
    yield Layer("head", head, 2 * context * width * VOCABULARY)


def _resnet50(width: int, image_size: int, classes: int):
    stem = ((width, 3, 7, 7), (width,), (width,))
    yield Layer("stem", stem, 2 * prod(stem[0]) * (image_size // 2) ** 2)
    size, numbers = image_size // 4, itertools.count()
    for _, inputs, block_width, stride in bottlenecks(width):
        shapes, products = _bottleneck(inputs, block_width, size, stride)
        yield Layer(f"block {next(numbers)}", shapes, 2 * products)
        size //= stride
    outputs = EXPANSION * block_width
    yield Layer("head", ((classes, outputs), (classes,)), 2 * outputs * classes)


def bottlenecks(width: int):
    """(name, inputs, width, stride) of each block in order; `width` here is the network's."""
    inputs = width
    for group, count in enumerate(BLOCKS_OF_GROUP):
        for block in range(count):
            stride = 2 if group > 0 and block == 0 else 1
            yield f"group{group}block{block}", inputs, width * 2**group, stride
            inputs = EXPANSION * width * 2**group


def _bottleneck(inputs: int, width: int, size: int, stride: int):
    """(shapes, multiplications) of one block on images of size x size."""
    outputs, after = EXPANSION * width, (size // stride) ** 2
    convolutions = [
        ((width, inputs, 1, 1), size**2),
        ((width, width, 3, 3), after),
        ((outputs, width, 1, 1), after),
    ]
    if inputs != outputs or stride != 1:
        convolutions.append(((outputs, inputs, 1, 1), after))
    shapes = [s for shape, _ in convolutions for s in (shape, shape[:1], shape[:1])]
    return tuple(shapes), sum(prod(shape) * positions for shape, positions in convolutions)


_LAYERS = {
    "gpt": _gpt,
    "moe": _moe,
    "mlp": _mlp,
    "striped-lstm": _striped_lstm,
    "resnet50": _resnet50,
    GPT2: _gpt2,
}


@dataclass(frozen=True)
class Model:
    """A transformer with `experts` MLPs in each layer, of which a token passes `chosen`.

    key_heads: heads of keys and values. gated: an MLP of three matrices (SwiGLU), not two.
    tied: the head uses the embedding's matrix. head_width: of one head, where the heads together
    are not as wide as the model. known: its number of parameters, where that is published. kind,
    parts: of a model of this course, and its layers from the first to the last.

    A GPT's parameters are equation 2 of Narayanan et al. (arXiv:2104.04473), and FLOPs are theirs
    (section 5.1): 6 for each parameter in a matrix and token, attention in full.
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
    known: float = 0.0
    kind: str = ""
    parts: tuple[Layer, ...] = ()

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
    def expert_parameters(self) -> int:
        """Of one MLP, matrices alone."""
        return (3 if self.gated else 2) * self.hidden * self.inner

    @property
    def plain(self) -> bool:
        """Whether it is a GPT, whose attention has as many heads of keys as of queries."""
        return not self.gated and self.experts == 1 and self.key_heads == self.heads

    @cached_property
    def block(self) -> Layer:
        """One of the layers; its arithmetic is in `computed`."""
        if self.kind:
            return self.parts[1]
        h, inner, several = self.hidden, self.inner, self.experts > 1
        mlps = self.experts * (3 if self.gated else 2) * ((inner, h),)
        divided, whole = ((self.qkv, h), (h, self.attended), *mlps), ((2 * h,),)
        whole += ((self.experts, h),) if several else ()  # the router
        if self.plain and inner == 4 * h:  # biases, of which two are divided with their matrices
            divided += ((self.qkv,), (inner,))
            whole += ((2 * h,), (h,), (h,))
        of_experts = self.experts * self.expert_parameters if several else 0
        return Layer("block", (*divided, *whole), 0, sum(map(prod, divided)), of_experts)

    def layer_parameters(self, tensor: int = 1, expert_ranks: int = 1) -> float:
        """Of a layer on one rank."""
        return self.block.parameters(tensor, expert_ranks)

    def divided_parameters(self, tensor: int = 1, expert_ranks: int = 1) -> float:
        """Count those of a layer's experts on one rank where data ranks share them, else 0."""
        return self.block.of_experts / expert_ranks / tensor if expert_ranks > 1 else 0.0

    def embedding_parameters(self, tensor: int = 1) -> float:
        """Count those of the embedding and a GPT's positions; of this course's half both ends."""
        if self.kind:
            return (self.parts[0].parameters(tensor) + self.parts[-1].parameters(tensor)) / 2
        positions = self.sequence * self.hidden if self.plain and self.tied else 0
        return self.vocabulary * self.hidden / tensor + positions

    def counted(self, tensor: int = 1, layers: int | None = None) -> float:
        """Count a rank's: all layers or so many of them, and the ends."""
        deep = self.layers if layers is None else layers
        ends = self.embedding_parameters(tensor) * (1 if self.tied else 2)
        return deep * self.layer_parameters(tensor) + ends

    @property
    def parameters(self) -> float:
        """Of the whole model, as known, else as counted."""
        return self.known or self.counted()

    @property
    def computed(self) -> float:
        """Parameters in matrices that a token passes, the head among them."""
        attention = self.hidden * (self.qkv + self.attended)
        layer = attention + self.chosen * self.expert_parameters
        return self.layers * layer + self.vocabulary * self.hidden

    def flops_of_token(self) -> float:
        """Of forward and backward, without recomputation."""
        return 6 * self.computed + 12 * self.layers * self.sequence * self.attended

    def recomputed_of_token(self, recompute: str) -> float:
        """What recomputation adds: a forward of all layers, or of attention's products alone."""
        attention = 4 * self.layers * self.sequence * self.attended
        if recompute == "full":
            return 2 * (self.computed - self.vocabulary * self.hidden) + attention
        return attention if recompute == "selective" else 0.0

    def cache_bytes(
        self, length: int, batch: int = 1, number_bytes: int = 2, tensor_ranks: int = 1
    ) -> int:
        """Bytes of keys and values of `batch` requests of `length` tokens, on each tensor rank.

        With more ranks than heads of keys and values each keeps a copy of one.
        """
        heads = max(1, self.key_heads // tensor_ranks)
        return 2 * self.layers * heads * self.of_head * number_bytes * length * batch

    def without_groups(self) -> "Model":
        """The same model with keys and values for every query head: multi-head attention."""
        return replace(self, key_heads=self.heads)

    def requests_that_fit(self, length: int, memory_bytes: float, number_bytes: int = 2) -> int:
        """Count requests of this length that fit beside the weights, activations left out."""
        left = memory_bytes - number_bytes * self.parameters
        return max(0, int(left // self.cache_bytes(length, number_bytes=number_bytes)))


def ours(kind: str = "gpt", size: str = "tiny") -> Model:
    """Return a model of this course."""
    sizes, parts = (SIZES[kind][size].get(name, 1) for name in GPT["tiny"]), layers(kind, size)
    return Model(*sizes, VOCABULARY, tied=False, kind=kind, parts=tuple(parts))


def published_gpts() -> dict[str, Model]:
    """The course's tiny GPT, and published shapes by name, the smallest first."""
    tiny = Model(*GPT["tiny"].values(), VOCABULARY, known=parameters("gpt", "tiny"))
    return {"GPT tiny": tiny} | {row["name"]: _of_row(row) for row in published.table("gpt_sizes")}


def served_models() -> dict[str, Model]:
    """Published shapes by name: GPTs, and models with groups of query heads, without vocabulary."""
    return {name: _of_row(row) for name, row in _rows().items()}


@cache
def named(name: str) -> Model | None:
    """A model of published/models.csv by its name, spelled freely; None if unknown."""
    wanted = plain_name(name)
    for row in published.table("models"):
        if wanted in {plain_name(row["name"]), *map(plain_name, row["spellings"].split(";"))}:
            own = {column: value for column, value in row.items() if value}
            return replace(_of_row(_rows().get(row["published"], {}) | own), known=0.0)
    return None


def _rows() -> dict[str, dict[str, str]]:
    """{name: row} of the shapes that figures and tables show."""
    return {row["name"]: row for t in ("gpt_sizes", "served_models") for row in published.table(t)}


def _of_row(row: dict[str, str]) -> Model:
    names = {"hidden": "width", "sequence": "context", "key_heads": "key_value_heads"}
    names |= {key: key for key in ("layers", "heads", "vocabulary", "inner", "head_width")}
    sizes = {key: int(row.get(key) or row.get(name) or 0) for key, name in names.items()}
    sizes |= {key: int(row.get(key, 1)) for key in ("experts", "chosen")}
    kinds = {"gated": row.get("gated") == "yes", "tied": row.get("tied", "yes") == "yes"}
    return Model(**sizes, **kinds, known=1e9 * float(row.get("billion_parameters") or 0))


def at(shape: Model, **sizes) -> Model:
    """Change the sizes that are given (not None)."""
    given = {key: value for key, value in sizes.items() if value is not None}
    return replace(shape, **given)


def plain_name(name: str) -> str:
    """Reduce a name to what its spellings have in common."""
    return re.sub(r"[^a-z0-9.]", "", name.lower())
