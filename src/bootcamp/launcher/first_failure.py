"""Find the rank that failed first, and why: by exit codes, output, and the launchers' reports."""

import re
import signal
from pathlib import Path

from bootcamp.launcher.run_request import RunRequest
from bootcamp.records import rank_errors, summary
from bootcamp.records.runs import Run

MOST_CHARACTERS = 20_000  # of an output that are read
IN_TORCHRUNS_REPORT = re.compile(r"^ *rank +: (\d+) \(local_rank.*\n *exitcode +: (-?\d+)", re.M)
IN_HOROVODRUNS_REPORT = re.compile(r"^Process (\d+) exit with status code (\d+)\.", re.M)
# how launchers mark a line that a rank has printed; torchrun does so only where it is asked to,
# over several hosts, and says "[0]:" alone of a host without a rank's error
MARKED_BY_HOROVODRUN = re.compile(r"\[(\d+)\]<(?:stdout|stderr)>:")
MARKED_BY_TORCHRUN = re.compile(r"\[(\d+)\]:(?=.)")
# lines of torchrun itself after the error of a rank, and what no error begins with
NO_ERROR = re.compile(r"\W|[IWE]\d{4} |Traceback |Failures:|Root Cause |\S+ChildFailedError: ")


def describe_failure(folder: Path, request: RunRequest, codes: dict) -> dict:
    """Describe the failure of the process that failed first: a rank, or its launcher.

    What a signal killed goes first: the others raise because of it. codes: the first end first.
    """
    failed = {name: code for name, code in codes.items() if code}
    first = next((name for name, code in failed.items() if code < 0), next(iter(failed)))
    rank, code = first, failed[first]
    if request.agents:
        outputs = {name: Run(folder).output(name) for name in failed}
        rank, first, code = _find_first_rank(folder, outputs, code) or (None, first, code)
        text = _select_output(outputs[first], rank, request.hosts)
    else:
        texts = {each.rank: each.text for each in rank_errors.read_errors(folder)}
        rank = next(k for k in texts if k in failed) if code > 0 and rank in texts else rank
        text, code = texts.get(rank, ""), failed[rank]  # who wrote first: an end may be heard late
    text = text[-MOST_CHARACTERS:]
    host = rank_errors.find_host(folder, rank) or (first if request.hosts > 1 else None)
    if code < 0:
        name = {each.value: each.name for each in signal.Signals}.get(-code, "a real-time signal")
        why = ", by somebody or by the system for lack of memory" if name == "SIGKILL" else ""
        sentence = f"was killed by signal {-code} ({name}){why}"
        return summary.failure(rank, "killed", sentence, text, host)
    script = Path(request.ranks[0].argv[0]).name if request.ranks else None
    refusals = [line for line in text.splitlines() if line.startswith(f"{script}: ")]
    if code == 2 and refusals:
        return summary.failure(rank, "refused", refusals[0], host=host)
    message = _find_error(text, rank, code)
    if rank is None and host:
        errors: dict[str, list[str]] = {}  # error of a host's torchrun -> these hosts
        for name, output in outputs.items():
            own = _select_output(output, None, request.hosts)
            errors.setdefault(_find_error(own, None, failed[name]), []).append(name)
        each = (f"{' and '.join(sorted(names))}: {error}" for error, names in errors.items())
        message = "; ".join(each)
    return summary.failure(rank, "raised", message, text, host)


def _find_first_rank(folder: Path, outputs: dict[str, str], code: int) -> tuple | None:
    """Find (rank, its launcher, its exit code) in the reports; None if a launcher failed itself.

    A rank that was killed comes before those that raised, and these in the order of their errors.
    """
    reported = {}
    for launcher, text in outputs.items():
        reported |= {rank: (rank, launcher, end) for rank, end in _read_report(text)}
    suspects = [rank for rank, (_, _, end) in reported.items() if end < 0]
    suspects += [each.rank for each in rank_errors.read_errors(folder) if each.rank in reported]
    return reported[[*suspects, *reported][0]] if reported and code > 0 else None


def _read_report(text: str) -> list[tuple[int, int]]:
    """Read (rank, exit code) of failed ranks from a report, the likely first one first.

    torchrun's ends with the first. horovodrun reports in the order in which the ranks ended, and
    the survivors of a dead rank raise at once: of several that raised none is the first.
    """
    ends = [(int(rank), int(code)) for rank, code in IN_TORCHRUNS_REPORT.findall(text)][::-1]
    for rank, code in IN_HOROVODRUNS_REPORT.findall(text):
        if int(code) == 2 or int(code) > 128:  # refused, or 128 and the signal that killed it
            ends.append((int(rank), 2 if int(code) == 2 else 128 - int(code)))
    return [(rank, code) for rank, code in ends if code != -signal.SIGTERM]  # for another's sake


def _select_output(text: str, rank: int | None, hosts: int) -> str:
    """Select what a launcher passed on from a rank, without its marks; all where it marks nothing.

    rank: None is any of horovodrun's ranks, and none of torchrun's: its own lines.
    """
    pattern = MARKED_BY_TORCHRUN if hosts > 1 else MARKED_BY_HOROVODRUN
    lines = [(pattern.match(line), line) for line in text.splitlines(keepends=True)]
    if rank is None and hosts > 1:
        own = [line for mark, line in lines if not mark]
    elif any(mark for mark, _ in lines):
        own = [line[mark.end() :] for mark, line in lines if mark and rank in (None, int(mark[1]))]
    else:  # torch marks the traceback of a rank that raises within a process group
        own = re.findall(rf"^\[rank{rank}\]: ?(.*\n?)", text, re.M) or [text]
    return rank_errors.MARK.sub("", "".join(own))


def _find_error(text: str, rank: int | None, code: int) -> str:
    """Return the error that a process ended with, or its exit code if that tells more."""
    lines = [line for line in text.splitlines() if line and not NO_ERROR.match(line)]
    if lines and (rank is None or code in (1, 2)):  # Python's after an exception, bad arguments
        return lines[-1]
    return f"{'the command' if rank is None else f'rank {rank}'} ended with exit code {code}"
