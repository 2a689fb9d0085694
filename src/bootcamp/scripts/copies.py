"""Which script a copy was made from: variants, and the scripts that readers edit.

An index in logs/variants/ names the original of each copy, so that nothing has to be guessed from a
copy's text, which may not even be Python at the moment. Standard library and filelock.
"""

import json
from pathlib import Path

from filelock import FileLock

from bootcamp import files, paths


def folder() -> Path:
    """Where variants are written."""
    return paths.LOGS / "variants"


def original(path: Path | str) -> Path | None:
    """The script that a file is a copy of, None if it is not known to be one."""
    found = _index().get(str(Path(path).resolve()))
    return Path(found) if found else None


def enter(path: Path | str, source: Path | str) -> None:
    """Note of which file this one is a copy; a copy of a copy has the same original."""
    path, source = Path(path).resolve(), original(source) or Path(source).resolve()
    folder().mkdir(parents=True, exist_ok=True)
    with FileLock(folder() / "index.lock"):
        text = json.dumps({**_index(), str(path): str(source)}, indent=1)
        files.write_whole(folder() / "index.json", lambda file: file.write(text.encode()))


def _index() -> dict[str, str]:
    try:
        return json.loads((folder() / "index.json").read_text())
    except (OSError, ValueError):
        return {}
