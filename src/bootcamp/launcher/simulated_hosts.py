"""python -P src/bootcamp/launcher/simulated_hosts.py 2 200mbit

Several hosts on one machine, for lessons about the link between them.

A host is a network namespace: it has a loopback and an interface `eth0` of its own, as a machine of
a cluster has. Ranks of one host meet over its loopback, ranks of two hosts over their `eth0`, which
a switch (a bridge in a namespace of its own) joins. The kernel's token bucket filter (tc-tbf(8))
slows down what a host sends to the rate of its link; it adds no delay.

This process makes the hosts, prints one line of JSON that says how to enter them, and holds them
as long as its standard input is open. Nothing of it has a name in the file system: a namespace, its
interfaces and its filters go when the last process in it has gone, whatever ended that.

Root may do this, and so may anyone whom the system lets have a user namespace (Linux only; needs
`ip` and `tc`, of the package iproute2). BOOTCAMP_WITHOUT=hosts in the environment hides them, to
see what a lesson shows without them. Standard library only.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":  # started with -P as a file: the package lies one folder up
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bootcamp import machine
from bootcamp.launcher.forkserver import die_with_parent, system_call

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # <sched.h>
SEARCH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
INTERFACE = machine.HOST_INTERFACE
RATE = re.compile(r"\d+(\.\d+)?[kmg]?bit")


class HostsError(Exception):
    """Hosts that this system does not allow. Its text says why and what would help."""


def name(host: int) -> str:
    """The name of a host, counted from 0."""
    return f"host{host}"


def address(host: int) -> str:
    """The address of a host on the network between them, which nobody outside it can reach."""
    return f"10.77.0.{host + 1}"


def why_not() -> str | None:
    """Why this machine can't have hosts, None if it can: makes two and lets them go."""
    command = [sys.executable, "-P", __file__, "2", "1gbit"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    try:
        return json.loads(done.stdout).get("error")
    except ValueError:
        return f"making hosts failed: {done.stderr.strip()[-200:]}"


def traces() -> dict[str, list[str]]:
    """What hosts leave behind if they leave anything: compare before with after.

    `namespaces` of the network that any process is in or holds open, `interfaces` of this one's,
    and `mounts`.
    """
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        links = [f"/proc/{pid}/ns/net"]
        with contextlib.suppress(OSError):
            links += [f"/proc/{pid}/fd/{number}" for number in os.listdir(f"/proc/{pid}/fd")]
        for link in links:
            with contextlib.suppress(OSError):  # gone meanwhile, or another user's
                found.add(os.readlink(link))
    return {
        "namespaces": sorted(name for name in found if name.startswith("net:")),
        "interfaces": sorted(os.listdir("/sys/class/net")),
        "mounts": Path("/proc/self/mounts").read_text().splitlines(),
    }


def make(count: int, rate: str | None) -> list[dict]:
    """Make the hosts and return how to enter each: its name, and the namespaces as open files.

    rate: of each host's link, as tc writes it ("200mbit"); None is as fast as the machine can.
    This process is in the switch afterwards. Raises HostsError.
    """
    if machine.hidden("hosts"):
        raise HostsError("BOOTCAMP_WITHOUT hides them in this environment")
    if sys.platform != "linux":
        raise HostsError("hosts on one machine need the network namespaces of Linux")
    user = _enter_new_namespaces()
    me = os.getpid()
    switch = os.open("/proc/self/ns/net", os.O_RDONLY)
    _ip("link add switch type bridge", "link set switch up")
    made = []
    for host in range(count):
        _unshare(CLONE_NEWNET)
        inside = os.open("/proc/self/ns/net", os.O_RDONLY)
        _ip("link set lo up")
        _setns(switch)
        peer = f"peer name {INTERFACE} netns /proc/{me}/fd/{inside}"
        _ip(f"link add port{host} type veth {peer}")
        _ip(f"link set port{host} master switch up")
        _setns(inside)
        _ip(f"addr add {address(host)}/24 dev {INTERFACE}", f"link set {INTERFACE} up")
        if rate:
            _run("tc", f"qdisc add dev {INTERFACE} root tbf rate {rate} burst 128kb latency 50ms")
        _setns(switch)
        made.append({"name": name(host), "user": user, "net": f"/proc/{me}/fd/{inside}"})
    return made


def _enter_new_namespaces() -> str | None:
    """A network namespace of our own; the path of the user namespace around it, if one was needed.

    Who is not root first becomes root of a user namespace, which gives rights over nothing but
    what is made in it.
    """
    try:
        _unshare(CLONE_NEWNET)
        return None
    except PermissionError:
        pass
    uid, gid = os.getuid(), os.getgid()
    try:
        _unshare(CLONE_NEWUSER | CLONE_NEWNET)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    except OSError as error:
        raise HostsError(
            "this system lets you make neither network namespaces (for root) nor user namespaces "
            f"(for everybody): {error.strerror}. In a container, start it with --privileged or "
            "--cap-add SYS_ADMIN; elsewhere ask for kernel.unprivileged_userns_clone=1"
        ) from None
    return f"/proc/{os.getpid()}/ns/user"


def _unshare(kinds: int) -> None:
    system_call("unshare", kinds)


def _setns(namespace: int) -> None:
    system_call("setns", namespace, CLONE_NEWNET)


def _ip(*commands: str) -> None:
    for command in commands:
        _run("ip", command)


def _run(tool: str, arguments: str) -> None:
    """Run ip or tc in the namespace that this process is in now."""
    path = shutil.which(tool, path=SEARCH)
    if path is None:
        raise HostsError(f"there is no {tool}: install iproute2 (on Debian: apt install iproute2)")
    done = subprocess.run([path, *arguments.split()], capture_output=True, text=True)
    if done.returncode:
        raise HostsError(f"{tool} {arguments}: {done.stderr.strip()}")


def main() -> None:
    """Make, say how to enter, hold until the input ends."""
    die_with_parent()
    try:
        answer = {"hosts": make(int(sys.argv[1]), *sys.argv[2:] or [None])}
    except (HostsError, OSError) as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
