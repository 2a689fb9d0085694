"""python tools/drills.py [--warm 300] [--torchrun 30] [--faults 10] [--browser 10] [--hosts 5]
    [--slurm 10] [--serving 5] [--stragglers 10] [--hangs 10]

What the tests do once, in numbers: launches in a row, every fault again and again, lesson 09b's
drills on runs over hosts, whose table the lesson shows afterwards, jobs of Slurm that are queued
again, lesson 11's servers: thousands of requests while something fails, and lesson 04d's: a random
rank is late by 30 %, or never comes, and has to be named. Prints a table; ends with 1 if any launch
hung or ended badly, any fault was handled wrongly, or any process is left.
"""

import argparse
import contextlib
import io
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

SCRATCH = tempfile.TemporaryDirectory(prefix="bootcamp-drills-")
os.environ["BOOTCAMP_LOGS"] = SCRATCH.name
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import faults  # noqa: E402
import interrupts  # noqa: E402
import processes  # noqa: E402
import served_model  # noqa: E402

from bootcamp.hosts import slurm  # noqa: E402
from bootcamp.launcher import hang, launch, simulated_hosts  # noqa: E402
from bootcamp.paths import LOGS, ROOT  # noqa: E402
from bootcamp.records import summary  # noqa: E402
from bootcamp.serving import load_test, malformed, protocol, server_process, triton, versions  # noqa: E402
from bootcamp.table import Table  # noqa: E402
from bootcamp_lessons import ddp_practice  # noqa: E402
from bootcamp_lessons.labs import (  # noqa: E402
    host_drills,
    serving_drills,
    when_hosts_fail,
)

TIMES = {"warm": 300, "torchrun": 30, "faults": 10, "browser": 10, "hosts": 5, "slurm": 10}
TIMES |= {"serving": 5, "stragglers": 10, "hangs": 10}


def again_and_again(what: str, count: int, once: Callable[[], float | None]) -> dict:
    """Try something several times; the row of the drill.

    once: one try, which raises if something is wrong. It may return the seconds that count.
    """
    seconds, bad = [], []
    for number in range(count):
        began = time.monotonic()
        try:
            took = once()
            seconds.append(time.monotonic() - began if took is None else took)
        except faults.CannotProvoke as reason:
            return make_row(f"{what}: {reason}", 0, [], [])
        except Exception as error:
            bad.append(f"{what} {number}: {type(error).__name__}: {error}")
    return make_row(what, count, seconds, bad)


def make_row(drill: str, times: int, seconds: list[float], bad: list[str]) -> dict:
    """Make the row of a drill, and say it at once."""
    for line in bad:
        print(line, file=sys.stderr, flush=True)
    print(f"  {drill}: {len(bad)} bad of {times}", flush=True)
    seconds = seconds or [0.0]
    spread = {"median s": statistics.median(seconds), "longest s": max(seconds)}
    return {"drill": drill, "times": times, "bad": len(bad), **spread}


def launch_two(start: str) -> None:
    """Launch two ranks."""
    launch.launch("ddp", 2, device="cpu", start=start, steps=3, quiet=True)


def provoke(name: str) -> float:
    """Provoke a fault; it ends within its seconds and leaves no process."""
    try:
        seconds = faults.FAULTS[name]()
    finally:
        left = processes.leftovers(os.getpid(), allow_launcher=True)
    assert not left, f"it left {left}"
    assert seconds <= faults.FAULTS[name].seconds, f"it took {seconds:.1f} s"
    return seconds


