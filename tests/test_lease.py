"""Leases: two kernels queue for devices, whatever ends them. Devices are fake, locks are real."""

import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import faults
import psutil
import pytest

from bootcamp import machine
from bootcamp.launcher import device_locks, devices, follow, launch, process_tree
from bootcamp.launcher.launch import Options, RunRefused
from bootcamp.records import heartbeat, summary
from bootcamp.scripts import family
from bootcamp.scripts.variants import variant

SECONDS = 60  # for what is awaited: not measured, only bounded
TWO = devices.fake_devices(2)


class Kernel:
    """Requests of one kernel: what it has itself does not keep it waiting."""

    def __init__(self, folder, name):
        self.folder, self.name, self.granted = folder, name, []

    def wish(self, count, devices=TWO):
        return device_locks.Request(
            self.folder, devices, count, user=self.name, kernel=4711, owner=self.name
        )

    def take(self, count, devices=TWO):
        request = self.wish(count, devices)
        lease = request.ask()
        self.granted += [lease.claim] if lease else []
        return lease if lease else request.withdraw()


@pytest.fixture
def kernels(tmp_path):
    return [Kernel(tmp_path / "locks", name) for name in ("ann", "bob", "cid", "dan")]


def keys(granted):
    return [device["key"] for device in granted.devices]


def held(folder):
    return {key for claim in device_locks._claims(folder) for key in claim.has}


# One decision


def test_all_or_nothing(kernels):
    ann, bob = kernels[:2]
    one = ann.take(1)
    assert keys(one) == ["fake-0"]
    wish = bob.wish(2)
    assert wish.ask() is None
    assert held(ann.folder) == {"fake-0"}, "a request for two must not hold one"
    one.claim.release()
    assert keys(wish.ask()) == ["fake-0", "fake-1"]


def test_one_of_two_does_not_wait_while_one_is_free(kernels):
    ann, bob, cid, _ = kernels
    has = [ann.take(1), bob.take(1), cid.take(1)]
    assert [keys(lease) for lease in has[:2]] == [["fake-0"], ["fake-1"]]
    assert has[2] is None


def test_in_order_of_arrival_and_nobody_passes(kernels):
    """A wish for one is not granted past an earlier wish for two, which would wait for ever."""
    ann, bob, cid, dan = kernels
    has = ann.take(1)
    two, one, last = bob.wish(2), cid.wish(1), dan.wish(1)
    assert [two.ask(), one.ask(), last.ask()] == [None] * 3
    assert one.ask() is None, "one device is free, but bob was first"
    has.claim.release()
    assert [last.ask(), one.ask()] == [None] * 2
    has = two.ask()
    assert keys(has) == ["fake-0", "fake-1"]
    has.claim.release()
    assert last.ask() is None
    (first, second) = one.ask(), last.ask()
    assert [keys(first), keys(second)] == [["fake-0"], ["fake-1"]]


def test_a_wish_that_is_withdrawn_does_not_keep_others_waiting(kernels):
    ann, bob, cid, _ = kernels
    has = ann.take(1)
    two, one = bob.wish(2), cid.wish(1)
    assert [two.ask(), one.ask()] == [None] * 2
    two.withdraw()
    assert keys(one.ask()) == ["fake-1"]
    has.claim.release()


def test_wishes_for_other_devices_do_not_wait_for_each_other(kernels):
    ann, bob, cid, _ = kernels
    has, waits = ann.take(1, TWO[:1]), bob.wish(1, TWO[:1])
    assert waits.ask() is None
    assert keys(cid.take(1, TWO[1:])) == ["fake-1"]
    has.claim.release()


def test_a_kernel_does_not_wait_for_itself(kernels):
    """Ranks that stay alive between cells and a launch beside them share, as without leases."""
    ann, bob = kernels[:2]
    first, second = ann.take(2), ann.take(1)
    assert keys(second) == ["fake-0"]
    first.claim.release()
    assert keys(bob.take(1)) == ["fake-1"], "fake-0 is still used by the second"
    second.claim.release()
    assert held(ann.folder) == {"fake-1"}


def test_the_text_says_who_and_since_when(kernels):
    ann, bob, cid, _ = kernels
    has = ann.take(2)
    waiting, third = bob.wish(2), cid.wish(1)
    assert [waiting.ask(), third.ask()] == [None] * 2
    clock = re.compile(r"since \d\d:\d\d:\d\d")
    for text, ahead in ((waiting.why, False), (third.why, True)):
        assert "fake device 0, fake device 1: held by ann, process 4711" in text
        assert clock.search(text)
        assert text.endswith("Interrupt the cell to stop waiting.")
        assert ("1 launch is ahead of this one" in text) is ahead
    has.claim.release()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"user": 3, "has": 7}', "\0" * 9999])
