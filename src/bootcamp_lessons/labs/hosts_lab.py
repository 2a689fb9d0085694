"""Lesson 09's experiments: how ranks of two hosts are started, and what their link costs."""

import difflib
from pathlib import Path

from bootcamp.costs import alpha_beta
from bootcamp.experiments import claims, replay
from bootcamp.files import read_json
from bootcamp.paths import REFERENCE, ROOT, SRC
from bootcamp.records.runs import Run
from bootcamp.scripts import jobs
from bootcamp.table import Table
from bootcamp_lessons.diagrams import hosts

LESSON = "09_several_hosts"
LINK = "200mbit"
LARGEST = 2**20  # bytes of the largest all-reduce; more would take too long on the link
SWEEP = {"largest": LARGEST, "rounds": 10, "global_batch": 2, "quiet": True}
JOBS = ("ddp_srun", "ddp_torchrun")
MANIFESTS = REFERENCE / "manifests.json"
SCHEDULERS = {  # file in src/jobs/elsewhere -> what starts the ranks there
    "kubeflow.yaml": "Kubernetes starts a pod for each node, and in it torchrun, c10d",
    "skypilot.yaml": "SkyPilot runs the same lines on each rented machine: torchrun, static",
    "ray_train.py": "Ray starts a worker for each rank",
    "submitit_slurm.py": "Slurm starts a task for each rank; submitit writes the job file",
}
PLACES = {"inside a host": {}, "over the link": {"hosts": 2, "link": LINK}}
# Debian and Ubuntu write a line such as "127.0.1.1 host0" into /etc/hosts of a host without a fixed
# address. This command line shows one to what it starts, and to nobody else.
LOOPBACK_NAME = (
    "unshare --user --map-root-user --mount sh -c '"
    'own=$(mktemp); sed "s/^[0-9.]* $(hostname)$/127.0.1.1 $(hostname)/" /etc/hosts > $own; '
    'mount --bind $own /etc/hosts; rm $own; exec "$@"'
    "' sh"
)


class Lab(replay.RecordedCluster):
    """Two hosts with Slurm and two made-up GPUs each, two that bind tasks to cores, and pairs."""

    def __init__(self):
        super().__init__(LESSON, hosts=2, gpus=2)
        self.bound = replay.RecordedCluster(LESSON, hosts=2, cpus=2, binds=True)
        self.pairs = replay.RecordedRuns(LESSON, needs="hosts")
        self.sweeps: dict[str, Run] = {}

    def train(self, record: str, line: str) -> replay.Result:
        """Run a command on host1 that trains by torchrun_script.sh; return its end and the run."""

        def measure() -> dict[str, replay.Result]:
            done = self.start().run(line, on="host1", env=self._env(), raises=False)
            runs = [Run(folder) for folder in self.folder.glob("torchrun_script-*")]
            return {"host1": replay.Result(done.returncode, done.stdout, tuple(runs))}

        print(f"host1$ {line}")
        return self._replay(record, measure)["host1"]

    def faster_inside(self, name: str, sentence: str, **text) -> claims.Claim:
        """Claim that the largest all-reduce is faster inside; without hosts there is no verdict."""
        for where, record in zip(PLACES, ("sweep-inside", "sweep-over"), strict=True):
            script = SRC / "snippets/sweep_all_reduce.py"
            self.sweeps[where] = self.pairs.launch(record, script, 2, **PLACES[where], **SWEEP)
        if not self.pairs.ready:
            return claims.untested(name, sentence, self.pairs.missing)
        rounds = (read_sweep(sweep)[-1]["all_seconds"] for sweep in self.sweeps.values())
        names = ("inside a host", "over the link")
        return claims.faster(name, sentence, *rounds, names=names, **text)

    def costs(self) -> Table:
        """Table alpha and beta inside a host and over the link, fitted to their sweeps."""
        rows = []
        for where, run in self.sweeps.items():
            fit = alpha_beta.fit(read_sweep(run))
            row = {"where": where, "alpha, microseconds": 1e6 * fit.alpha_seconds}
            rows.append(row | {"large messages, Mbit/s": 8e-6 / fit.beyond_seconds_per_byte})
        note = f"The link has {LINK}: a faster fit is of a machine too busy to measure it"
        return Table(rows, f"An all-reduce of two ranks: seconds = alpha + beta * bytes. {note}.")

    def figure(self):
        """Draw the sweeps, and what the link's rate alone would take."""
        rate = float(LINK.removesuffix("mbit")) * 1e6 / 8
        return hosts.link_sweep({w: (run, read_sweep(run)) for w, run in self.sweeps.items()}, rate)

    def times_as_long(self) -> float:
        """Return the seconds of the largest all-reduce over the link, divided by those inside."""
        inside, across = (read_sweep(self.sweeps[where])[-1]["seconds"] for where in PLACES)
        return across / inside


