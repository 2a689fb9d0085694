"""The models' sizes, and parameters and arithmetic of every layer: `layers("gpt", "tiny")`.

The models in bootcamp.train.models are built from these sizes; a test holds the layers against the
built models. GPT-2 is as published. Standard library only.
"""

import itertools
from math import prod
from typing import NamedTuple

VOCABULARY = 256  # bytes
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
    """shapes: of the parameters, in the order of parameters(). flops: of one sample's forward."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    flops: int

    @property
    def numbers(self) -> list[int]:
        """How many numbers each parameter has."""
        return [prod(shape) for shape in self.shapes]


def layers(model: str, size: str, **own: int) -> list[Layer]:
    """The layers from the first to the last; own: numbers other than the size's, as kv_heads=1.

    Raises ValueError for an unknown model or size.
    """
    if model not in SIZES:
        raise ValueError(f"model={model}: expected one of {', '.join(SIZES)}")
    if size not in SIZES[model]:
        raise ValueError(f"size={size}: {model} has no such size")
    return of_shape(model, SIZES[model][size] | own)


def of_shape(model: str, shape: dict) -> list[Layer]:
    """The same for any sizes, such as those of GPT["tiny"]."""
    return list(_LAYERS[model](**shape))


def _gpt(layers: int, width: int, heads: int, context: int, kv_heads: int | None = None):
    w, norm = width, ((width,), (width,))
    kv = w // heads * (kv_heads or heads)
    matrices = (w, w), (kv, w), (kv, w), (w, w)
    block = (*norm, *matrices, *norm, (4 * w, w), (4 * w,), (w, 4 * w), (w,))
    yield Layer("embedding", ((VOCABULARY, w), (context, w)), 0)
    for number in range(layers):
        yield Layer(f"block {number}", block, _block_flops(w, context) - 4 * context * w * (w - kv))
    yield Layer("head", (*norm, (VOCABULARY, w)), 2 * w * VOCABULARY * context)


def expert_width(width: int, chosen: int) -> int:
    """Inner width of an expert: the chosen ones together have that of gpt's MLP."""
    return 4 * width // chosen


def _moe(layers: int, width: int, heads: int, context: int, experts: int, chosen: int):
    """As gpt; the router's products come on top of a block's."""
    embedding, *_, head = _gpt(layers, width, heads, context)
    w, norm, inner = width, ((width,), (width,)), expert_width(width, chosen)
    block = (*norm, *((w, w),) * 4, *norm, (experts, w), *((inner, w), (w, inner)) * experts)
    yield embedding
    for number in range(layers):
        flops = _block_flops(width, context) + 2 * context * width * experts
        yield Layer(f"block {number}", block, flops)
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
    """24 width^2 for each token's products, 4 context width for its attention.

    Attention is counted in full, as if it were not causal, as the PaLM paper counts it
    (arXiv:2204.02311, appendix B).
    """
    return context * (24 * width**2 + 4 * context * width)


def _mlp(layers: int, width: int, context: int):
    yield Layer("embedding", ((VOCABULARY, EMBEDDING_WIDTH),), 0)
    inputs = context * EMBEDDING_WIDTH
    for number in range(layers):
        yield Layer(f"hidden {number}", ((width, inputs), (width,)), 2 * inputs * width)
        inputs = width
    yield Layer("head", ((VOCABULARY, width), (VOCABULARY,)), 2 * width * VOCABULARY)


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
