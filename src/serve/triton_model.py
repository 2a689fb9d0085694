"""The model of a Triton repository: Triton's python backend runs it, whatever its format.

`bootcamp.serving.triton.Server` puts a copy beside the exported model, as `gpt/1/model.py` and
`gpt/1/model.onnx`: ONNX Runtime runs it, torch a `model.ts` (TorchScript) or a `model.pt2`
(torch.export). Triton starts a process for each instance, and calls the three methods below.
`ids` INT64 (batch, length) -> `scores` FP32 (batch, 256), the next byte's.

Of Triton's documentation: github.com/triton-inference-server/python_backend
"""

import json
import os
import sys
from pathlib import Path

import numpy
import triton_python_backend_utils as triton


class TritonPythonModel:
    def initialize(self, args):
        """Load the model in an instance's process. An error here refuses the version."""
        config = json.loads(args["model_config"])
        self.context = int(config["parameters"]["context"]["string_value"])
        # the one of `gpus: [ 0, 1 ]` that Triton has given to this instance
        on_gpu = args["model_instance_kind"] == "GPU"
        device = f"cuda:{args['model_instance_device_id']}" if on_gpu else "cpu"
        folder = Path(args["model_repository"]) / args["model_version"]
        (path,) = (file for file in folder.glob("model.*") if file.suffix != ".py")
        load = load_for_onnxruntime if path.suffix == ".onnx" else load_for_torch
        self.predict = load(path, device)  # int64 ids (batch, length) -> float32 (batch, 256)
        # a version that can't answer must not replace one that can
        for length in (1, self.context):
            scores = self.predict(numpy.zeros((2, length), numpy.int64))
            if scores.shape != (2, 256) or not numpy.isfinite(scores).all():
                raise ValueError(f"{length} bytes: scores {scores.shape}, or not finite")

    def execute(self, requests):
        """Answer the requests of a batch, in order; all of them have one length."""
        asked = [triton.get_input_tensor_by_name(each, "ids").as_numpy() for each in requests]
        errors = [self.find_error(ids) for ids in asked]
        good = [ids for ids, error in zip(asked, errors, strict=True) if error is None]
        scores = iter(())
        if good:
            ends = numpy.cumsum([len(ids) for ids in good])
            scores = iter(numpy.split(self.predict(numpy.concatenate(good)), ends[:-1]))
        return [make_refusal(error) if error else make_answer(next(scores)) for error in errors]

    def find_error(self, ids):
        """Say what is wrong with a request, or None. Triton has checked the rest."""
        batch, length = ids.shape
        if not batch or not 1 <= length <= self.context:
            return f"shape {list(ids.shape)}: samples of 1 to {self.context} bytes are taken"
        if ids.min() < 0 or ids.max() > 255:
            return "data: integers from 0 to 255 are expected"
        return None


def load_for_onnxruntime(path, device):
    """Return the function in an .onnx file, on one core."""
    import onnxruntime

    if device != "cpu":
        raise ValueError(f"{device}: this ONNX Runtime computes on CPUs; publish the .pt2 file")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # more instances, not more threads, take more cores
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(path, options, providers=providers)
    return lambda ids: session.run(["scores"], {"ids": ids})[0]


def load_for_torch(path, device):
    """Return the function in a .ts or .pt2 file, on one core or on a GPU."""
    # behind this environment's own packages: Triton's backend needs its numpy 1
    sys.path.append(os.environ["COURSE_PACKAGES"])
    import torch

    torch.set_num_threads(1)
    if path.suffix == ".pt2":
        module = load_graph(path, device)
    elif device == "cpu":
        module = torch.jit.load(path).eval()
    else:
        raise ValueError(f"{device}: a trace makes its tensors on the CPU; publish the .pt2 file")

    def predict(ids):
        with torch.inference_mode():
            return module(torch.from_numpy(ids).to(device)).cpu().numpy()

    return predict


def load_graph(path, device):
    """Load what torch.export wrote; its parameters, and the tensors that it makes, move along."""
    import torch
    from torch.export.passes import move_to_device_pass

    return move_to_device_pass(torch.export.load(path), device).module()


def make_answer(scores):
    """Make the response with a request's scores, (batch, 256)."""
    return triton.InferenceResponse([triton.Tensor("scores", scores)])


def make_refusal(sentence):
    """Make the response that Triton's HTTP service sends with status 400."""
    error = triton.TritonError(sentence, triton.TritonError.INVALID_ARG)
    return triton.InferenceResponse(error=error)
