"""List what simulated hosts leave behind if they leave anything: compare before with after."""

import contextlib
import os
from pathlib import Path

from bootcamp.launcher.simulated_hosts import KINDS


def traces() -> dict[str, list[str]]:
    """List `namespaces` of a host's kinds that any process is in or holds open, and more.

    `interfaces` of this process's network, and its `mounts`.
    """
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        links = [f"/proc/{pid}/ns/{kind}" for kind in KINDS]
        with contextlib.suppress(OSError):
            links += [f"/proc/{pid}/fd/{number}" for number in os.listdir(f"/proc/{pid}/fd")]
        for link in links:
            with contextlib.suppress(OSError):  # gone meanwhile, or another user's
                found.add(os.readlink(link))
    return {
        "namespaces": sorted(name for name in found if name.partition(":")[0] in KINDS),
        "interfaces": sorted(os.listdir("/sys/class/net")),
        "mounts": Path("/proc/self/mounts").read_text().splitlines(),
    }
