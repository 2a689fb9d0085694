"""A checkpoint in parts: each rank writes what it holds, by torch.distributed.checkpoint (DCP).

    PATH/step-40/         the newest good one: each rank's file, what lies where, the settings
    PATH/.step-50.part/   being written

DCP writes tensors under their names in the whole model, with their places in it. So a reader may be
on another number of ranks, or not distributed at all: each reads the pieces that it needs. A folder
gets its name when all ranks have written and synced their files, and the one before is removed
after that: a kill at any moment leaves a good one.
"""

import json
import os
import re
import shutil
from concurrent.futures import Future
from pathlib import Path

import torch

from bootcamp import processes, shards

KEEP = 2  # the newest, and the one before it: a reader may just be in it
_process_group = None  # of its own: a write in the background must not mix with the training


def newest(folder: Path) -> Path | None:
    """The newest good checkpoint in a folder."""
    return max(_good(folder), key=_step, default=None)


def _good(folder: Path) -> list[Path]:
    return [path for path in folder.glob("step-*") if re.fullmatch(r"step-\d+", path.name)]


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def clear_unfinished(folder: Path) -> None:
    """Remove what a killed run has left half-written. For rank 0, before any rank writes."""
    for left in folder.glob(".step-*.part"):
        shutil.rmtree(left, ignore_errors=True)


def write(args, folder: Path, head: dict, state: dict) -> Future:
    """Begin to write a state; the future is done when the checkpoint has its place.

    head: `steps_done` and `settings`. state: nested dictionaries of tensors and DTensors. All ranks
    have to call this.
    """
    from torch.distributed import checkpoint as dcp

    step = head["steps_done"]
    part, place = folder / f".step-{step}.part", folder / f"step-{step}"
    if processes.rank() == 0:
        part.mkdir(parents=True, exist_ok=True)
        (part / "settings.json").write_text(json.dumps(head))

    def give_place(written: Future) -> None:
        written.result()
        if processes.rank() == 0:
            _give_place(part, place)

    done = Future()
    if args.save_async:
        written = dcp.async_save(state, checkpoint_id=part, process_group=_own_group(args))
        written.add_done_callback(lambda f: _carry(f, give_place, done))
    else:
        written = Future()
        written.set_result(dcp.save(state, checkpoint_id=part))
        _carry(written, give_place, done)
    return done


def _carry(written: Future, then, done: Future) -> None:
    """Run `then` after a future, and let another future tell how that ended."""
    try:
        then(written)
        done.set_result(None)
    except BaseException as error:
        done.set_exception(error)


def _own_group(args):
    """A process group over gloo beside the training's, whose collectives run in another thread."""
    global _process_group
    if _process_group is None:
        import torch.distributed as dist

        _process_group = dist.new_group(backend="gloo", timeout=args.timeout)
    return _process_group


def _give_place(part: Path, place: Path) -> None:
    from bootcamp.checkpoint import sync_folder

    sync_folder(part)
    shutil.rmtree(place, ignore_errors=True)  # of a run that was resumed before it
    os.rename(part, place)
    sync_folder(place.parent)
    for old in sorted(_good(place.parent), key=_step)[:-KEEP]:
        shutil.rmtree(old, ignore_errors=True)


def read(folder: Path, wanted: dict[str, torch.Tensor]) -> dict:
    """The newest good checkpoint, cut as these tensors are: each rank reads its own pieces.

    wanted: the model's parameters and buffers that this rank has, by name. Returns `steps_done`,
    `settings`, `model` and `optimizer`, the latter two by these names.
    """
    from torch.distributed import checkpoint as dcp

    place = newest(folder)
    state = {"model": {}, "optimizer": {}}
    for key, about in dcp.FileSystemReader(place).read_metadata().state_dict_metadata.items():
        kind, _, name = key.partition(".")
        if kind == "model" and name in wanted:
            state["model"][name] = _room(about, wanted[name])
            continue
        name, _, entry = name.rpartition(".")
        if kind == "optimizer" and name in wanted:
            state["optimizer"].setdefault(name, {})[entry] = _room(about, wanted[name])
    dcp.load(state, checkpoint_id=place)
    return json.loads((place / "settings.json").read_text()) | state


def _room(about, owner: torch.Tensor) -> torch.Tensor:
    """Room for one tensor of a checkpoint, cut as its owner if it has that one's shape."""
    size, dtype, cut = about.size, about.properties.dtype, shards.layout(owner)
    if cut is not None and size == cut.shape:
        return shards.like(torch.empty_like(shards.local(owner), dtype=dtype), owner)
    return torch.empty(size, dtype=dtype)
