"""Build the models of the course: sequences of named stages that can be cut over devices."""

import torch
from torch import nn

from bootcamp.costs import model_shapes
from bootcamp.train import sharded_tensors
from bootcamp.train.models import gpt, mlp, moe, resnet50, striped_lstm

FAMILIES = {"gpt": gpt, "moe": moe, "mlp": mlp, "striped-lstm": striped_lstm, "resnet50": resnet50}
NAMES = tuple(FAMILIES)


def shape(args) -> dict[str, int]:
    """Look up the numbers of a model's size, changed by the flags."""
    own = {"kv_heads": args.kv_heads} if getattr(args, "kv_heads", None) else {}
    return FAMILIES[args.model].SIZES[args.size] | own


def build(args) -> nn.Sequential:
    """Build the model as named stages, on the CPU, in the dtype of --dtype.

    Each stage draws its parameters from a generator seeded by --seed and its position, so a rank
    that builds a few stages gets the same ones. A slice (`model[2:5]`) keeps the stages' names.
    Under `torch.device("meta")` it has shapes and no memory; see `initialise`.
    """
    model = nn.Sequential()
    for position, name in enumerate(stage_names(args)):
        model.add_module(name, _stage(args, position))
    return model


def _stage(args, position: int) -> nn.Module:
    family = FAMILIES[args.model]
    _, stage = list(family.stages(**shape(args)))[position]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(args.seed * 1_000_003 + position)
        return stage().to(getattr(torch, args.dtype))


def initialise(model: nn.Module, args) -> None:
    """Give a model from the meta device, after `to_empty`, the numbers that `build` gives.

    Each stage is built complete and gone before the next: a rank holds its part and one stage.
    """
    own = own_tensors(model)
    for position, name in enumerate(stage_names(args)):
        if any(key.startswith(f"{name}.") for key in own):
            drawn = _stage(args, position).state_dict(prefix=f"{name}.")
            sharded_tensors.fill({key: own[key] for key in drawn.keys() & own.keys()}, drawn)
            del drawn


def stage_names(args) -> list[str]:
    """List the names of the model's stages in order, without building them."""
    return [name for name, _ in FAMILIES[args.model].stages(**shape(args))]


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Calculate the mean cross-entropy of outputs (..., classes) and targets (...), int64."""
    return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def data_format(args) -> dict:
    """Return the arguments of data.Corpus or, for images, of data.Images."""
    own = shape(args)
    if "image_size" in own:
        return {name: own[name] for name in ("image_size", "classes")}
    return {"context": own["context"], "next_byte_only": args.model == "mlp"}


def tokens_per_sample(args) -> int:
    """Count the predictions in one sample: bytes of text, else one."""
    if args.model not in FAMILIES:
        return 1
    form = data_format(args)
    return 1 if form.get("next_byte_only") else form.get("context", 1)


def flops_per_sample(args, trained: bool = True) -> int | None:
    """Calculate one sample's FLOPs, with backward if trained; None for a model of your own.

    Counts matrix products only, a multiplication and an addition as two (PaLM, arXiv:2204.02311,
    appendix B). The backward costs twice the forward.
    """
    if args.model not in FAMILIES:
        return None
    layers = model_shapes.layers(args.model, args.size, **shape(args))
    return sum(layer.flops for layer in layers) * (3 if trained else 1)


def own_name(name: str) -> str:
    return name.removeprefix("module.")


def own_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Map a model's parameters and persistent buffers by name, without a wrapper's prefix."""
    tensors = model.state_dict(keep_vars=True).items()
    return {own_name(k): v for k, v in tensors if isinstance(v, torch.Tensor)}


class NextByte(nn.Module):
    """A model as it is served, (batch, length) int64 -> (batch, 256): scores of the next byte.

    pad_to: compute with this length, whatever the input's. Bytes behind the last one can't change
    its scores, since the model never looks ahead. An LSTM needs it to be exported: torch.export
    unrolls its loop over time, which fixes the length.
    """

    def __init__(self, model: nn.Sequential, pad_to: int | None = None):
        super().__init__()
        self.body, self.head, self.pad_to = model[:-1], model[-1], pad_to

    def forward(self, ids):
        length = ids.shape[1]
        if self.pad_to:
            ids = nn.functional.pad(ids, (0, self.pad_to - length))
        return self.head(self.body(ids)[:, length - 1])
