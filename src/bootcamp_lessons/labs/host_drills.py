"""Lesson 09b: break one thing of a run over hosts, name the culprit, resume; end a job early.

The culprit is found in what anybody could read: errors of ranks, collectives that they wait in,
counters of the kernel. The losses of both runs must be those of an undisturbed one. A machine
without hosts or Slurm replays logs/reference/09b_when_hosts_fail/.
"""

import json
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from bootcamp.experiments import equality, replay
from bootcamp.experiments.run_and_baseline import loss_distance
from bootcamp.files import read_json, write_json
from bootcamp.hosts import drills
from bootcamp.hosts.slurm import SlurmJob
from bootcamp.launcher import hang
from bootcamp.launcher.launch import Options, launch
from bootcamp.paths import LOGS, REFERENCE, SRC
from bootcamp.records import rank_errors
from bootcamp.records.runs import Run
from bootcamp.records.standstill import PLACE_IN_GLOO
from bootcamp.records.steps import Steps, read_steps
from bootcamp.scripts.variants import variant
from bootcamp.table import Table
from bootcamp_lessons import ddp_depth

SETTING = {"model": "mlp", "size": "tiny", "global_batch": 16, "steps": 12}
TIMEOUT_SECONDS = 3  # of a collective; torch's own is 30 minutes with gloo, 10 with NCCL
RENDEZVOUS_SECONDS = 5  # to meet there, and for the first connection to it
BREAK_STEP, SAVE_EVERY = 8, 5
CUT_SECONDS = 2  # without a link
CHECKPOINT = "checkpoint.pt"
RELEASE = f"{CHECKPOINT}.go"  # ranks that wait to be disturbed go on as soon as this file exists
# lines of _train_ddp.py
IMPORTS = "from bootcamp.train import checkpoint, config, data, models, optimizers, record"
GROUP = "dist.init_process_group(context.backend, timeout=context.timeout)"
BUILD = "model = models.build(args).to(device)"
FORWARD = "loss = models.loss(model(inputs), targets)"
STEP = "with run.step(step):"
WAIT_UNTIL_DISTURBED = {  # ranks talk to each other meanwhile
    IMPORTS: f"import os\n{IMPORTS}",
    STEP: f"""is_released = torch.zeros(())
while (step, first) == ({BREAK_STEP}, 0) and not is_released:
    is_released += os.path.exists(f"{{args.save}}.go")
    dist.all_reduce(is_released)
{STEP}""",
}
ON_HOST1 = "if socket.gethostname() == 'host1':\n    "
ERROR_LINE = re.compile(r"(\[rank\d+\]: )?[\w.]+Error\b")  # the line of a traceback that names it
# in an error that says only that another rank did not come, or has gone
ABOUT_ANOTHER_RANK = re.compile(r"Timed out|by peer|pair closure|Connection refused")


@dataclass(frozen=True)
class Drill:
    """One fault of a run over two hosts, and how to make it.

    culprit: a regular expression that the right answer matches. disturb: breaks the running run,
    given it and the folder of its checkpoint. changes: of the script, as `variant` takes them.
    torchrun: flags, as `Options` takes them, with which the hosts do not meet. absent: hosts that
    come later. ends: whether the run ends. flags: of the script, besides SETTING.
    """

    fault: str
    culprit: str
    remedy: str
    disturb: Callable[[drills.BackgroundRun, Path], None] | None = None
    changes: dict = field(default_factory=dict)
    torchrun: dict | None = None
    absent: tuple[int, ...] = ()
    ends: bool = True
    flags: dict = field(default_factory=dict)
    hang_seconds: float = 20.0


@dataclass(frozen=True)
class Outcome:
    """The result of a drill.

    sees: what the first error says, or what the steps show. seconds: from the break to the error,
    as `first_sign` counts them. complaints: how many ranks wrote an error. named: who is to blame,
    as the tools say; right: whether they are right. resumed: the step at which the next run began.
    lost: the largest difference from an undisturbed run's losses; None where nothing had begun.
    """

    drill: str
    sees: str
    seconds: float
    complaints: int
    named: str
    right: bool
    resumed: int | None
    lost: float | None


