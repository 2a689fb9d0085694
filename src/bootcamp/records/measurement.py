"""Measurement: where numbers come from, for runs, rooflines and sweeps alike."""

from pathlib import Path

from bootcamp import corpus, machine, units
from bootcamp.paths import REFERENCE

SHARED = "shared cores"


class Measurement:
    """Something measured on the machine that its `config` describes."""

    folder: Path  # where it was read from
    config: dict  # machine, versions, device, processes, cores_per_rank
    what: str = ""  # the processes that were running, if they were not ranks
    shared_cores: bool = False  # another run used the same cores, so that its times mean nothing

    @property
    def world(self) -> int:
        return self.config.get("processes", 1)

    @property
    def device(self) -> str:
        """Kind of device, cpu or cuda."""
        return self.config.get("device", "cpu").split(":")[0]

    @property
    def oversubscribed(self) -> bool:
        """Whether there were more ranks than cores or GPUs, so that it measures no scaling."""
        if self.device not in ("cpu", "cuda") or "machine" not in self.config:
            return False
        if self.device == "cuda":
            return self.world > len(self.config["machine"]["gpus"]) * self.config.get("hosts", 1)
        return self.world * self.config["cores_per_rank"] > self.config["machine"]["cores"]

    @property
    def in_reference(self) -> bool:
        """Whether it is one of the course's recorded runs."""
        return REFERENCE in self.folder.resolve().parents

    @property
    def measured_here(self) -> bool:
        """Whether it was made on this machine, and is not one of the recorded runs."""
        described, memory = self.config.get("machine", {}), machine.memory_bytes()
        same_cpu = described.get("cpu") == machine.cpu_name()
        same = same_cpu and described.get("memory_bytes", memory) == memory
        return same and not self.in_reference

    @property
    def other_corpus(self) -> bool:
        """Whether it was trained on another text than today's, and so has other losses."""
        return self.config.get("corpus_crc32") not in (None, corpus.CRC32)

    @property
    def origin(self) -> str:
        """Device, cores and torch, and whether it was measured here or recorded."""
        described = self.config["machine"]
        device = described["cpu"] if self.device == "cpu" else described["gpus"][0]
        how = "measured here" if self.measured_here else "recorded on another machine"
        how = f"recorded run {self.folder.name}" if self.in_reference else how
        where = f" on {SHARED}" if self.shared_cores else ""
        torch = self.config["versions"]["torch"]
        return f"{device}, {units.count(described['cores'], 'core')}, torch {torch}; {how}{where}"
