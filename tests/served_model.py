"""A model that is written and loaded in milliseconds, for tests of servers: no training in it.

The scores behind a text are the mean of its bytes' rows in a random table. So they depend on every
byte, on the length and on nothing else in the batch.
"""

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

from bootcamp.serving import artifacts

CONTEXT = 64


def write(path, seed: int, times: float = 1.0) -> None:
    """Write the model as ONNX. times: a factor of its scores."""
    table = times * numpy.random.default_rng(seed).normal(size=(256, 256)).astype(numpy.float32)
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("ReduceMean", ["rows", "axes"], ["scores"], keepdims=0),
    ]
    asks = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])
    answers = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 256])
    arrays = {"table": table, "axes": numpy.array([1])}
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "mean", [asks], [answers], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    helper.set_model_props(model, {"model": "mean", "size": "tiny", "context": str(CONTEXT)})
    onnx.save(model, path)


def two_versions(folder) -> tuple:
    """Write v1.onnx and v2.onnx, which answer differently; both as functions."""
    paths = [folder / f"v{seed}.onnx" for seed in (1, 2)]
    for seed, path in enumerate(paths, start=1):
        write(path, seed)
    return tuple(map(scores, paths))


def scores(path):
    """The model as a function, in this process."""
    return artifacts.load(path)
