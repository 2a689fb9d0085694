"""Which script a copy was made from: variants, and the scripts that readers edit.

An index in logs/variants/ names the original of each copy, so that nothing has to be guessed from a
copy's text, which may not even be Python at the moment. Standard library and filelock.
"""

from pathlib import Path

from bootcamp import files, paths


def folder() -> Path:
    """Where variants are written."""
    return paths.LOGS / "variants"


def original(path: Path | str) -> Path | None:
    """The script that a file is a copy of, None if it is not known to be one."""
    found = files.read_json(_index()).get(str(Path(path).resolve()))
    return Path(found) if found else None


def enter(path: Path | str, source: Path | str) -> None:
    """Note of which file this one is a copy; a copy of a copy has the same original."""
    path, source = Path(path).resolve(), original(source) or Path(source).resolve()
    files.update_json(_index(), lambda index: index.update({str(path): str(source)}))


def _index() -> Path:
    return folder() / "index.json"
