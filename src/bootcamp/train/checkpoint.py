"""Save and load atomic, consistent checkpoints: model, optimizer and step.

The PATH of `--save` is a file that rank 0 writes, or, where parameters are sharded, a folder into
which each rank writes (sharded_checkpoint.py). Names and shapes in it are the whole model's, so any
script resumes it on any number of ranks. A kill at any moment leaves the last good one.

torch.distributed.checkpoint.state_dict would name the optimizer's state too, but fails for
ZeroRedundancyOptimizer, Horovod and DeepSpeed (torch 2.13). No random state is kept: a batch
depends on (seed, step) alone, and no model of the course draws numbers while it trains.
"""

import contextlib
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
from torch.utils._pytree import tree_map_only

from bootcamp.files import write_whole
from bootcamp.train import environment, models, sharded_checkpoint, shards
from bootcamp.train.process_group import from_all_ranks
from bootcamp.train.refusal import ConfigError, refuse
from bootcamp.train.run_context import MODEL_PARALLEL_AXES, RunContext

FORMAT = 2  # of what is saved; a file of another is refused
SETTINGS = ("model", "size", "kv_heads", "dtype", "optimizer")
BEAT_SECONDS = 2.0
_writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
_being_written: list[Future] = []


def load(context: RunContext, model, optimizer, **more) -> int:
    """Load what `--resume` names; return the step to begin with, 0 without a checkpoint yet.

    more: whatever has a state_dict, such as scaler=GradScaler(); begins anew if it was not saved.
    All ranks must call this. A bad checkpoint ends the process with exit code 2.
    """
    args = context.args
    if args.save:
        _check_place(Path(args.save), in_parts(context, model))
    if not args.resume:
        return 0
    place = _agree(args, lambda: _find(args), lambda found: found and found.name)
    if place is None:
        return 0
    saved = _agree(args, lambda: _read(args, place, model), lambda saved: saved["steps_done"])
    if _keeps_flat_parts(model):
        shards.fill_deepspeed(model, saved)
        shards.fill(_buffers(model), saved["model"])
    else:
        shards.fill(named_parameters(model) | _buffers(model), saved["model"])
        _load_optimizer(model, optimizer, saved["optimizer"])
    for name in more.keys() & saved.keys():
        more[name].load_state_dict(saved[name])
    context.first_step = saved["steps_done"]
    return context.first_step


def _check_place(path: Path, folder: bool) -> None:
    """Refuse a place that can't be written to now, rather than after hours of training."""
    if path.exists() and path.is_dir() != folder:
        kinds = ("a file", "a folder") if folder else ("a folder", "a file")
        refuse(
            f"--save {path}: this is {kinds[0]}, and this script saves into {kinds[1]}. "
            "Give another place; --resume takes up either."
        )
    if folder and environment.rank() == 0:
        sharded_checkpoint.clear_unfinished(path)


def _agree(args, look, mark):
    """Call `look` on every rank; refuse if one raises ConfigError or `mark` of it differs."""
    seen = same = problem = None
    try:
        seen = look()
        same = mark(seen)
    except ConfigError as error:
        problem = f"--resume {args.resume}: {error}"
    answers = from_all_ranks((same, problem))
    for _, each in answers:
        if each:
            refuse(each)
    if len(set(answers)) > 1:
        refuse(
            f"--resume {args.resume}: not all ranks find the same there. Give a place on a disk "
            "that all hosts share."
        )
    return seen


def _find(args) -> Path | None:
    """Find the file or folder to resume; None if this run's --save will write it.

    So one command serves the first start and each restart. Raises ConfigError if it is missing.
    """
    path = Path(args.resume)
    if path.is_file():
        return path
    if newest := sharded_checkpoint.newest(path):
        return newest
    if args.save and path.resolve() == Path(args.save).resolve():
        return None
    raise ConfigError(
        "there is no such file. Give one that --save has written, or that this run's --save writes."
    )


def _read(args, place: Path, model) -> dict:
    """Read a file's tensors, or of a folder what this rank needs. Raises ConfigError."""
    try:
        if place.is_dir():
            saved = sharded_checkpoint.read(place, named_parameters(model) | _buffers(model))
        else:
            saved = torch.load(place, map_location="cpu", weights_only=True, mmap=True)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except OSError as error:
        raise ConfigError(
            f"it can't be read: {error.strerror or error}. Give a place that every rank may read."
        ) from None
    except (Exception, sharded_checkpoint.read_error()) as error:  # torch raises many kinds
        raise ConfigError(
            f"no checkpoint of this course ({type(error).__name__}). "
            "Give a file or a folder that --save has written."
        ) from None
    _check_saved(args, saved)
    return saved


def _check_saved(args, saved: dict) -> None:
    """Raise ConfigError for what another version, another model or a longer run has saved."""
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        raise ConfigError(
            "no checkpoint of this version of the course. "
            "Give a file or a folder that its --save has written."
        )
    for name in SETTINGS:
        was, now = saved["settings"].get(name), getattr(args, name, None)
        if was != now:
            raise ConfigError(
                f"saved with --{name.replace('_', '-')} {was}, this run has {now}. "
                "Give the flags that it was saved with."
            )
    if saved["steps_done"] >= args.steps:
        raise ConfigError(
            f"it was saved after {saved['steps_done']} steps, and this run ends after "
            f"{args.steps}. Give more --steps."
        )


def named_parameters(model) -> dict[str, torch.nn.Parameter]:
    """Map a model's parameters by name, without a wrapper's prefix."""
    return {models.own_name(name): value for name, value in model.named_parameters()}


