"""Launching: what is refused, what is shown, what runs the same by hand. Faults: test_faults.py."""

import os
import subprocess
import sys
import types
from functools import partial

import psutil
import pytest
import warm
from processes import fork_servers

from bootcamp import machine
from bootcamp.launcher import launch, orphans, process_tree
from bootcamp.launcher.launch import ArgumentError, Options, RunRefused
from bootcamp.paths import ROOT
from bootcamp.records import runs, summary
from bootcamp.scripts.variants import variant
from bootcamp.train import config

QUICK = {"steps": 3, "model": "mlp", "quiet": True}


def ending(name, lines, script="cpu"):
    """A script that ends with these lines."""
    return variant(script, name, {"run.finish()": f"run.finish()\n{lines}"})


@pytest.mark.parametrize("start", ["warm", "torchrun"])
def test_flags_are_refused_in_one_sentence_of_rank_0s_without_a_traceback(start):
    """Which flags: test_config.py."""
    with warm.workers(), pytest.raises(RunRefused, match="--size huge: mlp has no") as refusal:
        launch.launch("ddp", 2, start=start, device="cpu", size="huge", **QUICK)
    assert "Traceback" not in str(refusal.value)
    assert "\n" not in str(refusal.value)
    run = refusal.value.run
    assert (run.status, run.steps, run.output(1)) == ("failed", [], "")


AGENTS = {"hosts": 2, "start": "torchrun"}
WRONG = [
    ({"ranks": "2"}, "ranks='2': expected a whole number from 1 on"),
    ({"args": "50 10"}, "args='50 10': expected a list of texts"),
    ({"device": "tpu"}, "device='tpu': expected one of auto, cpu, cuda, meta"),
    ({"ranks": 3, "hosts": 2}, "ranks=3 do not spread evenly over hosts=2"),
    ({"hosts": 2, "device": "cuda"}, "hosts= are for CPU ranks"),
    ({"hosts": 2, "link": "fast"}, "link='fast': .* such as '200mbit'"),
    ({"hosts": 2, "options": Options(fewest_hosts=1)}, "fewest_hosts= is torchrun's"),
    ({**AGENTS, "options": Options(fewest_hosts=3)}, "fewest_hosts=3: expected 1 to hosts=2"),
    ({"options": ["env"]}, r"options=.*: expected Options\(...\)"),
    (
        {"options": partial(Options, hang_seconds="5")},
        "hang_seconds='5': .*Write hang_seconds=5, without quo",
    ),
    (
        {"options": partial(Options, framework="keras")},
        "framework='keras': expected one of .*horovod",
    ),
    ({"hang_seconds": 5}, r"hang_seconds= is .*: write options=Options\(hang_seconds=5\)\."),
]


def launch_with(ranks=2, options=Options, **arguments):
    """Launch; options: they, or what makes them."""
    options = options() if callable(options) else options
    return launch.launch("ddp", ranks, options=options, **arguments)


@pytest.mark.parametrize(("arguments", "sentence"), WRONG)
def test_arguments_that_mean_nothing_are_refused_before_anything_starts(
    arguments, sentence, monkeypatch
):
    monkeypatch.setattr(launch, "connect", None)  # nothing may be started
    with pytest.raises(ArgumentError, match=sentence) as refused:
        launch_with(**arguments)
    (shown,) = refused.value._render_traceback_()
    assert "\n" not in shown


def test_unknown_script_is_answered_with_the_known_ones():
    with pytest.raises(FileNotFoundError, match="give one of cpu, gpu, .*ddp,"):
        launch.launch("dpp")


TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
SECRET = "hunter2"
SAYS = (
    "import sys\n"
    "print(*(name for name in sys.modules if name.startswith('bootcamp.launcher')))\n"
    "print('started as', open('/proc/self/comm').read(), open('/proc/self/cmdline').read())"
)


