"""What went wrong in a run: which rank failed first and why, or where the ranks hang.

Read from exit codes, from what the ranks printed, and from the reports of torchrun and horovodrun.
Standard library only.
"""

import re
import signal
from pathlib import Path

from bootcamp.records import summary

HOROVOD_EXIT = re.compile(r"^Process (\d+) exit with status code (\d+)\.", re.M)
HOROVOD_PREFIX = re.compile(r"^\[(\d+)\]<(?:stdout|stderr)>:", re.M)
TORCH_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.M)
ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.S)
WAITING_FRAMES = (
    "distributed_c10d.py",
    "torch/autograd/graph.py",
    "torch/distributed/",
    "torch/nn/parallel/distributed.py",
    "horovod/torch/mpi_ops.py",
    "bootcamp/train/record.py",  # loss.item(): on a GPU the wait for a collective ends up here
)


def failed_process(folder: Path, request: dict, index: int, code: int) -> dict:
    """The failure of the process that ended first with this code: a rank, or its launcher."""
    rank, script = index, None
    if request["ranks"]:
        script = Path(request["ranks"][0]["argv"][0]).name
    if request["start"] == "command":
        said = error_output(folder, None)
        rank, code = _first_in_report(said) or (None, code)
        said = _said_by(said, rank)
    else:
        said = error_output(folder, rank)
    if code < 0:
        return summary.failure(rank, "killed", _signal_sentence(-code), said)
    refusals = (line for line in said.splitlines() if line.startswith(f"{script}: "))
    if code == 2 and (refusal := next(refusals, None)):
        return summary.failure(rank, "refused", refusal)
    return summary.failure(rank, "raised", _last_words(said, rank, code), said)


def _last_words(said: str, rank: int | None, code: int) -> str:
    """The error that a process ended with; its exit code where that was chosen or nothing said.

    Python ends with 1 after an exception, and with 2 after arguments that it can't use.
    """
    lines = [line for line in said.strip().splitlines() if re.match(r"\w", line)]
    if lines and (rank is None or code in (1, 2)):
        return lines[-1]
    return f"{'the command' if rank is None else f'rank {rank}'} ended with exit code {code}"


def error_output(folder: Path, rank: int | None) -> str:
    """The end of what a rank wrote to standard error; of a launcher, of all that it wrote."""
    ends = ("launcher.out", "launcher.err") if rank is None else (f"{rank}.err",)
    paths = [folder / "ranks" / end for end in ends]
    texts = [path.read_text(errors="replace")[-20_000:] for path in paths if path.exists()]
    return TORCH_PREFIX.sub("", "".join(texts))


def _first_in_report(said: str) -> tuple[int | None, int] | None:
    """(rank, exit code) of the rank that failed first, by torchrun's or horovodrun's own report.

    horovodrun reports in the order in which the ranks ended, and the survivors of a dead rank raise
    at once: so a rank that a signal killed is the first, and of several that raised none is.
    """
    if found := ROOT_CAUSE.search(said):
        return int(found[1]), int(found[2])
    ends = [(int(rank), int(code)) for rank, code in HOROVOD_EXIT.findall(said) if code != "0"]
    killed = [(rank, 128 - code) for rank, code in ends if 128 < code != 128 + signal.SIGTERM]
    refused = [(rank, code) for rank, code in ends if code == 2]
    if killed or refused:
        return [*killed, *refused][0]
    return (None, ends[0][1]) if ends else None


def _said_by(said: str, rank: int | None) -> str:
    """What horovodrun passed on from a rank, without its prefixes; the text of others as it is."""
    lines = said.splitlines(keepends=True)
    if not any(HOROVOD_PREFIX.match(line) for line in lines):
        return said
    marked = [(HOROVOD_PREFIX.match(line), line) for line in lines]
    wanted = [(mark, line) for mark, line in marked if mark and rank in (None, int(mark[1]))]
    return "".join(line[mark.end() :] for mark, line in wanted)


def _signal_sentence(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = "a real-time signal"
    sentence = f"was killed by signal {number} ({name})"
    if number == signal.SIGKILL:
        sentence += ", by somebody or by the system for lack of memory"
    return sentence


def hang(folder: Path, ranks: list[int], beats: dict[int, tuple], silent: float) -> dict:
    """The failure of ranks that finish no step, from the stacks that they have written.

    beats: of each rank that has given one, (process id, steps done, when). silent: seconds.
    """
    stacks = {rank: _stack(folder, rank) for rank in sorted(ranks)}
    waiting = {rank for rank, stack in stacks.items() if _waits_for_others(stack)}
    stuck = sorted(set(stacks) - waiting)
    steps = {rank: beats[rank][1] if rank in beats else 0 for rank in stacks}
    who = f"rank {stuck[0]} hangs" if len(stuck) == 1 and waiting else "the ranks hang"
    where = "\n".join(
        f"rank {rank}, {steps[rank]} steps done"
        f"{', waits for the others' if rank in waiting else ''}:\n{stack}"
        for rank, stack in stacks.items()
    )
    message = f"{who}: no rank has finished a step for {silent:.0f} s"
    message += ". If a step may take so long, launch with a larger Options(hang_seconds=)"
    return summary.failure(stuck[0] if len(stuck) == 1 else None, "hang", message, where)


def _stack(folder: Path, rank: int) -> str:
    """The main thread's part of the dump, innermost frame first."""
    path = folder / "ranks" / f"{rank}.stack"
    text = path.read_text(errors="replace") if path.exists() else ""
    own = text[text.rfind("most recent call first") :] if text else ""
    frames = [line for line in own.splitlines()[1:] if line.startswith("  File")]
    return "\n".join(frames[:12]) or "  (no answer: not in Python, or not started yet)"


def _waits_for_others(stack: str) -> bool:
    """Whether a stack's innermost frames are in a collective, or a backward that has one."""
    innermost = stack.splitlines()[:2]
    return any(frame in line for line in innermost for frame in WAITING_FRAMES)
