"""The requests and answers of client and server: the Open Inference Protocol over HTTP and JSON.

    POST /v2/models/gpt/infer
    {"inputs": [{"name": "ids", "shape": [1, 5], "datatype": "INT64", "data": [72, 101, ...]}]}

The model reads bytes, `ids` (batch, length), and answers with a score for each possible next byte,
`scores` (batch, 256). Triton, KServe and OpenVINO's server speak the protocol ("V2") too.
"""

import json
import math
from dataclasses import dataclass

import numpy

from bootcamp.costs.model_shapes import VOCABULARY

NAME = "gpt"  # of the model on every server
INPUT, OUTPUT = "ids", "scores"
INFER = f"/v2/models/{NAME}/infer"
READY = "/v2/health/ready"
MODEL_READY = f"/v2/models/{NAME}/ready"
LOAD = f"/v2/repository/models/{NAME}/load"  # another version
LARGEST_BODY = 1 << 20  # bytes of a request


@dataclass(frozen=True)
class Limits:
    """The largest request that a served model takes: samples, and bytes in each sample."""

    batch: int
    context: int


class Refused(Exception):
    """A request that is not answered: its HTTP status, and one sentence for the client."""

    def __init__(self, status: int, sentence: str):
        super().__init__(sentence)
        self.status = status


def make_request(ids: numpy.ndarray) -> dict:
    """Make the request for the scores after `ids`, integers (batch, length)."""
    return {"inputs": [_make_tensor(INPUT, "INT64", ids)]}


def make_answer(scores: numpy.ndarray) -> dict:
    """Make the answer with `scores`, float32 (batch, 256)."""
    return {"model_name": NAME, "outputs": [_make_tensor(OUTPUT, "FP32", scores)]}


def _make_tensor(name: str, datatype: str, values: numpy.ndarray) -> dict:
    data = values.ravel().tolist()
    return {"name": name, "shape": list(values.shape), "datatype": datatype, "data": data}


def read_ids(body: bytes, limits: Limits) -> numpy.ndarray:
    """Read the ids, int64 (batch, length), in a request's body.

    Raises Refused with status 400 for everything on which a model would fail.
    """
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not JSON in UTF-8") from None
    match request:
        case {"inputs": [dict() as tensor]}:
            name, datatype, shape, data = map(tensor.get, ("name", "datatype", "shape", "data"))
        case _:
            raise Refused(400, "an object with a list of one tensor in inputs is expected")
    if name != INPUT:
        raise Refused(400, f"the input's name is {INPUT}, not {name!r:.80}")
    if datatype != "INT64":
        raise Refused(400, f"datatype: INT64 is expected, not {datatype!r:.80}")
    if not (_are_integers(shape, least=1) and len(shape) == 2):
        raise Refused(400, f"shape: two positive numbers are expected, not {shape!r:.80}")
    if shape[0] > limits.batch or shape[1] > limits.context:
        most = f"{limits.batch} samples of {limits.context} bytes"
        raise Refused(400, f"shape {shape}: at most {most} are taken")
    if not isinstance(data, list) or len(data) != math.prod(shape):
        raise Refused(400, f"data: a list of {math.prod(shape)} numbers is expected, as shape says")
    if not _are_integers(data, least=0) or max(data) >= VOCABULARY:
        raise Refused(400, f"data: integers from 0 to {VOCABULARY - 1} are expected")
    return numpy.array(data, numpy.int64).reshape(shape)


def _are_integers(values, least: int) -> bool:
    return isinstance(values, list) and all(type(v) is int and v >= least for v in values)


def read_scores(answer: dict) -> numpy.ndarray:
    """Read the scores, float32 (batch, 256), in an answer."""
    tensor = answer["outputs"][0]
    return numpy.array(tensor["data"], numpy.float32).reshape(tensor["shape"])
