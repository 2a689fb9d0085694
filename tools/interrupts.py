"""Interrupts for programs that a shell has started in the background."""

import signal

came: list[int] = []  # an interrupt that a library has swallowed is here all the same


def accept() -> None:
    """Take SIGINT as a program in the foreground does; processes started from here on do too.

    A shell without job control (`nohup make test &` in a script) starts background commands with
    SIGINT ignored, and every process below inherits that.
    """
    came.clear()
    if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, signal.default_int_handler):
        signal.signal(signal.SIGINT, _raise)


def _raise(number, frame) -> None:
    came.append(number)
    signal.default_int_handler(number, frame)


def ignore() -> None:
    """Take no more SIGINT: what is left to do is short, and has to be done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