def _cut_link_for_good(run: drills.BackgroundRun, folder: Path) -> None:
    run.hosts[1].run(["ip", "link", "set", "eth0", "down"])


def _silence_host(run: drills.BackgroundRun, folder: Path) -> None:
    """Let host1 send nothing, not even the end of a connection, as without power or network."""
    _cut_link_for_good(run, folder)
    run.hosts[1].freeze(TIMEOUT_SECONDS + 1)


def _cut_link_briefly(run: drills.BackgroundRun, folder: Path) -> None:
    """Cut the link and bring it back; note the carrier's changes, and how long ranks paused."""
    began, before = time.time(), _count_carrier_changes(run)
    run.hosts[1].cut(CUT_SECONDS)
    lost = {host: after - before[host] for host, after in _count_carrier_changes(run).items()}
    (folder / RELEASE).touch()
    run.wait_for(lambda: run.count_finished_steps(4) > BREAK_STEP)
    write_json(run.folder / "link.json", {"lost": lost, "seconds": time.time() - began})


def _fill_disk(run: drills.BackgroundRun, folder: Path) -> None:
    """Leave no room for the next save."""
    run.hosts[0].mount_small_disk(folder, "16k")
    run.hosts[0].run(["touch", str(folder / RELEASE)])


def _block_rendezvous_port(run: drills.BackgroundRun, folder: Path) -> None:
    """Drop what host0's rendezvous port answers, as a firewall does, and let host1 join."""
    run.wait_for(lambda: run.read_hosts_file().get("agents"))
    run.hosts[0].run(["ip", "rule", "add", "ipproto", "tcp", "sport", "29400", "blackhole"])
    run.hosts[1].join()


def _count_carrier_changes(run: drills.BackgroundRun) -> dict[str, int]:
    """Return how often each host's interface lost or found its link, as its kernel counts."""
    look = ["ip", "-s", "-s", "-j", "link", "show", "eth0"]
    links = {host.name: json.loads(host.run(look))[0] for host in run.hosts}
    return {host: link["stats64"]["tx"]["carrier_changes"] for host, link in links.items()}


