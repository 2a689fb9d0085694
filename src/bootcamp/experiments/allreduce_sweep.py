"""Measure all-reduces of all sizes: `allreduce_sweep.load(ranks=2).fit().predict(25e6)`.

A sweep is measured once for each back end and number of ranks, and kept under logs/machine/.
"""

import re
from pathlib import Path

from bootcamp import machine
from bootcamp.costs.alpha_beta import Fit, fit
from bootcamp.files import read_json, write_json
from bootcamp.launcher.launch import launch
from bootcamp.paths import LOGS, SRC
from bootcamp.records.measurement import Measurement
from bootcamp.records.runs import Run

KEPT = LOGS / "machine"


class Sweep(Measurement):
    """A measured sweep. rows: one for each size; `seconds` are those of the fastest call."""

    def __init__(self, path: Path):
        self.folder, self.config = Path(path).parent, read_json(Path(path))
        self.rows, self.backend = self.config["rows"], self.config["backend"]
        # sizes between the powers of two, which no fit has seen
        self.held_out = [row for row in self.rows if row["held_out"]]

    def fit(self) -> Fit:
        """Fit the fastest calls of the powers of two."""
        return fit([row for row in self.rows if not row["held_out"]], "seconds")


def measure(ranks: int, device: str = "auto", rounds: int = 30) -> Sweep:
    """Run the sweep, about 10 s, and keep it unless it shared its cores with another run.

    rounds: calls of each size.
    Raises ValueError with fewer than two ranks, LaunchError where the run fails.
    """
    if ranks < 2:
        raise ValueError(f"ranks={ranks}: expected two at least, one has nobody to talk to")
    script = SRC / "snippets/sweep_all_reduce.py"
    run = launch(script, ranks, device=device, rounds=rounds, global_batch=ranks, quiet=True)
    return keep(run)


def keep(run: Run) -> Sweep:
    """Keep a run's sweep for `load`, unless it shared its cores."""
    about = ("device", "processes", "cores_per_rank", "machine", "versions", "git_commit")
    content = {name: run.config[name] for name in about} | read_json(run.folder / "sweep.json")
    path = run.folder / "kept.json" if run.shared_cores else _path(content["backend"], run.world)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, content | {"shared_cores": run.shared_cores})
    return Sweep(path)


def load(ranks: int, device: str = "auto") -> Sweep:
    """Read this machine's sweep over so many ranks, or measure it now."""
    on_gpus = device == "cuda" or (device == "auto" and len(machine.gpu_names()) >= ranks)
    path = _path("nccl" if on_gpus else "gloo", ranks)
    return Sweep(path) if path.exists() else measure(ranks, device)


def _path(backend: str, ranks: int) -> Path:
    described = machine.describe()
    name = described["gpus"][0] if backend == "nccl" else described["cpu"]
    words = f"all reduce {backend} {ranks} ranks {name} {described['cores']} cores"
    return KEPT / f"{'-'.join(re.findall(r'[a-z0-9]+', words.lower()))}.json"
