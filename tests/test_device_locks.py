"""Locks on devices: two kernels wait for them. The devices are played, the locks are real."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import faults
import pytest
from filelock import FileLock, Timeout

from bootcamp import machine
from bootcamp.launcher import connection, device_locks, launch, process_tree
from bootcamp.launcher.launch import Options, RunRefused
from bootcamp.launcher.run_request import Command, RunRequest
from bootcamp.records import heartbeat, summary
from bootcamp.scripts.variants import variant

SECONDS = 60  # for what is awaited: not measured, only bounded


def lease(folder, count, there=2):
    """The wish for some of the GPUs that are played here."""
    named = {f"GPU {k}": f"fake-{k}" for k in range(there)}
    return {"lease": {"folder": str(folder), "devices": named, "count": count}}


def holds(folder, key):
    """The lock of a device, as another process has it."""
    folder.mkdir(exist_ok=True)
    lock = FileLock(folder / f"{key}.lock", timeout=0, mode=0o666)
    lock.acquire()
    return lock


def is_free(folder, key):
    try:
        holds(folder, key).release()
        return True
    except Timeout:
        return False


@contextlib.asynccontextmanager
async def taking(wish, ranks=1):
    """A run's devices while it takes them: (devices, its request, what it said, the task)."""
    each = [Command([], {}) for _ in range(ranks)]
    request, said = RunRequest("", "warm", each, agents=[Command([], {})], **wish), []
    run = device_locks.DeviceLocks(request, said.append)
    task = asyncio.create_task(run.take())
    try:
        yield run, request, said, task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        run.release()


# One run


def test_all_or_nothing(tmp_path):
    async def two():
        has = holds(tmp_path, "fake-1")
        async with taking(lease(tmp_path, 2)) as (_, request, said, task):
            while not said:
                await asyncio.sleep(0.01)
            assert said[0]["message"].startswith("Waiting for 2 devices. Other launches have GPU 1")
            assert "Interrupt the cell to stop waiting" in said[0]["message"]
            await asyncio.sleep(0)
            assert is_free(tmp_path, "fake-0"), "a request for two must not hold one"
            has.release()
            await task
            assert request.agents[0].env[device_locks.VARIABLE] == "fake-0,fake-1"
            assert not is_free(tmp_path, "fake-0")
        assert is_free(tmp_path, "fake-0")
        assert is_free(tmp_path, "fake-1")

    asyncio.run(two())


def test_one_of_two_does_not_wait_while_one_is_free(tmp_path):
    async def one():
        has = holds(tmp_path, "fake-0")
        async with taking(lease(tmp_path, 1)) as (_, request, said, task):
            await task
            assert request.ranks[0].env[device_locks.VARIABLE] == "fake-1"
            assert not said
        has.release()

    asyncio.run(one())


def test_a_kernel_does_not_wait_for_itself(tmp_path):
    """Ranks that stay alive between cells and a launch beside them share, as without leases."""

    async def both():
        async with taking(lease(tmp_path, 2)) as (*_, task):
            await task
            async with taking(lease(tmp_path, 1)) as (_, request, _, second):
                await second
                assert request.agents[0].env[device_locks.VARIABLE] == "fake-0"
            assert not is_free(tmp_path, "fake-0"), "the first run still has it"

    asyncio.run(both())


# The folder


def test_everybody_may_write_and_nobody_remove(tmp_path):
    before = os.umask(0o077)
    try:
        assert device_locks.why_not(tmp_path / "locks") is None
    finally:
        os.umask(before)
    assert (tmp_path / "locks").stat().st_mode & 0o7777 == 0o1777
    assert (tmp_path / "locks" / "preflight.lock").stat().st_mode & 0o777 == 0o666


