"""A real Triton Inference Server for a cell or a test, without a container.

    with triton.Server("logs/triton", "logs/exported/gpt.onnx", context=64) as server: ...

`make triton` installs it into `.venv-triton`. Its repository of models:

    gpt/config.pbtxt       the shapes, the batcher, the instances, the version to serve
    gpt/1/model.onnx       the exported model; model.ts and model.pt2 need the course's torch
    gpt/1/model.py         a copy of src/serve/triton_model.py, which runs it
    gpt/2/...              the next version

One body of a hundred thousand brackets ends Triton, so it listens on this machine alone. Its python
backend shares memory, files in /dev/shm, with a process for each instance (a stub); a process that
is killed leaves them there, named after the server's id. Each server leaves an empty folder in /tmp
too, and ends with an error where its own is missing. The holder, which is this file as a program,
removes all that is no running server's; if it was killed, the next server's start does.
"""

import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections import Counter
from pathlib import Path

import psutil

if __name__ == "__main__":  # started with -P as a file: the package lies two folders up
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bootcamp import linux, machine
from bootcamp.costs.model_shapes import VOCABULARY
from bootcamp.files import read_json, write_whole
from bootcamp.launcher import process_tree
from bootcamp.paths import ROOT, SRC
from bootcamp.serving import protocol, server_process

ENVIRONMENT = ROOT / ".venv-triton"
READY = ENVIRONMENT / ".ready"  # written last
STUB = "triton_python_backend_stub"
REGIONS = Path("/dev/shm")
FOLDERS = "python_env_*"  # in /tmp, one for each server
ID = re.compile("bootcamp-triton-[0-9a-f]+-")  # begins the names of a server's regions


def why_not(torch: bool = False) -> str | None:
    """Say in one sentence why this machine can't run Triton (a model that needs torch), or None."""
    if machine.is_hidden("triton"):
        return "BOOTCAMP_WITHOUT hides it in this environment"
    if not (_programs() / "bin" / "tritonserver").exists():
        return f"there is no {ENVIRONMENT.name}: make triton makes it"
    if torch and (python := read_json(READY)["python"])[:4] != sys.version[:4]:
        return f"its Python is {python.split()[0]}, and torch is installed for the course's"
    return None


def _programs() -> Path:
    """Return the folder with the binary and the backends; it does not exist without them."""
    return Path(read_json(READY).get("triton", ENVIRONMENT / "missing"))


def make_config(
    context: int, instances: int = 2, max_batch: int = 8, queue: int = 64, version: int = 1
) -> str:
    """Make the text of config.pbtxt.

    context: bytes of the longest sample. instances: processes that run the model, one core each.
    max_batch: most samples in a request, and in a batch of several requests, all of one length.
    queue: most requests that wait; more are refused at once (HTTP 503). version: the one to serve.
    """
    config = f"""name: "{protocol.NAME}"
backend: "python"
max_batch_size: {max_batch}
input [ {{ name: "{protocol.INPUT}" data_type: TYPE_INT64 dims: [ -1 ] }} ]
output [ {{ name: "{protocol.OUTPUT}" data_type: TYPE_FP32 dims: [ {VOCABULARY} ] }} ]
instance_group [ {{ kind: KIND_CPU count: {instances} }} ]
version_policy: {{ specific: {{ versions: [ {version} ] }} }}
parameters: {{ key: "context" value: {{ string_value: "{context}" }} }}
"""
    if max_batch > 1:  # with batches of one, the batcher's thread only adds up to half a second
        config += f"""dynamic_batching {{
  max_queue_delay_microseconds: 2000
  default_queue_policy {{ max_queue_size: {queue} }}
}}
"""
    return config


