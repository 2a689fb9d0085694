"""Lesson 14's contest of plans that are really run: `capstone.enter("me", "hsdp", shard=2)`.

A plan is a script, one of the course's or the reader's own, and its flags. It trains a fixed model
on four ranks of two hosts, over a slow link and within a memory limit. Each plan is run and must
train what the baseline trains; `capstone.board()` ranks the valid ones by measured tokens/s.
"""

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from bootcamp.classroom.tasks import Wrong, explain_failures
from bootcamp.experiments import equality
from bootcamp.hosts import slurm
from bootcamp.launcher import arguments, launch, process_tree, simulated_hosts
from bootcamp.paths import LOGS
from bootcamp.records.runs import Run
from bootcamp.scripts import strategies
from bootcamp.table import Table
from bootcamp_lessons import checkpoints, plan_contest

MODEL = {"model": "gpt", "size": "tiny", "global_batch": 32}
RANKS, HOSTS, LINK = 4, 2, "20mbit"
STEPS = 5
MAX_BYTES = 16_500_000  # on any rank: parameters, gradients, optimizer state and activations
FIXED = {*MODEL, "steps", "optimizer", "seed", "dtype", "lr", "cores_per_rank", "ranks", "args"}
FIXED |= {"device", "start", "hosts", "link", "quiet", "raises", "options"}  # for everybody
TASK = {**MODEL, "ranks": RANKS, "hosts": HOSTS, "link between the hosts": LINK}
TASK |= {"most MB on a rank": MAX_BYTES / 1e6}
KINDS = ("parameter", "gradient", "optimizer", "activation")
FILE = "capstone.json"
JOB, LOSS_STEP = "src/jobs/train_plan.sbatch", 6  # a host is lost after so many steps


@dataclass(frozen=True)
class Plan:
    """A strategy to run: a script's name or path, and the flags that are the reader's to choose."""

    script: str
    flags: dict = field(default_factory=dict)

    def __str__(self) -> str:
        words = [f"{name}={value}" for name, value in self.flags.items()]
        return " ".join([Path(str(self.script)).stem, *words])


def parse_plan(given) -> Plan:
    """Make a plan of a name ("fsdp") or of {"script": "hsdp", "shard": 2}. Raises Wrong."""
    if isinstance(given, str | Path):
        given = {"script": given}
    if not isinstance(given, dict) or "script" not in given:
        raise Wrong('a plan such as {"script": "hsdp", "shard": 2}', f"{given!r}")
    flags = {name: value for name, value in given.items() if name != "script"}
    if fixed := sorted(set(flags) & FIXED):
        given_by_task = f"{', '.join(fixed)}: given by the task, the same for everybody"
        raise Wrong("flags that are yours to choose", given_by_task)
    return Plan(given["script"], flags)


def choose_hosts() -> dict:
    """Return launch's arguments for two hosts and a link, or for CPU ranks without hosts."""
    return {"device": "cpu"} if simulated_hosts.why_not() else {"hosts": HOSTS, "link": LINK}


def count_bytes_by_kind(run: Run) -> dict[str, int]:
    """Count the bytes of the fullest rank for each of KINDS."""
    by_rank = ({kind: rank[f"{kind}_bytes"] or 0 for kind in KINDS} for rank in run.ranks)
    return max(by_rank, key=lambda kinds: sum(kinds.values()))


def count_fullest_rank_bytes(run: Run) -> int:
    return sum(count_bytes_by_kind(run).values())


def count_states_and_activations(run: Run) -> dict[str, int]:
    """Count the bytes of states and of activations of the fullest rank."""
    held = count_bytes_by_kind(run)
    activations = held.pop("activation")
    return {"states": sum(held.values()), "activations": activations}


def try_plan(plan: Plan, max_bytes: int = MAX_BYTES) -> Run:
    """Run a plan; prove with AdamW and with SGD that it trains as the baseline does.

    Returns the first run, the measured one. Raises Wrong.
    """
    shared = {**MODEL, **choose_hosts(), "quiet": True}
    with explain_failures(Path(plan.script)):
        run = launch.launch(plan.script, RANKS, steps=STEPS, **shared, **plan.flags)
        equality.same_training(run, equality.baseline(**MODEL, steps=STEPS))
        if (fullest := count_fullest_rank_bytes(run)) > max_bytes:
            kinds = sorted(count_bytes_by_kind(run).items(), key=lambda pair: -pair[1])
            parts = ", ".join(f"{kind} {size / 1e6:.2f}" for kind, size in kinds)
            most = f"at most {max_bytes / 1e6:.1f} MB on each rank"
            raise Wrong(most, f"{fullest / 1e6:.1f} MB: {parts}")
        proved = {**shared, "link": None} if "link" in shared else shared
        sgd = {"steps": STEPS, "optimizer": "sgd"}
        other = launch.launch(plan.script, RANKS, **sgd, **proved, **plan.flags)
        equality.same_training(other, equality.baseline(**MODEL, **sgd))
    return run


