"""Facts about a run beside its baseline, out of the records of both."""

import math
from functools import cached_property

from bootcamp.records.runs import TOLERANCE, Run

ROUNDING = 1e-3  # the largest share of their way that rounding alone keeps parameters apart
# gloo, for a number passed on once: it and its header, and a header of who is ready for it
NUMBER_BYTES = 8 + 2 * 48  # (`Op` in gloo's transport/tcp/pair.h)


def distance(a: list[float], b: list[float]) -> float:
    """Estimate the Euclidean distance of two models' parameters from their fingerprints."""
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) / len(a))


def loss_distance(a: float, b: float) -> float:
    """|a - b|; infinity if either is not a number, so that a NaN never passes for equal."""
    return abs(a - b) if math.isfinite(a) and math.isfinite(b) else math.inf


class Pair:
    """A run and its baseline. tolerance: see runs.TOLERANCE."""

    def __init__(self, run: Run, baseline: Run, tolerance: float = TOLERANCE):
        self.run, self.baseline, self.tolerance = run, baseline, tolerance
        # not 0 for a run that resumed in a folder of its own
        self.first_step = run.steps[0]["step"] if run.steps else 0
        self.resumed = any(rank["first_step"] for rank in run.ranks)
        self.foreign = run.config.get("model") == "own"  # and its own data: train.external
        self.uses_sgd = run.config.get("optimizer") == "sgd"  # steps as long as the gradients say

    # Losses

    @cached_property
    def losses(self) -> list[tuple[float, float]]:
        """(the run's, the baseline's) of each step that the run has recorded."""
        return list(zip(self.run.losses, self.baseline.losses[self.first_step :], strict=True))

    @property
    def wrong_steps(self) -> list[int]:
        """The steps whose losses differ."""
        steps = enumerate(self.losses, self.first_step)
        return [step for step, losses in steps if loss_distance(*losses) > self.tolerance]

    @property
    def learning_rates(self) -> list[tuple[float, float]]:
        """(the run's, the baseline's) of each step that both have noted."""
        mine, its = (
            both.ranks[0].get("learning_rates") or [] for both in (self.run, self.baseline)
        )
        return list(zip(mine, its[self.first_step :], strict=False))

    @property
    def first_other_rate(self) -> int | None:
        """The first step with another learning rate than the baseline's."""
        rates = enumerate(self.learning_rates, self.first_step)
        return next((step for step, both in rates if not math.isclose(*both)), None)

    # Samples

    @cached_property
    def models(self) -> list[list[dict]]:
        """The ranks, grouped by the model that they hold together: those with one data share.

        Where the script lays out as many shares as ranks, each rank has a complete model.
        """
        each_alone = self.run.config.get("data_parallel", self.run.world) == self.run.world
        groups = {}
        for rank in self.run.ranks:
            groups.setdefault(rank["rank" if each_alone else "data_share"], []).append(rank)
        return list(groups.values())

    @cached_property
    def _batches(self) -> list[tuple[int, list[list[list[int]]], list[int], list[int]]]:
        """Steps that all ranks have recorded, with ids of samples.

        Each is (step, the ids of each model's ranks, those of all models, the baseline's).
        """
        first = max(rank["first_step"] for rank in self.run.ranks)
        batches = []
        for step, expected in enumerate(self.baseline.ranks[0]["sample_ids"][first:], first):
            shares = [
                [rank["sample_ids"][step - rank["first_step"]] for rank in model]
                for model in self.models
            ]
            batches.append((step, shares, [i for share in shares for i in share[0]], expected))
        return batches

    @cached_property
    def samples_twice(self) -> int:
        """How often a sample was drawn twice within a step."""
        return sum(len(ids) - len(set(ids)) for _, _, ids, _ in self._batches)

    @cached_property
    def other_samples(self) -> int:
        """How many samples differ from the baseline's batches."""
        return sum(len(set(ids) ^ set(its)) for _, _, ids, its in self._batches)

    @cached_property
    def unshared(self) -> int:
        """How many batches differ among the ranks of one model."""
        models = (ranks for _, shares, _, _ in self._batches for ranks in shares)
        return sum(ids != ranks[0] for ranks in models for ids in ranks)

    @cached_property
    def other_contents(self) -> dict[int, int] | None:
        """{rank: samples with a baseline's id and other contents}; ranks without any are left out.

        None where a record has no checksums: older ones, and DataLoaders with worker processes.
        """
        expected = _checksums(self.baseline.ranks[0])
        found = {rank["rank"]: _checksums(rank) for rank in self.run.ranks}
        if not expected or not all(found.values()):
            return None
        counts = {
            rank: sum(expected.get(key, crc) != crc for key, crc in drawn.items())
            for rank, drawn in found.items()
        }
        return {rank: count for rank, count in counts.items() if count}

    @property
    def same_samples(self) -> bool:
        return not any((self.samples_twice, self.other_samples, self.unshared, self.other_contents))

    @property
    def repeats_its_batches_from(self) -> int | None:
        """The first step with other samples than the baseline's, if it repeats an earlier batch."""
        drawn = []
        for step, _, ids, its in self._batches:
            if set(ids) != set(its):
                return step if set(ids) in drawn else None
            drawn.append(set(ids))
        return None

    # Parameters

    def fingerprints(self, moment: str) -> list[list[float]]:
        """The fingerprints of all models as each rank knows them; moment: initial or final."""
        return [mine for model in self.models for mine in _fingerprints_of_model(model, moment)]

    @property
    def moved(self) -> float:
        """How far the baseline's parameters moved."""
        base = self.baseline.ranks[0]
        return distance(base["fingerprint_initial"], base["fingerprint_final"])

    def apart(self, moment: str) -> float:
        """The largest distance from the baseline's parameters, relative to how far those moved."""
        expected = self.baseline.ranks[0][f"fingerprint_{moment}"]
        found = [distance(mine, expected) for mine in self.fingerprints(moment)]
        known = math.isfinite(sum(found)) and self.moved > 0
        return max(found) / self.moved if known else math.inf

    @property
    def ranks_end_apart(self) -> bool:
        """Whether ranks end with parameters that differ by more than rounding."""
        begin, final = self.fingerprints("initial")[0], self.fingerprints("final")
        return max(distance(end, final[0]) for end in final) > ROUNDING * distance(begin, final[0])

    @property
    def may_be_rounding(self) -> bool:
        """Whether losses agree and parameters differ by no more than Adam can make of rounding."""
        other = self.uses_sgd or self.resumed or self.wrong_steps or not self.same_samples
        return not other and self.apart("final") <= ROUNDING

    # Ranks

    @property
    def world_sizes(self) -> list[int]:
        """The sizes that process groups report themselves, and those that scripts go by."""
        sizes = ("world_size", "script_world_size")
        return sorted({rank[size] for rank in self.run.ranks for size in sizes if size in rank})

    @property
    def silent(self) -> bool:
        """Whether the ranks send too little to exchange gradients; False where it isn't known.

        For the loss and what is noted a rank sends NUMBER_BYTES to and from each of the others.
        """
        run, rank = self.run, self.run.ranks[0]
        sent = [rank.get("sent_bytes_per_step") for rank in run.ranks]
        if run.world == 1 or run.device == "cuda" or None in sent:
            return False
        numbers = 1 + sum(map(len, rank.get("noted", {}).values())) / max(1, len(run.steps))
        alone = numbers * 2 * (run.world - 1) * NUMBER_BYTES
        return max(sent) < alone + 0.01 * rank["gradient_bytes"]

    @property
    def batch_norms(self) -> int:
        """BatchNorm layers that normalise over one rank's samples alone."""
        found = max((rank.get("batch_norm_layers", 0) for rank in self.run.ranks), default=0)
        return found if self.run.world > 1 else 0

    # What a script of its own has noted and saved

    def noted(self, name: str) -> list[list[float]]:
        """The values of this name, of each rank."""
        return [rank.get("noted", {}).get(name, []) for rank in self.run.ranks]

    def noted_apart(self, name: str) -> float:
        """The largest distance of a noted value from the baseline's; infinity for too few."""
        expected = self.baseline.ranks[0]["noted"][name]
        if any(len(mine) != len(expected) for mine in self.noted(name)):
            return math.inf
        both = (pair for mine in self.noted(name) for pair in zip(mine, expected, strict=True))
        return max((loss_distance(*pair) for pair in both), default=0.0)

    @property
    def saved_by(self) -> dict[str, list[int]]:
        """Each file that was saved, and the ranks that wrote it."""
        found = {}
        for rank in self.run.ranks:
            for path in rank.get("saved", {}):
                found.setdefault(path, []).append(rank["rank"])
        return found


