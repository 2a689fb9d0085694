"""Where things lie. Standard library only."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"
NOTEBOOKS = ROOT / "notebooks"
LOGS = Path(os.environ.get("BOOTCAMP_LOGS", ROOT / "logs")).resolve()
REFERENCE = ROOT / "logs" / "reference"
WORK = Path(os.environ.get("BOOTCAMP_WORK", NOTEBOOKS / "work")).resolve()  # the readers' scripts
