"""Consolidation: one safetensors file of parameters from a checkpoint of any number of ranks.

torch.distributed.checkpoint (DCP) puts sharded parameters together in this process. A safetensors
file runs no code when it is read; a checkpoint's index is a pickle, which does: trust its writer.
"""

import argparse
from pathlib import Path

from bootcamp.files import write_whole
from bootcamp.serving import artifacts
from bootcamp.train import models, sharded_checkpoint
from bootcamp.train.checkpoint import FORMAT
from bootcamp.train.process_end import ConfigError

SERVED = ("gpt", "striped-lstm")  # they predict at every position, of a text of any length


def write(checkpoint: Path | str, place: Path | str) -> artifacts.ModelInfo:
    """Write a checkpoint's parameters and buffers into one safetensors file.

    checkpoint: a file or a folder that --save has written, or one of the steps in that folder.
    Raises ConfigError, in one sentence, for anything else and for models that are not served.
    """
    import safetensors.torch

    state, info = read(checkpoint)
    state = {name: tensor.contiguous() for name, tensor in state.items()}
    content = safetensors.torch.save(state, info.as_texts())
    write_whole(Path(place), lambda file: file.write(content))
    return info


def read(checkpoint: Path | str) -> tuple[dict, artifacts.ModelInfo]:
    """Read a checkpoint's parameters and buffers, whole and by their plain names."""
    import torch

    place, unknown = Path(checkpoint), "Give what --save has written."
    if not (place.is_file() or (place / "settings.json").exists()):
        place = sharded_checkpoint.find_newest(place)
    if place is None:
        raise ConfigError(f"{checkpoint}: no checkpoint is there. {unknown}")
    try:
        if place.is_dir():
            saved = sharded_checkpoint.read(place)
        else:  # mapped: the optimizer, which is not used, is not read
            saved = torch.load(place, map_location="cpu", weights_only=True, mmap=True)
        settings = saved["settings"] if saved["format"] == FORMAT else None
    except Exception as error:  # torch raises many kinds
        kind = getattr(error, "strerror", None) or type(error).__name__
        why = f"no checkpoint of this course can be read there ({kind})"
        raise ConfigError(f"{checkpoint}: {why}. {unknown}") from None
    if settings is None:
        raise ConfigError(f"{checkpoint}: of another version of the course. Train it anew.")
    model, size = settings["model"], settings["size"]
    if model not in SERVED:
        served = f"{' and '.join(SERVED)}, which read a text of any length"
        raise ConfigError(f"a checkpoint of {model}: the course serves {served}.")
    context = models.data_format(argparse.Namespace(model=model, size=size))["context"]
    return saved["model"], artifacts.ModelInfo(model, size, context)
