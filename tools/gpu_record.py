"""python tools/gpu_record.py [--rehearse] FOLDER [PART ...]

Ask one real GPU what this course says of GPUs, and write what it answers to FOLDER, a JSON file for
each part. Without PART it is all of them; parts that are in FOLDER already and not asked for stay.
A copy of the project will do: torch (2.11 or later, which brings filelock) and numpy, no Jupyter,
no install, no .git. `--plan` prints a command for each part, with the seconds that it may take, and
all of them in few calls; `--within` limits a call.

A part ends within its limit: one that overruns is ended with all that it started, keeps what it has
measured, and is recorded as overrun. What fails is recorded with its exact error, and the rest goes
on. Exit code 0 if every part is ok, else 1.

`--rehearse` takes the same way on the CPU with miniature sizes, to find errors without a GPU. To
make a record of the course, write to logs/reference/MACHINE-gpu_record, such as h100-gpu_record;
lessons read it by bootcamp/experiments/replay.py.
"""

import argparse
import contextlib
import ctypes
import importlib.util
import math
import os
import re
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OF_RANKS = [str(ROOT / "src")]  # where what a part starts finds its modules
if importlib.util.find_spec("psutil") is None:
    OF_RANKS.append(str(ROOT / "tools" / "gpu_parts" / "without_psutil"))
sys.path[:0] = [str(ROOT / "tools"), *OF_RANKS]
MARK = "BOOTCAMP_GPU_RECORD"  # in the environment of everything that a part starts
LIMIT_SECONDS = 480.0
REHEARSAL_SECONDS = 240.0
GRACE_SECONDS = 10.0  # for a killed part's launcher to end its ranks
MOST_FILES, MOST_BYTES = 8, 4 << 20
NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Part:
    """function: module.name in gpu_parts, called with a session.

    seconds: expected on an H100 or H200, with a minute for each model that is compiled.
    """

    function: str
    seconds: int
    about: str


PARTS = {
    "equality": Part(
        "equality.run", 300, "CPU against GPU, every script as one rank, several ranks on one GPU"
    ),
    "speed_small": Part(
        "speed.small", 140, "GPT-2 small: precision, compile, batches up to out of memory, a trace"
    ),
    "speed_medium": Part("speed.medium", 150, "GPT-2 medium: the same ways of a step"),
    "roofline": Part("speed.roofline", 40, "matrix products, memory, a GPT's operations, copies"),
    "mfu": Part("mfu.small", 270, "GPT-2 124M beside a plain loop in turn, and why"),
    "mfu_medium": Part("mfu.medium", 320, "GPT-2 350M beside a plain loop in turn, and why"),
    "faults": Part("faults.run", 120, "preflight, orphans, leases, killed ranks, out of memory"),
    "constants": Part("constants.run", 60, "constants for a planner, and generation with a cache"),
}
# where a command may take ten minutes: what to ask in each, and how long all of it may take
CALLS = (
    ("equality",),
    ("speed_small", "speed_medium", "roofline", "constants"),
    ("mfu", "faults"),
    ("mfu_medium",),
)
CALL_SECONDS = 570


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", metavar="FOLDER")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, miniature sizes")
    parser.add_argument("--plan", action="store_true", help="print the commands and run nothing")
    parser.add_argument("--limit", type=float, help="seconds that a part may take at most")
    parser.add_argument("--within", type=float, help="seconds that all parts together may take")
    args = parser.parse_args()
    if args.plan:
        print(plan())
        return 0
    if args.folder in (None, Path()):
        parser.error("name the FOLDER for the record, or say --plan")
    if unknown := [name for name in args.parts if name not in PARTS]:
        parser.error(f"no part {', '.join(unknown)}: choose from {', '.join(PARTS)}")
    if any(seconds is not None and seconds <= 0 for seconds in (args.limit, args.within)):
        parser.error("--limit and --within are seconds, more than 0")
    if why := why_not(args.rehearse) or why_no_folder(args.folder):
        print(why)
        return 2
    limit = args.limit or (REHEARSAL_SECONDS if args.rehearse else LIMIT_SECONDS)
    return record(args.folder, args.parts or list(PARTS), args.rehearse, limit, args.within)


def plan() -> str:
    """A line for each part, then all of them in few calls."""
    tool = "python3 tools/gpu_record.py"
    lines = [
        f"{tool} OUT {name:<13} # {part.seconds:>3} s expected: {part.about}"
        for name, part in PARTS.items()
    ]
    total = sum(part.seconds for part in PARTS.values())
    end = f"# together {total} s expected on an H200, estimated and not measured; each ends in "
    lines += [f"{end}{LIMIT_SECONDS:.0f} s at most", f"# or in {len(CALLS)} calls:"]
    for names in CALLS:
        seconds = sum(PARTS[name].seconds for name in names)
        asked = f"{tool} --within {CALL_SECONDS} OUT {' '.join(names)}"
        lines.append(f"{asked} # {seconds} s expected")
    return "\n".join(lines)


def why_not(rehearse: bool) -> str | None:
    """Why nothing can be recorded here, in one sentence; None if it can."""
    if missing := [name for name in ("torch", "numpy", "filelock") if not _is_there(name)]:
        return f"{', '.join(missing)} can't be imported by {sys.executable}: use a Python that can."
    from bootcamp import machine

    if not rehearse and not machine.gpu_names():
        return (
            "There is no GPU here that nvidia-smi lists: nothing was recorded. Say --rehearse to "
            "take the same way on the CPU, or --plan for the commands."
        )
    return None


