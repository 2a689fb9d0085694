"""A program that shares a semaphore with a process it has spawned, and is killed."""

import multiprocessing
import os
import signal
import time

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    lock, started = spawn.Lock(), spawn.Event()
    print(lock._semlock.name, started._flag._semlock.name, sep="\n", flush=True)
    spawn.Process(target=time.sleep, args=(600,)).start()
    os.kill(os.getpid(), signal.SIGKILL)
