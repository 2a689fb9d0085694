"""Part `faults`: the machine's checks, leases, and what dying ranks leave, each on the real thing.

What the GPU holds is read from its driver, so that memory which a dead process kept would show.
"""

import json
import os
import subprocess
import sys
import threading
import time
from functools import partial

from bootcamp.launcher import device_locks, launch, orphans, process_tree
from bootcamp.launcher.launch import LaunchError, Options
from bootcamp.paths import LOGS, ROOT
from bootcamp.records import steps
from bootcamp.scripts.variants import variant
from gpu_parts.session import Session

LEFT_BYTES = 64 << 20  # that the driver may count differently before and after
SETTLE_SECONDS = 20.0
HELD_BYTES = 2 << 30  # by the rank that is killed
STEP = "optimizer.step()"
TAKES = "kept = torch.ones({numbers}, device=device)\noptimizer.step()"
KILLS = (
    "if step == 2 and rank == world - 1:\n"
    "    __import__('os').kill(__import__('os').getpid(), 9)\n"
    "kept = torch.ones({numbers}, device=device)\n"
    "optimizer.step()"
)
# what a process without the course does: it holds memory until its input ends
HOLDER = (
    "import sys, torch; kept = torch.ones({numbers}, device='{kind}'); print(kept.sum().item(), "
    "flush=True); sys.stdin.read()"
)
UNTIL_HEARD = (
    "while step == 2 and not __import__('os').path.exists('{path}'):\n"
    "    __import__('time').sleep(0.05)\n"
    "optimizer.step()"
)
SECOND = (
    "import sys; sys.path.append(sys.argv[3])\n"
    "from bootcamp.launcher import launch; from gpu_parts import faults\n"
    "if sys.argv[2] == 'auto': faults.play_gpu()\n"
    "run = launch.launch(sys.argv[1], 1, start='cold', device=sys.argv[2])\n"
    "print(run.output()); launch.shut_down()"
)
ASKS = (
    "import json, os, time\n"
    "name = 'CUDA_VISIBLE_DEVICES'\n"
    "print(json.dumps({'began': time.time(), name: os.environ.get(name)}))\n"
)
RUNS = {"model": "mlp", "quiet": True}


def run(session: Session) -> None:
    """From the harmless to the harmful."""
    session.measure("preflight", partial(_preflight, session), 60)
    session.measure("orphans", partial(_orphans, session), 40)
    session.measure("leases", partial(_leases, session), 90)
    session.measure("rank killed", partial(_ends, session, "killed", KILLS, HELD_BYTES), 60)
    too_much = session.device.choose(1 << 40, 1 << 50)
    session.measure("rank out of memory", partial(_ends, session, "oom", TAKES, too_much), 60)
    both = partial(_ends, session, "killed", KILLS, HELD_BYTES, ranks=2)
    session.measure("one of two ranks killed", both, 60)
    launch.shut_down()


def _preflight(session: Session) -> list[dict]:
    """The rows of `make preflight`, in a rehearsal those of the machine alone."""
    only = session.device.choose([], ["--only", "python,gpus"])
    command = [sys.executable, str(ROOT / "tools" / "preflight.py"), "--json", *only]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return json.loads(said.stdout)["checks"]


