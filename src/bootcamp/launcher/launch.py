"""Start ranks from a notebook: `launch("ddp", ranks=2, steps=20) -> Run`.

The kernel asks a supervisor process of its own (supervisor.py), which asks a warm fork server
(forkserver.py); both live as long as the kernel. Standard library only, so that a machine without
Jupyter launches too; the display uses ipywidgets where a notebook is there.
"""

import atexit
import contextlib
import importlib.util
import itertools
import json
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from bootcamp import machine
from bootcamp.launcher import device_locks, progress, run_cache, supervisor
from bootcamp.launcher import simulated_hosts as simulated
from bootcamp.paths import LOGS, shown
from bootcamp.records import summary
from bootcamp.records.runs import Run
from bootcamp.scripts import family

STARTS = ("warm", "cold", "torchrun", "horovodrun")
HOW_TO_GET = {
    "horovod": "Build it with make horovod (minutes, once).",
    "lightning": 'Install it with pip install "lightning>=2.6".',
    "accelerate": 'Install it with pip install "accelerate>=1.10".',
    "deepspeed": 'Install it with pip install "deepspeed>=0.19,<0.20".',
    "megatron": 'Install it with pip install "megatron-core>=0.16,<0.17".',
}
POLL_SECONDS = 0.1
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
# torchrun serves the ranks' store itself; restarted ranks would find the dead ones' addresses in it
RESTARTS_WORK = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
BUSY_PATIENCE = 10  # CPU ranks that compute may be slow rather than stuck
SUPERVISOR_DIED = {
    "event": "ended",
    "error": summary.failure(
        None,
        "start",
        "the launcher's supervisor process died, and the run with it; launch again",
    ),
}


class LaunchError(Exception):
    """A run that did not end well. `run` is its record, `error` what the supervisor saw."""

    def __init__(self, error: dict, run: Run | None = None):
        self.error, self.run = error, run
        where = "" if error["rank"] is None else f"rank {error['rank']}"
        sentence = f"{where} {error['message']}" if error["kind"] == "killed" else error["message"]
        details = error.get("traceback") or ""
        if details and error["kind"] in ("raised", "hang", "killed"):
            header = f"{where} said:" if where and error["kind"] != "hang" else ""
            sentence = f"{sentence}\n\n{header}\n{details}".replace("\n\n\n", "\n\n")
        super().__init__(sentence.strip())

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the rank's own story, not the launcher's inside."""
        folder = f"\nThe record is in {shown(self.run.folder)}." if self.run else ""
        hint = "\nWhat it may mean: from bootcamp import errors; errors.explain()"
        return [f"{type(self).__name__}: {self}{folder}{hint}"]


class RunRefused(LaunchError):
    """The script refused its flags, or the launcher the order: one sentence says why."""


class RankFailed(LaunchError):
    """A rank raised, or was killed. The others were ended."""


class RunHung(LaunchError):
    """No rank finished a step for `hang_seconds`. Every rank's stack is in the message."""


