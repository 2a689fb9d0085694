"""Runs that need what not every machine has: launched, or read from their record.

    horovod = recorded.Experiments("horovod", "05_horovod")
    run = horovod.launch("two-ranks", "horovod", 2, steps=20)

Where the framework is installed, that is launch(). Elsewhere it prints what is missing and returns
the recorded run of this name from logs/reference/05_horovod/. Figures and tables label it with its
machine. Experiments("hosts", ...) asks for simulated hosts in place of a framework.

To record a lesson's runs anew, on a machine that has what they need and is idle:
BOOTCAMP_RECORD=1 python tools/notebooks.py 05. Standard library only.
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
from pathlib import Path

from bootcamp.launcher import simulated_hosts
from bootcamp.launcher.launch import HOW_TO_GET, Options, available, launch
from bootcamp.paths import LOGS, REFERENCE, ROOT
from bootcamp.records.runs import Run

KEEPS = (".json", ".jsonl", ".out", ".err")
OWN_FOLDERS = {str(LOGS): "logs", sys.prefix: ".venv", sys.base_prefix: "python", str(ROOT): "."}
HOSTS = "hosts"
_numbers = itertools.count(1)


class Experiments:
    """The runs of one lesson. `ready`: whether this machine has what they need.

    needs: a framework, such as "horovod", or "hosts".
    """

    def __init__(self, needs: str, lesson: str):
        self.needs, self.lesson = needs, lesson
        self._why_not = _why_no_hosts() if needs == HOSTS else _why_no_framework(needs)
        self.ready = self._why_not is None

    def __repr__(self) -> str:
        if self.ready:
            name = self.needs.capitalize()
            has = "can be made here" if self.needs == HOSTS else "is installed"
            return f"{name} {has}: the runs of this lesson are made on this machine."
        return self._missing("recorded runs stand in")

    def launch(self, name: str, script, ranks: int, env: dict | None = None, **how) -> Run:
        """Launch this experiment or return its record; arguments as launch() has them.

        name: of the record's folder. env: may hold "{run}", which becomes the run's folder.
        """
        record = REFERENCE / self.lesson / name
        if not self.ready:
            print(self._missing(f"the recorded run {name} stands in"))
            return _recorded(record)
        stamp = time.strftime("%Y%m%d-%H%M%S")
        folder = LOGS / f"{stamp}-{name}-{os.getpid()}-{next(_numbers)}"
        env = {key: str(value).replace("{run}", str(folder)) for key, value in (env or {}).items()}
        run = launch(script, ranks, options=Options(run_dir=folder, env=env), **how)
        if os.environ.get("BOOTCAMP_RECORD"):
            keep(run.folder, record)
        return run

    def _missing(self, instead: str) -> str:
        lacks, advice = self._why_not
        return f"{lacks}: {instead}. {advice}"


def _why_no_framework(name: str) -> tuple[str, str] | None:
    """What this machine lacks and what to do about it; None if the framework is there."""
    if available(name):
        return None
    return f"{name.capitalize()} is not installed here", HOW_TO_GET[name]


def _why_no_hosts() -> tuple[str, str] | None:
    """As _why_no_framework, for hosts."""
    why = simulated_hosts.why_not()
    return why and ("Hosts can't be made on this machine", f"(The reason: {why}.)")


def _recorded(folder: Path) -> Run:
    if not (folder / "summary.json").exists():
        raise FileNotFoundError(
            f"{folder.relative_to(ROOT)}: there is no such record. Record the lesson's runs on a "
            "machine that has what they need, as the docstring of experiments/recorded.py says."
        )
    return Run(folder)


def said(run: Run) -> list[str]:
    """What the ranks printed, in order of rank.

    Warm ranks have a file each. horovodrun passes their lines on, in any order, and marks each with
    its rank, "[1]<stdout>:".
    """
    path = run.folder / "ranks" / "launcher.out"
    if not path.exists():
        own = sorted(path.parent.glob("[0-9]*.out"), key=lambda file: int(file.stem))
        return [line for file in own for line in file.read_text().splitlines()]
    marked = re.findall(r"^\[(\d+)\]<stdout>:(.*)$", path.read_text(), re.M)
    return [text for _, text in sorted(marked, key=lambda line: int(line[0]))]


class NotRecorded(Exception):
    """A run that no record is made of. Its text says why."""


def keep(run: Path, record: Path) -> None:
    """Copy a run's record to where the course finds it, large files compressed.

    Heartbeats, stacks, ranks' warnings and empty files are left out, and names of this machine's
    folders. Raises NotRecorded, and leaves an earlier record alone, if the run shared its cores.
    """
    if Run(run).shared_cores:
        raise NotRecorded(
            f"{run.name} shared its cores with another run, so its times mean nothing and it is "
            "not recorded. Record again when nothing else is running."
        )
    shutil.rmtree(record, ignore_errors=True)
    for path in run.rglob("*"):
        warnings = path.suffix == ".err" and path.stem.isdigit()
        if path.suffix not in KEEPS or warnings or path.stat().st_size == 0:
            continue
        text = without_own_folders(path.read_text(errors="replace"))
        target = record / path.relative_to(run)
        target.parent.mkdir(parents=True, exist_ok=True)
        if len(text) > 100_000:
            with gzip.open(f"{target}.gz", "wt") as file:
                file.write(text)
        else:
            target.write_text(text)


def without_own_folders(text: str) -> str:
    """A text without the names of the folders of this project and its Python."""
    for folder, name in OWN_FOLDERS.items():
        text = text.replace(folder, name)
    return text


def told(path: Path, why_not: str | None, measure: Callable[[], dict]) -> dict:
    """What `measure` returns; where this machine can't measure it, what `path` has of another.

    why_not: what is missing here, None if nothing is. With BOOTCAMP_RECORD in the environment what
    was measured becomes the record. The dictionary must be one that JSON can hold.
    """
    if why_not:
        print(f"{why_not}: what was recorded elsewhere stands in ({path.stem}).")
        return json.loads(path.read_text())
    found = measure()
    if os.environ.get("BOOTCAMP_RECORD"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(without_own_folders(json.dumps(found, indent=1)) + "\n")
    return found
