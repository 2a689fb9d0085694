"""Save and load atomic, consistent checkpoints: model, optimizer and step.

The PATH of `--save` is a file that rank 0 writes, or, where parameters are sharded, a folder into
which each rank writes (sharded_checkpoint.py). Names and shapes in it are the whole model's, so any
script resumes it on any number of ranks. No random state is kept: a batch depends on (seed, step)
alone, and no model of the course draws numbers while it trains.
"""

import contextlib
import itertools
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
from torch.utils._pytree import tree_map_only

from bootcamp.files import write_whole
from bootcamp.train import environment, models, sharded_checkpoint, sharded_tensors
from bootcamp.train.config import MODEL_PARALLEL_AXES, RunContext
from bootcamp.train.process_end import ConfigError, refuse

FORMAT = 2  # of a checkpoint; a file of another is refused
SETTINGS = ("model", "size", "kv_heads", "dtype", "optimizer")
BEAT_SECONDS = 2.0
_writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
_being_written: list[Future] = []


def load(context: RunContext, model, optimizer, **more) -> int:
    """Load the checkpoint of `--resume`; return the step to begin with, 0 without one yet.

    more: whatever has a state_dict, such as scaler=GradScaler(); begins anew if it was not saved.
    All ranks must call this. A bad checkpoint ends the process with exit code 2.
    """
    args = context.args
    if args.save:
        _check_place(Path(args.save), _is_sharded(context, model))
    if not args.resume:
        return 0
    place = _agree(args, lambda: _find(args), lambda found: found.name)
    if place is None:
        return 0
    saved = _agree(args, lambda: _read(args, place, model), lambda saved: saved["steps_done"])
    if _is_flattened(model):
        sharded_tensors.fill_deepspeed(model, saved)
    else:
        sharded_tensors.fill(models.own_tensors(model), saved["model"])
        _load_optimizer(model, optimizer, saved["optimizer"])
    for name in more.keys() & saved.keys():
        more[name].load_state_dict(saved[name])
    context.first_step = saved["steps_done"]
    return context.first_step


def _check_place(path: Path, is_folder: bool) -> None:
    """Refuse a place that can't be written to now, rather than after hours of training."""
    if path.exists() and path.is_dir() != is_folder:
        found, expected = ("a file", "a folder") if is_folder else ("a folder", "a file")
        refuse(f"--save {path}: this is {found}, and this script saves into {expected}: name one.")
    if is_folder and environment.rank() == 0:
        sharded_checkpoint.clear_unfinished(path)


def _agree(args, look, mark):
    """Call `look` on every rank; refuse if one raises ConfigError or `mark` of it differs."""
    seen = problem = None
    try:
        seen = look()
    except ConfigError as error:
        problem = str(error)
    answers = environment.gather_objects((problem, seen and mark(seen)))
    problems = [problem for problem, _ in answers if problem]
    if len(set(answers)) > 1:
        advice = "Give a place on a disk that all hosts share."
        problems.append(f"not all ranks find the same there. {advice}")
    if problems:
        refuse(f"--resume {args.resume}: {problems[0]}")
    return seen


def _find(args) -> Path | None:
    """Find what to resume; None if --save will write it. Raises ConfigError if it is missing."""
    path = Path(args.resume)
    place = path if path.is_file() else sharded_checkpoint.find_newest(path)
    is_own = args.save and path.resolve() == Path(args.save).resolve()
    if place is None and not is_own:
        raise ConfigError("there is no such file. Give one that --save has written or writes.")
    return place


def _read(args, place: Path, model) -> dict:
    """Read a file's tensors, or of a folder those this rank needs. Raises ConfigError."""
    try:
        if place.is_dir():
            saved = sharded_checkpoint.read(place, models.own_tensors(model))
        else:
            saved = torch.load(place, map_location="cpu", weights_only=True, mmap=True)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except OSError as error:
        raise ConfigError(f"it can't be read by every rank: {error.strerror or error}.") from None
    except Exception as e:  # torch raises many kinds
        why = f"{type(e).__name__}: {e}".partition("\n")[0][:160]
        raise ConfigError(f"no checkpoint of this course ({why}). Give one of --save.") from None
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        raise ConfigError("no checkpoint of this version of the course. Give one of its --save.")
    for name in SETTINGS:
        was, now, key = saved["settings"].get(name), getattr(args, name), name.replace("_", "-")
        if was != now:
            raise ConfigError(f"saved with --{key} {was}, this run has {now}. Give --{key} {was}.")
    if (done := saved["steps_done"]) >= args.steps:
        why = f"saved after {done} steps, and this run ends after {args.steps}"
        raise ConfigError(f"{why}. Give more --steps.")
    return saved


