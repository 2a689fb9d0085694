"""Files that a trained model is exported to, each read as one function and held against the model.

    predict = artifacts.load("logs/exported/gpt.onnx")
    scores = predict(ids)  # int64 (batch, length) -> float32 (batch, 256): the next byte's scores
    rows = artifacts.compare(predict, artifacts.load("logs/exported/gpt.safetensors"), context=64)

The scores are those behind the last byte alone (NextByte in bootcamp/train/models).

    .safetensors  the parameters; the model is built by the course's own code and runs eagerly
    .pt2          a graph, by torch.export: torch runs it, the model's code is not needed
    .aoti.pt2     machine code of that graph, by AOTInductor, for CPUs like the one it was built on
    .onnx         a graph for other runtimes, here ONNX Runtime: no torch
    .ts           a graph by TorchScript, which torch has deprecated; servers of old still load it

Load only files of somebody you trust: machine code is run, whatever it does. Each format needs a
library of its own, and no other is imported: a process that serves ONNX never loads torch.
"""

import itertools
import json
import math
import zipfile
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy

from bootcamp.costs.model_shapes import VOCABULARY

Predict = Callable[[numpy.ndarray], numpy.ndarray]
FORMATS = (".safetensors", ".aoti.pt2", ".pt2", ".onnx", ".ts")  # .aoti.pt2 before .pt2
SETTINGS = "settings.json"  # in the archives of torch.export and of TorchScript
TOLERANCE = 1e-5  # of a score in float32: another order of additions stays far below it
BATCHES = (1, 3, 8)


@dataclass(frozen=True)
class About:
    """Which model a file holds. context: the most bytes that it reads at once."""

    model: str
    size: str
    context: int

    def words(self) -> dict[str, str]:
        """Return it as every format can store it: text by name."""
        return {name: str(value) for name, value in asdict(self).items()}


def load(path: Path | str) -> Predict:
    """Return the function in a file: int64 (batch, length) -> float32 (batch, 256).

    It computes on one CPU thread; torch's are those of the whole process. Raises ValueError for a
    file that is none of these formats.
    """
    path = Path(path)
    if _ending(path) == ".onnx":
        session = _session(path)
        name = session.get_inputs()[0].name
        return lambda ids: session.run(None, {name: ids})[0]
    import torch

    torch.set_num_threads(1)
    module = _module(path, torch)

    def predict(ids: numpy.ndarray) -> numpy.ndarray:
        with torch.inference_mode():
            return module(torch.from_numpy(ids)).numpy()

    return predict


def _module(path: Path, torch) -> Callable:
    match _ending(path):
        case ".pt2":
            return torch.export.load(path).module()
        case ".aoti.pt2":
            return torch._inductor.aoti_load_package(str(path))
        case ".ts":
            return torch.jit.load(path).eval()
    from bootcamp.train.models import NextByte

    return NextByte(rebuild(path)).eval()


def rebuild(path: Path | str):
    """Build the course's model with a safetensors file's parameters, in float32, for inference.

    Raises RuntimeError if names or shapes are others than the model's.
    """
    from safetensors.torch import load_file

    from bootcamp.train import models

    held = about(path)
    model = models.build(Namespace(model=held.model, size=held.size, dtype="float32", seed=0))
    model.load_state_dict(load_file(path))
    return model.eval().requires_grad_(False)


def about(path: Path | str) -> About:
    """Return which model a file holds, by which a server knows its limits; without torch.

    Raises ValueError for a file in which it doesn't stand.
    """
    try:
        words = _words(Path(path))
        return About(words["model"], words["size"], int(words["context"]))
    except (KeyError, StopIteration):
        raise ValueError(f"{path}: does not say which model it holds; export it anew") from None


def _words(path: Path) -> dict[str, str]:
    ending = _ending(path)
    if ending == ".onnx":
        return _session(path).get_modelmeta().custom_metadata_map
    if ending == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, "numpy") as file:
            return file.metadata() or {}
    place = "_metadata.json" if ending == ".aoti.pt2" else f"extra/{SETTINGS}"
    with zipfile.ZipFile(path) as archive:
        entry = next(entry for entry in archive.namelist() if entry.endswith(place))
        return json.loads(archive.read(entry))


def _session(path: Path):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _ending(path: Path) -> str:
    for known in FORMATS:
        if path.name.endswith(known):
            return known
    raise ValueError(f"{path}: expected a file that ends in one of {', '.join(FORMATS)}")


def compare(exported: Predict, eager: Predict, context: int) -> list[dict]:
    """Make a row for each shape: `batch`, `length`, and the largest `difference` of any score.

    An export is made with one example. What it fixes silently, a batch or a length, or a branch,
    shows on other shapes alone; so several of both are compared. Where the exported model raises,
    or answers in another shape or not in numbers, the difference is infinite.
    """
    random, rows = numpy.random.default_rng(seed=0), []
    for batch, length in itertools.product(BATCHES, sorted({1, min(7, context), context})):
        ids = random.integers(VOCABULARY, size=(batch, length))
        expected = eager(ids)
        try:
            difference = distance(exported(ids), expected)
        except Exception:  # each runtime has kinds of its own
            difference = math.inf
        rows.append({"batch": batch, "length": length, "difference": difference})
    return rows


def distance(found: numpy.ndarray, expected: numpy.ndarray) -> float:
    """Return the largest difference of a score; infinite for another shape, or for no number."""
    if found.shape != expected.shape:
        return math.inf
    difference = float(numpy.abs(found - expected).max())
    return math.inf if math.isnan(difference) else difference


def furthest(rows: list[dict]) -> float:
    """Return the largest difference of all rows."""
    return max(row["difference"] for row in rows)
