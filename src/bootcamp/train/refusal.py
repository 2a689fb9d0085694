"""Refuse flags and folders that cannot be used, before any training: one sentence, exit code 2."""

import sys
import time
from pathlib import Path
from typing import NoReturn

from bootcamp.train import environment


class ConfigError(Exception):
    """A flag that cannot be met. Its text says what was given, what was expected, what to do."""


def refuse(why: str) -> NoReturn:
    """End before any training, exit code 2: rank 0 says why, the others wait to be ended with it.

    why: what was given, what was expected, what to do.
    """
    if environment.rank() == 0:
        sys.stderr.write(f"{Path(sys.argv[0]).name}: {why}\n")
    else:
        time.sleep(5)  # torchrun ends every rank at the first exit: let rank 0 be the first
    sys.stderr.flush()
    sys.exit(2)
