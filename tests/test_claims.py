"""Claims: verdicts from pairs, what must hold anywhere, and what is noted and shown."""

import itertools
import json
import math
import re
from collections import Counter

import course
import pytest

from bootcamp.experiments import claims
from bootcamp.paths import NOTEBOOKS


@pytest.fixture(autouse=True)
def logs(monkeypatch, tmp_path):
    monkeypatch.setattr(claims, "LOGS", tmp_path)
    monkeypatch.setattr(claims, "REFERENCE", tmp_path / "reference")
    monkeypatch.setenv("BOOTCAMP_CLAIM_SECONDS", "60")
    return tmp_path


def times(*seconds):
    """A function that returns these seconds in turn, again and again."""
    waiting = itertools.cycle(seconds)
    return lambda: next(waiting)


FAST, SLOW = (1.0, 1.01, 0.99), (1.5, 1.48, 1.52)


@pytest.mark.parametrize(
    ("this", "that", "by", "verdict", "pairs"),
    [
        (FAST, SLOW, 1.0, claims.SUPPORTED, claims.FEWEST),
        (SLOW, FAST, 1.0, claims.CONTRADICTED, claims.FEWEST),
        ((1.0, 1.6, 0.7), (1.2, 0.8, 1.1, 1.0), 1.0, claims.UNCLEAR, claims.MOST),
        ((1.0, 1.01, 1.0), (1.2, 1.19, 1.21), 1.0, claims.SUPPORTED, claims.FEWEST),
        ((1.0, 1.01, 1.0), (1.2, 1.19, 1.21), 1.5, claims.CONTRADICTED, claims.FEWEST),
    ],
    ids=["clear", "the reverse", "noise", "a little faster", "less than claimed"],
)
def test_verdict_follows_from_the_pairs(this, that, by, verdict, pairs):
    found = claims.faster("x", "This wins.", times(*this), times(*that), by=by)
    assert (found.verdict, found.pairs) == (verdict, pairs)
    assert found.supported == (verdict == claims.SUPPORTED)
    assert (found.low < by < found.high) == (verdict == claims.UNCLEAR)


def test_text_that_is_shown_fits_the_verdict():
    words = {"supported": "Good.", "otherwise": "Why?"}
    right = claims.faster("x", "`f` wins.", times(*FAST), times(*SLOW), **words)
    assert str(right).startswith("Claim: `f` wins.\n✓ Supported here: 1.50 times as fast, between")
    wrong = claims.faster("x", "`f` wins.", times(*SLOW), times(*FAST), **words)
    assert "Contradicted here: 0.67 times as fast" in str(wrong)
    for found, shown, hidden in ((right, "Good.", "Why?"), (wrong, "Why?", "Good.")):
        assert str(found).endswith(shown)
        assert hidden not in found._repr_html_()
        assert "<code>f</code> wins." in found._repr_html_()


def test_budget_that_is_spent_leaves_one_pair_and_no_verdict(monkeypatch):
    monkeypatch.setenv("BOOTCAMP_CLAIM_SECONDS", "0")
    found = claims.faster("x", "This wins.", times(1.0), times(9.0))
    assert (found.verdict, found.pairs) == (claims.UNCLEAR, 1)
    assert "1 of 3 pairs that an interval needs" in str(found)


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


def test_interval_is_that_of_students_t():
    effect, low, high = claims.interval([1.0, 2.0, 4.0])
    assert effect == pytest.approx(2.0)
    half = 9.925 * math.log(2) / math.sqrt(3)  # t(0.995, 2 degrees of freedom) = 9.925
    assert (low, high) == pytest.approx((2 / math.exp(half), 2 * math.exp(half)))
    assert claims.interval([2.0, 2.0])[1:] == (0.0, math.inf)
    stats = pytest.importorskip("scipy.stats")
    for pairs, quantile in claims.T_99.items():
        assert quantile == pytest.approx(stats.t.ppf(0.995, pairs - 1), abs=1e-3), pairs


def test_counts_are_held_against_what_is_expected():
    found = claims.equal("x", "The formula holds.", 101e6, 100e6, within=0.02)
    assert found.supported
    assert "101 MB, expected 100 MB" in str(found)
    more = claims.larger("y", "More.", 6, 2, kind="count")
    assert more.measured == "6 and 2, 3.000 times as much"
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
