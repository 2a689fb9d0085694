"""How a run ended, `summary.json`, and the arithmetic on its steps.

Rank 0 writes it when the run ends well, any rank that raises writes it when it ends badly, and the
launcher writes it for ranks that no longer can.
"""

import json
import statistics
from pathlib import Path

from bootcamp.files import read_json, write_json
from bootcamp.records.steps import read_steps

WARMUP_STEPS = 3
RESERVED_BYTES = 4096


def reserve(run_dir: Path) -> None:
    """Write `status: running` with room to spare: a full disk can still say what happened."""
    text = json.dumps({"status": "running"})
    (run_dir / "summary.json").write_text(text.ljust(RESERVED_BYTES - 1) + "\n")


def failure(
    rank: int | None, kind: str, message: str, details: str = "", host: str | None = None
) -> dict:
    """Make the summary's `error`: what went wrong.

    rank: None where no single one is meant. kind: raised, refused, killed, hang, interrupted,
    kernel died, launcher failed, start. host: where that was, in a run over several.
    """
    where = {"host": host} if host else {}
    return {"rank": rank, "kind": kind, "message": message, "traceback": details, **where}


def write(run_dir: Path, status: str, **content) -> dict:
    """Write the run's summary. On a full disk, into the room reserved for it, without the rest."""
    content = {"status": status, **content}
    path = Path(run_dir) / "summary.json"
    try:
        write_json(path, content)
    except OSError:
        error = content.get("error")
        if error:  # the reserved room is small: keep the end of a long traceback
            error = {**error, "message": error["message"][-1000:], "traceback": ""}
        text = json.dumps({"status": status, "error": error})
        with open(path, "r+") as file:
            file.write(text.ljust(RESERVED_BYTES - 1)[: RESERVED_BYTES - 1] + "\n")
            file.truncate()
    return content


def read(run_dir: Path) -> dict:
    """The run's summary; `{"status": "running"}` where there is none yet."""
    return {"status": "running"} | read_json(Path(run_dir) / "summary.json")


def quartiles(values: list[float]) -> dict:
    """Median and quartiles as {"median", "q25", "q75"}; of one value, three times that value."""
    if len(values) == 1:
        return dict.fromkeys(("median", "q25", "q75"), values[0])
    q25, median, q75 = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "q25": q25, "q75": q75}


def measures(steps: list[dict]) -> dict:
    """Throughput, step time and final loss of a run's steps.

    Speed is that after warm-up: without the first three steps, or the first half of few.
    """
    if not steps:
        return {"steps": 0}
    counted = steps[min(WARMUP_STEPS, len(steps) // 2) :]
    return {
        "steps": len(steps),
        "final_loss": steps[-1]["loss"],
        "seconds_per_step": quartiles([row["seconds"] for row in counted]),
        "samples_per_second": quartiles([row["samples"] / row["seconds"] for row in counted]),
        "tokens_per_second": quartiles([row["tokens"] / row["seconds"] for row in counted]),
    }


def measures_of(run_dir: Path) -> dict:
    """The measures of the steps in a run's folder."""
    return measures(read_steps(run_dir))
