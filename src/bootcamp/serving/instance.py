"""An instance of a served model, as its server sees it: a process that answers batches."""

import asyncio
import sys
from pathlib import Path

import numpy

from bootcamp.costs.model_shapes import VOCABULARY
from bootcamp.serving import worker

SECONDS_TO_LOAD = 60


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
        command = [sys.executable, "-P", worker.__file__, str(self.path)]
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe
        )
        self._said = asyncio.create_task(self._listen())
        try:
            async with asyncio.timeout(SECONDS_TO_LOAD):
                await self.process.stdout.readexactly(len(worker.READY))
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
        shape = worker.SHAPE
        try:
            self.process.stdin.write(shape.pack(*ids.shape) + ids.tobytes())
            await self.process.stdin.drain()
            batch, width = shape.unpack(await self.process.stdout.readexactly(shape.size))
            data = await self.process.stdout.readexactly(4 * batch * width if batch else width)
        except (ConnectionError, asyncio.IncompleteReadError):
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
