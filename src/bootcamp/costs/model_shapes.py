"""Sizes of models: this course's layer by layer, `layers("gpt", "tiny")`, and any transformer by
its shape, `find_model("Llama 3 405B")`."""

import re
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from math import prod
from typing import NamedTuple

from bootcamp.costs import published

VOCABULARY = 256  # bytes
FLOAT32_BYTES = 4  # bytes of a number in float32
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


class Layer(NamedTuple):
    """A layer's parameters, and what a sample's forward computes and keeps.

    kept: numbers for the backward, those that sequence ranks divide, all have, tensor ranks divide.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]  # in the order of parameters()
    flops: int
    divided: int = 0  # numbers of the parameters that tensor ranks divide
    of_experts: int = 0  # how many of those are experts'
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
    """List the layers in order; own: numbers other than the size's, as kv_heads=1."""
    if model not in KINDS:
        raise ValueError(f"model={model}: expected one of {', '.join(KINDS)}")
    sizes, make = KINDS[model]
    if size not in sizes:
        raise ValueError(f"size={size}: {model} has no such size")
    return list(make(**sizes[size] | own))


def parameters(model: str, size: str) -> int:
    """Count the numbers of all layers."""
    return sum(sum(layer.numbers) for layer in layers(model, size))


def _gpt(layers: int, width: int, heads: int, context: int, kv_heads: int | None = None):
    """Yield the layers of bootcamp.train.models.gpt, without biases in attention.

    Kept as in arXiv:2205.05198, without dropout and attention's matrix: residuals, statistics;
    norms' outputs; queries to attention's output, the MLP's wide half twice, softmax's sums.
    """
    w, v, norm, kv = width, VOCABULARY, ((width,), (width,)), width // heads * (kv_heads or heads)
    mlp = (4 * w, w), (4 * w,), (w, 4 * w), (w,)
    shapes = (*norm, (w, w), (kv, w), (kv, w), (w, w), *norm, *mlp)
    divided = 2 * w * (w + kv) + 8 * w * w + 4 * w
    kept = context * 2 * (w + 2), context * 2 * w, context * (12 * w + heads)
    flops = _block_flops(shapes, w, context)
    yield Layer("embedding", ((v, w), (context, w)), 0, kept=(context * w, 0, 0))
    for number in range(layers):
        yield Layer(f"block {number}", shapes, flops, divided, kept=kept)
    kept = context * 2, context * w, context * v
    yield Layer("head", (*norm, (v, w)), 2 * w * v * context, v * w, kept=kept)


def expert_width(width: int, chosen: int) -> int:
    """Return the inner width of an expert: the chosen ones together have that of gpt's MLP."""
    return 4 * width // chosen


def _moe(layers: int, width: int, heads: int, context: int, experts: int, chosen: int):
    """Yield gpt's, with the router's products on top of a block's."""
    embedding, *blocks, head = _gpt(layers, width, heads, context)
    w, norm, inner = width, ((width,), (width,)), expert_width(width, chosen)
    mlps = ((inner, w), (w, inner)) * experts
    shapes = (*norm, *((w, w),) * 4, *norm, (experts, w), *mlps)
    yield embedding
    for block in blocks:
        flops, of_experts = block.flops + 2 * context * w * experts, sum(map(prod, mlps))
        yield Layer(block.name, shapes, flops, of_experts, of_experts)
    yield head


def _gpt2(layers: int, width: int, heads: int, context: int):
    """Yield GPT-2's: biases everywhere, and a head that uses the embedding's matrix again."""
    w, norm = width, ((width,), (width,))
    attention, mlp = ((w, 3 * w), (3 * w,), (w, w), (w,)), ((w, 4 * w), (4 * w,), (4 * w, w), (w,))
    shapes = (*norm, *attention, *norm, *mlp)
    yield Layer("embedding", ((GPT2_VOCABULARY, w), (context, w)), 0)
    for number in range(layers):
        yield Layer(f"block {number}", shapes, _block_flops(shapes, w, context))
    yield Layer("head", norm, 2 * w * GPT2_VOCABULARY * context)


def _product_flops(shapes: tuple[tuple[int, ...], ...], rows: int) -> int:
    """Count the operations of products with all of these matrices."""
    return 2 * rows * sum(prod(shape) for shape in shapes if len(shape) == 2)


def _block_flops(shapes: tuple[tuple[int, ...], ...], width: int, context: int) -> int:
    """Count these products, and attention in full, as if not causal (arXiv:2204.02311, app. B)."""
    return _product_flops(shapes, context) + 4 * context * context * width


def _mlp(layers: int, width: int, context: int):
    inputs = context * EMBEDDING_WIDTH
    yield Layer("embedding", ((VOCABULARY, EMBEDDING_WIDTH),), 0, kept=(0, inputs, 0))
    for name, outputs in [(f"hidden {i}", width) for i in range(layers)] + [("head", VOCABULARY)]:
        shapes = ((outputs, inputs), (outputs,))
        yield Layer(name, shapes, _product_flops(shapes, 1), kept=(0, outputs, 0))
        inputs = outputs


