"""Every way in which a run can go wrong, provoked for real: one table for tests and drills.

FAULTS[name]() provokes a fault, checks what must hold, and returns the seconds from the fault to
its end. The tests provoke each once; `make drills` provokes each ten times on an idle machine, and
there it must end within the seconds that the table gives.
"""

import contextlib
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path

import warm
from processes import (
    Notebook,
    fork_servers,
    leftovers,
    meanwhile,
    other_kernel,
    trains,
    until,
    until_gone,
    until_hosts_are_gone,
)

from bootcamp.experiments import equality
from bootcamp.launcher import launch, process_tree, progress, simulated_hosts
from bootcamp.launcher.launch import LaunchError, Options, RankFailed, RunHung, RunRefused
from bootcamp.paths import LOGS
from bootcamp.records import heartbeat, summary
from bootcamp.scripts.variants import variant

LONG = {"steps": 100_000, "model": "mlp", "device": "cpu", "quiet": True}
SHORT = {"steps": 5, "model": "mlp", "device": "cpu", "quiet": True}


class CannotProvoke(Exception):
    """This machine does not allow the fault to be provoked; the text says what it would need."""


@dataclass(frozen=True)
class Fault:
    """What happens to a run, and what must be said and recorded then.

    line: what rank 1 does, see in_rank_1. strike: what is done to the run in this
    folder once it trains. how: other arguments of launch. raises, says: the error of the cell and
    texts in it. rank: the one that is named. status, recorded: what the summary says. seconds: from
    the fault to the end of the launch, on an idle machine. outlive: seconds in which processes of
    the run may still end after the launch has. workers: whether a launcher starts warm workers.
    story: provokes and checks a fault that is not told by all this, and may return its seconds.
    """

    line: str = ""
    strike: Callable[[Path], None] | None = None
    script: str | Path = "ddp"
    ranks: int = 2
    how: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)
    raises: type[BaseException] = RankFailed
    says: tuple[str, ...] = ()
    rank: int | None = None
    status: str = "failed"
    recorded: str = ""
    seconds: float = 10
    outlive: float = 0
    workers: bool = False
    needs: str = ""
    story: Callable[[], float | None] | None = None

    def __call__(self) -> float:
        if self.needs == "hosts" and (why := simulated_hosts.why_not()):
            raise CannotProvoke(f"no hosts here: {why}")
        if self.needs == "horovod" and not launch.available("horovod"):
            raise CannotProvoke("Horovod is not built: make horovod")
        began = time.monotonic()
        seconds = self.story() if self.story else self._provoke()
        return seconds or time.monotonic() - began

    def _provoke(self) -> float:
        folder, script = fresh_folder(), self.script
        if self.line:
            script = in_rank_1(script, self.line)
        launch.connect().wait_until_ready()  # loading torch is no part of the fault
        struck = [time.monotonic()]

        def strike() -> None:
            struck.append(time.monotonic())
            self.strike(folder)

        with contextlib.ExitStack() as stack:
            if self.workers:
                stack.enter_context(warm.workers())
            if self.strike:
                stack.enter_context(meanwhile(lambda: trains(folder), strike))
            how = {**(LONG if self.strike else SHORT), **self.how}
            options = Options(run_dir=folder, **self.options)
            error = expect(self.raises, script, self.ranks, options=options, **how)
        if self.outlive:
            until_gone(os.getpid(), self.outlive)
        seconds = time.monotonic() - struck[-1]
        assert seconds < launch.HANG_SECONDS, "a timeout has ended the run"
        self._check(error, folder)
        return seconds

    def _check(self, error: BaseException, folder: Path) -> None:
        assert not leftovers(os.getpid(), allow_launcher=True)
        for text in self.says:
            assert text in str(error), f"{text!r} is not in: {error}"
        if isinstance(error, LaunchError):
            assert self.rank in (None, error.error["rank"]), error.error
            if error.error["kind"] == "raised":
                assert "forkserver.py" not in str(error), "the inside is not the reader's concern"
        until(lambda: not (self.workers and any(map(process_tree.is_alive, pids_of_ranks(folder)))))
        written = summary.read(folder)
        assert written["status"] == self.status, written
        assert self.recorded in written.get("error", {}).get("message", ""), written
        if self.outlive:
            assert launch.launch("ddp", 2, **SHORT).status == "ok"
        until_hosts_are_gone(folder)


