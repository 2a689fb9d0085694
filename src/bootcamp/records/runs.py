"""Run: the record of a run, read from its folder by `runs.load("logs/...")`."""

import json
from collections import Counter
from functools import cached_property
from pathlib import Path

from bootcamp.costs.pipeline_schedules import Action, Span, makespan
from bootcamp.costs.sharding import ring_bytes
from bootcamp.files import read_json
from bootcamp.paths import LOGS
from bootcamp.records import rank_errors, summary, trace
from bootcamp.records.measurement import SHARED, Measurement
from bootcamp.records.steps import Record, read_steps
from bootcamp.table import Table

SETTINGS = ["model", "size", "dtype", "global_batch", "optimizer", "lr", "seed", "steps"]
SETTINGS += ["cores_per_rank"]
FILES = {
    "config.json": "what was asked for: flags, command, machine, versions",
    "steps.jsonl": "one line for each step, written by rank 0",
    "summary.json": "how it ended and what it came to",
    "hosts.json": "which rank was on which host, in which process",
    ".json": "one rank's memory, samples, and a fingerprint of its parameters",
    ".trace.json": "when the rank computed and communicated in one step",
    ".out": "what the rank printed",
    ".err": "its errors and warnings",
}

TOLERANCE = 1e-5  # of losses, and of parameters as a share of the baseline's way, in float32


def _median_of_steps(measure: str) -> property:
    """Make a property: a run's median over its steps after warm-up, all ranks together."""
    return property(lambda run: summary.summarize_steps(run.steps)[measure]["median"])