def _striped_lstm(layers: int, width: int, stripes: int, context: int):
    units = width // stripes  # four gates of each read the input and their own stripe's state
    shapes = ((4 * units, width), (4 * units, units), (4 * units,), (4 * units,)) * stripes
    head = ((VOCABULARY, width), (VOCABULARY,))
    yield Layer("embedding", ((VOCABULARY, width),), 0)
    for number in range(layers):
        yield Layer(f"layer {number}", shapes, _product_flops(shapes, context))
    yield Layer("head", head, _product_flops(head, context))


def _resnet50(width: int, image_size: int, classes: int):
    stem, size = ((width, 3, 7, 7), (width,), (width,)), image_size // 4
    yield Layer("stem", stem, 2 * prod(stem[0]) * (image_size // 2) ** 2)
    for number, (_, inputs, block_width, stride) in enumerate(bottlenecks(width)):
        after, outputs = size // stride, EXPANSION * block_width
        first, *others = (
            (block_width, inputs, 1, 1),
            (block_width, block_width, 3, 3),
            (outputs, block_width, 1, 1),
            *([(outputs, inputs, 1, 1)] if inputs != outputs or stride != 1 else []),
        )
        products = prod(first) * size**2 + sum(map(prod, others)) * after**2
        shapes = [s for shape in (first, *others) for s in (shape, shape[:1], shape[:1])]
        yield Layer(f"block {number}", tuple(shapes), 2 * products)
        size = after
    head = ((classes, outputs), (classes,))
    yield Layer("head", head, _product_flops(head, 1))


def bottlenecks(width: int):
    """Yield (name, inputs, width, stride) of each block; the argument is the network's width."""
    inputs = width
    for group, count in enumerate(BLOCKS_OF_GROUP):
        for block in range(count):
            stride = 2 if group > 0 and block == 0 else 1
            yield f"group{group}block{block}", inputs, width * 2**group, stride
            inputs = EXPANSION * width * 2**group


KINDS = {  # {kind: (its sizes, what makes its layers)}
    "gpt": (GPT, _gpt),
    "moe": (MOE, _moe),
    "mlp": (MLP, _mlp),
    "striped-lstm": (STRIPED_LSTM, _striped_lstm),
    "resnet50": (RESNET50, _resnet50),
    # the same numbers of layers and widths, with tokens instead of bytes
    GPT2: ({size: shape for size, shape in GPT.items() if size != "tiny"}, _gpt2),
}


@dataclass(frozen=True)
class Model:
    """A transformer with `experts` MLPs in each layer, of which a token passes `chosen`.

    A GPT's parameters are equation 2 of Narayanan et al. (arXiv:2104.04473), and FLOPs are theirs
    (section 5.1): 6 for each parameter in a matrix and token, attention in full.
    """

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int = 0
    key_heads: int = 0  # of keys and values
    inner: int = 0  # width of an MLP
    gated: bool = False  # an MLP of three matrices (SwiGLU), not two
    tied: bool = True  # the head uses the embedding's matrix
    experts: int = 1
    chosen: int = 1
    head_width: int = 0  # where the heads together are not as wide as the model
    known: float = 0.0  # parameters, where that is published
    kind: str = ""  # of a model of this course
    parts: tuple[Layer, ...] = ()  # its layers from the first to the last

    def __post_init__(self):
        object.__setattr__(self, "key_heads", self.key_heads or self.heads)
        object.__setattr__(self, "inner", self.inner or 4 * self.hidden)

    @property
    def width_of_head(self) -> int:
        return self.head_width or self.hidden // self.heads

    @property
    def attention_width(self) -> int:
        """Return the width of all heads together: what attention computes."""
        return self.heads * self.width_of_head

    @property
    def qkv_width(self) -> int:
        """Count the outputs of the projections to queries, keys and values."""
        return self.attention_width + 2 * self.key_heads * self.width_of_head

    @property
    def expert_parameters(self) -> int:
        """Count the parameters of one MLP, matrices alone."""
        return (3 if self.gated else 2) * self.hidden * self.inner

    @property
    def is_gpt(self) -> bool:
        """Tell if it is a GPT, whose attention has as many heads of keys as of queries."""
        return not self.gated and self.experts == 1 and self.key_heads == self.heads

    @cached_property
    def block(self) -> Layer:
        """Return one of the layers; its arithmetic is in `matrix_parameters`."""
        if self.kind:
            return self.parts[1]
        h, inner, several = self.hidden, self.inner, self.experts > 1
        mlps = self.experts * (3 if self.gated else 2) * ((inner, h),)
        divided, whole = ((self.qkv_width, h), (h, self.attention_width), *mlps), ((2 * h,),)
        whole += ((self.experts, h),) if several else ()  # the router
        if self.is_gpt and inner == 4 * h:  # biases, of which two are divided with their matrices
            divided += ((self.qkv_width,), (inner,))
            whole += ((2 * h,), (h,), (h,))
        of_experts = self.experts * self.expert_parameters if several else 0
        return Layer("block", (*divided, *whole), 0, sum(map(prod, divided)), of_experts)

    def shared_expert_parameters(self, tensor: int = 1, expert_ranks: int = 1) -> float:
        """Count a rank's in a layer's experts where data ranks share them, else 0."""
        return self.block.of_experts / expert_ranks / tensor if expert_ranks > 1 else 0.0

    def embedding_parameters(self, tensor: int = 1) -> float:
        """Count a rank's in the embedding and a GPT's positions; half both ends of the course's."""
        if self.kind:
            return (self.parts[0].parameters(tensor) + self.parts[-1].parameters(tensor)) / 2
        positions = self.sequence * self.hidden if self.is_gpt and self.tied else 0
        return self.vocabulary * self.hidden / tensor + positions

    def end_parameters(self, tensor: int = 1) -> float:
        """Count a rank's in both ends, a tied matrix once."""
        return self.embedding_parameters(tensor) * (1 if self.tied else 2)

    def count_parameters(self, tensor: int = 1, layers: int | None = None) -> float:
        """Count a rank's in all layers, or in so many of them, and in the ends."""
        deep = self.layers if layers is None else layers
        return deep * self.block.parameters(tensor) + self.end_parameters(tensor)

    @property
    def parameters(self) -> float:
        """Return the number of the whole model's, as known, else as counted."""
        return self.known or self.count_parameters()

    @property
    def matrix_parameters(self) -> float:
        """Count the parameters in matrices that a token passes, the head among them."""
        attention = self.hidden * (self.qkv_width + self.attention_width)
        layer = attention + self.chosen * self.expert_parameters
        return self.layers * layer + self.vocabulary * self.hidden

    def flops_of_token(self) -> float:
        """Count the FLOPs of forward and backward, without recomputation."""
        return 6 * self.matrix_parameters + 12 * self.layers * self.sequence * self.attention_width

    def recomputed_of_token(self, recompute: str) -> float:
        """Count what recomputation adds: a forward of all layers, or of attention's products."""
        attention = 4 * self.layers * self.sequence * self.attention_width
        if recompute == "full":
            return 2 * (self.matrix_parameters - self.vocabulary * self.hidden) + attention
        return attention if recompute == "selective" else 0.0

    def cache_bytes(
        self, length: int, batch: int = 1, number_bytes: int = 2, tensor_ranks: int = 1
    ) -> int:
        """Count the bytes of keys and values of `batch` requests of `length` tokens, on each rank.

        With more ranks than heads of keys and values each keeps a copy of one.
        """
        heads = max(1, self.key_heads // tensor_ranks)
        return 2 * self.layers * heads * self.width_of_head * number_bytes * length * batch

    def requests_that_fit(self, length: int, memory_bytes: float) -> int:
        """Count requests of this length that fit beside weights in 16 bit, without activations."""
        left = memory_bytes - 2 * self.parameters
        return max(0, int(left // self.cache_bytes(length)))


def course_model(kind: str = "gpt", size: str = "tiny") -> Model:
    parts, (sizes, _) = layers(kind, size), KINDS[kind]
    shape = (sizes[size].get(name, 1) for name in GPT["tiny"])
    return Model(*shape, VOCABULARY, tied=False, kind=kind, parts=tuple(parts))


def published_gpts() -> dict[str, Model]:
    """Return the course's tiny GPT, and published shapes by name, the smallest first."""
    tiny = Model(*GPT["tiny"].values(), VOCABULARY, known=parameters("gpt", "tiny"))
    return {"GPT tiny": tiny} | _read_models("gpt_sizes")


def served_models() -> dict[str, Model]:
    """Return published GPTs, and models with groups of query heads, without vocabulary."""
    return _read_models("gpt_sizes") | _read_models("served_models")


@cache
def find_model(name: str) -> Model | None:
    """Find a model of published/models.csv by its name, spelled freely; None if unknown."""
    wanted = plain_name(name)
    for row in published.table("models"):
        if wanted in map(plain_name, (row["name"], *row["spellings"].split(";"))):
            base = served_models().get(row["published"])
            given = _read_fields(row)
            return replace(base, known=0.0, **given) if base else Model(**given)
    return None


def _read_models(table: str) -> dict[str, Model]:
    return {row["name"]: Model(**_read_fields(row)) for row in published.table(table)}


def _read_fields(row: dict[str, str]) -> dict:
    """Return the fields of a Model that a row gives, by name."""
    read = {int: int, bool: lambda text: text == "yes"}
    own = {field.name: read[field.type] for field in fields(Model) if field.type in read}
    given = {name: own[name](text) for name, text in row.items() if name in own and text}
    billions = row.get("billion_parameters")
    return given | {"known": 1e9 * float(billions)} if billions else given


@cache
def plain_name(name: str) -> str:
    """Reduce a name to what its spellings have in common."""
    return re.sub(r"[^a-z0-9.]", "", name.lower())