def _buffers(model) -> dict[str, torch.Tensor]:
    """Map a model's persistent buffers, such as BatchNorm's statistics, by name."""
    named = {models.own_name(name): value for name, value in model.state_dict().items()}
    for name in named_parameters(model).keys() & named.keys():
        del named[name]
    return {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}


def _load_optimizer(model, optimizer, saved: dict) -> None:
    """Number the state for the optimizer; settings such as the learning rate are this run's."""
    numbered = _numbered(model, optimizer)
    state = {
        number: {key: shards.cut_like(value, parameter).clone() for key, value in own.items()}
        for number, (name, parameter) in enumerate(numbered)
        if (own := saved.get(name))
    }
    numbers = iter(range(len(numbered)))
    groups = [
        {**group, "params": [next(numbers) for _ in group["params"]]}
        for group in optimizer.param_groups
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _named_state(model, optimizer) -> dict[str, dict]:
    """Name an optimizer's state: {"head.weight": {"exp_avg": ...}, ...}."""
    state = optimizer.state_dict()["state"]
    return {
        name: state[number]
        for number, (name, _) in enumerate(_numbered(model, optimizer))
        if number in state
    }


def _numbered(model, optimizer) -> list[tuple[str, torch.nn.Parameter]]:
    """List names and parameters in the order of the optimizer."""
    names = {id(parameter): name for name, parameter in named_parameters(model).items()}
    ordered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [(names[id(parameter)], parameter) for parameter in ordered]


def save(context: RunContext, step: int, model, optimizer, *, now: bool = False, **more) -> None:
    """Write a checkpoint if one is due after this step. All ranks must call this; see `load`.

    now: write it in any case, because no further step follows; the same on every rank.
    The record gets the rows of all its steps first: a run that resumes goes on behind them.
    """
    args = context.args
    last = now or step + 1 == args.steps
    if not args.save or not (last or (step + 1) % args.save_every == 0):
        return
    settings = {name: getattr(args, name, None) for name in SETTINGS}
    head = {"format": FORMAT, "steps_done": step + 1, "settings": settings}
    with _signs_of_life(context):
        if context.write_steps:
            context.write_steps()
        _finish_writing()
        begin = _begin_parts if in_parts(context, model) else _begin_file
        if finish := begin(context, head, model, optimizer, more):
            _being_written.append(_writer.submit(finish))
        if last or not args.save_async:
            _finish_writing()


def _begin_parts(context: RunContext, head: dict, model, optimizer, more: dict):
    """Begin to write this rank's state, each tensor with its place in the whole model's."""
    if more:
        raise TypeError(f"a sharded checkpoint has no room for {', '.join(more)}")
    own = named_parameters(model)
    cut = {name: shards.wrap_like(value.detach(), value) for name, value in own.items()}
    state = {
        name: {key: shards.wrap_like(value, own[name]) for key, value in values.items()}
        for name, values in _named_state(model, optimizer).items()
    }
    cut = {"model": cut | _buffers(model), "optimizer": state}
    return sharded_checkpoint.write(context, Path(context.args.save).resolve(), head, cut)


def _begin_file(context: RunContext, head: dict, model, optimizer, more: dict):
    """Gather the whole state on rank 0, which alone has something to write."""
    content = _whole(model, optimizer) | {name: part.state_dict() for name, part in more.items()}
    if environment.rank() != 0:
        return None
    if context.args.save_async:
        content = tree_map_only(torch.Tensor, lambda t: t.detach().cpu().clone(), content)
    path = Path(context.args.save).resolve()
    return partial(write_whole, path, partial(torch.save, head | content))


@contextlib.contextmanager
def _signs_of_life(context: RunContext):
    """Beat while a checkpoint is written: a slow disk is no hang, as far as --timeout allows."""
    written, ends = threading.Event(), time.monotonic() + context.timeout.total_seconds()

    def beat():
        while not written.wait(BEAT_SECONDS) and time.monotonic() < ends:
            context.heartbeat.beat()

    beating = threading.Thread(target=beat, daemon=True)
    beating.start()
    try:
        yield
    finally:
        written.set()
        beating.join()


def _finish_writing() -> None:
    """Wait for the checkpoint that is being written. Raises what went wrong."""
    while _being_written:
        _being_written.pop().result()


def in_parts(context: RunContext, model) -> bool:
    """Whether a checkpoint has a part from each rank: of DTensors, of stages or of experts."""
    if set(context.axes) & {*MODEL_PARALLEL_AXES, "expert"}:
        return True
    return any(shards.layout(parameter) is not None for parameter in model.parameters())


def _keeps_flat_parts(model) -> bool:
    return shards.is_deepspeed(model) and model.zero_optimization_stage() > 0


def _whole(model, optimizer) -> dict:
    """Gather the state that rank 0 writes; sharded optimizers consolidate theirs first."""
    if _keeps_flat_parts(model):
        state = shards.gather_deepspeed(model, keep=environment.rank() == 0)
        return {**state, "model": state["model"] | _buffers(model)}
    if hasattr(optimizer, "consolidate_state_dict"):  # torch's ZeroRedundancyOptimizer
        optimizer.consolidate_state_dict(to=0)
    if environment.rank() != 0:
        return {}
    parameters = {name: value.detach() for name, value in named_parameters(model).items()}
    return {"model": parameters | _buffers(model), "optimizer": _named_state(model, optimizer)}