def read_sweep(sweep: Run) -> list[dict]:
    """Read a sweep's rows, smallest size first; see src/snippets/sweep_all_reduce.py."""
    return read_json(sweep.folder / "sweep.json")["rows"]


def sort_hosts(names: list[str]) -> list[str]:
    """Sort hosts as torchrun's c10d rendezvous numbers them, by its own code."""
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous

    nodes = [dynamic_rendezvous._NodeDesc(name, pid=1, local_id=0) for name in names]
    return [node.addr for node in sorted(nodes)]


def device_table(gpus: list[int], cyclic: bool = False) -> Table:
    """Table the GPU of each rank by two rules; cyclic: ranks are dealt out in turn."""
    places = [(host, local) for host, count in enumerate(gpus) for local in range(count)]
    if cyclic:
        places.sort(key=lambda place: place[::-1])
    rows = []
    for rank, (host, local) in enumerate(places):
        row = {"rank": rank, "host": host, "LOCAL_RANK": local}
        rows.append(row | {"rank % device_count": rank % gpus[host], "rank % 4": rank % 4})
    return Table(rows, "ranks in turn" if cyclic else "ranks host by host")


def batch_table(per_rank: int, worlds: list[int]) -> Table:
    """Table the global batch by number of ranks, and the micro-batches that keep it."""
    kept = per_rank * worlds[0]
    rows = []
    for world in worlds:
        parts, rest = divmod(kept, per_rank * world)
        row = {"ranks": world, "global batch": per_rank * world}
        rows.append(row | {f"micro-batches for {kept}": "-" if rest else parts})
    return Table(rows, f"{per_rank} samples on each rank")


def learning_rate_table(runs: tuple[Run, ...]) -> Table:
    """Table the final losses of an array's jobs."""
    columns = {"lr": lambda run: run.config["lr"], "final loss": lambda run: run.losses[-1]}
    return Table.of(runs, columns, "One job for each learning rate")


def misread_table() -> Table:
    """Table lines of job files for GPUs that Slurm accepts, and what they mean to it."""
    broken = [b for b in jobs.read_broken_jobs().values() if b.of in ("ddp_gpus", "ddp_container")]
    return Table([{"written": each.fault, "what it means": each.means} for each in broken])


def scheduler_table() -> Table:
    """Table the files for other schedulers, and how each was checked."""
    found, rows = read_json(MANIFESTS), []
    for file, starter in SCHEDULERS.items():
        tool, version = found[file]["tool"].split("==")
        row = {"file": file, "who starts the ranks": starter, "checked with": f"{tool} {version}"}
        here = "run" if found[file]["status"] == "run" else "read, not run"
        rows.append({**row, "on": found[file]["date"], "here": here})
    return Table(rows, "The same training in src/jobs/elsewhere")


def show_file(path: str, parent: str = "") -> None:
    """Display a file of the course as code; with a parent, only the lines that differ from it."""
    from IPython.display import Markdown, display

    text = (ROOT / path).read_text()
    kind = {".sbatch": "bash", ".sh": "bash", ".py": "python", ".yaml": "yaml"}[Path(path).suffix]
    if parent:
        both = [each.splitlines(keepends=True) for each in ((ROOT / parent).read_text(), text)]
        lines = list(difflib.unified_diff(*both, n=1))[3:]
        kind, text = "diff", "".join("...\n" if line[0] == "@" else line for line in lines)
    display(Markdown(f"```{kind}\n{text}```"))
