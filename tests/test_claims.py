"""Claims: verdicts from pairs, what must hold anywhere, and what is noted and shown."""

import itertools
import json
import math
import re
from collections import Counter

import course
import pytest

from bootcamp import paths, quietness, variant
from bootcamp.experiments import claims
from bootcamp.launcher import launch
from bootcamp.paths import NOTEBOOKS


@pytest.fixture(autouse=True)
def logs(monkeypatch, tmp_path):
    monkeypatch.setattr(claims, "LOGS", tmp_path)
    monkeypatch.setattr(claims, "REFERENCE", tmp_path / "reference")
    monkeypatch.setattr(quietness, "read_last", lambda: None)
    monkeypatch.setenv("BOOTCAMP_CLAIM_SECONDS", "60")
    return tmp_path


def times(*seconds):
    """A function that returns these seconds in turn, again and again."""
    waiting = itertools.cycle(seconds)
    return lambda: next(waiting)


FAST, SLOW = (1.0, 1.01, 0.99), (1.5, 1.48, 1.52)
FIRST_LOOK, LAST_LOOK = claims.LOOKS[0], claims.LOOKS[-1]


@pytest.mark.parametrize(
    ("this", "that", "by", "verdict", "pairs"),
    [
        (FAST, SLOW, 1.0, claims.SUPPORTED, FIRST_LOOK),
        (SLOW, FAST, 1.0, claims.CONTRADICTED, FIRST_LOOK),
        ((1.0, 1.6, 0.7), (1.2, 0.8, 1.1, 1.0), 1.0, claims.UNCLEAR, LAST_LOOK),
        ((1.0, 1.01, 1.0), (1.2, 1.19, 1.21), 1.0, claims.SUPPORTED, FIRST_LOOK),
        ((1.0, 1.01, 1.0), (1.2, 1.19, 1.21), 1.5, claims.CONTRADICTED, FIRST_LOOK),
        ((1.0,), (1.01,), 1.0, claims.UNCLEAR, LAST_LOOK),
        ((*[1.0] * 9, 40.0), SLOW, 1.0, claims.SUPPORTED, 20),
    ],
    ids=["clear", "reverse", "noise", "a little", "less than claimed", "alike", "one disturbed"],
)
def test_verdict_follows_from_the_pairs(this, that, by, verdict, pairs):
    found = claims.faster("x", "This wins.", times(*this), times(*that), by=by)
    assert (found.verdict, found.pairs) == (verdict, pairs)
    assert found.supported == (verdict == claims.SUPPORTED)
    assert found.low <= found.effect <= found.high


def test_lists_of_seconds_are_paired_to_their_end():
    found = claims.faster("x", "This wins.", [1.0, 1.1] * 6, [2.0, 2.2] * 6)
    assert (found.verdict, found.effect, found.pairs) == (claims.SUPPORTED, 2.0, FIRST_LOOK)
    assert claims.faster("x", "This wins.", [1.0] * 4, [2.0] * 4).verdict == claims.UNCLEAR


def test_text_that_is_shown_fits_the_verdict(monkeypatch):
    words = {"supported": "Good.", "otherwise": "Why?"}
    right = claims.faster("x", "`f` wins.", times(*FAST), times(*SLOW), **words)
    known = "this 1.50 times as fast as that (between 1.47 and 1.54, 10 pairs)."
    assert str(right).startswith(f"Claim: `f` wins.\n✓ Supported here: {known}")
    wrong = claims.faster("x", "`f` wins.", times(*SLOW), times(*FAST), **words)
    assert "Contradicted here: that 1.50 times as fast as this" in str(wrong)
    for found, shown, hidden in ((right, "Good.", "Why?"), (wrong, "Why?", "Good.")):
        assert str(found).endswith(shown)
        assert hidden not in found._repr_html_()
        assert "<code>f</code> wins." in found._repr_html_()
    monkeypatch.setattr(quietness, "read_last", lambda: quietness.Quietness(0.5, 0, None, 0))
    assert "busy machine" in str(claims.faster("x", "It wins.", times(*SLOW), times(*FAST)))


def test_budget_that_is_spent_leaves_one_pair_and_no_verdict(monkeypatch):
    monkeypatch.setenv("BOOTCAMP_CLAIM_SECONDS", "0")
    found = claims.faster("x", "This wins.", times(1.0), times(9.0))
    assert (found.verdict, found.pairs) == (claims.UNCLEAR, 1)
    assert "1 of the 10 pairs that a verdict needs" in str(found)


def test_order_alternates_so_that_a_machine_that_grows_slower_favours_neither():
    """Every call takes a tenth more than the one before: the two are equally fast."""
    calls = []

    def drift(name):
        calls.append(name)
        return 1.1 ** len(calls)

    found = claims.faster("x", "This wins.", lambda: drift("this"), lambda: drift("that"))
    assert calls[:6] == ["this", "that", "that", "this", "this", "that"]
    assert found.verdict == claims.UNCLEAR
    assert found.low < 1 < found.high


def test_interval_leaves_out_so_few_pairs_that_it_misses_once_in_500():
    assert claims.interval([*range(1, 11)]) == (5.5, 1, 10)
    assert claims.interval([*range(1, 10)]) == (5, 0.0, math.inf), "nine may all be on one side"
    for pairs in claims.LOOKS:
        outside = claims.count_outside(pairs)
        heads = [math.comb(pairs, k) / 2**pairs for k in range(pairs + 1)]
        assert 2 * sum(heads[: outside + 1]) <= claims.ERROR < 2 * sum(heads[: outside + 2])


