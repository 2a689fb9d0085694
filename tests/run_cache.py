"""Answer a launch from an identical earlier one of this run of the suite.

Tests and lessons train the same thing many times over. `install` puts a Connection in the
launcher's place: while the folder in BOOTCAMP_RUN_CACHE answers, a launch that ended well (also of
a program, as a command) leaves a copy of its record there, and an identical launch of another
process gets that record, in a new run folder, without training. Identical means the same text of
the script, arguments, ranks, hosts, start, environment and package. Never answered are a start that
is itself what is shown (cold, torchrun), arguments that name files, and a launch that the same
process repeats: it wants a second run. Only within `repeated()` one record does for both.
"""

import contextlib
import hashlib
import json
import os
import queue
import shutil
import sys
import threading
import time
from contextvars import ContextVar
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from filelock import FileLock

from bootcamp import files, paths
from bootcamp.experiments import claims
from bootcamp.launcher import connection
from bootcamp.launcher.run_request import RunRequest
from bootcamp.records import summary

VARIABLE = "BOOTCAMP_RUN_CACHE"
# differ from process to process or from run to run, and change nothing in a training
OF_NO_INFLUENCE = (
    "BOOTCAMP_COMMAND",
    "BOOTCAMP_FIRST_CORE",
    "BOOTCAMP_KERNEL",
    "BOOTCAMP_LOGS",
    "BOOTCAMP_RUN",
    "BOOTCAMP_RUN_CACHE",
    "BOOTCAMP_SUPERVISOR",
    "BOOTCAMP_TEST_PYTHON",
    "BOOTCAMP_TEST_RUN",
    "BOOTCAMP_TEST_RUNS",
    "BOOTCAMP_WIDGETS",
    "BOOTCAMP_WORK",
)
READ_BY_RANKS = ("BOOTCAMP_", "CUDA_", "DS_", "GLOO_", "HOROVOD_", "NCCL_", "OMP_", "TORCH")
OF_FILES = ("--save", "--resume")
# flags that mean the same when they are left out; a test compares them with train/config.py
DEFAULTS = (["--optimizer", "adamw"], ["--model", "gpt"])
_launched_here: set[str] = set()
_may_repeat = ContextVar("_may_repeat", default=False)


@contextlib.contextmanager
def repeated():
    """In here a launch that this process repeats is answered too: nobody weighs its times."""
    token = _may_repeat.set(True)
    try:
        yield
    finally:
        _may_repeat.reset(token)


def install(counted_in: Path | str) -> None:
    """Let this process's launches be counted, and answered while BOOTCAMP_RUN_CACHE is set.

    counted_in: the folder for the counts of launches that are not to be answered.
    """
    CachedRuns.counted_in = counted_in
    connection.Connection = CachedRuns
    measured = claims._measure

    def measure(*args):
        without = os.environ.get("BOOTCAMP_CLAIM_SECONDS") == "0"  # its verdict is none in any case
        with repeated() if without else contextlib.nullcontext():
            return measured(*args)

    claims._measure = measure


class CachedRuns(connection.Connection):
    """A supervisor that is asked only for runs that no earlier launch answers.

    It holds the entry's lock while a run goes on, so that two processes do not train the same at
    once, and keeps the record of a run that ended well.
    """

    counted_in: Path | str
    requests = 0  # of this process, live ranks and commands among them
    python = sys.executable  # of a notebook's commands: warm_kernel.py has a warm one

    def __init__(self):
        super().__init__()
        self._to_keep: dict[str, contextlib.ExitStack] = {}

    def request(self, run: RunRequest) -> queue.SimpleQueue:
        """As Connection.request."""
        CachedRuns.requests += 1
        argv = run.agents[0].argv if run.start == "command" else [""]
        if argv[0] == sys.executable:
            argv[0] = self.python
            if argv[1] == "-m" and argv[2].startswith("bootcamp."):  # the warm one takes files
                argv[1:3] = [find_spec(argv[2]).origin]
        cache, folder = os.environ.get(VARIABLE), Path(run.run)
        key = _key(run, folder) if cache else None
        if key is None or (key in _launched_here and not _may_repeat.get()):
            count(cache or self.counted_in, "trained", run)
            return super().request(run)
        _launched_here.add(key)
        kept, stack = Path(cache) / key, contextlib.ExitStack()
        self._to_keep[run.run] = stack
        stack.enter_context(FileLock(f"{kept}.lock"))
        if kept.exists():
            count(cache, "copied", run)
            _copy(kept, folder, run)
            events = queue.SimpleQueue()
            events.put({"event": "ended", "error": None})
            return events
        count(cache, "trained", run)
        stack.callback(_keep, folder, kept)
        return super().request(run)

    def forget(self, run: str) -> None:
        """As Connection.forget."""
        super().forget(run)
        if stack := self._to_keep.pop(run, None):
            stack.close()


