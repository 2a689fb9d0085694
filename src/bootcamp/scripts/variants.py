"""Copies of a training script with a few lines replaced, for lessons that break it."""

from pathlib import Path

from bootcamp.scripts import strategies


def variant(script: str, name: str, changes: dict[str, str]) -> Path:
    """Write a variant of a script to logs/variants/<name>.py and return its path.

    changes: {line of the script without its indent: no, one or several lines, which get it}.
    Raises ValueError naming a line that the script does not have exactly once.
    """
    source = strategies.find(script)
    lines = source.read_text().splitlines()
    for old, new in changes.items():
        places = [number for number, line in enumerate(lines) if line.strip() == old]
        if len(places) != 1:
            raise ValueError(f"{source.name} has the line {old!r} {len(places)} times, not once")
        indent = lines[places[0]].partition(old)[0]
        lines[places[0] : places[0] + 1] = [indent + line for line in new.splitlines()]
    path = strategies.variants_folder() / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    strategies.record_copy(path, source)
    return path
