"""From a checkpoint to files for a server: each is the model, and a broken one is refused."""

import argparse
import contextlib
import io
import json
import math
import re
import runpy
import shutil
import sys

import consolidate
import numpy
import pytest
import torch
import trained
from processes import run_program

from bootcamp import machine
from bootcamp.costs import model_shapes
from bootcamp.launcher import launch
from bootcamp.paths import ROOT, SRC
from bootcamp.serving import artifacts, triton, versions
from bootcamp.serving.artifacts import ModelInfo
from bootcamp.train import checkpoint, models, optimizers, sharded_checkpoint
from bootcamp.train.process_end import ConfigError
from bootcamp_lessons.labs import export_lab

ENDINGS = (".safetensors", ".pt2", ".onnx", ".ts")
LSTM, CONTEXT = "striped-lstm", 16
SMALLEST = {  # sizes of the tests' own: what is exported costs the same seconds for each layer
    "gpt": {"layers": 1, "width": 16, "heads": 2, "context": CONTEXT},
    LSTM: {"layers": 1, "width": 16, "stripes": 2, "context": CONTEXT},
}
pytest.importorskip("safetensors")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")


def flags(model, size="smallest", **more):
    given = {"model": model, "size": size, "kv_heads": None, "dtype": "float32", "seed": 1}
    return argparse.Namespace(**{**given, **more})


@pytest.fixture(scope="module", autouse=True)
def smallest():
    with pytest.MonkeyPatch.context() as patch:
        for name, size in SMALLEST.items():
            patch.setitem(models.FAMILIES[name].SIZES, "smallest", size)
            assert "smallest" in model_shapes.KINDS[name][0]
        yield


def saved(name, place):
    """A checkpoint as one rank writes it after a step, and the model that is in it."""
    args = flags(name, optimizer="adamw", lr=1e-3)
    model = models.build(args)
    optimizer = optimizers.build(args, model.parameters())
    model(torch.zeros(1, 4, dtype=torch.int64)).sum().backward()
    optimizer.step()
    settings = {name: getattr(args, name) for name in checkpoint.SETTINGS}
    head = {"format": checkpoint.FORMAT, "steps_done": 1, "settings": settings}
    torch.save(head | checkpoint.collect_state(model, optimizer), place)
    return model.eval()


def export(*given):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["export.py", *map(str, given)])
        runpy.run_path(str(SRC / "serve/export.py"), run_name="__main__")


def eager(model):
    """The training model's own scores behind the last byte."""

    def predict(ids):
        with torch.no_grad():
            return model(torch.from_numpy(ids))[:, -1].numpy()

    return predict


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """An LSTM's folder, what trains and what is said; exported on a machine without a compiler."""
    folder, said = tmp_path_factory.mktemp("exported"), io.StringIO()
    model = saved(LSTM, folder / "checkpoint.pt")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.setattr(shutil, "which", lambda name: None)
        export(folder / "checkpoint.pt", folder)
    return folder, eager(model), said.getvalue()


@pytest.mark.parametrize("ending", ENDINGS)
def test_exported_file_is_the_model_on_shapes_that_were_not_exported(exported, ending):
    """An LSTM's; those of a GPT, and from four ranks' checkpoint, are lesson 11's."""
    folder, model, _ = exported
    path = folder / f"{LSTM}{ending}"
    rows = artifacts.compare(artifacts.load(path), model, CONTEXT)
    assert {(row["batch"], row["length"]) for row in rows} == {
        (batch, length) for batch in (1, 3, 8) for length in (1, 7, CONTEXT)
    }
    assert artifacts.furthest(rows) <= artifacts.TOLERANCE, rows
    assert artifacts.load(path)(numpy.zeros((2, 3), numpy.int64)).dtype == numpy.float32
    assert artifacts.read_info(path) == ModelInfo(LSTM, "smallest", CONTEXT)
    files = {path.name for path in folder.iterdir()}
    assert files == {"checkpoint.pt", *(LSTM + ending for ending in ENDINGS)}


