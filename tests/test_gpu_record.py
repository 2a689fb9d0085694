"""What a GPU is asked, rehearsed on the CPU: every part, and what becomes of one that goes wrong.

One rehearsal of all parts serves most tests. Parts that fail on purpose are run by the same code.
"""

import html
import json
import os
import subprocess
import sys
import types

import gpu_record
import psutil
import pytest

from bootcamp import machine
from bootcamp.costs import model_shapes
from bootcamp.drawing import style
from bootcamp.experiments import replay
from bootcamp.files import read_json, write_json
from bootcamp.launcher import device_locks, launch, orphans
from bootcamp.paths import REFERENCE, ROOT
from bootcamp.records import runs
from bootcamp_lessons import one_device

TOOL = ROOT / "tools" / "gpu_record.py"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
LIMITED = 6.0  # seconds for the part that never ends
ENDLESS = "86399.25"  # seconds of sleep, by which what is left is found

PLANTED = f"""
import os, signal, subprocess, sys, time, types
sys.path[:0] = {[str(ROOT / "tools"), str(ROOT / "src")]!r}
import gpu_record

def two(session):
    session.measure("broken", lambda: [][1])
    session.measure("sound", lambda: {{"number": 2}})

def outside(session):
    session.measure("before", lambda: 1)
    raise OSError("no measurement of mine")

def sleeps(session):
    session.measure("before", lambda: 1)
    subprocess.Popen(["sleep", "{ENDLESS}"], start_new_session=True)
    session.measure("endless", lambda: time.sleep({ENDLESS}))

def leaves(session):
    subprocess.Popen(["sleep", "{ENDLESS}"], start_new_session=True)

def dies(session):
    os.kill(os.getpid(), signal.SIGSEGV)

def late(session):
    session.measure("long", lambda: 1, seconds=5)
    session._limit = 0
    session.measure("too long", lambda: 1, seconds=5)

def kept(session):
    from gpu_parts import faults
    faults.SETTLE_SECONDS = 0.1
    session.device.used_bytes_from_outside = lambda: 1 << 31
    session.measure("freed", lambda: faults._freed(session, before=1 << 31))
    session.measure("kept", lambda: faults._freed(session, before=1 << 30))

sys.modules["gpu_parts.planted"] = types.SimpleNamespace(**globals())
names = ["sleeps", "two", "outside", "leaves", "dies", "late", "kept"]
gpu_record.PARTS = {{n: gpu_record.Part(f"planted.{{n}}", 1, "") for n in names}}
gpu_record.GRACE_SECONDS = 0.5
from pathlib import Path
code = gpu_record.record(Path(sys.argv[1]), names[1:], True, 200)
gpu_record.record(Path(sys.argv[1]), names[:1], True, {LIMITED})

import json
from gpu_parts import bare_gpt2, loops
from bootcamp.costs import model_shapes
shape, vocabulary = model_shapes.GPT["tiny"], model_shapes.GPT2_VOCABULARY
found = {{
    "gpt": loops.flops_per_sample(model_shapes.GPT["small"]),
    "gpt-2": loops.flops_per_sample(model_shapes.GPT["medium"], vocabulary),
    "tied": len({{p.data_ptr() for p in loops.course_gpt(shape, 300).parameters()}}),
    "of the course": len(list(loops.course_gpt(shape).parameters())),
    "numbers": sum(p.numel() for p in bare_gpt2.GPT2(**shape, vocabulary=vocabulary).parameters()),
}}
print(json.dumps(found))
sys.exit(code)
"""


def run(*arguments, code: str | None = None) -> subprocess.CompletedProcess:
    """The tool, or a program beside it, in a Python of its own."""
    command = [sys.executable, "-c", code] if code else [sys.executable, str(TOOL)]
    return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True)


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    """(folder, {part: what it recorded}) of one rehearsal of everything."""
    folder = tmp_path_factory.mktemp("record") / "here-gpu_record"
    done = run("--rehearse", folder)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return folder, {path.stem: read_json(path) for path in folder.iterdir()}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """(the program's end, {part: what it recorded}) of parts that go wrong on purpose."""
    folder = tmp_path_factory.mktemp("planted")
    done = run(folder, code=PLANTED)
    return done, {path.stem: read_json(path) for path in folder.iterdir()}


def test_every_part_is_rehearsed_and_ends_well(rehearsed):
    _, parts = rehearsed
    assert set(parts) == set(gpu_record.PARTS)
    for name, part in parts.items():
        assert (part["status"], part["errors"], part["left_out"]) == ("ok", {}, {}), name
        assert part["rehearsal"]
        assert part["about"]["versions"]["torch"]
        assert part["about"]["command"] == f"python tools/gpu_record.py FOLDER {name}"


