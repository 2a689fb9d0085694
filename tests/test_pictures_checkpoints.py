"""Notebook 07b: its pictures say what they draw, and its formulas are the published ones."""

import math
import re
from statistics import median

import pytest

pytest.importorskip("matplotlib")

from bootcamp_lessons.diagrams import saved_checkpoints as diagrams


class MadeUp:
    """A run's record, as far as the pictures read it."""

    origin = "some CPU, 2 cores, torch 2; measured here"
    what, device, world, oversubscribed, shared_cores = "", "cpu", 2, False, False

    def __init__(self, losses, first=0, seconds=None, label="fsdp, 2 ranks (CPU)"):
        seconds = seconds or [0.1] * len(losses)
        self.losses, self.label = losses, label
        self.steps = [
            {"step": first + k, "loss": loss, "seconds": took}
            for k, (loss, took) in enumerate(zip(losses, seconds, strict=True))
        ]


def said(figure):
    return " ".join(text.get_text() for axes in figure.axes for text in axes.texts)


def test_a_save_beside_never_leaves_a_torn_file():
    figure = diagrams.two_ways_to_save()
    assert said(figure).count("TORN") == 1
    assert "no moment with a torn file" in figure.alt


def test_pieces_are_drawn_where_the_metadata_has_them():
    halves = [{"file": f"__{k}_0.distcp", "offsets": (4 * k, 0), "sizes": (4, 6)} for k in (0, 1)]
    columns = [{"file": f"__{k}_0.distcp", "offsets": (0, 3 * k), "sizes": (8, 3)} for k in (0, 1)]
    figure = diagrams.pieces("a.weight", (8, 6), {"rows cut": halves, "columns cut": columns})
    assert "rows cut: __0_0.distcp has rows 0 to 3, columns 0 to 5" in figure.alt
    assert "__1_0.distcp has rows 0 to 7, columns 3 to 5" in figure.alt
    assert said(figure).replace("\n", "").count("__1_0.distcp") == 2


def test_runs_one_after_the_other_name_their_distance():
    whole = MadeUp([3.0, 2.0, 1.5, 1.2])
    runs = [MadeUp([3.0, 2.0]), MadeUp([1.5, 1.3], first=2), MadeUp([])]
    figure = diagrams.resumed_losses(whole, runs, ["a", "b", "c"], "A title")
    assert "a: steps 0 to 1, at most 0.0e+00 from the baseline" in figure.alt
    assert "b: steps 2 to 3, at most 1.0e-01" in figure.alt
    assert "c:" not in figure.alt, "a run without a step has nothing to draw"


def test_a_save_is_borne_by_the_step_after_it():
    run = MadeUp([1.0] * 6, seconds=[9.0, 0.1, 0.5, 0.1, 0.7, 0.2])
    bearing, others = diagrams.split_by_save(run, 2)
    assert bearing == [0.5, 0.7]
    assert median(others) == 0.1
    assert median(bearing) == pytest.approx(0.6)
    assert "0.500 and 0.700 s in the steps after a save" in diagrams.step_times({"a": run}, 2).alt


@pytest.mark.parametrize("save", [1, 60])
def test_the_best_interval_is_the_best(save):
    failures = 3600.0
    best = diagrams.best_interval(save, failures)
    assert best == math.sqrt(2 * save * failures)
    lowest = diagrams.lost_share(best, save, failures)
    assert lowest == pytest.approx(math.sqrt(2 * save / failures))
    assert all(diagrams.lost_share(best * f, save, failures) > lowest for f in (0.9, 1.1))
    assert f"every {best / 60:.1f} minutes" in diagrams.lost_time([save], failures).alt


def test_a_restart_is_lost_with_each_failure_and_changes_no_interval():
    plain = diagrams.lost_share(600, 60, 3600)
    assert diagrams.lost_share(600, 60, 3600, 360) == pytest.approx(plain + 0.1)
    without, figure = diagrams.lost_time([60], 3600), diagrams.lost_time([60], 3600, 360)
    assert "A restart takes 6 minutes" in said(figure) + str(figure.get_supxlabel())
    best = re.compile(r"every [\d.]+ minutes")
    assert best.search(figure.alt)[0] == best.search(without.alt)[0]
