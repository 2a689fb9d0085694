"""A table of plans for the planner: its columns, the names it knows, malformed rows, a shell."""

import csv
import io
import itertools
import json

import pytest

from bootcamp.costs import fitted_constants, hardware, planner, published
from bootcamp.costs.hardware import GIB, gpu
from bootcamp.plan import __main__

GOOD = {
    "gpu": "A100-80GB",
    "gpus": "8",
    "hidden": "4096",
    "layers": "32",
    "heads": "32",
    "sequence_length": "2048",
    "vocabulary": "50257",
    "tp": "2",
    "dp": "4",
    "pp": "1",
    "batch": "64",
    "micro_batch": "2",
    "stack": "",
}


BAD = {
    "negative": ({"gpus": "-8"}, "gpus=-8: expected a number above zero"),
    "zero": ({"micro_batch": "0"}, "micro_batch=0: expected a number above zero"),
    "missing": ({"hidden": ""}, "hidden is missing"),
    "not a number": ({"layers": "many"}, "layers=many: expected a number"),
    "not finite": ({"sequence_length": "nan"}, "sequence_length=nan: expected a number above zero"),
    "not whole": ({"tp": "1.5"}, "tp=1.5: expected a whole number"),
    "impossible mesh": ({"dp": "3"}, "6 ranks, and there are 8 GPUs"),
    "unknown GPU": ({"gpu": "A1000"}, "gpu='A1000' is not known"),
    "heads": ({"gpus": "24", "tp": "3", "dp": "8"}, "32 heads do not divide over tensor 3"),
    "layers": ({"layers": "31", "pp": "4", "dp": "1"}, "31 layers do not divide over 4 stages"),
    "batch": ({"batch": "62"}, "a batch of 62 is no multiple"),
    "infinite": ({"sequence_length": "inf"}, "sequence_length=inf: expected a number above zero"),
    "huge": ({"hidden": "4e12"}, "hidden=4e12: too large"),
    "a word behind a number": ({"batch": "64 rows"}, "batch=64 rows: expected a number"),
    "no batch": ({"batch": "", "micro_batch": ""}, "the row gives no batch"),
    "unknown schedule": ({"schedule": "spiral"}, "schedule='spiral'"),
    "unknown recomputation": ({"recompute": "perhaps"}, "recompute='perhaps'"),
    "unknown stack": ({"stack": "mine"}, "stack='mine'"),
    "unknown model": ({"hidden": "", "layers": "", "heads": "", "model": "X"}, "model='X'"),
}


def test_malformed_rows_say_why_and_the_others_are_answered(capsys, monkeypatch):
    plans = [GOOD]
    for changes, _ in BAD.values():
        plans += [{**GOOD, **changes}, GOOD]
    columns = list(dict.fromkeys(key for plan in plans for key in plan))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows(plans)
    first = text.getvalue().splitlines()[1]
    text.write(f"{first},1,2\n8\n{first}\n")  # a row too long, one too short, a good one
    monkeypatch.setattr("sys.stdin", io.StringIO(text.getvalue()))
    assert __main__.main([]) == 0
    found = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(found) == len(plans) + 3
    *found, long, short, last = found
    assert "more values than the header" in long["error"]
    assert "names no model" in short["error"]
    assert last == found[0]
    for answer, (_, said) in zip(found[1::2], BAD.values(), strict=True):
        assert said in answer["error"]
        assert answer["seconds_per_step"] == answer["limit"] == ""
    assert {row["error"] for row in found[::2]} == {""}
    assert {row["seconds_per_step"] for row in found[::2]} == {found[0]["seconds_per_step"]}
    assert [row["gpus"] for row in found] == [plan["gpus"] for plan in plans]


SAME = {
    "other cases and spaces": {f" {name.upper()} ": value for name, value in GOOD.items()},
    "axes by their long names": {
        {"tp": "tensor", "dp": "data", "pp": "pipeline"}.get(name, name): value
        for name, value in GOOD.items()
    },
    "a mesh that says how many GPUs": {**GOOD, "gpus": ""},
    "accumulation in place of a batch": {**GOOD, "batch": "", "accumulation": "8"},
    "a GPU's full name": {**GOOD, "gpu": "NVIDIA A100-SXM4-80GB"},
}


