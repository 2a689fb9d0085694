"""python src/snippets/replicas_that_leave.py

DiLoCo (Douillard et al., arXiv:2311.08105) with replicas that may leave and come back, after the
idea of torchft: no process group outlives a round. Three replicas train alone for some steps, then
those that are there form a group, average how far they came, and an outer optimizer steps. A
process that only keeps the list, the lighthouse, tells each round's members. In the second of two
trainings replica 2 is killed in the middle of a round, and another process takes its place later.
Prints a line of JSON for each round.
"""

import argparse
import json
import multiprocessing
import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from bootcamp.train import data, models

REPLICAS, ROUNDS, STEPS, PATIENCE = 3, 8, 5, timedelta(seconds=60)
SETTINGS = argparse.Namespace(model="gpt", size="tiny", dtype="float32", seed=0, global_batch=24)


def watch_over_replicas(name: str, killed_in: int = -1, back_in: int = -1) -> None:
    """Start the replicas and publish the members of each meeting, as a lighthouse does."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=PATIENCE, wait_for_workers=False)
    store.set("meeting", "0")
    processes, meeting = {}, 0

    def start(replica: int) -> None:
        given = (replica, store.port, killed_in if not meeting else -1)
        processes[replica] = multiprocessing.Process(target=train, args=given, daemon=True)
        processes[replica].start()

    try:
        for replica in range(REPLICAS):
            start(replica)
        while True:
            time.sleep(0.005)
            if 2 in processes and processes[2].exitcode == -signal.SIGKILL:
                del processes[2]  # whoever is left need not wait for it
            if not all(store.check([f"{meeting}/{replica}"]) for replica in processes):
                continue
            came = {k: json.loads(store.get(f"{meeting}/{k}")) for k in sorted(processes)}
            done = max(each["done"] for each in came.values())
            if done == back_in and 2 not in processes:
                start(2)  # this meeting waits for it
                continue
            show_round(name, done, list(came.values()))
            if done == ROUNDS:
                return
            store.set("meeting", f"{meeting + 1}")
            store.set(f"{meeting}/members", json.dumps([(k, came[k]["done"]) for k in came]))
            meeting += 1
    finally:
        for process in processes.values():
            process.kill()
            process.join()


def show_round(name: str, done: int, came: list[dict]) -> None:
    """Print what a meeting begins with; replicas that have seen all rounds hold the same."""
    agreed = [each for each in came if each["done"] == done]
    row = {"training": name, "round": done, "replicas": len(came), "new": len(came) - len(agreed)}
    row |= {"loss": agreed[0]["loss"], "replicas agree": len({e["sum"] for e in agreed}) == 1}
    print(json.dumps(row), flush=True)


def train(replica: int, port: int, killed_in: int) -> None:
    """Be a replica: steps alone, a meeting, an outer step, and again."""
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=PATIENCE)
    model = models.build(SETTINGS)
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    shared = [p.detach().clone() for p in model.parameters()]  # what the replicas have agreed on
    outer = torch.optim.SGD(shared, lr=0.7, momentum=0.9, nesterov=True)
    momentum = [torch.zeros_like(p) for p in shared]
    for parameter, buffer in zip(shared, momentum, strict=True):
        outer.state[parameter]["momentum_buffer"] = buffer
    batches = data.Batches(SETTINGS, replica, REPLICAS)
    held_out = batches.dataset.batch(torch.arange(len(batches.dataset) - 64, len(batches.dataset)))
    meeting, done = int(store.get("meeting")), 0
    while True:
        with torch.no_grad():  # every round begins with what was agreed
            for parameter, agreed in zip(model.parameters(), shared, strict=True):
                parameter.copy_(agreed)
            # one of those that hold the same
            loss = None if replica else models.loss(model(held_out[0]), held_out[1]).item()
        came = {"done": done, "loss": loss, "sum": sum(p.double().sum().item() for p in shared)}
        for step in range(STEPS if done or meeting == 0 else 0):  # who is new has none
            inputs, targets = batches(done * STEPS + step)
            inner.zero_grad()
            models.loss(model(inputs), targets).backward()
            inner.step()
            if (replica, done, step) == (2, killed_in, STEPS // 2):
                os.kill(os.getpid(), signal.SIGKILL)
        changes = [a - p.detach() for a, p in zip(shared, model.parameters(), strict=True)]
        while True:
            store.set(f"{meeting}/{replica}", json.dumps(came))
            members = dict(json.loads(store.get(f"{meeting}/members")))
            join_group(store, meeting, list(members).index(replica), len(members))
            meeting += 1
            try:
                take_part(members, shared + momentum, changes)
                break
            except RuntimeError:
                continue  # a member has died meanwhile: meet again, with the same changes
            finally:
                dist.destroy_process_group()
        for parameter, change in zip(shared, changes, strict=True):
            parameter.grad = change
        outer.step()
        done = max(members.values()) + 1


def join_group(store, meeting: int, rank: int, world: int) -> None:
    """Make a process group for one meeting."""
    own = dist.PrefixStore(f"group of {meeting}", store)
    dist.init_process_group("gloo", store=own, timeout=PATIENCE, rank=rank, world_size=world)


def take_part(members: dict[int, int], agreed: list, changes: list) -> None:
    """Give what is agreed to who is new, and average the others' changes. Raises RuntimeError.

    torchft votes in the end, for a member may die when some have heard of all and some have not.
    """
    names, most = list(members), max(members.values())
    trained = [name for name in names if members[name] == most]
    if len(trained) < len(names):
        for tensor in agreed:
            dist.broadcast(tensor, names.index(trained[0]))
    means = [change / len(trained) for change in changes]  # zero, of who is new
    for mean in means:
        dist.all_reduce(mean)
    for change, mean in zip(changes, means, strict=True):
        change.copy_(mean)


if __name__ == "__main__":
    multiprocessing.set_start_method("forkserver")
    multiprocessing.set_forkserver_preload(["torch._dynamo", "bootcamp.train.models"])
    watch_over_replicas("nobody is killed")
    watch_over_replicas("replica 2 is killed", killed_in=2, back_in=5)
