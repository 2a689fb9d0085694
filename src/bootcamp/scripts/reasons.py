"""Why lines of the training scripts are there: `reasons.why("ddp", line)`.

reasons.toml has a sentence for each idea, not for each line: for the lines of the baseline, and for
at least one line of each block that a script adds to its parent. A line that a script shares with
an ancestor has the ancestor's reason. Tests find blocks without a reason, and reasons whose line is
gone. Standard library only.
"""

import tomllib
from pathlib import Path

from bootcamp.scripts import family

REASONS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())


def why(script: str | Path, line: str) -> str:
    """Why a script of the family has this code line; "" where nothing has to be said.

    script: a name of the family or its path. line: with or without its indent, without a comment.
    """
    for name in _lineage(script):
        if reason := REASONS[name].get(line.strip()):
            return reason
    return ""


def _lineage(script: str | Path) -> list[str]:
    """A script of the family, its parent, and so on to the baseline; empty for any other file."""
    names = {str(known.path): name for name, known in family.SCRIPTS.items()}
    name = names.get(str(script), str(script))
    line = []
    while name in family.SCRIPTS:
        line.append(name)
        name = family.SCRIPTS[name].parent
    return line
