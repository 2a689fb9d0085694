"""Launching: what is refused, what is shown, what runs the same by hand. Faults: test_faults.py."""

import json
import os
import subprocess
import sys

import psutil
import pytest
import warm
from processes import fork_servers

from bootcamp import machine
from bootcamp.experiments import equality
from bootcamp.launcher import launch, orphans, process_tree
from bootcamp.launcher.launch import ArgumentError, Options, RunRefused
from bootcamp.paths import ROOT
from bootcamp.records import runs, summary
from bootcamp.scripts import strategies
from bootcamp.scripts.variants import variant

QUICK = {"steps": 3, "model": "mlp", "quiet": True}
HAS_GPU = pytest.mark.skipif(bool(machine.gpu_names()), reason="this machine has a GPU")


def ending(name, lines, script="cpu"):
    """A script that ends with these lines."""
    return variant(script, name, {"run.finish()": f"run.finish()\n{lines}"})


REFUSED = [
    ({"global_batch": 33}, "--global-batch 33 does not divide over 2 ranks.* 32 or 34"),
    ({"global_batch": 1}, "Give a multiple of 2, such as 2"),
    ({"size": "huge"}, "--size huge: mlp has no such size. Choose one of tiny, small"),
    ({"model": "llama"}, "Argument --model: invalid choice: 'llama' .choose from '?gpt'?, '?moe"),
    ({"global_batch": 10_000_000}, "--global-batch 10000000: the data has .* samples for mlp"),
    ({"timeout": "inf"}, "--timeout inf: expected a number above 0, here at most 604800"),
    ({"steps": 0}, "--steps 0: expected a number above 0"),
    ({"lr": -1}, "--lr -1.0: expected a number above 0"),
    ({"cores_per_rank": 4096}, "--cores-per-rank 4096: expected a number above 0, here at most"),
    ({"steps": "many"}, "Argument --steps: invalid int value: 'many'"),
    ({"steps": 2.5}, "Argument --steps: invalid int value: '2.5'"),
    ({"steps": True}, "Argument --steps: expected one argument"),
    ({"lr": "fast"}, "Argument --lr: invalid float value: 'fast'"),
    ({"cores_per_rank": "all"}, "Argument --cores-per-rank: invalid int value: 'all'"),
    ({"optimizer": "lion"}, "choose from 'adamw', 'sgd'"),
    ({"colour": "red"}, "Unrecognized arguments: --colour red"),
    ({"size": "huge", "start": "torchrun"}, "--size huge: mlp has no such size"),
    pytest.param({"device": "cuda"}, "cuda: 2 .* finds none. Use --device cpu", marks=HAS_GPU),
]


@pytest.mark.parametrize(("flags", "sentence"), REFUSED)
def test_flags_are_refused_in_one_sentence_without_a_traceback(flags, sentence):
    with warm.workers(), pytest.raises(RunRefused, match=sentence) as refusal:
        launch.launch("ddp", 2, **{"device": "cpu", **QUICK, **flags})
    assert "Traceback" not in str(refusal.value)
    assert "\n" not in str(refusal.value)
    run = refusal.value.run
    assert run.status == "failed"
    assert not run.steps
    assert run.output(1) == "", "rank 0 alone speaks"


