"""Checkpoints: model, optimizer and step, always of one moment, always good ones.

`--save PATH` writes one every `--save-every` steps and after the last; `--resume PATH` goes on
where it ended. Where each rank holds the whole model, PATH is a file that rank 0 writes. Where the
ranks hold parts, it is a folder into which each of them writes its own (sharded_checkpoint.py).
Each script takes up either, on any number of ranks: what is saved has the names and shapes of the
whole model's parameters.

A file is written beside its place, synced to the disk, then renamed: a kill at any moment leaves
the last good one. With `--save-async` the state is copied, and written while training goes on.

Nothing else has to be kept: a batch depends on (seed, step) alone, and no model of the course draws
random numbers while it trains.
"""

import contextlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

from bootcamp import config, deepspeed_state, models, processes, sharded_checkpoint, shards

SETTINGS = ("model", "size", "dtype", "optimizer")
_writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
_being_written: list[Future] = []


def load(args, model, optimizer, **more) -> int:
    """Take up what `--resume` names; the step to begin with, 0 where there is nothing to resume.

    model, optimizer and all of `more`: whatever has a state_dict, such as scaler=GradScaler(). Each
    rank reads; a model wrapped in a framework's module takes up an unwrapped one's state.

    What is not whole, or of another model, ends the process with one sentence, exit code 2.
    """
    if args.save and processes.rank() == 0:
        sharded_checkpoint.clear_unfinished(Path(args.save))
    if not _to_resume(args):
        return 0
    try:
        saved = _read(args, model, optimizer)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # torch raises many kinds, DCP's is not even an Exception
        config.refuse(
            f"--resume {args.resume}: no checkpoint of this course ({type(error).__name__}). "
            "Give a file or a folder that --save has written."
        )
    for name in SETTINGS:
        if saved["settings"][name] != getattr(args, name):
            config.refuse(
                f"--resume {args.resume}: saved with --{name} {saved['settings'][name]}, this run "
                f"has {getattr(args, name)}. Give the flags that it was saved with."
            )
    if saved["steps_done"] >= args.steps:
        config.refuse(
            f"--resume {args.resume}: it was saved after {saved['steps_done']} steps, and this run "
            f"ends after {args.steps}. Give more --steps."
        )
    if _keeps_flat_parts(model):
        deepspeed_state.load(model, saved)
    else:
        _load_parameters(model, saved["model"])
        _load_optimizer(model, optimizer, saved["optimizer"])
    for name, part in more.items():
        part.load_state_dict(saved[name])
    args.first_step = saved["steps_done"]
    return args.first_step


def _read(args, model, optimizer) -> dict:
    path = Path(args.resume)
    if path.is_dir():
        return sharded_checkpoint.read(path, named_parameters(model) | _buffers(model))
    return torch.load(path, map_location="cpu", weights_only=True)


def named_parameters(model) -> dict[str, torch.nn.Parameter]:
    """A model's parameters by their own names, without what a wrapper puts before them."""
    return {models.own_name(name): value for name, value in model.named_parameters()}


def _buffers(model) -> dict[str, torch.Tensor]:
    """What is neither a parameter nor made anew at each start: a BatchNorm's running statistics."""
    parameters, state = named_parameters(model), model.state_dict()
    named = {models.own_name(name): value for name, value in state.items()}
    kept = {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}
    return {name: value for name, value in kept.items() if name not in parameters}


@torch.no_grad()
def _load_parameters(model, saved: dict) -> None:
    for name, own in (named_parameters(model) | _buffers(model)).items():
        shards.local(own).copy_(shards.local(shards.cut_as(saved[name], own)))


def _load_optimizer(model, optimizer, saved: dict) -> None:
    """Hand the optimizer its state, which is saved by name, in its own numbering.

    Its settings, such as the learning rate, are this run's.
    """
    names = {id(parameter): name for name, parameter in named_parameters(model).items()}
    state, groups, count = {}, [], 0
    for group in optimizer.param_groups:
        numbers = range(count, count := count + len(group["params"]))
        groups.append({**group, "params": list(numbers)})
        for number, parameter in zip(numbers, group["params"], strict=True):
            own = saved.get(names[id(parameter)], {})
            state[number] = {key: shards.cut_as(value, parameter) for key, value in own.items()}
    filled = {number: own for number, own in state.items() if own}
    optimizer.load_state_dict({"state": filled, "param_groups": groups})


