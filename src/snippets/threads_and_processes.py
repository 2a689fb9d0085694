"""python src/snippets/threads_and_processes.py

Two workers, each with the same work: as two threads of one process, and as two processes.
Prints JSON: for each kind of work the seconds of every round, of one worker alone, of two threads
and of two processes.
"""

import json
import time
from argparse import Namespace
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import cache

import torch

from bootcamp.train import data, models

WORKERS = 2
ROUNDS = {"python_loop": 12, "matrix_products": 5, "replica_step": 5}  # a claim needs ten
FLAGS = Namespace(model="gpt", size="tiny", seed=0, dtype="float32", global_batch=16)
torch.set_num_threads(1)  # a worker computes on one core


def python_loop(worker):
    total = 0
    for number in range(1_000_000):
        total += number
    return total


def matrix_products(worker):
    square = torch.ones(768, 768)
    for _ in range(3):
        square = square @ square / 768
    return square[0, 0].item()


@cache
def replica(worker):
    return models.build(FLAGS), data.Batches(FLAGS, worker, WORKERS)(0)


def replica_step(worker):
    model, (inputs, targets) = replica(worker)
    loss = models.loss(model(inputs), targets)
    loss.backward()
    return loss.item()


def seconds(pool, work, workers):
    began = time.perf_counter()
    list(pool.map(work, range(workers)))
    return time.perf_counter() - began


if __name__ == "__main__":
    names = ("processes", "threads", "alone")
    with ProcessPoolExecutor(WORKERS) as processes, ThreadPoolExecutor(WORKERS) as threads:
        for work in (python_loop, matrix_products, replica_step):
            rounds = [  # processes first: they are forked before any thread is
                (
                    seconds(processes, work, WORKERS),
                    seconds(threads, work, WORKERS),
                    seconds(threads, work, 1),
                )
                for _ in range(1 + ROUNDS[work.__name__])
            ]
            columns = zip(*rounds[1:], strict=True)  # the first one starts the workers
            row = {"work": work.__name__.replace("_", " ")}
            print(json.dumps(row | dict(zip(names, columns, strict=True))))
