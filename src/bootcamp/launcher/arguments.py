"""What `launch` accepts, checked before anything starts."""

import importlib.metadata
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from bootcamp import machine
from bootcamp.launcher import simulated_hosts
from bootcamp.scripts.family import NUMBERS

STARTS = ("warm", "cold", "torchrun", "horovodrun")
DEVICES = ("auto", "cpu", "cuda", "meta")
HOW_TO_GET = {
    "horovod": "Build it with make horovod (minutes, once).",
    "lightning": 'Install it with pip install "lightning>=2.6".',
    "accelerate": 'Install it with pip install "accelerate>=1.10".',
    "deepspeed": 'Install it with pip install "deepspeed>=0.19,<0.20".',
    "megatron": 'Install it with pip install "megatron-core>=0.16,<0.17".',
}


class ArgumentError(ValueError):
    """An argument of `launch` that can't be meant. One sentence says which and why."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the sentence, not the launcher's frames."""
        return [f"{type(self).__name__}: {self}"]


@dataclass(frozen=True)
class Options:
    """What a launch rarely needs: `launch("ddp", 2, options=Options(hang_seconds=5))`.

    hang_seconds: the run is ended when no rank finishes a step for so long; CPU ranks that are
        busy computing are given ten times as long. None is 60 s; then a busy script without the
        course's record, whose steps nobody sees, is given all the time that it takes.
    max_restarts: how often torchrun may start all ranks anew after one has died.
    run_dir: a new folder for the record; None makes one under logs/.
    env: environment variables of the ranks, beside those of this process.
    nodes: the fewest and the most hosts that torchrun goes on with, "1:2"; None is all of them.
    torchrun: more flags of torchrun, {"rdzv_conf": "join_timeout=20"}; on host 1 alone, to break
        something, {1: {"rdzv_id": "other"}}.
    framework: what a script that is not of the course needs beyond torch, such as "deepspeed". It
        is loaded before the ranks start; where it is not installed, nothing starts.

    Raises ArgumentError.
    """

    hang_seconds: float | int | None = None
    max_restarts: int = 0
    run_dir: Path | str | None = None
    env: dict | None = None
    nodes: str | None = None
    torchrun: dict | None = None
    framework: str | None = None

    def __post_init__(self):
        types = {each.name: each.type for each in fields(self)}
        wrong = {n: kind for n, kind in types.items() if not isinstance(getattr(self, n), kind)}
        if self.nodes and not re.fullmatch(r"[1-9]\d*:[1-9]\d*", str(self.nodes)):
            wrong["nodes"] = "the fewest and the most hosts, such as '1:2'"
        if self.framework and self.framework not in HOW_TO_GET:
            wrong["framework"] = f"one of {', '.join(HOW_TO_GET)}"
        for name, expected in wrong.items():
            expected = getattr(expected, "__name__", expected)
            raise ArgumentError(f"{name}={getattr(self, name)!r}: expected {expected}")

    def fewest_and_most(self, hosts: int) -> tuple[int, int]:
        """The numbers of hosts that a run over so many may go on with."""
        fewest, most = (self.nodes or f"{hosts}:{hosts}").split(":")
        return int(fewest), int(most)


def is_count(value) -> bool:
    """Whether a value is a whole number; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def check(call) -> None:
    """Raise ArgumentError for the first argument of a Call (launch.py) that can't be meant."""
    objections = itertools.chain(_to_values(call), _to_start(call), _to_hosts(call))
    if sentence := next(objections, None):
        raise ArgumentError(sentence)


