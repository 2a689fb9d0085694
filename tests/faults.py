"""Every way in which a run can go wrong, each provoked for real and checked.

A fault is a function without arguments that provokes it, asserts what must hold, and returns the
seconds from the fault to its end. The tests run each once, `make drills` runs each ten times.
"""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import host_traces
import warm

from bootcamp.experiments import equality
from bootcamp.launcher import connection, launch, process_tree, progress, simulated_hosts
from bootcamp.launcher.launch import LaunchError, Options, RankFailed, RunHung, RunRefused
from bootcamp.paths import LOGS
from bootcamp.records import heartbeat, runs, summary
from bootcamp.records.steps import read_steps
from bootcamp.scripts.variants import variant

LONG = {"steps": 100_000, "model": "mlp", "device": "cpu", "quiet": True}
SHORT = {"steps": 5, "model": "mlp", "device": "cpu", "quiet": True}


def leftovers(kernel: int, allow_launcher: bool = False) -> dict[int, str]:
    """Living processes that a kernel's launches have started: process id -> command."""
    allowed = set()
    if allow_launcher and (current := connection._connection):
        allowed = {current.process.pid, *_fork_servers(current.process.pid)}
    found = process_tree.find_marked("BOOTCAMP_KERNEL", str(kernel)) - {kernel, *allowed}
    return {pid: process_tree.read_command(pid) for pid in found}


def _fork_servers(supervisor: int) -> list[int]:
    """The fork server: the supervisor's only child whose command says so and is in its session."""
    session = process_tree.read_session(supervisor)
    return [
        pid
        for pid in process_tree.find_below({supervisor})
        if process_tree.read_session(pid) == session
        and "forkserver.py" in process_tree.read_command(pid)
    ]


def _broken(name: str, fault: str, script: str = "ddp") -> Path:
    """A script in which rank 1 meets a fault before its third optimizer step."""
    line = "optimizer.step()"
    text = f"if rank == 1 and step == 2:\n    {fault}\n{line}"
    return variant(script, f"{name}_{script}", {line: text})


def _ends_with(expected: type, script, **flags) -> tuple[LaunchError, float]:
    launch.connect().wait_until_ready()  # loading torch is no part of the fault
    began = time.monotonic()
    try:
        launch.launch(script, 2, **{**SHORT, **flags})
    except expected as error:
        assert not leftovers(os.getpid(), allow_launcher=True)
        return error, time.monotonic() - began
    raise AssertionError(f"{script} ended well, expected {expected.__name__}")


def rank_raises(script: str = "ddp", **flags) -> float:
    script = _broken("raises", 'raise ValueError("one rank has had enough")', script)
    error, seconds = _ends_with(RankFailed, script, **flags)
    assert error.error["rank"] == 1, error.error
    assert "ValueError: one rank has had enough" in str(error)
    assert "raises_" in str(error), "the traceback must name the line of the script"
    assert "forkserver.py" not in str(error), "the launcher's inside is not the reader's concern"
    assert seconds < (10 if script.stem.endswith("_ddp") else 60)  # horovodrun starts cold
    _recorded(error.run, "failed", "one rank has had enough")
    return seconds


def rank_is_killed(script: str = "ddp", **flags) -> float:
    script = _broken("killed", '__import__("os").kill(__import__("os").getpid(), 9)', script)
    error, seconds = _ends_with(RankFailed, script, **flags)
    assert error.error["rank"] == 1, error.error
    assert "SIGKILL" in str(error)
    _recorded(error.run, "failed", "SIGKILL")
    return seconds


def rank_hangs(script: str = "ddp", hang_seconds: float = 2) -> float:
    script = _broken("hangs", '__import__("time").sleep(3600)', script)
    error, seconds = _ends_with(RunHung, script, options=Options(hang_seconds))
    assert error.error["rank"] == 1, error
    assert "rank 1 hangs" in str(error)
    assert "hangs_" in str(error), "the stack must name the line where the rank stood"
    assert "waits for the others" in str(error)
    _recorded(error.run, "failed", "rank 1 hangs")
    return seconds


def _recorded(run: runs.Run, status: str, message: str) -> None:
    said = summary.read(run.folder)
    assert said["status"] == status, said
    assert message in said["error"]["message"], said["error"]["message"]