def expect(kind: type[BaseException], script, ranks: int = 2, **how) -> BaseException:
    """The error of this kind that a launch ends with."""
    try:
        launch.launch(script, ranks, **how)
    except kind as error:
        return error
    raise AssertionError(f"{script} ended well, expected {kind.__name__}")


def fresh_folder() -> Path:
    """A folder that is not there yet, for a run."""
    LOGS.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="fault-", dir=LOGS)) / "run"


def in_rank_1(script: str, line: str) -> Path:
    """A copy of a script in which rank 1 does this before its third optimizer step."""
    changed = f"if rank == 1 and step == 2:\n    {line}\noptimizer.step()"
    return variant(script, f"faulty_{script}", {"optimizer.step()": changed})


def pids_of_ranks(folder: Path) -> list[int]:
    """The process ids of the two ranks of a run."""
    return [heartbeat.read(folder / "ranks" / f"{rank}.beat")[0] for rank in range(2)]


# What is done to a run


def interrupt_the_cell(_: Path) -> None:
    """As the stop button does: SIGINT to the kernel while it waits for the run."""
    os.kill(os.getpid(), signal.SIGINT)


def kill_the_supervisor(_: Path) -> None:
    launch.connect().process.kill()


# What is not told by a line of the table


def kernel_is_killed() -> float:
    """kill -9 of the process that launched: nobody is left to clean up but the supervisor."""
    folder = fresh_folder()
    given = f"'ddp', 2, options=Options(run_dir={str(folder)!r}), **{LONG}"
    with other_kernel(f"from bootcamp import Options, launch; launch({given})") as kernel:
        until(lambda: trains(folder))
        began = time.monotonic()
        kernel.kill()
        kernel.wait()
        until_gone(kernel.pid)
    written = summary.read(folder)
    assert written["status"] == "interrupted", written
    assert written["error"]["kind"] == "kernel died"
    return time.monotonic() - began


def notebook_is_interrupted() -> float:
    """The stop button on a real Jupyter kernel: the cell ends, the kernel lives and runs on."""
    folder = fresh_folder()
    start = f"launch('ddp', 2, options=Options(run_dir={str(folder)!r}), **{LONG})"
    struck = []

    def stop() -> None:
        struck.append(time.monotonic())
        notebook.interrupt()

    with Notebook() as notebook:
        with meanwhile(lambda: trains(folder), stop):
            reply, _ = notebook.run(f"from bootcamp import Options, launch\n{start}")
        seconds = time.monotonic() - struck[0]
        assert reply["ename"] == "Interrupted", reply
        (shown,) = reply["traceback"]
        assert shown.startswith("KeyboardInterrupt: the run was interrupted: its ranks have ended")
        assert folder.name in shown
        assert "\n" not in shown
        assert not any(map(process_tree.is_alive, pids_of_ranks(folder)))
        assert summary.read(folder)["status"] == "interrupted"
        reply, _ = notebook.run("launch('ddp', 2, steps=3, model='mlp', quiet=True)")
        assert reply["status"] == "ok", reply
    return seconds


def fork_server_dies() -> None:
    """A run that goes on does not notice; the next launch finds a new server."""
    folder = fresh_folder()

    def kill() -> None:
        servers = fork_servers(launch.connect().process.pid)
        assert servers, "there was no fork server to kill"
        process_tree.kill(set(servers))

    with meanwhile(lambda: trains(folder), kill):
        options = Options(run_dir=folder)
        run = launch.launch("ddp", 2, options=options, **{**LONG, "steps": 400})
    assert (run.status, len(run.losses)) == ("ok", 400)
    launch.launch("ddp", 2, **SHORT)


