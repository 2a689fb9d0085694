"""One file of parameters from a checkpoint, however many ranks have written it.

    consolidate.write("logs/a/checkpoint", "logs/exported/gpt.safetensors")

Nothing but parameters and buffers is read, and no rank is started: where they were sharded,
torch.distributed.checkpoint (DCP) puts the pieces together in this process
(https://docs.pytorch.org/docs/stable/distributed.checkpoint.html). A safetensors file is a header
in JSON and then the tensors' bytes: any language reads it, and unlike a pickle it runs no code when
it is read. A checkpoint's index is a pickle: consolidate only those of somebody you trust.
"""

import argparse
import json
import warnings
from pathlib import Path

from bootcamp.files import write_whole
from bootcamp.serving import artifacts
from bootcamp.train import models
from bootcamp.train.checkpoint import FORMAT
from bootcamp.train.refusal import ConfigError
from bootcamp.train.sharded_checkpoint import newest, read_error

SERVED = ("gpt", "striped-lstm")  # they predict at every position, of a text of any length
PREFIX = "model."  # of the model's tensors in a checkpoint in parts


def write(checkpoint: Path | str, place: Path | str) -> artifacts.About:
    """Write a checkpoint's parameters and buffers into one safetensors file.

    checkpoint: a file or a folder that --save has written, or one of the steps in that folder.
    Raises ConfigError, in one sentence, for anything else and for models that are not served.
    """
    import safetensors.torch

    state, about = read(checkpoint)
    content = {name: tensor.contiguous() for name, tensor in state.items()}
    written = safetensors.torch.save(content, about.words())
    write_whole(Path(place), lambda file: file.write(written))
    return about


def read(checkpoint: Path | str) -> tuple[dict, artifacts.About]:
    """Read a checkpoint's parameters and buffers, whole and by their plain names; which model's."""
    path = Path(checkpoint)
    place = path if path.is_file() or (path / "settings.json").exists() else newest(path)
    if place is None:
        raise ConfigError(f"{checkpoint}: no checkpoint is there. Give what --save has written.")
    try:
        head, state = _read_parts(place) if place.is_dir() else _read_file(place)
        settings = head["settings"] if head["format"] == FORMAT else None
    except OSError as error:
        raise ConfigError(f"{checkpoint}: {error.strerror or error}.") from None
    except (Exception, read_error()) as error:  # torch raises many kinds
        raise ConfigError(
            f"{checkpoint}: no checkpoint of this course ({type(error).__name__}). "
            "Give what --save has written."
        ) from None
    if settings is None:
        raise ConfigError(f"{checkpoint}: of another version of the course. Train it anew.")
    model, size = settings["model"], settings["size"]
    if model not in SERVED:
        raise ConfigError(
            f"a checkpoint of {model}: the course serves {' and '.join(SERVED)}, which "
            "read a text of any length."
        )
    context = models.data_format(argparse.Namespace(model=model, size=size))["context"]
    return state, artifacts.About(model, size, context)


def _read_file(place: Path) -> tuple[dict, dict]:
    import torch

    saved = torch.load(place, map_location="cpu", weights_only=True, mmap=True)
    return saved, saved["model"]  # mapped: what is not used, the optimizer, is not read


def _read_parts(place: Path) -> tuple[dict, dict]:
    import torch
    from torch.distributed import checkpoint as dcp

    entries = dcp.FileSystemReader(place).read_metadata().state_dict_metadata
    state = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype)
        for key, entry in entries.items()
        if key.startswith(PREFIX)
    }
    with warnings.catch_warnings():  # that no ranks are there, which is meant
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.load(state, checkpoint_id=place, no_dist=True)
    own = {key.removeprefix(PREFIX): tensor for key, tensor in state.items()}
    return json.loads((place / "settings.json").read_text()), own
