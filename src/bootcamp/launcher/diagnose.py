"""Find the rank that failed first, and why.

Read from exit codes, from what the ranks printed, and from the reports of torchrun and horovodrun.
"""

import re
import signal
from pathlib import Path

from bootcamp.launcher.requests import COMMAND, RunRequest
from bootcamp.records import places, summary

HOROVOD_EXIT = re.compile(r"^Process (\d+) exit with status code (\d+)\.", re.M)
HOROVOD_PREFIX = re.compile(r"^\[(\d+)\]<(?:stdout|stderr)>:", re.M)
TORCH_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.M)
ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.S)
REPORTED = re.compile(r"^ *rank +: (\d+) \(local_rank.*\n *exitcode +: (-?\d+)", re.M)


def failed_process(folder: Path, request: RunRequest, codes: dict) -> dict:
    """Describe the failure of the process that failed first: a rank, or its launcher.

    A rank that a signal killed goes before those that raised: its connections close before its end
    is seen, and the others raise because of that. codes: exit codes in the order of the ends, of
    each host's torchrun where there are several.
    """
    failed = [(who, code) for who, code in codes.items() if code]
    killed = [(who, code) for who, code in failed if code < 0]
    index, code = (killed or failed)[0]
    rank, script, host = index, None, None
    if request.ranks:
        script = Path(request.ranks[0].argv[0]).name
    if request.agents and request.hosts > 1:
        rank, host, code, said = _first_on_hosts(folder, codes)
        if rank is None and code > 0:
            return summary.failure(None, "raised", _each_said(folder, codes), said, host)
    elif request.start == COMMAND:
        said = error_output(folder, None)
        rank, code = _first_in_report(said) or (None, code)
        said = _said_by(said, rank)
    else:
        said = error_output(folder, rank)
    if rank is not None:
        host = places.host_of(folder, rank)
    if code < 0:
        return summary.failure(rank, "killed", _signal_sentence(-code), said, host)
    refusals = (line for line in said.splitlines() if line.startswith(f"{script}: "))
    if code == 2 and (refusal := next(refusals, None)):
        return summary.failure(rank, "refused", refusal, host=host)
    return summary.failure(rank, "raised", _last_words(said, rank, code), said, host)


def _first_on_hosts(folder: Path, codes: dict[str, int]) -> tuple:
    """(rank or None, host, exit code, what it said) of what failed first on any host.

    codes: of each host's torchrun, in the order of their ends. One that was killed could report
    nothing. Ranks are in the reports of the others; a rank that was killed comes first, for it only
    makes others raise, then the one that wrote its error first. Without either, torchrun itself
    raised, such as at the rendezvous.
    """
    for host, code in codes.items():
        if code < 0:
            return None, host, code, ""
    reports = {host: _agent_said(folder, host) for host in codes}
    failed = {
        int(rank): int(code)
        for said in reports.values()
        for rank, code in REPORTED.findall(said)
        if int(code) != -signal.SIGTERM  # by its torchrun, for another's sake
    }
    said = [each for each in places.errors(folder) if each.rank in failed]
    killed = [rank for rank, code in failed.items() if code < 0]
    if killed or said:
        rank = killed[0] if killed else said[0].rank
        words = next((each.text for each in reversed(said) if each.rank == rank), "")
        return rank, None, failed[rank], words[-20_000:]
    host, code = next((host, code) for host, code in codes.items() if code)
    return None, host, code, reports[host]


def _each_said(folder: Path, codes: dict[str, int]) -> str:
    """The last words of each host's torchrun that failed: "host0 and host1: ...Error"."""
    words: dict[str, list[str]] = {}
    for host, code in codes.items():
        if code:
            last = _last_words(_agent_said(folder, host), None, code)
            words.setdefault(last, []).append(host)
    return "; ".join(f"{' and '.join(sorted(who))}: {said}" for said, who in words.items())


def _agent_said(folder: Path, host: str) -> str:
    """What torchrun itself wrote on this host, without what it passed on from its ranks."""
    text = (folder / "ranks" / f"{host}.err").read_text(errors="replace")[-20_000:]
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("["))


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