def one_is_killed_beside_good_ones() -> None:
    """Runs that end at the same moment: each gets its own end, nobody takes another's."""
    killed = in_rank_1("ddp", KILLS_ITSELF)
    over = threading.Event()

    def keep_launching() -> set[str]:
        statuses = set()
        while not over.is_set():
            statuses.add(launch.launch("cpu", raises=False, **SHORT).status)
        return statuses

    with futures.ThreadPoolExecutor(2) as pool:
        good = [pool.submit(keep_launching) for _ in range(2)]
        try:
            ended = [launch.launch(killed, 2, raises=False, **SHORT) for _ in range(3)]
        finally:
            over.set()
    errors = [run.summary["error"] for run in ended]
    assert [(error["rank"], error["kind"]) for error in errors] == [(1, "killed")] * 3
    assert [each.result() for each in good] == [{"ok"}] * 2


def display_fails() -> float:
    """An error in the process that launches, while the ranks are running."""

    class Failing(progress.Silent):
        def step(self, row):
            raise BrokenPipeError("nobody reads this any more")

    before, progress.Silent = progress.Silent, Failing
    try:
        return Fault(how=LONG, raises=BrokenPipeError)()
    finally:
        progress.Silent = before


def command_is_interrupted_at_once() -> None:
    """A stop right behind its order must not be lost."""
    threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        launch.run_command(["python", "-c", "import time; time.sleep(60)"])
    except KeyboardInterrupt:
        assert not leftovers(os.getpid(), allow_launcher=True)
        return
    raise AssertionError("the interrupt was lost")


def elastic_rank_is_killed() -> float:
    """kill -9 of a rank at some step: torchrun starts all anew, and nothing of the run is lost."""
    settings = {"steps": 120, "global_batch": 24, "model": "mlp"}
    flags = {"device": "cpu", "quiet": True, **settings}
    undisturbed = launch.launch("ddp", 2, **flags)
    folder, moment = fresh_folder(), []

    def kill() -> None:
        moment.append(time.monotonic())
        os.kill(pids_of_ranks(folder)[1], signal.SIGKILL)

    saved, steps = folder.with_suffix(".pt"), random.randrange(1, 40)
    how = {"save": saved, "resume": saved, "save_every": 20, "start": "torchrun"}
    with warm.workers(), meanwhile(lambda: trains(folder, steps), kill):
        options = Options(max_restarts=3, run_dir=folder)
        run = launch.launch("ddp", 2, options=options, **how, **flags)
    assert run.summary["restarts"] == 1, run.summary
    assert run.losses == undisturbed.losses
    assert not equality.compare(run, equality.baseline(**settings)).failed
    return time.monotonic() - moment[0]


def killed_while_saving() -> float:
    """kill -9 of all ranks that save beside their steps: the newest good checkpoint goes on.

    The kill comes at a random moment once there is a first good checkpoint.
    """
    flags = {"steps": 40, "global_batch": 24, "model": "mlp"}
    folder, moment = fresh_folder(), []
    saved, steps = folder.with_suffix(".saved"), random.randrange(1, 12)
    how = {"save": saved, "resume": saved, "save_async": True, "device": "cpu", "quiet": True}

    def good_ones() -> list[int]:
        return sorted(int(path.name.removeprefix("step-")) for path in saved.glob("step-*"))

    def kill() -> None:
        time.sleep(random.uniform(0, 0.06))
        moment.append(time.monotonic())
        process_tree.kill(set(pids_of_ranks(folder)))

    with meanwhile(lambda: trains(folder, steps) and good_ones(), kill):
        options = Options(run_dir=folder)
        run = launch.launch("fsdp", 2, options=options, raises=False, save_every=1, **how, **flags)
    assert "SIGKILL" in run.summary["error"]["message"], run.summary
    good = good_ones()[-1]
    assert good >= len(run.steps) - 2, "a save that had ended is lost"
    again = launch.launch("fsdp", 2, save_every=40, **how, **flags)
    assert again.steps[0]["step"] == good
    assert not equality.compare(again, equality.baseline(**flags, device="cpu")).failed
    assert not list(saved.glob(".step-*.part")), "what was cut is still there"
    return time.monotonic() - moment[0]


def folder_cannot_be_written() -> None:
    for folder, why in (("/dev/null/run", "Not a directory"), ("/proc/run", "No such file")):
        error = expect(RunRefused, "ddp", options=Options(run_dir=folder), **SHORT)
        assert folder in str(error)
        assert why in str(error)


