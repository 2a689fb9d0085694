"""Start ranks from a notebook: `launch("ddp", ranks=2, steps=20) -> Run`.

The kernel asks a supervisor process of its own (supervisor.py), which asks a warm fork server
(forkserver.py); both live as long as the kernel.
"""

import itertools
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from bootcamp import machine, paths
from bootcamp.launcher import arguments, device_locks, progress, simulated_hosts
from bootcamp.launcher.arguments import HOW_TO_GET, ArgumentError, Options, available  # noqa: F401
from bootcamp.launcher.connection import (  # noqa: F401 (callers find them here)
    Interrupted,
    LaunchError,
    RankFailed,
    RunHung,
    RunRefused,
    connect,
    default_ranks,
    follow,
    gpu_count,
    refusal,
    shut_down,
    warm_up,
)
from bootcamp.launcher.run_request import Command, RunRequest
from bootcamp.paths import shown
from bootcamp.records import summary
from bootcamp.records.runs import Run
from bootcamp.scripts import strategies

LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
RENDEZVOUS_PORT = 29400  # torchrun's own; on a host of our own it is free
HANG_SECONDS = 60.0
BUSY_PATIENCE = 10  # CPU ranks that compute may be slow rather than stuck
PLAIN = {"PYTHON_COLORS": "0"}  # kernels set FORCE_COLOR, and tracebacks in files would have it
# torchrun's own timeouts, for a host that is silent (15 s) and for late ones (30 s), and a start
MEET_AGAIN_SECONDS = 60
SHARED = "BOOTCAMP_SHARE_GPUS"  # "1": ranks beyond the GPUs share them and talk over gloo
# what launchers set for each rank themselves
OF_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR")
before: list[Callable[[], None]] = []  # called before each run; what one raises prevents it
_numbers = itertools.count(1)


def launch(
    script: str | Path,
    ranks: int | None = None,
    args: list[str] | None = None,
    *,
    device: str = "auto",
    start: str | None = None,
    hosts: int = 1,
    link: str | None = None,
    quiet: bool = False,
    raises: bool = True,
    options: Options = Options(),  # noqa: B008 (frozen)
    **flags,
) -> Run:
    """Run a training script on some ranks of this machine and return its record.

    GPUs are leased while the run lasts (device_locks.py); the cell waits while others have them.

    script: a name of the family ("ddp") or the path of any script.
    ranks: how many; None is every GPU, else every core (one for a script of one process).
    args: arguments of the script, passed as they are, before the flags.
    device: "cpu", "cuda", or "auto": GPUs if there is one for each rank, else CPU cores. A script
        of the course is told by --device; to any other, "cpu" hides the GPUs.
    start: "warm" (forked from a process that has torch loaded), "cold" (python for each rank),
        "torchrun" (over hosts, one on each), or "horovodrun" (over gloo). None is horovodrun for
        Horovod's scripts, warm for all others.
    hosts: over how many hosts the ranks are spread evenly. More than one are simulated on this
        machine (simulated_hosts.py), with CPU ranks.
    link: the rate at which each of these hosts can send, such as "200mbit"; None is unlimited.
    quiet: show neither the command nor the progress.
    raises: whether a run that does not end well raises; if not, its record is returned.
    options: what is rarely needed, see Options.
    flags: the script's own flags, `global_batch=32` for `--global-batch 32`; see to_arguments for
        scripts that are not of the course.

    A script finds the folder for its record in the environment, as BOOTCAMP_RUN. A run is ok if its
    ranks end with 0 and have finished the record that they began. No rank is left afterwards.

    Raises RunRefused, RankFailed, RunHung, all of them LaunchError, ArgumentError before anything
    has started, or Interrupted, a KeyboardInterrupt.
    """
    call = Call(script, ranks, args, device, start, hosts, link, quiet, options, flags)
    return follow(*call.prepare(), raises)


