"""Leases: two kernels queue for devices, whatever ends them. Devices are fake, locks are real."""

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import faults
import pytest

from bootcamp import machine
from bootcamp.launcher import device_locks, devices, follow, launch, process_tree
from bootcamp.launcher.launch import Options, RunRefused
from bootcamp.records import heartbeat, summary
from bootcamp.scripts import family
from bootcamp.scripts.variants import variant

SECONDS = 60  # for what is awaited: not measured, only bounded
TWO = device_locks.fake_devices(2)


class Kernel:
    """Requests of one kernel: what it has itself does not keep it waiting."""

    def __init__(self, folder, monkeypatch, name):
        self.folder, self.monkeypatch, self.name, self.has = folder, monkeypatch, name, {}

    def wish(self, count, devices=TWO):
        return device_locks.Request(self.folder, devices, count, user=self.name, kernel=4711)

    def ask(self, request):
        self.monkeypatch.setattr(device_locks, "_held", self.has)
        return request.ask()

    def take(self, count, devices=TWO):
        return self.ask(self.wish(count, devices))

    def release(self, granted):
        self.monkeypatch.setattr(device_locks, "_held", self.has)
        granted.release()


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    made = [Kernel(tmp_path / "locks", monkeypatch, name) for name in ("ann", "bob", "cid", "dan")]
    yield made
    for held in (held for kernel in made for held in kernel.has.values()):
        os.close(held.handle)


def keys(granted):
    return [device["key"] for device in granted.devices]


def is_free(folder, key):
    with open(folder / key) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


# One decision


def test_all_or_nothing(kernels):
    ann, bob = kernels[:2]
    one = ann.take(1)
    assert keys(one) == ["fake-0"]
    wish = bob.wish(2)
    assert bob.ask(wish) is None
    assert is_free(ann.folder, "fake-1"), "who waits for two must not hold one"
    ann.release(one)
    assert keys(bob.ask(wish)) == ["fake-0", "fake-1"]


def test_one_of_two_does_not_wait_while_one_is_free(kernels):
    ann, bob, cid, _ = kernels
    assert keys(ann.take(1)) == ["fake-0"]
    assert keys(bob.take(1)) == ["fake-1"]
    assert cid.take(1) is None


def test_in_order_of_arrival_and_nobody_passes(kernels):
    """A wish for one is not granted past an earlier wish for two, which would wait for ever."""
    ann, bob, cid, dan = kernels
    has = ann.take(1)
    two, one, last = bob.wish(2), cid.wish(1), dan.wish(1)
    assert [bob.ask(two), cid.ask(one), dan.ask(last)] == [None] * 3
    assert cid.ask(one) is None, "one device is free, but bob was first"
    ann.release(has)
    assert [dan.ask(last), cid.ask(one)] == [None] * 2
    has = bob.ask(two)
    assert keys(has) == ["fake-0", "fake-1"]
    two.withdraw()
    bob.release(has)
    assert dan.ask(last) is None
    assert keys(cid.ask(one)) == ["fake-0"]
    one.withdraw()
    assert keys(dan.ask(last)) == ["fake-1"]


def test_who_gives_up_does_not_keep_others_waiting(kernels):
    ann, bob, cid, _ = kernels
    ann.take(1)
    two, one = bob.wish(2), cid.wish(1)
    assert [bob.ask(two), cid.ask(one)] == [None] * 2
    two.withdraw()
    assert keys(cid.ask(one)) == ["fake-1"]


def test_wishes_for_other_devices_do_not_wait_for_each_other(kernels):
    ann, bob, cid, _ = kernels
    ann.take(1, TWO[:1])
    assert bob.take(1, TWO[:1]) is None
    assert keys(cid.take(1, TWO[1:])) == ["fake-1"]


def test_a_kernel_does_not_wait_for_itself(kernels):
    """Ranks that stay alive between cells and a launch beside them share, as without leases."""
    ann, bob = kernels[:2]
    first, second = ann.take(2), ann.take(1)
    assert keys(second) == ["fake-0"]
    ann.release(first)
    assert keys(bob.take(1)) == ["fake-1"], "fake-0 is still used by the second"
    ann.release(second)
    assert is_free(ann.folder, "fake-0")


def test_the_text_says_who_and_since_when(kernels):
    ann, bob, cid, _ = kernels
    ann.take(2)
    waiting, third = bob.wish(2), cid.wish(1)
    bob.ask(waiting)
    cid.ask(third)
    clock = re.compile(r"since \d\d:\d\d:\d\d")
    for text, ahead in ((waiting.why, False), (third.why, True)):
        assert "fake device 0, fake device 1: held by ann, process 4711" in text
        assert clock.search(text)
        assert text.endswith("Interrupt the cell to stop waiting.")
        assert ("1 launch is ahead of this one" in text) is ahead


