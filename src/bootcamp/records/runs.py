"""The records of runs, read back: `runs.load("logs/...")` -> Run."""

from functools import cached_property
from pathlib import Path

from bootcamp.files import read_json
from bootcamp.paths import LOGS, REFERENCE
from bootcamp.records import places, summary, trace
from bootcamp.records.measurement import SHARED, Measurement
from bootcamp.records.steps import RankRecord, StepRecord, read_steps
from bootcamp.table import Table

SETTINGS = (
    "model",
    "size",
    "dtype",
    "global_batch",
    "optimizer",
    "lr",
    "seed",
    "steps",
    "cores_per_rank",
)


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
        found = [path for path in (self.folder / "ranks").glob("*.json") if path.stem.isdigit()]
        return [
            RankRecord(read_json(path)) for path in sorted(found, key=lambda path: int(path.stem))
        ]

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

    @property
    def samples_per_second(self) -> float:
        """Median over the steps after warm-up, all ranks together."""
        return summary.measures(self.steps)["samples_per_second"]["median"]

    @property
    def tokens_per_second(self) -> float:
        """Median over the steps after warm-up, all ranks together."""
        return summary.measures(self.steps)["tokens_per_second"]["median"]

    @property
    def seconds_per_step(self) -> float:
        """Median over the steps after warm-up."""
        return summary.measures(self.steps)["seconds_per_step"]["median"]

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
        return f"{self.strategy}, {ranks} ({kind}{crowded}){self._on_hosts}"

    @property
    def _on_hosts(self) -> str:
        """Where its ranks are, if on more than one host, and what joins these."""
        count, link = self.config.get("hosts", 1), self.config.get("link")
        joined = f", link {link}" if link else ""
        return f" on {count} hosts{joined}" if count > 1 else ""

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
        folder, steps = self.folder / "ranks", {}
        for rank in range(self.world):
            for path in (folder / f"{rank}.trace.json", folder / f"{rank}.trace.json.gz"):
                if path.exists():
                    steps[rank] = trace.read(path)
                    break
        return trace.separate(steps, self.world) if steps else {}

    def host(self, rank: int) -> str | None:
        """The name of the host that a rank was on; None if there was only one."""
        return places.host_of(self.folder, rank)

    def log(self) -> str:
        """What all ranks wrote to standard error, who raised first at the top (places.py)."""
        return places.log(self.folder)

    def output(self, rank: int = 0) -> str:
        """What one rank printed, standard output and then standard error."""
        folder = self.folder / "ranks"
        return "".join(_text(folder / f"{rank}.{end}") for end in ("out", "err"))

    def __repr__(self) -> str:
        if self.status != "ok":
            return f"Run {self.folder.name}: {self.status}"
        if not self.steps or self.losses[-1] is None:
            return f"Run {self.folder.name}: ok, without losses"
        return (
            f"Run {self.folder.name}: {self.label}, {len(self.steps)} steps, "
            f"final loss {self.losses[-1]:.4f}, {self.samples_per_second:,.0f} samples/s"
        )


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def load(folder: Path | str) -> Run:
    """The run in this folder. Raises FileNotFoundError where there is none."""
    if not (Path(folder) / "summary.json").exists():
        raise FileNotFoundError(f"{folder} holds no run: there is no summary.json in it.")
    return Run(folder)


def all_runs(logs: Path | str = LOGS) -> list[Run]:
    """Every run under a folder, oldest first, the reference runs not among those of logs/."""
    found = [Run(path.parent) for path in Path(logs).glob("*/summary.json")]
    return sorted(found, key=lambda run: run.config.get("started_unix_seconds", 0))


def reference(strategy: str, device: str | None = None, world: int | None = None) -> Run | None:
    """The newest recorded run of this strategy that had its cores alone; None without one."""
    for run in reversed(all_runs(REFERENCE)):
        fits = run.strategy == strategy and device in (None, run.device) and not run.shared_cores
        if fits and world in (None, run.world):
            return run
    return None


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
    return [_numbered(words, index) for index in range(len(words))]


def _numbered(words: list[str], index: int) -> str:
    word = words[index]
    return f"{word}, run {words[: index + 1].count(word)}" if words.count(word) > 1 else word


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
