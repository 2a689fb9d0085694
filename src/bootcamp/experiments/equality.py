"""Prove that a strategy trains the same model: `check.same_training(run, baseline)`.

A loss curve proves little. AdamW divides a gradient by its own size, so a sum in place of a mean
leaves the curve where it was; and ranks that all train the same batch follow the baseline exactly.
So per-step losses, final parameters and each rank's samples are compared, with both optimizers.
"""

import math
from collections.abc import Callable
from functools import partial

from bootcamp.experiments import diagnosis
from bootcamp.experiments.pair import Pair, in_saved_files, loss_distance
from bootcamp.launcher import launch
from bootcamp.records.runs import TOLERANCE, Run
from bootcamp.table import Table
from bootcamp.units import number

Hint = str | Callable[[Pair], str]
SAME_SETTINGS = ("global_batch", "model", "size", "kv_heads", "steps", "optimizer", "lr", "seed")
SAME_SETTINGS += ("dtype", "corpus_crc32")
# SGD first: its steps are as long as the gradients say, so it says more about what is wrong
PROVEN_WITH = ("sgd", "adamw")


def settings(ranks: int) -> dict[str, int]:
    """Steps and global batch of a proof: few, and samples that divide over the ranks.

    12 samples do for 1, 2, 3 and 4 ranks.
    """
    return {"steps": 4, "global_batch": ranks * math.ceil(12 / ranks)}


class NotTheSame(AssertionError):
    """A run that is not the baseline's training; the text has what differs and a likely cause."""