class Server(server_process.Server):
    """A running Triton with an exported model, in a new version of a repository `folder`.

    settings: of `make_config`. Raises ServerFailed.
    """

    program = SRC / "serve" / "triton_model.py"

    def __init__(self, folder: Path | str, model: Path | str, **settings):
        if why := why_not():
            raise server_process.ServerFailed(f"no Triton here: {why}")
        remove_stale_files()
        self.folder, self.settings = Path(folder).resolve() / protocol.NAME, settings
        self._write_config(self.publish(model))
        self.id = f"bootcamp-triton-{secrets.token_hex(6)}-"
        port, self.metrics_port = _find_free_port(), _find_free_port()
        command = [
            __file__,
            str(os.getpid()),
            *_environment(),
            str(_programs() / "bin" / "tritonserver"),
            f"--id={self.id}",
            f"--model-repository={self.folder.parent}",
            "--model-control-mode=explicit",
            f"--load-model={protocol.NAME}",
            "--disable-auto-complete-config",
            f"--backend-directory={_programs() / 'backends'}",
            f"--backend-config=python,shm-region-prefix-name={self.id}",
            *("--http-address=127.0.0.1", f"--http-port={port}"),
            *("--metrics-address=127.0.0.1", f"--metrics-port={self.metrics_port}"),
            "--allow-grpc=false",
            "--allow-cpu-metrics=false",
            "--exit-timeout-secs=1",  # for answers that have been begun; an instance takes longer
        ]
        super().__init__(command, port, self.folder, protocol.MODEL_READY)
        self.instances = len(self.workers())

    def workers(self) -> list[int]:
        return [pid for pid in super().workers() if STUB in process_tree.read_command(pid)]

    def stop(self) -> None:
        """End the server. Its memory goes too, even if its holder was killed."""
        super().stop()
        remove_stale_files()

    def metrics(self) -> Counter:
        """Read Triton's counters for Prometheus, summed over the loaded versions."""
        counts = Counter()
        own = rf'^(\w+)\{{.*?model="{protocol.NAME}".*\}} (\S+)$'
        for name, value in re.findall(own, self.ask("GET", "/metrics", self.metrics_port), re.M):
            counts[name] += float(value)
        return counts

    def _write_config(self, version: int) -> None:
        """Name the version to serve; Triton reads it when it is asked to load the model."""
        self.version, text = version, make_config(**self.settings, version=version)
        write_whole(self.folder / "config.pbtxt", lambda file: file.write(text.encode()))

    def switch(self, version: int) -> None:
        """Serve another version of the repository; no request fails meanwhile.

        Raises Refused if it does not load or fails its own test (src/serve/triton_model.py); the
        version before goes on then, and the repository names it again.
        """
        before = self.version
        self._write_config(version)
        try:
            self.ask("POST", protocol.LOAD)
        except BaseException:
            self._write_config(before)
            raise

    def repair(self) -> None:
        """Replace all instances if one has died: Triton would let its requests fail (HTTP 500).

        The new ones take over before the old ones end. An old one that still runs after two seconds
        is killed: Triton does not end it beside a dead one.
        """
        old = set(self.workers())
        if len(old) == self.instances:
            return
        os.utime(self.folder / str(self.version) / "model.py")  # else nothing is loaded
        self.ask("POST", protocol.LOAD)
        deadline = time.monotonic() + 2
        while left := old & set(self.workers()):
            if time.monotonic() > deadline:
                process_tree.kill(left)
            time.sleep(0.02)


def _environment() -> list[str]:
    """Make the command of env(1) by which Triton's instances find their Python and its library.

    With the library of another Python, even of the same version, they fail when they start.
    """
    libraries = [read_json(READY)["python_libraries"], os.environ.get("LD_LIBRARY_PATH", "")]
    return [
        *("env", "-u", "PYTHONPATH", "-u", "PYTHONHOME"),  # they are the course's Python's
        f"PATH={ENVIRONMENT / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        f"LD_LIBRARY_PATH={os.pathsep.join(filter(None, libraries))}",
        "PYTHONDONTWRITEBYTECODE=1",  # the repository is Triton's to read
        "OMP_NUM_THREADS=1",
        f"COURSE_PACKAGES={sysconfig.get_path('purelib')}",  # its torch; the same Python's
    ]


def _find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def remove_stale_files() -> None:
    """Remove the shared memory of servers that have ended; where none runs, their folders too."""
    regions = list(REGIONS.iterdir())  # first: every owner of one runs by now
    folders = list(Path("/tmp").glob(FOLDERS))
    others = [pid for pid in psutil.pids() if pid != os.getpid()]
    commands = " ".join(map(process_tree.read_command, others))
    stale = [one for one in regions if (name := ID.match(one.name)) and name[0] not in commands]
    if "tritonserver" not in [each.info["name"] for each in psutil.process_iter(["name"])]:
        stale += folders
    for path in stale:
        with contextlib.suppress(OSError):  # another user's, or just removed
            path.rmdir() if path.is_dir() else path.unlink()


def hold(starter: int, command: list[str]) -> None:
    """Run a server until it or its starter ends; then end its processes and remove its memory."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    linux.adopt_orphans()
    linux.die_with_parent(signal.SIGTERM)
    try:
        if os.getppid() == starter:  # it is there
            # if this process is killed, so is the server; its stubs end themselves then
            subprocess.run(command, preexec_fn=linux.die_with_parent)
    finally:
        process_tree.kill_everything_below()
        remove_stale_files()


if __name__ == "__main__":
    hold(int(sys.argv[1]), sys.argv[2:])