def _when_running(folder: Path, then, seconds: float = 60.0, steps: int = 3) -> threading.Thread:
    """Call `then` in a thread once the run in this folder has done so many steps."""

    def wait():
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if len(read_steps(folder)) >= steps:
                return then()
            time.sleep(0.02)
        raise TimeoutError(f"{folder} did not begin: the fault is not provoked")

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def _fresh_folder() -> Path:
    LOGS.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="fault-", dir=LOGS)) / "run"


def cell_is_interrupted() -> float:
    """As the stop button does: SIGINT to the kernel while it waits for the run."""
    return _interrupted(start="warm")


def torchrun_is_interrupted() -> float:
    """The same for a launcher that starts processes of its own: no grandchild is left."""
    return _interrupted(start="torchrun")


def _interrupted(start: str, script: str = "ddp") -> float:
    folder, moment = _fresh_folder(), []

    def interrupt():
        moment.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    thread = _when_running(folder, interrupt)
    try:
        launch.launch(script, 2, options=Options(run_dir=folder), start=start, **LONG)
    except KeyboardInterrupt:
        seconds = time.monotonic() - moment[0]
    else:
        raise AssertionError("the interrupt did not end the launch")
    thread.join()
    assert not leftovers(os.getpid(), allow_launcher=True)
    assert summary.read(folder)["status"] == "interrupted"
    return seconds


def notebook_is_interrupted() -> float:
    """The stop button on a real Jupyter kernel: the cell ends, the kernel lives and runs on."""
    from jupyter_client.manager import start_new_kernel

    folder = _fresh_folder()
    manager, client = start_new_kernel(kernel_name="python3")
    kernel = manager.provisioner.pid
    try:
        start = f"launch('ddp', 2, options=Options(run_dir={str(folder)!r}), **{LONG})"
        request = client.execute(f"from bootcamp import Options, launch\n{start}")
        _when_running(folder, manager.interrupt_kernel).join()
        began = time.monotonic()
        while (reply := client.get_shell_msg(timeout=30))["parent_header"]["msg_id"] != request:
            pass
        seconds = time.monotonic() - began
        assert reply["content"]["ename"] == "Interrupted", reply["content"]
        (shown,) = reply["content"]["traceback"]
        assert shown.startswith("KeyboardInterrupt: the run was interrupted: its ranks have ended")
        assert folder.name in shown
        assert "\n" not in shown
        ranks = [p for p in leftovers(kernel) if _is_rank(p)]
        assert not ranks, f"still there: {ranks}"
        assert summary.read(folder)["status"] == "interrupted"
        again = client.execute("print(launch('ddp', 2, steps=3, model='mlp', quiet=True).status)")
        while (reply := client.get_shell_msg(timeout=30))["parent_header"]["msg_id"] != again:
            pass
        assert reply["content"]["status"] == "ok", reply["content"]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    _gone(kernel)
    return seconds


def _is_rank(pid: int) -> bool:
    """A forked rank carries its own short name; the launcher's processes do not."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith("rank ")
    except OSError:
        return False


def _gone(kernel: int, seconds: float = 15.0) -> None:
    """Wait until nothing that a dead kernel has started is left."""
    deadline = time.monotonic() + seconds
    while left := leftovers(kernel):
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.02)


def _network_as(before: dict, seconds: float = 10.0) -> None:
    """Wait until nothing of a run's hosts is left."""
    deadline = time.monotonic() + seconds
    while left := _not_in(before, host_traces.traces()):
        assert time.monotonic() < deadline, f"left of the hosts: {left}"
        time.sleep(0.05)


def _not_in(before: dict, now: dict) -> list[str]:
    return [each for kind in now for each in now[kind] if each not in before[kind]]


def _needs_hosts() -> None:
    if why := simulated_hosts.why_not():
        raise CannotProvoke(f"no hosts here: {why}")


def hosts_and_their_kernel_is_killed() -> float:
    """kill -9 of the process that launched ranks on two hosts: no host is left either."""
    _needs_hosts()
    before = host_traces.traces()
    seconds = kernel_is_killed(ranks=4, hosts=2, link="1gbit")
    _network_as(before)
    return seconds


def hosts_and_their_supervisor_is_killed() -> float:
    """kill -9 of the process that watches over them: holder and torchruns go with it."""
    _needs_hosts()
    before = host_traces.traces()
    seconds = supervisor_dies(("torchrun",), hosts=2)
    _network_as(before)
    return seconds


