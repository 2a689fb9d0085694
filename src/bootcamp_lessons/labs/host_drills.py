"""Lesson 09b's drills: break one thing of a run over hosts, read what is said, go on with it.

What a drill tells is what anybody could read: errors of ranks, collectives that they wait in,
counters of the kernel. Then the same command goes on from a checkpoint, and its losses must be
those of a run that nobody disturbed.
"""

import json
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bootcamp.experiments import equality
from bootcamp.experiments.pair import loss_distance
from bootcamp.files import read_json, write_json
from bootcamp.hosts import drills
from bootcamp.launcher import hang
from bootcamp.launcher.launch import Options, launch
from bootcamp.paths import LOGS
from bootcamp.records import heartbeat, places
from bootcamp.records.runs import Run
from bootcamp.records.stalled import PLACE_IN_GLOO
from bootcamp.records.steps import read_steps
from bootcamp.scripts.variants import variant
from bootcamp.table import Table
from bootcamp_lessons import ddp_depth

SETTING = {"model": "mlp", "size": "tiny", "global_batch": 16, "steps": 12}
TIMEOUT = 3  # seconds in a collective; torch's own is 30 minutes with gloo, 10 with NCCL
MEETING = 5  # seconds at the rendezvous, and for the first connection to it
BREAK_AT, SAVE_EVERY = 8, 5  # steps
CUT = 2  # seconds without a link
SAVED = "checkpoint.pt"
GO = f"{SAVED}.go"  # ranks that are about to be disturbed talk to each other until it is there
TOOLS = "from bootcamp.train import checkpoint, config, data, models, optimizers, record"
GROUP = "dist.init_process_group(context.backend, timeout=context.timeout)"
BUILD = "model = models.build(args).to(device)"
FORWARD = "loss = models.loss(model(inputs), targets)"
STEP = "with run.step(step):"
HOLD = f"""told = torch.zeros(())
while (step, first) == ({BREAK_AT}, 0) and not told:
    told += os.path.exists(f"{{args.save}}.go")
    dist.all_reduce(told)
{STEP}"""
HELD = {TOOLS: f"import os\n{TOOLS}", STEP: HOLD}
ERROR = re.compile(r"(\[rank\d+\]: )?[\w.]+Error\b")  # the line of a traceback that names it
# in an error that only tells that another rank did not come, or has gone
OF_ANOTHER = re.compile(r"Timed out|by peer|pair closure|Connection refused")
ON_HOST1 = "if socket.gethostname() == 'host1':\n    "


@dataclass(frozen=True)
class Drill:
    """Something that breaks. what: in words. do: what helps.

    culprit: a regular expression that the right answer to "who was it?" matches. The run is broken
    by act, while it goes on; by changes of the script, as `variant` takes them; by torchrun's flags
    with which the hosts do not meet; or by several of these. absent: hosts that come later. fails:
    whether the run ends. flags: of the script, beside SETTING. hang_seconds: of the launch.
    """

    what: str
    culprit: str
    do: str
    act: Callable[[drills.Running, Path], None] | None = None
    changes: dict = field(default_factory=dict)
    torchrun: dict | None = None
    absent: tuple[int, ...] = ()
    fails: bool = True
    flags: dict = field(default_factory=dict)
    hang_seconds: float = 20.0


@dataclass(frozen=True)
class Outcome:
    """What came of a drill.

    sees: what the first error says, or what the steps show. seconds: from the break to the error,
    as `first_sign` counts them.
    complaints: how many ranks' logs have an error. named: who is to blame, as the tools say.
    right: whether it was that one. resumed: the step at which the next run began. lost: how far its
    losses are from those of an undisturbed run, at most; None where nothing had begun.
    """

    drill: str
    sees: str
    seconds: float
    complaints: int
    named: str
    right: bool
    resumed: int | None
    lost: float | None


def _kill_rank(run: drills.Running, place: Path) -> None:
    run.kill_rank(2)


def _cut_for_good(run: drills.Running, place: Path) -> None:
    run.hosts[1].run(["ip", "link", "set", "eth0", "down"])


def _silence(run: drills.Running, place: Path) -> None:
    """A host without power or network: nothing comes from it, no end of a connection either."""
    _cut_for_good(run, place)
    run.hosts[1].freeze(TIMEOUT + 1)


def _cut(run: drills.Running, place: Path) -> None:
    """The link is away for a while, and the training goes on when it can."""
    began, before = time.time(), _carrier_changes(run)
    run.hosts[1].cut(CUT)
    lost = {host: after - before[host] for host, after in _carrier_changes(run).items()}
    (place / GO).touch()
    run.wait_for(lambda: _steps_done(run) > BREAK_AT)
    write_json(run.folder / "link.json", {"lost": lost, "seconds": time.time() - began})