@pytest.mark.parametrize("row", SAME.values(), ids=SAME)
def test_plans_in_other_words_have_the_same_answer(row):
    good, found = __main__.answer_row(GOOD), __main__.answer_row(row)
    assert found["error"] == found["warning"] == ""
    assert found["seconds_per_step"] == good["seconds_per_step"]


def test_columns_that_nobody_reads_are_named_in_answers_and_once_on_stderr(capsys, monkeypatch):
    row = {**GOOD, "row_id": "7", "published_seconds": "3", "per_host": "4", "colour": "red"}
    lines = ",".join(row), *[",".join(row.values())] * 2
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    assert __main__.main([]) == 0
    out, err = capsys.readouterr()
    text = "ignored, since not in --columns: per_host (did you mean gpus_per_host?), colour"
    assert [answer["warning"] for answer in csv.DictReader(io.StringIO(out))] == [text, text]
    assert err == f"{text}\n"
    again = __main__.answer_row(__main__.answer_row(GOOD))
    assert again["warning"] == "", "an answer is a row that may be asked again"
    assert __main__.answer_row({**GOOD, "gpus_per_host": "4"}) != __main__.answer_row(GOOD)


def test_columns_are_listed_with_what_they_mean(capsys):
    assert __main__.main(["--columns"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(planner.COLUMNS)
    assert "tensor, tp: tensor-parallel ranks; 1" in lines


def test_work_takes_longer_and_gpus_no_less_than_their_share():
    """Over meshes, micro-batches and widths of vtrain_single's kind."""
    names = ("gpus", "data", "tensor", "pipeline")
    first, checked = published.table("vtrain_single")[0], 0
    for tensor, pipeline, micro in itertools.product((1, 2, 4), (1, 2, 4), (1, 2, 4)):
        seconds = {}
        for data, batch, layers in itertools.product((1, 2), (32, 64), (12, 24)):
            ranks_of = data * tensor * pipeline
            row = dict(zip(names, map(str, (ranks_of, data, tensor, pipeline)), strict=True))
            row |= {"micro_batch": str(micro), "batch": str(batch), "layers": str(layers)}
            answer = __main__.answer_row({**first, **row})
            seconds[data, batch, layers] = answer["seconds_per_step"]
        for data, layers in itertools.product((1, 2), (12, 24)):
            assert seconds[data, 32, layers] < seconds[data, 64, layers]
            assert seconds[data, 64, layers] <= 2 * seconds[data, 32, layers]
            assert seconds[data, 64, 12] < seconds[data, 64, 24]
            assert seconds[2, 64, layers] >= seconds[1, 64, layers] / 2
            checked += 1
    assert checked == 27 * 4


def test_gpus_are_known_by_the_words_of_their_names():
    spelled = {
        "NVIDIA A100-SXM4-40GB": "A100 40GB",
        "a100_80gb": "A100 80GB",
        "H100 SXM 96GB HBM2e 2.4TB/s, 500W cap": "H100 96GB",
        "DGX-GB200": "GB200",
        "V100-SXM2-16GB": "V100 16GB",
    } | {row["lessons"]: row["gpu"] for row in hardware.shown_in_lessons()}
    assert {name: gpu(name).name for name in spelled} == spelled
    assert gpu("H200").kind == "H100"  # whose fitted constants hold for it too
    fitted = fitted_constants.find_constants("mosaicml_mpt", "H200")
    assert fitted.matmul == fitted_constants.find_constants("mosaicml_mpt", "H100 80GB").matmul
    with pytest.raises(ValueError, match=r"gpu='H900' is not known: expected one of .*A100 80GB"):
        gpu("H900")


def test_json_goes_in_and_out(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps([{**GOOD, "gpus": 8}, {"gpus": -1}])))
    assert __main__.main(["--json"]) == 0
    good, bad = json.loads(capsys.readouterr().out)
    assert good["mfu"] > 0.1
    assert good["peak_gb"] * 1e9 == pytest.approx(good["peak_gib"] * GIB)
    assert bad["seconds_per_step"] is None
    assert bad["error"]
    monkeypatch.setattr("sys.stdin", io.StringIO("gpus,tp"))
    assert __main__.main(["--json"]) == 2