def hosts_lose_their_holder() -> float:
    """kill -9 of the process that holds them: the ranks' link is gone, and the run ends."""
    _needs_hosts()
    before, folder, killed = host_traces.traces(), _fresh_folder(), []

    def kill():
        for pid in process_tree.find_marked("BOOTCAMP_RUN", str(folder)):
            if "hosts.py" in process_tree.read_command(pid):
                killed.append(time.monotonic())
                os.kill(pid, signal.SIGKILL)

    thread = _when_running(folder, kill)
    with contextlib.suppress(LaunchError):
        launch.launch("ddp", 4, hosts=2, options=Options(20, run_dir=folder), timeout=3, **LONG)
    thread.join()
    assert killed, "there was no holder to kill"
    assert summary.read(folder)["status"] == "failed"
    _network_as(before)
    return time.monotonic() - killed[0]


def kernel_is_killed(ranks: int = 2, **how) -> float:
    """kill -9 of the process that launched: nobody is left to clean up but the supervisor."""
    folder = _fresh_folder()
    given = f"options=Options(run_dir={str(folder)!r}), **{ {**LONG, **how} }"
    code = f"from bootcamp import Options, launch; launch('ddp', {ranks}, {given})"
    kernel = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    died = []

    def kill():
        died.append(time.monotonic())
        kernel.kill()

    _when_running(folder, kill).join()
    kernel.wait()
    _gone(kernel.pid)
    said = summary.read(folder)
    assert said["status"] == "interrupted", said
    assert said["error"]["kind"] == "kernel died"
    return time.monotonic() - died[0]


def fork_server_dies() -> float:
    """A run that goes on does not notice; the next launch finds a new server."""
    folder, killed = _fresh_folder(), []

    def kill():
        for pid in _fork_servers(launch.connect().process.pid):
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    launch.launch("ddp", 2, **SHORT)
    thread = _when_running(folder, kill)
    run = launch.launch("ddp", 2, options=Options(run_dir=folder), **{**LONG, "steps": 400})
    thread.join()
    assert killed, "there was no fork server to kill"
    assert run.status == "ok"
    assert len(run.losses) == 400
    began = time.monotonic()
    assert launch.launch("ddp", 2, **SHORT).status == "ok"
    return time.monotonic() - began


def supervisor_dies(starts: tuple = ("warm", "torchrun"), ranks: int = 2, **how) -> float:
    """kill -9 of the supervisor: its ranks die with it, the cell says so, the next launch works."""
    for start in starts:
        folder = _fresh_folder()
        thread = _when_running(folder, lambda: launch.connect().process.kill())
        try:
            options = Options(run_dir=folder)
            launch.launch("ddp", ranks, options=options, start=start, **LONG, **how)
        except LaunchError as error:
            assert "supervisor" in str(error)
        else:
            raise AssertionError("the launch outlived its supervisor")
        thread.join()
        began = time.monotonic()
        _gone(os.getpid())
        assert summary.read(folder)["status"] == "failed"
    assert launch.launch("ddp", 2, **SHORT).status == "ok"
    return time.monotonic() - began


def two_launches_at_once() -> float:
    ended = []

    def one():
        ended.append(launch.launch("ddp", 2, **{**SHORT, "steps": 30}))

    began = time.monotonic()
    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [run.status for run in ended] == ["ok", "ok"]
    assert ended[0].folder != ended[1].folder
    assert ended[0].losses == ended[1].losses
    return time.monotonic() - began


