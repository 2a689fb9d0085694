"""An instance of a served model: a process that computes batches, and the server's handle of it.

    python -P src/bootcamp/serving/instance.py logs/exported/gpt.onnx FILE_DESCRIPTOR

Ids come in over a connection, and scores go out, or in their place an error's text; the first
answer, None, says that the model is loaded. The process ends with the connection.
"""

import asyncio
import contextlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

import numpy

if __name__ == "__main__":  # started with -P as a file: the package lies two folders up
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bootcamp.costs.model_shapes import VOCABULARY
from bootcamp.serving import artifacts

SECONDS_TO_LOAD, SECONDS_TO_STOP = 60, 5


class Died(Exception):
    """An instance's process has ended, and the batch that it had is lost."""


class BadModel(Exception):
    """A model can't be loaded, or fails on a batch. The text is the library's own."""


class Instance:
    """A process with one model."""

    def __init__(self, path: Path):
        self.path, self.process = path, None
        self._thread = ThreadPoolExecutor(1)  # its own: asyncio's are few, and each waits for long

    async def start(self) -> None:
        """Start the process and wait until its model is loaded. Raises BadModel."""
        self.connection, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-P", __file__, str(self.path), str(theirs.fileno())]
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        try:
            if not await self._call(self.connection.poll, SECONDS_TO_LOAD):
                raise BadModel(f"it takes more than {SECONDS_TO_LOAD} s")
            await self._read_answer()
        except (BadModel, Died) as error:
            await self.stop()
            raise BadModel(f"{self.path} can't be loaded: {error}") from None
        except BaseException:
            self.process.kill()  # then poll returns in its thread
            raise

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    async def predict(self, ids: numpy.ndarray) -> numpy.ndarray:
        """Score int64 ids (batch, length) as float32 (batch, 256), one batch at a time.

        Raises Died, BadModel.
        """
        with contextlib.suppress(OSError):  # then there is no answer either
            self.connection.send(ids)
        scores = await self._read_answer()
        if scores.shape != (len(ids), VOCABULARY):
            raise BadModel(f"scores of shape {scores.shape} for {len(ids)} samples")
        return scores

    async def _call(self, function, *arguments):
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def _read_answer(self) -> numpy.ndarray | None:
        try:
            answer = await self._call(self.connection.recv)
        except (EOFError, OSError):
            await self.stop()  # until it has ended it would count as alive, and get another batch
            raise Died(f"the process {self.process.pid} has ended") from None
        if isinstance(answer, str):
            raise BadModel(answer)
        return answer

    async def stop(self) -> None:
        """End the process by closing the connection; kill it if that does not end it."""
        if self.process is None:
            return
        self.connection.close()
        try:
            await asyncio.to_thread(self.process.wait, SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _load_and_try(path: Path) -> artifacts.Predict:
    predict = artifacts.load(path)
    for batch, length in ((1, 1), (3, artifacts.read_info(path).context)):
        scores = predict(numpy.zeros((batch, length), numpy.int64))
        if scores.shape != (batch, VOCABULARY) or not numpy.isfinite(scores).all():
            raise ValueError(f"{batch} x {length} bytes: scores {scores.shape}, or not finite")
    return predict


def serve(path: Path, connection: Connection) -> None:
    """Load the model and answer batches until the other end closes."""
    try:
        predict = _load_and_try(path)
    except Exception as error:  # each library has its own kinds
        connection.send(f"{type(error).__name__}: {error}")
        return
    connection.send(None)
    with contextlib.suppress(EOFError):
        while True:
            ids = connection.recv()
            try:
                connection.send(predict(ids))
            except Exception as error:  # the next batch may be well
                connection.send(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Connection(int(sys.argv[2])))
