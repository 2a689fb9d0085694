"""python -P src/bootcamp/serving/worker.py logs/exported/gpt.onnx

One instance of a served model: a process that answers one batch after another. instance.py starts
it and writes int64 ids to its input; scores in float32 come back on its output. A batch and its
answer begin with their shape, two unsigned 32-bit numbers; the answer to a batch that the model
refuses has the shape (0, length of a text in UTF-8). The first answer comes unasked: it says that
the model is loaded. The process ends when its input does, so it outlives no server.
"""

import os
import struct
import sys
from pathlib import Path

import numpy

if __name__ == "__main__":  # started with -P as a file: the package lies two folders up
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bootcamp.serving import artifacts

SHAPE = struct.Struct("<II")
READY = SHAPE.pack(0, 0)


def answer(predict, ids: numpy.ndarray) -> bytes:
    """The answer to one batch as it is written."""
    try:
        scores = numpy.ascontiguousarray(predict(ids), numpy.float32)
        return SHAPE.pack(*scores.shape) + scores.tobytes()
    except Exception as error:  # of ONNX Runtime or torch: whatever it is, the next batch is well
        text = f"{type(error).__name__}: {error}".encode(errors="replace")[:2000]
        return SHAPE.pack(0, len(text)) + text


def check(predict, context: int) -> None:
    """Try a model before it takes over from one that answers. Raises ValueError."""
    for batch, length in ((1, 1), (3, context)):
        scores = predict(numpy.zeros((batch, length), numpy.int64))
        if scores.shape != (batch, 256) or not numpy.isfinite(scores).all():
            raise ValueError(f"{batch} x {length} bytes: scores {scores.shape}, or not finite")


def main(path: str) -> None:
    """Answer until nobody asks."""
    asked = sys.stdin.buffer
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # what a library prints must not get between the answers
        predict = artifacts.load(Path(path))
        check(predict, artifacts.about(path).context)
        answers.write(READY)
        answers.flush()
        while head := asked.read(SHAPE.size):
            batch, length = SHAPE.unpack(head)
            ids = numpy.frombuffer(asked.read(8 * batch * length), numpy.int64)
            answers.write(answer(predict, ids.reshape(batch, length)))
            answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])
