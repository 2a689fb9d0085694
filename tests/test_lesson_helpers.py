"""What lessons calculate, against numbers by hand. What they measure, their own cells check."""

import json
import os
import re

import pytest
import torch
from records import make_trace, write_files
from trained import trained

from bootcamp.costs import layer_cut
from bootcamp.experiments import equality
from bootcamp.launcher import launch
from bootcamp_lessons import ddp_depth, ddp_practice, excerpts, sharding_tables
from bootcamp_lessons.exercises.data_parallel import late_rank
from bootcamp_lessons.labs import faster_step, silent_bugs

QUIET = {"device": "cpu", "quiet": True}
SCRIPT = "train.py"


def print_rows(snippet: str, ranks: int, **flags) -> list[dict]:
    """Return what the ranks of a lesson's program printed: a run that the lesson shares."""
    return excerpts.parse_printed(
        trained(excerpts.SNIPPETS / f"{snippet}.py", ranks, **QUIET, **flags)
    )


# One device


def test_rounding_is_to_the_nearest_and_ties_go_to_the_even_one():
    one, unit = 1.0, 2.0**-10  # the distance of TF32's numbers after 1
    given = torch.tensor([one + 0.4 * unit, one + 0.6 * unit, one + 0.5 * unit, one + 1.5 * unit])
    rounded = faster_step.round_bits(torch.cat([given, -given]), fraction=10)
    expected = torch.tensor([one, one + unit, one, one + 2 * unit])
    assert torch.equal(rounded, torch.cat([expected, -expected]))


def test_eight_bits_are_those_of_torchs_own_types():
    """All of their numbers, the middles between two, what is next to these, and beyond; MXFP8."""
    scales = 2.0 ** torch.arange(-127, 128)
    codes = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(scales.to(torch.float8_e8m0fnu).view(torch.uint8), codes[:-1])
    blocks = torch.randn(1000, 32) * 2.0 ** torch.linspace(-100, 120, 1000)[:, None]
    scales = 2.0 ** (blocks.abs().amax(1, keepdim=True).frexp().exponent - 1 - 8)
    assert torch.equal(scales.to(torch.float8_e8m0fnu).float(), scales)
    for dtype, *bits in ((torch.float8_e4m3fn, 3, 4, 448), (torch.float8_e5m2, 2, 5)):
        own = codes.view(dtype).float()
        own = own[own.isfinite()].sort().values
        middles = (own[1:] + own[:-1]) / 2
        beside = [middles.nextafter(torch.tensor(end)) for end in (-torch.inf, torch.inf)]
        beyond = own[-1] * torch.linspace(1, 2, 999)
        ends = torch.tensor([torch.inf, -torch.inf, 3.4e38, 1e-45, -0.0])
        edges = torch.cat([own, middles, *beside, beyond, ends])
        for given in (edges, blocks, blocks / scales, torch.randn(10_000)):
            pair = faster_step.round_bits(given, *bits), given.to(dtype).float()
            assert torch.equal(*(each.view(torch.int32) for each in pair))
        assert faster_step.round_bits(torch.tensor(torch.nan), *bits).isnan()


# Replicas


def test_baseline_of_lesson_04b_is_clipped():
    """Else nothing there would show that its scripts clip."""
    flags = {name: value for name, value in ddp_practice.FLAGS.items() if name != "quiet"}
    clipped = ddp_practice.launch_baseline(trained, optimizer="sgd")
    assert equality.compare(clipped, equality.baseline(optimizer="sgd", **flags)).failed


def test_compiled_and_wrapped_model_is_one_graph():
    flags = {name: value for name, value in ddp_practice.FLAGS.items() if name != "quiet"}
    flags |= {"model": "mlp", "optimizer": "sgd", "backend": "aot_eager"}
    assert "graphs: 1" in trained(ddp_practice.make_compiled_script(), 2, **flags).output(0)


