"""Replay a recording of what this machine can't make, as VCR.py replays web answers.

Recordings are in logs/reference/<lesson>/, without names of their machine's folders. To record a
lesson again, on an idle machine with what it needs: BOOTCAMP_RECORD=1 python tools/notebooks.py 05.
"""

import gzip
import itertools
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bootcamp.files import read_json
from bootcamp.hosts import slurm
from bootcamp.launcher import simulated_hosts
from bootcamp.launcher.launch import HOW_TO_GET, Options, available, launch
from bootcamp.paths import LOGS, REFERENCE, ROOT, shown
from bootcamp.records.runs import Run
from bootcamp.table import Table

KEPT_SUFFIXES = (".json", ".jsonl", ".out", ".err")
OWN_FOLDERS = {str(LOGS): "logs", sys.prefix: ".venv", sys.base_prefix: "python", str(ROOT): "."}
OUTPUTS = "said.json"  # of a cluster's commands and jobs
# torchrun warns of the first if it is not set, torch's sockets of hosts without a DNS
CALM = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
HOSTS = {
    "hosts": (simulated_hosts, "Hosts can't be made on this machine"),
    "slurm": (slurm, "Slurm can't be started here"),
}
_numbers = itertools.count(1)


class NotRecorded(Exception):
    """A run that can't become a recording; the text says why."""


def replay(
    record: Path,
    measure: Callable[[], Any],
    missing: str | None,
    load: Callable[[Path], Any] | None = None,
    keep: Callable[[Any, Path], None] | None = None,
) -> Any:
    """Measure, or where something is `missing` here load the recording.

    load, keep: read and write a recording; by default JSON in `record`. Raises FileNotFoundError
    without a recording.
    """
    if not missing:
        measured = measure()
        if os.environ.get("BOOTCAMP_RECORD"):
            (keep or _keep_json)(measured, record)
        return measured
    if not record.exists():
        raise FileNotFoundError(
            f"{shown(record)}: there is no such record. Record the lesson's runs on a machine that "
            "has what they need, as the docstring of experiments/replay.py says."
        )
    print(missing)
    return (load or read_json)(record)


class Lab:
    """Make one lesson's runs, or replay them. `ready`: whether this machine can make them.

    needs: "hosts", "slurm", or a framework such as "horovod".
    missing: what this machine lacks; advice: what to do about it.
    """

    def __init__(self, lesson: str, needs: str):
        self.records, self.needs = REFERENCE / lesson, needs
        if needs in HOSTS:
            module, lacks = HOSTS[needs]
            why = module.why_not()
            self.missing, self.advice = why and lacks, f"(The reason: {why}.)"
        else:
            found = available(needs)
            self.missing = None if found else f"{needs.capitalize()} is not installed here"
            self.advice = HOW_TO_GET[needs]
        self.ready = self.missing is None

    def __repr__(self) -> str:
        if not self.ready:
            return f"{self.missing}: recorded runs stand in. {self.advice}"
        if self.needs == "slurm":
            return "Slurm can be started here: every command and job of this lesson is a real one."
        has = "can be made here" if self.needs == "hosts" else "is installed"
        return f"{self.needs.capitalize()} {has}: the runs of this lesson are made on this machine."

    def launch(self, name: str, script, ranks: int, env: dict | None = None, **how) -> Run:
        """Launch a run, or return its recording; arguments as launch() has them.

        name: of the recording's folder. env: may hold "{run}", which becomes the run's folder.
        """

        def measure() -> Run:
            folder = _new_folder(f"{name}-{os.getpid()}-{next(_numbers)}")
            filled = {k: str(v).replace("{run}", str(folder)) for k, v in (env or {}).items()}
            return launch(script, ranks, options=Options(run_dir=folder, env=filled), **how)

        note = f"{self.missing}: the recorded run {name} stands in. {self.advice}"
        return replay(self.records / name, measure, self.missing and note, Run, keep_run)


