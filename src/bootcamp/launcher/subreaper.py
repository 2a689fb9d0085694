"""python -P src/bootcamp/launcher/subreaper.py COMMAND [ARGUMENT ...]

Run a launcher such as torchrun so that nothing of it can outlive the process that started it: this
one adopts every orphan below it, and when its parent dies it kills them all and itself. It ends as
the command ends. The supervisor starts every foreign launcher through it.
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


def end_everything(*_) -> None:
    """Kill every process below this one until none is left, then leave."""
    process_tree.end_everything_below()
    os._exit(1)


def main(command: list[str]) -> int:
    """Run the command; its exit code. A command that a signal killed kills this process so too."""
    if sys.platform == "linux":
        signal.signal(signal.SIGTERM, end_everything)
        linux.adopt_orphans()
        parent = os.getppid()
        linux.die_with_parent(signal.SIGTERM)
        if os.getppid() != parent:
            return 1
    code = subprocess.Popen(command, close_fds=False).wait()  # files passed to us are meant for it
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
