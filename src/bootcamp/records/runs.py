"""The records of runs, read back: `runs.load("logs/...")` -> Run."""

import json
from collections import Counter
from functools import cached_property
from pathlib import Path

from bootcamp.costs.pipeline_schedules import Action, Span, makespan
from bootcamp.files import read_json
from bootcamp.paths import LOGS
from bootcamp.records import places, summary, trace
from bootcamp.records.measurement import SHARED, Measurement
from bootcamp.records.steps import RankRecord, StepRecord, read_steps
from bootcamp.table import Table

SETTINGS = ("model", "size", "dtype", "global_batch", "optimizer", "lr", "seed", "steps")
SETTINGS += ("cores_per_rank",)
FILES = {
    "config.json": "what was asked for: flags, command, machine, versions",
    "steps.jsonl": "one line for each step, written by rank 0",
    "summary.json": "how it ended and what it came to",
    "hosts.json": "which rank was on which host, in which process",
    ".json": "one rank's memory, samples, and a fingerprint of its parameters",
    ".out": "what the rank printed",
    ".err": "its errors and warnings",
}

TOLERANCE = 1e-5  # of losses, and of parameters as a share of the baseline's way, in float32


class Run(Measurement):
    """One run's record. Everything is read from its folder; nothing is kept elsewhere.

    config, summary: dictionaries as written. steps and ranks: a record of each.
    """

    def __init__(self, folder: Path | str):
        self.folder = Path(folder)

    @cached_property
    def config(self) -> dict:
        return read_json(self.folder / "config.json")

    @cached_property
    def summary(self) -> dict:
        return summary.read(self.folder)

    @cached_property
    def steps(self) -> list[StepRecord]:
        return read_steps(self.folder)

    @cached_property
    def ranks(self) -> list[RankRecord]:
        """The ranks' own records in order of rank; a rank that never finished left none."""
        found = {path.stem: path for path in (self.folder / "ranks").glob("*.json")}
        numbers = sorted(int(name) for name in found if name.isdigit())
        return [RankRecord(read_json(found[str(number)])) for number in numbers]

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

    def _median(self, measure: str) -> float:
        return summary.measures(self.steps)[measure]["median"]

    @property
    def samples_per_second(self) -> float:
        """Median over the steps after warm-up, all ranks together."""
        return self._median("samples_per_second")

    @property
    def tokens_per_second(self) -> float:
        return self._median("tokens_per_second")

    @property
    def seconds_per_step(self) -> float:
        return self._median("seconds_per_step")

    @property
    def peak_bytes(self) -> int:
        """The largest peak memory of any rank."""
        return max(rank.peak_bytes for rank in self.ranks)

    @property
    def achieved_flops_per_second(self) -> float:
        """Floating-point operations of the model, by formula, per measured second, all ranks."""
        return self.summary["flops_per_sample"] * self.samples_per_second

    @property
    def predicted_sent_bytes_per_step(self) -> float:
        """What a rank sends in a step by the formula of a ring all-reduce of the gradients.

        2 (N-1)/N times the gradient's bytes (Patarasuk and Yuan, JPDC 69, 2009).
        """
        return 2 * (self.world - 1) / self.world * self.ranks[0].gradient_bytes

    @property
    def label(self) -> str:
        """The run in a few words: strategy, ranks, kind of device."""
        kind = "GPU" if self.device == "cuda" else "CPU"
        ranks = "1 rank" if self.world == 1 else f"{self.world} ranks"
        crowded = f", more ranks than {'cores' if kind == 'CPU' else 'GPUs'}"
        crowded = crowded if self.oversubscribed else ""
        crowded = f", {SHARED}" if self.shared_cores else crowded
        hosts, link = self.config.get("hosts", 1), self.config.get("link")
        joined = f", link {link}" if link else ""
        where = f" on {hosts} hosts{joined}" if hosts > 1 else ""
        return f"{self.strategy}, {ranks} ({kind}{crowded}){where}"

    def timeline(self, rank: int = 0) -> dict:
        """The traced step of one rank: when it computed, waited and sent. Needs trace_step=.

        See trace.read and trace.separate for what is in it.
        """
        steps = self.timelines()
        if rank not in steps:
            raise FileNotFoundError(
                f"{self.folder.name} has no trace of rank {rank}: launch with trace_step=5."
            )
        return steps[rank]

    def timelines(self) -> dict[int, dict]:
        """The traced step of every rank that left a trace, as timeline() has it."""
        traces = (self.folder / "ranks").glob("*.trace.json*")
        steps = {int(path.name.partition(".")[0]): trace.read(path) for path in traces}
        return trace.separate(dict(sorted(steps.items())), self.world)

    def actions(self, step: int | None = None) -> list[Span]:
        """Read what a pipeline's ranks did in one step from `ranks/<k>.actions.jsonl`.

        step: None takes the one of median length after the first, which also does what is done only
        once. Ranks of several hosts have clocks of their own: their times can't be compared.
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
        """Read a rank's collectives of a step: phase, kind, nbytes, count.

        train/collective_counter.py counts them in scripts that use it.
        """
        return read_json(self.folder / "ranks" / f"{rank}.collectives.json")["rows"]

    def collective_counts(self, rank: int = 0) -> dict[tuple[str, int], int]:
        """Add up {(kind, bytes): how often in the step} over all phases."""
        counts: Counter = Counter()
        for row in self.collectives(rank):
            counts[row["kind"], row["nbytes"]] += row["count"]
        return dict(counts)

    def host(self, rank: int) -> str | None:
        """The name of the host that a rank was on; None if there was only one."""
        return places.host_of(self.folder, rank)

    def log(self) -> str:
        """What all ranks wrote to standard error, the first to raise at the top (places.py)."""
        return places.log(self.folder)

    def output(self, rank: int = 0) -> str:
        """What one rank printed, standard output and then standard error."""
        paths = [self.folder / "ranks" / f"{rank}.{end}" for end in ("out", "err")]
        return "".join(path.read_text(errors="replace") for path in paths if path.exists())

    def __repr__(self) -> str:
        if self.status != "ok":
            return f"Run {self.folder.name}: {self.status}"
        if not self.steps or self.losses[-1] is None:
            return f"Run {self.folder.name}: ok, without losses"
        return (
            f"Run {self.folder.name}: {self.label}, {len(self.steps)} steps, "
            f"final loss {self.losses[-1]:.4f}, {self.samples_per_second:,.0f} samples/s"
        )


def load(folder: Path | str) -> Run:
    """The run in this folder. Raises FileNotFoundError where there is none."""
    if not (Path(folder) / "summary.json").exists():
        raise FileNotFoundError(f"{folder} holds no run: there is no summary.json in it.")
    return Run(folder)


def all_runs(logs: Path | str = LOGS) -> list[Run]:
    """Every run under a folder, oldest first, the reference runs not among those of logs/."""
    found = [Run(path.parent) for path in Path(logs).glob("*/summary.json")]
    return sorted(found, key=lambda run: run.config.get("started_unix_seconds", 0))


def names(runs) -> list[str]:
    """The runs' labels; runs with one label are told apart by the settings that differ.

    A run that did not end well has its status after its label.
    """
    words = []
    for run in runs:
        twins = [other for other in runs if other.label == run.label]
        where = {"measured here" if twin.measured_here else "recorded" for twin in twins}
        settings = [*SETTINGS, *run.config.get("own_flags", [])]
        differing = [
            f"{name.replace('_', ' ')} {run.config.get(name)}"
            for name in settings
            if len({twin.config.get(name) for twin in twins}) > 1
        ]
        if len(where) > 1:
            differing.append("measured here" if run.measured_here else "recorded")
        status = [] if run.status == "ok" else [run.status]
        words.append(", ".join([run.label, *differing, *status]))
    return [
        f"{word}, run {words[: index + 1].count(word)}" if words.count(word) > 1 else word
        for index, word in enumerate(words)
    ]


def contents(run: Run) -> Table:
    """The files of a run's record and what each of them holds."""
    rows = []
    for path in sorted(run.folder.rglob("*.*")):
        if holds := FILES.get(path.name) or FILES.get(path.suffix):
            rows.append({"file": str(path.relative_to(run.folder)), "what it holds": holds})
    return Table(rows, run.folder.name)


def table(*runs: Run, caption: str = "") -> Table:
    """The runs side by side, units in the headings."""
    columns = {
        "final loss": lambda run: run.losses[-1],
        "samples/s": "samples_per_second",
        "tokens/s": "tokens_per_second",
        "ms per step": lambda run: run.seconds_per_step * 1e3,
        "peak MB per rank": lambda run: run.peak_bytes / 1e6,
        "numbers from": lambda run: "measured here" if run.measured_here else run.origin,
    }
    return Table.of(dict(zip(names(runs), runs, strict=True)), columns, caption)
