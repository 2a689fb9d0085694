"""How a run ended and what it came to: its summary.json.

Rank 0 writes it when the run ends well, any rank that raises writes it when it ends badly, and the
launcher writes it for ranks that no longer can.
"""

import contextlib
import json
import statistics
from pathlib import Path

from bootcamp.files import read_json, write_json
from bootcamp.records.steps import read_steps

RESERVED_BYTES = 4096
WARMUP_STEPS = 3


def reserve(run_dir: Path) -> None:
    """Write `status: running` with room for the error that a full disk could not take."""
    _write_reserved(run_dir, "w", {"status": "running"})


def _write_reserved(run_dir: Path, mode: str, content: dict) -> None:
    with open(Path(run_dir) / "summary.json", mode) as file:
        file.write(json.dumps(content).ljust(RESERVED_BYTES - 1)[: RESERVED_BYTES - 1] + "\n")
        file.truncate()


def failure(
    rank: int | None, kind: str, message: str, details: str = "", host: str | None = None
) -> dict:
    """Make the summary's `error`.

    rank: None where no single rank failed. kind: raised, refused, killed, hang, interrupted, kernel
    died, launcher failed, start. host: the rank's, in a run over several.
    """
    where = {"host": host} if host else {}
    return {"rank": rank, "kind": kind, "message": message, "traceback": details, **where}


def write(run_dir: Path, status: str, **content) -> dict:
    """Write the run's summary, with the measures of its steps. content: other values.

    On a full disk it goes into the room reserved for it, without the rest; fails in silence.
    """
    content = {"status": status, **summarize_steps(read_steps(run_dir)), **content}
    try:
        write_json(Path(run_dir) / "summary.json", content)
    except OSError:
        error = content.get("error")
        if error:  # the reserved room is small: keep the end of a long message
            error = {**error, "message": error["message"][-1000:], "traceback": ""}
        with contextlib.suppress(OSError):
            _write_reserved(run_dir, "r+", {"status": status, "error": error})
    return content


def read(run_dir: Path) -> dict:
    """Read the run's summary; `{"status": "running"}` where there is none yet."""
    return {"status": "running"} | read_json(Path(run_dir) / "summary.json")


def compute_quartiles(values: list[float]) -> dict:
    """Return {"median", "q25", "q75"}; of one value, three times that value."""
    several = values if len(values) > 1 else values * 2
    q25, median, q75 = statistics.quantiles(several, n=4, method="inclusive")
    return {"median": median, "q25": q25, "q75": q75}


def summarize_steps(steps: list[dict]) -> dict:
    """Summarize a run's steps; times without the first three of them, or the first half of few."""
    if not steps:
        return {"steps": 0}
    warm = steps[min(WARMUP_STEPS, len(steps) // 2) :]
    return {
        "steps": len(steps),
        "final_loss": steps[-1]["loss"],
        "seconds_per_step": compute_quartiles([row["seconds"] for row in warm]),
        "samples_per_second": compute_quartiles([row["samples"] / row["seconds"] for row in warm]),
        "tokens_per_second": compute_quartiles([row["tokens"] / row["seconds"] for row in warm]),
    }