def _orphans(session: Session) -> dict:
    """A process without the course holds memory: who names it; nothing is left after it."""
    device = session.device
    code = HOLDER.format(numbers=device.choose(HELD_BYTES // 4, 4), kind=device.kind)
    before = device.used_bytes_from_outside()
    holder = subprocess.Popen(
        [sys.executable, "-c", device.choose(code, "import sys; print(1, flush=True); input()")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        holder.stdout.readline()
        during = device.used_bytes_from_outside()
        rows = orphans.orphans().rows
        holders = orphans.list_gpu_holders()
    finally:
        holder.kill()
        holder.communicate()
    return {
        "process": holder.pid,
        "orphans": rows,
        "holders": holders,
        "is named": any(row["process"] == holder.pid for row in rows),  # not across containers
        **_freed(session, before, during),
    }


def play_gpu() -> None:
    """Let every launch of this process lease one GPU that is nothing but its lock."""
    lease = {
        "folder": str(device_locks.choose_folder()),
        "devices": {"fake-0": "fake-0"},
        "count": 1,
    }
    launch.Call.choose_leases = lambda _: {"lease": lease}


def _leases(session: Session) -> dict:
    """Two kernels launch: the second waits for the first one's device, by its UUID, and gets it.

    In a rehearsal the device is a lock and nothing else, as in the launcher's tests.
    """
    device, said = session.device, []
    folder, asks, goes_on = (LOGS / f"{name}-{os.getpid()}" for name in ("leased", "asks", "heard"))
    asks.with_suffix(".py").write_text(ASKS)
    real = launch.Call.choose_leases
    device.choose(lambda: None, play_gpu)()
    given = [str(asks.with_suffix(".py")), device.choose("cuda", "auto"), str(ROOT / "tools")]

    def launch_second():
        while not steps.read_steps(folder):
            time.sleep(0.05)
        command = [sys.executable, "-uc", SECOND, *given]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as second:
            for line in second.stdout:
                said.append(line.strip())
                if "Waiting for" in line:
                    goes_on.touch()

    second = threading.Thread(target=launch_second, daemon=True)
    second.start()
    try:
        slow = variant("gpu", "gpu_slow", {STEP: UNTIL_HEARD.format(path=goes_on)})
        options = Options(run_dir=folder, hang_seconds=100)
        launch.launch(slow, 1, device=device.kind, steps=5, options=options, **RUNS)
        second.join(timeout=60)
    finally:
        launch.Call.choose_leases = real
    ended = (folder / "steps.jsonl").stat().st_mtime  # the last step's row
    found = json.loads(next(line for line in said if line.startswith("{")))
    if found["began"] < ended or not goes_on.exists():
        raise AssertionError(f"the second launch did not wait: {said}, {ended}")
    waited = next(line for line in said if "Waiting for" in line)
    return {"said": waited, "device": found, "seconds after": found["began"] - ended}


def _ends(session: Session, status: str, line: str, size: int, ranks: int = 1) -> dict:
    """A run that ends badly while a rank holds memory; what it said, and what it left.

    size: bytes that each rank takes.
    """
    device = session.device
    numbers = (size if status == "oom" else device.choose(size, 1 << 20)) // 4
    script = "ddp" if ranks > 1 else "gpu"
    path = variant(script, f"{script}_{status}", {STEP: line.format(numbers=numbers)})
    before = device.used_bytes_from_outside()
    options = Options(env={"BOOTCAMP_SHARE_GPUS": "1"})
    began, error = time.monotonic(), None
    try:
        launch.launch(path, ranks, device=device.kind, steps=5, options=options, **RUNS)
    except LaunchError as raised:
        error = raised
    if error is None:
        raise AssertionError("the run ended well")
    seconds = time.monotonic() - began
    left = process_tree.find_marked("BOOTCAMP_RUN", str(error.run.folder))
    if left:
        raise AssertionError(f"processes {left} are left of the run")
    if status == "oom" and error.run.status != "oom":
        raise AssertionError(f"status {error.run.status}, expected oom: {error}")
    said = str(error).strip().splitlines()
    told = {
        "status": error.run.status,
        "rank": error.error["rank"],
        "said": said[0],
        "ended": said[-1],
    }
    return {**told, "seconds": seconds, **_freed(session, before)}


def _freed(session: Session, before: int | None, during: int | None = None) -> dict:
    """What the driver says is used, once it is what it was. Raises AssertionError if it stays."""
    deadline = time.monotonic() + SETTLE_SECONDS
    after = session.device.used_bytes_from_outside()
    while before is not None and after > before + LEFT_BYTES:
        if time.monotonic() > deadline:
            raise AssertionError(f"{after - before} bytes of GPU memory are still used")
        time.sleep(0.2)
        after = session.device.used_bytes_from_outside()
    return {"used_bytes": {"before": before, "during": during, "after": after}}
