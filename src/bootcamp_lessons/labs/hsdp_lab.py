"""Lesson 08's experiments: strategies on two simulated hosts of two ranks, and what they send."""

from collections.abc import Callable

from bootcamp.costs import model_shapes, sharding
from bootcamp.experiments import claims, replay
from bootcamp.paths import SRC
from bootcamp.records.runs import Run
from bootcamp.table import Table
from bootcamp_lessons import reading

SETTING = {"model": "mlp", "size": "tiny", "global_batch": 16}
LINK = "20mbit"
STEPS = 3
THEORY = {  # arguments of sharding.sent_bytes
    "DDP": {"strategy": "ddp"},
    "DDP fp16": {"strategy": "ddp", "number": 0.5},
    "FSDP": {"strategy": "fsdp"},
    "FSDP keep": {"strategy": "fsdp", "keep_gathered": True},
    "HSDP": {"strategy": "hsdp", "shard": 2},
}
LAYERS = [4 * sum(layer.numbers) for layer in model_shapes.layers("mlp", "tiny")]  # bytes
MODEL_BYTES = sum(LAYERS)  # P, in float32
SCRIPTS = {"DDP": ("ddp", {}), "FSDP": ("fsdp", {}), "HSDP": ("hsdp", {"shard": 2})}


class Lab(replay.Lab):
    """Two hosts of two ranks; `runs[name, link]` has the latest run of each trial."""

    def __init__(self):
        super().__init__("08_hsdp", needs="hosts")
        self.runs: dict[tuple[str, str | None], Run] = {}

    def trial(self, name: str, link: str | None = None) -> Callable[[], Run]:
        """A few steps of DDP, FSDP or HSDP over this link, as a claim repeats them."""
        script, flags = SCRIPTS[name]

        def train() -> Run:
            record = f"{name.lower()}-{'slow' if link else 'open'}"
            self.runs[name, link] = self.train(record, script, link, **flags)
            return self.runs[name, link]

        return train

    def train(self, record: str, script, link: str | None = None, **flags) -> Run:
        """Launch a script on two hosts of two ranks, or return its record."""
        how = {"hosts": 2, "link": link, "steps": STEPS, "quiet": True}
        return self.launch(record, script, 4, **flags, **how, **SETTING)

    def faster(self, name: str, sentence: str, this, that, **how) -> claims.Claim:
        """Compare two trials as claims.faster does; see `faster`."""
        return faster(self, name, sentence, this, that, **how)

    def five_megabytes(self, link: str) -> Table:
        """What rank 0 noted when it sent 5 MB to each other rank."""
        where = {"hosts": 2, "link": link, "device": "cpu", "quiet": True}
        run = self.launch("two-hosts", SRC / "snippets" / "two_hosts.py", 4, **where)
        rows = []
        for sent in reading.printed(run):
            row = {"from rank 0 to": sent["to rank"], "on": sent["to host"]}
            row["ms"] = 1e3 * sent["seconds"]
            rows.append(row | {f"MB over {n}": sent["sent"][n] / 1e6 for n in ("lo", "eth0")})
        return Table(rows, "5 MB each, counted by the kernel of host0")

    def wire(self) -> Table:
        """What host0 sent to host1 in a step of each run: by theory, and as TCP counted it."""
        rows = []
        for (name, link), run in self.runs.items():
            row = {"link": link or "open", "run": name}
            row["theory MB"] = link_bytes(name) / 1e6
            rows.append(row | {"counted MB": crossed(run) / 1e6})
        return Table(rows, "Sent by host0 to host1 in a step")

    def by_name(self, link: str | None) -> dict[str, Run]:
        """The runs over one link."""
        return {name: self.runs[name, link] for name in SCRIPTS}


def faster(lab: replay.Lab, name: str, sentence: str, this, that, **how) -> claims.Claim:
    """Run claims.faster; where hosts can't be made, each record once and no verdict."""
    if lab.ready:
        return claims.faster(name, sentence, this, that, **how)
    this(), that()
    return claims.untested(name, sentence, lab.missing)


def sends(
    name: str, model_bytes: float = 1.0, ranks: int = 4, hosts: int = 2, factors=None, **changes
) -> tuple[float, float]:
    """Bytes that a host sends in a step: over its link, and inside. changes: see THEORY."""
    how = THEORY[name] | {k: v for k, v in changes.items() if k != "shard" or name == "HSDP"}
    how |= {"model_bytes": model_bytes, "ranks": ranks, "factors": factors or sharding.RING}
    link = sharding.link_bytes(hosts=hosts, **how)
    return link, ranks // hosts * sharding.sent_bytes(**how) - link


def link_bytes(name: str) -> float:
    """What a host of the lab sends to the other in a step, by theory for gloo.

    The head, which stays gathered from forward to backward pass, is gathered once a step.
    """
    root = LAYERS[-1] / MODEL_BYTES
    return sends(name, MODEL_BYTES, factors=sharding.GLOO, root=root)[0]


def link_seconds(link: str) -> dict[str, float]:
    """Seconds in which the lab's link carries a step's bytes, by formula."""
    rate = float(link.removesuffix("mbit")) * 1e6 / 8  # bytes per second
    return {name: link_bytes(name) / rate for name in SCRIPTS}


def crossed(run: Run) -> float:
    """Bytes that host0's two ranks wrote to connections with the other host, in a step."""
    return sum(rank["sent_to_other_hosts_bytes_per_step"] for rank in run.ranks[:2])
