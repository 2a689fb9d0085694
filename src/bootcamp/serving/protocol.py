"""What a client and a server say to each other: the Open Inference Protocol over HTTP and JSON.

    POST /v2/models/gpt/infer
    {"inputs": [{"name": "ids", "shape": [1, 5], "datatype": "INT64", "data": [72, 101, ...]}]}

The course's model reads bytes, `ids` (batch, length), and answers with a score for each possible
next byte, `scores` (batch, 256) in float32. KServe defined the protocol ("V2"), and Triton, KServe
and OpenVINO's server speak it: one client loads them all.
"""

import json
import math
from dataclasses import dataclass

import numpy

from bootcamp.costs.model_shapes import VOCABULARY

NAME = "gpt"  # under which every server has its model
INPUT, OUTPUT = "ids", "scores"
READY = "/v2/health/ready"
MODEL_READY = f"/v2/models/{NAME}/ready"
LOAD = f"/v2/repository/models/{NAME}/load"  # another version
LARGEST_BODY = 1 << 20  # bytes of a request


@dataclass(frozen=True)
class Limits:
    """What a served model takes: at most so many samples in a request, and bytes in a sample."""

    batch: int
    context: int


class Refused(Exception):
    """A request that is not answered: its HTTP status, and one sentence for the client."""

    def __init__(self, status: int, sentence: str):
        super().__init__(sentence)
        self.status = status


def path(model: str = NAME) -> str:
    """Return where requests for a model go."""
    return f"/v2/models/{model}/infer"


def request(ids: numpy.ndarray) -> dict:
    """Make the request for the scores behind `ids`, integers of (batch, length)."""
    data = ids.ravel().tolist()
    tensor = {"name": INPUT, "shape": list(ids.shape), "datatype": "INT64", "data": data}
    return {"inputs": [tensor]}


def ids_of(body: bytes, limits: Limits) -> numpy.ndarray:
    """Read the int64 array (batch, length) in a request's body. Raises Refused with status 400.

    Everything that a model would choke on is found here: what gets through is answered.
    """
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not JSON in UTF-8") from None
    match asked:
        case {"inputs": [dict() as tensor]}:
            name, datatype, shape, data = map(tensor.get, ("name", "datatype", "shape", "data"))
        case _:
            raise Refused(400, "an object with a list of one tensor in inputs is expected")
    if name != INPUT:
        raise Refused(400, f"the input's name is {INPUT}, not {name!r:.80}")
    if datatype != "INT64":
        raise Refused(400, f"datatype: INT64 is expected, not {datatype!r:.80}")
    if not (_are_integers(shape, least=1) and len(shape) == 2):
        raise Refused(
            400, f"shape: two numbers above 0 are expected, (batch, length), not {shape!r:.80}"
        )
    if shape[0] > limits.batch or shape[1] > limits.context:
        raise Refused(
            400,
            f"shape {shape}: at most {limits.batch} samples of {limits.context} bytes are taken",
        )
    if not isinstance(data, list) or len(data) != math.prod(shape):
        raise Refused(400, f"data: a list of {math.prod(shape)} numbers is expected, as shape says")
    if not _are_integers(data, least=0) or max(data) >= VOCABULARY:
        raise Refused(400, f"data: integers from 0 to {VOCABULARY - 1} are expected")
    return numpy.array(data, numpy.int64).reshape(shape)


def _are_integers(values, least: int) -> bool:
    return isinstance(values, list) and all(type(v) is int and v >= least for v in values)


def answer(scores: numpy.ndarray) -> dict:
    """Make the answer with `scores`, float32 of (batch, 256)."""
    data = scores.ravel().tolist()
    tensor = {"name": OUTPUT, "shape": list(scores.shape), "datatype": "FP32", "data": data}
    return {"model_name": NAME, "outputs": [tensor]}


def scores_of(answered: dict) -> numpy.ndarray:
    """Read the float32 array (batch, 256) in an answer."""
    tensor = answered["outputs"][0]
    return numpy.array(tensor["data"], numpy.float32).reshape(tensor["shape"])
