"""What `launch` may be told, checked before anything starts."""

import importlib.metadata
import re
from dataclasses import dataclass, fields
from pathlib import Path

from bootcamp import machine
from bootcamp.launcher import simulated_hosts
from bootcamp.scripts.family import NUMBERS, Script

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
    port: of the rendezvous on 127.0.0.1; 0 takes a free one.
    env: environment variables of the ranks, beside those of this process.
    nodes: the fewest and the most hosts that torchrun goes on with, "1:2"; None is all of them.
    rendezvous: how torchrun's agents on several hosts meet: "c10d", or "static", where each is told
        its own number.
    torchrun: more flags of torchrun, {"rdzv_conf": "join_timeout=20"}; on host 1 alone, to break
        something, {1: {"rdzv_id": "other"}}.
    framework: what a script that is not of the course needs beyond torch, such as "deepspeed". It
        is loaded before the ranks start; where it is not installed, nothing starts.

    Raises ArgumentError.
    """

    hang_seconds: float | None = None
    max_restarts: int = 0
    run_dir: Path | str | None = None
    port: int = 0
    env: dict | None = None
    nodes: str | None = None
    rendezvous: str = "c10d"
    torchrun: dict | None = None
    framework: str | None = None

    def __post_init__(self):
        for name, (fits, expected) in OPTION_TYPES.items():
            if not fits(getattr(self, name)):
                raise ArgumentError(f"{name}={getattr(self, name)!r}: expected {expected}")


def is_count(value) -> bool:
    """Whether a value is a whole number; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


OPTION_TYPES = {
    "hang_seconds": (lambda value: value is None or is_number(value), "a number of seconds"),
    "max_restarts": (is_count, "a whole number"),
    "run_dir": (lambda value: isinstance(value, str | Path | None), "the path of a new folder"),
    "port": (is_count, "the number of a port, or 0 for a free one"),
    "env": (lambda value: isinstance(value, dict | None), "a dictionary of environment variables"),
    "nodes": (
        lambda value: value is None or re.fullmatch(r"[1-9]\d*:[1-9]\d*", str(value)),
        "the fewest and the most hosts, such as '1:2'",
    ),
    "rendezvous": (lambda value: value in ("c10d", "static"), "'c10d' or 'static'"),
    "torchrun": (lambda value: isinstance(value, dict | None), "a dictionary of torchrun's flags"),
    "framework": (
        lambda value: value is None or value in HOW_TO_GET,
        "one of " + ", ".join(HOW_TO_GET),
    ),
}


def check_types(ranks, args, device, options, flags: dict, script: Script) -> None:
    """Raise ArgumentError for the first argument of a wrong type."""
    if not isinstance(options, Options):
        raise ArgumentError(f"options={options!r}: expected Options(...)")
    for name in (field.name for field in fields(Options)):
        if name in flags:
            raise ArgumentError(
                f"{name}= is one of the launch's options: write "
                f"options=Options({name}={flags[name]!r}). A flag of the script that has this "
                f"name goes into args=."
            )
    if ranks is not None and not is_count(ranks):
        raise ArgumentError(f"ranks={ranks!r}: expected a whole number, such as ranks=2")
    if ranks is not None and ranks < 1:
        raise ArgumentError(f"ranks={ranks}: expected at least one, or None for every device")
    strings = isinstance(args, list | tuple) and all(isinstance(each, str) for each in args)
    if args is not None and not strings:
        raise ArgumentError(f'args={args!r}: expected a list of texts, such as ["50", "10"]')
    if device not in DEVICES:
        raise ArgumentError(f"device={device!r}: expected one of {', '.join(DEVICES)}")
    if device == "meta" and not script.takes_course_flags:
        raise ArgumentError("device='meta' is for scripts that have the course's flag --device")
    if script.takes_course_flags:
        _check_numbers(flags)


def _check_numbers(flags: dict) -> None:
    for name, kind in NUMBERS.items():
        if flags.get(name) is None:
            continue
        try:
            kind(str(flags[name]))
        except ValueError:
            expected = "a whole number" if kind is int else "a number"
            raise ArgumentError(f"{name}={flags[name]!r}: expected {expected}") from None


def check_start(start: str, launcher: str, options: Options) -> None:
    """Raise ArgumentError for a start that does not fit the script or the options."""
    if start not in STARTS:
        raise ArgumentError(f"start={start!r}: expected one of {', '.join(STARTS)}")
    fits = STARTS[-1:] if launcher == "horovodrun" else STARTS[:-1]
    if start not in fits:
        raise ArgumentError(
            f"start={start!r}: this script is started by {launcher}. Leave start= out"
        )
    if options.port and start not in ("warm", "cold"):
        raise ArgumentError(f"port= is for warm and cold starts: {start} takes a free one")
    for name in ("max_restarts", "nodes", "torchrun"):
        if getattr(options, name) and start != "torchrun":
            raise ArgumentError(f'{name}= is torchrun\'s: give start="torchrun" with it')


def check_hosts(
    count: int, link: str | None, launcher: str, ranks: int | None, device: str, options: Options
) -> None:
    """Raise ArgumentError for hosts that can't be made or would mean nothing."""
    if not is_count(count) or count < 1:
        raise ArgumentError(f"hosts={count!r}: expected at least one")
    rate = isinstance(link, str) and simulated_hosts.RATE.fullmatch(link)
    if link is not None and (count == 1 or not rate):
        raise ArgumentError(
            f"link={link!r}: expected a rate between hosts=2 or more, such as '200mbit'"
        )
    if count > 1 and launcher == "horovodrun":
        raise ArgumentError("hosts= is for ranks of torch: Horovod's are started on this host")
    if count > 1 and ranks is None:
        raise ArgumentError("hosts= needs ranks=: how many there are on all hosts together")
    if count > 1 and device == "cuda":
        raise ArgumentError(
            "hosts= are for CPU ranks: GPUs of one machine would not use their link"
        )
    if ranks is not None and ranks % count:
        raise ArgumentError(f"ranks={ranks} do not spread evenly over hosts={count}")
    fewest, most = fewest_and_most(count, options)
    if not fewest <= most <= count:
        raise ArgumentError(f"nodes={options.nodes!r}: expected at most hosts={count} of them")


def fewest_and_most(hosts: int, options: Options) -> tuple[int, int]:
    """The numbers of hosts that a run may go on with."""
    if options.nodes is None:
        return hosts, hosts
    fewest, most = options.nodes.split(":")
    return int(fewest), int(most)


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
        if value is None or value is False:
            continue
        arguments.append(flag)
        if value is not True:
            arguments.append(str(value))
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
