"""Proof that a strategy trains the same model: `check.same_training(run, baseline)`.

A loss curve that looks right proves little. AdamW divides a gradient by its own size, so gradients
that are summed instead of averaged leave its curve where it was; and ranks that all train the whole
batch follow the baseline exactly. So the proof holds four things together: per-step losses, the
final parameters' fingerprint, the samples that each rank trained on, and both optimizers (`prove`).
Standard library only.
"""

import math

from bootcamp.launcher import launch
from bootcamp.records.runs import Run
from bootcamp.table import Table

SAME_SETTINGS = (
    "model",
    "size",
    "steps",
    "global_batch",
    "optimizer",
    "lr",
    "seed",
    "dtype",
    "corpus_crc32",
)
# SGD first: its steps are as long as the gradients say, so it says more about what is wrong
PROVEN_WITH = {"sgd": {"optimizer": "sgd"}, "adamw": {"optimizer": "adamw"}}


class NotTheSame(AssertionError):
    """A run that is not the baseline's training. The text says what differs and a likely cause."""


class Proof:
    """What was compared, each with what was measured, what is allowed and what a failure means."""

    def __init__(self, run: Run, baseline: Run):
        self.run, self.baseline, self.rows = run, baseline, []

    def add(self, what: str, measured, allowed, passed: bool, hint: str) -> None:
        self.rows.append(
            {
                "compared": what,
                "measured": measured,
                "allowed": allowed,
                "same": passed,
                "hint": hint,
            }
        )

    @property
    def failed(self) -> list[dict]:
        return [row for row in self.rows if not row["same"]]

    def _table(self) -> Table:
        verdict = "the same training" if not self.failed else "NOT the same training"
        caption = (
            f"{self.run.label} against {self.baseline.label}, "
            f"{self.run.config.get('optimizer')}: {verdict}"
        )
        rows = [
            {
                **row,
                "same": "yes" if row["same"] else "NO",
                "hint": None if row["same"] else row["hint"],
            }
            for row in self.rows
        ]
        if not self.failed:
            for row in rows:
                del row["hint"]
        return Table(rows, caption)

    def __str__(self) -> str:
        return str(self._table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self._table()._repr_html_()


def same_training(run: Run, baseline: Run, tolerance: float = 1e-5) -> Proof:
    """Prove that a run trained what the baseline trained; the proof, which displays as a table.

    tolerance: how far the loss of any step may differ, and how far the parameters may end apart as
    a share of the distance that the baseline's moved. 1e-5 is meant for float32 and float64.

    Raises NotTheSame if anything differs, ValueError if the two can't be compared.
    """
    proof = compare(run, baseline, tolerance)
    if proof.failed:
        lines = [
            f"- {row['compared']}: {row['measured']}, allowed {row['allowed']}. {row['hint']}"
            for row in proof.failed
        ]
        raise NotTheSame(
            f"{run.label} is not the same training as {baseline.label}:\n" + "\n".join(lines)
        )
    return proof


def compare(run: Run, baseline: Run, tolerance: float = 1e-5) -> Proof:
    """As same_training, but a proof with failed rows instead of an exception."""
    _comparable(run, baseline)
    proof = Proof(run, baseline)
    _compare_steps(proof)
    if proof.failed:
        return proof  # nothing else can be held against the baseline
    _compare_processes(proof)
    _compare_samples(proof)
    _compare_losses(proof, tolerance)
    _compare_parameters(proof, tolerance)
    _explain_losses(proof, tolerance)
    return proof


def _comparable(run: Run, baseline: Run) -> None:
    for which in (run, baseline):
        if which.status != "ok":
            raise ValueError(f"{which.folder.name} ended with status {which.status}, not ok")
    both = set(run.config.get("own_flags", ())) & set(baseline.config.get("own_flags", ()))
    for name in [*SAME_SETTINGS, *sorted(both)]:
        mine, its = run.config.get(name), baseline.config.get(name)
        if mine != its:
            raise ValueError(
                f"the runs can't be compared: {name} is {mine} here and {its} in the baseline"
            )


def _compare_steps(proof: Proof) -> None:
    """Every rank must have recorded each of the baseline's steps.

    Ranks that resumed have recorded those since; the losses before are in the folder they went on
    in, or in another run's.
    """
    last = len(proof.baseline.losses)
    expected = last - _first_loss(proof.run)
    found = {len(proof.run.losses)}
    for rank in proof.run.ranks:
        resumed_later = rank["first_step"] - _first_loss(proof.run)
        found.add(resumed_later + len(rank["sample_ids"]))
    proof.add(
        "steps recorded",
        ", ".join(map(str, sorted(found))),
        str(expected),
        found == {expected},
        "Call run.step once in each of args.steps steps, on every rank.",
    )


def _compare_processes(proof: Proof) -> None:
    run = proof.run
    worlds = sorted({rank["world_size"] for rank in run.ranks})
    proof.add(
        "ranks in the process group",
        ", ".join(map(str, worlds)),
        str(run.world),
        len(run.ranks) == run.world and worlds == [run.world],
        f"{run.world} processes were started, {len(run.ranks)} left a record. Each must join one "
        "process group and take rank and world size from it.",
    )


def _compare_samples(proof: Proof) -> None:
    """The ranks' samples must be disjoint and together the baseline's batch, in every step.

    Ranks that hold one model together must have the same samples: they share them.
    """
    baseline = proof.baseline.ranks[0]["sample_ids"]
    first = max(rank["first_step"] for rank in proof.run.ranks)
    models = _models(proof.run)
    twice = missing = unshared = 0
    for step, expected in enumerate(baseline[first:], start=first):
        shares = [[rank["sample_ids"][step - rank["first_step"]] for rank in m] for m in models]
        ids = [i for share in shares for i in share[0]]
        twice += len(ids) - len(set(ids))
        missing += len(set(expected) ^ set(ids))
        unshared += sum(other != share[0] for share in shares for other in share)
    if len(models) < len(proof.run.ranks):
        expected = proof.run.config["data_parallel"]
        proof.add(
            "shares of the batch",
            len(models),
            expected,
            len(models) == expected,
            "Give data.Batches a rank's place along the data axis, and the size of that axis.",
        )
        proof.add(
            "batches that differ among the ranks of one model",
            unshared,
            0,
            unshared == 0,
            "Ranks that hold one model together must draw the same share of the batch.",
        )
    proof.add(
        "samples that two ranks trained on",
        twice,
        0,
        twice == 0,
        "Ranks repeat each other's work: give data.Batches the rank and the world size.",
    )
    proof.add(
        "samples that differ from the baseline's batches",
        missing,
        0,
        missing == 0,
        "The global batch depends on (seed, step) alone; the ranks' shares must add up to it.",
    )


def _first_loss(run: Run) -> int:
    """The first step that the run's record has; 0 unless it resumed in a folder of its own."""
    return run.steps[0]["step"] if run.steps else 0


def _compare_losses(proof: Proof, tolerance: float) -> None:
    first = _first_loss(proof.run)
    pairs = list(zip(proof.run.losses, proof.baseline.losses[first:], strict=True))
    worst = max(range(len(pairs)), key=lambda step: _distance(*pairs[step]))
    difference = _distance(*pairs[worst])
    proof.add(
        f"largest difference of a step's loss (step {first + worst})",
        difference,
        tolerance,
        difference <= tolerance,
        _why_losses(proof, pairs, tolerance),
    )


def _why_losses(proof: Proof, pairs: list[tuple[float, float]], tolerance: float) -> str:
    """What it may mean if losses differ, by the first step in which they do."""
    wrong = [step for step, pair in enumerate(pairs) if _distance(*pair) > tolerance]
    if not wrong or _first_loss(proof.run):
        return "Gradients or the optimizer differ, or what was resumed from."
    if wrong[0] == 0 and (factor := _whole_factor(*pairs[0])) > 1:
        return (
            f"The first one is {factor} times the baseline's, before any parameter has changed: "
            "something is added up where the mean over the batch is meant."
        )
    if wrong[0] == 0:
        return (
            "They differ from step 0 on, before any parameter has changed: another start, other "
            "data, or a loss that is not the mean over the whole batch."
        )
    if wrong[0] > 1 and proof.run.config.get("optimizer") == "sgd":
        return (
            f"They agree before step {wrong[0]}, so the first update was right. A later one uses "
            "what the step before has left: are the gradients set to zero in every step?"
        )
    return f"They agree before step {wrong[0]}: from there on gradients or the optimizer differ."


def _whole_factor(mine: float, its: float) -> int:
    """How many times `its` is `mine`, where that is within 0.01 of a whole number; else 0."""
    factor = mine / its if math.isfinite(mine) and its else 0.0
    return round(factor) if abs(factor - round(factor)) < 0.01 else 0


def _models(run: Run) -> list[list[dict]]:
    """The ranks, grouped by the model that they hold together: those with one share of the data.

    Where the script lays out as many shares as ranks, each rank has a whole model.
    """
    groups = {}
    for rank in run.ranks:
        whole = run.config.get("data_parallel", run.world) == run.world
        groups.setdefault(rank["rank"] if whole else rank["data_share"], []).append(rank)
    return list(groups.values())


def _fingerprints(model: list[dict], moment: str) -> list[list[float]]:
    """The fingerprint of a whole model as each of its ranks knows it.

    Ranks with different stages (a pipeline) add up to the model; ranks with the same ones (tensor
    parallelism) must agree, so each takes its turn in the sum. Fingerprints are linear.
    """
    parts = {}
    for rank in model:
        parts.setdefault(tuple(rank["stages"]), []).append(rank[f"fingerprint_{moment}"])
    whole = [sum(values) for values in zip(*(part[0] for part in parts.values()), strict=True)]
    return [
        [total - first + own for total, first, own in zip(whole, part[0], mine, strict=True)]
        for part in parts.values()
        for mine in part
    ]


def _compare_parameters(proof: Proof, tolerance: float) -> None:
    base = proof.baseline.ranks[0]
    moved = distance(base["fingerprint_initial"], base["fingerprint_final"])
    held = [sorted({stage for rank in m for stage in rank["stages"]}) for m in _models(proof.run)]
    incomplete = [model for model in held if model != base["stages"]]
    if incomplete:
        proof.add(
            "stages that a model has",
            ", ".join(incomplete[0]),
            ", ".join(base["stages"]),
            False,
            "The ranks of one model must hold each of its stages.",
        )
        return
    hints = {
        "initial": _why_start(proof),
        "final": _why_apart(proof),
    }
    if any(rank["first_step"] for rank in proof.run.ranks):
        del hints["initial"]  # a run that resumed begins where the baseline has left no fingerprint
    for moment, hint in hints.items():
        expected = base[f"fingerprint_{moment}"]
        found = [mine for model in _models(proof.run) for mine in _fingerprints(model, moment)]
        apart = [distance(mine, expected) for mine in found]
        worst = max(apart) / moved if math.isfinite(sum(apart)) and moved > 0 else math.inf
        proof.add(
            f"{moment} parameters apart, as a share of the way the baseline's moved",
            worst,
            tolerance,
            worst <= tolerance,
            hint,
        )


def _why_apart(proof: Proof) -> str:
    """What it may mean if the final parameters are not the baseline's."""
    models = _models(proof.run)
    final = [mine for model in models for mine in _fingerprints(model, "final")]
    begin = [mine for model in models for mine in _fingerprints(model, "initial")]
    if final == begin:
        return (
            "They are the initial ones still. Either no step was made: optimizer.step(), with its "
            "brackets, comes after backward() and before the gradients are set to zero. Or "
            "the optimizer holds none of the model's parameters: build it last, over the model "
            "that was moved, wrapped or sharded."
        )
    if _apart(final, begin[0]):
        return "A layer is not synchronised: the ranks end with different parameters."
    return _why_as_far(proof, distance(begin[0], final[0]))


def _apart(ends: list[list[float]], begin: list[float]) -> bool:
    """Whether models that went from `begin` to these ends are further apart than by rounding."""
    return max(distance(end, ends[0]) for end in ends) > 1e-3 * distance(begin, ends[0])


def _why_as_far(proof: Proof, went: float) -> str:
    """What the way that the parameters went may mean: with SGD it grows with the gradients."""
    base = proof.baseline.ranks[0]
    share = went / (distance(base["fingerprint_initial"], base["fingerprint_final"]) or math.inf)
    resumed = any(rank["first_step"] for rank in proof.run.ranks)
    if proof.run.config.get("optimizer") == "sgd" and not resumed and share > 1.25:
        return (
            f"They went {share:.1f} times as far as the baseline's: the gradients or the learning "
            "rate are too large. Is a sum used where a mean is meant?"
        )
    if proof.run.config.get("optimizer") == "sgd" and not resumed and share < 0.8:
        return (
            f"They went {share:.2f} times as far as the baseline's: the gradients or the learning "
            "rate are too small. Is a part left out, or a mean used where a sum is meant?"
        )
    if len(proof.run.ranks) == 1:
        return "The gradients are not those of the whole batch, or the optimizer's step differs."
    return "A layer is not synchronised, or gradients are summed instead of averaged."


def _why_start(proof: Proof) -> str:
    """What it may mean if the initial parameters are not the baseline's."""
    begin = [mine for model in _models(proof.run) for mine in _fingerprints(model, "initial")]
    if all(mine == begin[0] for mine in begin):
        return (
            "Every rank begins alike, but not as the baseline: something has changed the "
            "parameters before the first step."
        )
    return "Ranks begin with different parameters: broadcast those of rank 0."


def _explain_losses(proof: Proof, tolerance: float) -> None:
    """If the first loss is wrong and all parameters are right, the record is what is wrong."""
    run, baseline = proof.run.losses, proof.baseline.losses
    failed = proof.failed
    if len(failed) != 1 or "step's loss" not in failed[0]["compared"] or _first_loss(proof.run):
        return
    if _distance(run[0], baseline[0]) > tolerance:
        failed[0]["hint"] = (
            "All parameters agree, so the training is right and the recorded loss is not. It must "
            "be the mean over the whole batch: over all ranks, neither a sum nor one rank's share."
        )


def distance(a: list[float], b: list[float]) -> float:
    """Estimated Euclidean distance of two models' parameters from their fingerprints."""
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) / len(a))


def _distance(a: float, b: float) -> float:
    """|a - b|; infinity if either is not a number, so that a NaN never passes for equal."""
    return abs(a - b) if math.isfinite(a) and math.isfinite(b) else math.inf


_baselines: dict[tuple, Run] = {}


def baseline(**flags) -> Run:
    """A run of the CPU baseline with these flags; run once for each set of flags in a kernel."""
    key = tuple(sorted(flags.items()))
    if key not in _baselines or not _baselines[key].folder.exists():
        _baselines[key] = launch.launch("cpu", quiet=True, **flags)
    return _baselines[key]


def prove(script, ranks: int | None = None, steps: int = 10, **flags) -> list[Proof]:
    """Run a script and the CPU baseline with both optimizers and compare: one proof for each.

    flags: the script's, and launch's own (`device`, `start`). Raises NotTheSame.
    """
    proofs = []
    for setting in PROVEN_WITH.values():
        flags_here = {"steps": steps, **flags, **setting}
        run = launch.launch(script, ranks, quiet=True, **flags_here)
        shared = {name: value for name, value in flags_here.items() if name in SAME_SETTINGS}
        proofs.append(same_training(run, baseline(**shared)))
    return proofs
