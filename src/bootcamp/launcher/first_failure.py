"""Find the rank that failed first, and why: by exit codes, output, and the launchers' reports."""

import re
import signal
from pathlib import Path

from bootcamp.launcher.messages import COMMAND, RunRequest
from bootcamp.records import places, summary

HOROVOD_EXIT = re.compile(r"^Process (\d+) exit with status code (\d+)\.", re.M)
HOROVOD_PREFIX = re.compile(r"^\[(\d+)\]<(?:stdout|stderr)>:", re.M)
TORCH_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.M)
ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.S)
MOST_TEXT = 20_000  # characters of an output that are read
REPORTED = re.compile(r"^ *rank +: (\d+) \(local_rank.*\n *exitcode +: (-?\d+)", re.M)


def failed_process(folder: Path, request: RunRequest, codes: dict) -> dict:
    """Describe the failure of the process that failed first: a rank, or its launcher.

    A rank that a signal killed goes before those that raised: its connections close before its end
    is seen, and the others raise because of that. codes: exit codes in the order of the ends, of
    each host's torchrun where there are several.
    """
    failed = [(index, code) for index, code in codes.items() if code]
    rank, code = next((each for each in failed if each[1] < 0), failed[0])
    host = None
    if request.agents and request.hosts > 1:
        rank, host, code, text = _first_on_hosts(folder, codes)
        if rank is None and code > 0:
            return summary.failure(None, "raised", _last_words_of_hosts(folder, codes), text, host)
    elif request.start == COMMAND:
        text = _end_of(folder, "launcher.out") + _end_of(folder, "launcher.err")
        rank, code = _first_in_report(text) or (None, code)
        text = _passed_on(text, rank)
    else:
        text = _end_of(folder, f"{rank}.err")
    if rank is not None:
        host = places.host_of(folder, rank)
    if code < 0:
        return summary.failure(rank, "killed", _signal_sentence(-code), text, host)
    script = Path(request.ranks[0].argv[0]).name if request.ranks else None
    refusals = [line for line in text.splitlines() if line.startswith(f"{script}: ")]
    if code == 2 and refusals:
        return summary.failure(rank, "refused", refusals[0], host=host)
    return summary.failure(rank, "raised", _last_words(text, rank, code), text, host)


def _first_on_hosts(folder: Path, codes: dict[str, int]) -> tuple:
    """(rank or None, host, exit code, its output) of what failed first on any host.

    codes: of each host's torchrun, in the order of their ends. One that was killed could report
    nothing. Ranks are in the reports of the others; a rank that was killed comes first, for it only
    makes others raise, then the one that wrote its error first. Without either, torchrun itself
    raised, such as at the rendezvous.
    """
    for host, code in codes.items():
        if code < 0:
            return None, host, code, ""
    reports = {host: _agent_output(folder, host) for host in codes}
    failed = {
        int(rank): int(code)
        for report in reports.values()
        for rank, code in REPORTED.findall(report)
        if int(code) != -signal.SIGTERM  # by its torchrun, for another's sake
    }
    errors = [each for each in places.errors(folder) if each.rank in failed]
    killed = [rank for rank, code in failed.items() if code < 0]
    if killed or errors:
        rank = killed[0] if killed else errors[0].rank
        text = next((each.text for each in reversed(errors) if each.rank == rank), "")
        return rank, None, failed[rank], text[-MOST_TEXT:]
    host, code = next((host, code) for host, code in codes.items() if code)
    return None, host, code, reports[host]


def _last_words_of_hosts(folder: Path, codes: dict[str, int]) -> str:
    """The last words of each host's torchrun that failed: "host0 and host1: ...Error"."""
    hosts: dict[str, list[str]] = {}
    for host, code in codes.items():
        if code:
            words = _last_words(_agent_output(folder, host), None, code)
            hosts.setdefault(words, []).append(host)
    return "; ".join(f"{' and '.join(sorted(each))}: {words}" for words, each in hosts.items())


def _agent_output(folder: Path, host: str) -> str:
    """What torchrun itself wrote on this host, without what it passed on from its ranks."""
    lines = _end_of(folder, f"{host}.err").splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("["))


def _last_words(text: str, rank: int | None, code: int) -> str:
    """The error that a process ended with; its exit code where that was chosen or nothing written.

    Python ends with 1 after an exception, and with 2 after arguments that it can't use.
    """
    lines = [line for line in text.strip().splitlines() if re.match(r"\w", line)]
    if lines and (rank is None or code in (1, 2)):
        return lines[-1]
    return f"{'the command' if rank is None else f'rank {rank}'} ended with exit code {code}"


def _end_of(folder: Path, name: str) -> str:
    path = folder / "ranks" / name
    text = path.read_text(errors="replace")[-MOST_TEXT:] if path.exists() else ""
    return TORCH_PREFIX.sub("", text)


def _first_in_report(text: str) -> tuple[int | None, int] | None:
    """(rank, exit code) of the rank that failed first, by torchrun's or horovodrun's own report.

    horovodrun reports in the order in which the ranks ended, and the survivors of a dead rank raise
    at once: so a rank that a signal killed is the first, and of several that raised none is.
    """
    if found := ROOT_CAUSE.search(text):
        return int(found[1]), int(found[2])
    ends = [(int(rank), int(code)) for rank, code in HOROVOD_EXIT.findall(text) if code != "0"]
    killed = [(rank, 128 - code) for rank, code in ends if 128 < code != 128 + signal.SIGTERM]
    refused = [(rank, code) for rank, code in ends if code == 2]
    first = [*killed, *refused, *((None, code) for _, code in ends)]
    return first[0] if first else None


def _passed_on(text: str, rank: int | None) -> str:
    """What horovodrun passed on from a rank, without its prefixes; the text of others as it is."""
    marked = [(HOROVOD_PREFIX.match(line), line) for line in text.splitlines(keepends=True)]
    if not any(mark for mark, _ in marked):
        return text
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