class Cluster(Lab):
    """A lesson's Slurm cluster; the first command or job starts it. settings: of slurm.start."""

    def __init__(self, lesson: str, **settings):
        super().__init__(lesson, "slurm")
        self.settings = settings
        self.folder = _new_folder(f"{lesson}-{os.getpid()}")
        self.cluster: slurm.Cluster | None = None

    def start(self) -> slurm.Cluster:
        """Start the cluster if it is not running. Raises SlurmError."""
        if self.cluster is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.cluster = slurm.start(**self.settings, quiet=True)
        return self.cluster

    def stop(self) -> None:
        """End the cluster and everything in it."""
        if self.cluster is not None:
            self.cluster.stop()
            self.cluster = None

    def run(self, record: str, line: str, on: str = "host0", **how) -> "Result":
        """Run a command on a host; display its line and output. See `on_each`."""
        return self.on_each(record, {on: line}, **how)[on]

    def on_each(self, record: str, lines: dict[str, str], **how) -> dict[str, "Result"]:
        """Run a command on each of several hosts at once, and display one after another.

        An exit code that is not 0 is no error. how: of slurm.Cluster.run.
        """

        def measure() -> dict[str, Result]:
            run = partial(self.start().run, **{"env": self._env(), "raises": False, **how})
            with ThreadPoolExecutor() as pool:
                begun = {host: pool.submit(run, line, on=host) for host, line in lines.items()}
            done = {host: future.result() for host, future in begun.items()}
            return {host: Result(each.code, each.output) for host, each in done.items()}

        results = self._replay(record, measure)
        for host, line in lines.items():
            print(f"{host}$ {line}\n{results[host].output}", end="")
        return results

    def sbatch(self, record: str, path: str, *arguments) -> SimpleNamespace:
        """Submit a job file and display the line; `wait(seconds)` returns its Result.

        Waiting raises TimeoutError.
        """
        print("host0$", *("sbatch", path, *arguments))
        job = self.ready and self.start().sbatch(path, arguments=arguments, env=self._env())

        def wait(seconds: float = 240) -> Result:
            def measure() -> dict[str, Result]:
                state = job.wait(seconds)
                runs = sorted(self.folder.glob(f"*-{job.id}*/summary.json"))
                return {"job": Result(state, job.output, tuple(Run(file.parent) for file in runs))}

            return self._replay(record, measure)["job"]

        return SimpleNamespace(wait=wait)

    def _env(self) -> dict[str, str]:
        """Let jobs write into a folder of this lab: their numbers begin at 1 in each cluster."""
        output = str(self.folder / "%x-%j.out")
        return {**CALM, "BOOTCAMP_LOGS": str(self.folder), "SBATCH_OUTPUT": output}

    def _replay(self, record: str, measure: Callable[[], dict]) -> dict[str, "Result"]:
        folder = self.records / record
        missing = self.missing and f"(recorded: {shown(folder)})"
        return replay(folder, measure, missing, _load_results, self._keep)

    def _keep(self, results: dict[str, "Result"], folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        rows = {}
        for name, result in results.items():
            for number, run in enumerate(result.runs):
                keep_run(run, folder / f"run-{number}")
            output = result.output.replace(str(self.folder), "logs")
            rows[name] = {"end": result.end, "output": output}
        _keep_json(rows, folder / OUTPUTS)


@dataclass(frozen=True)
class Result:
    """What a command or job ended with: exit code or state, output, its trainings' runs."""

    end: int | str
    output: str
    runs: tuple[Run, ...] = ()

    def __repr__(self) -> str:
        return f"exit code {self.end}" if isinstance(self.end, int) else self.end


def _load_results(folder: Path) -> dict[str, Result]:
    runs = tuple(Run(path) for path in sorted(folder.glob("run-*")))
    rows = read_json(folder / OUTPUTS)
    return {name: Result(row["end"], row["output"], runs) for name, row in rows.items()}


def _new_folder(name: str) -> Path:
    return LOGS / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"


def printed_lines(run: Run) -> list[str]:
    """List what the ranks printed, in order of rank.

    Warm ranks have a file each; horovodrun marks each line with its rank, "[1]<stdout>:".
    """
    path = run.folder / "ranks" / "launcher.out"
    if not path.exists():
        own = sorted(path.parent.glob("[0-9]*.out"), key=lambda file: int(file.stem))
        return [line for file in own for line in file.read_text().splitlines()]
    marked = re.findall(r"^\[(\d+)\]<stdout>:(.*)$", path.read_text(), re.M)
    return [text for _, text in sorted(marked, key=lambda line: int(line[0]))]


def keep_run(run: Run, record: Path) -> None:
    """Copy a run's record, large files compressed; no heartbeats, stacks, warnings, empty files.

    Raises NotRecorded, and leaves an earlier recording alone, if the run shared its cores.
    """
    if run.shared_cores:
        raise NotRecorded(
            f"{run.folder.name} shared its cores with another run, so its times mean nothing and "
            "it is not recorded. Record again when nothing else is running."
        )
    shutil.rmtree(record, ignore_errors=True)
    for path in run.folder.rglob("*"):
        warnings = path.suffix == ".err" and path.stem.isdigit()
        if path.suffix not in KEPT_SUFFIXES or warnings or path.stat().st_size == 0:
            continue
        text = without_own_folders(path.read_text(errors="replace"))
        target = record / path.relative_to(run.folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        if len(text) > 100_000:
            Path(f"{target}.gz").write_bytes(gzip.compress(text.encode()))
        else:
            target.write_text(text)


def _keep_json(value, record: Path) -> None:
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(without_own_folders(json.dumps(value, indent=1)) + "\n")


def without_own_folders(text: str) -> str:
    """Replace the folders of this project and its Python in a text."""
    for folder, name in OWN_FOLDERS.items():
        text = text.replace(folder, name)
    return text


class GpuPart:
    """One part of a GPU's record by tools/gpu_record.py: logs/reference/<machine>-gpu_record/.

    content: as the tool wrote it; empty, and the part false, without a record.
    """

    def __init__(self, path: Path | None):
        self.path, self.content = path, read_json(path) if path else {}

    def __bool__(self) -> bool:
        return bool(self.content)

    @property
    def label(self) -> str:
        """Name the GPU, the versions and the record's place; or say that there is none."""
        if not self:
            return "No GPU has been recorded yet: make gpu-record does it, on a machine with one."
        about, ended = self.content["about"], self.content["status"]
        gpu, versions = about["gpu"]["name"], about["versions"]
        where = self.path.parent.name + ("" if ended == "ok" else f" ({ended})")
        return f"{gpu}, torch {versions['torch']}, CUDA {versions['cuda']}; recorded run {where}"

    def __getitem__(self, name: str):
        return self.content.get("found", {}).get(name)

    def table(self, name: str, rows: list[dict]) -> Table:
        """Label the rows made from what was found under a name."""
        missing = self and not rows
        return Table(rows, f"{name}: not measured. {self.label}" if missing else self.label)


def gpu_parts(reference: Path = REFERENCE) -> list[GpuPart]:
    """Read every recorded part; a CPU's rehearsal is none."""
    parts = map(GpuPart, sorted(reference.glob("*-gpu_record/*.json")))
    return [part for part in parts if part and not part.content["rehearsal"]]


def gpu_part(name: str, reference: Path = REFERENCE) -> GpuPart:
    """Read the newest record of a part, such as speed_small."""
    found = [part for part in gpu_parts(reference) if part.path.stem == name]
    return max(found, key=lambda part: part.content["about"]["unix_seconds"], default=GpuPart(None))
