"""What lesson 02c counts beside its runs: a step's operators, calls, graphs, roundings."""

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
FLOAT32_FRACTION = 23  # bits


def profile_table(run, shown: int = 7) -> Table:
    """Where the time of a run's traced step went: its longest operators, the rest, and Python."""
    path = run.folder / "ranks" / "0.trace.json"
    found = trace.operators(path)
    products = sum(found[name][1] for name in MATRIX_PRODUCTS if name in found)
    share = products / sum(seconds for _, seconds in found.values())
    names = [name for name in found if name.startswith("aten::") or run.device == "cuda"][:shown]
    rows = [(name, *found.pop(name)) for name in names]
    rest = [sum(column) for column in zip(*found.values(), strict=True)]
    rows.append((f"{len(found)} others", *rest))
    step = trace.read(path)["seconds"]
    rows.append(("outside of operators", "-", step - sum(seconds for _, _, seconds in rows)))
    named = [
        {"operator": name, "calls": calls, "own ms": 1e3 * own, "%": 100 * own / step}
        for name, calls, own in rows
    ]
    caption = f"One step of {run.label}, traced here. Matrix products: {share:.0%} of all operators"
    return Table(named, caption)


def backend() -> str:
    """The backend of torch.compile that can work here; says so where it is not the default one."""
    lacking = machine.lacks_for_inductor(torch.__path__[0])
    if torch.cuda.is_available() or lacking is None:
        return "inductor"
    print(f"No GPU, and this machine lacks {lacking}: the graph is recorded, no kernel is written.")
    return "aot_eager"


class Calls(TorchDispatchMode):
    """Counts the operators that Python calls; what an operator calls inside is not seen."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def optimizer_step(kind: str, **how) -> Callable[[], None]:
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


def calls(step: Callable[[], None]) -> int:
    """How many operators one call of a function calls."""
    with Calls() as counter:
        step()
    return counter.count


def seconds(step: Callable[[], None]) -> float:
    """The shortest of several calls on one core."""
    return benchmark.fastest_seconds(step, "cpu")


def pipeline_seconds(read: float, train: float, workers: int, cores: int) -> float:
    """Return the longest of training, a worker's reading, and all work over the cores."""
    if workers == 0:
        return read + train
    return max(train, read / workers, (read + train) / min(cores, workers + 1))


def rounded(numbers: torch.Tensor, fraction: int) -> torch.Tensor:
    """Round float32 numbers to 10 (TF32) or 7 (bfloat16) bits of fraction, ties to even."""
    dropped = FLOAT32_FRACTION - fraction
    bits = numbers.view(torch.int32)
    is_odd = (bits >> dropped) & 1
    return ((bits + (1 << (dropped - 1)) - 1 + is_odd) >> dropped << dropped).view(torch.float32)


def product_errors(size: int = 256) -> dict[str, float]:
    """Return the relative error of a product in float64 whose inputs are rounded first."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, size, size, generator=generator)
    exact = a.double() @ b.double()
    formats = {"TF32": 10, "bfloat16": 7}
    found = {
        name: rounded(a, bits).double() @ rounded(b, bits).double()
        for name, bits in formats.items()
    }
    found = {"float32": (a @ b).double(), **found}
    return {name: ((c - exact).norm() / exact.norm()).item() for name, c in found.items()}


def graphs_of(function: Callable, *calls: tuple) -> tuple[list[int], str]:
    """Return the graphs of torch.compile after each call, and why recording broke, or ""."""
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
    """A compiled run beside a plain one: the first step, a later one, when compiling pays off."""
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
    """What each run of loader_workers.py printed, beside the longest of three limits, in ms."""
    columns = {
        "workers": "workers",
        "a batch ms": lambda run: 1e3 * run["seconds_per_batch"],
        "at best ms": lambda run: pipeline_seconds(read, train, run["workers"], cores),
        "asked for with the first": "asked_for_with_the_first_batch",
        "processes in all": "processes",
        "first batch of each epoch ms": lambda run: ", ".join(
            f"{1e3 * seconds:.0f}" for seconds in run["first_seconds"]
        ),
    }
    caption = "The last row: persistent workers, prefetch_factor 4. Measured here"
    return Table.of(found, columns, caption)


def loop_table(at_once: dict, resumed: dict, forgotten: dict) -> Table:
    """Losses of real_loop.py's three trainings at the steps where it looked at held-out text."""
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
    caption = (
        f"{clipped} of {len(at_once['lengths'])} gradients were clipped. Saved at step {half}. "
    )
    caption += "Training loss: mean over an epoch of 8 steps"
    return Table.of(list(at_once["held_out"]), columns, caption)