def why_no_folder(folder: Path) -> str | None:
    """Why the record can't be written there, in one sentence; None if it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return f"{folder} can't be written ({error.strerror}): name another FOLDER."
    return None


def _is_there(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


def record(
    folder: Path, names: list[str], rehearse: bool, limit: float, within: float | None = None
) -> int:
    """Run the parts one after another, each in a process of its own; the exit code.

    limit: seconds of each part. within: of all together; what is left ends a part sooner.
    """
    end = time.monotonic() + (within or math.inf)
    folder = folder.resolve()
    with tempfile.TemporaryDirectory(prefix="gpu-record-", ignore_cleanup_errors=True) as own:
        _prepare(own, rehearse)
        ended = {
            name: run_part(name, folder, rehearse, min(limit, max(1.0, end - time.monotonic())))
            for name in names
        }
    for name, (status, seconds) in ended.items():
        print(f"{name:<13} {status:<10} {seconds:6.1f} s")
    problems = [name for name, (status, _) in ended.items() if status != "ok"]
    if wrong := beyond_limits(folder):
        print(wrong)
    return 1 if problems or wrong else 0


def _prepare(own: str, rehearse: bool) -> None:
    """What all parts need: a mark, places for what they write, and torch, which they fork from.

    torch is imported and never used here: this process starts no thread and no CUDA, so that its
    forks can. What else a rehearsal imports might ask CUDA for its devices, where there are some.
    """
    for variable in ("BOOTCAMP_LOGS", "BOOTCAMP_WORK", "TORCHINDUCTOR_CACHE_DIR"):
        os.environ[variable] = str(Path(own, variable.lower()))
    Path(os.environ["BOOTCAMP_LOGS"]).mkdir()
    os.environ[MARK] = f"{os.getpid()}-{time.time_ns()}"
    inherited = filter(None, [os.environ.get("PYTHONPATH")])
    os.environ["PYTHONPATH"] = os.pathsep.join([*OF_RANKS, *inherited])
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy would start threads as it is imported
    import torch  # noqa: F401

    if rehearse:
        import gpu_parts.session  # noqa: F401
        import torch._dynamo  # noqa: F401


def run_part(name: str, folder: Path, rehearse: bool, limit: float) -> tuple[str, float]:
    """Run one part to its end or its limit; its status and seconds. Nothing of it is left."""
    from bootcamp.files import read_json

    print(f"{name}: {limit:.0f} s at most", flush=True)
    path, began = folder / f"{name}.json", time.monotonic()
    path.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        _become(name, folder, rehearse, limit)
    code = None
    try:
        while code is None and time.monotonic() < began + limit:
            done, status = os.waitpid(pid, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if done else None
            time.sleep(0 if done else 0.05)
    finally:  # interrupted, too
        if code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        left = clear()
    if code is None:
        close(path, name, "overrun", f"not done after {limit:.0f} s, and ended")
    elif code < 0:
        close(path, name, "failed", f"its process was ended by {signal.Signals(-code).name}")
    elif left:
        close(path, name, "failed", f"it left processes, which were ended: {'; '.join(left)}")
    elif code:
        close(path, name, "failed", f"its process ended with {code}: see what it printed")
    return read_json(path)["status"], time.monotonic() - began


def close(path: Path, part: str, status: str, why: str) -> None:
    """Note in a part's file that it was ended from outside: its status and why."""
    from bootcamp.files import read_json, write_json

    content = read_json(path) or {"part": part, "found": {}, "errors": {}, "left_out": {}}
    content["status"] = status
    content["errors"].setdefault("the part", {"error": why})
    write_json(path, content)


def _become(name: str, folder: Path, rehearse: bool, limit: float) -> None:
    """In the fork: be the part, in a session of its own, and leave without cleaning up."""
    code = 1
    try:
        os.setsid()
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: ends with its parent
        from gpu_parts.session import Session

        session = Session(name, folder, rehearse, limit - GRACE_SECONDS / 2)
        module, function = PARTS[name].function.split(".")
        getattr(importlib.import_module(f"gpu_parts.{module}"), function)(session)
        session.ended()
        code = 0
    except BaseException as error:
        import traceback

        traceback.print_exc()
        close(folder / f"{name}.json", name, "failed", f"{type(error).__name__}: {error}")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def clear() -> list[str]:
    """Wait until nothing that a part has started is left; what had to be ended, as commands."""
    from bootcamp.launcher import process_tree

    deadline = time.monotonic() + GRACE_SECONDS
    while True:
        pids = process_tree.find_marked(MARK, os.environ[MARK]) - {os.getpid()}
        if not pids:
            return []
        if time.monotonic() > deadline:
            commands = [process_tree.read_command(pid)[:100] for pid in pids]
            process_tree.kill(pids)
            return commands
        time.sleep(0.1)


def beyond_limits(folder: Path) -> str | None:
    """What of a folder is more than a record may be: number, size and names of its files."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    total = sum(path.stat().st_size for path in files)
    names = [path.name for path in folder.rglob("*") if not NAME.fullmatch(path.name)]
    if len(files) > MOST_FILES or total > MOST_BYTES or names:
        return (
            f"{folder} has {len(files)} files of {total} bytes, odd names: {names}; expected at "
            f"most {MOST_FILES} of {MOST_BYTES} bytes, named in letters, digits, '.', '_' and '-'."
        )
    return None


if __name__ == "__main__":
    sys.exit(main())
