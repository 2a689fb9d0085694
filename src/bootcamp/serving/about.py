"""What stands in an exported file about its model, so that a server knows its limits."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class About:
    """Which model a file holds. context: the most bytes that it reads at once."""

    model: str
    size: str
    context: int

    def words(self) -> dict[str, str]:
        """As every format can store it: text by name."""
        return {name: str(value) for name, value in asdict(self).items()}

    @classmethod
    def of(cls, words: dict[str, str]) -> "About":
        """Of such text. Raises KeyError where something is missing."""
        return cls(words["model"], words["size"], int(words["context"]))