def test_a_text_of_somebody_else_is_not_trusted(kernels, text):
    ann, bob = kernels[:2]
    ann.user = "\x1b[2Jann"
    has = ann.take(1)
    (ann.folder / "of-another.json").write_text(text)
    wish = bob.wish(2)
    assert wish.ask() is None
    assert "held by ann" in wish.why
    has.claim.release()
    assert keys(wish.ask()) == ["fake-0", "fake-1"]


def test_letters_that_move_the_cursor_are_not_shown(kernels):
    ann, bob = kernels[:2]
    ann.name = "\x1b[2Jann"
    has, wish = ann.take(2), bob.wish(1)
    assert wish.ask() is None
    assert "held by [2Jann, process 4711" in wish.why
    has.claim.release()


# What is left behind


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def left_by_a_dead_run(folder, processes):
    """The state after kill -9 of a supervisor: no lock is held, and a claim names its ranks."""
    with device_locks._deciding(folder):
        claim = device_locks.Claim(folder, "ann", 1, "dead", has=["fake-0"], processes=processes)
        claim.enter([])
        claim.lock.release()


def test_a_stale_claim_does_not_block(kernels):
    ann = kernels[0]
    left_by_a_dead_run(ann.folder, {str(2**22 + 1): 1.0})
    assert keys(ann.take(2)) == ["fake-0", "fake-1"]


def test_a_device_is_not_given_away_before_its_ranks_are_gone(kernels, sleeper):
    ann = kernels[0]
    left_by_a_dead_run(ann.folder, {str(sleeper.pid): process_tree.started(sleeper.pid)})
    wish = ann.wish(2)
    assert wish.ask() is None
    assert f"ann's run has died, its process {sleeper.pid} is still there" in wish.why
    sleeper.kill()
    until(lambda: psutil.Process(sleeper.pid).status() == psutil.STATUS_ZOMBIE)
    assert keys(wish.ask()) == ["fake-0", "fake-1"], "a zombie without threads has no device"


def test_another_process_of_that_number_is_no_rank(kernels, sleeper):
    ann = kernels[0]
    left_by_a_dead_run(ann.folder, {str(sleeper.pid): process_tree.started(sleeper.pid) - 60})
    assert keys(ann.take(1)) == ["fake-0"]


def test_a_release_leaves_a_claim_only_for_processes_that_are_still_there(kernels, sleeper):
    ann, bob = kernels[:2]
    left, gone = ann.take(1), bob.take(1)
    left.claim.note([sleeper.pid])
    for lease in (left, gone):
        lease.claim.release()
    assert held(ann.folder) == {"fake-0"}
    assert {path.suffix for path in ann.folder.iterdir()} == {".json", ".lock"}
    sleeper.kill()
    sleeper.wait()
    assert held(ann.folder) == set()
    assert [path.name for path in ann.folder.iterdir()] == ["order.lock"]


# The folder


def test_everybody_may_write_and_nobody_remove(kernels):
    ann = kernels[0]
    before = os.umask(0o077)
    try:
        has = ann.take(1)
    finally:
        os.umask(before)
    assert ann.folder.stat().st_mode & 0o7777 == 0o1777
    for name in ("order.lock", f"{has.claim.name}.lock"):
        assert (ann.folder / name).stat().st_mode & 0o777 == 0o666
    assert (ann.folder / f"{has.claim.name}.json").stat().st_mode & 0o444 == 0o444