def _keep(folder: Path, kept: Path) -> None:
    if summary.read(folder)["status"] == "ok":
        shutil.copytree(folder, f"{kept}.part")
        os.rename(f"{kept}.part", kept)


def counted(cache: Path | str) -> dict[str, list[str]]:
    """The launches that were trained and those that were copied, by every process with this cache.

    Each is a line: the test or notebook file, and what was launched.
    """
    found = {}
    for how in ("trained", "copied"):
        path = Path(cache) / f"{how}.txt"
        found[how] = path.read_text().splitlines() if path.exists() else []
    return found


def count(cache: Path | str, how: str, request: RunRequest) -> None:
    """Note one launch: "trained" or "copied"."""
    who = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0] or "no test"
    ranks = request.ranks
    what = f"{len(ranks)} x {' '.join(ranks[0].argv)}" if ranks else "a command"
    with open(Path(cache) / f"{how}.txt", "a") as file:
        file.write(f"{who}: {' '.join(what.split())}\n")


def _key(request: RunRequest, folder: Path) -> str | None:
    """A hash of everything that the launch depends on; None for one that is always made."""
    ranks, pythons = request.ranks, (sys.executable, CachedRuns.python)
    if request.start == "command":  # a program and its arguments
        programs = [replace(a, argv=a.argv[1:]) for a in request.agents if a.argv[0] in pythons]
        ranks = [one for one in programs if one.argv[0].endswith(".py")]
    horovod = any("horovod.runner.launch" in agent.argv for agent in request.agents)
    drilled = threading.current_thread() is not threading.main_thread()  # it wants processes
    if drilled or not ranks or not (request.start in ("warm", "command") or horovod):
        return None
    script, *arguments = ranks[0].argv
    text = Path(script).read_text()
    groups = _by_flag(arguments, DEFAULTS if "config.parse(" in text else ())
    if any(group[0].startswith(OF_FILES) or os.sep in "".join(group) for group in groups):
        return None
    how = {name: getattr(request, name) for name in ("start", "hosts", "link", "records")}
    parts = [
        paths.shown(script) if Path(script).is_relative_to(paths.ROOT) else Path(script).name,
        text,
        groups,
        how,
        [_environment(rank.env, folder) for rank in ranks],
        _sources(),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _by_flag(arguments: list[str], defaults) -> list[list[str]]:
    """Arguments as flags with their values, in an order that does not depend on the caller's."""
    groups = [[]]
    for argument in arguments:
        if argument.startswith("--"):
            groups.append([])
        groups[-1].append(argument)
    flags = [group for group in groups[1:] if group not in defaults]
    return [[argument] for argument in groups[0]] + sorted(flags)


def _environment(given: dict, folder: Path) -> dict:
    """What a rank's environment has beside this process's own, and what may change a training."""
    return {
        name: value.replace(str(folder), "")
        for name, value in given.items()
        if name not in OF_NO_INFLUENCE
        and (os.environ.get(name) != value or name.startswith(READ_BY_RANKS))
    }


def _sources() -> str:
    """A hash of the package's files: an edit makes every kept run stale."""
    digest = hashlib.sha256()
    for path in sorted(paths.PACKAGE.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _copy(kept: Path, folder: Path, request: RunRequest) -> None:
    """Put a kept record into a run folder, with the start and the command of this launch."""
    shutil.copytree(kept, folder, dirs_exist_ok=True)
    config = folder / "config.json"
    if config.exists():
        mine = {"started_unix_seconds": time.time()}
        mine["command"] = request.ranks[0].env["BOOTCAMP_COMMAND"]
        files.write_json(config, {**json.loads(config.read_text()), **mine})
