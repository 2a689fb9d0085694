"""A script of the family with a few lines replaced, for lessons that break it and for tests.

Derived when it is needed, so that it stays a copy of today's script: a line that is no longer there
is an error. Standard library only.
"""

from pathlib import Path

from bootcamp.paths import LOGS
from bootcamp.scripts import family


def variant(script: str, name: str, changes: dict[str, str]) -> Path:
    """Write a variant of a script to logs/variants/<name>.py and return its path.

    changes: line of the script (without its indent) -> what stands in its place, with the same
    indent; several lines may be given with line breaks, an empty text takes the line out.

    Raises ValueError naming the line if a line does not stand in the script exactly once.
    """
    source = family.find(script)
    lines = source.read_text().splitlines()
    for old, new in changes.items():
        places = [number for number, line in enumerate(lines) if line.strip() == old]
        if len(places) != 1:
            raise ValueError(f"{source.name} has the line {old!r} {len(places)} times, not once")
        indent = lines[places[0]][: len(lines[places[0]]) - len(lines[places[0]].lstrip())]
        lines[places[0] : places[0] + 1] = [indent + line for line in new.splitlines()]
    path = LOGS / "variants" / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path
