"""Check the arguments of `launch` before anything starts; write flags as a command line."""

import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from bootcamp import machine
from bootcamp.launcher import simulated_hosts
from bootcamp.paths import ROOT

STARTS = ("warm", "cold", "torchrun", "horovodrun")
DEVICES = ("auto", "cpu", "cuda", "meta")
GROUPS = {"lightning": "frameworks", "accelerate": "frameworks", "onnxruntime": "serving"}
GROUPS |= {name: name for name in ("horovod", "deepspeed", "megatron")}  # of pyproject.toml
HOW_TO_GET = {name: f"Install it with make install GROUPS={GROUPS[name]}." for name in GROUPS}
HOW_TO_GET["horovod"] = "Build it with make horovod (minutes, once)."


class ArgumentError(ValueError):
    """An argument of `launch` that can't be meant: one sentence says which and why."""

    def _render_traceback_(self) -> list[str]:
        """Show the sentence in IPython, not the launcher's frames."""
        return [f"{type(self).__name__}: {self}"]


@dataclass(frozen=True)
class Options:
    """Options that a launch rarely needs: `launch("ddp", 2, options=Options(hang_seconds=5))`.

    hang_seconds: the run is ended when no rank finishes a step for so long; busy CPU ranks get ten
        times as long. None is 60 s, and no end to a busy script without the course's record.
    max_restarts: how often torchrun may start all ranks anew after one has died.
    run_dir: a new folder for the record; None makes one under logs/.
    env: environment variables of the ranks, beside those of this process.
    fewest_hosts: with how many hosts torchrun may go on; None is all of them.
    torchrun: more flags of torchrun, {"rdzv_conf": "join_timeout=20"}; on host 1 alone, to break
        something, {1: {"rdzv_id": "other"}}.
    framework: what a script that is not of the course needs, such as "deepspeed": loaded before
        the ranks start; where it is not installed, nothing starts.

    Raises ArgumentError.
    """

    hang_seconds: float | int | None = None
    max_restarts: int = 0
    run_dir: Path | str | None = None
    env: dict | None = None
    fewest_hosts: int | None = None
    torchrun: dict | None = None
    framework: str | None = None

    def __post_init__(self):
        for each in fields(self):
            value, expected = getattr(self, each.name), getattr(each.type, "__name__", each.type)
            if not isinstance(value, each.type):
                number = isinstance(value, str) and value.isdecimal()
                how = f". Write {each.name}={value}, without quotation marks." if number else ""
                raise ArgumentError(f"{each.name}={value!r}: expected {expected}{how}")
        if self.framework and self.framework not in HOW_TO_GET:
            raise ArgumentError(f"framework={self.framework!r}: expected one of {list(GROUPS)}")


def is_count(value) -> bool:
    """Whether a value is a whole number from 1 on; True is none."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def find_objections(call) -> Iterator[str]:
    """Say which arguments of a Call (launch.py) can't be meant; later ones rely on earlier ones."""
    ranks, args, flags, start = call.ranks, call.args, call.flags, call.start
    hosts, link = call.hosts, call.link
    if not isinstance(call.options, Options):
        yield f"options={call.options!r}: expected Options(...)"
    for name in (each.name for each in fields(Options) if each.name in flags):
        yield (
            f"{name}= is one of the launch's options: write options=Options({name}="
            f"{flags[name]!r}). A flag of the script that has this name goes into args=."
        )
    if ranks is not None and not is_count(ranks):
        yield f"ranks={ranks!r}: expected a whole number from 1 on, or None for every device"
    texts = isinstance(args, list | tuple) and all(isinstance(each, str) for each in args)
    if args is not None and not texts:
        yield f'args={args!r}: expected a list of texts, such as ["50", "10"]'
    for name, given, known in (("device", call.device, DEVICES), ("start", start, STARTS)):
        if given not in known:
            yield f"{name}={given!r}: expected one of {', '.join(known)}"
    if call.device == "meta" and not call.known.takes_course_flags:
        yield "device='meta' is for scripts that have the course's flag --device"
    if (start == "horovodrun") != (call.launcher == "horovodrun"):
        yield f"start={start!r}: this script is started by {call.launcher}. Leave start= out"
    for name in ("max_restarts", "fewest_hosts", "torchrun"):
        if getattr(call.options, name) and start != "torchrun":
            yield f'{name}= is torchrun\'s: give start="torchrun" with it'
    if not is_count(hosts):
        yield f"hosts={hosts!r}: expected at least one"
    if link is not None and (hosts == 1 or not simulated_hosts.RATE.fullmatch(str(link))):
        yield f"link={link!r}: expected a rate between hosts=2 or more, such as '200mbit'"
    if hosts > 1 and call.launcher == "horovodrun":
        yield "hosts= is for ranks of torch: Horovod's are started on this host"
    if hosts > 1 and ranks is None:
        yield "hosts= needs ranks=: how many there are on all hosts together"
    if hosts > 1 and call.device == "cuda":
        yield "hosts= are for CPU ranks: GPUs of one machine would not use their link"
    if ranks is not None and ranks % hosts:
        yield f"ranks={ranks} do not spread evenly over hosts={hosts}"
    fewest = call.options.fewest_hosts
    if fewest is not None and not 1 <= fewest <= hosts:
        yield f"fewest_hosts={fewest}: expected 1 to hosts={hosts}"


def to_arguments(named: dict, script: str = "") -> list[str]:
    """Write flags as a command line: {"global_batch": 32} -> ["--global-batch", "32"].

    True gives the bare flag; False and None leave it out. script: a text whose own spelling goes
    first: `--max_iters 6` where only that is in it, `--max_iters=6` where it has no such flag but a
    field or a setting of this name, as nanoGPT and Hugging Face's parsers want it.
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


def available(framework: str, fetch: bool = False) -> bool:
    """Whether a package is installed and not hidden. fetch: install it first, as make does."""
    package = "megatron-core" if framework == "megatron" else framework
    try:  # find_spec would find tools/horovod.py too
        return bool(importlib.metadata.version(package)) and not machine.is_hidden(framework)
    except importlib.metadata.PackageNotFoundError:
        if not fetch or not Path(sys.prefix, ".ready").exists():
            return False
    subprocess.run([sys.executable, ROOT / "tools" / "install.py", GROUPS[framework]])
    return available(framework)


def missing(framework: str | None) -> str | None:
    """Say why a script's framework is not there, None if it is."""
    if framework is None or available(framework):
        return None
    return f"{framework.capitalize()} is not installed here. {HOW_TO_GET[framework]}"
