"""Lesson 02c: a step's operators, calls, compiled graphs, rounding errors and data loading."""

import logging
from argparse import Namespace
from collections.abc import Callable
from statistics import mean, median

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bootcamp import machine
from bootcamp.records import trace
from bootcamp.table import Table
from bootcamp.train import benchmark, data, models, optimizers

MATRIX_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")


def profile_table(run, shown: int = 7) -> Table:
    """Table the time of a run's traced step: its longest operators, the rest, and Python."""
    path = run.folder / "ranks" / "0.trace.json"
    found = trace.time_operators(path)
    products = sum(found[name][1] for name in MATRIX_PRODUCTS if name in found)
    share = products / sum(seconds for _, seconds in found.values())
    names = [name for name in found if name.startswith("aten::") or run.device == "cuda"][:shown]
    rows = [(name, *found.pop(name)) for name in names]
    rest = [sum(column) for column in zip(*found.values(), strict=True)]
    rows.append((f"{len(found)} others", *rest))
    step = trace.read_timeline(path)["seconds"]
    rows.append(("outside of operators", "-", step - sum(seconds for _, _, seconds in rows)))
    named = [
        {"operator": name, "calls": calls, "own ms": 1e3 * own, "%": 100 * own / step}
        for name, calls, own in rows
    ]
    caption = f"One step of {run.label}, traced here. Matrix products: {share:.0%} of all operators"
    return Table(named, caption)


def choose_backend() -> str:
    """Return the backend of torch.compile that works here; print why it is not the default."""
    lacking = machine.find_missing_for_inductor(torch.__path__[0])
    if torch.cuda.is_available() or lacking is None:
        return "inductor"
    print(f"No GPU, and this machine lacks {lacking}: the graph is recorded, no kernel is written.")
    return "aot_eager"


class CallCounter(TorchDispatchMode):
    """Counts the operators that Python calls; what an operator calls inside is not seen."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def prepare_optimizer_step(kind: str, **how) -> Callable[[], None]:
    """Return the second step of an optimizer on a tiny GPT; how: foreach=, fused=."""
    torch.set_num_threads(1)
    flags = Namespace(model="gpt", size="tiny", seed=0, dtype="float32", global_batch=4)
    flags.optimizer, flags.lr = kind, 1e-3
    model = models.build(flags)
    inputs, targets = data.Batches(flags, rank=0, world=1)(0)
    models.loss(model(inputs), targets).backward()
    optimizer_class, settings = optimizers.choose(flags)
    optimizer = optimizer_class(model.parameters(), **settings, **how)
    optimizer.step()
    return optimizer.step


def count_calls(step: Callable[[], None]) -> int:
    """Count the operators that one call of a function calls."""
    with CallCounter() as counter:
        step()
    return counter.count


def measure_seconds(step: Callable[[], None]) -> float:
    """Return the seconds of the fastest of several calls on one core."""
    return benchmark.time_fastest_call(step, "cpu")


def predict_batch_seconds(read: float, train: float, workers: int, cores: int) -> float:
    """Return a batch's seconds with these workers; read, train: seconds of work for a batch."""
    if workers == 0:
        return read + train
    return max(train, read / workers, (read + train) / min(cores, workers + 1))


def round_bits(numbers, fraction: int, exponent: int = 8, largest=torch.inf) -> torch.Tensor:
    """Round float32 to these bits, ties to even; beyond `largest` is `largest`, or infinity."""
    lowest = 2 - 2 ** (exponent - 1)  # exponent below which the distance shrinks no more
    apart = 2.0 ** ((torch.frexp(numbers).exponent - 1).clamp(min=lowest) - fraction).double()
    rounded = (numbers / apart).round() * apart
    if largest == torch.inf:
        rounded[rounded.abs() >= 2.0 ** (2 - lowest)] *= torch.inf
    return rounded.clamp(-largest, largest).float()


def measure_product_errors(size: int = 256) -> dict[str, float]:
    """Return {number format of the inputs: relative error of a product in float64}."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, size, size, generator=generator)
    exact = a.double() @ b.double()
    products = {"float32": (a @ b).double()}
    for name, bits in {"TF32": 10, "bfloat16": 7}.items():
        products[name] = round_bits(a, bits).double() @ round_bits(b, bits).double()
    return {name: ((c - exact).norm() / exact.norm()).item() for name, c in products.items()}


def count_graphs(function: Callable, *calls: tuple) -> tuple[list[int], str]:
    """Return how many graphs torch.compile has after each call, and why one broke, or ""."""
    from torch._dynamo import reset
    from torch._dynamo.utils import counters

    reset()
    counters.clear()
    compiled, made = torch.compile(function, backend="eager"), []
    logger = logging.getLogger("torch._dynamo")
    level = logger.level
    logger.setLevel(logging.ERROR)  # its warning is what `why` says
    try:
        for arguments in calls:
            compiled(*arguments)
            made.append(counters["stats"]["unique_graphs"])
    finally:
        logger.setLevel(level)
    reasons = [reason.partition("\n")[0] for reason in counters["graph_break"]]
    return made, "; ".join(reasons)


def compile_table(compiled, plain) -> Table:
    """Table a compiled run beside a plain one, and after how many steps compiling pays off."""
    rows, later = [], {}
    for name, run in (("plain", plain), ("compiled", compiled)):
        taken = [row["seconds"] for row in run.steps]
        later[name] = median(taken[len(taken) // 2 :])
        rows.append({"run": name, "first step s": taken[0], "a later step ms": 1e3 * later[name]})
    saved, compiling = later["plain"] - later["compiled"], rows[1]["first step s"]
    rows[0]["pays off after steps"] = "-"
    rows[1]["pays off after steps"] = f"{compiling / saved:,.0f}" if saved > 0 else "never"
    cost = f"compiling took as long as {compiling / later['plain']:,.0f} plain steps"
    return Table(rows, f"{plain.config['model']}, measured here: {cost}")


def loader_table(found: list[dict], read: float, train: float, cores: int) -> Table:
    """Table what runs of loader_workers.py printed, beside the shortest possible time."""
    columns = {
        "workers": "workers",
        "a batch ms": lambda run: 1e3 * run["seconds_per_batch"],
        "at best ms": lambda run: predict_batch_seconds(read, train, run["workers"], cores),
        "asked for with the first": "asked_for_with_the_first_batch",
        "processes in all": "processes",
        "first batch of each epoch ms": lambda run: ", ".join(
            f"{1e3 * seconds:.0f}" for seconds in run["first_seconds"]
        ),
    }
    caption = "The last row: persistent workers, prefetch_factor 4. Measured here"
    return Table.of(found, columns, caption)


def loop_table(at_once: dict, resumed: dict, forgotten: dict) -> Table:
    """Table the losses of real_loop.py's three trainings at the steps of held-out losses."""
    half = len(at_once["losses"]) - len(resumed["losses"])
    columns = {
        "step": int,
        "rate": lambda step: at_once["rates"][int(step)],
        "training loss": lambda step: mean(at_once["losses"][int(step) - 7 : int(step) + 1]),
        "held out": at_once["held_out"].get,
        "held out, resumed": lambda step: resumed["held_out"].get(step, "-"),
        "held out, without the schedule": lambda step: forgotten["held_out"].get(step, "-"),
    }
    clipped = sum(length > at_once["longest"] for length in at_once["lengths"])
    says = f"{clipped} of {len(at_once['lengths'])} gradients were clipped. Saved at step {half}"
    caption = f"{says}. Training loss: mean over an epoch of 8 steps"
    return Table.of(list(at_once["held_out"]), columns, caption)