def one_is_killed_beside_good_ones() -> float:
    """Runs that end at the same moment: each gets its own end, nobody takes another's."""
    killed = _broken("killed_beside", '__import__("os").kill(__import__("os").getpid(), 9)')
    over, wrong, good = threading.Event(), [], []

    def keep_launching():
        while not over.is_set():
            good.append(launch.launch("cpu", raises=False, **SHORT).status)

    began = time.monotonic()
    threads = [threading.Thread(target=keep_launching) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(8):
        run = launch.launch(killed, 2, raises=False, **SHORT)
        error = run.summary.get("error") or {}
        if (run.status, error.get("rank"), error.get("kind")) != ("failed", 1, "killed"):
            wrong.append(run.summary)
    over.set()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    assert set(good) == {"ok"}
    return time.monotonic() - began


def display_fails() -> float:
    """An error in the process that launches, while the ranks are running."""
    folder = _fresh_folder()
    began = time.monotonic()
    before = progress.Silent

    class Failing(progress.Silent):
        def step(self, row):
            raise BrokenPipeError("nobody reads this any more")

    progress.Silent = Failing
    try:
        launch.launch("ddp", 2, options=Options(run_dir=folder), **LONG)
    except BrokenPipeError:
        assert not leftovers(os.getpid(), allow_launcher=True)
    else:
        raise AssertionError("the error was lost")
    finally:
        progress.Silent = before
    said = summary.read(folder)
    assert said["status"] == "failed", said
    return time.monotonic() - began


def command_is_interrupted_at_once() -> float:
    """A stop right behind its order must not be lost."""
    began = time.monotonic()
    timer = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        launch.run_command(["python", "-c", "import time; time.sleep(60)"])
    except KeyboardInterrupt:
        seconds = time.monotonic() - began
    else:
        raise AssertionError("the interrupt was lost")
    assert seconds < 10, seconds
    assert not leftovers(os.getpid(), allow_launcher=True)
    return seconds


def torchrun_rank_is_killed() -> float:
    """The launcher's own report names the rank that was first, and so does the error."""
    return rank_is_killed(start="torchrun")


def _needs_horovod() -> None:
    if not launch.available("horovod"):
        raise CannotProvoke("Horovod is not built: make horovod")


def horovod_rank_raises() -> float:
    """The survivors raise at once too; the error is that of the rank that was first."""
    _needs_horovod()
    with warm.workers():
        return rank_raises("horovod", start="horovodrun")


def horovod_rank_is_killed() -> float:
    _needs_horovod()
    return rank_is_killed("horovod", start="horovodrun")


def horovod_rank_hangs() -> float:
    """Horovod would wait for ever, and busily: it has no time-out and looks as if it computed."""
    _needs_horovod()
    with warm.workers():
        return rank_hangs("horovod", hang_seconds=1)


def horovod_is_interrupted() -> float:
    """horovodrun, its shells and its ranks end with the cell."""
    _needs_horovod()
    return _interrupted(script="horovod", start="horovodrun")


def elastic_rank_is_killed() -> float:
    """kill -9 of a rank at some step: torchrun starts all anew, and nothing of the run is lost."""
    flags = {"steps": 20, "global_batch": 24, "device": "cpu", "quiet": True}
    undisturbed = launch.launch("ddp", 2, **flags)
    folder, moment = _fresh_folder(), []

    def kill():
        pid, _, _ = heartbeat.read(folder / "ranks" / "1.beat")
        moment.append(time.monotonic())
        os.kill(pid, signal.SIGKILL)

    thread = _when_running(folder, kill, steps=random.randrange(1, 16))
    saved = folder.with_suffix(".pt")
    kept = {"save": saved, "resume": saved, "save_every": 5}
    how = {"start": "torchrun", "options": Options(max_restarts=3, run_dir=folder)}
    with warm.workers():
        run = launch.launch("ddp", 2, **how, **kept, **flags)
    thread.join()
    assert run.summary["restarts"] == 1, run.summary
    assert run.losses == undisturbed.losses
    assert not equality.compare(run, equality.baseline(steps=20, global_batch=24)).failed
    return time.monotonic() - moment[0]


def killed_while_saving() -> float:
    """kill -9 of all ranks while they save their parts: the newest good checkpoint goes on."""
    return kill_while_saving(save_async=random.random() < 0.5)[0]


def kill_while_saving(save_async: bool) -> tuple[float, int, bool]:
    """The kill comes at a random moment once there is a first good checkpoint. Returns the seconds
    from it to the end of the resumed run, the step that this began with, and whether a save was cut
    in two.
    """
    flags = {"steps": 40, "global_batch": 24, "model": "mlp", "device": "cpu"}
    folder, moment = _fresh_folder(), []
    saved = folder.with_suffix(".saved")
    kept = {"save": saved, "resume": saved, "save_every": 1, "save_async": save_async}

    def good_ones() -> list[int]:
        return sorted(int(path.name.removeprefix("step-")) for path in saved.glob("step-*"))

    def kill():
        while not good_ones() and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(random.uniform(0, 0.06))
        pids = [heartbeat.read(folder / "ranks" / f"{rank}.beat")[0] for rank in range(2)]
        moment.append(time.monotonic())
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # ended with the first one
                os.kill(pid, signal.SIGKILL)

    deadline = time.monotonic() + 60
    thread = _when_running(folder, kill, steps=random.randrange(1, 12))
    how = {"options": Options(run_dir=folder), "raises": False, "quiet": True}
    run = launch.launch("fsdp", 2, **how, **kept, **flags)
    thread.join()
    _recorded(run, "failed", "SIGKILL")
    cut = bool(list(saved.glob(".step-*.part")))
    good = good_ones()[-1]
    assert good >= len(run.steps) - 2, "a save that had ended is lost"
    again = launch.launch("fsdp", 2, quiet=True, **{**kept, "save_every": 40}, **flags)
    assert again.steps[0]["step"] == good
    assert not equality.compare(again, equality.baseline(**flags)).failed
    assert not list(saved.glob(".step-*.part")), "what was cut is still there"
    return time.monotonic() - moment[0], good, cut


def port_is_taken() -> float:
    """A port that the environment names and somebody has taken is never met."""
    began = time.monotonic()
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        os.environ["MASTER_PORT"] = str(port)
        try:
            assert launch.launch("ddp", 2, **SHORT).status == "ok"
        finally:
            del os.environ["MASTER_PORT"]
    return time.monotonic() - began


def folder_cannot_be_written() -> float:
    began = time.monotonic()
    for folder, why in (("/dev/null/run", "Not a directory"), ("/proc/run", "No such file")):
        try:
            launch.launch("ddp", 2, options=Options(run_dir=folder), **SHORT)
        except RunRefused as error:
            assert folder in str(error)
            assert why in str(error)
        else:
            raise AssertionError(f"{folder} was written")
    return time.monotonic() - began


@contextlib.contextmanager
def _small_disk(size: str):
    """A file system of so many bytes, or None where this user may not mount one."""
    LOGS.mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="disk-", dir=LOGS)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
    try:
        mounted = subprocess.run(mount, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    try:
        yield Path(folder) if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "-l", folder], check=True)