AGENTS = {"hosts": 2, "start": "torchrun"}
WRONG = [
    ({"ranks": "2"}, "ranks='2': expected a whole number from 1 on"),
    ({"ranks": 2.0}, "ranks=2.0: expected a whole number"),
    ({"ranks": True}, "ranks=True: expected a whole number"),
    ({"ranks": 0}, "ranks=0: expected a whole number from 1 on"),
    ({"args": "50 10"}, "args='50 10': expected a list of texts"),
    ({"args": [50]}, r"args=\[50\]: expected a list of texts"),
    ({"device": "tpu"}, "device='tpu': expected one of auto, cpu, cuda, meta"),
    ({"start": "hot"}, "start='hot': expected one of warm, cold, torchrun"),
    ({"hosts": "2"}, "hosts='2': expected at least one"),
    ({"hosts": 0}, "hosts=0: expected at least one"),
    ({"ranks": 3, "hosts": 2}, "ranks=3 do not spread evenly over hosts=2"),
    ({"ranks": None, "hosts": 2}, "hosts= needs ranks="),
    ({"hosts": 2, "device": "cuda"}, "hosts= are for CPU ranks"),
    ({"link": "200mbit"}, "link='200mbit': expected a rate between hosts=2 or more"),
    ({"hosts": 2, "link": "fast"}, "link='fast': .* such as '200mbit'"),
    ({"hosts": 2, "options": Options(fewest_hosts=1)}, "fewest_hosts= is torchrun's"),
    ({**AGENTS, "options": Options(fewest_hosts=3)}, "fewest_hosts=3: expected 1 to hosts=2"),
    ({**AGENTS, "options": Options(fewest_hosts=0)}, "fewest_hosts=0: expected 1 to hosts=2"),
    ({"options": {"env": 1}}, r"options=.*: expected Options\(...\)"),
    ({"hang_seconds": 5}, r"hang_seconds= is .*: write options=Options\(hang_seconds=5\)\."),
    ({"run_dir": "x"}, r"write options=Options\(run_dir='x'\)"),
]


@pytest.mark.parametrize(("arguments", "sentence"), WRONG)
def test_arguments_that_mean_nothing_are_refused_before_anything_starts(
    arguments, sentence, monkeypatch
):
    monkeypatch.setattr(launch, "connect", None)  # nothing may be started
    with pytest.raises(ArgumentError, match=sentence) as refused:
        launch.launch("ddp", **{"ranks": 2, **arguments})
    (shown,) = refused.value._render_traceback_()
    assert "\n" not in shown


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            {"hang_seconds": "5"},
            "hang_seconds='5': .*Write hang_seconds=5, without quotation marks",
        ),
        ({"max_restarts": 1.5}, "max_restarts=1.5: expected int$"),
        ({"fewest_hosts": "two"}, "fewest_hosts='two': expected int | None$"),
        ({"run_dir": 3}, "run_dir=3: expected pathlib.*Path | str | None$"),
        ({"env": ["A=1"]}, "env=.*: expected dict | None$"),
        ({"framework": "keras"}, "framework='keras': expected one of .*horovod"),
    ],
)
def test_options_of_a_wrong_type_are_refused_with_what_to_write(wrong, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        Options(**wrong)


def test_unknown_script_is_answered_with_the_known_ones():
    with pytest.raises(FileNotFoundError, match="give one of cpu, gpu, .*ddp,"):
        launch.launch("dpp")


TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node"]


def by_hand(*command, python=sys.executable, **options):
    """A command as a reader types it in a terminal, in the project's folder."""
    module = ["-m", "torch.distributed.run"] if command[0] == "torchrun" else []
    how = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 120, **options}
    return subprocess.run([python, *module, *command[1:]], **how)


@pytest.fixture(scope="module")
def terminal_baseline(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hand") / "cpu"
    flags = ["--steps", "5", "--global-batch", "24"]
    done = by_hand("python", "src/_train_cpu.py", *flags, "--run-dir", str(folder))
    assert done.returncode == 0, done.stderr
    return runs.load(folder)


def test_by_hand_python_and_torchrun_train_the_same(terminal_baseline, tmp_path):
    flags = ["--steps", "5", "--global-batch", "24", "--run-dir", str(tmp_path / "ddp")]
    done = by_hand(*TORCHRUN, "2", "src/_train_ddp.py", *flags)
    assert done.returncode == 0, done.stderr
    equality.same_training(runs.load(tmp_path / "ddp"), terminal_baseline)


def test_by_hand_the_folder_of_another_run_is_refused(terminal_baseline):
    steps = terminal_baseline.folder / "steps.jsonl"
    before = steps.read_text()
    with warm.workers():
        folder = str(terminal_baseline.folder)
        done = by_hand(*TORCHRUN, "2", "src/_train_ddp.py", "--run-dir", folder)
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("_train_ddp.py:")]
    assert done.returncode != 0
    assert "may hold another run. Give a new folder" in said
    assert '_train_ddp.py", line' not in done.stderr, "no traceback of the script"
    assert steps.read_text() == before