@pytest.fixture
def late_run(tmp_path):
    """Two ranks that hang after a traced step of 100 ms; rank 1 was late, and rank 0 waited."""
    stack = f'rank\n----\n   0\nrank 0, 2 steps done:\n  File "/x/{SCRIPT}", line 2 in <module>\n'
    error = {"kind": "hang", "traceback": stack}
    config = {"strategy": "ddp", "device": "cpu", "processes": 2, "cores_per_rank": 1}
    config |= {"machine": {"cpu": "a CPU", "cores": 2, "gpus": []}, "versions": {"torch": "2.13.0"}}
    run = write_files(tmp_path, config, {"status": "failed", "error": error})
    for rank, (computes, reduces) in enumerate([((0, 40), (30, 70)), ((50, 40), (80, 20))]):
        traced = make_trace(
            ("training_step", "user_annotation", 0, 100),
            ("aten::mm", "cpu_op", *computes),
            ("gloo:all_reduce", "user_annotation", *reduces),
        )
        (tmp_path / "ranks" / f"{rank}.trace.json").write_text(json.dumps(traced))
    return run


def test_parts_of_a_step_add_up_and_tell_who_is_late(late_run):
    table = ddp_depth.split_step(late_run)
    assert table.column("computes") == pytest.approx([40, 40])
    assert table.column("waits") == pytest.approx([40, 0])
    assert table.column("sends") == pytest.approx([20, 10])
    assert table.column("neither") == pytest.approx([0, 50])
    assert late_rank(table.rows) == (1, "neither", pytest.approx(50))


def test_line_where_a_rank_stands_is_the_scripts(late_run, tmp_path):
    script = tmp_path / SCRIPT
    script.write_text("import torch\nloss.backward()\n")
    assert excerpts.find_waiting_lines(late_run, script) == "rank 0\n    line 2: loss.backward()"


@pytest.mark.parametrize(
    ("own", "late"),
    [
        ([[0.010] * 8, [0.013] * 8], 1),
        ([[0.0130] * 8, [0.0100] * 8, [0.0102] * 8], 0),
        ([[0.010] * 8, [0.0105] * 8], None),
        ([[0.010] * 8, [0.010] * 5 + [0.080] * 3], None),  # disturbed now and then, not late
    ],
)
def test_straggler_is_the_rank_with_the_longest_own_work(tmp_path, own, late):
    run = write_files(tmp_path, {"processes": len(own)})
    for rank, steps in enumerate(own):
        row = {"rank": rank, "own": steps, "rest": [0.1 - seconds for seconds in steps]}
        (tmp_path / "ranks" / f"{rank}.out").write_text(json.dumps(row))
    assert ddp_practice.find_straggler(run) == late


# Parts of the model


def test_best_cut_has_the_cheapest_most_expensive_part():
    assert layer_cut.best([1, 1, 1, 1], 2) == (0, 2, 4)
    assert layer_cut.best([0, 1, 1, 4], 2) == (0, 3, 4)
    assert layer_cut.part_costs([0, 1, 1, 4], (0, 3, 4)) == [2, 4]
    assert layer_cut.equal(14, 4) == (0, 3, 7, 10, 14)
    costs = layer_cut.gpt2("small")
    assert 4 < costs["time"][-1] / costs["time"][1] < 5, "the head is worth more than four blocks"
    rows = layer_cut.compare(costs, 4)
    assert rows[0]["time, largest / mean"] == pytest.approx(1.813, abs=1e-3)
    for row, kind in zip(rows[1:], costs, strict=True):
        best = min(each[f"{kind}, largest / mean"] for each in rows)
        assert row[f"{kind}, largest / mean"] == best


@pytest.mark.parametrize("order", ["straight", "zigzag"])
def test_ring_attention_shares_the_work_equally_in_zigzag_alone(order):
    """That it is plain attention, and what each way sends, lesson 06d checks."""
    records = print_rows("context_parallel", 4, order=order)
    work = [sum(record["computed"]) for record in records]
    assert (len(set(work)) == 1) == (order == "zigzag")
    for record in records:
        assert sorted(record["held"]) == list(range(4)), "every block came by"