def open_browser() -> None:
    """Do what an attendee does in a real browser (tests/test_browser.py)."""
    command = [sys.executable, "-m", "pytest", "-q", "tests/test_browser.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "skipped" not in done.stdout, done.stdout[-2000:]


def drill_host(name: str, kept: dict) -> float:
    """Run a drill of lesson 09b: the right one is named, and no loss changed."""
    kept[name] = one = host_drills.run_drill(name)
    assert one.right, one
    assert (one.lost or 0) <= 1e-5, one
    return one.seconds


def drill_slurm(job_of: Callable[[], dict], most_again: int) -> None:
    """Run a job that is queued again: nothing is lost. most_again: steps that are trained twice."""
    with contextlib.redirect_stdout(io.StringIO()):
        job = job_of()
    assert job["state"] == "COMPLETED", job
    assert job["first_step"] > 0, job
    assert job["steps"] == when_hosts_fail.STEPS, job
    assert job["again"] <= most_again, job
    assert job["apart"] < 1e-5, job


def slurm_jobs(count: int) -> list[dict]:
    """Jobs that are told of their end, and jobs killed in the middle of a save."""
    lab = when_hosts_fail.Lab()
    ways = {  # one step may end before it is saved
        "told": partial(drill_slurm, lab.requeued, 0),
        "killed": partial(drill_slurm, partial(kill_while_it_saves, lab), 1),
    }
    rows = [again_and_again(f"Slurm: {w}, queued again", count, way) for w, way in ways.items()]
    lab.stop()
    return rows


def kill_while_it_saves(lab: when_hosts_fail.Lab) -> dict:
    """Kill a job in the middle of a save, and queue it again; see `describe_job`."""
    job = lab.submit(save_every=1)
    job.wait(steps=5)
    deadline = time.monotonic() + 60
    while not list(LOGS.glob(f".{job.folder.name}.pt.*.part")):  # until a save is renamed
        if time.monotonic() > deadline:
            raise TimeoutError("no save has begun")
    job.signal("KILL", "--full")
    job.wait()
    lab.start().run(f"scontrol requeue {job.id}")
    job.wait()
    return when_hosts_fail.describe_job(job)


def drill_late(by: float = 0.3) -> None:
    """Make a random rank late: it is found."""
    who = random.randrange(2)
    run = launch.launch(ddp_practice.STRAGGLERS, 2, late=who, by=by, quiet=True)
    told = f"rank {who} was late:\n{ddp_practice.table_paces(run)}"
    assert ddp_practice.find_straggler(run) == who, told


def drill_stuck(ranks: int = 3) -> None:
    """Keep a random rank from a collective: what the others tell has its number."""
    who = random.randrange(ranks)
    found = hang.read(ddp_practice.launch_stuck(who, ranks))
    assert (found.kind, found.ranks) == ("missing", (who,)), f"rank {who} was stuck: {found}"


def server_drills(times: int) -> list[dict]:
    """Servers under load while something fails: no wrong answer, and a good one afterwards.

    10,000 requests under a killed worker, 1,000 malformed ones, and versions that come and go so
    many times; of Triton where it is installed.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        right, other = served_model.two_versions(folder)
        asked = load_test.make_requests(right, 100, 9, or_else=other)
        versions.publish(folder / "gpt", folder / "v1.onnx")
        with server_process.start("batching_server", folder / "gpt", instances=2) as server:
            rows = _of_server("course's server", server, asked, folder, times)
        if triton.why_not():
            return rows
        context = {"context": served_model.CONTEXT}
        with (
            triton.Server(folder / "triton", folder / "v1.onnx", **context) as behind,
            server_process.start("checking_front", behind.url, **context) as front,
        ):
            behind.url = front.url
            return rows + _of_server("Triton behind its front", behind, asked, folder, times)


def _of_server(whose: str, server, asked, folder: Path, times: int) -> list[dict]:
    limits = protocol.Limits(serving_drills.MAX_BATCH, served_model.CONTEXT)
    sent = malformed.send(server.url, limits, times=40)
    bad = [f"{row['what is wrong']}: {row['status']}" for row in malformed.list_bad_answers(sent)]
    rows = [make_row(f"1,000 malformed requests of {len(sent)} kinds, {whose}", 1, [], bad)]
    killed = serving_drills.run("a worker is killed", server, asked, 10_000)
    what = f"10,000 requests, a worker killed, {whose}: {killed['refused']} refused"
    rows.append(make_row(what, 1, [], _wrong(killed, server)))
    server.publish(folder / "v2.onnx")
    for name in ("another version, and back", "a broken version"):
        found = [serving_drills.run(name, server, asked) for _ in range(times)]
        bad = [f"{name}: {row}" for row in found if row["right"] < row["requests"]]
        bad += [line for row in found for line in _wrong(row, server)]
        rows.append(make_row(f"{name}, {whose}", times, [], bad))
    return rows


def _wrong(row: dict, server) -> list[str]:
    """What a load under a fault may not show: wrong answers, other errors, a server that fails."""
    good = not (row["wrong"] or row["other errors"] or row["no answer"])
    well = row["afterwards"].startswith(f"{serving_drills.AFTERWARDS} of ")
    # Triton is well when it has been repaired
    killed = row["drill"] == "a worker is killed" and isinstance(server, triton.Server)
    return [] if good and (well or killed) else [f"{row}"]


def main() -> int:
    interrupts.accept()
    parser = argparse.ArgumentParser(description=__doc__)
    for name, times in TIMES.items():
        parser.add_argument(f"--{name}", type=int, default=times)
    args = parser.parse_args()
    if min(vars(args).values()) < 0:
        parser.error("each number is 1 or more, or 0 to leave its drills out")
    kept: dict = {}
    hosts = {f"hosts: {name}": partial(drill_host, name, kept) for name in host_drills.DRILLS}
    drills = (
        (args.warm, {f"{args.warm} launches, warm": partial(launch_two, "warm")}),
        (args.torchrun, {f"{args.torchrun} launches, torchrun": partial(launch_two, "torchrun")}),
        (args.faults, {name: partial(provoke, name) for name in faults.FAULTS}),
        (args.browser, {f"{args.browser} sessions in a browser": open_browser}),
        (args.hosts, {} if simulated_hosts.why_not() else hosts),
        (args.stragglers, {"a rank is late by 30 %: it is named": drill_late}),
        (args.hangs, {"a rank never comes: it is named": drill_stuck}),
    )
    rows = [
        again_and_again(what, count, once)
        for count, tries in drills
        for what, once in tries.items()
        if count
    ]
    if kept:
        when_hosts_fail.keep_drills(list(kept.values()), ROOT / "logs" / "host_drills.json")
    rows += slurm_jobs(args.slurm) if args.slurm and not slurm.why_not() else []
    rows += server_drills(args.serving) if args.serving else []
    launch.shut_down()
    left = processes.leftovers(os.getpid())
    print(Table(rows, f"Drills. Processes left at the end: {len(left)}"), flush=True)
    summary.write_json(ROOT / "logs" / "drills.json", {"drills": rows, "processes_left": len(left)})
    return 1 if left or any(row["bad"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
