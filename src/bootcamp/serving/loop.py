"""A coroutine from a notebook's cell, whose thread has an event loop already."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine

LOOK_SECONDS = 0.2


def in_a_thread(work: Coroutine, meanwhile: Callable[[], None] = lambda: None):
    """Run a coroutine in a loop and a thread of its own; what it returns or raises.

    meanwhile: called every now and then, to show how far it is. An interrupt ends the coroutine.
    """
    result, running = concurrent.futures.Future(), []

    async def keep() -> None:
        running.append((asyncio.get_running_loop(), asyncio.current_task()))
        try:
            result.set_result(await work)
        except BaseException as error:
            result.set_exception(error)

    thread = threading.Thread(target=lambda: asyncio.run(keep()), daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(LOOK_SECONDS)
            meanwhile()
    except BaseException:
        for loop, task in running:
            loop.call_soon_threadsafe(task.cancel)
        thread.join()
        raise
    return result.result()
