"""Prove that a strategy trains the same model: `check.same_training(run, baseline)`.

A loss curve proves little. AdamW divides a gradient by its own size, so a sum in place of a mean
leaves the curve where it was; and ranks that all train the same batch follow the baseline exactly.
So per-step losses, final parameters and each rank's samples are compared, with both optimizers.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import zip_longest
from typing import Any

from bootcamp.experiments import diagnosis
from bootcamp.experiments.run_and_baseline import Pair, loss_distance
from bootcamp.launcher import launch
from bootcamp.records.runs import TOLERANCE, Run
from bootcamp.table import Table
from bootcamp.units import number

SAME_SETTINGS = ("global_batch", "model", "size", "kv_heads", "steps", "optimizer", "lr", "seed")
SAME_SETTINGS += ("dtype", "corpus_crc32")
# SGD first: its steps are as long as the gradients say, so it says more about what is wrong
PROVEN_WITH = ("sgd", "adamw")


def settings(ranks: int) -> dict[str, int]:
    """Return steps and global batch of a proof: few, and samples that divide over the ranks."""
    return {"steps": 4, "global_batch": ranks * math.ceil(12 / ranks)}


class NotTheSame(AssertionError):
    """A run that is not the baseline's training; the text has what differs and a likely cause."""


class Proof(Table):
    """A comparison of a run with its baseline; rows that differ are in `failed` and have hints."""

    def __init__(self, pair: Pair, rows: list[dict]):
        self.pair, self.run, self.baseline = pair, pair.run, pair.baseline
        self.failed = [row for row in rows if row["same"] == "NO"]
        self.folded = not self.failed
        verdict = "NOT the same training" if self.failed else "the same training"
        how = f"{self.run.config.get('optimizer')}: {verdict}, {len(rows) - len(self.failed)} of "
        how += f"{len(rows)} comparisons agree"
        super().__init__(rows, f"{self.run.label} against {self.baseline.label}, {how}")
        if not self.failed:
            self.columns.remove("hint")

    def check(self) -> "Proof":
        """Return the proof itself. Raises NotTheSame with each row that failed."""
        if not self.failed:
            return self
        text = f"{self.run.label} is not the same training as {self.baseline.label}:"
        for what, found, allowed, _, hint in map(dict.values, self.failed):
            text += f"\n- {what}: {number(found)}, allowed {allowed}. {hint}"
        raise NotTheSame(text)


def same_training(run: Run, baseline: Run, tolerance: float = TOLERANCE) -> Proof:
    """Prove that a run trained what the baseline trained; the proof displays as a table.

    tolerance: see runs.TOLERANCE. Raises NotTheSame, or ValueError if the two can't be compared.
    """
    return compare(run, baseline, tolerance).check()


def compare(run: Run, baseline: Run, tolerance: float = TOLERANCE) -> Proof:
    """Do as same_training, but return a proof with failed rows instead of an exception."""
    _check_comparable(run, baseline)
    pair = Pair(run, baseline, float(tolerance))
    rows = [_make_row(pair, *_compare_steps(pair))]
    if rows[0]["same"] == "yes":  # else nothing more can be compared
        found = [_compare_processes(pair), *_compare_samples(pair), _compare_losses(pair)]
        found += [*_compare_parameters(pair), *_compare_notes(pair), *_compare_files(pair)]
        rows += [_make_row(pair, *each) for each in found]
    return Proof(pair, rows)


def _check_comparable(run: Run, baseline: Run) -> None:
    for which in (run, baseline):
        if which.status != "ok":
            raise ValueError(f"{which.folder.name} ended with status {which.status}, not ok")
        if not which.config:
            needs = "its script needs the seam of lesson 13, own_script.begin() and own_script.Run"
            raise ValueError(f"{which.folder.name} left no record to compare: {needs}")
    both = set(run.config.get("own_flags", ())) & set(baseline.config.get("own_flags", ()))
    for name in [*SAME_SETTINGS, *sorted(both)]:
        if run.config.get(name) != baseline.config.get(name):
            raise ValueError(diagnosis.explain_settings(name, run, baseline))


# what is compared, measured and allowed: at most that if it is a float, else equal; why they differ
Comparison = tuple[str, Any, Any, str | Callable[[Pair], str]]


def _make_row(pair: Pair, what: str, measured, allowed, hint: str | Callable) -> dict:
    same = measured <= allowed if isinstance(allowed, float) else measured == allowed
    row = {"compared": what, "measured": measured, "allowed": allowed, "same": "yes", "hint": None}
    if not same:
        row |= {"same": "NO", "hint": hint if isinstance(hint, str) else hint(pair)}
    return row


def _list(values: Iterable) -> str:
    return ", ".join(map(str, sorted(values)))


def _compare_steps(pair: Pair) -> Comparison:
    """Every rank must have recorded each of the baseline's steps, or those since it resumed."""
    first = pair.first_step
    expected = len(pair.baseline.losses) - first
    found = {rank["first_step"] - first + len(rank["sample_ids"]) for rank in pair.run.ranks}
    hint = "Give every step its `with run.step(step):` block, on every rank."
    found.add(len(pair.run.losses))
    return "steps recorded", _list(found), str(expected), hint


