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

import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy

from bootcamp.serving.protocol import About

Predict = Callable[[numpy.ndarray], numpy.ndarray]
SETTINGS = "settings.json"  # in the archives of torch.export and of TorchScript


def load(path: Path | str, threads: int = 1) -> Predict:
    """The function in a file: int64 (batch, length) -> float32 (batch, 256).

    threads: CPU threads for one call; torch's are those of the whole process. Raises ValueError for
    a file that is none of these formats, ModuleNotFoundError where the format's library is missing.
    """
    return _format(path).load(Path(path), threads)


def about(path: Path | str) -> About:
    """Which model a file holds; of torch's formats it is read without torch.

    Raises ValueError for a file in which it doesn't stand.
    """
    try:
        return About.of(_format(path).words(Path(path)))
    except (KeyError, StopIteration):
        raise ValueError(f"{path}: does not say which model it holds; export it anew") from None


def ending(path: Path | str) -> str:
    """The ending of a file's name that tells its format. Raises ValueError for another."""
    for known in FORMATS:  # .aoti.pt2 before .pt2
        if Path(path).name.endswith(known):
            return known
    raise ValueError(f"{path}: expected a file that ends in one of {', '.join(FORMATS)}")


def _format(path: Path | str) -> "Format":
    return FORMATS[ending(path)]


@dataclass(frozen=True)
class Format:
    """How one format is read. words: what stands in the file about its model."""

    load: Callable[[Path, int], Predict]
    words: Callable[[Path], dict[str, str]]


def _missing(path: Path, library: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(
        f"{path.name} is read by {library}, which is not installed: pip install {library}",
        name=library,
    )


def _torch(path: Path, threads: int):
    try:
        import torch
    except ModuleNotFoundError:
        raise _missing(path, "torch") from None
    torch.set_num_threads(threads)
    return torch


def _by_torch(torch, module: Callable) -> Predict:
    def predict(ids: numpy.ndarray) -> numpy.ndarray:
        with torch.inference_mode():
            return module(torch.from_numpy(ids)).numpy()

    return predict


def _load_parameters(path: Path, threads: int) -> Predict:
    torch = _torch(path, threads)
    from bootcamp.serving import consolidate
    from bootcamp.train.models.next_byte import NextByte

    return _by_torch(torch, NextByte(consolidate.rebuild(path)).eval())


def _parameters_words(path: Path) -> dict[str, str]:
    try:
        from safetensors import safe_open
    except ModuleNotFoundError:
        raise _missing(path, "safetensors") from None
    with safe_open(path, "numpy") as file:
        return file.metadata() or {}


def _load_graph(path: Path, threads: int) -> Predict:
    torch = _torch(path, threads)
    return _by_torch(torch, torch.export.load(path).module())


def _load_machine_code(path: Path, threads: int) -> Predict:
    torch = _torch(path, threads)
    from torch._inductor import aoti_load_package

    return _by_torch(torch, aoti_load_package(str(path)))


def _load_torchscript(path: Path, threads: int) -> Predict:
    torch = _torch(path, threads)
    return _by_torch(torch, torch.jit.load(path).eval())


def _archive_words(path: Path, name: str = f"extra/{SETTINGS}") -> dict[str, str]:
    with zipfile.ZipFile(path) as archive:
        entry = next(entry for entry in archive.namelist() if entry.endswith(name))
        return json.loads(archive.read(entry))


def _machine_code_words(path: Path) -> dict[str, str]:
    return _archive_words(path, "_metadata.json")


def _session(path: Path, threads: int):
    try:
        import onnxruntime
    except ModuleNotFoundError:
        raise _missing(path, "onnxruntime") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _load_onnx(path: Path, threads: int) -> Predict:
    session = _session(path, threads)
    name = session.get_inputs()[0].name
    return lambda ids: session.run(None, {name: ids})[0]


def _onnx_words(path: Path) -> dict[str, str]:
    return _session(path, threads=1).get_modelmeta().custom_metadata_map


FORMATS = {
    ".safetensors": Format(_load_parameters, _parameters_words),
    ".aoti.pt2": Format(_load_machine_code, _machine_code_words),
    ".pt2": Format(_load_graph, _archive_words),
    ".onnx": Format(_load_onnx, _onnx_words),
    ".ts": Format(_load_torchscript, _archive_words),
}
