"""Lesson 13b: programs from elsewhere train what one process trains, and what they hide shows."""

import contextlib
import csv
import functools
import json
import re
import runpy
import signal
from importlib.metadata import version
from pathlib import Path

import pytest
from trained import baseline, proved, shared, trained

from bootcamp import machine
from bootcamp.costs import memory, model_shapes, plans, sharding, traffic
from bootcamp.experiments import equality
from bootcamp.launcher import launch, process_tree
from bootcamp.paths import NOTEBOOKS, ROOT
from bootcamp_lessons import excerpts
from bootcamp_lessons.labs import known_programs, orphan_lab

LSTM = {"model": "striped-lstm"}
TABLE = Path(known_programs.__file__).with_suffix(".csv")
RECORDED = json.loads(known_programs.PLANS.read_text())
PROGRAMS = list(csv.DictReader(TABLE.read_text().splitlines()))
SGD = {**equality.settings(2), "optimizer": "sgd"}


def test_stripes_over_four_ranks_hold_and_send_what_is_said():
    run, whole = trained("striped", 4, **LSTM, **SGD), baseline(**LSTM, **SGD)
    sent = run.ranks[0]["sent_bytes_per_step"]
    assert sent == pytest.approx(known_programs.predict_sent_bytes(run), rel=0.02)
    ends = 4 * (2 * 256 * 64 + 256)  # embedding and head are on every rank
    layers = whole.ranks[0]["parameter_bytes"] - ends
    assert {rank["parameter_bytes"] for rank in run.ranks} == {ends + layers // 4}


@pytest.mark.skipif(not launch.available("megatron"), reason="Megatron-core is not installed")
def test_megatron_holds_and_sends_what_the_formulas_say():
    run = trained("megatron", 2, optimizer="adamw", **equality.settings(2))
    held = memory.rank_memory(*plans.of_run(run.config))
    for rank in run.ranks:
        assert rank["parameter_bytes"] == held["parameters"]
        assert rank["gradient_bytes"] == held["gradients"]
        assert rank["optimizer_bytes"] == held["optimizer"]
        assert rank["activation_bytes"] == pytest.approx(held["activations"], rel=0.05)
    sent = run.ranks[0]["sent_bytes_per_step"]
    theory = traffic.tensor_calls(model_shapes.course_model(), SGD["global_batch"])
    assert sent is None or sent == pytest.approx(sharding.bytes_of_calls(theory, 2), rel=0.05)


def test_lightnings_strategies_train_what_the_bare_script_trains():
    """As recorded with the version at hand: what ran, and what was refused in whose words."""
    found = json.loads(known_programs.LIGHTNING.read_text())
    rows = {row["name"]: row for row in found["rows"]}
    assert list(rows) == list(known_programs.STRATEGIES)[:-1]
    ran = {name for name, row in rows.items() if "refusal" not in row}
    assert ran == {"ddp", "ddp_spawn", "ddp_fork", "ddp_notebook"}
    assert all(rows[name]["processes"] == 2 and rows[name]["loss_apart"] < 1e-5 for name in ran)
    refused = [row["refusal"] for name, row in rows.items() if name not in ran]
    assert all(re.match(r"(Value|Runtime)Error: \w", text) for text in refused)
    if launch.available("lightning"):
        assert found["lightning"] == version("lightning"), "record them anew"
        with shared():  # the lesson's run
            live = known_programs.strategies(here=True)
        last, same = live.rows.pop(), known_programs.strategies().rows
        assert last["on two CPUs"].endswith("waiting for clients. 1/2 clients joined.")
        for now, then in zip(live.rows, same, strict=True):
            text = now["on two CPUs"]
            apart = re.fullmatch(r"2 processes, losses (\S+) apart", text)
            assert float(apart[1]) < 1e-5 if apart else text == then["on two CPUs"]
            assert (now["strategy"] in ran) == bool(apart)


@functools.cache
def ask_all() -> dict[str, dict]:
    with shared():  # the lesson's run
        return known_programs.read_plan()


@pytest.mark.parametrize("then", RECORDED, ids=lambda row: row["tool"])
def test_parser_reads_the_plans_and_refuses_what_is_wrong(then):
    """The tool's own, of the version that is installed; the recorded answer where none is."""
    snippet = runpy.run_path(str(excerpts.SNIPPETS / "one_plan.py"))
    plan, (package, as_text, _, name, _) = snippet["EXAMPLE"], snippet["TOOLS"][then["tool"]]
    row, tools_of_others = ask_all()[then["tool"]], ("torchtitan", "megatron-core")
    assert row["where"] == "here" or package in tools_of_others or not launch.available(package)
    assert row["text"] == as_text(plan), "record it anew"
    assert {"data", "tensor", "stage", "precision"} <= set(row["understood"])
    assert set(re.findall(name, row["text"])) <= set(row["wrong names"])
    for axis, each in {"": plan, **snippet["vary"](plan)}.items():
        read = row["more"][axis] if axis else row | {"words": ""}
        if "understood" in read:
            assert read["words"] in as_text(each)
            assert read["understood"] == {key: getattr(each, key) for key in read["understood"]}
        else:
            pytest.raises(LookupError, as_text, each).match(re.escape(read["words"]))
    for kind in ("wrong names", "wrong values"):
        now, before = ([isinstance(a, dict) and a for a in r[kind].values()] for r in (row, then))
        assert dict(zip(row[kind], now, strict=True)) == dict(zip(then[kind], before, strict=True))


def test_plan_in_pytorchs_words_trains_what_the_baseline_trains():
    how = {"data": 2, "tensor": 2, "precision": "fp32", "tool": "PyTorch"}
    with shared():
        lines = known_programs.read_plan(**how)["PyTorch"]["text"]
    proved(known_programs.write_plan(lines), 4, mesh="2x2")
    unsharded = re.sub(r"\n *fully_shard\(.*", "", lines)  # Accelerate's data 1, above
    wrong = trained(known_programs.write_plan(unsharded), 4, mesh="2x2", **SGD)
    assert equality.compare(wrong, baseline(**SGD)).failed


def test_orphans_are_drawn_by_nvitop_and_ended_by_an_error_in_their_block_too():
    """By TERM the one that heeds it: lesson 13b checks what each holds, and what finds it."""
    orphans = orphan_lab.Orphans()
    with contextlib.suppress(KeyboardInterrupt), orphans:
        orphans.lose_their_parent()
        here, panel = orphans.draw_with_nvitop().split("Simulated GPUs:")
        assert machine.gpu_names() or "NVIDIA Management Library (NVML) not found" in here
        for gpu, (kind, busy) in enumerate([("polite", 0), ("stubborn", 100)]):
            rank = orphans.processes[kind]
            row = rf"{gpu} +{rank.pid} C +{rank.username()[:6]}\S* +[\d.]+MiB +{busy} "
            assert re.search(row, panel), panel
            assert re.search(rf"MiB / 16384MiB .* {busy}%", panel.splitlines()[10 + 3 * gpu])
        orphans.end(signal.SIGTERM)
        assert [row["process"] for row in orphans.look("after TERM")] == ["gone", "alive"]
        raise KeyboardInterrupt
    assert not any(process_tree.is_alive(each.pid) for each in orphans.processes.values())
    assert not any(file.exists() for file in orphans.files.values())


@pytest.mark.parametrize("row", PROGRAMS, ids=lambda row: row["program"])
def test_table_of_programs_is_true(row):
    """Its lesson, file and proof exist, and the lesson names the file, its script or the helper."""
    assert (ROOT / row["file"]).exists()
    (lesson,) = NOTEBOOKS.glob(f"{row['lesson']}_*.ipynb")
    name = row["file"].rpartition("/")[2].partition(".")[0].removeprefix("_train_").strip("_")
    shorter = name.partition("_")[2] or name  # as in serve_triton
    assert re.search(rf"\b({name}|{shorter})\b", lesson.read_text()), row["program"]
    place, _, test = row["proof"].partition("::")
    proof = ROOT / ("tests" if test else "") / place
    assert f"def {test}(" in proof.read_text() if test else proof.exists()
