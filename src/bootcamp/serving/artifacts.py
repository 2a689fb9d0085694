"""Files that a trained model is exported to, each read as one function.

    predict = artifacts.load("logs/exported/gpt.onnx")
    scores = predict(ids)  # int64 (batch, length) -> float32 (batch, 256): the next byte's scores

The scores are those behind the last byte alone, 256 and not length * 256 a sample: a client asks
what comes next (bootcamp/train/models/next_byte.py).

    .safetensors  the parameters; the model is built by the course's own code and runs eagerly
    .pt2          a graph, by torch.export: torch runs it, the model's code is not needed
    .aoti.pt2     machine code of that graph, by AOTInductor, for CPUs like the one it was built on
    .onnx         a graph for other runtimes, here ONNX Runtime: no torch
    .ts           a graph by TorchScript, which torch has deprecated; servers of old still load it

Load only files of somebody you trust: machine code is run, whatever it does.

Each format needs a library of its own, and no other is imported: a process that serves ONNX never
loads torch. In each file stands which model it is, so that a server knows its limits.
"""

import importlib
import json
import zipfile
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy

Predict = Callable[[numpy.ndarray], numpy.ndarray]
SETTINGS = "settings.json"  # in the archives of torch.export and of TorchScript
FORMATS = (".safetensors", ".aoti.pt2", ".pt2", ".onnx", ".ts")


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
    file that is none of these formats, ModuleNotFoundError where the format's library is missing.
    """
    path = Path(path)
    if _ending(path) == ".onnx":
        session = _session(path)
        name = session.get_inputs()[0].name
        return lambda ids: session.run(None, {name: ids})[0]
    torch = _library(path, "torch")
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
    from bootcamp.train.models.next_byte import NextByte

    return NextByte(rebuild(path)).eval()


def rebuild(path: Path | str):
    """Build the course's model with a safetensors file's parameters, in float32, for inference.

    Raises RuntimeError if names or shapes are others than the model's.
    """
    from safetensors.torch import load_file

    from bootcamp.train import models

    model, size = about(path).model, about(path).size
    built = models.build(Namespace(model=model, size=size, dtype="float32", seed=0))
    built.load_state_dict(load_file(path))
    return built.eval().requires_grad_(False)


def about(path: Path | str) -> About:
    """Return which model a file holds; of torch's formats it is read without torch.

    Raises ValueError for a file in which it doesn't stand.
    """
    path = Path(path)
    try:
        words = _words(path)
        return About(words["model"], words["size"], int(words["context"]))
    except (KeyError, StopIteration):
        raise ValueError(f"{path}: does not say which model it holds; export it anew") from None


def _words(path: Path) -> dict[str, str]:
    ending = _ending(path)
    if ending == ".onnx":
        return _session(path).get_modelmeta().custom_metadata_map
    if ending == ".safetensors":
        with _library(path, "safetensors").safe_open(path, "numpy") as file:
            return file.metadata() or {}
    place = "_metadata.json" if ending == ".aoti.pt2" else f"extra/{SETTINGS}"
    with zipfile.ZipFile(path) as archive:
        entry = next(entry for entry in archive.namelist() if entry.endswith(place))
        return json.loads(archive.read(entry))


def _session(path: Path):
    onnxruntime = _library(path, "onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _ending(path: Path) -> str:
    """The ending that tells the format: of .aoti.pt2 and .pt2 the longer one."""
    for known in FORMATS:
        if path.name.endswith(known):
            return known
    raise ValueError(f"{path}: expected a file that ends in one of {', '.join(FORMATS)}")


def _library(path: Path, name: str):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"{path.name} is read by {name}, which is not installed: pip install {name}", name=name
        ) from None
