"""What the supervisor is asked to start for a Call (launch.py), and the same for a terminal."""

import itertools
import os
import shlex
import shutil
import sys
import time
from pathlib import Path

from bootcamp import paths
from bootcamp.launcher import devices
from bootcamp.launcher import simulated_hosts as simulated
from bootcamp.launcher.arguments import to_arguments
from bootcamp.launcher.connection import connect
from bootcamp.launcher.follow import refusal
from bootcamp.launcher.messages import COMMAND, Command, RunRequest
from bootcamp.paths import shown
from bootcamp.records import summary

LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
RENDEZVOUS_PORT = 29400  # torchrun's own; on a host of our own it is free
HANG_SECONDS = 60.0
BUSY_PATIENCE = 10  # CPU ranks that compute may be slow rather than stuck
SET_BY_LAUNCHERS = {
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR"),
}
# torchrun serves the ranks' store itself; restarted ranks would find the dead ones' addresses in it
RESTARTS_WORK = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
BY_NAME = {"GLOO_SOCKET_IFNAME": simulated.INTERFACE}  # between hosts gloo is told its interface


def make(call, argv: list[str], lines: list[str]) -> RunRequest:
    """The request for a call, with the run's new folder. Raises RunRefused.

    argv: the script and its arguments. lines: for a terminal, see `terminal_lines`.
    """
    known = call.known
    kind = "cpu" if known.cpu_only else call.device
    cores = int(call.flags.get("cores_per_rank") or 1) if known.takes_course_flags else 1
    wishes = devices.wishes(known, kind, call.ranks, cores, {**os.environ, **call.env})
    folder = new_folder(run_name(call.path), call.options.run_dir)
    ranks = rank_requests(folder, argv, call.ranks, lines[0], call.env, call.hosts, call.link)
    return RunRequest(
        str(folder),
        ranks=ranks,
        records=known.takes_course_flags,
        framework=call.framework,
        hosts=call.hosts,
        link=call.link,
        **patience(call),
        **wishes,
        **_start(call, ranks[0], lines),
    )


def patience(call) -> dict:
    """How long the ranks may finish no step: idle, and busy."""
    seconds = call.options.hang_seconds
    busy = (seconds or HANG_SECONDS) * (1 if call.device == "cuda" else BUSY_PATIENCE)
    if seconds is None and not call.known.takes_course_flags:
        busy = float("inf")
    return {"hang_seconds": seconds or HANG_SECONDS, "busy_seconds": busy}


def _start(call, rank: Command, lines: list[str]) -> dict:
    """The part of a RunRequest that says how its ranks are started."""
    if call.start in ("warm", "cold"):
        return {"start": call.start if sys.platform == "linux" else "cold"}
    shared = {name: value for name, value in rank.env.items() if name not in SET_BY_LAUNCHERS}
    if call.start == "horovodrun":
        start = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", str(call.ranks)]
        python = os.environ.get("PYTHON_EXEC", sys.executable)  # as torchrun does
        start += ["--network-interface", LOOPBACK, python]
        return {"start": COMMAND, "agents": [Command([*start, *rank.argv], shared)]}
    agents = []
    for host in range(call.hosts):
        own = {"BOOTCAMP_COMMAND": lines[min(host, len(lines) - 1)]}
        env = {**torchrun_settings(call), **shared, **_where_ranks_write(call, host, shared), **own}
        start = [*torchrun(), *to_arguments(torchrun_flags(call, host))]
        agents.append(Command([*start, *rank.argv], env))
    fewest = call.options.fewest_and_most(call.hosts)[0]
    return {"start": COMMAND, "agents": agents, "fewest_hosts": fewest}


def terminal_lines(call, arguments: list[str]) -> list[str]:
    """The line that does the same in a terminal; with several hosts, in one on each of them.

    With flags of torchrun for one host alone, each host has a line of its own; else there is one.
    """
    variables = call.env
    if call.launcher == "horovodrun":
        starts = [["horovodrun", "--gloo", "-np", str(call.ranks), "python"]]
    elif call.launcher == "python" and call.ranks == 1:
        starts = [["python"]]
    else:
        variables = {**torchrun_settings(call), **variables}
        flags = [to_arguments(torchrun_flags(call, host)) for host in range(call.hosts)]
        starts = [["torchrun", *each] for each in flags]
    before = [f"{name}={shlex.quote(str(value))}" for name, value in variables.items()]
    words = [shown(call.path), *arguments]
    lines = [" ".join([*before, shlex.join([*start, *words])]) for start in starts]
    return lines if len(set(lines)) > 1 else lines[:1]