def _compare_processes(pair: Pair) -> Comparison:
    """The process group, and the size that the script goes by, must be what was started."""
    ranks, sizes = pair.run.ranks, ("world_size", "script_world_size")
    found = {rank[size] for rank in ranks for size in sizes if size in rank} | {len(ranks)}
    hint = diagnosis.explain_processes
    return "ranks in the process group", _list(found), str(pair.run.world), hint


def _compare_samples(pair: Pair) -> Iterator[Comparison]:
    """The ranks' samples must be disjoint and together the baseline's batch, in every step.

    Equal ids do not say that the contents are: data may be drawn anew on each rank.
    Ranks that hold one model together must have the same samples: they share them.
    """
    models = len(pair.models)
    if models < len(pair.run.ranks):
        hint = "Give data.Batches a rank's index along the data axis, and the size of that axis."
        yield "shares of the batch", models, pair.run.config["data_parallel"], hint
        what = "batches that differ among the ranks of one model"
        hint = "Ranks that hold one model together must draw the same share of the batch."
        yield what, pair.unshared_batches, 0, hint
    hint = diagnosis.explain_repeated_samples
    yield "samples that two ranks trained on", pair.repeated_samples, 0, hint
    hint = diagnosis.explain_other_samples
    yield "samples that differ from the baseline's batches", pair.other_samples, 0, hint
    if pair.other_contents is not None:
        what = "samples with the baseline's ids and other contents"
        yield what, pair.other_contents.total(), 0, diagnosis.explain_other_contents


def _compare_losses(pair: Pair) -> Comparison:
    distances = [loss_distance(*losses) for losses in pair.losses]
    worst = max(distances)
    what = f"largest difference of a step's loss (step {pair.first_step + distances.index(worst)})"
    return what, worst, pair.tolerance, diagnosis.explain_losses


def _compare_parameters(pair: Pair) -> Iterator[Comparison]:
    expected = _list(pair.baseline.ranks[0]["stages"])
    held = [_list({stage for rank in model for stage in rank["stages"]}) for model in pair.models]
    if incomplete := [stages for stages in held if stages != expected]:
        hint = "The ranks of one model must hold each of its stages."
        yield "stages that a model has", incomplete[0], expected, hint
        return
    hints = {"final": diagnosis.explain_final_parameters}
    if not pair.resumed:  # else it begins where the baseline has left no fingerprint
        hints = {"initial": diagnosis.explain_initial_parameters, **hints}
    for moment, hint in hints.items():
        what = f"{moment} parameters apart, relative to how far the baseline's moved"
        yield what, pair.parameter_distance(moment), pair.tolerance, hint


def _compare_notes(pair: Pair) -> Iterator[Comparison]:
    """Each rank must have noted what the baseline noted, as often."""
    for name, expected in pair.baseline.ranks[0].get("noted", {}).items():
        ranks = (zip_longest(mine, expected, fillvalue=math.nan) for mine in pair.noted(name))
        worst = max((loss_distance(*both) for pairs in ranks for both in pairs), default=0.0)
        hint = partial(diagnosis.explain_noted, name=name)
        yield f"largest difference of {name}, as noted", worst, pair.tolerance, hint


def _compare_files(pair: Pair) -> Iterator[Comparison]:
    """What a script saves must be written by one rank, complete, under the baseline's names."""
    if not pair.saved_by:
        return
    several = sum(len(ranks) > 1 for ranks in pair.saved_by.values())
    yield "files that several ranks wrote", several, 0, diagnosis.explain_files
    for kind, what, hint in (
        ("module_names", "names in saved files that begin with `module.`", diagnosis.MODULE_NAMES),
        ("shards", "saved tensors that are one rank's shard", diagnosis.SAVED_SHARDS),
    ):
        found, expected = (_most_in_saved_files(run, kind) for run in (pair.run, pair.baseline))
        yield what, found, expected, hint


def _most_in_saved_files(run: Run, kind: str) -> int:
    files = (file for rank in run.ranks for file in rank.get("saved", {}).values())
    return max((file[kind] for file in files), default=0)


_baselines: dict[tuple, Run] = {}


def baseline(**flags) -> Run:
    """Run the CPU baseline with these flags, once for each set of flags in a kernel."""
    key = tuple(sorted(flags.items()))
    if key not in _baselines or not _baselines[key].folder.exists():
        _baselines[key] = launch.launch("cpu", quiet=True, **flags)
    return _baselines[key]


def prove(script, ranks: int | None = None, *, raises: bool = True, **flags) -> list[Proof]:
    """Run a script and the CPU baseline with both optimizers and compare: one proof for each.

    raises: whether a difference raises NotTheSame, or makes a proof with failed rows. flags: the
    script's and launch's; `steps` and `global_batch` are by default those of `settings`.
    """
    judge = same_training if raises else compare
    proofs = []
    for optimizer in PROVEN_WITH:
        own = settings(ranks or launch.default_ranks()) | flags | {"optimizer": optimizer}
        run = launch.launch(script, ranks, quiet=True, **own)
        shared = {name: value for name, value in own.items() if name in SAME_SETTINGS}
        proofs.append(judge(run, baseline(**shared)))
    return proofs
