"""python tools/recorders/errors.py [NAME ...]

Provoke anew the errors that lessons, the clinic and the launcher's faults end with, and write down
how: the last lines, the version of torch, the machine. The index is
src/bootcamp/classroom/errors.py, the record logs/reference/errors.json, which keeps what it has of
other programs. With names of entries, only these are provoked. Ends with 1 if an error could not be
provoked, or is explained by another entry.
"""

import argparse
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

SCRATCH = tempfile.TemporaryDirectory(prefix="bootcamp-errors-")
os.environ["BOOTCAMP_LOGS"] = f"{SCRATCH.name}/logs"
os.environ["BOOTCAMP_WORK"] = f"{SCRATCH.name}/work"
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import faults  # noqa: E402

from bootcamp import machine  # noqa: E402
from bootcamp.classroom import errors  # noqa: E402
from bootcamp.experiments import replay  # noqa: E402
from bootcamp.files import write_json  # noqa: E402
from bootcamp.launcher import launch  # noqa: E402
from bootcamp.paths import SRC  # noqa: E402
from bootcamp.scripts.variants import variant  # noqa: E402
from bootcamp_lessons.labs import clinic  # noqa: E402

SNIPPETS = SRC / "snippets"
MISTAKES = {  # (entry, case of the clinic) -> how its script is fixed wrongly, and ends with it
    ("sampler_and_shuffle", "same_order"): {"sampler=sampler": "sampler=sampler, shuffle=True"},
    ("left_on_meta", "moved_on_rank_0"): {
        "if rank == 0:\n    model.to_empty(device=device)": "model.to(device)"
    },
    ("static_graph_changed", "sometimes_unused"): {
        "(TwoHeads())": "(TwoHeads(), static_graph=True)"
    },
}
BROKEN = {
    "no_meeting_place": "no_address",
    "parts_for_a_model": "wrapped_twice",
    "left_on_meta": "moved_on_rank_0",
    "torn_checkpoint": "saved_by_all",
    "unused_parameters": "sometimes_unused",
    "hang": "evaluated_on_rank_0",
    "peer_is_gone": "own_loss",
}
FAULTS = {
    "killed": ("rank_is_killed", "torchrun_rank_is_killed"),
    "hang": ("rank_hangs",),
    "supervisor_died": ("supervisor_dies",),
    "folder_not_writable": ("folder_cannot_be_written",),
    "disk_full": ("disk_is_full",),
}


def end_of(error: dict) -> str:
    """The last lines of a run's error; what the launcher said where no rank said anything."""
    if error["kind"] in ("raised", "killed") and error["traceback"].strip():
        said = errors.last_lines(error["traceback"])
        return f"{error['message']}\n{said}" if error["kind"] == "killed" else said
    return error["message"]


def of_run(script: Path, ranks: int, hang_seconds: float = 8, **flags) -> str:
    """How a script ends that fails or hangs."""
    how = {"device": "cpu", "quiet": True, "options": launch.Options(hang_seconds), **flags}
    return end_of(launch.launch(script, ranks, raises=False, **how).summary["error"])


def of_case(file: str, changes: dict[str, str] | None = None) -> str:
    """How a broken script of the clinic ends, or one that was fixed wrongly."""
    case, path = clinic.CASES[file], clinic.CASES[file].broken
    if changes:
        path = Path(SCRATCH.name) / f"{file}_changed.py"
        path.write_text(clinic.replace_once(case.broken.read_text(), changes))
    return end_of(case.run(path, case.ranks).summary["error"])


def of_fault(name: str) -> str:
    """What the launcher raises while a fault of tests/faults.py is provoked; the first of it."""
    heard, plain = [], launch.LaunchError.__init__

    def listening(self, error, run=None):
        heard.append(end_of(error))
        plain(self, error, run)

    launch.LaunchError.__init__ = listening
    try:
        faults.FAULTS[name]()
    finally:
        launch.LaunchError.__init__ = plain
    return heard[0]


def rank_0_alone(**flags) -> str:
    """Lesson 04: only rank 0 averages the loss."""
    average = "run.loss(mean_loss, dist.all_reduce(mean_loss, async_op=True))"
    broken = "if rank == 0:\n    dist.all_reduce(mean_loss)\nrun.loss(mean_loss)"
    script = variant("ddp", "ddp_only_rank_0", {average: broken})
    return of_run(script, 2, steps=6, global_batch=32, **flags)


