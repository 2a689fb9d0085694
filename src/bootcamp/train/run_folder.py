"""The run folder: where it is, how rank 0 claims it, and the `config.json` written at the start."""

import os
import platform
import shlex
import subprocess
import sys
import time
from pathlib import Path

import torch

from bootcamp import corpus, machine
from bootcamp.paths import LOGS, ROOT
from bootcamp.records import summary
from bootcamp.train import environment
from bootcamp.train.refusal import refuse
from bootcamp.train.run_context import RunContext


def find(given: str | None) -> Path:
    """Find the folder as given, else the launcher's, else a new one: the same on every rank."""
    if named := given or environment.run_folder():
        return Path(named).resolve()
    if environment.count() == 1:
        return LOGS / time.strftime(f"%Y%m%d-%H%M%S-{_strategy()}-{os.getpid()}")
    run_id = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return LOGS / f"{_strategy()}-{run_id if run_id != 'none' else os.getppid()}"


def _strategy() -> str:
    return Path(sys.argv[0]).stem.removeprefix("_train_")


def claim(context: RunContext) -> None:
    """Create the run folder and its `config.json`, on rank 0; a restart or `--resume` reuses it.

    Refuses a folder that holds anything else or can't be written.
    """
    folder = context.run_dir
    launched = environment.run_folder() == str(folder)  # by our launcher, which made the folder
    resumes = context.args.resume and (folder / "config.json").exists()
    goes_on = environment.attempt() > 0 or resumes
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not goes_on and not launched and any(folder.iterdir()):
            refuse(
                f"--run-dir {folder} is not empty, it may hold another run. "
                "Give a new folder, or delete that one."
            )
        (folder / "ranks").mkdir(exist_ok=True)
        if not (folder / "summary.json").exists() or goes_on:
            summary.reserve(folder)  # a run that goes on begins without its last attempt's verdict
        summary.write_json(folder / "config.json", _configuration(context))
    except OSError as error:
        refuse(
            f"--run-dir {folder} can't be written: {error.strerror}. "
            "Give a folder that you may write to, on a disk that is not full."
        )


def _configuration(context: RunContext) -> dict:
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    flags = vars(context.args).items()
    return {
        **{name: value for name, value in flags if isinstance(value, int | float | str | None)},
        "run_dir": None,  # a run is found by its folder, which may be moved
        "device": context.device,
        "devices": context.devices,
        "backend": context.backend,
        "timeout": context.timeout.total_seconds(),
        "mesh": dict(zip(context.axes, context.mesh, strict=True)),
        "data_parallel": context.data_parallel,
        "own_flags": context.own_flags,
        "corpus_crc32": corpus.crc32(),
        "strategy": _strategy(),
        "script": _script(),
        "command": os.environ.get("BOOTCAMP_COMMAND", _command_by_hand()),
        "started_unix_seconds": time.time(),
        "processes": environment.count(),
        "hosts": environment.hosts(),
        "link": environment.link(),
        "machine": machine.describe(gpus),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "git_commit": _git_commit(),
    }


def _command_by_hand() -> str:
    """The line that started this script in a terminal, as far as it is known here."""
    start = ["python"]
    if environment.count() > 1:
        start = ["torchrun", "--nproc-per-node", str(environment.local_count())]
    return shlex.join([*start, _script(), *sys.argv[1:]])


def _script() -> str:
    """The script's path without this machine's own folders: from the project's, or the name."""
    path = Path(sys.argv[0]).resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def _git_commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--verify", "-q", "HEAD"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None