class Proof:
    """What was compared: measured, allowed, whether it is the same, and what a failure means."""

    def __init__(self, pair: Pair):
        self.pair, self.run, self.baseline, self.rows = pair, pair.run, pair.baseline, []

    def add(self, what: str, measured, allowed, why: Hint, same: bool | None = None) -> None:
        """why: the hint if it is not the same. same: None is whether `measured` is within."""
        same = measured <= allowed if same is None else same
        hint = None if same else why if isinstance(why, str) else why(self.pair)
        row = {"compared": what, "measured": measured, "allowed": allowed}
        self.rows.append({**row, "same": same, "hint": hint})

    @property
    def failed(self) -> list[dict]:
        return [row for row in self.rows if not row["same"]]

    def _table(self) -> Table:
        optimizer = self.run.config.get("optimizer")
        verdict = "NOT the same training" if self.failed else "the same training"
        caption = f"{self.run.label} against {self.baseline.label}, {optimizer}: {verdict}"
        rows = [{**row, "same": "yes" if row["same"] else "NO"} for row in self.rows]
        for row in () if self.failed else rows:
            del row["hint"]
        return Table(rows, caption)

    def __str__(self) -> str:
        return str(self._table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self._table()._repr_html_()


def same_training(run: Run, baseline: Run, tolerance: float = TOLERANCE) -> Proof:
    """Prove that a run trained what the baseline trained; the proof, which displays as a table.

    tolerance: see runs.TOLERANCE. Raises NotTheSame if anything differs, ValueError if the two
    can't be compared.
    """
    return holds(compare(run, baseline, tolerance))


def holds(proof: Proof) -> Proof:
    """The proof itself. Raises NotTheSame with each row that failed."""
    if proof.failed:
        lines = [
            f"- {row['compared']}: {number(row['measured'])}, allowed {row['allowed']}. "
            f"{row['hint']}"
            for row in proof.failed
        ]
        both = f"{proof.run.label} is not the same training as {proof.baseline.label}"
        raise NotTheSame(f"{both}:\n" + "\n".join(lines))
    return proof


def compare(run: Run, baseline: Run, tolerance: float = TOLERANCE) -> Proof:
    """As same_training, but a proof with failed rows instead of an exception."""
    _comparable(run, baseline)
    proof = Proof(Pair(run, baseline, tolerance))
    _compare_steps(proof)
    if proof.failed:
        return proof  # nothing else can be compared with the baseline
    _compare_processes(proof)
    _compare_samples(proof)
    _compare_losses(proof)
    _compare_parameters(proof)
    _compare_notes(proof)
    _compare_files(proof)
    return proof


def _comparable(run: Run, baseline: Run) -> None:
    for which in (run, baseline):
        if which.status != "ok":
            raise ValueError(f"{which.folder.name} ended with status {which.status}, not ok")
        if not which.config:
            raise ValueError(
                f"{which.folder.name} left no record to compare: its script needs the seam of "
                "lesson 13, external.begin() and external.Run"
            )
    both = set(run.config.get("own_flags", ())) & set(baseline.config.get("own_flags", ()))
    for name in [*SAME_SETTINGS, *sorted(both)]:
        if run.config.get(name) != baseline.config.get(name):
            raise ValueError(diagnosis.settings(name, run, baseline))


def _compare_steps(proof: Proof) -> None:
    """Every rank must have recorded each of the baseline's steps.

    Ranks that resumed have recorded those since; the losses before are in the folder they went on
    in, or in another run's.
    """
    first = proof.pair.first_step
    expected = len(proof.baseline.losses) - first
    found = {len(proof.run.losses)}
    found |= {rank["first_step"] - first + len(rank["sample_ids"]) for rank in proof.run.ranks}
    measured = ", ".join(map(str, sorted(found)))
    hint = "Give every step its `with run.step(step):` block, on every rank."
    proof.add("steps recorded", measured, str(expected), hint, found == {expected})


def _compare_processes(proof: Proof) -> None:
    worlds, world = proof.pair.world_sizes, proof.run.world
    joined = len(proof.run.ranks) == world and worlds == [world]
    measured = ", ".join(map(str, worlds))
    proof.add("ranks in the process group", measured, str(world), diagnosis.processes, joined)


def _compare_samples(proof: Proof) -> None:
    """The ranks' samples must be disjoint and together the baseline's batch, in every step.

    Equal ids do not say that the contents are: data may be drawn anew on each rank.
    Ranks that hold one model together must have the same samples: they share them.
    """
    pair, models = proof.pair, len(proof.pair.models)
    if models < len(proof.run.ranks):
        expected = proof.run.config["data_parallel"]
        hint = "Give data.Batches a rank's index along the data axis, and the size of that axis."
        proof.add("shares of the batch", models, expected, hint, models == expected)
        what = "batches that differ among the ranks of one model"
        hint = "Ranks that hold one model together must draw the same share of the batch."
        proof.add(what, pair.unshared, 0, hint)
    twice, other = pair.samples_twice, pair.other_samples
    proof.add("samples that two ranks trained on", twice, 0, diagnosis.twice)
    what = "samples that differ from the baseline's batches"
    proof.add(what, other, 0, diagnosis.other_samples)
    if pair.other_contents is not None:
        what = "samples with the baseline's ids and other contents"
        proof.add(what, sum(pair.other_contents.values()), 0, diagnosis.other_contents)


def _compare_losses(proof: Proof) -> None:
    pair = proof.pair
    apart = [loss_distance(*losses) for losses in pair.losses]
    worst = max(range(len(apart)), key=apart.__getitem__)
    what = f"largest difference of a step's loss (step {pair.first_step + worst})"
    proof.add(what, apart[worst], pair.tolerance, diagnosis.losses)


def _compare_parameters(proof: Proof) -> None:
    pair, expected = proof.pair, proof.baseline.ranks[0]["stages"]
    held = [sorted({stage for rank in model for stage in rank["stages"]}) for model in pair.models]
    if incomplete := [model for model in held if model != expected]:
        found, wanted = ", ".join(incomplete[0]), ", ".join(expected)
        hint = "The ranks of one model must hold each of its stages."
        proof.add("stages that a model has", found, wanted, hint, same=False)
        return
    for moment, why in (("initial", diagnosis.initial), ("final", diagnosis.final)):
        if moment == "initial" and pair.resumed:
            continue  # it begins where the baseline has left no fingerprint
        what = f"{moment} parameters apart, relative to how far the baseline's moved"
        proof.add(what, pair.apart(moment), pair.tolerance, why)


def _compare_notes(proof: Proof) -> None:
    pair = proof.pair
    for name in pair.baseline.ranks[0].get("noted", {}):
        what = f"largest difference of {name}, as noted"
        why = partial(diagnosis.noted, name=name)
        proof.add(what, pair.noted_apart(name), pair.tolerance, why)


def _compare_files(proof: Proof) -> None:
    """What a script of its own has saved: by one rank, complete, under the baseline's names."""
    saved_by = proof.pair.saved_by
    if not saved_by:
        return
    several = sum(len(ranks) > 1 for ranks in saved_by.values())
    proof.add("files that several ranks wrote", several, 0, diagnosis.files)
    for kind, what, hint in (
        ("module_names", "names in saved files that begin with `module.`", diagnosis.MODULE_NAMES),
        ("shards", "saved tensors that are one rank's shard", diagnosis.SAVED_SHARDS),
    ):
        found, expected = (in_saved_files(run, kind) for run in (proof.run, proof.baseline))
        proof.add(what, found, expected, hint, found == expected)


_baselines: dict[tuple, Run] = {}


def baseline(**flags) -> Run:
    """A run of the CPU baseline with these flags; run once for each set of flags in a kernel."""
    key = tuple(sorted(flags.items()))
    if key not in _baselines or not _baselines[key].folder.exists():
        _baselines[key] = launch.launch("cpu", quiet=True, **flags)
    return _baselines[key]


def prove(script, ranks: int | None = None, *, raises: bool = True, **flags) -> list[Proof]:
    """Run a script and the CPU baseline with both optimizers and compare: one proof for each.

    raises: whether a difference raises NotTheSame, or makes a proof with failed rows.
    flags: the script's, and launch's own (`device`, `start`); without `steps` and `global_batch`
    they are those of `settings`.
    """
    judge = same_training if raises else compare
    proofs = []
    for optimizer in PROVEN_WITH:
        own = settings(ranks or launch.default_ranks()) | flags | {"optimizer": optimizer}
        run = launch.launch(script, ranks, quiet=True, **own)
        shared = {name: value for name, value in own.items() if name in SAME_SETTINGS}
        proofs.append(judge(run, baseline(**shared)))
    return proofs