def test_equality_holds_and_the_launcher_works(rehearsed):
    found = rehearsed[1]["equality"]["found"]
    assert found["launcher: rank_raises"]["seconds"] > 0
    for table in ("gpu against cpu", "with TF32", "one rank"):
        assert [row["same"] for row in found[table]] == [True], table
    assert found["one rank"][0]["script"] == "ddp"
    assert "passed" in found["tests"]["said"]
    assert found["libraries"]["notebook libraries loaded"] == []


def test_every_way_of_a_step_is_timed_and_its_memory_counted(rehearsed):
    found = rehearsed[1]["speed_small"]["found"]
    ways = {row["way"]: row for row in found["ways"]}
    assert len(ways) == 8
    for row in ways.values():
        assert row["achieved_flops_per_second"] > 0
        assert row["optimizer_bytes"] > row["gradient_bytes"] == row["parameter_bytes"]
    pair = ("bf16 autocast", "bf16, activation checkpointing")
    kept = [ways[name]["activation_bytes"] for name in pair]
    assert kept[0] > kept[1] > 0
    assert [ways[w]["activation_bytes"] for w in ways if "compile" in w] == [None, None]
    assert rehearsed[1]["speed_medium"]["found"]["ways"]


def test_a_batch_that_does_not_fit_is_recorded_and_the_process_goes_on(rehearsed):
    batches = rehearsed[1]["speed_small"]["found"]["batches"]
    sizes = [row["batch"] for row in batches["rows"]]
    assert batches["out of memory"]["batch"] == 2 * sizes[-1]
    assert "allocate memory" in batches["out of memory"]["error"]
    assert batches["then"]["batch"] == sizes[0]
    assert batches["then"]["loss"] == batches["rows"][0]["loss"], "it trains what it trained before"


def test_a_step_is_looked_into_and_clocks_are_compared(rehearsed):
    found = rehearsed[1]["speed_small"]["found"]
    traced = found["traced step"]
    assert traced["busy_seconds"] > 0
    assert traced["longest"][0]["seconds"] >= traced["longest"][1]["seconds"] > 0
    assert len(found["asynchronous"]) == 4


def test_the_roof_is_measured(rehearsed):
    found = rehearsed[1]["roofline"]["found"]
    for dtype in ("float32", "bfloat16"):
        operations = found[f"operations, {dtype}"]
        assert operations["bandwidth_bytes_per_second"] > 0
        assert "attention" in [row["name"] for row in operations["operations"]]
    assert [row["format"] for row in found["matrix products"]][1] == "tf32"
    assert "pinned, to the device" in found["copies"][0]


@pytest.mark.parametrize(("part", "parts_without"), [("mfu", 6), ("mfu_medium", 4)])
def test_two_loops_run_in_turn_and_each_choice_is_taken_away(part, parts_without, rehearsed):
    found = rehearsed[1][part]["found"]
    both = found["in turn"]
    ratios = [each["course"] / each["plain"] for each in both["rounds, FLOP/s"]]
    assert both["ratio"] == pytest.approx(sum(ratios) / 2), "the median of two"
    assert both["reached"] == (both["ratio"] >= both["target"])
    assert found["attention kernels"]["fastest"] == both["attention"]
    without = [name for name in found if name.startswith("without: ")]
    assert len(without) == parts_without
    assert all(found[name]["ratio to the fast loop"] > 0 for name in without)


def test_dying_ranks_leases_and_memory_are_recorded(rehearsed):
    found = rehearsed[1]["faults"]["found"]
    assert found["rank killed"]["status"] == "failed"
    assert "SIGKILL" in found["rank killed"]["said"]
    assert found["rank out of memory"]["status"] == "oom"
    assert found["one of two ranks killed"]["rank"] == 1
    assert found["leases"]["said"].startswith("Waiting for 1 device")
    assert found["leases"]["device"]["CUDA_VISIBLE_DEVICES"] == "fake-0"
    assert {"check", "verdict"} <= set(found["preflight"][0])
    assert {"process", "is named"} <= set(found["orphans"])


def test_constants_of_a_planner_are_numbers(rehearsed):
    found = rehearsed[1]["constants"]["found"]
    assert all(row["flops_per_second"] > 0 for row in found["matrix products"])
    assert found["memory"][0]["copy"] > 0
    assert found["launch"]["launched_and_waited_for_seconds"] > 0
    assert found["attention"][0]["forward_and_backward_flops_per_second"] > 0
    generation = found["generation, tiny"]
    assert generation["cache_bytes"] == generation["formula_bytes"]
    assert generation["largest difference of a score"] < 1e-3


