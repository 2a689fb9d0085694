"""Runs that the planner has not seen, predicted before they run: `unseen.trial(folder)`.

Settings are drawn by a seed out of GRID. What the machine can do is measured first: kernels by
size, collectives, and nearly empty runs that show what a framework adds for each layer
(EMPTY); none of them is among the settings.
"""

import dataclasses
import importlib.metadata
import itertools
import os
import platform
import random
import statistics
import time
import zlib
from dataclasses import replace
from pathlib import Path

from bootcamp import machine as machine_of_runs
from bootcamp.costs import course, here
from bootcamp.files import read_json, write_json
from bootcamp.launcher.launch import launch
from bootcamp.paths import SRC
from bootcamp.scripts import family
from bootcamp.scripts.variants import variant

GRID = {
    "gpt": {
        "layers": (2, 4, 6),
        "width": (64, 128, 192, 256),
        "context": (32, 64, 128, 256),
        "global_batch": (4, 8, 16, 32),
    },
    "mlp": {
        "layers": (2, 4, 6),
        "width": (256, 512, 1024),
        "context": (16, 32),
        "global_batch": (32, 128, 512),
    },
}
LEAST_FLOPS, MOST_FLOPS = 5e8, 2.5e10  # of a step: neither an empty one nor one of seconds
HEADS, MICRO_BATCHES = 4, 4
RANKS = {"cpu": 1, "ddp": 2, "fsdp": 2, "tp": 2, "pp": 2}
MODELS = {"tp": ("gpt",)}  # else both: the plan of the script names parts of a GPT
WARM_UP, STEPS, SEED = 3, 15, 16
# nearly empty: what is left of their time is what a framework adds
SIZES = {
    "gpt": {"layers": 4, "width": 64, "context": 32, "global_batch": 4},
    "mlp": {"layers": 4, "width": 64, "context": 16, "global_batch": 4},
}
EMPTY = {
    "cpu": ("gpt", 4),
    "ddp": ("gpt", 4),
    "fsdp": ("gpt", 4),
    "fsdp, mlp": ("mlp", 4),
    "tp": ("gpt", 4),
    "tp, one block": ("gpt", 1),
    "pp": ("gpt", 4),
}


