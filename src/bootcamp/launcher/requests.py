"""What the kernel asks its supervisor for: one run, and each of its ranks.

It crosses as JSON. The fork server reads that as it is: it imports nothing of the package.
"""

from dataclasses import asdict, dataclass, field

COMMAND = "command"  # the start of a launcher such as torchrun, or of any command


@dataclass
class RankRequest:
    """One rank to start.

    env: its environment, whole. argv: the script first. out, err: files for what it prints. stack:
    the file for its answer to SIGUSR1. host: the number of the simulated host that it is on, then
    how to enter that host.
    """

    env: dict[str, str]
    argv: list[str]
    out: str
    err: str
    stack: str
    host: int | dict | None = None


@dataclass
class Command:
    """A launcher such as torchrun, or any command, and its environment."""

    command: list[str]
    env: dict[str, str]


@dataclass
class RunRequest:
    """One run.

    run: its folder. start: "warm", "cold", or "command", where `agents` has one command, or over
    hosts one for each. fewest_hosts: with how many it can go on. absent: hosts on which nothing is
    started at first. hang_seconds, busy_seconds: how long no rank may finish a step, idle or busy.
    records: whether the script has to leave a record. framework: what the ranks need beyond torch.
    port: of the rendezvous, 0 for any. hosts: how many to make on this machine, `link` the rate of
    their links. lease: devices to lease before the start, and the variable that names them to the
    ranks. cores: the folder of their locks, and how many each CPU rank computes with.
    """

    run: str
    start: str
    ranks: list[RankRequest] = field(default_factory=list)
    agents: list[Command] = field(default_factory=list)
    fewest_hosts: int = 1
    absent: list[int] = field(default_factory=list)
    hang_seconds: float = float("inf")
    busy_seconds: float = float("inf")
    records: bool = False
    framework: str | None = None
    port: int = 0
    hosts: int = 1
    link: str | None = None
    lease: dict | None = None
    cores: dict | None = None

    def to_json(self) -> dict:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict) -> "RunRequest":
        """Raises TypeError for a key that is none of a request's."""
        ranks = [RankRequest(**rank) for rank in content["ranks"]]
        agents = [Command(**agent) for agent in content["agents"]]
        return cls(**{**content, "ranks": ranks, "agents": agents})
