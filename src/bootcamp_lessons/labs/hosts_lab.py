"""Lesson 09's experiments: who starts what on two hosts, and what the link between them costs."""

import json
from collections.abc import Callable
from pathlib import Path

from bootcamp.costs import alpha_beta
from bootcamp.experiments import claims, replay
from bootcamp.files import read_json
from bootcamp.paths import REFERENCE, ROOT, SRC
from bootcamp.records.runs import Run
from bootcamp.table import Table
from bootcamp_lessons.diagrams import hosts
from bootcamp_lessons.labs import hsdp_lab

LESSON = "09_several_hosts"
LINK = "200mbit"
LARGEST = 2**20  # bytes of the largest all-reduce: longer on the link than a reader should wait
SWEEP = {"largest": LARGEST, "rounds": 10, "global_batch": 2, "quiet": True}
JOBS = ("ddp_srun", "ddp_torchrun")
MANIFESTS = REFERENCE / "manifests.json"  # see tools/manifests.py
ELSEWHERE = {  # file in src/jobs/elsewhere -> who starts the ranks there
    "kubeflow.yaml": "Kubernetes starts a pod for each node, and in it torchrun, c10d",
    "skypilot.yaml": "SkyPilot runs the same lines on each rented machine: torchrun, static",
    "ray_train.py": "Ray starts a worker for each rank",
    "submitit_slurm.py": "Slurm starts a task for each rank; submitit writes the job file",
}
WHERE = {"inside a host": {}, "over the link": {"hosts": 2, "link": LINK}}
# Debian and Ubuntu write a line such as "127.0.1.1 host0" into /etc/hosts of a host without a fixed
# address. This command line shows one to what it starts, and to nobody else.
LOOPBACK_NAME = (
    "unshare --user --map-root-user --mount sh -c '"
    'own=$(mktemp); sed "s/^[0-9.]* $(hostname)$/127.0.1.1 $(hostname)/" /etc/hosts > $own; '
    'mount --bind $own /etc/hosts; rm $own; exec "$@"'
    "' sh"
)


class Lab(replay.Cluster):
    """Two hosts with Slurm, of two made-up GPUs each, and beside it pairs of ranks for the link."""

    def __init__(self):
        super().__init__(LESSON, hosts=2, gpus=2)
        self.pairs = replay.Lab(LESSON, needs="hosts")
        self.sweeps: dict[str, Run] = {}

    def measuring(self, where: str, size: int = LARGEST) -> Callable[[], float]:
        """A trial for a claim: the seconds of an all-reduce of so many bytes, newly measured.

        where: "inside a host" or "over the link".
        """

        def measure() -> float:
            name = "sweep-" + where.split()[0]
            script = SRC / "snippets/sweep_all_reduce.py"
            self.sweeps[where] = self.pairs.launch(name, script, 2, **WHERE[where], **SWEEP)
            return seconds_of(self.sweeps[where], size)

        return measure

    def faster_inside(self, name: str, sentence: str, **text) -> claims.Claim:
        """claim.faster() for the largest size; without hosts the records and no verdict."""
        return hsdp_lab.faster(self.pairs, name, sentence, *map(self.measuring, WHERE), **text)

    def costs(self) -> Table:
        """Alpha and beta of either place, as fitted to its sweep."""
        rows = []
        for where, run in self.sweeps.items():
            fit = alpha_beta.fit(rows_of(run))
            row = {"where": where, "alpha, microseconds": 1e6 * fit.alpha_seconds}
            rate = 8e-6 / fit.beyond_seconds_per_byte
            rows.append(row | {"large messages, Mbit/s": rate})
        return Table(rows, "An all-reduce of two ranks: seconds = alpha + beta * bytes")

    def figure(self):
        """The sweeps, and what the link's rate alone would take."""
        rate = float(LINK.removesuffix("mbit")) * 1e6 / 8
        return hosts.link_sweep({w: (run, rows_of(run)) for w, run in self.sweeps.items()}, rate)

    def times_as_long(self, size: int) -> float:
        """How many times as long an all-reduce of this size takes over the link as inside."""
        inside, across = (seconds_of(self.sweeps[where], size) for where in WHERE)
        return across / inside


def rows_of(sweep: Run) -> list[dict]:
    """The rows of a sweep, smallest size first; see src/snippets/sweep_all_reduce.py."""
    return read_json(sweep.folder / "sweep.json")["rows"]


def seconds_of(sweep: Run, size: int) -> float:
    """The fastest call of this size."""
    return next(row["seconds"] for row in rows_of(sweep) if row["bytes"] == size)


def order_of_hosts(names: list[str]) -> list[str]:
    """The order in which torchrun's c10d rendezvous numbers hosts, by its own code."""
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous

    nodes = [dynamic_rendezvous._NodeDesc(name, pid=1, local_id=0) for name in names]
    return [node.addr for node in sorted(nodes)]


def devices(gpus: list[int], cyclic: bool = False) -> Table:
    """The GPU that each rank takes by either rule; one rank for each GPU of these hosts.

    gpus: of each host. cyclic: ranks are dealt out to the hosts in turn, not host by host.
    """
    places = [(host, local) for host, count in enumerate(gpus) for local in range(count)]
    if cyclic:
        places.sort(key=lambda place: place[::-1])
    rows = []
    for rank, (host, local) in enumerate(places):
        row = {"rank": rank, "host": host, "LOCAL_RANK": local}
        rows.append(row | {"rank % device_count": rank % gpus[host], "rank % 4": rank % 4})
    return Table(rows, "ranks in turn" if cyclic else "ranks host by host")


def batches(per_rank: int, worlds: list[int]) -> Table:
    """The global batch of a script that trains so many samples on each rank, and how to keep it."""
    kept = per_rank * worlds[0]
    rows = []
    for world in worlds:
        parts, rest = divmod(kept, per_rank * world)
        row = {"ranks": world, "global batch": per_rank * world}
        rows.append(row | {f"micro-batches for {kept}": "-" if rest else parts})
    return Table(rows, f"{per_rank} samples on each rank")


def by_learning_rate(runs: tuple[Run, ...]) -> Table:
    """What the jobs of an array came to."""
    columns = {"lr": lambda run: run.config["lr"], "final loss": lambda run: run.losses[-1]}
    return Table.of(runs, columns, "One job for each learning rate")


def elsewhere() -> Table:
    """The files for other schedulers, and how far each has been tried; see tools/manifests.py."""
    found, rows = json.loads(MANIFESTS.read_text()), []
    for file, who in ELSEWHERE.items():
        tool, version = found[file]["tool"].split("==")
        row = {"file": file, "who starts the ranks": who, "checked with": f"{tool} {version}"}
        status = {"run": "run", "parsed": "read, not run"}[found[file]["status"]]
        rows.append({**row, "on": found[file]["date"], "here": status})
    return Table(rows, "The same training in src/jobs/elsewhere")


def show_file(path: str) -> None:
    """Display a file of the course as code."""
    from IPython.display import Markdown, display

    kind = {".sbatch": "bash", ".py": "python", ".yaml": "yaml"}[Path(path).suffix]
    display(Markdown(f"```{kind}\n{(ROOT / path).read_text()}```"))
