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


def launches(start: str, count: int) -> dict:
    """Launch two ranks again and again; every one must end well and leave nothing."""
    seconds, bad = [], []
    for number in range(count):
        began = time.monotonic()
        try:
            launch.launch("ddp", 2, device="cpu", start=start, steps=3, quiet=True)
        except launch.LaunchError as error:
            bad.append(f"{start} launch {number}: {error}")
        seconds.append(time.monotonic() - began)
    return _row(f"{count} launches, {start}", seconds, bad)


def repeated(name: str, count: int) -> dict:
    """One fault, several times."""
    seconds, bad = [], []
    for number in range(count):
        try:
            seconds.append(faults.FAULTS[name]())
            if seconds[-1] > faults.FAULTS[name].seconds:
                bad.append(f"{name} {number}: it took {seconds[-1]:.1f} s")
        except faults.CannotProvoke as reason:
            return {**_row(name, [0.0], []), "drill": f"{name}: {reason}", "times": 0}
        except Exception as error:
            bad.append(f"{name} {number}: {type(error).__name__}: {error}")
        left = processes.leftovers(os.getpid(), allow_launcher=True)
        if left:
            bad.append(f"{name} {number} left {left}")
    return _row(name, seconds or [0.0], bad)


def browser_sessions(count: int) -> dict:
    """What an attendee does in a real browser, again and again (tests/test_browser.py)."""
    command = [sys.executable, "-m", "pytest", "-q", "tests/test_browser.py"]
    seconds, bad = [], []
    for number in range(count):
        began = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        seconds.append(time.monotonic() - began)
        if done.returncode or "skipped" in done.stdout:
            bad.append(f"browser {number}: {done.stdout[-2000:]}")
    return _row(f"{count} sessions in a browser", seconds, bad)


def host_drill(name: str, count: int, kept: dict) -> dict:
    """One drill of lesson 09b, several times: the right one named, and no loss changed."""

    def once() -> tuple[float, object]:
        kept[name] = one = host_drills.run_drill(name)
        return one.seconds, None if one.right and (one.lost or 0) <= 1e-5 else one

    return again_and_again(f"hosts: {name}", count, once)


def slurm_jobs(count: int) -> list[dict]:
    """Jobs that are told of their end, and jobs killed in the middle of a save: nothing is lost."""
    lab = when_hosts_fail.Lab()

    def once(run, most_again: int) -> tuple[float, object]:
        began = time.monotonic()
        with contextlib.redirect_stdout(io.StringIO()):
            job = run()
        resumed = job["first_step"] > 0 and job["steps"] == when_hosts_fail.STEPS
        whole = resumed and job["again"] <= most_again and job["apart"] < 1e-5
        right = job["state"] == "COMPLETED" and whole
        return time.monotonic() - began, None if right else job

    ways = {  # one step may end before it is saved
        "told": partial(once, lab.requeued, 0),
        "killed": partial(once, partial(kill_while_it_saves, lab), 1),
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


def drill_late(by: float = 0.3) -> tuple[float, object]:
    """Make a random rank late and look for it; the seconds, and what went wrong or None."""
    began, who = time.monotonic(), random.randrange(2)
    run = launch.launch(ddp_practice.STRAGGLERS, 2, late=who, by=by, quiet=True)
    right = ddp_practice.find_straggler(run) == who
    wrong = None if right else f"rank {who} was late:\n{ddp_practice.table_paces(run)}"
    return time.monotonic() - began, wrong


def drill_stuck(ranks: int = 3) -> tuple[float, object]:
    """Keep a random rank from a collective and look for its number in what the others tell."""
    began, who = time.monotonic(), random.randrange(ranks)
    found = hang.read(ddp_practice.launch_stuck(who, ranks))
    right = (found.kind, found.ranks) == ("missing", (who,))
    return time.monotonic() - began, None if right else f"rank {who} was stuck: {found}"


def again_and_again(what: str, count: int, once) -> dict:
    """The row of a drill. once: one try; its seconds, and what was wrong or None."""
    seconds, bad = [], []
    for number in range(count):
        try:
            took, wrong = once()
            seconds.append(took)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            bad.append(f"{what} {number}: {wrong}")
    return _row(what, seconds or [0.0], bad)


def _row(drill: str, seconds: list[float], bad: list[str]) -> dict:
    for line in bad:
        print(line, file=sys.stderr, flush=True)
    row = {
        "drill": drill,
        "times": len(seconds),
        "bad": len(bad),
        "median s": statistics.median(seconds),
        "longest s": max(seconds),
    }
    print(f"  {drill}: {len(bad)} bad of {len(seconds)}", flush=True)
    return row


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
    rows = [_row(f"1,000 malformed requests of {len(sent)} kinds, {whose}", [0.0], bad)]
    killed = serving_drills.run("a worker is killed", server, asked, 10_000)
    lost = f"{killed['refused']} refused"
    rows.append(
        _row(f"10,000 requests, a worker killed, {whose}: {lost}", [0.0], _wrong(killed, server))
    )
    server.publish(folder / "v2.onnx")
    for name in ("another version, and back", "a broken version"):
        found = [serving_drills.run(name, server, asked) for _ in range(times)]
        failed = [row for row in found if row["right"] < row["requests"]]
        bad = [f"{name}: {row}" for row in failed] + [
            line for row in found for line in _wrong(row, server)
        ]
        rows.append({**_row(f"{name}, {whose}", [0.0], bad), "times": times})
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
    parser.add_argument("--warm", type=int, default=300)
    parser.add_argument("--torchrun", type=int, default=30)
    parser.add_argument("--faults", type=int, default=10)
    parser.add_argument("--browser", type=int, default=10)
    parser.add_argument("--hosts", type=int, default=5)
    parser.add_argument("--slurm", type=int, default=10)
    parser.add_argument("--serving", type=int, default=5)
    parser.add_argument("--stragglers", type=int, default=10)
    parser.add_argument("--hangs", type=int, default=10)
    args = parser.parse_args()
    if min(vars(args).values()) < 0:
        parser.error("each number is 1 or more, or 0 to leave its drills out")
    starts = {"warm": args.warm, "torchrun": args.torchrun}
    rows = [launches(start, count) for start, count in starts.items() if count]
    rows += [repeated(name, args.faults) for name in faults.FAULTS if args.faults]
    rows += [browser_sessions(args.browser)] if args.browser else []
    if args.hosts and not simulated_hosts.why_not():
        kept: dict = {}
        rows += [host_drill(name, args.hosts, kept) for name in host_drills.DRILLS]
        when_hosts_fail.keep_drills(list(kept.values()), ROOT / "logs" / "host_drills.json")
    if args.slurm and not slurm.why_not():
        rows += slurm_jobs(args.slurm)
    rows += server_drills(args.serving) if args.serving else []
    for what, count, once in (
        ("a rank is late by 30 %: it is named", args.stragglers, drill_late),
        ("a rank never comes: it is named", args.hangs, drill_stuck),
    ):
        rows += [again_and_again(what, count, once)] if count else []
    launch.shut_down()
    left = processes.leftovers(os.getpid())
    print(Table(rows, f"Drills. Processes left at the end: {len(left)}"), flush=True)
    summary.write_json(ROOT / "logs" / "drills.json", {"drills": rows, "processes_left": len(left)})
    return 1 if left or any(row["bad"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
