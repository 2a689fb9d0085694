"""An instance of a served model: a process that answers batches, and what its server sees of it.

    python -P src/bootcamp/serving/instance.py logs/exported/gpt.onnx

The process reads int64 ids from its input; scores in float32 go to its output. A batch and its
answer begin with their shape, two unsigned 32-bit numbers; the answer to a batch that the model
refuses has the shape (0, length of a text in UTF-8). The first answer comes unasked: it says that
the model is loaded. The process ends when its input does, so it outlives no server.
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
READY = SHAPE.pack(0, 0)


class Died(Exception):
    """An instance's process has ended, and the batch that it had is lost."""


class BadModel(Exception):
    """A model that can't be loaded, or that fails on a batch. Its text is the library's own."""


class Instance:
    """One process with one model. `start` makes it; a batch is answered by `predict`."""

    def __init__(self, path: Path):
        self.path, self.process = path, None

    async def start(self) -> "Instance":
        """Start the process and wait until its model is loaded. Raises BadModel."""
        command = [sys.executable, "-P", __file__, str(self.path)]
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe
        )
        self._said = asyncio.create_task(self._listen())
        try:
            async with asyncio.timeout(SECONDS_TO_LOAD):
                await self.process.stdout.readexactly(len(READY))
        except (asyncio.IncompleteReadError, TimeoutError):
            await self.stop()
            raise BadModel(f"{self.path} can't be loaded: {await self._said}") from None
        except BaseException:
            self.process.kill()
            raise
        return self

    async def _listen(self) -> str:
        """The last line that the process writes to its errors; the others are let through."""
        last = ""
        while part := await self.process.stderr.read(1 << 16):
            text = part.decode(errors="replace")
            sys.stderr.write(text)
            last = (text.strip().splitlines() or [last])[-1]
        return last

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.returncode is None

    @property
    def pid(self) -> int:
        return self.process.pid

    async def predict(self, ids: numpy.ndarray) -> numpy.ndarray:
        """Scores (batch, 256) of int64 ids (batch, length). One batch at a time.

        Raises Died, BadModel.
        """
        try:
            self.process.stdin.write(SHAPE.pack(*ids.shape) + ids.tobytes())
            await self.process.stdin.drain()
            batch, width = SHAPE.unpack(await self.process.stdout.readexactly(SHAPE.size))
            data = await self.process.stdout.readexactly(4 * batch * width if batch else width)
        except (ConnectionError, asyncio.IncompleteReadError):
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()  # until then it counts as alive, and would get another batch
            raise Died(f"the process {self.pid} has ended") from None
        if not batch:
            raise BadModel(data.decode(errors="replace"))
        if (batch, width) != (len(ids), VOCABULARY):
            raise BadModel(f"scores of shape {(batch, width)} for {len(ids)} samples")
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


def serve(path: str) -> None:
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
    serve(sys.argv[1])
