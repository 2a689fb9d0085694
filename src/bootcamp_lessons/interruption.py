"""What lessons do to a run on purpose, so that a notebook shows it and runs through by itself."""

import _thread
import contextlib
import threading


@contextlib.contextmanager
def interrupt_after(seconds: float):
    """Interrupt what runs inside after some seconds, as the button of the notebook does."""
    timer = threading.Timer(seconds, _thread.interrupt_main)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