def hsdp_in_ddp() -> str:
    """Lesson 08: hybrid sharding, wrapped once more."""
    wrap = "optimizer = optimizers.build(args, model.parameters())"
    changes = {wrap: f"model = torch.nn.parallel.DistributedDataParallel(model)\n{wrap}"}
    return of_run(variant("hsdp", "hsdp_in_ddp", changes), 4, steps=3, hang_seconds=60)


def device_ids() -> str:
    """Lesson 04b: a model on the CPU, and device_ids."""
    run = launch.launch(SNIPPETS / "ddp_device_ids.py", 2, device="cpu", quiet=True)
    return next(line for line in run.output(0).splitlines() if "only work with" in line).strip()


def refused(**flags) -> str:
    """Lesson 07b: a checkpoint that lacks a part, or is of another model."""
    saved = Path(SCRATCH.name) / "saved"
    same = {"global_batch": 8, "device": "cpu", "quiet": True}
    if not saved.exists():
        launch.launch("fsdp", 2, steps=2, save=saved, **same)
    if flags.pop("without_a_part", False):
        next(saved.glob("step-*/__1_0.distcp")).unlink()
    return of_run("cpu", 1, steps=4, resume=saved, global_batch=8, **flags)


def all_ways() -> list[tuple[str, str, Callable[[], str]]]:
    """(entry, what provokes it, how) of every error that is recorded."""
    ways = [(e, f"clinic, {f}", lambda f=f: of_case(f)) for e, f in BROKEN.items()]
    for (entry, file), changes in MISTAKES.items():
        ways += [(entry, f"clinic, {file} fixed wrongly", lambda f=file, c=changes: of_case(f, c))]
    for entry, names in FAULTS.items():
        ways += [(entry, f"fault {name}", lambda n=name: of_fault(n)) for name in names]
    return [
        *ways,
        ("timed_out", "lesson 04, the ranks disagree", lambda: rank_0_alone(timeout=3)),
        ("hang", "lesson 04, no time-out", lambda: rank_0_alone(timeout=100, hang_seconds=5)),
        ("device_ids_of_a_cpu", "lesson 04b, device_ids", device_ids),
        ("parts_for_a_model", "lesson 08, wrapped once more", hsdp_in_ddp),
        ("another_model", "lesson 07b, another model", lambda: refused(model="mlp")),
        ("missing_part", "lesson 07b, a part is missing", lambda: refused(without_a_part=True)),
    ]


def without_own_folders(text: str) -> str:
    """A text without this machine's folders and name."""
    text = replay.hide_own_folders(text.replace(SCRATCH.name, "..."))
    return text.replace(str(Path.home()), "~").replace(socket.gethostname(), "this-host")


def provoke(entry: str, by: str, how: Callable[[], str]) -> dict | None:
    """One record, or None with a line that says why there is none."""
    try:
        text = without_own_folders(how()).strip()
    except Exception as error:
        print(f"{entry}, {by}: not provoked. {type(error).__name__}: {error}", flush=True)
        return None
    found = errors.find(text)
    right = found is not None and found.name == entry
    print(f"{entry}, {by}: {'recorded' if right else f'FOUND BY {found}'}", flush=True)
    if not right:
        print(text)
    what = {"torch": version("torch"), "machine": machine.cpu_name()}
    return {"entry": entry, "provoked_by": by, "text": text, **what}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="entries to provoke anew (default: all)")
    wanted, ways = parser.parse_args().names, all_ways()
    known = dict.fromkeys(way[0] for way in ways)
    if unknown := [name for name in wanted if name not in known]:
        parser.error(f"no entry {unknown[0]!r} is provoked: there are {', '.join(known)}")
    kept = {(each["entry"], each["provoked_by"]): each for each in errors.read_recorded()}
    new = [provoke(*way) for way in ways if not wanted or way[0] in wanted]
    launch.shut_down()
    for record in filter(None, new):
        kept[record["entry"], record["provoked_by"]] = record
    records = list(kept.values())
    write_json(errors.RECORDED, {"errors": records})
    print(f"{len(records)} texts of {len({r['entry'] for r in records})} entries.")
    explained = [(errors.find(record["text"]), record["entry"]) for record in records]
    return 0 if None not in new and all(e and e.name == name for e, name in explained) else 1


if __name__ == "__main__":
    sys.exit(main())
