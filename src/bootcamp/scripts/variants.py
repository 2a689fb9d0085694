"""A script of the family with a few lines replaced, for lessons that break it and for tests.

Derived when it is needed, so that it stays a copy of today's script: a line that is no longer there
is an error.
"""

from pathlib import Path

from bootcamp.scripts import family


def variant(script: str, name: str, changes: dict[str, str]) -> Path:
    """Write a variant of a script to logs/variants/<name>.py and return its path.

    changes: line of the script (without its indent) -> its replacement, with the same indent;
    several lines may be given with line breaks, an empty text takes the line out.

    Raises ValueError naming a line that the script does not have exactly once.
    """
    source = family.find(script)
    lines = source.read_text().splitlines()
    for old, new in changes.items():
        places = [number for number, line in enumerate(lines) if line.strip() == old]
        if len(places) != 1:
            raise ValueError(f"{source.name} has the line {old!r} {len(places)} times, not once")
        indent = lines[places[0]][: len(lines[places[0]]) - len(lines[places[0]].lstrip())]
        lines[places[0] : places[0] + 1] = [indent + line for line in new.splitlines()]
    path = family.variants_folder() / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    family.remember(path, source)
    return path
