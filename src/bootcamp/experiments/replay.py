"""Replay recordings of runs that this machine can't make, as VCR.py replays web answers.

Recordings are in logs/reference/<lesson>/, without names of their machine's folders. To record a
lesson again, on an idle machine with what it needs: BOOTCAMP_RECORD=1 python tools/notebooks.py 05.
"""

import gzip
import json
import os
import re
import shutil
import sys
import time
import uuid
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
from bootcamp.records.rank_errors import MARK
from bootcamp.records.runs import Run

KEPT_SUFFIXES = (".json", ".jsonl", ".out", ".err")
OWN_FOLDERS = {str(LOGS): "logs", sys.prefix: ".venv", sys.base_prefix: "python", str(ROOT): "."}
OUTPUTS = "said.json"  # the file of a cluster's commands and jobs
# torchrun warns of the first if it is not set, torch's sockets of hosts without a DNS
CALM = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
HOSTS = {
    "hosts": (simulated_hosts, "Hosts can't be made on this machine"),
    "slurm": (slurm, "Slurm can't be started here"),
}


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

    load, keep: read and write a recording, by default JSON. Raises FileNotFoundError without one.
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


class RecordedRuns:
    """Make one lesson's runs, or replay them. `ready`: whether this machine can make them.

    needs: "hosts", "slurm", or a framework such as "horovod". missing: what this machine lacks.
    """

    def __init__(self, lesson: str, needs: str):
        self.records, self.needs = REFERENCE / lesson, needs
        if needs in HOSTS:
            module, missing = HOSTS[needs]
            why_not = module.why_not()
            self.ready, self.advice = not why_not, f"(The reason: {why_not}.)"
        else:
            missing = f"{needs.capitalize()} is not installed here"
            self.ready, self.advice = available(needs), HOW_TO_GET[needs]
        self.missing = None if self.ready else missing

    def __repr__(self) -> str:
        if not self.ready:
            return f"{self.missing}: recorded runs stand in. {self.advice}"
        if self.needs == "slurm":
            return "Slurm can be started here: every command and job of this lesson is a real one."
        has = "can be made here" if self.needs == "hosts" else "is installed"
        return f"{self.needs.capitalize()} {has}: the runs of this lesson are made on this machine."

    def launch(self, name: str, script, ranks: int, env: dict | None = None, **how) -> Run:
        """Launch a run, or return its recording. how: other arguments of launch().

        name: of the recording's folder. env: may hold "{run}", which becomes the run's folder.
        """

        def measure() -> Run:
            folder = _new_folder(name)
            filled = {k: str(v).replace("{run}", str(folder)) for k, v in (env or {}).items()}
            return launch(script, ranks, options=Options(run_dir=folder, env=filled), **how)

        note = f"{self.missing}: the recorded run {name} stands in. {self.advice}"
        return replay(self.records / name, measure, self.missing and note, Run, keep_run)


class RecordedCluster(RecordedRuns):
    """A lesson's Slurm cluster; the first command or job starts it. settings: of slurm.Cluster."""

    def __init__(self, lesson: str, **settings):
        super().__init__(lesson, "slurm")
        self.settings, self.folder = settings, _new_folder(lesson)
        self.cluster: slurm.Cluster | None = None

    def start(self) -> slurm.Cluster:
        """Start the cluster if it is not running. Raises SlurmError."""
        if self.cluster is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.cluster = slurm.Cluster(**self.settings)
        return self.cluster

    def stop(self) -> None:
        """End the cluster and everything in it."""
        if self.cluster is not None:
            self.cluster.stop()
            self.cluster = None

    def run(self, record: str, line: str, on: str = "host0") -> "Result":
        """Run a command on a host; display its line and output. See `on_each`."""
        return self.on_each(record, {on: line})[on]

    def on_each(self, record: str, lines: dict[str, str]) -> dict[str, "Result"]:
        """Run commands on several hosts at once, and display all; no exit code is an error."""

        def measure() -> dict[str, Result]:
            run = partial(self.start().run, env=self._env(), raises=False)
            with ThreadPoolExecutor() as pool:
                done = pool.map(lambda host: (host, run(lines[host], on=host)), lines)
            return {host: Result(ended.returncode, ended.stdout) for host, ended in done}

        results = self._replay(record, measure)
        for host, line in lines.items():
            print(f"{host}$ {line}\n{MARK.sub('', results[host].output)}", end="")
        return results

    def sbatch(self, record: str, path: str, *arguments) -> SimpleNamespace:
        """Submit a job file; `.wait(seconds)` returns its Result, or raises TimeoutError."""
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
        """Let jobs write into a folder of their own: their numbers begin at 1 in each cluster."""
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
    """The end of a command or job: exit code or state, output, the runs of its trainings."""

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
    return LOGS / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}-{uuid.uuid4().hex[:8]}"


def read_printed_lines(run: Run) -> list[str]:
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
        text = hide_own_folders(path.read_text(errors="replace"))
        target = record / path.relative_to(run.folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        if len(text) > 100_000:
            Path(f"{target}.gz").write_bytes(gzip.compress(text.encode()))
        else:
            target.write_text(text)


def _keep_json(value, record: Path) -> None:
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(hide_own_folders(json.dumps(value, indent=1)) + "\n")


def hide_own_folders(text: str) -> str:
    """Return a text with the folders of this project and its Python replaced."""
    for folder, name in OWN_FOLDERS.items():
        text = text.replace(folder, name)
    return text


def list_gpu_parts(name: str = "*", reference: Path = REFERENCE) -> list[dict]:
    """Read what make gpu-record has found on GPUs, the newest last; no rehearsals on a CPU."""
    paths = reference.glob(f"*-gpu_record/{name}.json")
    parts = [read_json(path) | {"path": path} for path in paths]
    parts = [part for part in parts if not part.get("rehearsal", True)]
    return sorted(parts, key=lambda part: part["about"]["unix_seconds"])


def find_gpu_result(name: str, result: str, reference: Path = REFERENCE) -> tuple[Any, str]:
    """Return a result of a part's newest record, None without, and a caption: which GPU it was."""
    parts = list_gpu_parts(name, reference)
    if not parts:
        return None, "No GPU has been recorded yet: make gpu-record does it, on a machine with one."
    part = parts[-1]
    gpu, versions = part["about"]["gpu"]["name"], part["about"]["versions"]
    ended = "" if part["status"] == "ok" else f" ({part['status']})"
    caption = f"{gpu}, torch {versions['torch']}, CUDA {versions['cuda']}; "
    caption += f"recorded run {part['path'].parent.name}{ended}"
    found = part.get("found", {}).get(result)
    return found, caption if found else f"{result}: not measured. {caption}"
