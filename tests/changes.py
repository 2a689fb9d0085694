"""Changes of scripts as text: lines that are taken out (-), and what stands in their place (+)."""

from pathlib import Path


def read_changes(name: str) -> list[tuple[str, dict[str, str]]]:
    """Read mistakes/NAME.diff: each `== HEADING` with its {line: what replaces it}."""
    text, found = Path(__file__).with_name("mistakes").joinpath(f"{name}.diff").read_text(), []
    for part in f"\n{text}".split("\n== ")[1:]:
        heading, *lines = part.splitlines()
        changes = {}
        for mark, line in ((line[0], line[2:]) for line in lines):
            if mark == "-":
                changes[line] = ""
            else:
                taken_out = list(changes)[-1]
                changes[taken_out] = "\n".join(filter(None, [changes[taken_out], line]))
        found.append((heading, changes))
    return found
