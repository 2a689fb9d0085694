"""python -P src/bootcamp/launcher/subreaper.py COMMAND [ARGUMENT ...]

Run a launcher such as torchrun so that nothing of it can outlive the process that started it: this
one adopts every orphan below it, and when its parent dies it kills them all and itself.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":  # started with -P as a file: the package lies one folder up
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bootcamp import linux
from bootcamp.launcher import process_tree


def main(command: list[str]) -> int:
    """Run the command and return its exit code, or die of the signal that killed it."""

    def end_everything(*_) -> None:
        process_tree.kill_everything_below()
        os._exit(1)

    signal.signal(signal.SIGTERM, end_everything)
    linux.adopt_orphans()
    parent = os.getppid()
    linux.die_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        return 1
    code = subprocess.Popen(command, close_fds=False).wait()  # files passed to us are meant for it
    if code < 0:
        signal.signal(signal.SIGTERM if code == -9 else -code, signal.SIG_DFL)  # no one handles 9
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
