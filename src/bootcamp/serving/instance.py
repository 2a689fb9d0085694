"""An instance of a served model: a process that answers batches, and what its server sees of it.

    python -P src/bootcamp/serving/instance.py logs/exported/gpt.onnx

Arrays of ids come in as pickles; scores go out in the same way, each behind its number of bytes, or
in their place a text: why the model can't be loaded or refuses a batch. The first answer comes
unasked: None says that the model is loaded. The process ends when its input does, so it outlives no
server.
"""

import asyncio
import contextlib
import os
import pickle
import struct
import sys
from pathlib import Path

import numpy

if __name__ == "__main__":  # started with -P as a file: the package lies two folders up
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bootcamp.costs.model_shapes import VOCABULARY
from bootcamp.serving import artifacts

SECONDS_TO_LOAD = 60
SIZE = struct.Struct("<Q")


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
        """Score int64 ids (batch, length) as float32 (batch, 256), one batch at a time.

        Raises Died, BadModel.
        """
        with contextlib.suppress(ConnectionError):  # then there is no answer either
            self.process.stdin.write(pickle.dumps(ids))
            await self.process.stdin.drain()
        scores = await self._answer()
        if scores.shape != (len(ids), VOCABULARY):
            raise BadModel(f"scores of shape {scores.shape} for {len(ids)} samples")
        return scores

    async def _answer(self) -> numpy.ndarray | None:
        try:
            (size,) = SIZE.unpack(await self.process.stdout.readexactly(SIZE.size))
            answer = pickle.loads(await self.process.stdout.readexactly(size))
        except (ConnectionError, asyncio.IncompleteReadError):
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()  # until then it counts as alive, and would get another batch
            raise Died(f"the process {self.process.pid} has ended") from None
        if isinstance(answer, str):
            raise BadModel(answer)
        return answer

    async def stop(self) -> None:
        """End the process: its input ends, and so does it."""
        if self.alive:
            self.process.stdin.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5):
                    await self.process.wait()
        if self.alive:
            self.process.kill()
            await self.process.wait()


def _load(path: Path):
    """Load a model, and try it before it takes over from one that answers."""
    predict = artifacts.load(path)
    for batch, length in ((1, 1), (3, artifacts.about(path).context)):
        scores = predict(numpy.zeros((batch, length), numpy.int64))
        if scores.shape != (batch, VOCABULARY) or not numpy.isfinite(scores).all():
            raise ValueError(f"{batch} x {length} bytes: scores {scores.shape}, or not finite")
    return predict


def serve(path: Path) -> None:
    """Answer until nobody asks."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the answers

    def send(answer: numpy.ndarray | str | None) -> None:
        data = pickle.dumps(answer)
        answers.write(SIZE.pack(len(data)) + data)
        answers.flush()

    try:
        predict = _load(path)
    except Exception as error:  # each library has kinds of its own
        send(f"{type(error).__name__}: {error}")
        return
    send(None)
    with contextlib.suppress(EOFError):
        while True:
            ids = pickle.load(sys.stdin.buffer)
            try:
                send(predict(ids))
            except Exception as error:  # whatever it is, the next batch is well
                send(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
