"""torchrun's command line: one for one host, one for each of several, as a person types it there.

Where torchrun's ranks write is no part of the line. The launcher tells it by the environment, from
which torchrun takes any flag as PET_<its name> (torch.distributed.argparse_util).
"""

import os
import shlex
import shutil
import sys
from pathlib import Path

from bootcamp.launcher import simulated_hosts as simulated
from bootcamp.launcher.arguments import Options, fewest_and_most

RENDEZVOUS_PORT, MASTER_PORT = 29400, 29500  # torchrun's own; on a host of our own they are free
# torchrun serves the ranks' store itself; restarted ranks would find the dead ones' addresses in it
RESTARTS_WORK = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
BY_NAME = {"GLOO_SOCKET_IFNAME": simulated.INTERFACE}  # between hosts gloo is told its interface


def flags(ranks: int, hosts: int, options: Options, run_id: str, host: int = 0) -> dict:
    """torchrun's flags on this host, those of Options(torchrun=) last."""
    found = {"standalone": True, "nproc_per_node": ranks}
    if hosts > 1:
        found = {"nnodes": options.nodes or hosts, "nproc_per_node": ranks // hosts}
        first = simulated.name(0)
        if options.rendezvous == "static":
            found |= {"node_rank": host, "master_addr": first, "master_port": MASTER_PORT}
        else:
            endpoint = f"{first}:{RENDEZVOUS_PORT}"
            found |= {"rdzv_id": run_id, "rdzv_backend": "c10d", "rdzv_endpoint": endpoint}
    found["max_restarts"] = options.max_restarts or None
    given = options.torchrun or {}
    found |= {name: value for name, value in given.items() if isinstance(name, str)}
    return found | given.get(host, {})


def settings(hosts: int, options: Options) -> dict[str, str]:
    """Variables that belong to the line, beside those of Options(env=)."""
    fewest, most = fewest_and_most(hosts, options)
    restarts = RESTARTS_WORK if options.max_restarts or fewest < most else {}
    return {**(BY_NAME if hosts > 1 else {}), **restarts}


def program() -> list[str]:
    """torchrun itself, the one beside this Python first."""
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    found = shutil.which("torchrun", path=os.pathsep.join(folders))
    return [found] if found else [sys.executable, "-m", "torch.distributed.run"]


def where_ranks_write(folder: Path, hosts: int, host: int) -> dict[str, str]:
    """PET_ variables: the ranks' output into files; over hosts also to torchrun's own, marked.

    Over hosts the files are in ranks/<host>/; torchrun deletes those of an attempt when the number
    of hosts changes in it, and its own output keeps what was in them.
    """
    if hosts == 1:
        return {"PET_LOG_DIR": str(folder / "ranks")}  # else a folder in /tmp, for ever
    return {
        "PET_LOG_DIR": str(folder / "ranks" / simulated.name(host)),
        "PET_TEE": "3",
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[${rank}]:",
    }


def shown(variables: dict, words: list[str]) -> str:
    """A line for a terminal: variables, then the command."""
    before = [f"{name}={shlex.quote(str(value))}" for name, value in variables.items()]
    return " ".join([*before, shlex.join(words)])
