"""Locks on devices: launches wait for them. The devices are played, the locks are real."""

import asyncio
import contextlib
import os
import signal

import faults
import pytest
from filelock import FileLock, Timeout
from processes import meanwhile, trains, until

from bootcamp import machine
from bootcamp.launcher import device_locks, launch, process_tree
from bootcamp.launcher.launch import Options, RunRefused
from bootcamp.launcher.run_request import Command, RunRequest
from bootcamp.records import summary
from bootcamp.scripts.variants import variant

BOTH = ["fake-0", "fake-1"]


def lease(folder, count, there=2):
    """The wish for some of the GPUs that are played here."""
    named = {f"GPU {k}": f"fake-{k}" for k in range(there)}
    return {"lease": {"folder": str(folder), "devices": named, "count": count}}


def holds(folder, key):
    """The lock of a device, as another process has it; any thread may release it."""
    folder.mkdir(exist_ok=True)
    lock = FileLock(folder / f"{key}.lock", timeout=0, mode=0o666, thread_local=False)
    lock.acquire()
    return lock


def is_free(folder, key):
    try:
        holds(folder, key).release()
        return True
    except Timeout:
        return False


@pytest.fixture
def take():
    """take(wish, ranks, tell) takes a run's devices: (its locks, the environment of its ranks)."""
    with contextlib.ExitStack() as stack:

        def take(wish, ranks=1, tell=print):
            request = RunRequest("", "warm", [Command([], {}) for _ in range(ranks)], **wish)
            run = device_locks.DeviceLocks(request, tell)
            stack.callback(run.release)
            asyncio.run(run.take())
            return run, request.ranks[0].env

        yield take


def test_devices_are_taken_all_at_once_or_none(take, tmp_path):
    said, other = [], holds(tmp_path, "fake-1")

    def look():
        try:
            assert said[0]["message"].startswith("Waiting for 2 devices. Other launches have GPU 1")
            until(lambda: is_free(tmp_path, "fake-0"), 5, "a device that a request for two holds")
        finally:
            other.release()

    with meanwhile(lambda: said, look):
        run, env = take(lease(tmp_path, 2), tell=said.append)
    assert env == {device_locks.VARIABLE: "fake-0,fake-1"}
    assert not any(is_free(tmp_path, key) for key in BOTH)
    run.release()
    assert all(is_free(tmp_path, key) for key in BOTH)


def test_devices_of_a_kernel_are_shared_by_its_runs(take, tmp_path):
    """Ranks that stay alive between cells and a launch beside them share, as without leases."""
    take(lease(tmp_path, 2))
    second, env = take(lease(tmp_path, 1))
    assert env[device_locks.VARIABLE] == "fake-0"
    second.release()
    assert not is_free(tmp_path, "fake-0"), "the first run still has it"


# The folder


def test_folder_lets_everybody_write_and_nobody_remove(tmp_path):
    before = os.umask(0o077)
    try:
        assert device_locks.why_not(tmp_path / "locks") is None
    finally:
        os.umask(before)
    assert (tmp_path / "locks").stat().st_mode & 0o7777 == 0o1777  # with the sticky bit
    assert (tmp_path / "locks" / "preflight.lock").stat().st_mode & 0o777 == 0o666


@pytest.mark.parametrize("trap", ["folder", "file", "link", "open"])
def test_folder_that_is_unsafe_is_refused_and_no_link_followed(take, tmp_path, trap):
    folder, precious = tmp_path / "locks", tmp_path / "precious"
    precious.write_text("keep me")
    if trap == "folder":
        folder.symlink_to(tmp_path)
    elif trap == "file":
        folder.write_text("")
    else:
        folder.mkdir()
        folder.chmod(0o777 if trap == "open" else 0o755)
        (folder / "fake-0.lock").symlink_to(precious)
    with pytest.raises(device_locks.LeaseError, match="can't be used: .* BOOTCAMP_LEASES=off"):
        take(lease(folder, 2))
    assert precious.read_text() == "keep me"


def test_folder_can_be_elsewhere_and_locks_off(monkeypatch, tmp_path):
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


@pytest.fixture
def see_gpus(monkeypatch, tmp_path):
    """see_gpus(uuid, ...): what nvidia-smi lists here, and how many torch sees."""

    def play(*uuids):
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\n" + "".join(f"echo a GPU, {uuid}\n" for uuid in uuids))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        monkeypatch.setattr(launch, "gpu_count", lambda: len(uuids))
        machine.all_gpus.cache_clear()

    yield play
    machine.all_gpus.cache_clear()


@pytest.mark.parametrize(
    ("visible", "count", "expected"),
    [
        (None, 3, ["GPU-aaa", "GPU-bbb", "GPU-ccc"]),
        ("2, 0", 2, ["GPU-ccc", "GPU-aaa"]),
        ("GPU-b", 1, ["GPU-bbb"]),
        ("1", 8, ["GPU-bbb"]),
        ("1,7,0", 1, ["GPU-bbb"]),
        ("MIG-1,MIG-2", 2, ["MIG-1", "MIG-2"]),
        ("", 0, []),
    ],
)
def test_gpus_are_those_that_cuda_sees_by_uuid(visible, count, expected, monkeypatch, see_gpus):
    see_gpus("GPU-aaa", "GPU-bbb", "GPU-ccc")
    assert list(device_locks.list_gpus(visible, count).values()) == expected
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert len(machine.gpu_names()) == (0 if "MIG" in str(visible) else len(expected))


def test_gpus_are_one_for_each_rank_or_all_for_who_takes_several(monkeypatch, see_gpus):
    monkeypatch.delenv("BOOTCAMP_FIRST_CORE", raising=False)
    see_gpus(*(f"GPU-{k}" for k in range(4)))
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