def _to_values(call) -> Iterator[str]:
    ranks, args, flags = call.ranks, call.args, call.flags
    if not isinstance(call.options, Options):
        yield f"options={call.options!r}: expected Options(...)"
    for name in (each.name for each in fields(Options) if each.name in flags):
        yield (
            f"{name}= is one of the launch's options: write options=Options({name}="
            f"{flags[name]!r}). A flag of the script that has this name goes into args=."
        )
    if ranks is not None and not is_count(ranks):
        yield f"ranks={ranks!r}: expected a whole number, such as ranks=2"
    if ranks is not None and ranks < 1:
        yield f"ranks={ranks}: expected at least one, or None for every device"
    texts = isinstance(args, list | tuple) and all(isinstance(each, str) for each in args)
    if args is not None and not texts:
        yield f'args={args!r}: expected a list of texts, such as ["50", "10"]'
    if call.device not in DEVICES:
        yield f"device={call.device!r}: expected one of {', '.join(DEVICES)}"
    if call.device == "meta" and not call.known.takes_course_flags:
        yield "device='meta' is for scripts that have the course's flag --device"
    for name, kind in NUMBERS.items() if call.known.takes_course_flags else ():
        if flags.get(name) is not None and not _reads_as(kind, flags[name]):
            expected = "a whole number" if kind is int else "a number"
            yield f"{name}={flags[name]!r}: expected {expected}"


def _reads_as(kind: type, value) -> bool:
    try:
        kind(str(value))
    except ValueError:
        return False
    return True


def _to_start(call) -> Iterator[str]:
    start = call.start
    if start not in STARTS:
        yield f"start={start!r}: expected one of {', '.join(STARTS)}"
    if (start == "horovodrun") != (call.launcher == "horovodrun"):
        yield f"start={start!r}: this script is started by {call.launcher}. Leave start= out"
    for name in ("max_restarts", "nodes", "torchrun"):
        if getattr(call.options, name) and start != "torchrun":
            yield f'{name}= is torchrun\'s: give start="torchrun" with it'


def _to_hosts(call) -> Iterator[str]:
    hosts, link, ranks = call.hosts, call.link, call.ranks
    if not is_count(hosts) or hosts < 1:
        yield f"hosts={hosts!r}: expected at least one"
    rate = isinstance(link, str) and simulated_hosts.RATE.fullmatch(link)
    if link is not None and (hosts == 1 or not rate):
        yield f"link={link!r}: expected a rate between hosts=2 or more, such as '200mbit'"
    if hosts > 1 and call.launcher == "horovodrun":
        yield "hosts= is for ranks of torch: Horovod's are started on this host"
    if hosts > 1 and ranks is None:
        yield "hosts= needs ranks=: how many there are on all hosts together"
    if hosts > 1 and call.device == "cuda":
        yield "hosts= are for CPU ranks: GPUs of one machine would not use their link"
    if ranks is not None and ranks % hosts:
        yield f"ranks={ranks} do not spread evenly over hosts={hosts}"
    fewest, most = call.options.fewest_and_most(hosts)
    if not fewest <= most <= hosts:
        yield f"nodes={call.options.nodes!r}: expected at most hosts={hosts} of them"


def to_arguments(named: dict, script: str = "") -> list[str]:
    """Flags as a command line: {"global_batch": 32} -> ["--global-batch", "32"]; None is left out.

    True gives the bare flag; False leaves it out. script: the text of a script whose own spelling
    goes first: `--max_iters 6` where only that is in it, `--max_iters=6` where it has no such flag
    but a field or a setting of this name, as nanoGPT and Hugging Face's parsers want it.
    """
    arguments = []
    for name, value in named.items():
        flag = f"--{name.replace('_', '-')}"
        other = not re.search(rf"[\"']{flag}(?![\w-])", script)
        if other and re.search(rf"[\"']--{name}(?![\w-])", script):
            flag = f"--{name}"
        elif other and re.search(rf"^({name} *=[^=]|[ \t]+{name} *:)", script, re.M):
            arguments += [] if value is None else [f"--{name}={value}"]
            continue
        if value is True:
            arguments += [flag]
        elif value is not None and value is not False:
            arguments += [flag, str(value)]
    return arguments


def available(framework: str) -> bool:
    """Whether a package is installed, such as "horovod", and not hidden; does not import it."""
    package = "megatron-core" if framework == "megatron" else framework
    try:  # find_spec would find tools/horovod.py too
        return bool(importlib.metadata.version(package)) and not machine.hidden(framework)
    except importlib.metadata.PackageNotFoundError:
        return False


def missing(framework: str | None) -> str | None:
    """Why a script's framework is not there, None if it is."""
    if framework is None or available(framework):
        return None
    return f"{framework.capitalize()} is not installed here. {HOW_TO_GET[framework]}"
