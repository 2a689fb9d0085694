"""Parameters and arithmetic of every layer of a model by formula: `layers("gpt", "tiny")`.

What the models in bootcamp.train.models have, without importing torch, and
GPT-2 as published. A test holds it against the built models. Standard library only.
"""

import ast
import itertools
from math import prod
from typing import NamedTuple

from bootcamp.paths import PACKAGE

GPT2 = "gpt-2"
GPT2_VOCABULARY = 50257  # Radford et al., Language Models are Unsupervised Multitask Learners, 2019
SOURCES = {
    "gpt": "gpt",
    "mlp": "mlp",
    "striped-lstm": "striped_lstm",
    "resnet50": "resnet50",
    GPT2: "gpt",  # which has GPT-2's numbers of layers and widths, for bytes
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


def layers(model: str, size: str) -> list[Layer]:
    """The layers from the first to the last. Raises ValueError for an unknown model or size."""
    if model not in SOURCES:
        raise ValueError(f"model={model}: expected one of {', '.join(SOURCES)}")
    sizes = constant(model, "SIZES")
    if size not in sizes or (model == GPT2 and size == "tiny"):
        raise ValueError(f"size={size}: {model} has no such size")
    return list(MAKE[model](**sizes[size]))


def constant(model: str, name: str):
    """A constant of the model's file, read and not imported: importing it would load torch."""
    tree = ast.parse((PACKAGE / "train" / "models" / f"{SOURCES[model]}.py").read_text())
    for line in tree.body:
        if isinstance(line, ast.Assign) and getattr(line.targets[0], "id", None) == name:
            return ast.literal_eval(line.value)
    raise ValueError(f"{SOURCES[model]}.py has no constant {name}")


def _gpt(layers: int, width: int, heads: int, context: int):
    w, vocabulary = width, constant("gpt", "VOCABULARY")
    norm = ((w,), (w,))
    matrices = ((w, w),) * 4
    block = (*norm, *matrices, *norm, (4 * w, w), (4 * w,), (w, 4 * w), (w,))
    yield Layer("embedding", ((vocabulary, w), (context, w)), 0)
    for number in range(layers):
        yield Layer(f"block {number}", block, _block_flops(width, context))
    yield Layer("head", (*norm, (vocabulary, w)), 2 * w * vocabulary * context)


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
    """As train.models.gpt counts: matrix products only, attention as if it were not causal."""
    return context * (24 * width**2 + 4 * context * width)


def _mlp(layers: int, width: int, context: int):
    vocabulary, narrow = (constant("mlp", name) for name in ("VOCABULARY", "EMBEDDING_WIDTH"))
    yield Layer("embedding", ((vocabulary, narrow),), 0)
    inputs = context * narrow
    for number in range(layers):
        yield Layer(f"hidden {number}", ((width, inputs), (width,)), 2 * inputs * width)
        inputs = width
    yield Layer("head", ((vocabulary, width), (vocabulary,)), 2 * width * vocabulary)


def _striped_lstm(layers: int, width: int, stripes: int, context: int):
    vocabulary, units = constant("striped-lstm", "VOCABULARY"), width // stripes
    stripe = ((4 * units, width), (4 * units, units), (4 * units,), (4 * units,))
    yield Layer("embedding", ((vocabulary, width),), 0)
    for number in range(layers):
        flops = 2 * context * 4 * width * (width + units)
        yield Layer(f"layer {number}", stripe * stripes, flops)
    head = ((vocabulary, width), (vocabulary,))
    yield Layer("head", head, 2 * context * width * vocabulary)


def _resnet50(width: int, image_size: int, classes: int):
    expansion = constant("resnet50", "EXPANSION")
    stem = ((width, 3, 7, 7), (width,), (width,))
    yield Layer("stem", stem, 2 * prod(stem[0]) * (image_size // 2) ** 2)
    inputs, size, numbers = width, image_size // 4, itertools.count()
    for group, count in enumerate(constant("resnet50", "BLOCKS_OF_GROUP")):
        for of_group in range(count):
            stride = 2 if group > 0 and of_group == 0 else 1
            shapes, products = _bottleneck(inputs, width * 2**group, expansion, size, stride)
            yield Layer(f"block {next(numbers)}", shapes, 2 * products)
            inputs, size = expansion * width * 2**group, size // stride
    yield Layer("head", ((classes, inputs), (classes,)), 2 * inputs * classes)


def _bottleneck(inputs: int, width: int, expansion: int, size: int, stride: int):
    """(shapes, multiplications) of one block on images of size x size."""
    outputs, after = expansion * width, (size // stride) ** 2
    convolutions = [
        ((width, inputs, 1, 1), size**2),
        ((width, width, 3, 3), after),
        ((outputs, width, 1, 1), after),
    ]
    if inputs != outputs or stride != 1:
        convolutions.append(((outputs, inputs, 1, 1), after))
    shapes = [s for shape, _ in convolutions for s in (shape, shape[:1], shape[:1])]
    return tuple(shapes), sum(prod(shape) * positions for shape, positions in convolutions)


MAKE = {
    "gpt": _gpt,
    "mlp": _mlp,
    "striped-lstm": _striped_lstm,
    "resnet50": _resnet50,
    GPT2: _gpt2,
}