@pytest.mark.parametrize("trap", ["folder", "file", "link", "open"])
def test_an_unsafe_folder_is_refused_and_no_link_followed(tmp_path, trap):
    folder, precious = tmp_path / "locks", tmp_path / "precious"
    precious.write_text("keep me")
    if trap == "folder":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    elif trap == "file":
        folder.write_text("")
    elif trap == "open":
        folder.mkdir()
        folder.chmod(0o777)
    else:
        folder.mkdir()
        (folder / "fake-0.lock").symlink_to(precious)

    async def take():
        async with taking(lease(folder, 2)) as (*_, task):
            await task

    with pytest.raises(device_locks.LeaseError, match="can't be used: .* BOOTCAMP_LEASES=off"):
        asyncio.run(take())
    assert precious.read_text() == "keep me"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user to try")
def test_two_users_share_the_folder(request):
    """The other user meets root's lock files, and can neither remove nor free them."""
    place = Path(tempfile.mkdtemp(dir="/tmp"))  # the parents of tmp_path are closed to others
    request.addfinalizer(lambda: shutil.rmtree(place))
    place.chmod(0o755)
    assert device_locks.why_not(place / "locks") is None
    has, free = holds(place / "locks", "fake-0"), holds(place / "locks", "fake-1")
    free.release()
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from bootcamp.launcher import device_locks\n"
        "os.setuid(65534)\n"
        "folder = Path(sys.argv[1])\n"
        "locks = device_locks._make_locks(folder, ['fake-0', 'fake-1'])\n"
        "print(*map(device_locks._try_to_acquire, locks))\n"
        "open(locks[0].lock_file)\n"
        "try: os.unlink(locks[0].lock_file)\n"
        "except PermissionError: print('kept')"
    )
    command = [sys.executable, "-c", code, str(place / "locks")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.split() == ["False", "True", "kept"]
    has.release()


def test_leases_can_be_off_and_elsewhere(monkeypatch, tmp_path):
    monkeypatch.setenv("BOOTCAMP_LEASES", str(tmp_path))
    assert device_locks.choose_folder() == tmp_path
    monkeypatch.setenv("BOOTCAMP_LEASES", "off")
    assert device_locks.choose_folder() is None
    assert wishes("ddp", 2, device="cpu") == {}
    monkeypatch.delenv("BOOTCAMP_LEASES")
    monkeypatch.setattr(device_locks.tempfile, "tempdir", str(tmp_path))
    assert device_locks.choose_folder() == tmp_path / "bootcamp-leases"


# Which devices a launch wishes for


def wishes(script, ranks, device=None, cores_per_rank=1):
    call = launch.Call(script, ranks, device=device, flags={"cores_per_rank": cores_per_rank})
    return call.choose_leases()


def see_gpus(monkeypatch, *uuids):
    """A machine with these GPUs."""
    found = tuple(machine.Gpu(index, "a GPU", uuid) for index, uuid in enumerate(uuids))
    monkeypatch.setattr(machine, "all_gpus", lambda: found)


def test_gpus_are_named_by_uuid(monkeypatch):
    see_gpus(monkeypatch, "GPU-aaa", "GPU-bbb", "GPU-ccc")
    for visible, count, expected in (
        (None, 3, ["GPU-aaa", "GPU-bbb", "GPU-ccc"]),
        ("2, 0", 2, ["GPU-ccc", "GPU-aaa"]),
        ("GPU-b", 1, ["GPU-bbb"]),
        ("1", 8, ["GPU-bbb"]),
        ("1,7,0", 1, ["GPU-bbb"]),
        ("MIG-1,MIG-2", 2, ["MIG-1", "MIG-2"]),
        ("", 0, []),
    ):
        assert list(device_locks.list_gpus(visible, count).values()) == expected
    assert device_locks.list_gpus("2", 1) == {"GPU 2": "GPU-ccc"}
    see_gpus(monkeypatch)
    assert device_locks.list_gpus(None, 2) == {"GPU 0": "0", "GPU 1": "1"}


def test_a_gpu_for_each_rank_or_all_for_who_takes_several(monkeypatch):
    monkeypatch.delenv("BOOTCAMP_FIRST_CORE", raising=False)
    monkeypatch.setattr(launch, "gpu_count", lambda: 4)
    see_gpus(monkeypatch, *(f"GPU-{k}" for k in range(4)))
    counts = {
        (script, device): wishes(script, 2, device=device)["lease"]["count"]
        for script, device in [("ddp", "cuda"), ("mp", None), ("ddp_mp", "cuda"), ("dp", None)]
    }
    assert counts == {("ddp", "cuda"): 2, ("mp", None): 4, ("ddp_mp", "cuda"): 4, ("dp", None): 4}
    changed = variant("ddp", "leased", {"run.finish()": "run.finish()\nprint(1)"})
    assert wishes(changed, 2)["lease"]["count"] == 2
    for script, flags in (("ddp", {"device": "cpu"}), ("cpu", {}), ("dp_by_hand", {})):
        assert list(wishes(script, 2, **flags)) == ["cores"]
    assert wishes("ddp", 2, device="cpu", cores_per_rank=3)["cores"]["each"] == 3
    assert wishes("gpu", 1, device="meta") == {}
    monkeypatch.setenv("BOOTCAMP_FIRST_CORE", "0")
    assert wishes("ddp", 2, device="cpu") == {}


def test_more_than_exist_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setattr(launch, "gpu_count", lambda: 2)
    with pytest.raises(RunRefused, match="ranks=3 .* here are 2: .* ranks=2 or fewer") as refusal:
        wishes("ddp", 3, device="cuda")
    assert "\n" not in str(refusal.value)


# Cores


def test_cores_that_no_other_run_has(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: [0, 2, 4, 6])

    async def places():
        async with contextlib.AsyncExitStack() as runs:

            async def place(ranks, each=1):
                wish = {"cores": {"folder": str(tmp_path), "each": each}}
                run, request, _, task = await runs.enter_async_context(taking(wish, ranks))
                await task
                return run, request.ranks[0].env.get("BOOTCAMP_FIRST_CORE", "0")

            first, second, third = await place(2), await place(2), await place(1)
            assert [found for _, found in (first, second, third)] == ["0", "2", "0"]
            for run in (first, second, third):
                run[0].look_for_sharing()
            assert [run[0].shared for run in (first, second, third)] == [True, False, True]
            first[0].release()
            third[0].look_for_sharing()
            assert not is_free(tmp_path, "core-0"), "who shares takes a core that has become free"
            second[0].release()
            wide = await place(1, each=2)
            assert (wide[1], wide[0].shared) == ("1", False)
            assert (await place(9))[0].shared

    asyncio.run(places())


def test_cores_whose_files_cannot_be_opened_are_shared_and_end_no_run(tmp_path, monkeypatch):
    monkeypatch.setattr(device_locks.machine, "cores", lambda: [0, 1])

    async def take():
        held = holds(tmp_path, "core-0")
        (tmp_path / "core-1.lock").mkdir()
        async with taking({"cores": {"folder": str(tmp_path), "each": 1}}) as (run, *_, task):
            await task
            run.look_for_sharing()
        held.release()

    asyncio.run(take())


def test_a_rank_gets_a_core_that_is_free(monkeypatch, tmp_path):
    """As the ranks see it: the second core while a run has the first; BOOTCAMP_FIRST_CORE wins."""
    cores = machine.cores()
    if len(cores) < 2:
        pytest.skip("one core: there is nothing to choose")
    monkeypatch.delenv("BOOTCAMP_FIRST_CORE", raising=False)
    monkeypatch.setenv("BOOTCAMP_LEASES", str(tmp_path))
    say = "import os\nprint(*os.sched_getaffinity(0))\nrun.finish()"
    script = variant("cpu", "leased_core", {"run.finish()": say})
    short = {"steps": 1, "model": "mlp", "quiet": True}
    assert launch.launch(script, 1, **short).output().strip() == str(cores[0])
    other = holds(tmp_path, f"core-{cores[0]}")
    assert launch.launch(script, 1, **short).output().strip() == str(cores[1])
    monkeypatch.setenv("BOOTCAMP_FIRST_CORE", "0")
    assert launch.launch(script, 1, **short).output().strip() == str(cores[0])
    other.release()


def test_a_run_that_shared_its_cores_says_so_also_if_the_other_came_later(
    monkeypatch, tmp_path, capsys
):
    """Both runs' summaries, and the last line of the progress; a run alone says nothing of it."""
    monkeypatch.delenv("BOOTCAMP_FIRST_CORE", raising=False)
    monkeypatch.setenv("BOOTCAMP_LEASES", str(tmp_path))
    ranks, second = len(machine.cores()), []
    assert "shared_cores" not in launch.launch("ddp", ranks, **faults.SHORT).summary

    def launch_beside_it():
        second.append(launch.launch("ddp", ranks, **faults.SHORT))

    folder = tmp_path / "first"
    thread = faults._when_running(folder, launch_beside_it)
    long = {**faults.SHORT, "steps": 600, "quiet": False}
    first = launch.launch("ddp", ranks, options=Options(run_dir=folder), **long)
    thread.join()
    for run in (first, second[0]):
        assert run.summary["shared_cores"] is True
        assert run.status == "ok"
    assert "It shared its cores with another run: alone it would" in capsys.readouterr().out


# Two kernels

KERNEL = """
import json
import os
import sys
from pathlib import Path
from bootcamp.launcher import connection, progress
from bootcamp.launcher.run_request import Command, RunRequest
from bootcamp.records import summary
folder, wish, code = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
(folder / "ranks").mkdir(parents=True)
summary.reserve(folder)
env = {**os.environ, "BOOTCAMP_RUN": str(folder)}
agent = Command([sys.executable, "-S", "-c", code, str(folder)], env)
request = RunRequest(str(folder), "command", agents=[agent], **wish)
print("supervisor", connection.connect().process.pid, flush=True)
connection.follow(request, progress.Silent(), True)
print("ended", flush=True)
"""
# what runs on the devices: says that it has begun, what it has got, and ends when it is told to
WORK = """
import os, sys, time
folder = sys.argv[1]
with open(folder + "/began.part", "w") as file:
    print(os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"], file=file)
os.rename(folder + "/began.part", folder + "/began")
while not os.path.exists(folder + "/go"):
    time.sleep(0.02)
"""


# stands for torch in kernels that start no rank: what the fork server loads, in no time
NO_TORCH = {
    "torch/__init__.py": "class cuda:\n    device_count = staticmethod(lambda: 0)",
    "torch/distributed/__init__.py": "",
    "torch/nn/parallel/__init__.py": "",
    "torch/_dynamo/__init__.py": "",
}


class Attendee:
    """A kernel of its own that launches on leased devices, seen from outside."""

    def __init__(self, folder, ranks):
        self.folder = folder
        wish = lease(folder.parent / "locks", ranks)
        for name, text in NO_TORCH.items():
            path = folder.parent / "no torch" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        searched = [str(folder.parent / "no torch"), os.environ.get("PYTHONPATH", "")]
        self.process = subprocess.Popen(
            [sys.executable, "-c", KERNEL, str(folder), json.dumps(wish), WORK],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(searched)},
            start_new_session=True,
        )
        self.supervisor = int(self.process.stdout.readline().split()[1])

    def waits(self):
        """Read its next line, which must say that it waits."""
        line = self.process.stdout.readline()
        assert line.startswith("Waiting for "), line
        return line

    def began(self):
        """Wait until it runs: (process id, names of its devices)."""
        until((self.folder / "began").exists)
        pid, devices = (self.folder / "began").read_text().split()
        return int(pid), devices.split(",")

    def end(self):
        (self.folder / "go").write_text("")
        assert self.process.wait(SECONDS) == 0

    def clean_up(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        faults._gone(self.process.pid, SECONDS)


def until(condition):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {SECONDS} s"
        time.sleep(0.02)


@pytest.fixture
def attendees(tmp_path, monkeypatch):
    """attendees(ranks) starts one more, and launches here want as many; at the end all are gone."""
    wish = lambda call: lease(tmp_path / "locks", call.ranks)  # noqa: E731
    monkeypatch.setattr(launch.Call, "choose_leases", wish)
    made = []

    def start(ranks):
        made.append(Attendee(tmp_path / f"run-{len(made)}", ranks))
        return made[-1]

    yield start
    for each in made:
        each.clean_up()
    for key in ("fake-0", "fake-1"):
        assert is_free(tmp_path / "locks", key), "a run has ended and its lock has not"


@pytest.mark.slow
def test_the_second_waits_and_starts_when_the_first_ends(attendees):
    first = attendees(2)
    assert first.began()[1] == ["fake-0", "fake-1"]
    second = attendees(1)
    assert second.waits() == (
        "Waiting for 1 device. Other launches have GPU 0, GPU 1. "
        "Interrupt the cell to stop waiting.\n"
    )
    assert not (second.folder / "began").exists()
    first.end()
    assert second.began()[1] == ["fake-0"]
    second.end()


def test_one_of_two_starts_beside_another(attendees):
    first, second = attendees(1), attendees(1)
    assert {*first.began()[1], *second.began()[1]} == {"fake-0", "fake-1"}


@pytest.mark.parametrize("victim", ["kernel", "supervisor"])
def test_a_killed_one_gives_its_devices_up_when_its_ranks_are_gone(attendees, victim):
    first = attendees(2)
    worker = first.began()[0]
    second = attendees(2)
    second.waits()
    os.kill(first.process.pid if victim == "kernel" else first.supervisor, signal.SIGKILL)
    assert second.began()[1] == ["fake-0", "fake-1"]
    assert not process_tree.is_alive(worker), "two runs had the device at once"
    second.end()


def test_an_interrupt_while_waiting_leaves_nothing(attendees, monkeypatch, tmp_path):
    """The stop button on a cell that waits: the kernel lives on, and waits no more."""
    first = attendees(2)
    first.began()
    stop = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT)  # noqa: E731
    monkeypatch.setattr(connection, "print", stop, raising=False)
    with pytest.raises(KeyboardInterrupt):
        launch.launch("ddp", 2, options=Options(run_dir=tmp_path / "run"), **faults.SHORT)
    assert summary.read(tmp_path / "run")["status"] == "interrupted"
    assert not list((tmp_path / "run" / "ranks").iterdir()), "a rank has begun"
    first.end()
    attendees(2).began()


