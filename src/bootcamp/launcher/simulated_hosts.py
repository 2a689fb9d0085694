"""python -P src/bootcamp/launcher/simulated_hosts.py make 2 200mbit
python -P src/bootcamp/launcher/simulated_hosts.py enter PROCESS COMMAND [ARGUMENT ...]

Several hosts on one machine, for lessons about what is between them.

A host is three namespaces (namespaces(7)). The network's gives it a loopback and an interface
`eth0` of its own, as a machine of a cluster has: ranks of one host meet over its loopback, ranks of
two hosts over their `eth0`, which a switch (a bridge in a namespace of its own) joins. The kernel's
token bucket filter (tc-tbf(8)) slows down what a host sends to the rate of its link; it adds no
delay. The names' (UTS) gives it a hostname: host0, host1. The mounts' gives it an /etc/hosts in
which all hosts have their names, and lets it mount what the others don't see. Processes and their
numbers are those of the machine: with a process namespace each host would need a /proc of its own,
which an ordinary user may not mount in most containers, and a rank would have two numbers.

`make` makes the hosts, each with a process that sleeps in it, prints these as one line of JSON, and
holds them as long as its standard input is open. `enter` runs a command in the host of such a
process. Nothing of it has a name in the file system: a namespace, its interfaces, its filters and
its mounts go when the last process in it has gone, whatever ended that.

Root may do this, and so may anyone whom the system lets have a user namespace (Linux only; needs
`ip` and `tc`, of the package iproute2); such a user is called root inside, and may mount there but
not be anybody else. BOOTCAMP_WITHOUT=hosts in the environment hides them, to see what a lesson
shows without them.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":  # started with -P as a file: the package lies one folder up
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bootcamp import linux, machine
from bootcamp.linux import NAMESPACES

KINDS = ("net", "uts", "mnt")  # what a host has of its own
EVERY_KIND = sum(NAMESPACES[kind] for kind in KINDS)
MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 4096, 16384, 1 << 18, 2  # <sys/mount.h>
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


def link_command(rate: str) -> list[str]:
    """The command that, on a host, lets it send no faster than this."""
    limit = f"tbf rate {rate} burst 128kb latency 50ms"
    return f"tc qdisc replace dev {INTERFACE} root {limit}".split()


def why_not() -> str | None:
    """Why this machine can't have hosts, None if it can: makes two and lets them go."""
    try:
        with held(2, "1gbit"):
            return None
    except HostsError as error:
        return str(error)


@contextlib.contextmanager
def held(count: int, rate: str | None = None):
    """Hosts for the length of a `with`, as `make` returns them.

    A process of their own holds them, which ends with this one too. Raises HostsError.
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(make_command(count, rate), text=True, **pipes) as holder:
        try:
            yield hosts_in(holder.stdout.readline() or holder.stderr.read()[-200:])
        finally:
            holder.stdin.close()


def make_command(count: int, rate: str | None = None) -> list[str]:
    """The command that makes hosts and holds them as long as its input is open."""
    return [sys.executable, "-P", __file__, "make", str(count), *([rate] if rate else [])]


def hosts_in(line: str) -> list[dict]:
    """The hosts in what that command has printed. Raises HostsError where there are none."""
    try:
        answer = json.loads(line)
    except ValueError:
        answer = {"error": f"the process that makes them died. {line.strip()}"}
    if "error" in answer:
        raise HostsError(answer["error"])
    return answer["hosts"]


def enter_command(host: dict, command: list[str]) -> list[str]:
    """A command line that runs this command inside a host. It ends with its parent."""
    return [sys.executable, "-P", __file__, "enter", str(host["pid"]), *command]


def traces() -> dict[str, list[str]]:
    """What hosts leave behind if they leave anything: compare before with after.

    `namespaces` of a host's kinds that any process is in or holds open, `interfaces` of this
    process's network, and its `mounts`.
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


def make(count: int, rate: str | None) -> list[dict]:
    """Make the hosts: {"name": "host0", "pid": a process in it} for each.

    rate: of each host's link, as tc writes it ("200mbit"); None is as fast as the machine can.
    The hosts' processes end with this one, which is in the switch afterwards. Raises HostsError.
    """
    if machine.hidden("hosts"):
        raise HostsError("BOOTCAMP_WITHOUT hides them in this environment")
    if sys.platform != "linux":
        raise HostsError("hosts on one machine need the namespaces of Linux")
    enter_new_namespaces()
    _write_etc_hosts(count)
    _ip("link add switch type bridge", "link set switch up")
    return [{"name": name(host), "pid": _add(host, rate)} for host in range(count)]


