"""Where the ranks of a run over several hosts were, and their errors, first error first."""

import re
import time
from dataclasses import dataclass
from pathlib import Path

from bootcamp.files import read_json

FILE = "hosts.json"  # launcher/job_hosts.py writes it
MARK = re.compile(r"^\[rank\d+\]: ?", re.M)  # torch's, on each line of a traceback


@dataclass(frozen=True)
class RankErrors:
    """What one rank wrote to standard error, in one attempt of torchrun's.

    seconds: when it last wrote, since 1970, by the clock of its host.
    """

    rank: int
    host: str | None
    attempt: int
    seconds: float
    text: str


def ranks(folder: Path) -> list[dict]:
    """The ranks' processes, in the order of their start; see launcher/job_hosts.py."""
    return read_json(folder / FILE).get("ranks", [])


def host_of(folder: Path, rank: int | None) -> str | None:
    """The host that a rank was on last; None if it is not known, or there is only one."""
    return {row["rank"]: row["host"] for row in ranks(folder)}.get(rank)


def errors(folder: Path) -> list[RankErrors]:
    """What ranks wrote to standard error, by when they last did: the first to raise comes first.

    A rank that raises writes its traceback and ends; only then can another one miss it.
    """
    found = []
    for path, rank, host, attempt in _of_agents(folder) or _of_ranks(folder):
        text = MARK.sub("", path.read_text(errors="replace"))
        if text.strip():
            found.append(RankErrors(rank, host, attempt, path.stat().st_mtime, text))
    return sorted(found, key=lambda each: each.seconds)


def _of_ranks(folder: Path) -> list[tuple]:
    paths = [path for path in (folder / "ranks").glob("*.err") if path.stem.isdigit()]
    return [(path, int(path.stem), host_of(folder, int(path.stem)), 0) for path in paths]


def _of_agents(folder: Path) -> list[tuple]:
    """The files that torchrun makes: <host>/<run id>/attempt_<n>/<local rank>/stderr.log."""
    here = {(row["host"], row["attempt"], row["local_rank"]): row["rank"] for row in ranks(folder)}
    found = []
    for path in (folder / "ranks").glob("*/*/attempt_*/*/stderr.log"):
        host, _, attempt, local_rank = path.relative_to(folder / "ranks").parts[:4]
        number = int(attempt.removeprefix("attempt_"))
        rank = here.get((host, number, int(local_rank)))
        if rank is not None:
            found.append((path, rank, host, number))
    return found


def log(folder: Path) -> str:
    """The errors of all ranks of all hosts as one text, first error first."""
    found, texts = errors(folder), []
    for each in found:
        clock = time.strftime("%H:%M:%S", time.localtime(each.seconds))
        milliseconds = f"{each.seconds % 1:.3f}".removeprefix("0")
        where = f" on {each.host}" if each.host else ""
        again = f", attempt {each.attempt}" if each.attempt else ""
        delay = each.seconds - found[0].seconds
        later = "" if each is found[0] else f", {delay:.3f} s after the first"
        heading = f"== rank {each.rank}{where}{again}, {clock}{milliseconds}{later}"
        texts.append(f"{heading}\n{each.text.strip()}")
    return "\n\n".join(texts)
