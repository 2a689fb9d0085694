"""python src/snippets/save_for_ever.py --way in_place --kills 20

A process saves as fast as it can and is killed with SIGKILL at a random moment, again and again.
Prints for each kill what its file was then: whole, torn or missing; and how long it takes to make a
state and to save it. --file names a script whose function `save` is put to this test instead.
"""

import argparse
import importlib.util
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

NUMBERS = 2**20  # of four bytes: 4 MiB
LONGEST = 10  # seconds, if nobody kills it


def save_in_place(state, path):
    """As it is found in many scripts."""
    torch.save(state, path)


def save(state, path):
    """Put a state into a file, so that at every moment the file is the old one or the new one."""
    beside = path.with_name(f"{path.name}.part")
    with open(beside, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def make_state(step):
    """A state that shows whether all of it is of one step."""
    return {"step": step, "model": torch.full((NUMBERS,), float(step))}


def save_for_ever(way, path):
    """Save one state after the other. Ends by being killed."""
    step, end = 1, time.monotonic() + LONGEST
    while time.monotonic() < end:
        way(make_state(step), path)
        step += 1


def kill_once(way, path, seconds):
    """Let a process save, kill it after some seconds, and say what the file is."""
    way(make_state(0), path)
    child = os.fork()
    if child == 0:
        try:
            save_for_ever(way, path)
        finally:
            os._exit(1)
    try:
        time.sleep(seconds)
    finally:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    return describe_file(path) if os.WIFSIGNALED(status) else "save ended"


def time_saves(way, path, times=9):
    """What the process spends on making a state, and on saving it: the medians."""
    spent = {"making": [], "saving": []}
    for step in range(times):
        began = time.perf_counter()
        state = make_state(step)
        made = time.perf_counter()
        way(state, path)
        spent["making"].append(made - began)
        spent["saving"].append(time.perf_counter() - made)
        del state  # as in the loop: the next state is made in this one's memory
    return {part: statistics.median(each) for part, each in spent.items()}


def describe_file(path):
    if not path.exists():
        return "missing"
    try:
        state = torch.load(path, weights_only=True)
        whole = bool((state["model"] == float(state["step"])).all())
    except Exception:  # torch raises many kinds for a file that is not its own
        return "torn"
    return "whole" if whole else "torn"


def list_events(way, path):
    """What one save does to files, in order: the audit events of Python, and fsync."""
    events, sync = [], os.fsync
    listening = True

    def note_event(event, given):
        if not listening:
            return
        if event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR):
            events.append(["write", str(given[0])])
        elif event == "os.rename":
            events.append(["rename", str(given[0]), str(given[1])])
        elif event == "os.remove":
            events.append(["remove", str(given[0])])

    way(make_state(0), path)
    sys.addaudithook(note_event)
    os.fsync = lambda file: (events.append(["sync"]), sync(file))[1]
    way(make_state(1), path)
    os.fsync, listening = sync, False
    return events


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=("in_place", "beside"), default="beside")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--file", help="a script with a function save(state, path)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    way = {"in_place": save_in_place, "beside": save}[args.way]
    if args.file:
        spec = importlib.util.spec_from_file_location("to_be_tested", args.file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        way = module.save
    moments = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        found = [kill_once(way, path, moments.uniform(0.02, 0.1)) for _ in range(args.kills)]
        spent = time_saves(way, path)
        events = list_events(way, path)
    print(json.dumps({"found": found, "path": str(path), "seconds": spent, "events": events}))


if __name__ == "__main__":
    main()