def test_a_record_obeys_its_limits(rehearsed, tmp_path):
    assert gpu_record.beyond_limits(rehearsed[0]) is None
    text = "".join(path.read_text() for path in rehearsed[0].iterdir())
    assert str(ROOT) not in text
    for number in range(gpu_record.MOST_FILES):
        (tmp_path / f"{number}.json").write_text("{}")
    assert gpu_record.beyond_limits(tmp_path) is None
    (tmp_path / "7.json").rename(tmp_path / "a name.json")
    assert "odd names: ['a name.json']" in gpu_record.beyond_limits(tmp_path)


# What goes wrong


def test_what_fails_is_recorded_with_its_error_and_the_rest_goes_on(planted):
    done, parts = planted
    assert done.returncode == 1
    assert set(parts) == {"two", "outside", "sleeps", "leaves", "dies", "late", "kept"}
    assert parts["two"]["status"] == "failed"
    broken = parts["two"]["errors"]["broken"]
    assert broken["error"] == "IndexError: list index out of range"
    assert "lambda: [][1]" in broken["traceback"] or "in <lambda>" in broken["traceback"]
    assert parts["two"]["found"] == {"sound": {"number": 2}}
    assert parts["outside"]["errors"]["the part"]["error"] == "OSError: no measurement of mine"
    assert parts["outside"]["found"] == {"before": 1}
    assert parts["dies"]["errors"]["the part"]["error"] == "its process was ended by SIGSEGV"
    assert parts["late"]["status"] == "incomplete"
    assert parts["late"]["found"] == {"long": 1}
    assert "it may take 5 s" in parts["late"]["left_out"]["too long"]
    assert parts["kept"]["found"]["freed"]["used_bytes"]["after"] == 1 << 31
    kept = f"AssertionError: {1 << 30} bytes of GPU memory are still used"
    assert parts["kept"]["errors"]["kept"]["error"] == kept


def test_a_part_that_overruns_is_ended_and_nothing_of_it_is_left(planted):
    part = planted[1]["sleeps"]
    assert part["status"] == "overrun"
    assert part["found"] == {"before": 1}, "what it had measured is kept"
    assert part["errors"]["the part"]["error"] == "not done after 6 s, and ended"
    left = planted[1]["leaves"]["errors"]["the part"]["error"]
    assert left == f"it left processes, which were ended: sleep {ENDLESS}"
    commands = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
    assert [each for each in commands if each and ENDLESS in each] == []


def test_operations_and_parameters_are_those_of_the_theory(planted):
    found = json.loads(planted[0].stdout.splitlines()[-1])
    for model, size in (("gpt", "small"), ("gpt-2", "medium")):
        forward = sum(layer.flops for layer in model_shapes.layers(model, size))
        assert found[model] == 3 * forward
    assert found["tied"] == found["of the course"] - 1
    shape = model_shapes.GPT["tiny"]
    numbers = sum(sum(layer.numbers) for layer in model_shapes._gpt2(**shape))
    assert found["numbers"] == numbers


def test_the_plan_names_a_command_for_each_part():
    lines = gpu_record.plan().splitlines()
    for name, line in zip(gpu_record.PARTS, lines, strict=False):
        assert line.startswith(f"python3 tools/gpu_record.py OUT {name}")
        assert f"{gpu_record.PARTS[name].seconds:>3} s expected" in line
    assert all(part.seconds < gpu_record.LIMIT_SECONDS < 600 for part in gpu_record.PARTS.values())
    in_calls = [name for names in gpu_record.CALLS for name in names]
    assert sorted(in_calls) == sorted(gpu_record.PARTS), "each part in one call"
    for names, line in zip(gpu_record.CALLS, lines[-len(gpu_record.CALLS) :], strict=True):
        assert f"--within {gpu_record.CALL_SECONDS} OUT {' '.join(names)} #" in line
        seconds = sum(gpu_record.PARTS[name].seconds for name in names)
        assert seconds < gpu_record.CALL_SECONDS < 600


def test_without_a_gpu_one_sentence_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(machine, "gpu_names", tuple)
    monkeypatch.setattr(sys, "argv", ["gpu_record.py", str(tmp_path / "out")])
    assert gpu_record.main() == 2
    assert capsys.readouterr().out.startswith("There is no GPU here that nvidia-smi lists: nothing")
    assert not (tmp_path / "out").exists()


# How lessons read it


