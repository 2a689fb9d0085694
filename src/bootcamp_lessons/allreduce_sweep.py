"""Measure all-reduces of all sizes: `allreduce_sweep.load(ranks=2).fit().predict(25e6)`."""

from pathlib import Path

from bootcamp import machine
from bootcamp.costs.alpha_beta import Fit, fit
from bootcamp.files import read_json
from bootcamp.launcher.launch import launch
from bootcamp.paths import LOGS, SRC
from bootcamp.records.runs import Run

ROUNDS = 12  # calls of each size


class Sweep(Run):
    """The run of a sweep. rows: one for each size; `seconds` are those of the fastest call.

    held_out: rows of sizes between the powers of two, which no fit has seen.
    """

    def __init__(self, folder: Path | str):
        super().__init__(folder)
        content = read_json(self.folder / "sweep.json")
        self.config |= content
        self.rows, self.backend = content["rows"], content["backend"]
        self.held_out = [row for row in self.rows if row["held_out"]]

    def fit(self) -> Fit:
        """Fit the fastest calls of the powers of two."""
        return fit([row for row in self.rows if not row["held_out"]])


def measure(ranks: int, device: str = "auto") -> Sweep:
    """Run the sweep, about 4 s.

    Raises ValueError with fewer than two ranks, LaunchError where the run fails.
    """
    if ranks < 2:
        raise ValueError(f"ranks={ranks}: expected two at least, one has nobody to talk to")
    script = SRC / "snippets/sweep_all_reduce.py"
    run = launch(script, ranks, device=device, rounds=ROUNDS, global_batch=ranks, quiet=True)
    return Sweep(run.folder)


def load(ranks: int, device: str = "auto") -> Sweep:
    """Read a sweep of this machine over so many ranks, or measure it now."""
    on_gpus = device == "cuda" or (device == "auto" and len(machine.gpu_names()) >= ranks)
    backend = "nccl" if on_gpus else "gloo"
    wanted = (backend, ranks, ROUNDS, _describe_devices(machine.describe(), backend))
    for path in LOGS.glob("*/sweep.json"):
        sweep = Sweep(path.parent)
        devices = _describe_devices(sweep.config["machine"], sweep.backend)
        made = (sweep.backend, sweep.world, sweep.config["rounds"], devices)
        if made == wanted and sweep.status == "ok" and not sweep.shared_cores:
            return sweep
    return measure(ranks, device)


def _describe_devices(description: dict, backend: str) -> dict:
    """Keep of a machine's description what a sweep depends on: a rank sees only its own GPUs."""
    return description | {"gpus": description["gpus"][:1] if backend == "nccl" else []}
