"""Tables of lessons 04d and 04e: runs beside their baseline, the parts of a traced step."""

import contextlib
import io
import sys
from pathlib import Path

from bootcamp import launcher
from bootcamp.experiments import equality
from bootcamp.records import trace
from bootcamp.records.runs import TOLERANCE, Run
from bootcamp.table import Table


def compare_with_baseline(
    runs: dict[str, Run], baseline: dict[str, Run] | Run, tolerance: float = TOLERANCE
) -> Table:
    """Compare named runs with a baseline, one for all or one for each name."""
    rows = []
    for name, run in runs.items():
        exact = baseline if isinstance(baseline, Run) else baseline[name]
        proof = equality.compare(run, exact, tolerance)
        loss, _, parameters = proof.rows[-3:]
        sent = run.ranks[0]["sent_bytes_per_step"]
        row = {"run": name, "sent kB per step": None if sent is None else sent / 1e3}
        row |= {"loss apart": loss["measured"], "parameters apart": parameters["measured"]}
        rows.append(row | {"same training": "no" if proof.failed else "yes"})
    return Table(rows, f"{run.world} ranks, {len(run.steps)} steps, against one process")


def split_step(run: Run) -> Table:
    """Split the traced step of each rank into parts that add up to it, in ms.

    waits, sends: before and after the last rank has entered a collective, while nothing is computed
    (sends is both where that can't be told). neither: no operator and no collective ran.
    """
    rows = []
    for rank, step in run.timelines().items():
        parts = {"computes": trace.total_seconds(step["compute"])}
        for name, spans in (("waits", step["waiting"]), ("sends", step["sending"])):
            parts[name] = trace.total_seconds(trace.subtract_intervals(spans, step["compute"]))
        parts["neither"] = max(0.0, step["seconds"] - sum(parts.values()))
        rows.append({"rank": rank} | {name: 1e3 * value for name, value in parts.items()})
    return Table(rows, f"Milliseconds of one step, {run.strategy}, {run.origin}")


def read_flight_recorder(folder: Path, prefix: str = "rank_") -> str:
    """Return what `torchfrtrace FOLDER -p PREFIX` says, without the launcher's own frames."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):  # it says at once which packages it lacks
        from torch.distributed.flight_recorder import fr_trace
        from torch.distributed.flight_recorder.components.fr_logger import FlightRecorderLogger
    handler = FlightRecorderLogger().logger.handlers[0]
    before = handler.setStream(said)
    try:
        fr_trace.main([str(folder), "-p", prefix])
    finally:
        handler.setStream(before or sys.stderr)
    left_out = ("tabulate", f"{launcher.__name__.replace('.', '/')}/")
    lines = said.getvalue().splitlines()
    return "\n".join(line for line in lines if not any(word in line for word in left_out))
