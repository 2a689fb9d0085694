"""A server that a cell or a test starts: `with service.start("simple", file) as server: ...`.

It ends with its `with`, by `stop`, and with the process that started it, however that ends.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from bootcamp.launcher import process_tree, subreaper
from bootcamp.paths import SRC
from bootcamp.serving import protocol, versions

SECONDS_TO_START = 60
SECONDS_TO_STOP = 15


class ServerFailed(Exception):
    """A server that did not start. Its text is what the server said last."""


@dataclass
class Service:
    """A running server. url: without a path. pid: of the process that listens.

    folder: what it serves.
    """

    url: str
    pid: int
    seconds_to_start: float
    folder: Path
    holder: subprocess.Popen = field(repr=False)
    out: IO[bytes] = field(repr=False)

    def log(self) -> str:
        """What the server has said so far."""
        return os.pread(self.out.fileno(), 1 << 20, 0).decode(errors="replace")

    def workers(self) -> list[int]:
        """The process ids of the instances."""
        return sorted(process_tree.below({self.pid}))

    def counts(self) -> dict:
        """What a server that batches has counted since it started (batcher.Counts)."""
        return json.loads(self._ask("GET", "/metrics"))

    def repair(self) -> None:
        """Nothing: a server that batches starts its instances again by itself."""

    def publish(self, exported: Path) -> int:
        """Put an exported file into the folder as its next version; nothing serves it yet."""
        return versions.publish(self.folder, exported)

    def switch(self, version: int, name: str = "gpt") -> None:
        """Serve another version; no request fails meanwhile. Raises Refused if it can't be loaded.

        The version before goes on then.
        """
        self._ask("POST", f"/v2/repository/models/{name}/load?version={version}")

    def _ask(self, method: str, path: str) -> bytes:
        request = urllib.request.Request(self.url + path, method=method)
        try:
            with urllib.request.urlopen(request, timeout=SECONDS_TO_START) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            raise protocol.Refused(error.code, json.load(error)["error"]) from None

    def stop(self) -> float:
        """End it gracefully, and kill it if it does not end; the seconds that this took."""
        began = time.monotonic()
        if self.holder.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
            try:
                self.holder.wait(SECONDS_TO_STOP)
            except subprocess.TimeoutExpired:
                _end(self.holder)
        self.out.close()
        return time.monotonic() - began

    def kill(self) -> None:
        """Kill the process that listens; what it started ends with it, even if it is stopped."""
        below = process_tree.below({self.pid})
        process_tree.end({self.pid})
        process_tree.end(below)
        self.holder.wait()
        while any(map(process_tree.alive, below)):
            time.sleep(0.01)

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_) -> None:
        self.stop()


def start(script: str, model: Path | str, **settings) -> Service:
    """Start a script of src/serve/, named without .py; returns once it listens.

    settings: the script's flags, max_batch=8 for --max-batch 8. Raises ServerFailed.
    """
    words = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    command = [sys.executable, str(SRC / "serve" / f"{script}.py"), str(model), *words]
    began = time.monotonic()
    told, tells = os.pipe()
    out = tempfile.TemporaryFile()  # noqa: SIM115 - it is open as long as the server, nameless
    with os.fdopen(told) as answer:
        holder = subprocess.Popen(
            [sys.executable, "-P", subreaper.__file__, *command, f"--ready-fd={tells}"],
            pass_fds=[tells],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,  # a notebook's stop button is not meant for it
        )
        os.close(tells)
        try:
            readable, _, _ = select.select([answer], [], [], SECONDS_TO_START)
            said = json.loads((answer.readline() if readable else "") or "{}")
        except BaseException:
            _end(holder)
            raise
    service = Service("", 0, time.monotonic() - began, Path(model), holder, out)
    if not said:
        _end(holder)
        last = service.log().strip().splitlines()[-1:] or ["no word of it"]
        raise ServerFailed(f"{last[0]} (within {time.monotonic() - began:.0f} s)")
    service.url, service.pid = f"http://127.0.0.1:{said['port']}", said["pid"]
    return service


def _end(holder: subprocess.Popen) -> None:
    holder.terminate()  # the subreaper kills everything below it
    holder.wait()
