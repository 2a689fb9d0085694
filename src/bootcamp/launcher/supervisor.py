"""python -P src/bootcamp/launcher/supervisor.py <process id of the kernel>

The process between a notebook's kernel and its ranks: starts them, watches them, ends them.

It adopts every orphan below it (Linux: child subreaper), so nothing that a run starts gets away
from it; and it holds a pipe to the kernel, so when the kernel dies, however it dies, it ends every
rank and itself. It speaks with the kernel in lines of JSON on standard input and output:

    <- {"do": "run", "run": folder, "request": a RunRequest as JSON}
    <- {"do": "stop", "run": folder, "why": "interrupted"}
    <- {"do": "join", "run": folder, "host": 1}     torchrun on a host that was absent or lost
    -> {"ready": true, "gpus": 0}
    -> {"run": folder, "event": "waiting", "message": why it has not begun}
    -> {"run": folder, "event": "ended", "error": null or what went wrong}

Imports no torch, so that it is there before the fork server has loaded it.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

if __name__ == "__main__":  # started with -P as a file: the package lies one folder up
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bootcamp import linux
from bootcamp.launcher import process_tree, spawn
from bootcamp.launcher.job import Job
from bootcamp.launcher.messages import RunRequest
from bootcamp.records import summary

POLL_SECONDS = 0.5
END_SECONDS = 15  # for the runs to end when the kernel is gone


class Supervisor:
    """Takes the kernel's requests until the kernel is gone."""

    def __init__(self, kernel: int, start_server=spawn.start_server):
        self.kernel = kernel
        self.events = os.dup(1)
        os.dup2(2, 1)  # what anybody prints must not end up among the events
        self.server = spawn.ForkServer(start_server)
        self.jobs: dict[str, Job] = {}
        self.runs: set[asyncio.Task] = set()

    def tell(self, event: dict) -> None:
        with contextlib.suppress(OSError):  # the kernel may be gone
            os.write(self.events, json.dumps(event).encode() + b"\n")

    async def main(self) -> None:
        linux.adopt_orphans()
        kept_alive = asyncio.create_task(self.server.keep_alive(self.tell))
        requests = asyncio.create_task(self._take_requests())
        gone = asyncio.create_task(self._kernel_gone())
        await asyncio.wait({requests, gone}, return_when="FIRST_COMPLETED")
        for job in self.jobs.values():
            job.stop("kernel died")
        if self.runs:
            await asyncio.wait(self.runs, timeout=END_SECONDS)
        kept_alive.cancel()
        process_tree.end(process_tree.below({os.getpid()}))

    async def _take_requests(self) -> None:
        reader = asyncio.StreamReader(limit=1 << 24)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        async for line in reader:
            request = json.loads(line)
            if request["do"] == "run":  # known at once: the next line may be its stop
                wanted = RunRequest.from_json(request["request"])
                job = self.jobs[wanted.run] = Job(wanted, self.server, self.tell)
                self._begin(self._run(job))
            elif job := self.jobs.get(request["run"]):
                if request["do"] == "join":
                    self._begin(job.join(request["host"]))
                else:
                    job.stop(request["why"])

    def _begin(self, coroutine) -> None:
        self.runs.add(task := asyncio.create_task(coroutine))
        task.add_done_callback(self.runs.discard)

    async def _run(self, job: Job) -> None:
        run = job.request.run
        try:
            failure = await job.run()
        except Exception as error:
            failure = summary.failure(None, "start", f"{type(error).__name__}: {error}")
        del self.jobs[run]
        self.tell({"run": run, "event": "ended", "error": failure})

    async def _kernel_gone(self) -> None:
        """The kernel's death, also when a child of it still holds the other end of the pipe."""
        while process_tree.alive(self.kernel):
            await asyncio.sleep(POLL_SECONDS)


def serve(kernel: int, start_server=spawn.start_server) -> None:
    """Supervise the runs of this kernel until it is gone. Never returns.

    start_server: starts the fork server, see processes.ForkServer.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(Supervisor(kernel, start_server).main())
    os._exit(0)  # Python 3.12 closes the pipes of a dead fork server here, on a loop that is gone


if __name__ == "__main__":
    serve(int(sys.argv[1]))
