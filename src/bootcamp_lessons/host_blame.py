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
# in an error that only tells that another rank did not come, or has gone
OF_ANOTHER = re.compile(r"Timed out|by peer|pair closure|Connection refused")


def name_culprit(run: Run) -> str:
    """Say in one sentence what is to blame, from what the run has left.

    An error that is no consequence of another's end names its own rank. Time-outs and closed
    connections name nobody: then the collectives of all ranks are laid side by side. Where no rank
    had started, the lines of the hosts are.
    """
    if not read_steps(run.folder) and not places.ranks(run.folder):
        return _at_the_rendezvous(run)
    error = run.summary.get("error") or {}
    if not error:
        return _slowest(run)
    rank, is_of_another = error.get("rank"), OF_ANOTHER.search(error["message"])
    if rank is not None and error.get("kind") != "hang" and not is_of_another:
        return f"rank {rank} on {run.host(rank)}"
    return hang.read(run).sentence


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
    for path in sorted((run.folder / "ranks").glob("host*.err")):
        if found := re.search(r"trying to connect to \((\S+), (\d+)\)", path.read_text()):
            return f"{path.stem} gets no answer from {found[1]}:{found[2]}"
    lines = read_json(run.folder / "lines.json")
    flags = {host: _flags(line) for host, line in lines.items()}
    for name in dict.fromkeys(name for each in flags.values() for name in each):
        values = {host: each.get(name) for host, each in flags.items()}
        if len(set(values.values())) > 1 and name != "--node-rank":
            return f"{name} differs: {', '.join(f'{v} on {h}' for h, v in values.items())}"
    wanted = next(iter(flags.values()))["--nnodes"]
    return f"all lines ask for {wanted} hosts, and torchrun was started on {len(lines)}"


def _flags(line: str) -> dict[str, str]:
    """The flags of torchrun, without those of its script."""
    return dict(re.findall(r"(--[\w-]+)[ =](\S+)", line.partition(".py")[0]))


def first_sign(run: Run, broken: float) -> tuple[str, float]:
    """The end of a run's first error, and how many seconds after it was broken.

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
        if lines := _error_lines(said.text):
            return _shorten(lines[-1]), said.seconds - broken
    path = max((run.folder / "ranks").glob("host*.err"), key=lambda each: each.stat().st_mtime)
    return _shorten(_error_lines(path.read_text())[-1]), path.stat().st_mtime - broken


def complaints(run: Run) -> int:
    """How many ranks have written an error."""
    return sum(bool(_error_lines(run.output(rank))) for rank in range(4))


def _error_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if ERROR.match(line)]


def _idle(run: Run) -> float:
    """Seconds from the last step that all ranks have done to the end."""
    beats = [path.stat().st_mtime for path in (run.folder / "ranks").glob("*.beat")]
    return (run.folder / "summary.json").stat().st_mtime - max(beats)


def _shorten(line: str) -> str:
    """An error's line without the package of its class and the place in gloo's source."""
    line = re.sub(r"^(\w+\.)+|\[enforce fail at [^]]*\] ([^.]*\. )?", "", line)
    line = PLACE_IN_GLOO.sub("", line)
    return line.partition(". This is")[0].partition(" Exception raised")[0][:120]