def _load_optimizer(model, optimizer, saved: dict) -> None:
    """Load an optimizer's state; settings such as the learning rate stay those of this run."""
    state = {
        number: {key: sharded_tensors.cut_like(v, parameter).clone() for key, v in own.items()}
        for number, (name, parameter) in enumerate(_optimized_parameters(model, optimizer))
        if (own := saved.get(name))
    }
    # numbered here: ZeroRedundancyOptimizer has a state_dict() only after it was consolidated
    numbers = itertools.count()
    groups = [
        {**group, "params": [next(numbers) for _ in group["params"]]}
        for group in optimizer.param_groups
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _optimized_parameters(model, optimizer) -> list[tuple[str, torch.nn.Parameter]]:
    """List names and parameters in the order of the optimizer.

    torch.distributed.checkpoint.state_dict would name the optimizer's state too, but fails for
    ZeroRedundancyOptimizer, Horovod and DeepSpeed (torch 2.13).
    """
    names = {id(tensor): name for name, tensor in models.own_tensors(model).items()}
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
    settings = {name: getattr(args, name) for name in SETTINGS}
    head = {"format": FORMAT, "steps_done": step + 1, "settings": settings}
    with _signs_of_life(context):
        if context.write_steps:
            context.write_steps()
        _finish_writing()
        if finish := _begin_writing(context, head, model, optimizer, more):
            _being_written.append(_writer.submit(finish))
        if last or not args.save_async:
            _finish_writing()


def _begin_writing(context: RunContext, head: dict, model, optimizer, more: dict):
    """Collect the state; return the function that writes it, None on ranks without a part."""
    path, state = Path(context.args.save).resolve(), collect_state(model, optimizer)
    if _is_sharded(context, model):
        if more:
            raise TypeError(f"a sharded checkpoint has no room for {', '.join(more)}")
        return sharded_checkpoint.write(context, path, head, state)
    if environment.rank() != 0:
        return None
    content = head | state | {name: part.state_dict() for name, part in more.items()}
    if context.args.save_async:
        content = tree_map_only(torch.Tensor, lambda t: t.detach().cpu().clone(), content)
    return partial(write_whole, path, partial(torch.save, content))


def collect_state(model, optimizer) -> dict[str, dict]:
    """Collect `model` and `optimizer` by parameter name, a rank's parts as DTensors.

    Of DeepSpeed and ZeroRedundancyOptimizer rank 0 gets the whole state. All ranks must call this.
    """
    rank, wrap, local = environment.rank(), sharded_tensors.wrap_like, sharded_tensors.local
    if _is_flattened(model):
        return sharded_tensors.gather_deepspeed(model, keep=rank == 0)
    if hasattr(optimizer, "consolidate_state_dict"):  # torch's ZeroRedundancyOptimizer
        optimizer.consolidate_state_dict(to=0)
        if rank != 0:
            return {}
    own = models.own_tensors(model).items()
    tensors = {k: wrap(local(v).detach().as_subclass(torch.Tensor), v) for k, v in own}
    values = optimizer.state_dict()["state"]
    state = {
        name: {key: wrap(value, parameter) for key, value in values[number].items()}
        for number, (name, parameter) in enumerate(_optimized_parameters(model, optimizer))
        if number in values
    }
    return {"model": tensors, "optimizer": state}


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
    """Wait for the checkpoint that is being written. Raises the writer's exception."""
    while _being_written:
        _being_written.pop().result()


def _is_sharded(context: RunContext, model) -> bool:
    """Return whether each rank writes a part: of DTensors, of stages or of experts."""
    if set(context.axes) & {*MODEL_PARALLEL_AXES, "expert"}:
        return True
    return any(sharded_tensors.layout(parameter) is not None for parameter in model.parameters())


def _is_flattened(model) -> bool:
    return sharded_tensors.is_deepspeed(model) and model.zero_optimization_stage() > 0