@pytest.mark.parametrize("trap", ["folder", "file", "link", "claim", "pipe"])
def test_a_link_laid_by_another_user_is_not_followed(kernels, tmp_path, trap):
    ann = kernels[0]
    precious = tmp_path / "precious"
    if trap == "folder":
        precious.mkdir()
        ann.folder.symlink_to(precious)
    elif trap == "file":
        ann.folder.write_text("")
    else:
        precious.write_text("keep me")
        ann.folder.mkdir()
        name = {"link": "order.lock", "claim": "x.json", "pipe": "x.json"}[trap]
        os.mkfifo(ann.folder / name) if trap == "pipe" else os.symlink(precious, ann.folder / name)
    if trap in ("claim", "pipe"):
        assert keys(ann.take(2)) == ["fake-0", "fake-1"]
    else:
        with pytest.raises(device_locks.LeaseError, match="can't be used: .* BOOTCAMP_LEASES=off"):
            ann.take(2)
    if precious.is_file():
        assert precious.read_text() == "keep me"
    elif precious.is_dir():
        assert list(precious.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user to try")
def test_two_users_share_the_folder(request):
    """In turn: one claims beside the other's files, and can neither remove nor free them."""
    place = Path(tempfile.mkdtemp(dir="/tmp"))  # the parents of tmp_path are closed to others
    request.addfinalizer(lambda: shutil.rmtree(place))
    place.chmod(0o755)
    ann, bob = Kernel(place / "locks", "ann"), Kernel(place / "locks", "bob")
    has = ann.take(1)
    code = (
        "import os, sys\n"
        "from bootcamp.launcher import device_locks, devices\n"
        "os.setuid(65534)\n"
        "request = device_locks.Request(sys.argv[1], devices.fake_devices(2), 1)\n"
        "lease = request.ask()\n"
        "print(*(device['key'] for device in lease.devices), flush=True)\n"
        "try: os.unlink(sys.argv[1] + '/order.lock')\n"
        "except PermissionError: print('kept', flush=True)\n"
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(ann.folder)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as other:
        said = [other.stdout.readline().strip() for _ in range(2)]
        wish = bob.wish(2)
        assert wish.ask() is None
        other.stdin.close()
    assert said == ["fake-1", "kept"]
    assert f"fake device 1: held by {pwd.getpwuid(65534).pw_name}" in wish.why
    has.claim.release()
    assert keys(wish.ask()) == ["fake-0", "fake-1"]


def test_leases_can_be_off_and_elsewhere(monkeypatch, tmp_path):
    monkeypatch.setenv("BOOTCAMP_LEASES", str(tmp_path))
    assert device_locks.folder() == tmp_path
    monkeypatch.setenv("BOOTCAMP_LEASES", "off")
    assert device_locks.folder() is None
    monkeypatch.setenv("BOOTCAMP_FAKE_DEVICES", "2")
    assert wishes("ddp", 2, device="cpu") == {}
    monkeypatch.delenv("BOOTCAMP_LEASES")
    monkeypatch.setattr(device_locks.tempfile, "tempdir", str(tmp_path))
    assert device_locks.folder() == tmp_path / "bootcamp-leases"


# Which devices a launch wishes for


def wishes(script, ranks, device=None, cores_per_rank=1):
    known = family.describe(script)
    kind = "cpu" if known.cpu_only else device
    return devices.wishes(known, kind, ranks, cores_per_rank, dict(os.environ))


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
        ("MIG-1,MIG-2", 2, ["gpu-MIG-1", "gpu-MIG-2"]),
        ("", 0, []),
    ):
        assert [gpu["key"] for gpu in devices.gpus(visible, count)] == expected
    assert devices.gpus("2", 1) == [{"key": "GPU-ccc", "label": "GPU 2", "value": "GPU-ccc"}]
    assert devices.gpus("MIG-1", 1)[0]["value"] == "MIG-1"
    see_gpus(monkeypatch)
    assert [gpu["value"] for gpu in devices.gpus(None, 2)] == ["0", "1"]


def test_a_gpu_for_each_rank_or_all_for_who_takes_several(monkeypatch):
    monkeypatch.delenv("BOOTCAMP_FIRST_CORE", raising=False)
    monkeypatch.setattr(devices, "gpu_count", lambda: 4)
    see_gpus(monkeypatch, *(f"GPU-{k}" for k in range(4)))
    counts = {
        (script, device): wishes(script, 2, device=device)["lease"]["request"]["count"]
        for script, device in [("ddp", "cuda"), ("mp", None), ("ddp_mp", "cuda"), ("dp", None)]
    }
    assert counts == {("ddp", "cuda"): 2, ("mp", None): 4, ("ddp_mp", "cuda"): 4, ("dp", None): 4}
    changed = variant("ddp", "leased", {"run.finish()": "run.finish()\nprint(1)"})
    assert wishes(changed, 2)["lease"]["request"]["count"] == 2
    for script, flags in (("ddp", {"device": "cpu"}), ("cpu", {}), ("dp_by_hand", {})):
        assert list(wishes(script, 2, **flags)) == ["cores"]
    assert wishes("ddp", 2, device="cpu", cores_per_rank=3)["cores"]["each"] == 3
    assert wishes("gpu", 1, device="meta") == {}
    monkeypatch.setenv("BOOTCAMP_FIRST_CORE", "0")
    assert wishes("ddp", 2, device="cpu") == {}


def test_more_than_exist_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setenv("BOOTCAMP_FAKE_DEVICES", "2")
    with pytest.raises(RunRefused, match="ranks=3 .* here are 2: .* ranks=2 or fewer") as refusal:
        launch.launch("ddp", 3, device="cpu", quiet=True)
    assert "\n" not in str(refusal.value)


# Cores


def test_cores_that_no_other_run_has(tmp_path):
    four = [0, 2, 4, 6]
    first = device_locks.take_cores(tmp_path, four, ranks=2)
    second = device_locks.take_cores(tmp_path, four, ranks=2)
    assert [(first.place, first.cores), (second.place, second.cores)] == [(0, [0, 2]), (2, [4, 6])]
    third = device_locks.take_cores(tmp_path, four, ranks=1)
    assert (third.place, third.cores) == (0, [0]), "none is free: they share, and do not wait"
    for claim in (first, third):
        claim.release()
    wide = device_locks.take_cores(tmp_path, four, ranks=1, each=2)
    assert (wide.place, wide.cores) == (0, [0, 2])
    second.release()
    other = device_locks.take_cores(tmp_path, four, ranks=1, each=2)
    assert (other.place, other.cores) == (1, [4, 6])
    wide.release()
    assert device_locks.take_cores(tmp_path, four, ranks=9).place == 0


def test_a_claim_on_cores_knows_with_whom_it_shared_them_at_any_time(tmp_path):
    first = device_locks.take_cores(tmp_path, [0, 1], ranks=2)
    alone = device_locks.take_cores(tmp_path, [2], ranks=1)
    assert not first.shared_with
    second = device_locks.take_cores(tmp_path, [0, 1], ranks=1)
    assert second.shared_with == {first.name}
    first.look_for_sharing()  # as its supervisor does now and then
    second.release()
    for claim in (first, alone):
        claim.release()
    assert (len(first.shared_with), len(alone.shared_with)) == (1, 0)


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
    other = device_locks.take_cores(tmp_path, cores, ranks=1)
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
        assert run.summary["runs_on_shared_cores"] == 1
        assert run.status == "ok"
    assert "It shared its cores with another run: alone it would" in capsys.readouterr().out


# Two kernels

KERNEL = """
import os
import sys
from pathlib import Path
from bootcamp.launcher import connection, devices, follow, progress
from bootcamp.records import summary
from bootcamp.scripts import family
folder, ranks, code = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
(folder / "ranks").mkdir(parents=True)
summary.reserve(folder)
request = {"run": str(folder), "start": "command", "ranks": [], "port": 0, "env": {},
           "command": [sys.executable, "-S", "-c", code, str(folder)], "records": False,
           "hang_seconds": 600, "busy_seconds": 600}
request |= devices.wishes(family.describe("ddp"), "cpu", ranks, 1, dict(os.environ))
request.pop("cores", None)
print("supervisor", connection.connect().process.pid, flush=True)
follow.follow(request, folder, progress.silent(), True)
print("ended", flush=True)
"""
# what runs on the devices: says that it has begun, what it has got, and ends when it is told to
WORK = """
import os, sys, time
folder = sys.argv[1]
with open(folder + "/began.part", "w") as file:
    print(os.getpid(), os.environ["BOOTCAMP_LEASED"], file=file)
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
        for name, text in NO_TORCH.items():
            path = folder.parent / "no torch" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        searched = [str(folder.parent / "no torch"), os.environ.get("PYTHONPATH", "")]
        self.process = subprocess.Popen(
            [sys.executable, "-c", KERNEL, str(folder), str(ranks), WORK],
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


def locks_of(pid):
    """The lock files that a process has open."""
    found = []
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.append(os.readlink(handle))
    return [name for name in found if "/locks/" in name]


def until(condition):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {SECONDS} s"
        time.sleep(0.02)


@pytest.fixture
def attendees(tmp_path, monkeypatch):
    """attendees(ranks) starts one more; at the end nothing of any of them is left."""
    monkeypatch.setenv("BOOTCAMP_LEASES", str(tmp_path / "locks"))
    monkeypatch.setenv("BOOTCAMP_FAKE_DEVICES", "2")
    made = []

    def start(ranks):
        made.append(Attendee(tmp_path / f"run-{len(made)}", ranks))
        return made[-1]

    yield start
    for each in made:
        each.clean_up()
    assert not device_locks._claims(tmp_path / "locks")


@pytest.mark.slow
def test_the_second_waits_and_starts_when_the_first_ends(attendees):
    first = attendees(2)
    worker, devices = first.began()
    assert devices == ["fake-0", "fake-1"]
    assert len(locks_of(first.supervisor)) == 1
    assert locks_of(worker) == [], "a process that a rank leaves behind must not keep a device"
    second = attendees(2)
    said = second.waits()
    assert f"held by {device_locks.user()}, process {first.process.pid}, since" in said
    assert not (second.folder / "began").exists()
    first.end()
    assert second.began()[1] == ["fake-0", "fake-1"]
    second.end()
    locks = second.folder.parent / "locks"
    assert [path.name for path in locks.iterdir()] == ["order.lock"]


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
    assert not process_tree.alive(worker), "two runs had the device at once"
    second.end()


@pytest.mark.slow
def test_three_wait_and_come_in_order(attendees):
    first = attendees(2)
    first.began()
    waiting = []
    for ahead in range(3):
        waiting.append(attendees(1 + ahead % 2))
        said = waiting[-1].waits()
        assert (f"{ahead} launch" in said) is (ahead > 0)
    for late in waiting:
        assert not any((each.folder / "began").exists() for each in waiting)
        first.end()
        late.began()
        first, waiting = late, waiting[1:]
    first.end()


def test_an_interrupt_while_waiting_leaves_nothing(attendees, monkeypatch, tmp_path):
    """The stop button on a cell that waits: the kernel lives on, and is out of the queue."""
    first = attendees(2)
    first.began()
    stop = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT)  # noqa: E731
    monkeypatch.setattr(follow, "print", stop, raising=False)
    with pytest.raises(KeyboardInterrupt):
        launch.launch("ddp", 2, options=Options(run_dir=tmp_path / "run"), **faults.SHORT)
    assert summary.read(tmp_path / "run")["status"] == "interrupted"
    assert not list((tmp_path / "run" / "ranks").iterdir()), "a rank has begun"
    assert locks_of(launch.connect().process.pid) == []
    second = attendees(2)
    assert "ahead" not in second.waits(), "the interrupted one is still in the queue"
    first.end()
    second.began()


def test_a_waiting_cell_whose_kernel_is_killed_leaves_the_queue(attendees):
    first = attendees(2)
    first.began()
    second = attendees(2)
    second.waits()
    second.process.kill()
    faults._gone(second.process.pid, SECONDS)
    third = attendees(2)
    assert "ahead" not in third.waits()
    first.end()
    third.began()
    assert not (second.folder / "began").exists()


def test_warm_ranks_are_gone_before_the_next_has_their_devices(attendees, monkeypatch, tmp_path):
    """kill -9 of the supervisor of a real training, and what the reader of the next cell sees."""
    folder, killed = tmp_path / "training", []

    def kill():
        pids = [heartbeat.read(folder / "ranks" / f"{rank}.beat")[0] for rank in range(2)]
        assert [locks_of(pid) for pid in pids] == [[], []]
        (claim,) = (each for each in device_locks._claims(tmp_path / "locks") if each.has)
        assert sorted(map(int, claim.processes)) == sorted(pids)
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
    assert not any(map(process_tree.alive, pids))
    second.end()


def test_gpu_ranks_see_the_leased_gpus_only(monkeypatch, tmp_path):
    monkeypatch.setenv("BOOTCAMP_LEASES", str(tmp_path))
    for module in (launch, devices):
        monkeypatch.setattr(module, "gpu_count", lambda: 2)
    see_gpus(monkeypatch, "GPU-aaa", "GPU-bbb")
    script = tmp_path / "sees.py"
    script.write_text("import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'])\n")
    other = device_locks.Request(tmp_path, devices.gpus("0", 1), 1)
    has = other.ask()
    run = launch.launch(script, 1, device="cuda", quiet=True)
    assert run.output().strip() == "GPU-bbb"
    has.claim.release()


def test_the_reader_of_a_cell_hears_of_it(attendees, monkeypatch):
    """Through launch itself, quiet or not: a message, then the run."""
    first, heard = attendees(2), []
    first.began()

    def hear(text, **_):
        heard.append(text)
        if len(heard) == 1:
            first.end()

    monkeypatch.setattr(follow, "print", hear, raising=False)
    assert launch.launch("ddp", 2, **faults.SHORT).status == "ok"
    assert locks_of(launch.connect().process.pid) == [], "the run has ended, its lease has not"
    assert "Waiting for 2 devices. fake device 0, fake device 1: held by" in heard[0]
