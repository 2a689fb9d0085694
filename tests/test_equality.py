"""Every strategy trains what the baseline trains; the proof rejects those that do not."""

import copy

import pytest
import torch
from strategy_table import BOTH, CASES, MISTAKES, Case
from trained import PROOF, baseline

from bootcamp import machine
from bootcamp.experiments import equality
from bootcamp.experiments.run_and_baseline import Pair
from bootcamp.scripts import strategies
from snippets import muon

PROMISED = 1e-5  # what the course's pages promise, whatever the package allows
NO_COMPILER = machine.find_missing_for_inductor(torch.__path__[0]) is not None
PROVED = sorted({case.name for case in CASES} & {*strategies.SCRIPTS})
EACH = [
    pytest.param(case, optimizer, id=f"{case} {optimizer}")
    for case in CASES
    for optimizer in case.optimizers
]


def skip_what_is_missing(case: Case) -> None:
    """Skip, by name, a framework or a compiler that this machine lacks."""
    if case.missing:
        pytest.skip(case.missing)
    if case.flags.get("backend") == "inductor" and NO_COMPILER:
        pytest.skip("no C++ for inductor here")


@pytest.mark.proves(*PROVED)
@pytest.mark.rejects("a fault just above the tolerance")
@pytest.mark.parametrize(("case", "optimizer"), EACH)
def test_strategy_trains_what_the_baseline_trains(case, optimizer):
    skip_what_is_missing(case)
    proof = case.compare(optimizer).check()
    steps = (PROOF | case.flags)["steps"]
    assert len(proof.run.losses) == len(proof.baseline.losses) == steps
    assert [rank["world_size"] for rank in proof.run.ranks] == [case.ranks] * case.ranks
    assert reject_just_above(proof, case.tolerance) == 2


def reject_just_above(proof: equality.Proof, tolerance: float | None) -> int:
    """Move a loss, then a rank's final parameters, to both sides of the tolerance.

    Returns how many faults were told apart; the run's record is left as it is.
    """
    allowed = PROMISED if tolerance is None else tolerance
    faults = (move_loss, move_parameters)
    told = 0
    for move in faults:
        near, far = (copy_run(proof.run), copy_run(proof.run))
        move(near, proof.baseline, 0.9 * allowed)
        move(far, proof.baseline, 1.1 * allowed or 1e-12)
        how = () if tolerance is None else (tolerance,)
        assert not equality.compare(near, proof.baseline, *how).failed
        told += len(equality.compare(far, proof.baseline, *how).failed) == 1
    return told


def copy_run(run):
    """Copy a run with what the proof reads of it, to be changed."""
    copied = type(run)(run.folder)
    copied.steps, copied.ranks = copy.deepcopy(run.steps), copy.deepcopy(run.ranks)
    return copied


def move_loss(run, alone, by: float) -> None:
    """Put the last step's loss that far from the baseline's."""
    run.steps[-1]["loss"] = alone.losses[-1] + by


def move_parameters(run, alone, by: float) -> None:
    """Put the last rank's model that far from the baseline's end, as a share of its way."""
    pair = Pair(run, alone)
    expected, mine = alone.ranks[0]["fingerprint_final"], pair.fingerprints("final")[-1]
    rank = pair.models[-1][-1]
    aside = by * pair.baseline_moved
    rank["fingerprint_final"] = [
        own + (right - found) + aside
        for own, right, found in zip(rank["fingerprint_final"], expected, mine, strict=True)
    ]


@pytest.mark.rejects(*map(str, MISTAKES))
@pytest.mark.parametrize(
    ("mistake", "optimizer"),
    [
        pytest.param(mistake, optimizer, id=f"{mistake}, {optimizer}")
        for mistake in MISTAKES
        for optimizer in mistake.setting.optimizers
    ],
)
def test_proof_rejects_what_people_get_wrong(mistake, optimizer):
    skip_what_is_missing(mistake.case)
    proof = mistake.case.compare(optimizer)
    failed = [row["compared"] for row in proof.failed]
    missing = [row for row in mistake.rows if not any(row in each for each in failed)]
    assert not missing, f"failed were only {failed}"
    assert not mistake.alone or len(failed) == len(mistake.rows), failed
    with pytest.raises(equality.NotTheSame, match="is not the same training as"):
        proof.check()


def test_table_proves_every_script_with_both_optimizers():
    proved = {(c.name, each) for c in CASES for each in c.optimizers}
    linear_in_gradients = {("local_sgd", "adamw")}  # of which MISTAKES says that it differs
    scripts = set(strategies.SCRIPTS) - {"cpu"}
    assert {(name, each) for name in scripts for each in BOTH} - proved == linear_in_gradients


@pytest.mark.proves("cpu")
@pytest.mark.parametrize(
    ("optimizer", "losses"),
    [
        ("sgd", [5.70896, 5.08592, 4.64494, 4.47627]),
        ("adamw", [5.70896, 5.09250, 4.74213, 4.63911]),
    ],
)
def test_baseline_has_the_same_losses_on_every_machine(optimizer, losses):
    """Whatever its Python and processor: the text is frozen, and rounding differs by far less."""
    assert baseline(optimizer=optimizer, **PROOF).losses == pytest.approx(losses, abs=1e-4)


@pytest.mark.rejects("another seed")
def test_proof_refuses_to_compare_what_differs():
    sgd, adamw = (baseline(**PROOF, optimizer=optimizer) for optimizer in BOTH)
    with pytest.raises(ValueError, match="optimizer is sgd here and adamw"):
        equality.same_training(sgd, adamw)
    run = baseline(seed=1, **PROOF, optimizer="sgd")
    run.config["seed"] = 0
    assert len(equality.compare(run, sgd).failed) == 4  # samples, losses, both fingerprints


def test_muon_refuses_to_exchange_rows_that_do_not_divide(monkeypatch):
    monkeypatch.setattr(muon.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(muon.dist, "get_world_size", lambda: 3)
    with pytest.raises(ValueError, match="rows do not divide by 3 ranks"):
        next(muon.exchanged([torch.zeros(63, 64), torch.zeros(64, 63)]))
