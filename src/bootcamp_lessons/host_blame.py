"""Lesson 09b: what a run over hosts that went wrong shows, and who is to blame.

Read from what the run has left: errors of ranks, the collectives that they wait in, counters of the
hosts' kernels, the lines by which the hosts were started.
"""

import re

from bootcamp.files import read_json
from bootcamp.launcher import hang
from bootcamp.records import places
from bootcamp.records.runs import Run
from bootcamp.records.stalled import PLACE_IN_GLOO
from bootcamp.records.steps import read_steps
from bootcamp_lessons import ddp_depth

ERROR = re.compile(r"(\[rank\d+\]: )?[\w.]+Error\b")  # the line of a traceback that names it


def who(run: Run) -> str:
    """Who is to blame, from what the run has left: one sentence.

    An error that is no consequence of another's end names its own rank. Time-outs and closed
    connections name nobody: then the collectives of all ranks are laid side by side. Where no rank
    had started, the lines of the hosts are.
    """
    if not read_steps(run.folder) and not places.ranks(run.folder):
        return _at_the_rendezvous(run)
    error = run.summary.get("error") or {}
    if not error:
        return _slowest(run)
    rank, message = error.get("rank"), error["message"]
    if rank is not None and error.get("kind") != "hang" and not _of_another(message):
        return f"rank {rank} on {run.host(rank)}"
    return hang.read(run).sentence


def _of_another(message: str) -> bool:
    """Whether an error only tells that another rank did not come, or has gone."""
    return re.search(r"Timed out|by peer|pair closure|Connection refused", message) is not None


def _slowest(run: Run) -> str:
    """In a run that ended well: the host whose link was away, or the rank that nobody waits with.

    All wait for the slowest rank. It is the one that itself hardly waits (lesson 04b).
    """
    if lost := read_json(run.folder / "link.json").get("lost"):
        away = [host for host, times in lost.items() if times]
        return f"the kernel of {' and '.join(away)} counts a link that was lost"
    parts = {row["rank"]: row["waits"] for row in ddp_depth.step_parts(run)}
    late = min(parts, key=parts.get)
    return f"rank {late} on {run.host(late)} waits {parts[late]:.0f} ms in a step, the least"


def _at_the_rendezvous(run: Run) -> str:
    """Which host can't get through, or what differs between the lines, or how many are missing."""
    said = {path.stem: path.read_text() for path in (run.folder / "ranks").glob("host*.err")}
    lines = read_json(run.folder / "lines.json")
    for host, text in sorted(said.items()):
        if found := re.search(r"trying to connect to \((\S+), (\d+)\)", text):
            return f"{host} gets no answer from {found[1]}:{found[2]}"
    flags = {host: _flags(line) for host, line in lines.items()}
    names = dict.fromkeys(name for each in flags.values() for name in each)
    for name in names:
        values = {host: each.get(name) for host, each in flags.items()}
        if len(set(values.values())) > 1 and name != "--node-rank":
            return f"{name} differs: {', '.join(f'{v} on {h}' for h, v in values.items())}"
    wanted = next(iter(flags.values()))["--nnodes"]
    return f"all lines ask for {wanted} hosts, and torchrun was started on {len(lines)}"


def _flags(line: str) -> dict[str, str]:
    return dict(re.findall(r"(--[\w-]+)[ =](\S+)", line.partition(".py")[0]))


def seen(run: Run, broken: float) -> tuple[str, float]:
    """What a run shows, and so many seconds after it was broken: the end of its first error.

    Without an error: how long the run stood still, or how long its steps are. broken: when, in
    seconds since 1970.
    """
    error = run.summary.get("error")
    if not error:
        if seconds := read_json(run.folder / "link.json").get("seconds"):
            return "no error, a pause", seconds
        return "no error, each step as long as", run.seconds_per_step
    if error.get("kind") == "hang":
        return error["message"].partition(". ")[0], _idle(run)
    for said in places.errors(run.folder):
        if lines := [row for row in said.text.splitlines() if ERROR.match(row)]:
            return _short(lines[-1]), said.seconds - broken
    path = max((run.folder / "ranks").glob("host*.err"), key=lambda each: each.stat().st_mtime)
    rows = [row for row in path.read_text().splitlines() if ERROR.match(row)]
    return _short(rows[-1]), path.stat().st_mtime - broken


def complaints(run: Run) -> int:
    """How many ranks have written an error."""
    texts = [run.output(rank) for rank in range(4)]
    return sum(any(ERROR.match(row) for row in text.splitlines()) for text in texts)


def _idle(run: Run) -> float:
    """Seconds from the last step that all ranks have done to the end."""
    beats = [path.stat().st_mtime for path in (run.folder / "ranks").glob("*.beat")]
    return (run.folder / "summary.json").stat().st_mtime - max(beats)


def _short(line: str) -> str:
    """An error's line without the package of its class and the place in gloo's source."""
    line = re.sub(r"^(\w+\.)+|\[enforce fail at [^]]*\] ([^.]*\. )?", "", line)
    line = PLACE_IN_GLOO.sub("", line)
    return line.partition(". This is")[0].partition(" Exception raised")[0][:120]