def test_a_record_is_shown_with_its_gpu_and_a_rehearsal_is_none(rehearsed, tmp_path):
    _, nothing = replay.find_gpu_result("speed_small", "ways", tmp_path)
    for table in (one_device.batch_table, one_device.timing_table, one_device.variant_table):
        assert table(tmp_path)._repr_html_() == f"<p>{html.escape(nothing)}</p>"
    assert nothing.startswith("No GPU has been recorded yet")
    folder = tmp_path / "h100-gpu_record"
    folder.mkdir()
    content = rehearsed[1]["speed_small"]
    write_json(folder / "speed_small.json", content)
    assert not replay.list_gpu_parts("speed_small", tmp_path), "a rehearsal"
    assert readme_sentence(tmp_path).startswith("Nothing here has been run on a GPU")
    about = {**content["about"], "gpu": {"name": "NVIDIA H100 80GB HBM3"}}
    write_json(folder / "speed_small.json", {**content, "rehearsal": False, "about": about})
    found, _ = replay.find_gpu_result("speed_small", "ways", tmp_path)
    ways, batches, waiting = (
        f(tmp_path)
        for f in (one_device.variant_table, one_device.batch_table, one_device.timing_table)
    )
    assert ways.column("way") == [row["way"] for row in found]
    assert ways.caption.startswith("NVIDIA H100 80GB HBM3, torch ")
    assert ways.caption.endswith("recorded run h100-gpu_record")
    assert [row["ended"] for row in batches[-2:]] == ["trained", "out of memory"]
    assert batches[-1]["batch"] == 2 * batches[-2]["batch"]
    assert all(ms > 0 for row in waiting for name, ms in row.items() if name.startswith("ms by"))
    _, caption = replay.find_gpu_result("speed_small", "gone", tmp_path)
    assert caption.startswith("gone: not measured. NVIDIA H100")
    sentence = readme_sentence(tmp_path)
    assert sentence.startswith("One NVIDIA H100 80GB HBM3 has run speed_small of `make gpu-record`")
    assert sentence.endswith("Several GPUs over NCCL have not been measured.")


def readme_sentence(reference=REFERENCE):
    """What README.md says of GPUs: which has run what, and that several have not."""
    gpus = {}
    for part in replay.list_gpu_parts(reference=reference):
        where = part["about"]["gpu"]["name"], part["path"].parent.name
        gpus.setdefault(where, []).append(part["path"].stem)
    if not gpus:
        return (
            "Nothing here has been run on a GPU so far. The code for CUDA and NCCL is written, and "
            "its flags and a rehearsal on the CPU are tested; `make gpu-record` is for its first "
            "real run."
        )
    sentences = [
        f"One {gpu} has run {', '.join(names)} of `make gpu-record`: `logs/reference/{folder}/`."
        for (gpu, folder), names in gpus.items()
    ]
    return " ".join([*sentences, "Several GPUs over NCCL have not been measured."])


def test_the_readme_says_what_has_run_on_a_gpu():
    said = " ".join((ROOT / "README.md").read_text().split())
    assert readme_sentence() in said, "README.md, What has run where"


# What was made for it


def test_ranks_that_share_gpus_lease_those_that_there_are(monkeypatch):
    one = {"GPU 0": "GPU-1"}
    monkeypatch.setattr(device_locks, "list_gpus", lambda *_: one)
    monkeypatch.setattr(launch, "gpu_count", lambda: 1)
    call = launch.Call("ddp", 3, device="cuda")
    with pytest.raises(Exception, match="lease as many devices, and here are 1"):
        call.choose_leases()
    call.env = {"BOOTCAMP_SHARE_GPUS": "1"}
    assert call.choose_leases()["lease"]["count"] == 1


@pytest.mark.parametrize(("world", "hosts", "shared"), [(1, 1, False), (2, 1, True), (2, 2, False)])
def test_ranks_that_share_a_gpu_measure_no_scaling(world, hosts, shared):
    run = runs.Run("shared")
    run.config = {"device": "cuda:0", "processes": world, "hosts": hosts, "strategy": "ddp"}
    run.config["machine"] = {"gpus": ["NVIDIA H100"], "cores": 16}
    run.summary = {"status": "ok"}
    assert run.oversubscribed == shared
    assert ("more ranks than GPUs" in run.label) == shared
    assert ("more ranks than GPUs" in style._describe_ranks([run], "GPU")) == shared


def test_orphans_lists_who_holds_gpu_memory(monkeypatch):
    said = f"{os.getpid()}, 512 MiB\n4711, [N/A]\n"
    answer = types.SimpleNamespace(stdout=said)
    monkeypatch.setattr(orphans.subprocess, "run", lambda *_, **__: answer)
    monkeypatch.setattr(machine, "gpu_names", lambda: ("NVIDIA H100",))
    assert orphans.list_gpu_holders() == [(os.getpid(), 512 << 20), (4711, None)]
    monkeypatch.setattr(orphans, "_find_orphans", list)
    row, _ = orphans.orphans().rows
    assert (row["process"], row["why"]) == (os.getpid(), "holds GPU memory")