def in_saved_files(run: Run, what: str) -> int:
    """How many `module_names` or `shards` a saved file has."""
    files = (file for rank in run.ranks for file in rank.get("saved", {}).values())
    return max((file[what] for file in files), default=0)


def _checksums(rank: dict) -> dict[tuple[int, int], int]:
    """{(step, id of a sample): its checksum} as far as the rank's record has them."""
    both = zip(rank["sample_ids"], rank.get("sample_checksums", ()), strict=False)
    return {
        (step, sample): crc
        for step, (ids, crcs) in enumerate(both, rank["first_step"])
        for sample, crc in zip(ids, crcs, strict=False)
    }


def _fingerprints_of_model(model: list[dict], moment: str) -> list[list[float]]:
    """Add up the fingerprint of a complete model, as each of its ranks knows it.

    Ranks with different stages (a pipeline) add up to the model; ranks with the same ones (tensor
    parallelism) must agree, so each takes its turn in the sum. Fingerprints are linear.
    """
    parts = {}
    for rank in model:
        parts.setdefault(tuple(rank["stages"]), []).append(rank[f"fingerprint_{moment}"])
    complete = [sum(values) for values in zip(*(part[0] for part in parts.values()), strict=True)]
    return [
        [total - first + own for total, first, own in zip(complete, part[0], mine, strict=True)]
        for part in parts.values()
        for mine in part
    ]
