"""Servers for a cell or a test: `with server_process.start("simple_server", file) as server: ...`.

A server ends with its `with`, by `stop`, and with the process that started it, however that ends.
"""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from bootcamp.launcher import process_tree, subreaper
from bootcamp.paths import SRC
from bootcamp.serving import protocol, versions

SECONDS_TO_START, SECONDS_TO_STOP = 60, 15


class ServerFailed(Exception):
    """A server did not start. The text says why, and ends with the end of the server's log."""


class Server(contextlib.AbstractContextManager):
    """A running server on 127.0.0.1, below a holder process that ends it when this process ends.

    pid: of the process that listens. folder: the versions of its model. command: the holder's.
    ready_path: has status 200 once the server answers. listening: a socket to hand over.
    """

    program: Path | None = None  # a file of each version, beside the model

    def __init__(
        self,
        command: list,
        port: int,
        folder: Path,
        ready_path: str,
        listening: socket.socket | None = None,
    ):
        began = time.monotonic()
        self.port, self.folder = port, folder
        self.url = f"http://127.0.0.1:{port}"
        self.out = tempfile.TemporaryFile()  # noqa: SIM115 - it is open as long as the server
        self.holder = subprocess.Popen(
            [sys.executable, "-P", *command],
            stdin=subprocess.DEVNULL,
            stdout=self.out,
            stderr=self.out,
            start_new_session=True,  # a notebook's stop button is not meant for it
            pass_fds=[listening.fileno()] if listening else [],
        )
        if listening:
            listening.close()  # from now on it ends with the server
        try:
            self._wait_for(ready_path)
            self.pid = psutil.Process(self.holder.pid).children()[0].pid
        except BaseException:
            self._end()
            raise
        self.seconds_to_start = time.monotonic() - began

    def _wait_for(self, ready_path: str) -> None:
        deadline = time.monotonic() + SECONDS_TO_START
        while not self.answers(ready_path):
            ended = self.holder.poll() is not None
            if ended or time.monotonic() > deadline:
                what = "ended" if ended else f"was not ready after {SECONDS_TO_START} s"
                log = os.pread(self.out.fileno(), 1 << 20, 0).decode(errors="replace")
                raise ServerFailed(f"the server {what}. The end of its log:\n{log[-2000:]}")
            time.sleep(0.02)

    def answers(self, path: str) -> bool:
        """Whether a GET of this path is answered with status 200."""
        try:
            self.ask("GET", path)
        except (OSError, http.client.HTTPException, protocol.Refused):
            return False
        return True

    def ask(self, method: str, path: str, port: int | None = None) -> str:
        """Send a request and return the answer's text. Raises Refused for a status from 400 on."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path)
            answer = connection.getresponse()
            text = answer.read().decode()
        if answer.status >= 400:
            raise protocol.Refused(answer.status, json.loads(text)["error"] if text else path)
        return text

    def workers(self) -> list[int]:
        """List the process ids of the instances."""
        return sorted(process_tree.find_below({self.pid}))

    def publish(self, exported: Path | str) -> int:
        """Put an exported file into the folder as its next version; nothing serves it yet."""
        return versions.publish(self.folder, exported, self.program)

    def counts(self) -> dict:
        """Read the counters of a server that batches (batcher.Batcher)."""
        return json.loads(self.ask("GET", "/metrics"))

    def repair(self) -> None:
        """Replace instances that died. The course's servers do that by themselves."""

    def switch(self, version: int) -> None:
        """Serve another version; no request fails meanwhile.

        Raises Refused if it can't be loaded; the version before goes on then.
        """
        self.ask("POST", f"{protocol.LOAD}?version={version}")

    def stop(self) -> None:
        """Let the server answer what it has begun, and end it; kill it if it does not end."""
        if self.holder.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.holder.wait(SECONDS_TO_STOP)
        self._end()

    def _end(self) -> None:
        self.holder.terminate()  # it kills everything below it first
        self.holder.wait()
        self.out.close()

    def kill(self) -> None:
        """Kill the process that listens; nothing of the server is left when this returns."""
        below = process_tree.find_below({self.pid})
        process_tree.kill({self.pid})
        process_tree.kill(below)
        self.holder.wait()
        while any(map(process_tree.is_alive, below)):
            time.sleep(0.01)

    def __exit__(self, *_) -> None:
        self.stop()


def start(script: str, model: Path | str, **settings) -> Server:
    """Start a script of src/serve/, named without .py, and return when it answers.

    settings: the script's flags, max_batch=8 for --max-batch 8. Raises ServerFailed.
    """
    words = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    listening = socket.create_server(("127.0.0.1", 0))
    handed = f"--listening-fd={listening.fileno()}"
    program = [sys.executable, SRC / "serve" / f"{script}.py", model, *words, handed]
    port = listening.getsockname()[1]
    return Server([subreaper.__file__, *program], port, Path(model), protocol.READY, listening)
