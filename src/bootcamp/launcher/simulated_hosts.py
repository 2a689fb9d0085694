"""python -P src/bootcamp/launcher/simulated_hosts.py make 2 200mbit
python -P src/bootcamp/launcher/simulated_hosts.py enter PROCESS COMMAND [ARGUMENT ...]

Simulate several hosts on one machine, for lessons about what is between them.

A host is three namespaces (namespaces(7)). Its network has a loopback, over which its ranks meet,
and an interface `eth0`, which a switch (a bridge in a namespace of its own) joins with the others'.
A token bucket filter (tc-tbf(8)) slows down what a host sends to the rate of its link; it adds no
delay. Its UTS namespace gives it a hostname: host0, host1. Its mounts give it an /etc/hosts with
all names, and may hold what others don't see. Processes and their numbers are those of the machine:
in most containers an ordinary user may not mount the /proc that a process namespace needs.

`make` makes the hosts, each with a process that sleeps in it, prints them as one line of JSON, and
holds them while its standard input is open. `enter` runs a command in the host of such a process. A
host goes with the last process in it: nothing of it has a name in the file system.

Root may do this, and so may anyone whom the system lets have a user namespace (Linux only; needs
`ip` and `tc`, of the package iproute2). BOOTCAMP_WITHOUT=hosts in the environment hides them, to
see what a lesson shows without them.
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

KINDS = ("net", "uts", "mnt")  # of namespaces that a host has of its own
EVERY_KIND = sum(NAMESPACES[kind] for kind in KINDS)
MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 4096, 16384, 1 << 18, 2  # <sys/mount.h>
SEARCH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
INTERFACE = machine.HOST_INTERFACE
RATE = re.compile(r"\d+(\.\d+)?[kmg]?bit")


class HostsError(Exception):
    """Hosts that this system does not allow. Its text says why and what would help."""


def name(host: int) -> str:
    """Return the name of a host; they are counted from 0."""
    return f"host{host}"


def address(host: int) -> str:
    """Return a host's address on the network between them, which nobody outside can reach."""
    return f"10.77.0.{host + 1}"