DRILLS = {
    "rank_killed": Drill(
        "kill -9 of rank 2",
        r"rank 2 .*host1",
        "read who is silent; look for memory limits; resume",
        disturb=lambda run, folder: run.kill_rank(2),
    ),
    "host_gone": Drill(
        "host1 goes silent",
        r"ranks 2 and 3",
        "leave that host out, resume on the others",
        disturb=_silence_host,
    ),
    "link_stalls": Drill(
        f"the link is cut for {CUT_SECONDS} s",
        r"host1",
        "nothing: TCP sends again. If it happens often, change cable, port or host",
        disturb=_cut_link_briefly,
        flags={"timeout": 30},
        ends=False,
    ),
    "link_cut": Drill(
        "the link is cut for longer than the timeout",
        r"network between host0 and host1",
        "ask the hosts' interfaces, not the ranks; resume",
        disturb=_cut_link_for_good,
    ),
    "slow_rank": Drill(
        "rank 3 computes 0.2 s longer",
        r"rank 3 .*host1",
        "leave that host out; look at its clock rate, its neighbours, its disk",
        changes={
            IMPORTS: f"import time\n{IMPORTS}",
            FORWARD: f"if rank == 3:\n    time.sleep(0.2)\n{FORWARD}",
        },
        flags={"trace_step": 10},
        ends=False,
    ),
    "disk_full": Drill(
        "the disk of host0 is full at a save",
        r"rank 0 .*host0",
        "make room, resume from the save before",
        disturb=_fill_disk,
    ),
    "interface": Drill(
        "eth0 has another name on host1",
        r"host1",
        "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME per host, or none; ip -br address on each",
        changes={
            IMPORTS: f"import socket\nimport subprocess\n{IMPORTS}",
            GROUP: f"{ON_HOST1}subprocess.run('ip link set eth0 down name ens3; ip link set ens3 "
            f"up', shell=True)\n{GROUP}",
        },
    ),
    "versions": Drill(
        "host1 has an older copy of the model",
        r"host1",
        "one image or one shared folder for all hosts; compare versions before the job",
        changes={
            IMPORTS: f"import socket\n{IMPORTS}",
            BUILD: f"{ON_HOST1}args.size = 'small'\n{BUILD}",
        },
    ),
    "hang": Drill(
        "rank 3 waits for something else",
        r"rank 3 on host1 never entered",
        "look at the line in which that rank stands; resume",
        changes={
            IMPORTS: f"import threading\n{IMPORTS}",
            FORWARD: f"if (step, first, rank) == ({BREAK_STEP}, 0, 3):\n"
            f"    threading.Event().wait()\n{FORWARD}",
        },
        flags={"timeout": 60},
        hang_seconds=TIMEOUT_SECONDS,
    ),
    "port_blocked": Drill(
        "a firewall between host1 and the rendezvous port",
        r"host1 .*host0:29400",
        "nc -vz host0 29400 from each host; open the port",
        disturb=_block_rendezvous_port,
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


def run_drill(name: str) -> Outcome:
    """Launch a run, break it, name the culprit, and resume it where it had begun to train."""
    drill, resumed, lost = DRILLS[name], None, None
    LOGS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=LOGS, prefix=f"drill-{name}-") as folder:
        saves = {"save": Path(folder, CHECKPOINT), "resume": Path(folder, CHECKPOINT)}
        flags = {**SETTING, **saves, "save_every": SAVE_EVERY, "quiet": True}
        run, broken_at = _run_and_break(name, flags)
        named = name_culprit(run)
        sees, seconds = first_sign(run, broken_at)
        complaints = sum(bool(_error_lines(run.output(rank))) for rank in range(4))
        if drill.torchrun is None:
            again = launch("ddp", 4, hosts=2, **flags) if drill.ends else None
            resumed = again.ranks[0].first_step if again else None
            lost = max_loss_difference(run, again)
    right = re.search(drill.culprit, named) is not None
    return Outcome(name, sees, seconds, complaints, named, right, resumed, lost)


def _run_and_break(name: str, flags: dict) -> tuple[Run, float]:
    """Return the broken run, and when it was broken, in seconds since 1970."""
    drill, folder = DRILLS[name], flags["save"].parent
    flags = {**flags, "timeout": TIMEOUT_SECONDS, **drill.flags}
    changes, waits = drill.changes, drill.disturb and drill.torchrun is None
    if drill.torchrun is None:
        flags |= {"start": "warm", "options": Options(hang_seconds=drill.hang_seconds)}
    else:
        patience = f"join_timeout={RENDEZVOUS_SECONDS},read_timeout={RENDEZVOUS_SECONDS}"
        options = Options(torchrun={"rdzv_conf": patience, **drill.torchrun})
        flags |= {"start": "torchrun", "options": options}
    if waits:
        changes = {**WAIT_UNTIL_DISTURBED, **changes}
    script, broken_at = variant("ddp", f"drill_{name}", changes) if changes else "ddp", None
    with drills.BackgroundRun(script, 4, hosts=2, absent=drill.absent, **flags) as run:
        if waits:
            run.wait_for(lambda: run.count_finished_steps(4) == BREAK_STEP)
            broken_at = time.time()
        if drill.disturb:
            drill.disturb(run, folder)
        if drill.torchrun is not None:
            write_json(run.folder / "lines.json", _read_torchrun_lines(run))
            broken_at = time.time()
    return run.record, broken_at or run.record.config.get("started_unix_seconds", time.time())


def _read_torchrun_lines(run: drills.BackgroundRun) -> dict[str, str]:
    """Return each host's command line of torchrun."""
    run.wait_for(lambda: len(run.read_hosts_file()["agents"]) == 2)
    agents = run.read_hosts_file()["agents"]
    lines = {host: " ".join(psutil.Process(pid).cmdline()) for host, pid in agents.items()}
    return {host: line[line.index("torchrun") :] for host, line in lines.items()}


def name_culprit(run: Run) -> str:
    """Say in one sentence what is to blame for what a run has recorded.

    An error names its own rank. A timeout or a closed connection names nobody: then the
    collectives of all ranks are compared, or, where no rank had started, torchrun's lines.
    """
    if not read_steps(run.folder) and not rank_errors.read_processes(run.folder):
        return _explain_rendezvous(run)
    error = run.summary.get("error") or {}
    if not error:
        return _name_slowest(run)
    rank, is_consequence = error.get("rank"), ABOUT_ANOTHER_RANK.search(error["message"])
    if rank is not None and error.get("kind") != "hang" and not is_consequence:
        return f"rank {rank} on {run.host(rank)}"
    return hang.read(run).sentence


def _name_slowest(run: Run) -> str:
    """Name the host whose link was lost, or else the rank that waits least (lesson 04e)."""
    if lost := read_json(run.folder / "link.json").get("lost"):
        away = [host for host, times in lost.items() if times]
        return f"the kernel of {' and '.join(away)} counts a link that was lost"
    waits = {row["rank"]: row["waits"] for row in ddp_depth.split_step(run)}
    late = min(waits, key=waits.get)
    return f"rank {late} on {run.host(late)} waits {waits[late]:.0f} ms in a step, the least"


def _explain_rendezvous(run: Run) -> str:
    """Name the host that can't get through, or the flag that differs, or the missing hosts."""
    for path in sorted((run.folder / "ranks").glob("host*.err")):
        if found := re.search(r"trying to connect to \((\S+), (\d+)\)", path.read_text()):
            return f"{path.stem} gets no answer from {found[1]}:{found[2]}"
    lines = read_json(run.folder / "lines.json")
    flags = {  # of torchrun, not of the script behind it
        host: dict(re.findall(r"(--[\w-]+)[ =](\S+)", line.partition(".py")[0]))
        for host, line in lines.items()
    }
    for name in dict.fromkeys(name for each in flags.values() for name in each):
        values = {host: each.get(name) for host, each in flags.items()}
        if len(set(values.values())) > 1 and name != "--node-rank":
            return f"{name} differs: {', '.join(f'{v} on {h}' for h, v in values.items())}"
    wanted = next(iter(flags.values()))["--nnodes"]
    return f"all lines ask for {wanted} hosts, and torchrun was started on {len(lines)}"


def first_sign(run: Run, broken_at: float) -> tuple[str, float]:
    """Return the last line of a run's first error, and the seconds from the break to it.

    For a hang these count from the last heartbeat. Without an error they are how long the run
    stood still, or how long a step takes. broken_at: in seconds since 1970.
    """
    error = run.summary.get("error")
    if not error:
        if seconds := read_json(run.folder / "link.json").get("seconds"):
            return "no error, a pause", seconds
        return "no error, each step as long as", run.seconds_per_step
    if error.get("kind") == "hang":
        last_beat = max(path.stat().st_mtime for path in (run.folder / "ranks").glob("*.beat"))
        ended = (run.folder / "summary.json").stat().st_mtime
        return error["message"].partition(". ")[0], ended - last_beat
    for written in rank_errors.read_errors(run.folder):
        if lines := _error_lines(written.text):
            return _shorten(lines[-1]), written.unix_seconds - broken_at
    path = max((run.folder / "ranks").glob("host*.err"), key=lambda each: each.stat().st_mtime)
    return _shorten(_error_lines(path.read_text())[-1]), path.stat().st_mtime - broken_at


def _error_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if ERROR_LINE.match(line)]


