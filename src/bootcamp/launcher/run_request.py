"""The request for one run, which crosses from the kernel to its supervisor as JSON."""

from dataclasses import dataclass, field


@dataclass
class Command:
    """One process to start. argv: of a rank, its script first. env: its environment, whole."""

    argv: list[str]
    env: dict[str, str]


@dataclass
class RunRequest:
    """One run.

    run: its folder. start: as launch's, or "command". ranks: what starts each; there are agents for
    a run that others start: one horovodrun or any command, or the torchrun of each host.
    fewest_hosts: with how many it can go on. absent: hosts on which nothing is started at first.
    hang_seconds, busy_seconds: how long no rank may finish a step, idle or busy. records: whether
    the script has to leave a record. framework: what the ranks need beyond torch. hosts: how many
    to make here, `link` the rate of their links. lease, cores: what device_locks.py locks first.
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

    @classmethod
    def from_json(cls, content: dict) -> "RunRequest":
        for part in ("ranks", "agents"):
            content[part] = [Command(**command) for command in content[part]]
        return cls(**content)
