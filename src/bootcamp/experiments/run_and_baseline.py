"""Facts about a run beside its baseline, out of the records of both."""

import math
from collections import Counter, defaultdict
from functools import cached_property

from bootcamp.records.runs import TOLERANCE, Run


def distance(a: list[float], b: list[float]) -> float:
    """Estimate the Euclidean distance of two models' parameters from their fingerprints."""
    return math.dist(a, b) / math.sqrt(len(a))


def loss_distance(a: float, b: float) -> float:
    """Return |a - b|; infinity if either is not a number, so that a NaN never passes for equal."""
    return abs(a - b) if math.isfinite(a) and math.isfinite(b) else math.inf


class Pair:
    """A run and its baseline. tolerance: see runs.TOLERANCE."""

    def __init__(self, run: Run, baseline: Run, tolerance: float = TOLERANCE):
        self.run, self.baseline, self.tolerance = run, baseline, tolerance
        # not 0 for a run that resumed in a folder of its own
        self.first_step = run.steps[0]["step"] if run.steps else 0
        self.resumed = any(rank["first_step"] for rank in run.ranks)
        self.foreign = run.config.get("model") == "own"  # and its own data: train.own_script
        self.uses_sgd = run.config.get("optimizer") == "sgd"  # steps as long as the gradients say

    @cached_property
    def losses(self) -> list[tuple[float, float]]:
        """(the run's, the baseline's) of each step that the run has recorded."""
        return list(zip(self.run.losses, self.baseline.losses[self.first_step :], strict=True))

    @property
    def wrong_steps(self) -> list[int]:
        steps = enumerate(self.losses, self.first_step)
        return [step for step, losses in steps if loss_distance(*losses) > self.tolerance]

    @property
    def other_learning_rate(self) -> tuple[int, float, float] | None:
        """The first step whose learning rates differ, the run's rate, and the baseline's."""
        mine, expected = (
            run.ranks[0].get("learning_rates") or [] for run in (self.run, self.baseline)
        )
        rates = zip(mine, expected[self.first_step :], strict=False)
        steps = enumerate(rates, self.first_step)
        return next(((step, *pair) for step, pair in steps if not math.isclose(*pair)), None)

    # Samples

    @cached_property
    def models(self) -> list[list[dict]]:
        """The ranks, grouped by the model that they hold together: those with one data share.

        Where the script lays out as many shares as ranks, each rank has a complete model.
        """
        each_alone = self.run.config.get("data_parallel", self.run.world) == self.run.world
        groups = defaultdict(list)
        for rank in self.run.ranks:
            groups[rank["rank" if each_alone else "data_share"]].append(rank)
        return list(groups.values())

    @cached_property
    def batches(self) -> list[tuple[int, list[int], list[int]]]:
        """(step, ids of the run's samples, of the baseline's) of steps that all ranks recorded."""
        first = max(rank["first_step"] for rank in self.run.ranks)
        expected = enumerate(self.baseline.ranks[0]["sample_ids"][first:], first)
        return [
            (step, [i for model in self.models for i in _sample_ids(model[0], step)], ids)
            for step, ids in expected
        ]

    @property
    def repeated_samples(self) -> int:
        """How often a sample was drawn twice within a step."""
        return sum(len(ids) - len(set(ids)) for _, ids, _ in self.batches)

    @property
    def other_samples(self) -> int:
        """How many samples differ from the baseline's batches."""
        return sum(len(set(ids) ^ set(expected)) for _, ids, expected in self.batches)

    @property
    def unshared_batches(self) -> int:
        """How many batches differ among the ranks of one model."""
        return sum(
            _sample_ids(rank, step) != _sample_ids(model[0], step)
            for step, _, _ in self.batches
            for model in self.models
            for rank in model
        )

    @cached_property
    def other_contents(self) -> Counter[int] | None:
        """{rank: samples with a baseline's id and other contents}.

        None where a record has no checksums: older ones, and DataLoaders with worker processes.
        """
        expected = _checksums(self.baseline.ranks[0])
        found = {rank["rank"]: _checksums(rank) for rank in self.run.ranks}
        if not expected or not all(found.values()):
            return None
        return Counter(
            rank
            for rank, checksums in found.items()
            for key, crc in checksums.items()
            if expected.get(key, crc) != crc
        )

    @cached_property
    def same_samples(self) -> bool:
        """Whether every rank has trained on its share of the baseline's samples."""
        faults = self.repeated_samples, self.other_samples, self.unshared_batches
        return not any(faults) and not self.other_contents

    # Parameters

    def fingerprints(self, moment: str) -> list[list[float]]:
        """Return the fingerprint of each rank's model, as it knows it. moment: initial or final.

        Fingerprints are linear: those of a pipeline's stages add up to the model's. Of ranks with
        the same stages (tensor parallelism) one counts, and none is trusted: each has its turn.
        """
        found = []
        for model in self.models:
            for rank in model:
                stages = {tuple(other["stages"]): other for other in (*model, rank)}  # last wins
                prints = (part[f"fingerprint_{moment}"] for part in stages.values())
                found.append([sum(values) for values in zip(*prints, strict=True)])
        return found

    @property
    def baseline_moved(self) -> float:
        rank = self.baseline.ranks[0]
        return distance(rank["fingerprint_initial"], rank["fingerprint_final"])

    def parameter_distance(self, moment: str) -> float:
        """Return the largest distance from the baseline's, relative to how far those moved."""
        expected = self.baseline.ranks[0][f"fingerprint_{moment}"]
        found = [distance(mine, expected) for mine in self.fingerprints(moment)]
        known = math.isfinite(sum(found)) and self.baseline_moved > 0
        return max(found) / self.baseline_moved if known else math.inf

    # What a script of its own has noted and saved

    def noted(self, name: str) -> list[list[float]]:
        """Return the values that each rank has noted under a name."""
        return [rank.get("noted", {}).get(name, []) for rank in self.run.ranks]

    @property
    def saved_by(self) -> dict[str, list[int]]:
        """Each file that was saved, and the ranks that wrote it."""
        found = defaultdict(list)
        for rank in self.run.ranks:
            for path in rank.get("saved", {}):
                found[path].append(rank["rank"])
        return found


def _sample_ids(rank: dict, step: int) -> list[int]:
    return rank["sample_ids"][step - rank["first_step"]]


def _checksums(rank: dict) -> dict[tuple[int, int], int]:
    """Map (step, id of a sample) to its checksum, as far as the rank's record has them."""
    both = zip(rank["sample_ids"], rank.get("sample_checksums", ()), strict=False)
    return {
        (step, sample): crc
        for step, (ids, crcs) in enumerate(both, rank["first_step"])
        for sample, crc in zip(ids, crcs, strict=False)
    }
