"""What a real GPU said, as tools/gpu_record.py has recorded it.

    part = recorded_gpu.part("speed_small")
    part.table("ways", part["ways"] or [])

A record is a folder logs/reference/<machine>-gpu_record/ with a JSON file for each part. A table's
caption names the GPU and the versions. Without a record it has no rows, and says so in one
sentence. Standard library only.
"""

from pathlib import Path

from bootcamp.files import read_json
from bootcamp.paths import REFERENCE
from bootcamp.table import Table

FOLDERS = "*-gpu_record"


class Part:
    """One part of a record. content: as the tool wrote it, {} without a record.

    True where there is a record.
    """

    def __init__(self, name: str, path: Path | None = None):
        self.name, self.path = name, path
        self.content = read_json(path) if path else {}

    def __bool__(self) -> bool:
        return bool(self.content)

    @property
    def label(self) -> str:
        """The GPU, the versions and where the numbers are; without a record, that there is none."""
        if not self:
            return "No GPU has been recorded yet: make gpu-record does it, on a machine with one."
        about, ended = self.content["about"], self.content["status"]
        cut = "" if ended == "ok" else f" ({ended})"
        return (
            f"{about['gpu']['name']}, torch {about['versions']['torch']}, "
            f"CUDA {about['versions']['cuda']}; recorded run {self.path.parent.name}{cut}"
        )

    def __getitem__(self, name: str):
        """What was found under a name; None where it was not measured."""
        return self.content.get("found", {}).get(name)

    def table(self, name: str, rows: list[dict]) -> Table:
        """Rows made from what was found under a name, labelled; none where it was not measured."""
        missing = self and not rows
        return Table(rows, f"{name}: not measured. {self.label}" if missing else self.label)


def part(name: str, reference: Path = REFERENCE) -> Part:
    """The newest record of a part: equality, speed_small, roofline, mfu, faults and so on.

    A rehearsal on a CPU is no record.
    """
    found = [each for each in _parts(reference) if each.name == name]
    newest = max(found, key=lambda each: each.content["about"]["unix_seconds"], default=None)
    return newest or Part(name)


def _parts(reference: Path) -> list[Part]:
    paths = sorted(reference.glob(f"{FOLDERS}/*.json"))
    parts = [Part(path.stem, path) for path in paths]
    return [each for each in parts if each and not each.content["rehearsal"]]


def readme_sentence(reference: Path = REFERENCE) -> str:
    """What README.md says of GPUs: which has run what, and that several have not."""
    gpus: dict[tuple[str, str], list[str]] = {}
    for each in _parts(reference):
        where = each.content["about"]["gpu"]["name"], each.path.parent.name
        gpus.setdefault(where, []).append(each.name)
    if not gpus:
        return (
            "Nothing here has been run on a GPU so far. The code for CUDA and NCCL is written, and "
            "its flags and a rehearsal on the CPU are tested; `make gpu-record` is for its first "
            "real run."
        )
    said = [
        f"One {gpu} has run {', '.join(names)} of `make gpu-record`: `logs/reference/{folder}/`."
        for (gpu, folder), names in gpus.items()
    ]
    return " ".join([*said, "Several GPUs over NCCL have not been measured."])
