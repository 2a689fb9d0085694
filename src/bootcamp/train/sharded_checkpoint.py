"""Save and read sharded checkpoints: each rank writes its part, with DCP.

    PATH/step-40/         a complete one: each rank's file, an index, the settings
    PATH/step-40-again-2/ another of the same step, by a later run
    PATH/.step-50.4711.part/   being written by the run whose rank 0 is process 4711

DCP (torch.distributed.checkpoint) stores each tensor's place in the whole model, so any number of
ranks can read it. A folder gets its name when all files are synced, and an old one is renamed
before it is deleted, so a kill at any moment leaves a complete checkpoint.
"""

import datetime
import json
import os
import shutil
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from bootcamp.files import is_abandoned, read_json, sync_folder, write_whole
from bootcamp.train import environment, sharded_tensors
from bootcamp.train.config import RunContext

KEEP = 2  # the newest, and the one before it: a reader may just be in it


def find_newest(folder: Path) -> Path | None:
    """Find the checkpoint saved last in a folder, whatever its step; None if there is none."""
    return max(_list_complete(folder), key=_read_sequence, default=None)


def _list_complete(folder: Path) -> list[Path]:
    return [path for path in folder.glob("step-*") if (path / "settings.json").exists()]


def _read_sequence(path: Path) -> int:
    """Read a checkpoint's number among all saved into its folder; 0 if it can't be read."""
    return read_json(path / "settings.json").get("sequence", 0)


def clear_unfinished(folder: Path) -> None:
    """Remove the folders that killed runs left half-written or half-removed. For rank 0."""
    for left in folder.glob(".step-*.part"):
        if is_abandoned(left.name.removesuffix(".part").rpartition(".")[2]):
            shutil.rmtree(left, ignore_errors=True)


def write(context: RunContext, folder: Path, head: dict, state: dict) -> Callable[[], None]:
    """Begin to save a state; return a function that waits for it and publishes the folder.

    head: `format`, `steps_done` and `settings`. state: nested dictionaries of tensors and DTensors.
    All ranks must call `write` and the function that it returns.
    """
    from torch.distributed import checkpoint as dcp

    writer = environment.gather_objects(os.getpid())[0]  # a later run asks whether it is alive
    part = folder / f".step-{head['steps_done']}.{writer}.part"
    written = None
    if context.args.save_async:
        group = _own_group(context.timeout)
        written = dcp.async_save(state, checkpoint_id=part, process_group=group)
    else:
        dcp.save(state, checkpoint_id=part)

    def finish() -> None:
        if written:
            written.result()
        if environment.rank() == 0:
            _publish(part, head)

    return finish


@cache
def _own_group(timeout: datetime.timedelta):
    """Make a gloo group for DCP's thread, separate from the training's."""
    return torch.distributed.new_group(backend="gloo", timeout=timeout)


def _publish(part: Path, head: dict) -> None:
    """Rename the finished folder to a checkpoint; only then remove older ones."""
    folder = part.parent
    sequence = 1 + max(map(_read_sequence, _list_complete(folder)), default=0)
    content = json.dumps({**head, "sequence": sequence}).encode()
    write_whole(part / "settings.json", lambda file: file.write(content))  # synced with its folder
    place = folder / f"step-{head['steps_done']}"
    if place.exists():  # of an earlier run
        place = folder / f"step-{head['steps_done']}-again-{sequence}"
    os.rename(part, place)
    sync_folder(folder)
    for old in sorted(_list_complete(folder), key=_read_sequence)[:-KEEP]:
        hidden = folder / f".{old.name}.{os.getpid()}.part"
        os.rename(old, hidden)  # a kill from here on leaves nothing that looks like a checkpoint
        shutil.rmtree(hidden, ignore_errors=True)


def read(place: Path, wanted: dict[str, torch.Tensor] | None = None) -> dict:
    """Read this rank's pieces of a checkpoint, cut as its tensors are.

    wanted: this rank's parameters and buffers by name; None is all of them, whole, without the
    optimizer. Returns `steps_done`, `settings` and `sequence`, and by these names `model` (tensors)
    and `optimizer` (dictionaries). Raises an Exception for an incomplete folder.
    """
    from torch.distributed import checkpoint as dcp

    state = {"model": {}, "optimizer": {}}
    for key, about in dcp.FileSystemReader(place).read_metadata().state_dict_metadata.items():
        kind, _, name = key.partition(".")
        owner, _, entry = name.rpartition(".")
        if kind == "model" and (wanted is None or name in wanted):
            state["model"][name] = _empty_like_saved(about, wanted and wanted[name])
        elif kind == "optimizer" and wanted and owner in wanted:
            saved = _empty_like_saved(about, wanted[owner])
            state["optimizer"].setdefault(owner, {})[entry] = saved
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # as intended
        try:
            dcp.load(state, checkpoint_id=place)
        except dcp.CheckpointException as error:  # which is no Exception
            raise ValueError(f"an incomplete checkpoint: {error}") from None
    return json.loads((place / "settings.json").read_text()) | state


def _empty_like_saved(about, owner: torch.Tensor | None) -> torch.Tensor:
    """Allocate a tensor to read into, sharded as the parameter if their shapes are equal."""
    size, dtype = about.size, about.properties.dtype
    cut = None if owner is None else sharded_tensors.layout(owner)
    if cut is not None and size == cut.shape:
        part = torch.empty_like(sharded_tensors.local(owner), dtype=dtype)
        return sharded_tensors.wrap_like(part, owner)
    return torch.empty(size, dtype=dtype)