def by_hand(*arguments, python=sys.executable):
    """Python with arguments as a reader types them in a terminal, in the project's folder."""
    command = [python, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def by_torchrun(tmp_path_factory):
    """A script that says what it is, and its run by a reader's torchrun."""
    script = ending("says_what_it_is", SAYS, "ddp")
    folder = tmp_path_factory.mktemp("hand") / "ddp"
    done = by_hand(*TORCHRUN, 2, script, "--steps", 3, "--model", "mlp", "--run-dir", folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("started as") == 2
    return script, runs.load(folder)


@pytest.mark.parametrize("start", ["warm", "cold"])
def test_ranks_train_the_same_whatever_starts_them(start, by_torchrun, monkeypatch):
    """The same losses to the last bit, nothing of the launcher in a rank's Python.

    A cold rank hides its environment from other users, who see its command.
    """
    monkeypatch.setenv("BOOTCAMP_TEST_SECRET", SECRET)
    script, in_a_terminal = by_torchrun
    run = launch.launch(script, 2, start=start, device="cpu", **QUICK)
    said = "".join(path.read_text() for path in (run.folder / "ranks").glob("*.out"))
    assert (said.count("started as"), len(run.ranks)) == (2, 2)
    assert "bootcamp.launcher" not in said
    assert start != "cold" or "forkserver.py" in said
    assert "started as rank 1 of 2" in said
    assert SECRET not in said
    assert run.losses == in_a_terminal.losses


def test_by_hand_the_folder_of_another_run_is_refused(by_torchrun):
    folder = by_torchrun[1].folder
    before = (folder / "steps.jsonl").read_text()
    with warm.workers():
        done = by_hand(*TORCHRUN, 2, "src/_train_ddp.py", "--run-dir", folder)
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("_train_ddp.py:")]
    assert done.returncode != 0
    assert "may hold another run. Give a new folder" in said
    assert '_train_ddp.py", line' not in done.stderr, "no traceback of the script"
    assert (folder / "steps.jsonl").read_text() == before


def test_by_hand_a_failed_run_says_so_in_its_record(tmp_path):
    script = variant("cpu", "fails_by_hand", {"loss.backward()": "raise ValueError('by hand')"})
    done = by_hand(script, "--run-dir", tmp_path, "--model", "mlp", python=warm.python())
    assert done.returncode == 1
    written = summary.read(tmp_path)
    assert (written["status"], written["error"]["message"]) == ("failed", "ValueError: by hand")


def test_by_hand_a_restart_begins_without_its_last_attempts_verdict(tmp_path):
    """torchrun --max-restarts: the first attempt fails, the second ends well."""
    fails = "if __import__('os').environ['TORCHELASTIC_RESTART_COUNT'] == '0': raise KeyError\n"
    script = variant("cpu", "restarted", {"loss.backward()": fails + "loss.backward()"})
    flags = ["--steps", 3, "--model", "mlp", "--run-dir", tmp_path]
    with warm.workers():
        done = by_hand(*TORCHRUN, 1, "--max-restarts", 1, script, *flags)
    assert done.returncode == 0, done.stderr
    run = runs.load(tmp_path)
    assert run.status == "ok"
    assert [row["attempt"] for row in run.steps] == [1, 1, 1]


def test_warm_ranks_see_edits_and_the_environment_of_now(monkeypatch):
    """The fork server must keep neither the project's modules nor its own environment."""
    for text in ("first", "second"):
        monkeypatch.setenv("BOOTCAMP_TEST_WORD", f"{text} word")
        lines = f"import os\nprint('{text}', os.environ['BOOTCAMP_TEST_WORD'])"
        said = launch.launch(ending("edited", lines), 1, **QUICK).output()
        assert said.strip().endswith(f"{text} {text} word")


def test_ranks_draw_numbers_of_their_own_without_a_seed(tmp_path):
    script = tmp_path / "unseeded.py"
    script.write_text("import numpy, torch\nprint(torch.rand(1).item(), numpy.random.rand())\n")
    run = launch.launch(script, 2, quiet=True)
    first, second = (run.output(rank).split() for rank in (0, 1))
    assert not set(first) & set(second)


@pytest.mark.alone
def test_ranks_get_cores_of_their_own():
    lines = "import os\nprint(sorted(os.sched_getaffinity(0)), torch.get_num_threads())"
    run = launch.launch(ending("cores", lines, "ddp"), 2, device="cpu", **QUICK)
    cores = machine.cores()
    for rank in (0, 1):
        assert f"[{cores[rank % len(cores)]}] 1" in run.output(rank)


def test_commands_return_what_they_print_and_end_with_their_time_limit():
    with pytest.raises(launch.RunHung):
        launch.run_command(["python", "-c", "import time; time.sleep(60)"], seconds=1)
    assert launch.run_command(["python", "-c", "print(6 * 7)"]) == "42\n"
    with pytest.raises(launch.RankFailed, match="ZeroDivisionError"):
        launch.run_command(["python", "-c", "1 / 0"])


def test_script_that_never_finishes_its_record_is_reported():
    script = variant("cpu", "unfinished", {"run.finish()": ""})
    run = launch.launch(script, 1, raises=False, **QUICK)
    assert run.status == "failed"
    assert "without run.finish()" in run.summary["error"]["message"]


def test_children_of_a_rank_end_with_it():
    """A DataLoader worker, or whatever a rank has started, in a session of its own."""
    lines = "import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True)"
    launch.launch(ending("with_child", lines), 1, **QUICK)
    assert "sleep 600" not in map(process_tree.read_command, psutil.pids())


LATE_RANK = """
import os, time
import torch.distributed as dist

dist.init_process_group("gloo")
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if dist.get_rank() == 0:
    store.set("first", str(os.getpid()))
else:
    first = store.get("first").decode()
    while os.path.exists(f"/proc/{first}"):
        time.sleep(0.01)
    store.set("second", "is here")
    print(store.get("second").decode())
"""


def test_rendezvous_outlives_rank_0(tmp_path):
    script = tmp_path / "late.py"
    script.write_text(LATE_RANK)
    run = launch.launch(script, 2, device="cpu", quiet=True)
    assert run.output(1) == "is here\n"


@pytest.mark.skipif(not launch.available("deepspeed"), reason="DeepSpeed is not installed")
def test_fork_server_loads_a_framework_before_its_ranks_and_has_one_thread(tmp_path):
    script = tmp_path / "asks.py"
    script.write_text("import sys\nprint('deepspeed' in sys.modules)\n")
    run = launch.launch(script, quiet=True, options=Options(framework="deepspeed"))
    assert run.output().strip() == str(not launch.gpu_count())
    (server,) = fork_servers(launch.connect().process.pid)
    assert len(os.listdir(f"/proc/{server}/task")) == 1


def test_orphans_lists_and_ends_orphans_only():
    """A process whose kernel is gone is an orphan; this one here and its launcher are not."""
    supervisor = launch.connect().process.pid
    code = "import os, time; os.fork() and os._exit(0); time.sleep(600)"
    dead = subprocess.Popen([sys.executable, "-c", "pass"])
    dead.wait()
    environment = {**os.environ, "BOOTCAMP_KERNEL": str(dead.pid)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    rows = {row["process"]: row for row in orphans.orphans().rows}
    mine = [pid for pid, row in rows.items() if str(dead.pid) in row["why"]]
    assert len(mine) == 1
    assert rows[mine[0]]["memory MB"] > 0
    assert supervisor not in rows
    with pytest.raises(ValueError, match="no orphans of this course"):
        orphans.orphans(end=[os.getpid()])
    after = orphans.orphans(end=mine)
    assert mine[0] not in [row.get("process") for row in after.rows]


def test_orphans_list_who_holds_gpu_memory(monkeypatch):
    said = f"{os.getpid()}, 512 MiB\n4711, [N/A]\n"
    answer = types.SimpleNamespace(stdout=said)
    monkeypatch.setattr(orphans.subprocess, "run", lambda *_, **__: answer)
    monkeypatch.setattr(machine, "gpu_names", lambda: ("NVIDIA H100",))
    assert orphans.list_gpu_holders() == [(os.getpid(), 512 << 20), (4711, None)]
    monkeypatch.setattr(orphans, "_find_orphans", list)
    row, _ = orphans.orphans().rows
    assert (row["process"], row["why"]) == (os.getpid(), "holds GPU memory")


def test_cores_are_limited_by_the_quota_of_a_cgroup(monkeypatch):
    files = {"/proc/self/cgroup": ["0::/box"], "/sys/fs/cgroup/box/cpu.max": ["150000 100000"]}
    monkeypatch.setattr(machine, "_read_lines", lambda path: files.get(path, []))
    assert machine.cpu_quota() == 1.5
    assert len(machine.cores()) == 1


def test_cores_count_hyperthreads_once(monkeypatch):
    cpus = {f"/sys/devices/system/cpu/cpu{k}": [f"{k // 2 * 2}-{k // 2 * 2 + 1}"] for k in range(4)}
    path = "/topology/thread_siblings_list"
    monkeypatch.setattr(machine, "_read_lines", lambda name: cpus[name.removesuffix(path)])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(machine, "cpu_quota", lambda: float("inf"))
    assert machine.cores() == [0, 2]


def test_gpus_are_chosen_when_there_is_one_for_each_rank(monkeypatch):
    """Without a GPU here: what the launcher would pass to the script."""
    monkeypatch.setattr(launch, "gpu_count", lambda: 2)

    def told(script, ranks, device="auto"):
        call = launch.Call(script, ranks, device=device)
        call.choose_device()
        return call.flags, call.where_ranks_are()

    assert told("ddp", 2) == ({"device": "cuda"}, "2 GPU ranks, NCCL")
    assert told("ddp", 4) == ({"device": "cpu"}, "4 CPU ranks, gloo")
    shared = "4 GPU ranks, gloo, on 2 GPU(s)"  # where BOOTCAMP_SHARE_GPUS allows it
    assert told("ddp", 4, "cuda") == ({"device": "cuda"}, shared)
    assert told("cpu", 1) == ({}, "1 rank")
    copy = variant("ddp", "chooses_itself", {"run.finish()": "run.finish()\nprint()"})
    assert told(copy, 2) == ({}, "2 ranks"), "a reader's copy chooses itself"
    assert told(copy, 2, "cpu")[0] == {"device": "cpu"}


@pytest.mark.parametrize(
    ("gpus", "local_rank", "ranks", "given", "expected"),
    [
        (2, 1, 2, ("auto", 1), (["cuda:1"], "nccl")),
        (2, 1, 2, ("cuda", 1), (["cuda:1"], "nccl")),
        (2, 1, 2, ("cpu", 1), (["cpu"], "gloo")),
        (2, 1, 2, ("auto", 2), (["cpu", "cpu"], "gloo")),
        (2, 0, 1, ("auto", 2), (["cuda:0", "cuda:1"], "nccl")),
        (1, 0, 1, ("auto", 2, False), (["cpu", "cpu"], "gloo")),
        (1, 0, 1, ("auto", 2, True), (["cuda:0", "cpu"], "nccl")),
        (1, 2, 3, ("cuda", 1), (["cuda:0"], "gloo")),  # three ranks share a GPU
        (1, 2, 3, ("cpu", 1), (["cpu"], "gloo")),
        (1, 0, 2, ("cuda", 1), SystemExit),
    ],
)
def test_scripts_choose_gpu_and_nccl_when_torch_finds_them(
    gpus, local_rank, ranks, given, expected, monkeypatch
):
    """The rank's side of the same, with a torch that says it has GPUs."""
    monkeypatch.setattr(config.torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(config.torch.cuda, "set_device", print)
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    monkeypatch.setenv("BOOTCAMP_SHARE_GPUS", "1" if ranks == 3 else "")
    if expected is SystemExit:
        with pytest.raises(expected):
            config._resolve_devices(*given)
    else:
        assert config._resolve_devices(*given) == expected
