"""What the supervisor is asked to start: the ranks of a run, their environment, the command line.

The same run as a line for a terminal is among `terminal_lines`.
"""

import itertools
import os
import sys
import time
from pathlib import Path

from bootcamp import paths
from bootcamp.launcher import processes, torchrun
from bootcamp.launcher import simulated_hosts as simulated
from bootcamp.launcher.arguments import Options, fewest_and_most, to_arguments
from bootcamp.launcher.connection import connect
from bootcamp.launcher.requests import COMMAND, Command
from bootcamp.launcher.run_errors import refusal
from bootcamp.paths import shown
from bootcamp.records import summary

SET_BY_LAUNCHERS = {
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR"),
}
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"


def terminal_lines(
    path: Path, ranks: int, arguments: list[str], launcher: str, options: Options, hosts: int = 1
) -> list[str]:
    """The line that does the same in a terminal; with several hosts, in one on each of them.

    With a static rendezvous, or flags of torchrun for one host alone, each host has a line of its
    own; else there is one.
    """
    variables, name = options.env or {}, run_name(path)
    if launcher == "horovodrun":
        starts = [["horovodrun", "--gloo", "-np", str(ranks), "python"]]
    elif launcher == "python" and ranks == 1:
        starts = [["python"]]
    else:
        variables = {**torchrun.settings(hosts, options), **variables}
        starts = [
            ["torchrun", *to_arguments(torchrun.flags(ranks, hosts, options, name, host))]
            for host in range(hosts)
        ]
    lines = [torchrun.shown(variables, [*start, shown(path), *arguments]) for start in starts]
    return lines if len(set(lines)) > 1 else lines[:1]


def run_name(path: Path) -> str:
    """What a run of this script is called: the strategy."""
    return path.stem.removeprefix("_train_")


def rank_requests(
    folder: Path, argv: list[str], ranks: int, command: str, env: dict | None = None
) -> list[Command]:
    """Each rank's part of a request.

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
    return [
        Command(argv, {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(ranks)
    ]


def marks(folder: Path) -> dict[str, str]:
    """Variables by which every process of a run is recognised."""
    return {
        "BOOTCAMP_RUN": str(folder),
        "BOOTCAMP_KERNEL": str(os.getpid()),
        "BOOTCAMP_SUPERVISOR": str(connect().process.pid),
    }


def spread_over_hosts(ranks: list[Command], hosts: int, link: str | None, given: dict) -> None:
    """Tell each rank its host, as GROUP_RANK, and what a launcher on that host would set.

    given: the reader's variables, which go before these.
    """
    each = len(ranks) // hosts
    for number, rank in enumerate(ranks):
        rank.env |= {
            "LOCAL_RANK": str(number % each),
            "LOCAL_WORLD_SIZE": str(each),
            "GROUP_RANK": str(number // each),
            "MASTER_ADDR": simulated.name(0),
            "BOOTCAMP_LINK": link or "open",
            **torchrun.BY_NAME,
            **given,
        }


def how_to_start(
    start: str, ranks: list[Command], hosts: int, options: Options, lines: list[str]
) -> dict:
    """The part of a RunRequest that says how its ranks are started."""
    if start in ("warm", "cold"):
        return {"start": start if sys.platform == "linux" else "cold"}
    first, count = ranks[0], len(ranks)
    env = {name: value for name, value in first.env.items() if name not in SET_BY_LAUNCHERS}
    if start == "horovodrun":
        command = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", str(count)]
        python = os.environ.get("PYTHON_EXEC", sys.executable)  # as torchrun does
        command += ["--network-interface", LOOPBACK, python]
        return {"start": COMMAND, "agents": [Command([*command, *first.argv], env)]}
    agents = []
    for host in range(hosts):
        name = run_name(Path(first.argv[0]))
        words = to_arguments(torchrun.flags(count, hosts, options, name, host))
        own = {
            **torchrun.settings(hosts, options),
            **env,
            **torchrun.where_ranks_write(Path(env["BOOTCAMP_RUN"]), hosts, host),
            "BOOTCAMP_COMMAND": lines[min(host, len(lines) - 1)],
        }
        command = [*torchrun.program(), *words, *first.argv]
        agents.append(Command(command, own))
    fewest = fewest_and_most(hosts, options)[0]
    return {"start": COMMAND, "agents": agents, "fewest_hosts": fewest}


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


def taken(port: int) -> str | None:
    """Why a port can't be had, None if it is free."""
    try:
        processes.listen(port).close()
    except OSError as error:
        return f"port={port} can't be had: {error.strerror}. Leave port= out, a free one is taken."
    return None