def find_processes(namespace: str) -> dict[int, str]:
    """Return {process id: its name} of all processes in a namespace, such as "net:[402653184]"."""
    kind, found = namespace.partition(":")[0], {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if os.readlink(process / "ns" / kind) == namespace:
                found[int(process.name)] = (process / "comm").read_text().strip()
    return found


def why_not() -> str | None:
    """Say why this machine can't have hosts, None if it can: make two and let them go."""
    try:
        with hold_hosts(2, "1gbit"):
            return None
    except HostsError as error:
        return str(error)


@contextlib.contextmanager
def hold_hosts(count: int, rate: str | None = None):
    """Hold hosts, as `make` returns them, for the length of a `with`. Raises HostsError."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(make_command(count, rate), text=True, **pipes) as holder:
        yield read_hosts(holder.stdout.readline() or holder.stderr.read())


def make_command(count: int, rate: str | None = None) -> list[str]:
    """Return the command that makes hosts and holds them as long as its input is open."""
    return [sys.executable, "-P", __file__, "make", str(count), *([rate] if rate else [])]


def read_hosts(printed: str) -> list[dict]:
    """Read the hosts that this command has printed. Raises HostsError if it is an error."""
    try:
        return json.loads(printed)
    except ValueError:
        raise HostsError(printed.strip()[-1000:] or "the process that makes them died") from None


def enter_command(host: dict, command: list[str]) -> list[str]:
    """Return a command line that runs this command inside a host. It ends with its parent."""
    return [sys.executable, "-P", __file__, "enter", str(host["pid"]), *command]


def make(count: int, rate: str | None) -> list[dict]:
    """Make the hosts: a dictionary for each, with its `name`, `pid` and `namespaces`.

    rate: of each host's link, such as "200mbit"; None is as fast as the machine can. The hosts'
    processes end with this one, which is in the switch afterwards. Raises HostsError.
    """
    if machine.is_hidden("hosts"):
        raise HostsError("BOOTCAMP_WITHOUT hides them in this environment")
    if sys.platform != "linux":
        raise HostsError("hosts on one machine need the namespaces of Linux")
    enter_new_namespaces()
    _write_etc_hosts(count)
    _run("ip link add switch type bridge", "ip link set switch up")
    return [_add(host, rate) for host in range(count)]


def _add(host: int, rate: str | None) -> dict:
    """Fork the process that sleeps in one more host, and join the host to the switch."""
    reader, writer = os.pipe()
    switch = os.getpid()
    if (pid := os.fork()) == 0:
        try:
            linux.die_with_parent()
            linux.name_process(name(host))
            linux.call("unshare", EVERY_KIND)
            socket.sethostname(name(host))
            _run(
                "ip link set lo up",
                f"ip link add {INTERFACE} type veth peer name port{host} netns {switch}",
                f"ip addr add {address(host)}/24 dev {INTERFACE}",
                f"ip link set {INTERFACE} up",
            )
            if rate:
                _run(f"tc qdisc add dev {INTERFACE} root tbf rate {rate} burst 128kb latency 50ms")
            os.close(writer)
            while True:
                signal.pause()
        except (HostsError, OSError) as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(1)
    os.close(writer)
    with open(reader) as pipe:
        if wrong := pipe.read():
            raise HostsError(wrong)
    _run(f"ip link set port{host} master switch up")
    namespaces = {kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in KINDS}
    return {"name": name(host), "pid": pid, "namespaces": namespaces}


def enter_new_namespaces() -> None:
    """Move this process to namespaces of its own, in a user's own namespace. Raises HostsError."""
    with contextlib.suppress(PermissionError):
        return linux.call("unshare", EVERY_KIND)
    try:
        enter_user_namespace(0, 0)
        linux.call("unshare", EVERY_KIND)
    except OSError as error:
        raise HostsError(
            "this system lets you make neither network namespaces (for root) nor user namespaces "
            f"(for everybody): {error.strerror}. In a container, start it with --privileged or "
            "--cap-add SYS_ADMIN; elsewhere ask for kernel.unprivileged_userns_clone=1"
        ) from None


def enter_user_namespace(uid: int, gid: int) -> None:
    """Move this process to a user namespace, in which its user and group have these numbers."""
    maps = {"uid_map": f"{uid} {os.getuid()} 1", "gid_map": f"{gid} {os.getgid()} 1"}
    linux.call("unshare", NAMESPACES["user"])
    for file, text in {"setgroups": "deny", **maps}.items():
        Path("/proc/self", file).write_text(text)


def _write_etc_hosts(count: int) -> None:
    """Lay an /etc/hosts with all hosts' names over the machine's, in this mount namespace only."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    # torch asks for a peer's name by its IPv4 address as IPv6 writes it, and warns without one
    lines += [f"{start}{address(k)} {name(k)}" for k in range(count) for start in ("", "::ffff:")]
    mount("none", "/", "none", MS_REC | MS_PRIVATE)  # nothing gets out
    over = tempfile.gettempdir()  # for a moment; over a file that is deleted nobody mounts another
    mount("tmpfs", over, "tmpfs")
    Path(over, "hosts").write_text("\n".join([*lines, ""]))
    Path(over, "hosts").chmod(0o644)
    mount(f"{over}/hosts", "/etc/hosts", "none", MS_BIND)
    linux.call("umount2", over.encode(), MNT_DETACH)


def mount(what: str, place: Path | str, kind: str, flags: int = 0, options: str = "") -> None:
    """Call mount(2). Raises HostsError."""
    words = [word.encode() for word in (what, str(place), kind)]
    try:
        linux.call("mount", *words, flags, options.encode())
    except OSError as error:
        raise HostsError(
            f"this system does not let hosts mount {place} for themselves: {error.strerror}. "
            "In a container, start it with --privileged or --security-opt apparmor=unconfined"
        ) from None


def _run(*commands: str) -> None:
    """Run commands of ip and tc in the namespaces that this process is in now."""
    for command in commands:
        tool, *arguments = command.split()
        path = shutil.which(tool, path=SEARCH)
        if path is None:
            raise HostsError(f"there is no {tool}: install iproute2 (Debian: apt install iproute2)")
        done = subprocess.run([path, *arguments], capture_output=True, text=True)
        if done.returncode:
            raise HostsError(f"{command}: {done.stderr.strip()}")


def main() -> None:
    if sys.argv[1] == "enter":
        linux.enter(int(sys.argv[2]))
        linux.die_with_parent()
        os.environ["PATH"] = SEARCH  # an ordinary user's has no tc on Debian
        os.execvp(sys.argv[3], sys.argv[3:])
    linux.die_with_parent()
    try:
        hosts = make(int(sys.argv[2]), *sys.argv[3:] or [None])
    except (HostsError, OSError) as error:
        sys.exit(str(error))
    print(json.dumps(hosts), flush=True)
    sys.stdin.read()
    for host in hosts:  # when this process has ended, so have they
        os.kill(host["pid"], signal.SIGKILL)
        os.waitpid(host["pid"], 0)


if __name__ == "__main__":
    main()