def _fill_disk(run: drills.Running, place: Path) -> None:
    """The next save finds a disk on which there is no room."""
    run.hosts[0].small_disk(place, "16k")
    run.hosts[0].run(["touch", str(place / GO)])


def _block(run: drills.Running, place: Path) -> None:
    """A firewall between the hosts: what host0's port answers is dropped. Then host1 comes."""
    run.wait_for(lambda: run.places().get("agents"))
    run.hosts[0].run(["ip", "rule", "add", "ipproto", "tcp", "sport", "29400", "blackhole"])
    run.hosts[1].join()


def _carrier_changes(run: drills.Running) -> dict[str, int]:
    """How often each host's interface has lost and found its link, as its kernel counts."""
    look = ["ip", "-s", "-s", "-j", "link", "show", "eth0"]
    links = {host.name: json.loads(host.run(look))[0] for host in run.hosts}
    return {host: link["stats64"]["tx"]["carrier_changes"] for host, link in links.items()}


def _steps_done(run: drills.Running) -> int:
    """The steps that every rank has done."""
    beats = [heartbeat.read(run.folder / "ranks" / f"{rank}.beat") for rank in range(4)]
    return min(beat[1] if beat else 0 for beat in beats)


DRILLS = {
    "rank_killed": Drill(
        "kill -9 of rank 2",
        r"rank 2 .*host1",
        "read who is silent; look for memory limits; resume",
        act=_kill_rank,
    ),
    "host_gone": Drill(
        "host1 goes silent",
        r"ranks 2 and 3",
        "leave that host out, resume on the others",
        act=_silence,
    ),
    "link_stalls": Drill(
        f"the link is cut for {CUT} s",
        r"host1",
        "nothing: TCP sends again. If it happens often, change cable, port or host",
        act=_cut,
        flags={"timeout": 30},
        fails=False,
    ),
    "link_cut": Drill(
        "the link is cut for longer than the time-out",
        r"network between host0 and host1",
        "ask the hosts' interfaces, not the ranks; resume",
        act=_cut_for_good,
    ),
    "slow_rank": Drill(
        "rank 3 computes 0.2 s longer",
        r"rank 3 .*host1",
        "leave that host out; look at its clock rate, its neighbours, its disk",
        changes={
            TOOLS: f"import time\n{TOOLS}",
            FORWARD: f"if rank == 3:\n    time.sleep(0.2)\n{FORWARD}",
        },
        flags={"trace_step": 10},
        fails=False,
    ),
    "disk_full": Drill(
        "the disk of host0 is full at a save",
        r"rank 0 .*host0",
        "make room, resume from the save before",
        act=_fill_disk,
    ),
    "interface": Drill(
        "eth0 has another name on host1",
        r"host1",
        "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME per host, or none; ip -br address on each",
        changes={
            TOOLS: f"import socket\nimport subprocess\n{TOOLS}",
            GROUP: f"{ON_HOST1}subprocess.run('ip link set eth0 down name ens3; ip link set ens3 "
            f"up', shell=True)\n{GROUP}",
        },
    ),
    "versions": Drill(
        "host1 has an older copy of the model",
        r"host1",
        "one image or one shared folder for all hosts; compare versions before the job",
        changes={
            TOOLS: f"import socket\n{TOOLS}",
            BUILD: f"{ON_HOST1}args.size = 'small'\n{BUILD}",
        },
    ),
    "hang": Drill(
        "rank 3 waits for something else",
        r"rank 3 on host1 never entered",
        "look at the line in which that rank stands; resume",
        changes={
            TOOLS: f"import threading\n{TOOLS}",
            FORWARD: f"if (step, first, rank) == ({BREAK_AT}, 0, 3):\n"
            f"    threading.Event().wait()\n{FORWARD}",
        },
        flags={"timeout": 60},
        hang_seconds=TIMEOUT,
    ),
    "port_blocked": Drill(
        "a firewall between host1 and the rendezvous port",
        r"host1 .*host0:29400",
        "nc -vz host0 29400 from each host; open the port",
        act=_block,
        torchrun={0: {"rdzv_conf": "join_timeout=60"}},  # it waits longer than host1 tries
        absent=(1,),
    ),
    "rdzv_id": Drill(
        "host1 has another --rdzv-id",
        r"--rdzv-id",
        "the job's number as id: --rdzv-id $SLURM_JOB_ID",
        torchrun={1: {"rdzv_id": "another"}},
    ),
    "node_count": Drill(
        "three nodes are asked for, two come",
        r"3 .*2",
        "--nnodes $SLURM_NNODES; look for the host that did not start",
        torchrun={"nnodes": 3},
    ),
}


