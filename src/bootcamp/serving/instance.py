"""An instance of a served model: a process that answers batches, and what its server sees of it.

    python -P src/bootcamp/serving/instance.py logs/exported/gpt.onnx

The process reads int64 ids from its input; scores in float32 go to its output. A batch and its
answer begin with their shape, two unsigned 32-bit numbers. The answer (0, n) is followed by n bytes
of text: why the model refuses the batch. The first answer comes unasked: with n = 0 the model is
loaded. The process ends when its input does, so it outlives no server.
"""

import asyncio
import contextlib
import os
import struct
import sys
from pathlib import Path

import numpy

if __name__ == "__main__":  # started with -P as a file: the package lies two folders up
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bootcamp.costs.model_shapes import VOCABULARY
from bootcamp.serving import artifacts

SECONDS_TO_LOAD = 60
SHAPE = struct.Struct("<II")


class Died(Exception):
    """An instance's process has ended, and the batch that it had is lost."""


class BadModel(Exception):
    """A model that can't be loaded, or that fails on a batch. Its text is the library's own."""


class Instance:
    """One process with one model. `start` makes it; a batch is answered by `predict`."""

    def __init__(self, path: Path):
        self.path, self.process = path, None

    async def start(self) -> None:
        """Start the process and wait until its model is loaded. Raises BadModel."""
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", __file__, str(self.path), stdin=pipe, stdout=pipe
        )
        try:
            async with asyncio.timeout(SECONDS_TO_LOAD):
                await self._answer()
        except (BadModel, Died, TimeoutError) as error:
            await self.stop()
            raise BadModel(f"{self.path} can't be loaded: {error}") from None
        except BaseException:
            self.process.kill()
            raise

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def predict(self, ids: numpy.ndarray) -> numpy.ndarray:
        """Score int64 ids (batch, length) as (batch, 256), one batch at a time.

        Raises Died, BadModel.
        """
        with contextlib.suppress(ConnectionError):  # then there is no answer either
            self.process.stdin.write(SHAPE.pack(*ids.shape) + ids.tobytes())
            await self.process.stdin.drain()
        scores = await self._answer()
        if scores.shape != (len(ids), VOCABULARY):
            raise BadModel(f"scores of shape {scores.shape} for {len(ids)} samples")
        return scores

    async def _answer(self) -> numpy.ndarray:
        try:
            batch, width = SHAPE.unpack(await self.process.stdout.readexactly(SHAPE.size))
            data = await self.process.stdout.readexactly(4 * batch * width or width)
        except (ConnectionError, asyncio.IncompleteReadError):
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()  # until then it counts as alive, and would get another batch
            raise Died(f"the process {self.process.pid} has ended") from None
        if width and not batch:
            raise BadModel(data.decode(errors="replace"))
        return numpy.frombuffer(data, numpy.float32).reshape(batch, width)

    async def stop(self) -> None:
        """End the process: its input ends, and so does it."""
        if self.alive:
            self.process.stdin.close()
            try:
                async with asyncio.timeout(5):
                    await self.process.wait()
            except TimeoutError:
                self.process.kill()
                await self.process.wait()


def loaded(path: Path):
    """Load a model, and try it before it takes over from one that answers."""
    predict = artifacts.load(path)
    for batch, length in ((1, 1), (3, artifacts.about(path).context)):
        scores = predict(numpy.zeros((batch, length), numpy.int64))
        if scores.shape != (batch, VOCABULARY) or not numpy.isfinite(scores).all():
            raise ValueError(f"{batch} x {length} bytes: scores {scores.shape}, or not finite")
    return predict


def answer(predict, ids: numpy.ndarray) -> bytes:
    """Answer one batch, in the bytes that are written."""
    try:
        scores = numpy.ascontiguousarray(predict(ids), numpy.float32)
        return SHAPE.pack(*scores.shape) + scores.tobytes()
    except Exception as error:  # of ONNX Runtime or torch: whatever it is, the next batch is well
        return refusal(error)


def refusal(error: Exception) -> bytes:
    text = f"{type(error).__name__}: {error}".encode(errors="replace")[:2000]
    return SHAPE.pack(0, len(text)) + text


def serve(path: Path) -> None:
    """Answer until nobody asks."""
    asked = sys.stdin.buffer
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # what a library prints must not get between the answers
        try:
            predict = loaded(path)
        except Exception as error:  # of any library
            answers.write(refusal(error))
            return
        answers.write(SHAPE.pack(0, 0))
        answers.flush()
        while head := asked.read(SHAPE.size):
            batch, length = SHAPE.unpack(head)
            ids = numpy.frombuffer(asked.read(8 * batch * length), numpy.int64)
            answers.write(answer(predict, ids.reshape(batch, length)))
            answers.flush()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
