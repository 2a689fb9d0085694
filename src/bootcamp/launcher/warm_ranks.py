"""The supervisor's end of the fork server (forkserver.py): kept alive, asked for warm ranks."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys

from bootcamp.launcher import forkserver, process_tree
from bootcamp.launcher.requests import RunRequest


async def start():
    """Start a fork server; its process."""
    command = [sys.executable, "-P", forkserver.__file__]
    return await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


class ForkServer:
    """The warm fork server: started at once, started again when it dies, asked for ranks.

    start: a coroutine function that starts one: `pid`, `stdin`, `stdout` and `wait` of its process.
    """

    def __init__(self, start=start):
        self.start = start
        self.process = None
        self.ready = asyncio.Event()
        self.gave_up = False
        self._answers: dict[str, asyncio.Future] = {}

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    async def keep_alive(self, tell) -> None:
        """Start the server and start it anew each time it ends, as long as this process lives."""
        failures = 0
        while failures < 3:
            self.process = await self.start()
            failures += 1
            async for line in self.process.stdout:
                answer = json.loads(line)
                if "ready" in answer:
                    failures = 0
                    self.ready.set()
                    tell(answer)
                elif (waiting := self._answers.pop(answer["run"], None)) and not waiting.done():
                    waiting.set_result(answer)
                else:  # the run was stopped before its ranks were there
                    process_tree.end(set(answer.get("pids", [])))
            self.ready.clear()
            await self.process.wait()
            for waiting in self._answers.values():
                if not waiting.done():
                    waiting.set_result({"died": True})
            self._answers.clear()
        self.gave_up = True
        self.ready.set()  # wake all waiters
        tell({"ready": False})

    async def fork(self, request: RunRequest) -> list[int]:
        """Fork the ranks of a run; their process ids. Tries anew if the server dies meanwhile."""
        while True:
            await self.ready.wait()
            if self.gave_up:
                raise RuntimeError('the fork server does not start: launch with start="cold"')
            waiting = asyncio.get_running_loop().create_future()
            self._answers[request.run] = waiting
            content = {**request.to_json(), "supervisor": os.getpid()}
            with contextlib.suppress(ConnectionError):
                self.process.stdin.write(json.dumps(content).encode() + b"\n")
                await self.process.stdin.drain()
            answer = await waiting
            if "error" in answer:
                raise RuntimeError(answer["error"])
            if "pids" in answer:
                return answer["pids"]
