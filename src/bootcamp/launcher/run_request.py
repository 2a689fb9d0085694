"""What the supervisor is asked to start: the ranks of a run, their environment, the command line.

The same run as one line for a terminal is `terminal_command`. Standard library only.
"""

import itertools
import os
import shlex
import sys
import time
from pathlib import Path

from bootcamp import paths
from bootcamp.launcher import forkserver
from bootcamp.launcher import simulated_hosts as simulated
from bootcamp.launcher.connection import connect
from bootcamp.launcher.run_errors import refusal
from bootcamp.paths import shown
from bootcamp.records import summary

LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
# torchrun serves the ranks' store itself; restarted ranks would find the dead ones' addresses in it
RESTARTS_WORK = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def to_arguments(flags: dict) -> list[str]:
    """Flags as a command line: {"global_batch": 32} -> ["--global-batch", "32"]; None is left out.

    True gives the bare flag; False leaves it out.
    """
    arguments = []
    for name, value in flags.items():
        if value is None or value is False:
            continue
        arguments.append(f"--{name.replace('_', '-')}")
        if value is not True:
            arguments.append(str(value))
    return arguments


def terminal_command(
    path: Path,
    ranks: int,
    arguments: list[str],
    launcher: str,
    max_restarts: int = 0,
    env: dict | None = None,
    hosts: int = 1,
) -> str:
    """The line that does the same in a terminal; with several hosts, in one on each of them."""
    start = ["python"]
    if launcher == "horovodrun":
        start = ["horovodrun", "--gloo", "-np", str(ranks), "python"]
    elif hosts > 1:
        start = ["torchrun", "--nnodes", str(hosts), "--nproc-per-node", str(ranks // hosts)]
        start += ["--rdzv-backend", "c10d", "--rdzv-endpoint", simulated.name(0)]
    elif not (launcher == "python" and ranks == 1):
        restarts = ["--max-restarts", str(max_restarts)] if max_restarts else []
        start = ["torchrun", "--standalone", "--nproc-per-node", str(ranks), *restarts]
    settings = {**(RESTARTS_WORK if max_restarts else {}), **(env or {})}
    before = [f"{name}={shlex.quote(str(value))}" for name, value in settings.items()]
    return " ".join([*before, shlex.join([*start, shown(path), *arguments])])


def rank_requests(
    folder: Path, argv: list[str], ranks: int, command: str, env: dict | None = None
) -> list[dict]:
    """What forkserver.become_rank needs to know of each rank.

    argv: the script and its arguments. command: the line for a terminal. env: variables of the
    ranks beside this process's own; BOOTCAMP_RUN among them names the folder of the record.
    """
    shared = {
        **os.environ,
        **{name: str(value) for name, value in (env or {}).items()},
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": LOOPBACK,
        "BOOTCAMP_COMMAND": command,
        **marks(folder),
    }
    place = folder / "ranks"
    return [
        {
            "env": {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            "argv": argv,
            **{end: str(place / f"{rank}.{end}") for end in ("out", "err", "stack")},
        }
        for rank in range(ranks)
    ]


def connect_by_horovod(ranks: list[dict]) -> None:
    """Tell each rank what horovodrun would; the fork server adds the port and serves it."""
    for number, rank in enumerate(ranks):
        rank["env"] |= {
            "HOROVOD_RANK": str(number),
            "HOROVOD_SIZE": str(len(ranks)),
            "HOROVOD_LOCAL_RANK": str(number),
            "HOROVOD_LOCAL_SIZE": str(len(ranks)),
            "HOROVOD_CROSS_RANK": "0",
            "HOROVOD_CROSS_SIZE": "1",
            "HOROVOD_HOSTNAME": "localhost",
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": LOOPBACK,
            forkserver.HOROVOD: "127.0.0.1",
            "BOOTCAMP_WARM": "1",
        }


def marks(folder: Path) -> dict[str, str]:
    """Variables by which every process of a run is recognised."""
    return {
        "BOOTCAMP_RUN": str(folder),
        "BOOTCAMP_KERNEL": str(os.getpid()),
        "BOOTCAMP_SUPERVISOR": str(connect().process.pid),
    }


def spread_over_hosts(ranks: list[dict], hosts: int, link: str | None) -> None:
    """Tell each rank its host and what a launcher on that host would set."""
    each = len(ranks) // hosts
    for number, rank in enumerate(ranks):
        rank["host"] = number // each
        rank["env"] |= {
            "LOCAL_RANK": str(number % each),
            "LOCAL_WORLD_SIZE": str(each),
            "GROUP_RANK": str(number // each),
            "MASTER_ADDR": simulated.address(0),
            "GLOO_SOCKET_IFNAME": simulated.INTERFACE,
            "BOOTCAMP_PLACE": str(number),
            "BOOTCAMP_LINK": link or "open",
        }


def how_to_start(start: str, ranks: list[dict], max_restarts: int) -> dict:
    """The part of a request that says how its ranks are started: see job.Job."""
    if start in ("warm", "cold"):
        return {"start": start if sys.platform == "linux" else "cold"}
    first, count = ranks[0], str(len(ranks))
    env = {
        name: value
        for name, value in first["env"].items()
        if name not in forkserver.SET_BY_LAUNCHERS
    }
    if start == "torchrun":
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", count, "--max-restarts", str(max_restarts)]
        command += ["--log-dir", str(Path(first["out"]).parent)]  # else a folder in /tmp, for ever
        env = {**RESTARTS_WORK, **env} if max_restarts else env
    else:
        command = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", count]
        command += ["--network-interface", LOOPBACK, sys.executable]
    return {"start": "command", "command": [*command, *first["argv"]], "env": env}


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
            message += "Free some space, or give run_dir= a folder that you may write to."
            raise refusal(message) from None


def taken(port: int) -> str | None:
    """Why a port can't be had, None if it is free."""
    try:
        forkserver.listen(port).close()
    except OSError as error:
        return f"port={port} can't be had: {error.strerror}. Leave port= out, a free one is taken."
    return None