def _shorten(line: str) -> str:
    """Cut an error's line: no package of its class, no place in gloo's source."""
    line = re.sub(r"^(\w+\.)+|\[enforce fail at [^]]*\] ([^.]*\. )?", "", line)
    line = PLACE_IN_GLOO.sub("", line)
    return line.partition(". This is")[0].partition(" Exception raised")[0][:160]


def max_loss_difference(run: Run, again: Run | None = None) -> float:
    """Compare a run's losses, replaced by those of its continuation, with an undisturbed run's."""
    losses = {row.step: row.loss for each in (run, again) if each for row in each.steps}
    expected = equality.baseline(**{**SETTING, "steps": (again or run).config["steps"]}).losses
    return max(loss_distance(losses[step], loss) for step, loss in enumerate(expected))


def table(outcomes: list[Outcome]) -> Table:
    """Table drills: what broke, who was named, and what to do."""
    columns = {
        "drill": lambda one: DRILLS[one.drill].fault,
        "what you see": "sees",
        "after s": "seconds",
        "who is named": "named",
        "what to do": lambda one: DRILLS[one.drill].remedy,
        "resumed at": "resumed",
        "losses apart": "lost",
    }
    right = sum(one.right for one in outcomes)
    return Table.of(outcomes, columns, f"{right} of {len(outcomes)} named right")


