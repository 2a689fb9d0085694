"""What a part finds, written to FOLDER/<part>.json after each measurement.

So a part that is ended in the middle leaves what it had. A measurement that raises is recorded with
its exact error, and the next one is made; one for which too little time is left is named.
"""

import json
import platform
import subprocess
import time
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path

from bootcamp import machine
from bootcamp.experiments import replay
from bootcamp.files import write_json
from bootcamp.paths import ROOT, SRC
from gpu_parts.device import Device

LONGEST_TRACEBACK = 4000


class Session:
    """One part's record. limit_seconds: after which the part is ended from outside."""

    def __init__(self, part: str, folder: Path, rehearsal: bool, limit_seconds: float):
        self.path, self._began = folder / f"{part}.json", time.monotonic()
        self._limit = limit_seconds
        self.device = Device(rehearsal)
        self.content = {
            "part": part,
            "rehearsal": rehearsal,
            "status": "running",
            "limit_seconds": limit_seconds,
            "about": about(self.device, part),
            "found": {},
            "seconds_of": {},
            "errors": {},
            "left_out": {},
        }
        self.write()

    def write(self) -> None:
        self.content["seconds"] = round(time.monotonic() - self._began, 2)
        text = replay.hide_own_folders(json.dumps(self.content))
        write_json(self.path, json.loads(text))

    @property
    def seconds_left(self) -> float:
        return self._limit - (time.monotonic() - self._began)

    def measure(self, name: str, function: Callable[[], object], seconds: float = 5.0):
        """Record what a function returns, which JSON can hold; None where it could not be had.

        seconds: that it takes on a GPU, at most; with less than that left it is left out.
        """
        if self.seconds_left < self.device.choose(seconds, 1.0):
            left = f"{self.seconds_left:.0f} s were left, and it may take {seconds:.0f} s"
            self.content["left_out"][name] = left
            self.write()
            return None
        began, found = time.monotonic(), None
        try:
            found = self.content["found"][name] = function()
        except Exception as error:
            self.content["errors"][name] = {
                "error": f"{type(error).__name__}: {error}",
                "traceback": traceback.format_exc()[-LONGEST_TRACEBACK:],
            }
        self.content["seconds_of"][name] = round(time.monotonic() - began, 2)
        self.device.forget()
        self.write()
        said = self.content["errors"].get(name, {"error": "ok"})["error"].partition("\n")[0]
        print(f"  {name}: {said[:200]} ({self.content['seconds_of'][name]:.1f} s)", flush=True)
        return found

    def ended(self) -> str:
        """Write the part's status: ok, failed or incomplete."""
        status = "incomplete" if self.content["left_out"] else "ok"
        self.content["status"] = "failed" if self.content["errors"] else status
        self.write()
        return self.content["status"]


def about(device: Device, part: str) -> dict:
    """The machine, the versions, and which texts were run: by commit, and without .git by sum."""
    texts = sorted([*SRC.rglob("*.py"), *(ROOT / "tools").rglob("*.py")])
    crc32 = 0
    for path in texts:
        crc32 = zlib.crc32(path.read_bytes(), crc32)
    return {
        **device.about(),
        "machine": machine.describe(),
        "system": platform.release(),
        "git_commit": _git_commit(),
        "source_crc32": crc32,
        "command": f"python tools/gpu_record.py FOLDER {part}",
        "unix_seconds": time.time(),
    }


def _git_commit() -> str | None:
    """The commit of this copy; None for one without .git, inside of another's repository too."""
    if not (ROOT / ".git").exists():
        return None
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.strip()
    except OSError:
        return None