def test_gpus_beyond_those_that_exist_are_refused_unless_ranks_share(see_gpus, monkeypatch):
    see_gpus("GPU-aaa", "GPU-bbb")
    with pytest.raises(RunRefused, match="ranks=3 .* here are 2: .* ranks=2 or fewer"):
        wishes("ddp", 3, device="cuda")
    call = launch.Call("ddp", 3, device="cuda")
    call.env = {"BOOTCAMP_SHARE_GPUS": "1"}
    assert call.choose_leases()["lease"]["count"] == 2


def test_gpu_ranks_see_the_leased_gpus_only(monkeypatch, tmp_path, see_gpus):
    monkeypatch.setenv("BOOTCAMP_LEASES", str(tmp_path))
    see_gpus("GPU-aaa", "GPU-bbb")
    script = tmp_path / "sees.py"
    script.write_text("import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'])\n")
    has = holds(tmp_path, "GPU-aaa")
    run = launch.launch(script, 1, device="cuda", quiet=True)
    assert run.output().strip() == "GPU-bbb"
    has.release()


# Cores


def test_cores_are_those_that_no_other_run_has(take, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: [0, 2, 4, 6])

    def place(ranks, each=1):
        run, env = take({"cores": {"folder": str(tmp_path), "each": each}}, ranks)
        return run, env.get("BOOTCAMP_FIRST_CORE", "0")

    three = [place(2), place(2), place(1)]
    assert [place for _, place in three] == ["0", "2", "0"]
    first, second, third = (run for run, _ in three)
    for run in (first, second, third):
        run.look_for_sharing()
    assert (first.shared, second.shared, third.shared) == (True, False, True)
    first.release()
    third.look_for_sharing()
    assert not is_free(tmp_path, "core-0"), "who shares takes a core that has become free"
    second.release()
    wide, where = place(1, each=2)
    assert (where, wide.shared) == ("1", False)
    assert place(9)[0].shared


def test_cores_of_a_rank_are_free_ones_or_the_run_says_that_it_shared(
    monkeypatch, tmp_path, capsys
):
    cores = machine.cores()
    monkeypatch.delenv("BOOTCAMP_FIRST_CORE", raising=False)
    monkeypatch.setenv("BOOTCAMP_LEASES", str(tmp_path))
    say = "import os\nprint(*os.sched_getaffinity(0))\nrun.finish()"
    script = variant("cpu", "leased_core", {"run.finish()": say})
    with contextlib.ExitStack() as others:
        for core in cores[:-1]:
            others.enter_context(holds(tmp_path, f"core-{core}"))
        run = launch.launch(script, 1, steps=1, model="mlp", quiet=True)
        assert (run.output().strip(), run.shared_cores) == (str(cores[-1]), False)
        others.enter_context(holds(tmp_path, f"core-{cores[-1]}"))
        run = launch.launch(script, 1, steps=1, model="mlp")
    assert run.shared_cores
    assert "It shared its cores with another run: alone it would" in capsys.readouterr().out


# Waiting, and giving up


@pytest.fixture
def leased(tmp_path, monkeypatch):
    """The folder of the locks of two devices, which each launch here takes, and gives up."""
    launch.connect()  # without ranks a test is over here, before it locks or awaits anything
    wish = lease(tmp_path / "locks", 2)
    monkeypatch.setattr(launch.Call, "choose_leases", lambda call: wish)
    yield tmp_path / "locks"
    assert all(is_free(tmp_path / "locks", key) for key in BOTH)


def test_ranks_of_a_killed_supervisor_are_gone_before_the_next_has_their_devices(
    leased, take, tmp_path
):
    folder, said = tmp_path / "run", []

    def kill_and_take():
        ranks = faults.pids_of_ranks(folder)
        with meanwhile(lambda: said, launch.connect().process.kill):
            run, _ = take(lease(leased, 2), tell=said.append)
        run.release()
        assert not any(map(process_tree.is_alive, ranks)), "two runs had the device at once"

    with (
        meanwhile(lambda: trains(folder), kill_and_take),
        pytest.raises(launch.LaunchError, match="supervisor"),
    ):
        launch.launch("ddp", 2, options=Options(run_dir=folder), **faults.LONG)


def heard_to_wait(capsys):
    """A condition: a cell here has been told that it waits."""
    waits = "Waiting for 2 devices. Other launches have GPU 0. Interrupt the cell to stop waiting."
    heard = []
    return lambda: heard.append(capsys.readouterr().out) or waits in "".join(heard)


def test_cell_hears_that_it_waits_and_runs_then(leased, capsys):
    other = holds(leased, "fake-0")
    with meanwhile(heard_to_wait(capsys), other.release):
        assert launch.launch("ddp", 2, **faults.SHORT).status == "ok"


def test_cell_that_is_interrupted_while_it_waits_leaves_nothing(leased, capsys, tmp_path):
    """The stop button: the kernel lives on, and waits no more."""
    with (
        holds(leased, "fake-0"),
        meanwhile(heard_to_wait(capsys), lambda: os.kill(os.getpid(), signal.SIGINT)),
        pytest.raises(KeyboardInterrupt),
    ):
        launch.launch("ddp", 2, options=Options(run_dir=tmp_path / "run"), **faults.SHORT)
    assert summary.read(tmp_path / "run")["status"] == "interrupted"
    assert not list((tmp_path / "run" / "ranks").iterdir()), "a rank has begun"


def test_failed_run_gives_its_devices_up(leased):
    refused = {**faults.SHORT, "size": "huge"}
    assert launch.launch("ddp", 2, raises=False, **refused).status == "failed"
    assert all(is_free(leased, key) for key in BOTH)