def test_by_hand_an_unwritable_folder_is_refused():
    refused = ["src/_train_cpu.py", "--run-dir", "/dev/null/run"]
    done = by_hand("python", *refused, python=warm.python())
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "/dev/null/run can't be written: Not a directory" in done.stderr


def test_by_hand_a_failed_run_says_so_in_its_record(tmp_path):
    script = variant("cpu", "fails_by_hand", {"loss.backward()": "raise ValueError('by hand')"})
    fails = [str(script), "--run-dir", str(tmp_path / "run"), "--model", "mlp"]
    done = by_hand("python", *fails, python=warm.python())
    assert done.returncode == 1
    written = summary.read(tmp_path / "run")
    assert (written["status"], written["error"]["message"]) == ("failed", "ValueError: by hand")


def test_by_hand_a_restart_begins_without_its_last_attempts_verdict(tmp_path):
    """torchrun --max-restarts: the first attempt fails, the second ends well."""
    fails = "if __import__('os').environ['TORCHELASTIC_RESTART_COUNT'] == '0': raise KeyError\n"
    script = variant("cpu", "restarted", {"loss.backward()": fails + "loss.backward()"})
    flags = ["--steps", "3", "--model", "mlp", "--run-dir", str(tmp_path / "run")]
    with warm.workers():
        done = by_hand(*TORCHRUN, "1", "--max-restarts", "1", str(script), *flags)
    assert done.returncode == 0, done.stderr
    run = runs.load(tmp_path / "run")
    assert run.status == "ok"
    assert [row["attempt"] for row in run.steps] == [1, 1, 1]


SECRET = "hunter2"
SAYS = (
    "import sys\n"
    "print(*(name for name in sys.modules if name.startswith('bootcamp.launcher')))\n"
    "print('started as', open('/proc/self/cmdline').read())"
)


def test_ranks_are_the_same_whatever_starts_them(monkeypatch):
    """One script, the same losses to the last bit, nothing of the launcher in a rank's Python.

    A cold rank hides its environment from other users, who see its command.
    """
    script = ending("says_what_it_is", SAYS, "ddp")
    monkeypatch.setenv("BOOTCAMP_TEST_SECRET", SECRET)
    losses = []
    for start in ("warm", "cold", "torchrun"):
        run = launch.launch(script, 2, start=start, device="cpu", **QUICK)
        said = "".join(path.read_text() for path in (run.folder / "ranks").glob("*.out"))
        assert (said.count("started as"), len(run.ranks)) == (2, 2)
        assert "bootcamp.launcher" not in said
        assert start != "cold" or "forkserver.py" in said
        assert SECRET not in said
        losses.append(run.losses)
    assert losses[0] == losses[1] == losses[2]


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


def test_line_for_the_terminal_is_shown_and_recorded(capsys):
    run = launch.launch("ddp", 2, device="cpu", steps=3, model="mlp")
    shown = capsys.readouterr().out
    line = "torchrun --standalone --nproc-per-node 2 src/_train_ddp.py --device cpu --steps 3"
    assert f"$ {line} --model mlp" in shown
    assert "2 CPU ranks, gloo" in shown
    assert "3 steps, final loss" in shown
    assert run.config["command"] == f"{line} --model mlp"


def test_default_ranks_are_every_core_without_a_gpu():
    if launch.gpu_count() < 2:
        assert launch.default_ranks() == len(machine.cores())


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


@pytest.mark.parametrize("start", ["warm", "cold"])
def test_rendezvous_outlives_rank_0(start, tmp_path):
    script = tmp_path / "late.py"
    script.write_text(LATE_RANK)
    run = launch.launch(script, 2, start=start, device="cpu", quiet=True)
    assert run.output(1) == "is here\n"


def test_fork_server_has_one_thread():
    launch.launch("cpu", **QUICK)
    for script in strategies.SCRIPTS.values():  # a framework is loaded before its first ranks start
        if script.framework and launch.available(script.framework):
            launch.launch(script.name, 2, steps=1, global_batch=2, device="cpu", quiet=True)
    (server,) = fork_servers(launch.connect().process.pid)
    assert len(os.listdir(f"/proc/{server}/task")) == 1


