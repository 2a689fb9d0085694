"""Exported model files: each format is read as one function, and compared with the model.

    .safetensors  the parameters; the model is built by the course's own code and runs eagerly
    .pt2          a graph, by torch.export: torch runs it, the model's code is not needed
    .aoti.pt2     machine code of that graph, by AOTInductor, for CPUs like the one it was built on
    .onnx         a graph for other runtimes, here ONNX Runtime: no torch
    .ts           a graph by TorchScript, which torch has deprecated; servers of old still load it

Load only files of somebody you trust: they may run any code. A format's library is imported with
its first file, so a process that serves ONNX never loads torch.
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


@dataclass(frozen=True)
class ModelInfo:
    """The model in a file. context: the most bytes that it reads at once."""

    model: str
    size: str
    context: int

    def as_texts(self) -> dict[str, str]:
        """Return its fields as texts, which every format can store."""
        return {name: str(value) for name, value in asdict(self).items()}


def load(path: Path | str) -> Predict:
    """Return the function in a file: int64 ids (batch, length) -> float32 scores (batch, 256).

    The scores are those of the next byte. It computes on one CPU thread, and so does all of torch
    in this process. Raises ValueError for a file of another format.
    """
    suffix = _find_format(path)
    if suffix == ".onnx":
        session = _start_session(path)
        name = session.get_inputs()[0].name
        return lambda ids: session.run(None, {name: ids})[0]
    import torch

    torch.set_num_threads(1)
    match suffix:
        case ".safetensors":
            from bootcamp.train.models import NextByte

            module = NextByte(rebuild(path)).eval()
        case ".pt2":
            module = torch.export.load(path).module()
        case ".aoti.pt2":
            module = torch._inductor.aoti_load_package(str(path))
        case ".ts":
            module = torch.jit.load(path).eval()

    def predict(ids: numpy.ndarray) -> numpy.ndarray:
        with torch.inference_mode():
            return module(torch.from_numpy(ids)).numpy()

    return predict


def rebuild(path: Path | str):
    """Build the course's model with a safetensors file's parameters, in float32, for inference.

    Raises RuntimeError if names or shapes are others than the model's.
    """
    from safetensors.torch import load_file

    from bootcamp.train import models

    info = read_info(path)
    model = models.build(Namespace(model=info.model, size=info.size, dtype="float32", seed=0))
    model.load_state_dict(load_file(path))
    return model.eval().requires_grad_(False)


def read_info(path: Path | str) -> ModelInfo:
    """Read which model a file holds, without torch. Raises ValueError where it is not said."""
    suffix, texts = _find_format(path), {}
    if suffix == ".onnx":
        texts = _start_session(path).get_modelmeta().custom_metadata_map
    elif suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, "numpy") as file:
            texts = file.metadata() or {}
    else:
        place = "_metadata.json" if suffix == ".aoti.pt2" else f"extra/{SETTINGS}"
        with zipfile.ZipFile(path) as archive:
            for entry in archive.namelist():
                if entry.endswith(place):
                    texts = json.loads(archive.read(entry))
    try:
        return ModelInfo(texts["model"], texts["size"], int(texts["context"]))
    except KeyError:
        raise ValueError(f"{path}: does not say which model it holds; export it anew") from None


def _start_session(path: Path | str):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _find_format(path: Path | str) -> str:
    for suffix in FORMATS:
        if str(path).endswith(suffix):
            return suffix
    raise ValueError(f"{path}: expected a file that ends in one of {', '.join(FORMATS)}")


def compare(exported: Predict, eager: Predict, context: int) -> list[dict]:
    """Make a row for each shape: `batch`, `length`, and the largest `difference` of any score.

    An export is made with one example. If that fixes a batch, a length or a branch, only other
    shapes show it. Where the exported model raises, the difference is infinite.
    """
    random, rows = numpy.random.default_rng(seed=0), []
    for batch, length in itertools.product((1, 3, 8), sorted({1, min(7, context), context})):
        ids = random.integers(VOCABULARY, size=(batch, length))
        expected = eager(ids)
        try:
            difference = largest_difference(exported(ids), expected)
        except Exception:  # each runtime has its own kinds
            difference = math.inf
        rows.append({"batch": batch, "length": length, "difference": difference})
    return rows


def largest_difference(found: numpy.ndarray, expected: numpy.ndarray) -> float:
    """Return the largest difference of a score; infinite for another shape, or for no number."""
    if found.shape != expected.shape:
        return math.inf
    difference = float(numpy.abs(found - expected).max())
    return math.inf if math.isnan(difference) else difference


def furthest(rows: list[dict]) -> float:
    return max(row["difference"] for row in rows)