def run_name(path: Path) -> str:
    """What a run of this script is called: the strategy."""
    return path.stem.removeprefix("_train_")


def torchrun_flags(call, host: int) -> dict:
    """torchrun's flags on this host, those of Options(torchrun=) last."""
    options = call.options
    if call.hosts == 1:
        found = {"standalone": True, "nproc_per_node": call.ranks}
    else:
        endpoint = f"{simulated.name(0)}:{RENDEZVOUS_PORT}"
        found = {"nnodes": options.nodes or call.hosts, "nproc_per_node": call.ranks // call.hosts}
        found |= {"rdzv_id": run_name(call.path), "rdzv_backend": "c10d", "rdzv_endpoint": endpoint}
    found["max_restarts"] = options.max_restarts or None
    given = options.torchrun or {}
    found |= {name: value for name, value in given.items() if isinstance(name, str)}
    return found | given.get(host, {})


def torchrun_settings(call) -> dict[str, str]:
    """Variables that belong to torchrun's line, beside those of Options(env=)."""
    fewest, most = call.options.fewest_and_most(call.hosts)
    restarts = RESTARTS_WORK if call.options.max_restarts or fewest < most else {}
    return {**(BY_NAME if call.hosts > 1 else {}), **restarts}


def torchrun() -> list[str]:
    """torchrun itself, the one beside this Python first."""
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    found = shutil.which("torchrun", path=os.pathsep.join(folders))
    return [found] if found else [sys.executable, "-m", "torch.distributed.run"]


def _where_ranks_write(call, host: int, env: dict) -> dict[str, str]:
    """The ranks' output into files; over hosts also to torchrun's own, marked.

    Told by the environment, from which torchrun takes any flag as PET_<its name>: it is no part of
    the line. Over hosts the files are in ranks/<host>/; torchrun deletes those of an attempt when
    the number of hosts changes in it, and its own output keeps what was in them.
    """
    place = Path(env["BOOTCAMP_RUN"]) / "ranks"
    if call.hosts == 1:
        return {"PET_LOG_DIR": str(place)}  # else a folder in /tmp, for ever
    return {
        "PET_LOG_DIR": str(place / simulated.name(host)),
        "PET_TEE": "3",
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[${rank}]:",
    }


def rank_requests(
    folder: Path,
    argv: list[str],
    ranks: int,
    command: str,
    env: dict,
    hosts: int = 1,
    link: str | None = None,
) -> list[Command]:
    """Each rank's part of a request.

    argv: the script and its arguments. command: the line for a terminal. env: the reader's
    variables, beside this process's own. hosts, link: as of launch.
    """
    each = ranks // hosts
    given = {name: str(value) for name, value in env.items()}
    shared = {
        **os.environ,
        **given,
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(each),
        "MASTER_ADDR": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": LOOPBACK,
        "BOOTCAMP_COMMAND": command,
        **marks(folder),
    }
    if hosts > 1:  # as a launcher on each host would set it
        meet = {"MASTER_ADDR": simulated.name(0), "BOOTCAMP_LINK": link or "open", **BY_NAME}
        shared |= {**meet, **given}
    found = []
    for rank in range(ranks):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank % each)}
        own |= {"GROUP_RANK": str(rank // each)} if hosts > 1 else {}
        found.append(Command(argv, {**shared, **own}))
    return found


def marks(folder: Path) -> dict[str, str]:
    """Variables by which every process of a run is recognised."""
    return {
        "BOOTCAMP_RUN": str(folder),
        "BOOTCAMP_KERNEL": str(os.getpid()),
        "BOOTCAMP_SUPERVISOR": str(connect().process.pid),
    }


_numbers = itertools.count(1)


def new_folder(name: str, given: Path | str | None = None) -> Path:
    """A new run folder with the summary's room reserved: a full disk shows before a start.

    Raises RunRefused where it can't be made.
    """
    while True:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        folder = paths.LOGS / f"{stamp}-{name}-{os.getpid()}-{next(_numbers)}"
        folder = Path(given).resolve() if given else folder
        try:
            folder.mkdir(parents=True)
            (folder / "ranks").mkdir()
            summary.reserve(folder)
            return folder
        except FileExistsError:
            if given:
                message = f"run_dir={given}: the folder exists. Give a new one, or delete that one."
                raise refusal(message) from None
        except OSError as error:
            message = f"the run folder {shown(folder)} can't be written: {error.strerror}. "
            message += "Free some space, or name a folder of your own: run_dir=, or BOOTCAMP_LOGS."
            raise refusal(message) from None