class Connection:
    """The kernel's end of the supervisor: orders out, events in, one queue for each run.

    An interrupt may come at any moment in the thread that waits. So it waits in calls that hold no
    lock when they are cut short: SimpleQueue.get and sleep, not Queue.get or Event.wait, whose
    inner lock can stay taken.
    """

    def __init__(self):
        environment = {**os.environ, "BOOTCAMP_KERNEL": str(os.getpid())}
        self.process = subprocess.Popen(
            [sys.executable, "-P", supervisor.__file__, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # an interrupt of the cell is the kernel's to pass on
            text=True,
        )
        self.owner = os.getpid()
        self.ready = threading.Event()
        self.warm, self.gpus = True, None
        self._queues: dict[str, queue.SimpleQueue] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            for line in self.process.stdout:
                self._hear(line)
        finally:
            self.ready.set()
            for waiting in list(self._queues.values()):
                waiting.put(SUPERVISOR_DIED)

    def _hear(self, line: str) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            return  # printed by something that Python loads at its start
        if "ready" in event:
            self.warm, self.gpus = event["ready"], event.get("gpus")
            self.ready.set()
        elif waiting := self._queues.get(event["run"]):
            waiting.put(event)

    def wait_until_ready(self, say) -> None:
        """Wait until torch is loaded; `say` tells the reader why, if there is a wait."""
        if not self.ready.is_set():
            say("Loading torch, once for this kernel; later launches start at once.")
        while not self.ready.is_set():
            time.sleep(POLL_SECONDS / 10)

    @property
    def alive(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def send(self, order: dict) -> None:
        with self._lock, contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()

    def order(self, order: dict) -> queue.SimpleQueue:
        """Ask for a run; its events arrive in the queue that is returned."""
        events = self._queues[order["run"]] = queue.SimpleQueue()
        self.send(order)
        if not self.alive:
            events.put(SUPERVISOR_DIED)
        return events

    def stop(self, run: str, why: str) -> None:
        """End a run that was ordered, if it was, and wait until the supervisor has ended it."""
        events = self._queues.get(run)
        if events is None:
            return
        self.send({"do": "stop", "run": run, "why": why})
        with contextlib.suppress(queue.Empty):
            while events.get(timeout=30)["event"] != "ended":
                pass  # what it said before it heard of this

    def forget(self, run: str) -> None:
        self._queues.pop(run, None)

    def close(self) -> None:
        """End the supervisor and with it every rank; wait until they are gone."""
        if self.owner != os.getpid():
            return
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()


_connection: Connection | None = None
_connection_lock = threading.Lock()


def connect() -> Connection:
    """The kernel's supervisor, started at the first call and again if it has died."""
    global _connection
    with _connection_lock:
        if _connection is None or not _connection.alive:
            _connection = Connection()
            atexit.register(_connection.close)
        return _connection


def warm_up() -> None:
    """Start loading torch in the background, so that the first launch is warm. Returns at once."""
    connect()


def shut_down() -> None:
    """End the supervisor, its fork server and every rank of this kernel."""
    if _connection is not None and _connection.alive:
        _connection.close()


def gpu_count() -> int:
    """GPUs that torch sees, counted in a process of its own so that the kernel starts no CUDA."""
    connection = connect()
    connection.wait_until_ready(lambda _: None)
    return connection.gpus if connection.gpus is not None else len(machine.gpu_names())


def default_ranks() -> int:
    """Every GPU if there is more than one, else every core: a lesson about ranks needs two."""
    gpus = gpu_count()
    return gpus if gpus > 1 else len(machine.cores())


def launch(
    script: str | Path,
    ranks: int | None = None,
    *,
    device: str = "auto",
    start: str | None = None,
    max_restarts: int = 0,
    hang_seconds: float = 60.0,
    raises: bool = True,
    quiet: bool = False,
    run_dir: Path | str | None = None,
    port: int = 0,
    finishes: bool = True,
    env: dict | None = None,
    hosts: int = 1,
    link: str | None = None,
    **flags,
) -> Run:
    """Run a training script on some ranks of this machine and return its record.

    GPUs are leased as long as the run lasts (lease.py). If other kernels have them, the cell says
    who, and waits for its turn.

    script: a name of the family ("ddp") or the path of a script.
    ranks: how many; None is every GPU, else every core (one for a script of one process).
    device: "cpu", "cuda", or "auto": GPUs if there is one for each rank, else CPU cores.
    start: "warm" (forked from a process that has torch loaded), "cold" (python for each rank), or
        "torchrun" (torchrun itself), "horovodrun" (Horovod's launcher, over gloo). None is warm,
        or horovodrun for a script that needs it.
    max_restarts: how often torchrun may start all ranks anew after one has died.
    hang_seconds: the run is ended when no rank finishes a step for so long; CPU ranks that are
        busy computing are given ten times as long.
    raises: whether a run that does not end well raises; if not, its record is returned.
    quiet: show neither the command nor the progress.
    run_dir: a new folder for the record; None makes one under logs/.
    port: of the rendezvous on 127.0.0.1; 0 takes a free one.
    finishes: whether the script writes a record (a snippet of a lesson may not).
    env: environment variables of the ranks, beside those of this process.
    hosts: over how many hosts the ranks are spread, as many on each. More than one are made on this
        machine for this run, as network namespaces (hosts.py); their ranks are CPU ranks.
    link: the rate at which each of these hosts can send, such as "200mbit"; None is unlimited.
    flags: the script's own flags, `global_batch=32` for `--global-batch 32`.

    Raises RunRefused, RankFailed, RunHung, all of them LaunchError, or KeyboardInterrupt when the
    cell is interrupted. Whatever happens, no rank is left when this returns.
    """
    path = family.find(script)
    known = family.SCRIPTS.get(str(script))
    launcher = family.launcher(script if known else path)
    start = start or ("horovodrun" if launcher == "horovodrun" else "warm")
    _check_start(start, launcher, max_restarts, port)
    _check_hosts(hosts, link, start, ranks, device)
    if known and (missing := _missing(known.framework)):
        raise _no_start(None, missing)
    if not quiet:
        connect().wait_until_ready(print)
    if ranks is None:
        ranks = 1 if launcher == "python" else default_ranks()
    if ranks < 1:
        raise ValueError(f"ranks={ranks}: expected at least one, or None for every device")
    if ranks % hosts:
        raise ValueError(f"ranks={ranks} do not spread evenly over hosts={hosts}")
    flags = {**_device_flag(known, "cpu" if hosts > 1 else device, ranks), **flags}
    arguments = to_arguments(flags)
    command = terminal_command(path, ranks, arguments, launcher, max_restarts, env, hosts)
    leases = _leases(path, flags, ranks, {**os.environ, **(env or {})})
    folder = _new_folder(path, run_dir)
    ranks_orders = [
        _rank_order(folder, path, arguments, rank, ranks, command, env) for rank in range(ranks)
    ]
    if hosts > 1:
        _spread_over_hosts(ranks_orders, hosts, link)
    order = {
        "do": "run",
        "run": str(folder),
        "ranks": ranks_orders,
        "hang_seconds": hang_seconds,
        "busy_seconds": hang_seconds * (1 if flags.get("device") == "cuda" else BUSY_PATIENCE),
        "finishes": finishes,
        "port": port,
        "hosts": {"count": hosts, "link": link} if hosts > 1 else None,
        **leases,
        **_how_to_start(start, ranks_orders, max_restarts),
    }
    if port and (taken := _taken(port)):
        raise _no_start(folder, taken)
    where = _where(flags.get("device", "cpu" if known else None), ranks)
    show = progress.silent() if quiet else progress.display(command, _steps(flags), where)
    return _follow(order, folder, show, raises)


def run_command(command: list[str], seconds: float = 120.0, env: dict | None = None) -> str:
    """Run any command under the supervisor and return what it printed.

    It ends with the cell: an interrupt, the kernel's death or `seconds` end it with all that it
    started. Raises LaunchError when it fails.
    """
    if command[0] == "python":
        command = [sys.executable, *command[1:]]
    folder = _new_folder(Path("command"), None)
    environment = {
        **os.environ,
        **(env or {}),
        "PYTHONUNBUFFERED": "1",
        "BOOTCAMP_KERNEL": str(os.getpid()),
        "BOOTCAMP_SUPERVISOR": str(connect().process.pid),
    }
    order = {"do": "run", "run": str(folder), "start": "command", "ranks": [], "port": 0}
    order |= {"command": command, "env": environment, "finishes": False}
    order |= {"hang_seconds": seconds, "busy_seconds": seconds}
    run = _follow(order, folder, progress.silent(), raises=True)
    printed = [run.folder / "ranks" / f"launcher.{end}" for end in ("out", "err")]
    return "".join(path.read_text(errors="replace") for path in printed)


def _follow(order: dict, folder: Path, show, raises: bool) -> Run:
    """Send the order and show the run's progress until it has ended."""
    connection = connect()
    try:
        if order["start"] == "warm":
            connection.wait_until_ready(show.say)
            order["start"] = "warm" if connection.warm else "cold"
        with run_cache.earlier(order, folder) as events:
            event = _wait(events or connection.order(order), folder, show)
    except BaseException as error:  # an interrupt, or a display that fails: no rank may be left
        with _interrupts_wait():
            why = "interrupted" if isinstance(error, KeyboardInterrupt) else "launcher failed"
            connection.stop(order["run"], why)
            _conclude(folder, why, f"{type(error).__name__} in the process that launched")
            with contextlib.suppress(Exception):
                show.end(summary.read(folder))
        raise
    finally:
        connection.forget(order["run"])
    if event is SUPERVISOR_DIED:
        _conclude(folder, "start", event["error"]["message"])
    run = Run(folder)
    show.end(run.summary)
    if event["error"] and raises:
        raise _exception(event["error"], run)
    return run


def _conclude(folder: Path, kind: str, message: str) -> None:
    """Write the summary of a run if nobody else has: neither its ranks nor the supervisor."""
    if summary.read(folder)["status"] != "running":
        return
    status = "interrupted" if kind == "interrupted" else "failed"
    error = summary.failure(None, kind, message)
    steps = summary.measures(summary.read_steps(folder))
    with contextlib.suppress(OSError):
        summary.write(folder, status, **steps, error=error)


def _wait(events: queue.SimpleQueue, folder: Path, show) -> dict:
    """Show rows of steps.jsonl as they come until the run's last event."""
    reader = _Tail(folder / "steps.jsonl")
    while True:
        try:
            event = events.get(timeout=POLL_SECONDS)
        except queue.Empty:
            event = None
        for row in reader.rows():
            show.step(row)
        if event and event["event"] == "waiting":  # it is worth a line that stays, also if quiet
            print(event["message"], flush=True)
        if event and event["event"] == "ended":
            return event


class _Tail:
    """New whole lines of a growing file of JSON lines."""

    def __init__(self, path: Path):
        self.path, self.position = path, 0

    def rows(self) -> list[dict]:
        try:
            with open(self.path, "rb") as file:
                file.seek(self.position)
                text = file.read()
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self.position += len(whole)
        rows = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):  # torn by a full disk
                rows.append(json.loads(line))
        return rows


def _exception(error: dict, run: Run) -> Exception:
    if error["kind"] in ("interrupted", "kernel died"):
        return KeyboardInterrupt(error["message"])
    kinds = {"hang": RunHung, "raised": RankFailed, "killed": RankFailed}
    return kinds.get(error["kind"], RunRefused)(error, run)


@contextlib.contextmanager
def _interrupts_wait():
    """Ending ranks takes a moment; a second impatient interrupt must not leave one behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


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


def _how_to_start(start: str, ranks_orders: list[dict], max_restarts: int) -> dict:
    """The part of an order that says how its ranks begin to exist: see supervisor.Job."""
    if start in ("warm", "cold"):
        return {"start": start if sys.platform == "linux" else "cold"}
    first, ranks = ranks_orders[0], str(len(ranks_orders))
    set_by_launcher = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    env = {name: value for name, value in first["env"].items() if name not in set_by_launcher}
    if start == "torchrun":
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", ranks, "--max-restarts", str(max_restarts)]
        command += ["--log-dir", str(Path(first["out"]).parent)]  # else a folder in /tmp, for ever
        env = {**RESTARTS_WORK, **env} if max_restarts else env
    else:
        command = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", ranks]
        command += ["--network-interface", LOOPBACK, sys.executable]
    return {"start": "command", "command": [*command, *first["argv"]], "env": env}


def _leases(path: Path, flags: dict, ranks: int, env: dict) -> dict:
    """The part of an order that says what the run leases before it starts: see lease.py.

    A GPU for each rank; every visible one for a script that takes several, or that nobody knows.
    CPU ranks lease cores, unless BOOTCAMP_FIRST_CORE says which. Raises RunRefused.
    """
    if (locks := device_locks.folder()) is None:
        return {}
    script = path.read_text()
    device = "cpu" if 'parse(devices=("cpu",)' in script else flags.get("device")
    devices, variable, count = [], "CUDA_VISIBLE_DEVICES", ranks
    if fake := env.get("BOOTCAMP_FAKE_DEVICES"):
        devices, variable = device_locks.fake_devices(int(fake)), "BOOTCAMP_LEASED"
    elif device not in ("cpu", "meta"):
        devices = device_locks.gpus(env.get(variable), gpu_count())
        first_line = re.search(r"_train_(\w+)\.py", script.partition("\n")[0])  # a variant's too
        known = family.SCRIPTS.get(first_line[1]) if first_line else None
        count = ranks if known and not known.own_device else len(devices)
    if devices and count > len(devices):
        labels = ", ".join(each["label"] for each in devices)
        message = f"ranks={ranks} lease as many devices, and here are {len(devices)}: {labels}. "
        raise _no_start(None, f"{message}Launch with ranks={len(devices)} or fewer.")
    order = {}
    if devices:
        request = {"folder": str(locks), "devices": devices, "count": count}
        request["kernel"] = os.getpid()
        order["lease"] = {"variable": variable, "request": request}
    if "BOOTCAMP_FIRST_CORE" not in env and (device == "cpu" or (device is None and not devices)):
        order["cores"] = {"folder": str(locks), "each": int(flags.get("cores_per_rank") or 1)}
    return order


def available(framework: str) -> bool:
    """Whether a package is installed, such as "horovod", and not hidden; does not import it."""
    return not machine.hidden(framework) and importlib.util.find_spec(framework) is not None


def _missing(framework: str | None) -> str | None:
    """Why a script's framework is not there, None if it is."""
    if framework is None or available(framework):
        return None
    return f"{framework.capitalize()} is not installed here. {HOW_TO_GET[framework]}"


def _check_start(start: str, launcher: str, max_restarts: int, port: int) -> None:
    """Raise ValueError for what does not go together."""
    if start not in STARTS:
        raise ValueError(f"start={start!r}: expected one of {', '.join(STARTS)}")
    if (start == "horovodrun") != (launcher == "horovodrun"):
        raise ValueError(f"start={start!r}: this script is started by {launcher}. Leave start= out")
    if port and start not in ("warm", "cold"):
        raise ValueError(f"port= is for warm and cold starts: {start} takes a free one")
    if max_restarts and start != "torchrun":
        raise ValueError('max_restarts= is torchrun\'s: give start="torchrun" with it')


def _check_hosts(count: int, link: str | None, start: str, ranks: int | None, device: str) -> None:
    """Raise ValueError for hosts that can't be made or would mean nothing."""
    if count < 1:
        raise ValueError(f"hosts={count}: expected at least one")
    if link is not None and (count == 1 or not simulated.RATE.fullmatch(link)):
        raise ValueError(
            f"link={link!r}: expected a rate between hosts=2 or more, such as '200mbit'"
        )
    if count > 1 and start not in ("warm", "cold"):
        raise ValueError(f"hosts= is for warm and cold starts, not for start={start!r}")
    if count > 1 and ranks is None:
        raise ValueError("hosts= needs ranks=: how many there are on all hosts together")
    if count > 1 and device == "cuda":
        raise ValueError("hosts= are for CPU ranks: GPUs of one machine would not use their link")


def _spread_over_hosts(ranks_orders: list[dict], hosts: int, link: str | None) -> None:
    """Tell each rank its host and what a launcher on that host would set."""
    each = len(ranks_orders) // hosts
    for rank, order in enumerate(ranks_orders):
        order["host"] = rank // each
        order["env"] |= {
            "LOCAL_RANK": str(rank % each),
            "LOCAL_WORLD_SIZE": str(each),
            "GROUP_RANK": str(rank // each),
            "MASTER_ADDR": simulated.address(0),
            "GLOO_SOCKET_IFNAME": simulated.INTERFACE,
            "BOOTCAMP_PLACE": str(rank),
            "BOOTCAMP_LINK": link or "open",
        }


def _device_flag(known, device: str, ranks: int) -> dict:
    """--device, spelt out: which it is must not depend on where the line is pasted."""
    if device != "auto":
        return {"device": device}
    if known is None or known.own_device:
        return {}  # a reader's own script may not know every device: it chooses itself
    return {"device": "cuda" if gpu_count() >= ranks else "cpu"}


def _where(device: str | None, ranks: int) -> str:
    if device is None:
        return "1 rank" if ranks == 1 else f"{ranks} ranks"
    if device == "meta":
        return "no device: a rehearsal"
    kind, backend = ("GPU", "NCCL") if device == "cuda" else ("CPU", "gloo")
    return f"1 {kind} rank" if ranks == 1 else f"{ranks} {kind} ranks, {backend}"


def _steps(flags: dict) -> int:
    return int(flags.get("steps") or 20)


_numbers = itertools.count(1)


def _new_folder(path: Path, given: Path | str | None) -> Path:
    """A new run folder with the summary's room reserved: a full disk shows before a start."""
    name = path.stem.removeprefix("_train_")
    while True:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        folder = LOGS / f"{stamp}-{name}-{os.getpid()}-{next(_numbers)}"
        folder = Path(given).resolve() if given else folder
        try:
            folder.mkdir(parents=True)
            (folder / "ranks").mkdir()
            summary.reserve(folder)
            return folder
        except FileExistsError:
            if given:
                message = f"run_dir={given}: the folder exists. Give a new one, or delete that one."
                raise _no_start(None, message) from None
        except OSError as error:
            message = f"the run folder {shown(folder)} can't be written: {error.strerror}. "
            message += "Free some space, or give run_dir= a folder that you may write to."
            raise _no_start(None, message) from None


def _no_start(folder: Path | None, message: str) -> RunRefused:
    error = summary.failure(None, "refused", message)
    if folder is None:
        return RunRefused(error)
    summary.write(folder, "failed", steps=0, error=error)
    return RunRefused(error, Run(folder))


def _taken(port: int) -> str | None:
    """Why a port can't be had, None if it is free."""
    from bootcamp.launcher.forkserver import listen

    try:
        listen(port).close()
    except OSError as error:
        return f"port={port} can't be had: {error.strerror}. Leave port= out, a free one is taken."
    return None


def _rank_order(
    folder, path, arguments, rank: int, world: int, command: str, env: dict | None
) -> dict:
    """What forkserver.become_rank needs to know of one rank."""
    ranks = folder / "ranks"
    environment = {
        **os.environ,
        **{name: str(value) for name, value in (env or {}).items()},
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": LOOPBACK,
        "BOOTCAMP_RUN": str(folder),
        "BOOTCAMP_COMMAND": command,
        "BOOTCAMP_KERNEL": str(os.getpid()),
        "BOOTCAMP_SUPERVISOR": str(connect().process.pid),
    }
    return {
        "env": environment,
        "argv": [str(path), *arguments, "--run-dir", str(folder)],
        "out": str(ranks / f"{rank}.out"),
        "err": str(ranks / f"{rank}.err"),
        "stack": str(ranks / f"{rank}.stack"),
    }