@pytest.mark.slow
@pytest.mark.skipif(
    machine.find_missing_for_inductor(torch.__path__[0]) is not None,
    reason="no C++ for inductor here",
)
def test_machine_code_is_the_model(tmp_path, capsys, monkeypatch):
    from torch._inductor import config

    monkeypatch.setattr(config.aot_inductor, "compile_wrapper_opt_level", "O0")  # compiles sooner
    monkeypatch.setattr(config.cpp, "vec_isa_ok", False)  # without trying out what the CPU has
    model = saved("gpt", tmp_path / "checkpoint.pt")
    export(tmp_path / "checkpoint.pt", tmp_path / "out", "--formats", "aoti")
    path = tmp_path / "out" / "gpt.aoti.pt2"
    rows = artifacts.compare(artifacts.load(path), eager(model), CONTEXT)
    assert artifacts.furthest(rows) <= artifacts.TOLERANCE, rows
    assert artifacts.read_info(path) == ModelInfo("gpt", "smallest", CONTEXT)
    assert "gpt.aoti.pt2" in capsys.readouterr().out


def test_format_that_the_machine_lacks_is_named_and_left_out(exported):
    first, *others = exported[2].splitlines()
    assert first == "aoti is left out: this machine lacks a C++ compiler."
    assert [line.split()[0] for line in others] == [LSTM + ending for ending in ENDINGS]


def test_checkpoint_of_several_ranks_becomes_one_file(tmp_path):
    """DCP's pieces are put together without ranks; 4 bytes a parameter are left of 12."""
    place, file = tmp_path / "saved", tmp_path / "gpt.safetensors"
    launch.launch("fsdp", 4, save=place, steps=1, global_batch=4, device="cpu", quiet=True)
    assert consolidate.write(place, file) == artifacts.read_info(file)
    again = dict(artifacts.rebuild(file).named_parameters())
    newest = sharded_checkpoint.find_newest(place)
    wanted, pieces = sharded_checkpoint.read(newest, again)["model"], list(newest.glob("*.distcp"))
    assert len(pieces) == 4
    assert again.keys() == wanted.keys()
    assert all(torch.equal(again[key], wanted[key]) for key in wanted)
    parameters = sum(tensor.numel() for tensor in wanted.values())
    assert 0 < file.stat().st_size - 4 * parameters < 200 * (len(wanted) + 2)  # its header
    assert sum(piece.stat().st_size for piece in pieces) > 12 * parameters


def test_process_that_serves_onnx_never_loads_torch(exported):
    folder, model, _ = exported
    code = (
        "import sys, numpy\nfrom bootcamp.serving import artifacts\n"
        f"path = {str(folder / LSTM)!r}\n"
        "print(*(artifacts.read_info(path + end).context for end in ('.onnx', '.pt2', '.ts')))\n"
        "scores = artifacts.load(path + '.onnx')(numpy.arange(6).reshape(2, 3))\n"
        "print(scores.sum(), 'torch' in sys.modules)"
    )
    done = run_program([sys.executable, "-c", code], check=True, cwd=ROOT)
    *contexts, total, torch_loaded = done.stdout.split()
    assert contexts == [str(CONTEXT)] * 3
    assert float(total) == pytest.approx(model(numpy.arange(6).reshape(2, 3)).sum(), abs=1e-4)
    assert torch_loaded == "False"


TABLE = numpy.random.default_rng(seed=1).normal(size=(256, 256)).astype(numpy.float32)


def right(ids):
    """Scores that depend on every byte, and on the length."""
    return TABLE[ids].mean(axis=1)


def batch_fixed(ids):
    if len(ids) != 1:
        raise RuntimeError("got 3\nof 1")
    return right(ids)


BROKEN = {  # what exports lose, and on which lengths and batches they are right all the same
    "a branch traced away": (lambda ids: right(ids[:, -4:]), {(1, 1), (3, 1), (8, 1)}),
    "a batch fixed": (batch_fixed, {(1, 1), (1, 7), (1, CONTEXT)}),
    "a prefix left": (lambda ids: TABLE.T[ids].mean(axis=1), set()),
    "another shape": (lambda ids: right(ids)[:, :1], set()),
    "no numbers": (lambda ids: right(ids) * math.nan, set()),
    "nothing": (right, {(batch, length) for batch in (1, 3, 8) for length in (1, 7, CONTEXT)}),
}


