"""Lesson 08's experiments: strategies on two simulated hosts of two ranks, and their traffic."""

from collections.abc import Callable

from bootcamp.costs import model_shapes, sharding
from bootcamp.experiments import claims, replay
from bootcamp.paths import SRC
from bootcamp.records.runs import Run
from bootcamp.table import Table
from bootcamp_lessons import excerpts

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


class Lab(replay.RecordedRuns):
    """Two hosts of two ranks; `runs[name, link]` has the latest run of each trial."""

    def __init__(self):
        super().__init__("08_hsdp", needs="hosts")
        self.runs: dict[tuple[str, str | None], Run] = {}

    def trial(self, name: str, link: str | None = None) -> Callable[[], Run]:
        """Return a function that trains a few steps of DDP, FSDP or HSDP over this link."""
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

    def claim_faster(
        self, name: str, sentence: str, this: str, that: str, link: str | None = None, **text
    ) -> claims.Claim:
        """Run each strategy once, for the tables, and claim that `this` is faster over the link."""
        self.trial(this, link)(), self.trial(that, link)()
        if not self.ready:
            return claims.untested(name, sentence, self.missing)
        how = {"hosts": 2, "link": link, "device": "cpu", "steps": STEPS, **SETTING}
        trials = (claims.trial(SCRIPTS[n][0], 4, **SCRIPTS[n][1], **how) for n in (this, that))
        return claims.faster(name, sentence, *trials, **text)

    def five_megabytes(self, link: str) -> Table:
        """Send 5 MB from rank 0 to each other rank, and table what it noted."""
        where = {"hosts": 2, "link": link, "device": "cpu", "quiet": True}
        run = self.launch("two-hosts", SRC / "snippets" / "two_hosts.py", 4, **where)
        rows = []
        for sent in excerpts.parse_printed(run):
            row = {"from rank 0 to": sent["to rank"], "on": sent["to host"]}
            row["ms"] = 1e3 * sent["seconds"]
            rows.append(row | {f"MB over {n}": sent["sent"][n] / 1e6 for n in ("lo", "eth0")})
        return Table(rows, "5 MB each, counted by the kernel of host0")

    def wire(self) -> Table:
        """Table what host0 sent to host1 in a step of each run: by theory, and counted by TCP."""
        rows = []
        for (name, link), run in self.runs.items():
            row = {"link": link or "open", "run": name}
            row["theory MB"] = predict_link_bytes(name) / 1e6
            rows.append(row | {"counted MB": crossing_bytes(run) / 1e6})
        return Table(rows, "Sent by host0 to host1 in a step")

    def by_name(self, link: str | None) -> dict[str, Run]:
        """Return {strategy: run over this link}."""
        return {name: self.runs[name, link] for name in SCRIPTS}


def sent_bytes(
    name: str, model_bytes: float = 1.0, ranks: int = 4, hosts: int = 2, factors=None, **changes
) -> tuple[float, float]:
    """Return what a host sends over its link and inside; changes: of arguments in THEORY."""
    how = THEORY[name] | {k: v for k, v in changes.items() if k != "shard" or name == "HSDP"}
    how |= {"model_bytes": model_bytes, "ranks": ranks, "factors": factors or sharding.RING}
    link = sharding.link_bytes(hosts=hosts, **how)
    return link, ranks // hosts * sharding.sent_bytes(**how) - link


def predict_link_bytes(name: str) -> float:
    """Return a host's bytes on the link, for gloo; FSDP gathers the head only once a step."""
    root = LAYERS[-1] / MODEL_BYTES
    return sent_bytes(name, MODEL_BYTES, factors=sharding.GLOO, root=root)[0]


def predict_link_seconds(link: str) -> dict[str, float]:
    """Return {strategy: seconds in which the lab's link carries a step's bytes}."""
    rate = float(link.removesuffix("mbit")) * 1e6 / 8  # bytes per second
    return {name: predict_link_bytes(name) / rate for name in SCRIPTS}


def crossing_bytes(run: Run) -> float:
    """Return the bytes that host0's two ranks sent to the other host in a step."""
    return sum(rank["sent_to_other_hosts_bytes_per_step"] for rank in run.ranks[:2])