@pytest.mark.parametrize("last", [*range(1, 25), 37, 55, claims.LOOKS[-1]])
def test_identical_sides_get_a_verdict_in_at_most_one_of_100_claims(last):
    """Counted: the probability that a walk of fair steps is outside at a look or at its end."""
    walks, decided = {0: 1.0}, 0.0  # wins so far -> probability
    for pairs in range(1, last + 1):
        stepped = Counter()
        for wins, share in walks.items():
            stepped[wins] += share / 2
            stepped[wins + 1] += share / 2
        outside = claims.count_outside(pairs)
        looks = outside is not None and (pairs in claims.LOOKS or pairs == last)
        out = {w for w in stepped if looks and min(w, pairs - w) <= outside}
        decided += sum(stepped[wins] for wins in out)
        walks = {wins: share for wins, share in stepped.items() if wins not in out}
    assert decided <= 0.01


# Two warm runs in turns


SMALL = {"device": "cpu", "model": "mlp", "global_batch": 8}


def test_runs_in_turns_are_told_apart_and_leave_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("BOOTCAMP_CLAIM_SECONDS", "100")
    monkeypatch.setattr(paths, "LOGS", tmp_path / "runs")
    read = "inputs, targets = (tensor.to(device) for tensor in batches(step))"
    sleeps = f"__import__('time').sleep(0.03)\n{read}"
    late = variant("ddp", "ddp_sleeps", {read: sleeps})
    one, two = claims.trial("cpu", **SMALL), claims.trial(late, 2, **SMALL)
    found = claims.faster("x", "One process beats ranks that sleep.", one, two, by=1.5)
    assert found.verdict == claims.SUPPORTED, str(found)
    assert re.search(r"^cpu .* as fast as ddp_sleeps", found.measured)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["variants"]


def test_run_in_turns_that_fails_fails_the_claim(monkeypatch):
    broken = variant("cpu", "cpu_fails", {"optimizer.step()": "raise ValueError('a planted end')"})
    with pytest.raises(launch.RankFailed, match="a planted end"):
        claims.faster("x", "It wins.", claims.trial(broken, **SMALL), claims.trial("cpu", **SMALL))


def test_counts_are_held_against_what_is_expected():
    found = claims.equal("x", "The formula holds.", 101e6, 100e6, within=0.02)
    assert found.supported
    assert "101 MB, expected 100 MB" in str(found)
    assert claims.larger("y", "More.", 6, 2, kind="count").measured == "6 and 2, 3 times as much"
    seen = claims.equal("x", "Seen.", 4, 4, kind="count", unit="workers")
    assert seen.measured == "4 workers, as expected"
    bound = claims.at_most("z", "Small.", 1e-4, 5e-3, kind="count")
    assert bound.measured == "1.00e-04, at most 0.005"
    with pytest.raises(claims.Contradicted, match="Small. Contradicted here: 0.010, at most 0.005"):
        claims.at_most("z", "Small.", 1e-2, 5e-3, kind="count")
    planned = claims.larger("p", "More.", 6, 2, kind="planner")
    assert "Supported by the planner: 6 and 2" in str(planned)
    with pytest.raises(claims.Contradicted, match="The formula holds. Contradicted here: 150 MB"):
        claims.equal("x", "The formula holds.", 150e6, 100e6, within=0.02)
    with pytest.raises(claims.Contradicted, match="2 and 6"):
        claims.larger("y", "More.", 2, 6, kind="count")
    assert claims.read_notes()["y"]["verdict"] == claims.CONTRADICTED
    for not_counted in (claims.equal("x", "Sent.", None, 1), claims.larger("y", "More.", None, 1)):
        assert not_counted.verdict == claims.NOT_COUNTED, "this system does not count it"


def test_claims_are_noted_with_their_last_verdict_and_counted():
    claims.faster("speed", "This wins.", times(1.0), times(2.0))
    claims.equal("bytes", "Sent.", 1, 1)
    claims.faster("speed", "This wins.", times(2.0), times(1.0))
    noted = claims.read_notes()
    assert [claim["verdict"] for claim in noted.values()] == ["contradicted", "supported"]
    assert course.list_claims(noted).column("claim") == ["speed", "bytes"]
    assert course.count_verdicts(noted).column("contradicted") == [1, 0]
    assert claims.read_notes(since=math.inf) == {}


def test_claim_without_support_here_stands_beside_the_reference(logs):
    kept = {"machine": {"cpu": "a quiet CPU", "cores": 2}}
    kept["claims"] = {"speed": {"verdict": "supported", "measured": "1.4 times as fast"}}
    (logs / "reference").mkdir()
    (logs / "reference" / claims.FILE).write_text(json.dumps(kept))
    said = "Recorded on the reference machine (a quiet CPU, 2 cores): supported, 1.4 times as fast."
    assert said in str(claims.faster("speed", "This wins.", times(2.0), times(1.0)))
    assert said not in str(claims.faster("speed", "This wins.", times(1.0), times(2.0)))


def test_claims_of_the_course_have_names_of_their_own():
    names = Counter()
    for path in NOTEBOOKS.glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        code = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
        named = re.findall(r'\bclaim\.(?:faster|equal|larger)\(\s*"(\w+)",', code)
        calls = re.findall(r"\bclaim\.(?:faster|equal|larger)\(", code)
        assert len(named) == len(calls), f"{path.stem}: a claim without a name"
        names.update(named)
    assert [name for name, count in names.items() if count > 1] == []