@pytest.mark.parametrize("lost", BROKEN)
def test_comparison_tells_what_an_export_has_lost(lost):
    wrong, right_on = BROKEN[lost]
    rows = artifacts.compare(wrong, right, CONTEXT)
    near = {(r["batch"], r["length"]) for r in rows if r["difference"] <= artifacts.TOLERANCE}
    assert near == right_on
    assert (artifacts.furthest(rows) <= artifacts.TOLERANCE) == (lost == "nothing")


def test_checkpoint_of_no_served_model_is_refused_in_a_sentence(tmp_path):
    settings = {"model": "mlp", "size": "tiny", "dtype": "float32", "optimizer": "sgd"}
    content = {"format": checkpoint.FORMAT, "settings": settings, "model": {}}
    torch.save(content, tmp_path / "mlp")
    torch.save({**content, "format": 0}, tmp_path / "old")
    (tmp_path / "text").write_text("no checkpoint")
    for name, says in {
        "mlp": "a checkpoint of mlp: the course serves gpt and striped-lstm",
        "old": "of another version of the course",
        "text": "no checkpoint of this course",
        "nothing": "no checkpoint is there",
        ".": "no checkpoint is there",
    }.items():
        with pytest.raises(ConfigError, match=says):
            consolidate.write(tmp_path / name, tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.filterwarnings("ignore")
def test_rows_of_the_lesson_show_what_each_broken_export_does():
    branch, _, content = export_lab.trace_one_branch()
    assert (branch["itself"], branch["exported"]) == ("1 of (2,)", "8 of (2,)")
    assert "data-dependent" in content["exported"]
    fixed, free, traced, unrolled = export_lab.freeze_sizes()
    assert "size()[0] == 1" in fixed["exported"]
    assert free["exported"] == free["itself"]
    assert (traced["itself"], traced["exported"]) == ("1 of (3, 4)", "1 of (1, 4)")
    assert "Constraints violated (length)" in unrolled["exported"]
    train, after_eval = (row.popitem()[1] for row in export_lab.forget_eval())
    assert train > after_eval == 0
    held = [row.get("has the parameters") for row in export_lab.keep_ddp_prefix()]
    assert held[1:] == [False, True], "silently without them, and with them"


def test_triton_serves_an_lstm_and_refuses_other_configurations_in_its_own_words():
    """Lesson 11 has the same program run, whose output is read here."""
    if why := triton.why_not(torch=True):
        pytest.skip(f"no Triton here: {why}")
    with trained.shared():
        printed = launch.run_command(["python", str(SRC / "snippets/triton_configurations.py")])
    rows = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    answers = dict(row.values() for row in rows)
    lacks = "^unable to find backend library for backend '{}', try specifying".format
    gpu = ["has kind KIND_GPU but no GPUs are available", "or unsupported gpu id 0. GPUs with"]
    says = [r"2 processes, .* (4\d) of \1 answers are within 1e-5"]  # the last wait for SIGCONT
    says += [lacks("onnxruntime"), lacks("pytorch"), lacks("tensorflow")]
    says += 2 * ["a trace makes its tensors on the CPU"] if torch.cuda.is_available() else gpu
    says += ['failed to poll from model .*: .*has no field named "instance_groups"']
    for (line, answer), pattern in zip(answers.items(), says, strict=True):
        assert re.search(pattern, answer), (line, answer)


def test_instances_on_a_gpu_take_their_own_or_say_why_not(exported, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", sys)
    monkeypatch.setenv("COURSE_PACKAGES", str(tmp_path))
    program = runpy.run_path(str(SRC / "serve/triton_model.py"))
    config = json.dumps({"parameters": {"context": {"string_value": str(CONTEXT)}}})
    args = {"model_config": config, "model_repository": tmp_path}
    args |= {"model_instance_kind": "GPU", "model_instance_device_id": "1"}
    for ending, why in (("onnx", "this ONNX Runtime computes"), ("ts", "a trace makes its")):
        number = versions.publish(tmp_path, exported[0] / f"{LSTM}.{ending}")
        with pytest.raises(ValueError, match=f"cuda:1: {why}"):
            program["TritonPythonModel"]().initialize(args | {"model_version": str(number)})
    module = program["load_graph"](exported[0] / f"{LSTM}.pt2", "meta")
    assert {each.device.type for each in module.parameters()} == {"meta"}