# The lesson's experiments, or what was recorded of them

RECORDS = REFERENCE / "09b_when_hosts_fail"
JOB, CHECK = "src/jobs/ddp_requeue.sbatch", "src/jobs/check_nodes.sbatch"
DISK = "/mnt"  # a folder on each host's own disk
STEPS = 200  # of the job that must end before it has done them
STACK_LINE = re.compile(r"\[?W\d{4}|Exception raised from|frame #|<omitting")
LOSS_STEP = 4  # at which the elastic run loses a host
# give a silent host up after 3 s in place of 15, and wait for no other longer than 1 s
IMPATIENT = {"rdzv_conf": "last_call_timeout=1,keep_alive_interval=1"}


class Lab(replay.RecordedCluster):
    """The lesson's experiments; the first that needs the cluster starts it."""

    def __init__(self):
        super().__init__(RECORDS.name, hosts=2)
        self.hosts = replay.RecordedRuns(RECORDS.name, needs="hosts")

    def __repr__(self) -> str:
        return f"{self.hosts}\n{super().__repr__()}"

    def nodes(self) -> None:
        """Print what a check of all hosts before a job says: host1's disk is full."""

        def check() -> dict:
            cluster, how = self.start(), {"on": "host1", "as_root": True}
            cluster.run(f"mount -t tmpfs -o size=1m small {DISK}", **how)
            job = cluster.sbatch(CHECK, arguments=(f"--disk={DISK}",))
            job.wait(60)
            cluster.run(f"umount {DISK}", **how)
            return {"output": f"host0$ sbatch {CHECK} --disk={DISK}\n{job.output}"}

        print(_replay(self, "nodes", check)["output"])

    def requeued(self) -> dict:
        """Send USR1 to a job, which saves, is queued again and goes on; see `describe_job`."""

        def train() -> dict:
            job = self.submit(save_every=10 * STEPS)
            job.wait(steps=1)
            job.signal("USR1", "--batch")
            job.wait()
            return describe_job(job)

        found = _replay(self, "requeued", train)
        print(f"host0$ sbatch {JOB} ...\nhost0$ scancel --signal=USR1 --batch JOB")
        print(found["output"], end="")
        print(f"The second attempt began at step {found['first_step']}: {found['state']}")
        return found

    def submit(self, save_every: int) -> SlurmJob:
        """Submit the job that trains and is queued again."""
        flags = {**SETTING, "steps": STEPS, "save_every": save_every, "device": "cpu"}
        words = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
        return self.start().sbatch(JOB, "--time=20", arguments=tuple(words))

    def elastic(self) -> dict:
        """Let an elastic run on two hosts lose host1, another host0; see `_describe_attempts`."""
        return _replay(self.hosts, "elastic", lambda: {f"host{k}": _lose_host(k) for k in (1, 0)})

    def drill(self, name: str) -> Outcome:
        """Run one of DRILLS."""
        return Outcome(**_replay(self.hosts, f"drill_{name}", lambda: asdict(run_drill(name))))