@contextlib.contextmanager
def small_disk(size: str):
    """A file system of so many bytes. Raises CannotProvoke where this user may not mount one."""
    LOGS.mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="disk-", dir=LOGS)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
    try:
        subprocess.run(mount, capture_output=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        raise CannotProvoke("a full disk needs the right to mount a small one") from None
    try:
        yield Path(folder)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def disk_is_full() -> None:
    """Six pages: room for the start of a run and for some sixty steps, not for its end."""
    said = "No space left on device"
    with small_disk("24k") as disk:
        how = {**SHORT, "steps": 300, "options": Options(run_dir=disk / "run")}
        error = expect(RankFailed, "ddp", **how)
        assert said in str(error)
        assert not leftovers(os.getpid(), allow_launcher=True)
        assert said in summary.read(error.run.folder)["error"]["message"]
        assert len(error.run.steps) > 10, "what was written before must be readable"
        with contextlib.suppress(OSError), open(disk / "rest", "wb") as rest:
            rest.write(bytes(24 * 1024))
        refused = expect(RunRefused, "ddp", **how | {"options": Options(run_dir=disk / "second")})
        assert said in str(refused), "a launch on a full disk began"


KILLS_ITSELF = '__import__("os").kill(__import__("os").getpid(), 9)'
RAISES = {
    "line": 'raise ValueError("one rank has had enough")',
    "rank": 1,
    "says": ("ValueError: one rank has had enough", "faulty_"),  # with the line of the script
    "recorded": "one rank has had enough",
}
KILLED = {"line": KILLS_ITSELF, "rank": 1, "says": ("SIGKILL",), "recorded": "SIGKILL"}
HANGS = {
    "line": '__import__("time").sleep(3600)',
    "rank": 1,
    "raises": RunHung,
    "says": ("rank 1 hangs", "faulty_", "waits for the others"),
    "recorded": "rank 1 hangs",
}
INTERRUPTED = {
    "strike": interrupt_the_cell,
    "raises": KeyboardInterrupt,
    "says": ("its ranks have ended, and the record is in",),
    "status": "interrupted",
}
SUPERVISOR_DIES = {
    "strike": kill_the_supervisor,
    "raises": LaunchError,
    "says": ("supervisor",),
    "outlive": 15,
}
HOROVOD = {
    "script": "horovod",
    "how": {"start": "horovodrun"},
    "needs": "horovod",
    "seconds": 60,  # horovodrun starts cold
}
TORCHRUN = {"how": {"start": "torchrun"}}
HOSTS = {"how": {"start": "torchrun", "hosts": 2}, "needs": "hosts"}

FAULTS = {
    "rank_raises": Fault(**RAISES),
    "rank_is_killed": Fault(**KILLED),
    "rank_hangs": Fault(**HANGS, options={"hang_seconds": 2}),
    "torchrun_rank_is_killed": Fault(**KILLED, **TORCHRUN, seconds=30, workers=True),
    "horovod_rank_raises": Fault(**RAISES, **HOROVOD, workers=True),
    # Horovod would wait for ever, and busily: it has no timeout and looks as if it computed
    "horovod_rank_hangs": Fault(**HANGS, **HOROVOD, options={"hang_seconds": 0.6}, workers=True),
    "cell_is_interrupted": Fault(**INTERRUPTED),
    "torchrun_is_interrupted": Fault(**INTERRUPTED, **TORCHRUN),
    "notebook_is_interrupted": Fault(story=notebook_is_interrupted),
    "command_is_interrupted_at_once": Fault(story=command_is_interrupted_at_once),
    "kernel_is_killed": Fault(story=kernel_is_killed),
    "fork_server_dies": Fault(story=fork_server_dies),
    "supervisor_dies": Fault(**SUPERVISOR_DIES),
    "hosts_and_their_supervisor_is_killed": Fault(**SUPERVISOR_DIES, **HOSTS),
    "one_is_killed_beside_good_ones": Fault(story=one_is_killed_beside_good_ones, seconds=60),
    "display_fails": Fault(story=display_fails),
    "folder_cannot_be_written": Fault(story=folder_cannot_be_written),
    "disk_is_full": Fault(story=disk_is_full),
    "elastic_rank_is_killed": Fault(story=elastic_rank_is_killed, seconds=30),
    "killed_while_saving": Fault(story=killed_while_saving, seconds=30),
}
