"""Whole checkpoints: model, optimizer and step in one file, which is always a good one.

`--save FILE` writes it every `--save-every` steps and after the last; `--resume FILE` begins where
it ended. The file is written beside its place, synced to the disk, then renamed: a kill at any
moment leaves the last good one. Sharded models save in their scripts, by torch.distributed.

Nothing else has to be kept: a batch depends on (seed, step) alone, and no model of the course draws
random numbers while it trains.
"""

import contextlib
import os
from pathlib import Path

import torch

from bootcamp import config, models, processes

SETTINGS = ("model", "size", "dtype", "optimizer")


def load(args, model, optimizer, **more) -> int:
    """Take up what `--resume` names; the step to begin with, 0 where there is nothing to resume.

    model, optimizer and all of `more`: whatever has a state_dict, such as scaler=GradScaler(). Each
    rank reads the file; a model wrapped in a framework's module takes up an unwrapped one's state.

    A file that is not whole, or of another model, ends the process with one sentence, exit code 2.
    """
    if not _to_resume(args):
        return 0
    try:
        saved = torch.load(args.resume, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a file that is not its own
        config.refuse(
            f"--resume {args.resume}: no checkpoint of this course ({type(error).__name__}). "
            "Give a file that --save has written."
        )
    for name in SETTINGS:
        if saved["settings"][name] != getattr(args, name):
            config.refuse(
                f"--resume {args.resume}: saved with --{name} {saved['settings'][name]}, this run "
                f"has {getattr(args, name)}. Give the flags that it was saved with."
            )
    model.load_state_dict(
        {name: saved["model"][models.own_name(name)] for name in model.state_dict()}
    )
    optimizer.load_state_dict(saved["optimizer"])
    for name, part in more.items():
        part.load_state_dict(saved[name])
    args.first_step = saved["steps_done"]
    return args.first_step


def _to_resume(args) -> bool:
    """Whether there is something to resume. The file that --save writes may still be missing.

    So one command line serves the first start and every restart of it.
    """
    if not args.resume:
        return False
    if Path(args.resume).exists():
        return True
    if args.save and Path(args.resume).resolve() == Path(args.save).resolve():
        return False
    config.refuse(
        f"--resume {args.resume}: there is no such file. Give one that --save has written, or the "
        "one that this run's --save writes."
    )
    return False


def save(args, step: int, model, optimizer, **more) -> None:
    """Write the checkpoint if one is due after this step. Rank 0 alone does; see `load`."""
    last = step + 1 == args.steps
    due = args.save and (last or (step + 1) % args.save_every == 0)
    if not due or processes.rank() != 0:
        return
    content = {
        "steps_done": step + 1,
        "settings": {name: getattr(args, name) for name in SETTINGS},
        "model": {models.own_name(name): value for name, value in model.state_dict().items()},
        "optimizer": optimizer.state_dict(),
        **{name: part.state_dict() for name, part in more.items()},
    }
    write_whole(Path(args.save).resolve(), lambda file: torch.save(content, file))


def write_whole(path: Path, write) -> None:
    """Write a file so that it is the old one or the new one, whenever this process is killed.

    write: called with a binary file beside `path`, which is synced and renamed when it returns;
    the folder is synced last, so that the new name too survives a power cut.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{path.name}.*.part"):  # of a rank that was killed in here
        left.unlink(missing_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(beside, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # some network file systems can't sync a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