def test_data_parallel_with_a_dataloader_ends_where_one_process_ends():
    program = trained(excerpts.SNIPPETS / "dp_with_dataloader.py", 1)
    held, said, *ends = excerpts.parse_printed(program)
    if not torch.cuda.is_available():
        assert held == {"device_ids": [], "pinned": False}
        assert "is set as true but no accelerator is found" in said["said"][0]
    for row in ends:
        apart = row["first gradient apart"], row["update apart"]
        assert min(apart) > 1e-4 if row["way"].startswith("a mean") else max(apart) < 1e-5, row
    assert len(ends) == 3 * 3


# Shards


def test_zero_by_hand_holds_its_parts():
    """That each stage is the whole training, lesson 07 checks."""
    stages = print_rows("zero_by_hand", 4)
    psi = stages[0]["numbers"]
    layer, whole = psi // 8, 8 * psi
    parts = 8 * (layer + 7 * layer / 4)  # one that is not cut yet, seven parts
    for number, stage in enumerate(stages):
        assert stage["most"]["optimizer"] == 2 * whole / (4 if number >= 1 else 1)
        assert stage["most"]["gradients"] == (parts if number >= 2 else whole)
        assert stage["kept"]["parameters"] == (whole / 4 if number == 3 else whole)


# model, with: what DDP, FSDP2 and HSDP make of it
DEPENDENCIES = """
a layer used twice, -: equal, equal, equal
embedding and head tied, -: equal, refused, refused
a branch for half of the ranks, -: refused, 1 apart, 0.62 apart
a branch for no rank, -: refused, equal, equal
tied, built on meta, -: 0.64 apart, 0.64 apart, 0.64 apart
embedding and head tied, together: equal, equal, equal
a branch for half of the ranks, together, unused: equal, equal, equal
a branch for no rank, together, unused: equal, 0.0011 apart, 0.0011 apart
tied, built on meta, together, again: equal, equal, equal
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_layers_that_depend_on_each_other_train_as_lesson_08_says(ranks):
    found = print_rows("layer_dependencies", ranks)
    rows = sharding_tables.compare_dependencies(found).rows
    said = [f"{r['model']}, {r['with']}: {r['DDP']}, {r['FSDP2']}, {r['HSDP']}" for r in rows]
    assert said == DEPENDENCIES.strip().splitlines()
    apart = {apart for case in found for apart in case["apart"].values()}
    assert not any(1e-12 < each < 1e-4 for each in apart), "equal by a wide margin, or not at all"


@pytest.mark.parametrize("ranks", [2, 4])
def test_adapters_train_as_in_one_process_unless_made_late_or_beside_other_bases(ranks):
    """What is sent, lesson 07b checks."""
    *right, ddp_late, fsdp_late, ddp_drawn, fsdp_drawn = print_rows("lora_sharded", ranks)
    late, drawn = "adapters after wrapping", "base drawn by each rank"
    mistaken = ddp_late, fsdp_late, ddp_drawn, fsdp_drawn
    assert [each["mistake"] for each in mistaken] == [late, late, drawn, drawn]
    assert all(min(each["from one process"], each["from rank 0"]) > 0.1 for each in mistaken[:2])
    assert fsdp_drawn["from one process"] > 0.1 > 1e-12 > fsdp_drawn["from rank 0"], "a patchwork"
    for each in (*right, ddp_drawn):
        assert max(each["from one process"], each["from rank 0"]) < 1e-12, each
    assert {each["optimizer, MB"] / each["gradients, MB"] for each in right} == {2.0}
    assert {round(each["trained, %"]) for each in right} == {7, 100}


def test_a_pretrained_model_is_loaded_by_two_ranks_and_saved_back_bit_for_bit(tmp_path):
    """Four ranks load in lesson 07b."""
    pytest.importorskip("safetensors")
    found = sorted(print_rows("load_pretrained", 2, folder=tmp_path), key=lambda said: said["rank"])
    assert [said["apart"].get(way) for said in found for way in said["grown"]] == [0.0] * 4
    assert found[0]["saved_back"]
    silent = {
        how for how, far in found[0]["apart"].items() if not isinstance(far, str) and far > 0.1
    }
    assert silent == {"attn.c_proj not transposed", "a name left out, strict=False"}


def test_a_stream_is_read_once_while_ranks_and_workers_change_and_not_with_mistakes(tmp_path):
    """On four ranks in lesson 07b."""
    *found, dealt = print_rows("streaming_data", 2, folder=tmp_path)
    assert [run["case"] for run in found if not run["never"]] == ["Stream", "Own"], "two stay two"
    for run in found:
        assert run["contents"], "an id has another sample's contents"
        assert run["again"] == run["never"]
        assert sum(run["losses"][-3:]) / 3 < run["losses"][0] - 0.3
        apart = min(run["apart"]) > 0.1 if run["never"] else max(run["apart"]) < 1e-12
        assert apart, "equal by a wide margin, or not at all"
        assert (run["same"] == len(run["losses"])) == (not run["never"])
    assert list(dealt["batches of each rank"].values()) == [[11, 17, 11, 11], [22, 18, 0]]


@pytest.mark.skipif(not launch.available("deepspeed"), reason="DeepSpeed is not installed")
def test_zero_1_alone_keeps_all_gradients_between_micro_batches():
    first, second = print_rows("zero_accumulate", 2)
    whole = first["whole"]
    assert first["ends"] == [whole, whole // 2]
    assert second["ends"] == [whole // 2, whole // 2]


@pytest.mark.skipif(not launch.available("deepspeed"), reason="DeepSpeed is not installed")
def test_deepspeed_as_printed_stops_and_its_zero_grad_deletes_micro_batches():
    printed = print_rows("deepspeed_as_printed", 2)
    *stopped, cast, mended, with_sgd = printed[:6]
    fp16, placed = "Type fp16 is not supp|Cannot access", "Cannot access|be on the same|no NVIDIA"
    for row, said in zip(stopped, (fp16, placed, "mat1 and mat2 must"), strict=True):
        assert re.match(rf"\w+Error: .*({said})", row["stopped by"])
    assert (cast["steps"], cast["loss scale"]) == (2, 2**15), "65,536 is no float16"
    for row in (mended, with_sgd):
        assert (row["steps"], row["loss scale"]) == (4, 2**16)
        assert row["loss apart"] < 1e-3 < cast["loss apart"]
    for row in printed[6:]:
        apart = [row["before backward, 2"], row["before step, 2"]]
        assert apart == [0, 0] if row["stage"] == 2 else min(apart) > 0.01


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="Linux bounds the memory")
@pytest.mark.parametrize("way", ["meta", "complete"])
def test_model_that_no_rank_could_hold_is_initialised_in_shards(way):
    for rank in print_rows("initialise_sharded", 4, way=way):
        assert rank["room"] < 0.7 * rank["model"]
        if way == "complete":
            assert "can't allocate memory" in rank["error"]
            continue
        peak = rank["model"] / 4 + rank["largest"]  # one unit after another
        assert rank["grown"] == pytest.approx(peak, rel=0.05)
        assert rank["held"] == rank["model"] / 4


# Three axes


def test_recorded_curves_show_no_bug_and_one_that_does_is_noticed():
    """Every broken curve stays nearer to the right one than a step moves it, by far in most."""
    found = silent_bugs.read_curves()["curves"]
    assert list(found) == list(silent_bugs.CASES)
    for name, both in found.items():
        gap = silent_bugs.compare_curves(both)
        assert 1e-5 < gap["apart"] < 0.2 * gap["moves"], name
    right = [5 - step / 10 + (step % 2) / 10 for step in range(50)]
    gap = silent_bugs.compare_curves({"right": right, "wrong": [loss + 0.3 for loss in right[20:]]})
    assert gap["apart"] == pytest.approx(0.3)
    assert gap["moves"] < gap["apart"]