def named_state(model, optimizer) -> dict[str, dict]:
    """An optimizer's state by its parameters' names, {"head.weight": {"exp_avg": ...}, ...}."""
    names = {id(parameter): name for name, parameter in named_parameters(model).items()}
    ordered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = optimizer.state_dict()["state"]
    return {
        names[id(parameter)]: state[number]
        for number, parameter in enumerate(ordered)
        if number in state
    }


def _to_resume(args) -> bool:
    """Whether there is something to resume. What --save writes may still be missing.

    So one command line serves the first start and every restart of it.
    """
    if not args.resume:
        return False
    path = Path(args.resume)
    if path.is_file() or path.is_dir() and sharded_checkpoint.newest(path):
        return True
    if args.save and path.resolve() == Path(args.save).resolve():
        return False
    config.refuse(
        f"--resume {args.resume}: there is no such file. Give one that --save has written, or the "
        "one that this run's --save writes."
    )
    return False


def save(args, step: int, model, optimizer, **more) -> None:
    """Write the checkpoint if one is due after this step. Every rank has to call this; see `load`.

    The one before is finished first, and after the last step this one too.
    """
    last = step + 1 == args.steps
    if not args.save or not (last or (step + 1) % args.save_every == 0):
        return
    finish_writing()
    head = {
        "steps_done": step + 1,
        "settings": {name: getattr(args, name) for name in SETTINGS},
    }
    path = Path(args.save).resolve()
    if in_parts(args, model):
        state = _parts(model, optimizer)
        _being_written.append(sharded_checkpoint.write(args, path, head, state))
    else:
        content = _whole(model, optimizer)
        content |= {name: part.state_dict() for name, part in more.items()}
        if processes.rank() == 0:
            _being_written.append(_write_file(args, path, head | content))
    if last or not args.save_async:
        finish_writing()


def finish_writing() -> None:
    """Wait until the checkpoint that is being written has its place. Raises what went wrong."""
    while _being_written:
        _being_written.pop().result()


def in_parts(args, model) -> bool:
    """Whether the ranks hold parts of the model, rather than each the whole of it."""
    if set(args.axes) & set(config.HOLD_ONE_MODEL):
        return True
    return any(shards.layout(parameter) is not None for parameter in model.parameters())


def _keeps_flat_parts(model) -> bool:
    return deepspeed_state.is_engine(model) and model.zero_optimization_stage() > 0


def _whole(model, optimizer) -> dict:
    """The state as rank 0 writes it; optimizers that shard theirs put it together first."""
    if _keeps_flat_parts(model):
        return deepspeed_state.gather(model)
    if hasattr(optimizer, "consolidate_state_dict"):  # torch's ZeroRedundancyOptimizer
        optimizer.consolidate_state_dict(to=0)
    if processes.rank() != 0:
        return {}
    parameters = {name: value.detach() for name, value in named_parameters(model).items()}
    return {"model": parameters | _buffers(model), "optimizer": named_state(model, optimizer)}


def _parts(model, optimizer) -> dict:
    """The state of this rank, each tensor with its place in the whole model's."""
    parameters = named_parameters(model)
    cut = {name: shards.like(value.detach(), value) for name, value in parameters.items()}
    state = {
        name: {key: shards.like(value, parameters[name]) for key, value in own.items()}
        for name, own in named_state(model, optimizer).items()
    }
    return {"model": cut | _buffers(model), "optimizer": state}


def _write_file(args, path: Path, content: dict) -> Future:
    if args.save_async:
        content = copied(content)
    return _writer.submit(write_whole, path, lambda file: torch.save(content, file))


def copied(state):
    """The same nested dictionary with copies of its tensors on the CPU, which training leaves."""
    if isinstance(state, dict):
        return {name: copied(value) for name, value in state.items()}
    return state.detach().cpu().clone() if isinstance(state, torch.Tensor) else state


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
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Bring the names in a folder to the disk."""
    with contextlib.suppress(OSError):  # some network file systems can't sync a folder
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