def draw(seed: int, count: int = 20) -> list[dict]:
    """Settings, as many of each strategy: {"strategy", "model", "shape", "global_batch"}."""
    chosen, generator = [], random.Random(seed)
    for strategy in RANKS:
        models = MODELS.get(strategy, tuple(GRID))
        able = [s for model in models for s in _all(strategy, model)]
        chosen += generator.sample(able, count // len(RANKS))
    return chosen


def _all(strategy: str, model: str) -> list[dict]:
    grid = GRID[model]
    found = []
    for values in itertools.product(*grid.values()):
        setting = _setting(strategy, model, dict(zip(grid, values, strict=True)))
        flops = 3 * setting["global_batch"] * sum(x.flops for x in job(setting).layers)
        if LEAST_FLOPS <= flops <= MOST_FLOPS:
            found.append(setting)
    return found


def _setting(strategy: str, model: str, sizes: dict) -> dict:
    shape = {key: sizes[key] for key in ("layers", "width", "context")}
    if model == "gpt":
        shape = {**shape, "heads": HEADS}
    own = {"micro_batches": MICRO_BATCHES, "schedule": "1f1b"} if strategy == "pp" else {}
    batch = sizes["global_batch"]
    return {"strategy": strategy, "model": model, "shape": shape, "global_batch": batch, **own}


def job(setting: dict) -> course.Job:
    """The planner's job of a setting."""
    ranks = RANKS[setting["strategy"]]
    axis = {"tp": "tensor", "pp": "pipeline"}.get(setting["strategy"], "data")
    return course.job({**setting, "processes": ranks, "mesh": {axis: ranks}})


def name(setting: dict) -> str:
    """A few words: "pp gpt 4 x 128, text 64, batch 16"."""
    shape = setting["shape"]
    sizes = f"{shape['layers']} x {shape['width']}, text {shape['context']}"
    return f"{setting['strategy']} {setting['model']} {sizes}, batch {setting['global_batch']}"


def run(setting: dict) -> dict:
    """Run it: {"median", "fastest"} seconds of a step after the warm-up, and the run's folder."""
    flags = {
        key: setting[key]
        for key in ("model", "global_batch", "micro_batches", "schedule")
        if key in setting
    }
    script = _script(setting)
    device = {"device": "cpu"} if family.describe(setting["strategy"]).takes_device else {}
    ranks = RANKS[setting["strategy"]]
    done = launch(
        script, ranks, size="unseen", steps=WARM_UP + STEPS, quiet=True, **device, **flags
    )
    seconds = [row["seconds"] for row in done.steps][WARM_UP:]
    found = {"median": statistics.median(seconds), "fastest": min(seconds)}
    return found | {"run": done.folder.name, "shared_cores": done.shared_cores}


def _script(setting: dict):
    """The strategy's script with a size of its own: the table of sizes gets one more."""
    strategy, model = setting["strategy"], setting["model"]
    source = family.find(strategy).read_text()
    (line,) = [line for line in source.splitlines() if line.startswith("args, context =")]
    more = (
        "from bootcamp.costs import model_shapes\n"
        f'model_shapes.SIZES["{model}"]["unseen"] = {setting["shape"]!r}\n{line}'
    )
    return variant(strategy, f"{strategy}_unseen", {line: more})


def measure() -> here.Machine:
    """This machine's constants: kernels alone and on both cores, collectives, frameworks.

    All is measured twice, some time apart, and the shorter time counts.
    """
    both = max(RANKS.values())
    found, empties = [], []
    for _ in range(2):
        found.append({ranks: read_json(_measured(ranks) / "measured.json") for ranks in (1, both)})
        empties.append({key: {"median": run(empty(key))["median"]} for key in EMPTY})
    alone, together = (_shorter(*(each[ranks] for each in found)) for ranks in (1, both))
    machine = here.Machine(
        alone["kernels"], together["kernels"], together["collectives"], alone["batches"]
    )
    return replace(machine, host=host(machine, _shorter(*empties)))


def _shorter(first, second):
    """Two measurements of the same form as one: of each time the shorter."""
    if isinstance(first, dict):
        return {key: _shorter(first[key], second[key]) for key in first}
    if isinstance(first, list):
        return [_shorter(*pair) for pair in zip(first, second, strict=True)]
    return min(first, second)


def _measured(ranks: int):
    return launch(SRC / "_measure_machine.py", ranks, global_batch=4, quiet=True).folder


def empty(key: str) -> dict:
    """The nearly empty setting of a framework."""
    model, layers = EMPTY[key]
    return _setting(key.partition(",")[0], model, {**SIZES[model], "layers": layers})


def host(machine: here.Machine, measured: dict, of: str = "median") -> dict[str, float]:
    """{what: seconds that each adds}: what kernels and links leave of the nearly empty runs."""

    def left(key: str) -> float:
        plan = job(empty(key))
        said = here.seconds(plan, replace(machine, host=found))
        return max(0.0, measured[key][of] - sum(said.values()))

    found: dict[str, float] = {}
    count = {key: here.hosted(job(empty(key))) for key in EMPTY}
    found["layers"] = left("cpu") / count["cpu"]["layers"]
    found["ddp"] = left("ddp") / count["ddp"]["ddp"]
    long, short = left("tp"), left("tp, one block")
    more = count["tp"]["tp"] - count["tp, one block"]["tp"]
    found["tp"] = max(0.0, long - short) / more
    found["tp ends"] = max(0.0, short - found["tp"])
    # as many units in both, and twelve tensors in a block for two in a hidden layer
    gpt, mlp = left("fsdp"), left("fsdp, mlp")
    more = count["fsdp"]["fsdp tensors"] - count["fsdp, mlp"]["fsdp tensors"]
    found["fsdp tensors"] = max(0.0, gpt - mlp) / more
    found["fsdp"] = (
        max(0.0, gpt - found["fsdp tensors"] * count["fsdp"]["fsdp tensors"])
        / count["fsdp"]["fsdp"]
    )
    # of a rank with a micro-batch after another: rank 0 does as many forwards and backwards
    plan = job(empty("pp")).plan
    found["pp"] = left("pp") / (plan.micro_batches + plan.pipeline - 1)
    return found


def predict(settings: list[dict], machine: here.Machine) -> list[dict]:
    """Each setting with its predicted seconds of a step, whole and by part."""
    rows = []
    for setting in settings:
        parts = here.seconds(job(setting), machine)
        rows.append({**setting, "predicted_seconds": sum(parts.values()), "parts": parts})
    return rows


def trial(folder: Path, seed: int = SEED, measure=measure, run=run, say=print) -> dict:
    """Measure this machine, write predictions, run what was predicted, and write how far off.

    folder: new; predictions.json in it is written once, before the first of the runs, and the
    record has its checksum. measure, run: as the functions above.
    """
    folder.mkdir(parents=True)
    load = os.getloadavg()
    began = time.time()
    settings, machine = draw(seed), measure()
    rows = predict(settings, machine)
    path = folder / "predictions.json"
    content = {"written_unix_seconds": time.time(), "seed": seed, "settings": rows}
    write_json(path, content | {"machine_constants": dataclasses.asdict(machine)})
    path.chmod(0o444)
    promised = zlib.crc32(path.read_bytes())
    measured = []
    for row in rows:
        found = {"started_unix_seconds": time.time(), "load": os.getloadavg()[0], **run(row)}
        measured.append(found)
        off = row["predicted_seconds"] / found["median"] - 1
        seconds = f"{1e3 * row['predicted_seconds']:8.1f} ms {1e3 * found['median']:8.1f} ms"
        say(f"{name(row):48} {seconds} {off:+6.1%}")
    if zlib.crc32(path.read_bytes()) != promised:
        raise ValueError(f"{path} has changed since the runs began: the record would be worthless")
    off = errors(rows, measured)
    record = {
        "machine": machine_of_runs.describe(),
        "versions": versions(),
        "seed": seed,
        "began_unix_seconds": began,
        "ended_unix_seconds": time.time(),
        "load_before": load,
        "predictions_written_unix_seconds": content["written_unix_seconds"],
        "predictions_crc32": promised,
        "host_seconds": machine.host,
        "rows": [
            {**row, "measured": found, "error": each}
            for row, found, each in zip(rows, measured, off, strict=True)
        ],
        "median_error": median_error(off),
    }
    write_json(folder / "unseen.json", record)
    return record


def errors(rows: list[dict], measured: list[dict], of: str = "median") -> list[float]:
    """predicted / measured - 1 of each row."""
    pairs = zip(rows, measured, strict=True)
    return [row["predicted_seconds"] / found[of] - 1 for row, found in pairs]


def median_error(off: list[float]) -> float:
    """The median of the sizes of these errors."""
    return statistics.median(map(abs, off))


def versions() -> dict[str, str]:
    """Of Python and torch."""
    return {"python": platform.python_version(), "torch": importlib.metadata.version("torch")}
