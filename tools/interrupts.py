"""Interrupts for programs that a shell has started in the background."""

import signal


def accept() -> None:
    """Take SIGINT as a program in the foreground does; processes started from here on do too.

    A shell without job control (`nohup make test &` in a script) starts background commands with
    SIGINT ignored, and every process below inherits that.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def ignore() -> None:
    """Take no more SIGINT: what is left to do is short, and has to be done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
