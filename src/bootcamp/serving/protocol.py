"""What a client and a server say to each other: the Open Inference Protocol over HTTP and JSON.

    POST /v2/models/gpt/infer
    {"inputs": [{"name": "ids", "shape": [1, 5], "datatype": "INT64", "data": [72, 101, ...]}]}

The course's model reads bytes, `ids` (batch, length), and answers with a score for each possible
next byte, `scores` (batch, 256) in float32. KServe defined the protocol ("V2"), and Triton, KServe
and OpenVINO's server speak it: one client loads them all.

Standard library and numpy only: the process that takes requests in does without torch.
"""

import json
import math
from dataclasses import asdict, dataclass

import numpy

from bootcamp.costs.model_shapes import VOCABULARY

INPUT, OUTPUT = "ids", "scores"
LARGEST_BODY = 1 << 20  # bytes of a request


@dataclass(frozen=True)
class Limits:
    """What a served model takes: at most so many samples in a request, and bytes in a sample."""

    batch: int
    context: int


@dataclass(frozen=True)
class About:
    """Which model a file holds. context: the most bytes that it reads at once."""

    model: str
    size: str
    context: int

    def words(self) -> dict[str, str]:
        """As every format can store it: text by name."""
        return {name: str(value) for name, value in asdict(self).items()}

    @classmethod
    def of(cls, words: dict[str, str]) -> "About":
        """Of such text. Raises KeyError where something is missing."""
        return cls(words["model"], words["size"], int(words["context"]))


class Refused(Exception):
    """A request that is not answered: its HTTP status, and one sentence for the client."""

    def __init__(self, status: int, sentence: str):
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


def path(model: str) -> str:
    """Where requests for a model go."""
    return f"/v2/models/{model}/infer"


def request(ids: numpy.ndarray) -> dict:
    """The request that asks for the scores behind `ids`, (batch, length) of integers."""
    data = ids.ravel().tolist()
    tensor = {"name": INPUT, "shape": list(ids.shape), "datatype": "INT64", "data": data}
    return {"inputs": [tensor]}


def ids_of(body: bytes, limits: Limits) -> numpy.ndarray:
    """The int64 array (batch, length) in a request's body. Raises Refused with status 400.

    Everything that a model would choke on is found here: what gets through is answered.
    """
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not JSON in UTF-8") from None
    tensor = _only_input(asked)
    shape, data = tensor.get("shape"), tensor.get("data")
    if not (isinstance(shape, list) and len(shape) == 2 and all(map(_is_count, shape))):
        raise Refused(
            400, f"shape: two numbers above 0 are expected, (batch, length), not {shape!r:.80}"
        )
    if shape[0] > limits.batch or shape[1] > limits.context:
        raise Refused(
            400,
            f"shape {shape}: at most {limits.batch} samples of {limits.context} bytes are taken",
        )
    flat = _flat(data, shape)
    if flat is None or len(flat) != math.prod(shape):
        raise Refused(400, f"data: a list of {math.prod(shape)} numbers is expected, as shape says")
    if not all(type(value) is int and 0 <= value < VOCABULARY for value in flat):
        raise Refused(400, f"data: integers from 0 to {VOCABULARY - 1} are expected")
    return numpy.array(flat, numpy.int64).reshape(shape)


def _only_input(asked) -> dict:
    tensors = asked.get("inputs") if isinstance(asked, dict) else None
    if not isinstance(tensors, list) or len(tensors) != 1 or not isinstance(tensors[0], dict):
        raise Refused(400, "an object with a list of one tensor in inputs is expected")
    if tensors[0].get("name") != INPUT:
        raise Refused(400, f"the input's name is {INPUT}, not {tensors[0].get('name')!r:.80}")
    if tensors[0].get("datatype") != "INT64":
        raise Refused(400, f"datatype: INT64 is expected, not {tensors[0].get('datatype')!r:.80}")
    return tensors[0]


def _is_count(value) -> bool:
    return type(value) is int and value > 0


def _flat(data, shape: list[int]) -> list | None:
    """A list of values, or of one list for each sample; None for anything else."""
    if not isinstance(data, list):
        return None
    if data and all(isinstance(row, list) for row in data):
        if [len(row) for row in data] != shape[0] * [shape[1]]:
            return None
        data = [value for row in data for value in row]
    return data


def answer(scores: numpy.ndarray, model: str) -> dict:
    """The answer with `scores`, float32 of (batch, 256)."""
    data = scores.ravel().tolist()
    tensor = {"name": OUTPUT, "shape": list(scores.shape), "datatype": "FP32", "data": data}
    return {"model_name": model, "outputs": [tensor]}


def scores_of(answered: dict) -> numpy.ndarray:
    """The float32 array (batch, 256) in an answer."""
    tensor = answered["outputs"][0]
    return numpy.array(tensor["data"], numpy.float32).reshape(tensor["shape"])