def _replay(lab: replay.RecordedRuns, name: str, measure: Callable[[], dict]) -> dict:
    note = f"{lab.missing}: what was recorded elsewhere stands in ({name}). {lab.advice}"
    return replay.replay(RECORDS / f"{name}.json", measure, None if lab.ready else note)


def describe_job(job: SlurmJob) -> dict:
    """Describe a job that was queued again.

    output: of both attempts. first_step: at which the second began. again: how many steps were
    computed twice. apart: the largest difference from the losses of one process.
    """
    run = job.record
    steps = [row.step for row in Steps(run.folder).read_new()]  # each as often as it was computed
    return {
        "state": job.state,
        "output": replay.hide_own_folders(_without_stacks(job.output)),
        "first_step": run.ranks[0].first_step,
        "again": len(steps) - len(set(steps)),
        "apart": max_loss_difference(run),
    }


def _without_stacks(output: str) -> str:
    """Remove the C++ stacks that an agent writes if its store has ended first."""
    kept = [line for line in output.splitlines() if not STACK_LINE.match(line)]
    return "\n".join(line for line in kept if line.strip()) + "\n"


WAIT_FOR_LOSS = {
    "with run.step(step):": f"""while (world, step) == (2, {LOSS_STEP}):
    dist.all_reduce(torch.zeros(()))
    __import__("time").sleep(0.02)
with run.step(step):"""
}


def _lose_host(number: int) -> dict:
    script = variant(SRC / "snippets" / "ddp_elastic.py", "elastic_loses_a_host", WAIT_FOR_LOSS)
    LOGS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=LOGS, prefix="elastic-") as place:
        file = Path(place) / "run.pt"
        saves = {"save": file, "resume": file, "save_every": 1, "micro_batch": 4}
        options = Options(max_restarts=2, fewest_hosts=1, torchrun=IMPATIENT)
        with drills.BackgroundRun(script, 2, hosts=2, options=options, **saves, **SETTING) as run:
            run.wait_for_step(LOSS_STEP - 1, ranks=2)
            lost_at = time.time()
            run.hosts[number].kill()
    return _describe_attempts(run.record, lost_at)


def _describe_attempts(run: Run, lost_at: float) -> dict:
    """Describe an elastic run's attempts; lost_at: when the host was lost, seconds since 1970."""
    rows, attempts = Steps(run.folder).read_new(), []
    for attempt in sorted({row.attempt for row in rows}):
        steps = [row.step for row in rows if row.attempt == attempt]
        # torchrun's own: its ranks may have ended before anybody has looked for them
        folders = run.folder.glob(f"ranks/*/*/attempt_{attempt}/*")
        hosts = [folder.parents[2].name for folder in folders]
        share = SETTING["global_batch"] // len(hosts)
        row = {"attempt": attempt, "hosts": ", ".join(sorted(set(hosts))), "ranks": len(hosts)}
        row |= {"samples of a rank": share, "micro-batches": share // 4}
        attempts.append(row | {"steps": f"{min(steps)} to {max(steps)}"})
    ended = (run.folder / "summary.json").stat().st_mtime
    return {
        "attempts": attempts,
        "status": run.status,
        "seconds": ended - lost_at,
        "apart": max_loss_difference(run) if run.status == "ok" else None,
    }


def all_drills() -> Table:
    """Table all drills, as they were recorded."""
    return table([Outcome(**row) for row in read_json(RECORDS / "drills.json")["drills"]])
