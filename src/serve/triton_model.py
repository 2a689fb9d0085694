"""The model of a Triton repository: Triton's python backend runs it, with ONNX Runtime.

`bootcamp.serving.triton.Server` puts a copy beside the exported model, as
`gpt/1/model.py` and `gpt/1/model.onnx`. Triton starts a process for each instance, and calls the
three methods below. `ids` INT64 (batch, length) -> `scores` FP32 (batch, 256), the next byte's.

Of Triton's documentation: github.com/triton-inference-server/python_backend
"""

import json
from pathlib import Path

import numpy
import onnxruntime
import triton_python_backend_utils as triton


class TritonPythonModel:
    def initialize(self, args):
        """Load the model in an instance's process. An error here refuses the version."""
        config = json.loads(args["model_config"])
        self.context = int(config["parameters"]["context"]["string_value"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # more instances, not more threads, take more cores
        providers = ["CPUExecutionProvider"]
        path = Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        self.session = onnxruntime.InferenceSession(path, options, providers=providers)
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

    def predict(self, ids):
        """Score int64 ids (batch, length) as float32 (batch, 256)."""
        return self.session.run(["scores"], {"ids": ids})[0]

    def find_error(self, ids):
        """Say what is wrong with a request, or None. Triton has checked the rest."""
        batch, length = ids.shape
        if not batch or not 1 <= length <= self.context:
            return f"shape {list(ids.shape)}: samples of 1 to {self.context} bytes are taken"
        if ids.min() < 0 or ids.max() > 255:
            return "data: integers from 0 to 255 are expected"
        return None


def make_answer(scores):
    """Make the response with a request's scores, (batch, 256)."""
    return triton.InferenceResponse([triton.Tensor("scores", scores)])


def make_refusal(sentence):
    """Make the response that Triton's HTTP service sends with status 400."""
    error = triton.TritonError(sentence, triton.TritonError.INVALID_ARG)
    return triton.InferenceResponse(error=error)