def count_models_sent(run: Run) -> float | None:
    """Return what one host sends the other per step, in multiples of the model's bytes.

    None if unknown, or if the run had one host.
    """
    sent = [rank.get("sent_to_other_hosts_bytes_per_step") for rank in run.ranks[: RANKS // HOSTS]]
    if run.config.get("hosts", 1) < 2 or None in sent:
        return None
    return sum(sent) / equality.baseline(**MODEL, steps=STEPS).ranks[0]["parameter_bytes"]


@dataclass
class Entry:
    """A plan on the board: valid with its figures, or why it is not."""

    row: dict
    wrong: Wrong | None = None

    def __str__(self) -> str:
        if self.wrong:
            return f"Not valid. Expected: {self.wrong.expected}.\nSeen: {self.wrong.seen}"
        speed, held = self.row["tokens_per_second"], self.row["rank_bytes"]
        return f"Valid: {speed:,.0f} tokens/s, {held / 1e6:.1f} MB on the fullest rank."

    __repr__ = __str__


def enter(who: str, script: str | Path, **flags) -> Entry:
    """Try a plan and put it on the board under this name, valid or not."""
    row = {"who": who, "plan": str(Plan(script, flags)), "when_unix_seconds": time.time()}
    wrong = None
    try:
        run = try_plan(parse_plan({"script": script, **flags}))
        row |= {"tokens_per_second": run.tokens_per_second, "link_sizes": count_models_sent(run)}
        row |= {"rank_bytes": count_fullest_rank_bytes(run), "link": run.config.get("link", "none")}
    except Wrong as error:
        wrong = error
        row["why_not"] = wrong.expected
    plan_contest.add_entry(LOGS / FILE, row)
    return Entry(row, wrong)


def board() -> Table:
    """Return all entries of this machine as a table: valid ones first, by tokens per second."""
    entries = plan_contest.read_entries(LOGS / FILE)
    rows = sorted(entries, key=lambda row: -(row.get("tokens_per_second") or 0))
    columns = {
        "place": lambda row: 1 + rows.index(row) if "rank_bytes" in row else None,
        "who": "who",
        "plan": "plan",
        "tokens/s": "tokens_per_second",
        "MB on a rank": lambda row: row["rank_bytes"] / 1e6 if "rank_bytes" in row else None,
        "link": "link",
        "models on the link": "link_sizes",
        "not valid": lambda row: row.get("why_not", ""),
    }
    return Table.of(rows, columns, f"{RANKS} CPU ranks; measured on this machine")


def train_through_a_loss(given, steps: int, place: Path) -> Run:
    """Train by a plan, saving in a place, as a job on two of three hosts, and lose one of them."""
    plan, saves = parse_plan(given), {"save": place, "resume": place, "save_every": 5}
    flags = {**MODEL, "steps": steps, **saves, **plan.flags}
    if missing := slurm.why_not():
        print(f"No job, for Slurm can't be started here ({missing}): all ranks are killed instead.")
        flags, killed = {"device": "cpu", "quiet": True, **flags}, place.with_name("killed")
        checkpoints.launch_and_kill(killed, plan.script, RANKS, LOSS_STEP, 0, **flags)
        return launch.launch(plan.script, RANKS, **flags)
    words = (strategies.find(plan.script), *arguments.to_arguments(flags))
    with slurm.Cluster(hosts=HOSTS + 1) as cluster:
        job = cluster.sbatch(JOB, arguments=words)
        job.wait(steps=1)
        print(f"{job} on {job.read_rows()[0]['NodeList']}; then host1 is lost")
        job.wait(steps=LOSS_STEP)
        keeper = cluster.hosts["host1"]
        found = simulated_hosts.find_processes(os.readlink(f"/proc/{keeper}/ns/net"))
        process_tree.send_signal(found.keys() - {keeper}, signal.SIGKILL)
        # what Slurm would notice by itself, after SlurmdTimeout
        cluster.run("scontrol update nodename=host1 state=down reason=lost")
        job.wait()
        print(f"{job} on {job.read_rows()[0]['NodeList']}, queued again {job.restarts} time")
        return job.record
