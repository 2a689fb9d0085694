"""The ranks' standard error, first error first, and the hosts that the ranks were on."""

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from bootcamp.files import read_json

HOSTS_FILE = "hosts.json"  # launcher/supervisor.py writes it
CPP_FRAME = r"(?:Exception raised from |C\+\+ CapturedTraceback|frame #|<omitting python).*\n?"
# torch's mark on each line of a traceback, and what C++ adds below an error
MARK = re.compile(rf"^\[rank\d+\]: ?(?:{CPP_FRAME})?|^{CPP_FRAME}", re.M)


@dataclass(frozen=True)
class RankErrors:
    """The standard error of one rank, in one attempt of torchrun's."""

    rank: int
    host: str | None
    attempt: int
    unix_seconds: float  # when the rank last wrote, by the clock of its host
    text: str

    def describe(self, first_unix_seconds: float) -> str:
        """Return the text below a heading: which rank, where, when, how long after the first."""
        where = f" on {self.host}" if self.host else ""
        again = f", attempt {self.attempt}" if self.attempt else ""
        clock = datetime.fromtimestamp(self.unix_seconds).time().isoformat("milliseconds")
        delay = self.unix_seconds - first_unix_seconds
        later = f", {delay:.3f} s after the first" if delay else ""
        heading = f"== rank {self.rank}{where}{again}, {clock}{later}"
        return f"{heading}\n{self.text.strip()}"


def read_processes(folder: Path) -> list[dict]:
    """Read a row for each process of a run over several hosts, in the order of their start."""
    return read_json(folder / HOSTS_FILE).get("ranks", [])


def find_host(folder: Path, rank: int | None) -> str | None:
    """Return the host that a rank was on last; None if unknown, or if there is only one."""
    return {row["rank"]: row["host"] for row in read_processes(folder)}.get(rank)


def read_errors(folder: Path) -> list[RankErrors]:
    """Read what ranks wrote to standard error, in order of when they last did.

    A rank that raises writes its traceback and ends; only then can another rank miss it. torchrun
    writes the files <host>/<run id>/attempt_<n>/<local rank>/stderr.log.
    """
    found = {}
    for row in read_processes(folder):  # torchrun may begin an attempt twice: the last counts
        host, attempt, rank = row["host"], row["attempt"], row["rank"]
        logs = f"ranks/{host}/*/attempt_{attempt}/{row['local_rank']}/stderr.log"
        found |= dict.fromkeys(folder.glob(logs), (rank, host, attempt))
    if not found:
        ranks = [int(path.stem) for path in folder.glob("ranks/*.err") if path.stem.isdigit()]
        found = {folder / f"ranks/{rank}.err": (rank, find_host(folder, rank), 0) for rank in ranks}
    errors = [
        RankErrors(*origin, path.stat().st_mtime, text)
        for path, origin in found.items()
        if (text := MARK.sub("", path.read_text(errors="replace"))).strip()
    ]
    return sorted(errors, key=lambda each: each.unix_seconds)
