"""The pictures of notebooks 02 and 02b: they draw what they are given."""

import pytest

pytest.importorskip("matplotlib")  # a GPU machine may lack all of the notebook side

from bootcamp.drawing import style
from bootcamp.paths import REFERENCE
from bootcamp.records.runs import Run
from bootcamp_lessons.diagrams import single_device

FORMATS = {"float32": (8, 23), "bfloat16": (8, 7)}
NONE = {"zero": 0.0, "few digits": 0.0, "all digits": 1.0, "infinite": 0.0}


def drawings():
    shares = [{**NONE, "zero": 0.25, "all digits": 0.75}, {**NONE, "infinite": 0.5}]
    return {
        "formats": single_device.number_formats(FORMATS),
        "fates": single_device.fp16_fates({"weights": shares}, [0, 16], "Measured here."),
        "curve": single_device.batch_curve([Run(REFERENCE / "xeon-2core-gpu-1")]),
        "speeds": single_device.speeds(),
        "held": single_device.activations_in_step(6, 10e6, 1e6),
    }


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("formats", "bfloat16 has 16 bits: sign 1, exponent 8, fraction 7"),
        ("fates", "at a scale of 2^0 25 % become zero, at 2^16 50 % infinite"),
        (
            "speeds",
            "V100 SXM2: float32 15.7, 16 bits 125 TFLOP/s, 900 GB/s; A100 SXM 80GB: float32 19.5, "
            "TF32 156",
        ),
        ("curve", "Larger batches: throughput and memory. batch 32: "),
        ("held", "all kept: at most 60.0 MB, ended at 18; inputs kept: at most 15.0 MB"),
    ],
)
def test_a_picture_is_drawn_and_its_alternative_says_what_it_shows(name, says):
    drawn = drawings()[name]
    assert says in drawn.alt
    assert style.png(drawn).startswith(b"\x89PNG")


def test_the_staircase_ends_empty_and_recomputing_costs_a_forward():
    plain, again = (
        single_device.trace_activations(6, 10, 10),
        single_device.trace_activations(6, 10, 1),
    )
    assert plain[-1] == (6 + 12, 0)
    assert again[-1] == (6 + 6 + 12, 0)
    assert max(size for _, size in again) == 6 * 1 + 10 - 1  # all inputs and one block's rest