class CannotProvoke(Exception):
    """This machine does not allow the fault to be provoked; the text says what it would need."""


def disk_is_full() -> float:
    """Six pages: room for the start of a run and for some sixty steps, not for its end."""
    with _small_disk("24k") as disk:
        if disk is None:
            raise CannotProvoke("a full disk needs the right to mount a small one")
        error, seconds = _ends_with(
            RankFailed, "ddp", options=Options(run_dir=disk / "run"), steps=300
        )
        assert "No space left on device" in str(error)
        _recorded(error.run, "failed", "No space left on device")
        assert len(error.run.steps) > 10, "what was written before must be readable"
        (disk / "rest").write_bytes(b"")
        with contextlib.suppress(OSError), open(disk / "rest", "wb") as rest:
            rest.write(bytes(24 * 1024))
        try:
            launch.launch("ddp", 2, options=Options(run_dir=disk / "second"), **SHORT)
        except RunRefused as refused:
            assert "No space left on device" in str(refused)
        else:
            raise AssertionError("a launch on a full disk began")
    return seconds


FAULTS = {
    function.__name__: function
    for function in (
        rank_raises,
        rank_is_killed,
        rank_hangs,
        cell_is_interrupted,
        notebook_is_interrupted,
        kernel_is_killed,
        fork_server_dies,
        supervisor_dies,
        two_launches_at_once,
        one_is_killed_beside_good_ones,
        display_fails,
        command_is_interrupted_at_once,
        torchrun_rank_is_killed,
        port_is_taken,
        folder_cannot_be_written,
        disk_is_full,
        torchrun_is_interrupted,
        elastic_rank_is_killed,
        killed_while_saving,
        hosts_and_their_kernel_is_killed,
        hosts_and_their_supervisor_is_killed,
        hosts_lose_their_holder,
        horovod_rank_raises,
        horovod_rank_is_killed,
        horovod_rank_hangs,
        horovod_is_interrupted,
    )
}

if __name__ == "__main__":
    print(json.dumps({name: FAULTS[name]() for name in sys.argv[1:] or FAULTS}, indent=1))
    launch.shut_down()