def _add(host: int, rate: str | None) -> int:
    """Fork the process that sleeps in one more host, joined to the switch; its id."""
    reader, writer = os.pipe()
    switch = os.getpid()
    if (pid := os.fork()) == 0:
        try:
            linux.die_with_parent()
            linux.name_process(name(host))
            _settle(host, rate, switch)
            os.close(writer)
            while True:
                signal.pause()
        except (HostsError, OSError) as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(1)
    os.close(writer)
    with open(reader) as pipe:
        if error := pipe.read():
            raise HostsError(error)
    _ip(f"link set port{host} master switch up")
    return pid


def _settle(host: int, rate: str | None, switch: int) -> None:
    """Move this process to a host of its own, with a link to the process that is the switch."""
    linux.call("unshare", EVERY_KIND)
    socket.sethostname(name(host))
    pair = f"{INTERFACE} type veth peer name port{host} netns {switch}"
    _ip("link set lo up", f"link add {pair}", f"addr add {address(host)}/24 dev {INTERFACE}")
    _ip(f"link set {INTERFACE} up")
    if rate:
        tool, *arguments = link_command(rate)
        _run(tool, " ".join(arguments))


def enter_new_namespaces() -> None:
    """Move this process to namespaces of its own. Raises HostsError.

    An ordinary user first becomes root of a user namespace, which gives rights over nothing but
    what is made in it.
    """
    with contextlib.suppress(PermissionError):
        return linux.call("unshare", EVERY_KIND)
    uid, gid = os.getuid(), os.getgid()
    try:
        linux.call("unshare", NAMESPACES["user"] | EVERY_KIND)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    except OSError as error:
        raise HostsError(
            "this system lets you make neither network namespaces (for root) nor user namespaces "
            f"(for everybody): {error.strerror}. In a container, start it with --privileged or "
            "--cap-add SYS_ADMIN; elsewhere ask for kernel.unprivileged_userns_clone=1"
        ) from None


def _write_etc_hosts(count: int) -> None:
    """Lay an /etc/hosts with all hosts' names over the machine's, in this mount namespace only.

    The file is on a disk in memory that is mounted for a moment over the folder of temporary
    files: afterwards the only way to it is /etc/hosts.
    """
    lines = [f"{address(host)} {name(host)}" for host in range(count)]
    # torch asks for a peer's name by its IPv4 address as IPv6 writes it, and warns without one
    lines += [f"::ffff:{address(host)} {name(host)}" for host in range(count)]
    text = "\n".join(["127.0.0.1 localhost", "::1 localhost", *lines, ""])
    over = tempfile.gettempdir()
    try:
        mount("none", "/", None, MS_REC | MS_PRIVATE)  # nothing gets out
        mount("tmpfs", over, "tmpfs", 0)
        Path(over, "hosts").write_text(text)
        mount(f"{over}/hosts", "/etc/hosts", None, MS_BIND)
        linux.call("umount2", over.encode(), MNT_DETACH)
    except OSError as error:
        raise HostsError(
            f"this system does not let hosts have an /etc/hosts of their own: {error.strerror}. "
            "In a container, start it with --privileged or --security-opt apparmor=unconfined"
        ) from None


def mount(what: str, place: Path | str, kind: str | None, flags: int, options: str = "") -> None:
    """mount(2). Raises OSError."""
    kind = kind.encode() if kind else None
    linux.call("mount", what.encode(), str(place).encode(), kind, flags, options.encode())


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
    """Make, say how to enter, hold until the input ends; or enter and become the command."""
    if sys.argv[1] == "enter":
        linux.enter(int(sys.argv[2]))
        linux.die_with_parent()
        os.environ["PATH"] = SEARCH  # an ordinary user's has no tc on Debian
        os.execvp(sys.argv[3], sys.argv[3:])
    linux.die_with_parent()
    try:
        answer = {"hosts": make(int(sys.argv[2]), *sys.argv[3:] or [None])}
    except (HostsError, OSError) as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