def drill(name: str) -> Outcome:
    """Launch, break, read, and go on as the drill says."""
    kind, resumed, lost = DRILLS[name], None, None
    LOGS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=LOGS, prefix=f"drill-{name}-") as folder:
        saves = {"save": Path(folder, SAVED), "resume": Path(folder, SAVED)}
        how = {**SETTING, **saves, "save_every": SAVE_EVERY, "quiet": True}
        run, broken = _run_broken(name, how)
        named = name_culprit(run)
        sees, seconds = first_sign(run, broken)
        if kind.torchrun is None:
            again = launch("ddp", 4, hosts=2, **how) if kind.fails else None
            resumed = again.ranks[0].first_step if again else None
            lost = apart(run, again)
    right = re.search(kind.culprit, named) is not None
    return Outcome(name, sees, seconds, complaints(run), named, right, resumed, lost)


def _run_broken(name: str, how: dict) -> tuple[Run, float]:
    """The run of a drill, and when it was broken, in seconds since 1970."""
    kind = DRILLS[name]
    place, meets = how["save"].parent, kind.torchrun is None
    changes = {**HELD, **kind.changes} if kind.act and meets else kind.changes
    script = variant("ddp", f"drill_{name}", changes) if changes else "ddp"
    if meets:
        started = {"start": "warm", "options": Options(hang_seconds=kind.hang_seconds)}
    else:
        wait = {"rdzv_conf": f"join_timeout={MEETING},read_timeout={MEETING}"}
        started = {"start": "torchrun", "options": Options(torchrun={**wait, **kind.torchrun})}
    flags = {**how, **started, "timeout": TIMEOUT, **kind.flags}
    broken = None
    with drills.running(script, 4, hosts=2, absent=kind.absent, **flags) as run:
        if kind.act and meets:
            run.wait_for(lambda: _steps_done(run) == BREAK_AT)
            broken = time.time()
        if kind.act:
            kind.act(run, place)
        if not meets:
            write_json(run.folder / "lines.json", _lines(run))
            broken = time.time()
    return run.ended, broken or run.ended.config.get("started_unix_seconds", time.time())


def _lines(run: drills.Running) -> dict[str, str]:
    """The line of torchrun on each host."""
    agents = run.wait_for(lambda: len(run.places()["agents"]) == 2 and run.places()["agents"])
    lines = {host: " ".join(psutil.Process(pid).cmdline()) for host, pid in agents.items()}
    return {host: line[line.index("torchrun") :] for host, line in lines.items()}


# What a run has left, and who is to blame


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
    """Return the last line of a run's first error, and how many seconds after the break it came.

    Of a hang, the seconds since the last heartbeat. Without an error, how long the run stood still,
    or how long a step takes. broken: seconds since 1970.
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
    """Return the seconds from the last heartbeat of any rank to the end of the run."""
    beats = [path.stat().st_mtime for path in (run.folder / "ranks").glob("*.beat")]
    return (run.folder / "summary.json").stat().st_mtime - max(beats)


def _shorten(line: str) -> str:
    """An error's line without the package of its class and the place in gloo's source."""
    line = re.sub(r"^(\w+\.)+|\[enforce fail at [^]]*\] ([^.]*\. )?", "", line)
    line = PLACE_IN_GLOO.sub("", line)
    return line.partition(". This is")[0].partition(" Exception raised")[0][:120]


# What came of it


def apart(run: Run, again: Run | None = None) -> float:
    """Return how far the losses of a run, and of one resumed from it, are from undisturbed ones.

    The resumed run's steps replace those of the first.
    """
    losses = {row.step: row.loss for each in (run, again) if each for row in each.steps}
    expected = equality.baseline(**{**SETTING, "steps": (again or run).config["steps"]}).losses
    return max(loss_distance(losses[step], loss) for step, loss in enumerate(expected))


def table(outcomes: list[Outcome]) -> Table:
    """A row for each drill."""
    columns = {
        "drill": lambda one: DRILLS[one.drill].what,
        "what you see": "sees",
        "after s": "seconds",
        "who is named": "named",
        "what to do": lambda one: DRILLS[one.drill].do,
        "resumed at": "resumed",
        "losses apart": "lost",
    }
    right = sum(one.right for one in outcomes)
    return Table.of(outcomes, columns, f"{right} of {len(outcomes)} named right")