def test_a_text_of_somebody_else_is_not_trusted(kernels):
    ann, bob = kernels[:2]
    ann.take(2)
    wish = bob.wish(1)
    for text in ("", "{", "[]", '{"user": 3, "kernel": "\\u001b[2J", "since": 1e99}', "\0" * 9999):
        (ann.folder / "fake-0").write_text(text)
        assert bob.ask(wish) is None
        assert "\x1b" not in wish.why
        assert "Waiting for 1 device" in wish.why


# What is left behind


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def left_by_a_dead_run(folder, pid, started):
    """The state after kill -9 of a supervisor: no lock, and a text that names its ranks."""
    folder.mkdir(exist_ok=True)
    said = {"user": "ann", "kernel": 1, "since": 0, "processes": {str(pid): started}}
    (folder / "fake-0").write_text(json.dumps(said))


def test_a_stale_file_does_not_block(kernels):
    ann = kernels[0]
    left_by_a_dead_run(ann.folder, pid=2**22 + 1, started=1)
    (ann.folder / "place-0").write_text('{"number": 1, "devices": ["fake-0", "fake-1"]}')
    assert keys(ann.take(2)) == ["fake-0", "fake-1"]


def test_a_device_is_not_given_away_before_its_ranks_are_gone(kernels, sleeper):
    ann = kernels[0]
    left_by_a_dead_run(ann.folder, sleeper.pid, process_tree.read(sleeper.pid).started)
    wish = ann.wish(2)
    assert ann.ask(wish) is None
    assert f"ann's run has died, its process {sleeper.pid} is still there" in wish.why
    sleeper.kill()
    deadline = time.monotonic() + SECONDS
    while process_tree.read(sleeper.pid).state != "Z":
        assert time.monotonic() < deadline
    assert keys(ann.ask(wish)) == ["fake-0", "fake-1"], "a zombie without threads has no device"


def test_another_process_of_that_number_is_no_rank(kernels, sleeper):
    ann = kernels[0]
    left_by_a_dead_run(ann.folder, sleeper.pid, process_tree.read(sleeper.pid).started - 1)
    assert keys(ann.take(1)) == ["fake-0"]


def test_files_are_empty_after_use(kernels):
    ann, bob = kernels[:2]
    has = ann.take(2)
    has.note([os.getpid()])
    assert str(os.getpid()) in (ann.folder / "fake-1").read_text()
    wish = bob.wish(1)
    bob.ask(wish)
    wish.withdraw()
    ann.has["fake-0"].said["processes"].clear()
    ann.release(has)
    sizes = {path.name: path.stat().st_size for path in ann.folder.iterdir()}
    assert sizes.pop("fake-1") > 0, "a process that was named is still there"
    assert set(sizes.values()) == {0}
    assert set(sizes) == {"fake-0", "order", "place-0"}


# The folder


def test_everybody_may_write_and_nobody_remove(kernels):
    ann = kernels[0]
    before = os.umask(0o077)
    try:
        ann.take(1)
    finally:
        os.umask(before)
    assert ann.folder.stat().st_mode & 0o7777 == 0o1777
    assert (ann.folder / "fake-0").stat().st_mode & 0o777 == 0o666


