"""What the kernel asks its supervisor for: one run. It crosses between them as JSON."""

from dataclasses import asdict, dataclass, field

COMMAND = "command"  # the start of a launcher such as torchrun, or of any command


@dataclass
class Command:
    """One process to start. argv: of a rank, its script first. env: its environment, whole."""

    argv: list[str]
    env: dict[str, str]


@dataclass
class RunRequest:
    """One run.

    run: its folder. start: "warm", "cold", or "command", where `agents` has one command, or over
    hosts one for each. fewest_hosts: with how many it can go on. absent: hosts on which nothing is
    started at first. hang_seconds, busy_seconds: how long no rank may finish a step, idle or busy.
    records: whether the script has to leave a record. framework: what the ranks need beyond torch.
    hosts: how many to make on this machine, `link` the rate of their links. lease, cores: what
    device_locks.py locks before the start.
    """

    run: str
    start: str
    ranks: list[Command] = field(default_factory=list)
    agents: list[Command] = field(default_factory=list)
    fewest_hosts: int = 1
    absent: list[int] = field(default_factory=list)
    hang_seconds: float = float("inf")
    busy_seconds: float = float("inf")
    records: bool = False
    framework: str | None = None
    hosts: int = 1
    link: str | None = None
    lease: dict | None = None
    cores: dict | None = None

    def to_json(self) -> dict:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict) -> "RunRequest":
        """Raises TypeError for a key that is none of a request's."""
        ranks = [Command(**rank) for rank in content["ranks"]]
        agents = [Command(**agent) for agent in content["agents"]]
        return cls(**{**content, "ranks": ranks, "agents": agents})