@dataclass
class Call:
    """One call of launch: its arguments, and what they mean once it is prepared.

    device: then None if the script chooses. flags: then with the one for the device. env: the
    variables in the line for a terminal.
    """

    script: str | Path
    ranks: int | None = None
    args: list[str] | None = None
    device: str | None = "auto"
    start: str | None = None
    hosts: int = 1
    link: str | None = None
    quiet: bool = False
    options: Options = Options()  # noqa: RUF009 (frozen)
    flags: dict = field(default_factory=dict)

    def __post_init__(self):
        self.path, self.known = strategies.find(self.script), strategies.describe(self.script)
        foreign = self.start == "horovodrun" and not self.known.takes_course_flags
        self.launcher = "horovodrun" if foreign else self.known.launcher
        if self.start is None:
            self.start = "horovodrun" if self.launcher == "horovodrun" else "warm"
        self.name = self.path.stem.removeprefix("_train_")
        self.env: dict[str, str] = {}

    def __call__(self) -> Run:
        """Run it, as it was before any preparation, and return its record. Raises as launch."""
        return follow(*replace(self).prepare(), raises=True)

    def prepare(self) -> tuple[RunRequest, object]:
        """Check all; return the request and its display, for follow. Raises as launch does."""
        for allow in before:
            allow()
        for objection in arguments.find_objections(self):
            raise ArgumentError(objection)
        self.framework = self.options.framework or self.known.framework
        if missing := arguments.missing(self.framework):
            raise refusal(missing)
        self.fewest_hosts = self.options.fewest_hosts or self.hosts
        if self.hosts > 1:
            self.env["GLOO_SOCKET_IFNAME"] = simulated_hosts.INTERFACE
        if self.options.max_restarts or self.fewest_hosts < self.hosts:
            # torchrun serves the ranks' store itself: restarted ranks would find the addresses of
            # the dead ones in it
            self.env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        self.env |= {name: str(value) for name, value in (self.options.env or {}).items()}
        try:
            if not self.quiet:
                connect().wait_until_ready(quiet=False)
            if self.ranks is None:
                self.ranks = 1 if self.launcher == "python" else default_ranks()
            self.choose_device()
            text = "" if self.known.takes_course_flags else self.path.read_text(errors="replace")
            self.argv = [*(self.args or []), *arguments.to_arguments(self.flags, text)]
            self.lines = self._write_lines()
            request = self._make_request()
        except KeyboardInterrupt:  # the reader sees none of the launcher's frames
            raise Interrupted from None
        return request, progress.Silent() if self.quiet else self._make_display()

    def choose_device(self) -> None:
        """Settle the kind of device, and how the script hears of it.

        A script of the course is told by --device, so that a pasted command means the same; a copy
        may not know every device, and chooses itself.
        """
        asked = "cpu" if self.hosts > 1 else self.device
        self.device = None if asked == "auto" else asked
        if not self.known.takes_course_flags:
            if asked == "cuda" and gpu_count() < self.ranks:
                raise refusal(
                    f"device='cuda': {self.ranks} rank(s) need a GPU each, and torch finds "
                    f"{gpu_count() or 'none'}. Use device='cpu', or start fewer ranks."
                )
            if asked == "cpu" and machine.gpu_names():
                self.env["CUDA_VISIBLE_DEVICES"] = ""
        elif asked == "auto" and not self.known.own_device and self.known.path == self.path:
            self.device = "cuda" if gpu_count() >= self.ranks else "cpu"
        if self.known.takes_course_flags and self.device:
            self.flags = {"device": self.device, **self.flags}

    def _make_request(self) -> RunRequest:
        """Make the request, and the run's new folder. Raises RunRefused."""
        known, leases = self.known.takes_course_flags, self.choose_leases()
        folder = new_folder(self.name, self.options.run_dir)
        argv, place = [str(self.path), *self.argv], {"hosts": self.hosts, "link": self.link}
        ranks = make_ranks(folder, argv, self.ranks, self.lines[0], self.env, **place)
        request = RunRequest(str(folder), self.start, ranks, records=known, **place, **leases)
        request.framework, request.fewest_hosts = self.framework, self.fewest_hosts
        request.hang_seconds, request.busy_seconds = self.choose_patience()
        if self.start in ("torchrun", "horovodrun"):
            env = {name: text for name, text in ranks[0].env.items() if name not in OF_RANKS}
            request.agents = self._make_agents(argv, env)
        return request

    def choose_leases(self) -> dict:
        """Choose the part of the request that device_locks.py locks. Raises RunRefused.

        A GPU for each rank; every visible one for a script that takes several, or that nobody
        knows. CPU ranks lease cores, unless BOOTCAMP_FIRST_CORE says which.
        """
        known, env = self.known.takes_course_flags, os.environ | self.env
        if (folder := device_locks.choose_folder()) is None:
            return {}
        found, on_cpu = {}, self.known.cpu_only or self.device == "cpu"
        if not on_cpu and self.device != "meta":
            found = device_locks.list_gpus(env.get(device_locks.VARIABLE), gpu_count())
        if found:
            one_each = not self.known.own_device if known else self.device == "cuda"
            count = self.ranks if one_each else len(found)
            if env.get(SHARED) == "1":
                count = min(count, len(found))
            if count > len(found):
                raise refusal(
                    f"ranks={self.ranks} lease as many devices, and here are {len(found)}: "
                    f"{', '.join(found)}. Launch with ranks={len(found)} or fewer."
                )
            return {"lease": {"folder": str(folder), "devices": found, "count": count}}
        if (on_cpu or self.device is None) and "BOOTCAMP_FIRST_CORE" not in env:
            cores = self._read_count("cores_per_rank", 1) if known else 1
            return {"cores": {"folder": str(folder), "each": max(1, cores)}}
        return {}

    def choose_patience(self) -> tuple[float, float]:
        """Choose for how many seconds idle and busy ranks may finish no step."""
        idle = busy = self.options.hang_seconds or HANG_SECONDS
        if self.options.hang_seconds is None and not self.known.takes_course_flags:
            busy = float("inf")
        elif self.device != "cuda":
            busy *= BUSY_PATIENCE
        elastic = self.options.max_restarts or self.options.fewest_hosts
        more = MEET_AGAIN_SECONDS if self.hosts > 1 and elastic else 0
        return idle + more, busy + more

    def _make_agents(self, argv: list[str], env: dict) -> list[Command]:
        """Make the horovodrun, or the torchrun of each host.

        torchrun takes any flag from the environment as PET_<its name>, and such are no part of the
        line for a terminal. Over hosts it deletes an attempt's files when the number of hosts
        changes, so it passes the ranks' output on too, marked.
        """
        if self.start == "horovodrun":
            python = os.environ.get("PYTHON_EXEC", sys.executable)  # as torchrun does
            flags = ["--gloo", "-np", str(self.ranks), "--network-interface", LOOPBACK, python]
            return [Command([sys.executable, "-m", "horovod.runner.launch", *flags, *argv], env)]
        # the one beside this Python first: drills read its line from `ps`
        folders = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
        path = shutil.which("torchrun", path=os.pathsep.join(folders))
        torchrun = [path] if path else [sys.executable, "-m", "torch.distributed.run"]
        found = []
        for host in range(self.hosts):
            outputs = f"{env['BOOTCAMP_RUN']}/ranks"  # without it a folder in /tmp, for ever
            own = env | {"PET_LOG_DIR": outputs}
            if self.hosts > 1:
                own["PET_LOG_DIR"] += f"/{simulated_hosts.name(host)}"
                own |= {"PET_TEE": "3", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[${rank}]:"}
            own["BOOTCAMP_COMMAND"] = self.lines[min(host, len(self.lines) - 1)]
            found.append(Command([*torchrun, *self._torchrun_flags(host), *argv], own))
        return found

    def _torchrun_flags(self, host: int) -> list[str]:
        """List torchrun's flags on this host, those of Options(torchrun=) last."""
        found: dict = {"standalone": True, "nproc_per_node": self.ranks}
        if self.hosts > 1:
            elastic = self.fewest_hosts < self.hosts
            nodes = f"{self.fewest_hosts}:{self.hosts}" if elastic else self.hosts
            found = {"nnodes": nodes, "nproc_per_node": self.ranks // self.hosts}
            found |= {"rdzv_id": self.name, "rdzv_backend": "c10d"}
            found["rdzv_endpoint"] = f"{simulated_hosts.name(0)}:{RENDEZVOUS_PORT}"
        found["max_restarts"] = self.options.max_restarts or None
        given = self.options.torchrun or {}
        found |= {name: value for name, value in given.items() if isinstance(name, str)}
        return arguments.to_arguments(found | given.get(host, {}))

    def _write_lines(self) -> list[str]:
        """Write the line for a terminal; one for each host where their flags of torchrun differ."""
        if self.launcher == "horovodrun":
            starts = [["horovodrun", "--gloo", "-np", str(self.ranks), "python"]]
        elif self.launcher == "python" and self.ranks == 1:
            starts = [["python"]]
        else:
            starts = [["torchrun", *self._torchrun_flags(host)] for host in range(self.hosts)]
        settings = "".join(f"{name}={shlex.quote(value)} " for name, value in self.env.items())
        lines = [settings + shlex.join([*each, shown(self.path), *self.argv]) for each in starts]
        return lines if len(set(lines)) > 1 else lines[:1]

    def _make_display(self):
        steps = self._read_count("steps", 20 if self.known.takes_course_flags else 0)
        place = "one line for each host: " if len(self.lines) > 1 else "on each host; in all "
        if self.start != "torchrun":
            place = f"on each host this would do the same; started {self.start}: "
        where = (place if self.hosts > 1 else "") + self.where_ranks_are()
        return progress.make_display(self.lines, steps, where)

    def _read_count(self, flag: str, default: int) -> int:
        """Read a flag of the script; what is no number is left to the script to refuse."""
        value = str(self.flags.get(flag))
        return int(value) if value.isdecimal() else default

    def where_ranks_are(self) -> str:
        """Say how many ranks, of which kind, and how they talk: "2 CPU ranks, gloo"."""
        if self.device == "meta":
            return "no device: a rehearsal"
        kind = {"cuda": "GPU ", "cpu": "CPU "}.get(self.device, "")
        if self.ranks == 1:
            return f"1 {kind}rank"
        backend = {"cuda": ", NCCL", "cpu": ", gloo"} if self.known.takes_course_flags else {}
        if self.device == "cuda" and gpu_count() < self.ranks:  # BOOTCAMP_SHARE_GPUS
            backend = {"cuda": f", gloo, on {gpu_count()} GPU(s)"}
        return f"{self.ranks} {kind}ranks{backend.get(self.device, '')}"


def make_ranks(
    folder: Path, argv: list[str], ranks: int, command: str, env: dict, hosts: int = 1, link=None
) -> list[Command]:
    """Make the commands of ranks. command: the line for a terminal. env: beside this process's."""
    each = ranks // hosts
    meet = {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": LOOPBACK}
    if hosts > 1:  # as a launcher on each host would set it
        meet = {"MASTER_ADDR": simulated_hosts.name(0), "BOOTCAMP_LINK": link or "open"}
    meet |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(each), **PLAIN}
    shared = {**os.environ, **meet, **env, **mark(folder), "BOOTCAMP_COMMAND": command}
    found = []
    for rank in range(ranks):
        own = {"RANK": rank, "LOCAL_RANK": rank % each, "GROUP_RANK": rank // each}
        found.append(Command(argv, shared | {name: str(number) for name, number in own.items()}))
    return found


def mark(folder: Path) -> dict[str, str]:
    """Return the variables by which every process of a run is recognised."""
    own = {"BOOTCAMP_RUN": str(folder), "BOOTCAMP_KERNEL": str(os.getpid())}
    return own | {"BOOTCAMP_SUPERVISOR": str(connect().process.pid)}


def new_folder(name: str, given: Path | str | None = None) -> Path:
    """Make a run folder with room for its summary, or raise RunRefused before anything starts."""
    own = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}-{os.getpid()}-{next(_numbers)}"
    folder = Path(given).resolve() if given else paths.LOGS / own
    try:
        folder.mkdir(parents=True)
        (folder / "ranks").mkdir()
        summary.reserve(folder)
    except FileExistsError:
        raise refusal(f"{shown(folder)} exists. Give a new folder, or delete that one.") from None
    except OSError as error:
        raise refusal(
            f"the run folder {shown(folder)} can't be written: {error.strerror}. Free some space, "
            "or name a new folder of your own: run_dir=, or BOOTCAMP_LOGS."
        ) from None
    return folder


def run_command(command: list[str], seconds: float = 120.0, env: dict | None = None) -> str:
    """Run any command under the supervisor and return what it printed. Raises LaunchError.

    An interrupt, the kernel's death or `seconds` end it with all that it started.
    """
    if command[0] == "python":
        command = [sys.executable, *command[1:]]
    folder = new_folder("command")
    environment = {**os.environ, **(env or {}), "PYTHONUNBUFFERED": "1", **PLAIN, **mark(folder)}
    request = RunRequest(str(folder), "command", agents=[Command(command, environment)])
    request.hang_seconds = request.busy_seconds = seconds
    return follow(request, progress.Silent(), raises=True).output("launcher")
