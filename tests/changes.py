"""Changes of scripts as text: lines that are taken out (-), and what stands in their place (+)."""


def read_changes(text: str) -> list[tuple[str, dict[str, str]]]:
    """Read parts that begin with `== HEADING`: each heading with its {line: what replaces it}."""
    found = []
    for part in text.split("\n== ")[1:]:
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