@pytest.mark.skipif(not launch.available("deepspeed"), reason="DeepSpeed is not installed")
def test_ranks_find_their_framework_loaded():
    ask = "import sys\nprint('loaded' if 'deepspeed' in sys.modules else 'not loaded')\n"
    script = variant("zero", "asks_for_deepspeed", {"import os": f"import os\n{ask}"})
    said = launch.launch(script, 2, device="cpu", **QUICK).output(1)
    assert said.startswith("not loaded" if launch.gpu_count() else "loaded")


def test_orphans_lists_and_ends_orphans_only():
    """A process whose kernel is gone is an orphan; this one here is not."""
    code = "import os, time; os.fork() and os._exit(0); time.sleep(600)"
    dead = subprocess.Popen([sys.executable, "-c", "pass"])
    dead.wait()
    environment = {**os.environ, "BOOTCAMP_KERNEL": str(dead.pid)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    rows = {row["process"]: row for row in orphans.orphans().rows}
    mine = [pid for pid, row in rows.items() if str(dead.pid) in row["why"]]
    assert len(mine) == 1
    assert rows[mine[0]]["memory MB"] > 0
    with pytest.raises(ValueError, match="no orphans of this course"):
        orphans.orphans(end=[os.getpid()])
    after = orphans.orphans(end=mine)
    assert mine[0] not in [row.get("process") for row in after.rows]


def test_orphans_leave_a_running_launch_out():
    launch.launch("cpu", **QUICK)
    kernels = {row["process"] for row in orphans.orphans().rows}
    assert launch.connect().process.pid not in kernels


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


def test_scripts_choose_gpu_and_nccl_when_torch_finds_them(monkeypatch):
    """The rank's side of the same, with a torch that says it has GPUs."""
    code = (
        "import torch; torch.cuda.device_count = lambda: 2; torch.cuda.set_device = print\n"
        "from bootcamp.train import config\n"
        "found = [config._resolve_devices(d, 1) for d in ('auto', 'cuda', 'cpu')]\n"
        "found.append(config._resolve_devices('auto', 2))  # 2 GPUs for 2 ranks with 2 each\n"
        "import os; os.environ |= {'LOCAL_RANK': '0', 'LOCAL_WORLD_SIZE': '1'}\n"
        "found.append(config._resolve_devices('auto', 2))\n"
        "torch.cuda.device_count = lambda: 1\n"
        "found += [config._resolve_devices('auto', 2, mixed) for mixed in (False, True)]\n"
        "os.environ |= {'LOCAL_RANK': '2', 'LOCAL_WORLD_SIZE': '3', 'BOOTCAMP_SHARE_GPUS': '1'}\n"
        "found += [config._resolve_devices(kind, 1) for kind in ('cuda', 'cpu')]\n"
        "import json; print(json.dumps(found))"
    )
    environment = {**os.environ, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "RANK": "1"}
    done = by_hand("python", "-c", code, env=environment)
    answers = json.loads(done.stdout.splitlines()[-1])
    assert answers[:3] == [[["cuda:1"], "nccl"], [["cuda:1"], "nccl"], [["cpu"], "gloo"]]
    assert answers[3:5] == [[["cpu", "cpu"], "gloo"], [["cuda:0", "cuda:1"], "nccl"]]
    assert answers[5:7] == [[["cpu", "cpu"], "gloo"], [["cuda:0", "cpu"], "nccl"]]
    assert answers[7:] == [[["cuda:0"], "gloo"], [["cpu"], "gloo"]], "three ranks share one GPU"


def test_tensors_are_all_moved_to_the_device():
    """The rehearsal on the meta device: a tensor that was left behind is an error there."""
    run = launch.launch("gpu", 1, device="meta", steps=2, quiet=True)
    assert run.ranks[0]["parameter_device"] == "meta"
    stays = {
        "inputs, targets = (tensor.to(device) for tensor in batches(step))": (
            "inputs, targets = batches(step)"
        )
    }
    with pytest.raises(launch.RankFailed, match="meta"):
        launch.launch(variant("gpu", "stays", stays), 1, device="meta", steps=2, quiet=True)