class Run(Measurement):
    """The record of one run. config, summary: dictionaries as written."""

    def __init__(self, folder: Path | str):
        self.folder = Path(folder)

    @cached_property
    def config(self) -> dict:
        return read_json(self.folder / "config.json")

    @cached_property
    def summary(self) -> dict:
        return summary.read(self.folder)

    @cached_property
    def steps(self) -> list[Record]:
        return read_steps(self.folder)

    @cached_property
    def ranks(self) -> list[Record]:
        """The ranks' own records in order of rank; a rank that never finished left none."""
        found = [path for path in (self.folder / "ranks").glob("*.json") if path.stem.isdigit()]
        return [Record(read_json(path)) for path in sorted(found, key=lambda p: int(p.stem))]

    @property
    def status(self) -> str:
        """running, ok, failed, oom, interrupted or skipped."""
        return self.summary["status"]

    @property
    def losses(self) -> list[float]:
        """The mean loss over the global batch, one a step."""
        return [row.loss for row in self.steps]

    @property
    def strategy(self) -> str:
        return self.config.get("strategy", "?")

    @property
    def shared_cores(self) -> bool:
        return bool(self.summary.get("shared_cores"))

    samples_per_second = _median_of_steps("samples_per_second")
    tokens_per_second = _median_of_steps("tokens_per_second")
    seconds_per_step = _median_of_steps("seconds_per_step")

    @property
    def peak_bytes(self) -> int:
        return max(rank.peak_bytes for rank in self.ranks)

    @property
    def achieved_flops_per_second(self) -> float:
        """Floating-point operations of the model, by formula, per measured second, all ranks."""
        return self.summary["flops_per_sample"] * self.samples_per_second

    @property
    def predicted_sent_bytes_per_step(self) -> float:
        """Bytes that a rank sends in a step, if a ring all-reduces the gradients."""
        return ring_bytes("all-reduce", self.ranks[0].gradient_bytes, self.world)

    @property
    def label(self) -> str:
        """The run in a few words: strategy, ranks, kind of device."""
        kind, devices = ("GPU", "GPUs") if self.device == "cuda" else ("CPU", "cores")
        crowded = f", more ranks than {devices}" if self.oversubscribed else ""
        crowded = f", {SHARED}" if self.shared_cores else crowded
        label = f"{self.strategy}, {self.world} rank{'s' * (self.world > 1)} ({kind}{crowded})"
        hosts, link = self.config.get("hosts", 1), self.config.get("link")
        label += f" on {hosts} hosts" if hosts > 1 else ""
        return label + (f", link {link}" if link else "")

    def timeline(self, rank: int = 0) -> dict:
        """Read when one rank computed, waited and sent in the traced step; see `timelines`."""
        return self.timelines()[rank]

    def timelines(self) -> dict[int, dict]:
        """Read each rank's timeline (trace.read_timeline). Raises FileNotFoundError without any."""
        traces = (self.folder / "ranks").glob("*.trace.json*")
        found = {int(path.name.partition(".")[0]): trace.read_timeline(path) for path in traces}
        if not found:
            raise FileNotFoundError(f"{self.folder.name} has no trace: launch with trace_step=5.")
        return trace.separate_waiting(dict(sorted(found.items())), self.world)

    def actions(self, step: int | None = None) -> list[Span]:
        """Read the actions of a pipeline's ranks in one step, in seconds since it began.

        step: None takes the step of median length after the first, which also does what is done
        only once. Ranks of several hosts have clocks of their own: don't compare their times.
        Raises FileNotFoundError for other runs.
        """
        steps: dict[int, list[Span]] = {}
        for file in sorted((self.folder / "ranks").glob("*.actions.jsonl")):
            for row in map(json.loads, file.read_text().splitlines()):
                action = Action(row["action"], row["stage"], row["micro_batch"])
                span = Span(int(file.name.split(".")[0]), action, row["began"], row["ended"])
                steps.setdefault(row["step"], []).append(span)
        if not steps:
            raise FileNotFoundError(f"{self.folder} has no record of actions: no pipeline's run")
        if step is None:
            later = sorted([n for n in steps if n] or steps, key=lambda n: makespan(steps[n]))
            step = later[(len(later) - 1) // 2]
        begin = min(span.began for span in steps[step])
        return [s._replace(began=s.began - begin, ended=s.ended - begin) for s in steps[step]]

    def collectives(self, rank: int = 0) -> list[dict]:
        """Read a rank's collectives of a step: rows with phase, kind, nbytes and count."""
        return read_json(self.folder / "ranks" / f"{rank}.collectives.json")["rows"]

    def collective_counts(self, rank: int = 0) -> dict[tuple[str, int], int]:
        """Count a rank's collectives of a step over all phases: {(kind, bytes): count}."""
        counts = Counter()
        for row in self.collectives(rank):
            counts[row["kind"], row["nbytes"]] += row["count"]
        return dict(counts)

    def host(self, rank: int) -> str | None:
        """Return the host that a rank was on; None if there was only one."""
        return rank_errors.find_host(self.folder, rank)

    def log(self) -> str:
        """Return the standard error of all ranks, the first to raise at the top."""
        found = rank_errors.read_errors(self.folder)
        return "\n\n".join(each.describe(found[0].unix_seconds) for each in found)

    def output(self, rank: int | str = 0) -> str:
        """Return the output and then the errors of one rank, or of a launcher by its name."""
        paths = [self.folder / "ranks" / f"{rank}.{end}" for end in ("out", "err")]
        return "".join(path.read_text(errors="replace") for path in paths if path.exists())

    def __repr__(self) -> str:
        name = f"Run {self.folder.name}"
        if self.status != "ok":
            return f"{name}: {self.status}"
        if not self.steps or self.losses[-1] is None:
            return f"{name}: ok, without losses"
        reached = f"final loss {self.losses[-1]:.4f}, {self.samples_per_second:,.0f} samples/s"
        return f"{name}: {self.label}, {len(self.steps)} steps, {reached}"


def load(folder: Path | str) -> Run:
    """Return the run in a folder. Raises FileNotFoundError where there is none."""
    if not (Path(folder) / "summary.json").exists():
        raise FileNotFoundError(f"{folder} holds no run: there is no summary.json in it.")
    return Run(folder)


def all_runs(logs: Path | str = LOGS) -> list[Run]:
    """List the runs in a folder, oldest first; of logs/, without the reference runs."""
    found = [Run(path.parent) for path in Path(logs).glob("*/summary.json")]
    return sorted(found, key=lambda run: run.config.get("started_unix_seconds", 0))


def name_runs(runs) -> list[str]:
    """Return a name for each run: its label, the settings that differ, its status if not ok."""
    names = []
    for run in runs:
        twins = [other for other in runs if other.label == run.label]
        words = [run.label]
        for name in [*SETTINGS, *run.config.get("own_flags", [])]:
            if any(twin.config.get(name) != run.config.get(name) for twin in twins):
                words.append(f"{name.replace('_', ' ')} {run.config.get(name)}")
        if any(twin.config.get("mesh") != run.config.get("mesh") for twin in twins):
            words += [f"{n} along {axis}" for axis, n in run.config["mesh"].items() if n > 1]
        if any(twin.measured_here != run.measured_here for twin in twins):
            words.append("measured here" if run.measured_here else "recorded")
        words += [run.status] if run.status != "ok" else []
        names.append(", ".join(words))
    return [
        f"{name}, run {names[: index + 1].count(name)}" if names.count(name) > 1 else name
        for index, name in enumerate(names)
    ]


def list_files(run: Run) -> Table:
    """List the files of a run's record, and what each of them holds."""
    rows = []
    for path in sorted(run.folder.rglob("*.*")):
        if holds := FILES.get(path.name.lstrip("0123456789")):
            rows.append({"file": str(path.relative_to(run.folder)), "what it holds": holds})
    return Table(rows, run.folder.name)


def table(*runs: Run, caption: str = "") -> Table:
    """Compare runs: final loss, throughput, memory, where the numbers come from."""
    columns = {
        "final loss": lambda run: run.losses[-1],
        "samples/s": "samples_per_second",
        "tokens/s": "tokens_per_second",
        "ms per step": lambda run: run.seconds_per_step * 1e3,
        "peak MB per rank": lambda run: run.peak_bytes / 1e6,
        "numbers from": lambda run: "measured here" if run.measured_here else run.origin,
    }
    return Table.of(dict(zip(name_runs(runs), runs, strict=True)), columns, caption)