def test_warm_ranks_are_gone_before_the_next_has_their_devices(attendees, monkeypatch, tmp_path):
    """kill -9 of the supervisor of a real training, and what the reader of the next cell sees."""
    folder, killed = tmp_path / "training", []

    def kill():
        pids = [heartbeat.read(folder / "ranks" / f"{rank}.beat")[0] for rank in range(2)]
        second = attendees(2)
        second.waits()
        killed.append((second, pids))
        launch.connect().process.kill()

    thread = faults._when_running(folder, kill)
    with pytest.raises(launch.LaunchError, match="supervisor"):
        launch.launch("ddp", 2, options=Options(run_dir=folder), **faults.LONG)
    thread.join()
    (second, pids) = killed[0]
    second.began()
    assert not any(map(process_tree.is_alive, pids))
    second.end()


def test_gpu_ranks_see_the_leased_gpus_only(monkeypatch, tmp_path):
    monkeypatch.setenv("BOOTCAMP_LEASES", str(tmp_path))
    monkeypatch.setattr(launch, "gpu_count", lambda: 2)
    see_gpus(monkeypatch, "GPU-aaa", "GPU-bbb")
    script = tmp_path / "sees.py"
    script.write_text("import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'])\n")
    has = holds(tmp_path, "GPU-aaa")
    run = launch.launch(script, 1, device="cuda", quiet=True)
    assert run.output().strip() == "GPU-bbb"
    has.release()


def test_the_reader_of_a_cell_hears_of_it(attendees, monkeypatch):
    """Through launch itself, quiet or not: a message, then the run."""
    first, heard = attendees(2), []
    first.began()

    def hear(text, **_):
        heard.append(text)
        if len(heard) == 1:
            first.end()

    monkeypatch.setattr(connection, "print", hear, raising=False)
    assert launch.launch("ddp", 2, **faults.SHORT).status == "ok"
    assert "Waiting for 2 devices. Other launches have GPU 0, GPU 1" in heard[0]