@pytest.mark.parametrize("trap", ["folder", "link", "hard link", "pipe", "file"])
def test_a_link_laid_by_another_user_is_refused(kernels, tmp_path, trap):
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
        make = {"link": os.symlink, "hard link": os.link, "pipe": lambda _, path: os.mkfifo(path)}
        make[trap](precious, ann.folder / "fake-0")
    devices = TWO[::-1] if ann.folder.is_dir() and not ann.folder.is_symlink() else TWO
    with pytest.raises(device_locks.LeaseError, match="can't be used: .* BOOTCAMP_LEASES=off"):
        ann.take(2, devices)
    if devices is not TWO:
        assert is_free(ann.folder, "fake-1"), "it was locked before the trap was met"
    if precious.is_file():
        assert precious.read_text() == "keep me"
    elif precious.is_dir():
        assert list(precious.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user to try")
def test_two_users_share_the_folder(kernels, tmp_path):
    """In turn: one makes the files, the other locks them and says so, and cannot remove them."""
    ann = kernels[0]
    tmp_path.chmod(0o755)
    ann.release(ann.take(2))
    code = (
        "import os, sys\n"
        "from bootcamp.launcher import device_locks\n"
        "os.chdir(sys.argv[1])  # its parents may be closed to others\n"
        "os.setuid(65534)\n"
        "request = device_locks.Request('locks', device_locks.fake_devices(2), 2)\n"
        "print(len(request.ask().devices), flush=True)\n"
        "try: os.unlink('locks/fake-0')\n"
        "except PermissionError: print('kept', flush=True)\n"
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as other:
        said = [other.stdout.readline().strip() for _ in range(2)]
        wish = ann.wish(1)
        assert ann.ask(wish) is None
        other.stdin.close()
    assert said == ["2", "kept"]
    assert "held by " in wish.why
    assert "root" not in wish.why
    assert keys(ann.ask(wish)) == ["fake-0"]


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


def test_gpus_are_named_by_uuid(monkeypatch):
    monkeypatch.setattr(device_locks, "_uuids", lambda: ("GPU-aaa", "GPU-bbb", "GPU-ccc"))
    for visible, count, expected in (
        (None, 3, ["GPU-aaa", "GPU-bbb", "GPU-ccc"]),
        ("2, 0", 2, ["GPU-ccc", "GPU-aaa"]),
        ("GPU-b", 1, ["GPU-bbb"]),
        ("1", 8, ["GPU-bbb"]),
        ("1,7,0", 1, ["GPU-bbb"]),
        ("MIG-1,MIG-2", 2, ["gpu-MIG-1", "gpu-MIG-2"]),
        ("", 0, []),
    ):
        assert [gpu["key"] for gpu in device_locks.gpus(visible, count)] == expected
    assert device_locks.gpus("2", 1) == [{"key": "GPU-ccc", "label": "GPU 2", "value": "GPU-ccc"}]
    assert device_locks.gpus("MIG-1", 1)[0]["value"] == "MIG-1"
    monkeypatch.setattr(device_locks, "_uuids", lambda: ())
    assert [gpu["value"] for gpu in device_locks.gpus(None, 2)] == ["0", "1"]


def test_a_gpu_for_each_rank_or_all_for_who_takes_several(monkeypatch):
    monkeypatch.delenv("BOOTCAMP_FIRST_CORE", raising=False)
    monkeypatch.setattr(devices, "gpu_count", lambda: 4)
    monkeypatch.setattr(device_locks, "_uuids", lambda: tuple(f"GPU-{k}" for k in range(4)))
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
    assert [first.place, second.place] == [0, 2]
    third = device_locks.take_cores(tmp_path, four, ranks=1)
    assert (third.place, third.handles) == (0, []), "none is free: they share, and do not wait"
    first.release()
    wide = device_locks.take_cores(tmp_path, four, ranks=1, each=2)
    assert (wide.place, len(wide.handles)) == (0, 2)
    second.release()
    assert device_locks.take_cores(tmp_path, four, ranks=1, each=2).place == 1
    wide.release()
    assert device_locks.take_cores(tmp_path, four, ranks=9).place == 0


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


def lives(pid):
    return (
        process_tree.processes().get(pid, process_tree.Process(pid, 0, 0, "X", 0)).state not in "ZX"
    )


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
    for path in (tmp_path / "locks").iterdir():
        assert is_free(path.parent, path.name), f"{path.name} is still locked"


def test_the_second_waits_and_starts_when_the_first_ends(attendees):
    first = attendees(2)
    worker, devices = first.began()
    assert devices == ["fake-0", "fake-1"]
    assert len(locks_of(first.supervisor)) == 2
    assert locks_of(worker) == [], "a process that a rank leaves behind must not keep a device"
    second = attendees(2)
    said = second.waits()
    assert f"held by {device_locks._user()}, process {first.process.pid}, since" in said
    assert not (second.folder / "began").exists()
    first.end()
    assert second.began()[1] == ["fake-0", "fake-1"]
    second.end()
    locks = second.folder.parent / "locks"
    assert {path.stat().st_size for path in locks.iterdir()} == {0}


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
    assert not lives(worker), "two runs had the device at once"
    second.end()


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
        said = json.loads((tmp_path / "locks" / "fake-1").read_text())
        assert sorted(map(int, said["processes"])) == sorted(pids)
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
    assert not any(map(lives, pids))
    second.end()


def test_gpu_ranks_see_the_leased_gpus_only(monkeypatch, tmp_path):
    monkeypatch.setenv("BOOTCAMP_LEASES", str(tmp_path))
    for module in (launch, devices):
        monkeypatch.setattr(module, "gpu_count", lambda: 2)
    monkeypatch.setattr(device_locks, "_uuids", lambda: ("GPU-aaa", "GPU-bbb"))
    script = tmp_path / "sees.py"
    script.write_text("import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'])\n")
    other = device_locks.Request(tmp_path, device_locks.gpus("0", 1), 1)
    monkeypatch.setattr(device_locks, "_held", {})
    has = other.ask()
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

    monkeypatch.setattr(follow, "print", hear, raising=False)
    assert launch.launch("ddp", 2, **faults.SHORT).status == "ok"
    assert locks_of(launch.connect().process.pid) == [], "the run has ended, its lease has not"
    assert "Waiting for 2 devices. fake device 0, fake device 1: held by" in heard[0]
