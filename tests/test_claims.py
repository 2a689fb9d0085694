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


def test_a_clear_effect_is_supported_after_three_pairs():
    found = claims.faster("x", "This wins.", times(1.0, 1.01, 0.99), times(1.5, 1.48, 1.52))
    assert found.supported
    assert found.pairs == claims.FEWEST
    assert 1.3 < found.low < 1.5 < found.high < 1.75
    assert str(found).startswith("Claim: This wins.\n✓ Supported here: 1.50 times as fast, between")


def test_the_reverse_is_contradicted_and_says_so_in_words():
    found = claims.faster(
        "x", "`f` wins.", times(1.5, 1.48), times(1.0, 1.01), supported="Good.", otherwise="Why?"
    )
    assert found.verdict == claims.CONTRADICTED
    assert "Contradicted here: 0.67 times as fast" in str(found)
    assert str(found).endswith("Why?")
    assert "Good." not in found._repr_html_()
    assert "<code>f</code> wins." in found._repr_html_()


def test_noise_is_not_distinguishable_and_stops_at_most_pairs():
    found = claims.faster("x", "This wins.", times(1.0, 1.6, 0.7), times(1.2, 0.8, 1.1, 1.0))
    assert found.verdict == claims.UNCLEAR
    assert found.pairs == claims.MOST
    assert found.low < 1 < found.high


def test_an_effect_that_is_smaller_than_claimed_contradicts_the_claim():
    slow, fast = times(1.2, 1.19, 1.21), times(1.0, 1.01, 1.0)
    assert claims.faster("x", "At all.", fast, slow).supported
    assert claims.faster("x", "Half as fast again.", fast, slow, by=1.5).verdict == "contradicted"


def test_a_budget_that_is_spent_leaves_one_pair_and_no_verdict(monkeypatch):
    monkeypatch.setenv("BOOTCAMP_CLAIM_SECONDS", "0")
    found = claims.faster("x", "This wins.", times(1.0), times(9.0))
    assert (found.verdict, found.pairs) == (claims.UNCLEAR, 1)
    assert "1 of 3 pairs that an interval needs" in str(found)


def test_the_order_alternates_from_pair_to_pair():
    calls = []
    claims.faster(
        "x",
        "This wins.",
        lambda: calls.append("this") or 1.0,
        lambda: calls.append("that") or [1.0, 2.0, 0.5][len(calls) // 2 % 3],
    )
    assert calls[:6] == ["this", "that", "that", "this", "this", "that"]


def test_a_machine_that_grows_slower_favours_neither():
    """Every call takes a tenth more than the one before: the two are equally fast."""
    clock = itertools.count()
    drifting = lambda: 1.1 ** next(clock)  # noqa: E731
    found = claims.faster("x", "This wins.", drifting, drifting)
    assert found.verdict == claims.UNCLEAR
    assert found.low < 1 < found.high


def test_the_interval_is_that_of_students_t():
    effect, low, high = claims.interval([1.0, 2.0, 4.0])
    assert effect == pytest.approx(2.0)
    half = 9.925 * math.log(2) / math.sqrt(3)  # t(0.995, 2 degrees of freedom) = 9.925
    assert (low, high) == pytest.approx((2 / math.exp(half), 2 * math.exp(half)))
    assert claims.interval([2.0, 2.0])[1:] == (0.0, math.inf)


def test_the_quantiles_are_those_of_the_distribution():
    """The density of Student's t, summed up to each quantile: 0.495 on each side of 0."""
    for pairs, quantile in claims.T_99.items():
        free = pairs - 1
        scale = math.gamma((free + 1) / 2) / math.sqrt(free * math.pi) / math.gamma(free / 2)
        width = quantile / 20_000
        middles = ((i + 0.5) * width for i in range(20_000))
        area = sum(scale * (1 + x * x / free) ** (-(free + 1) / 2) * width for x in middles)
        assert area == pytest.approx(0.495, abs=2e-5), pairs


def test_bytes_that_are_as_expected_are_supported():
    found = claims.equal("x", "The formula holds.", 101e6, 100e6, within=0.02)
    assert found.supported
    assert "101 MB, expected 100 MB" in str(found)
    assert (
        claims.larger("y", "More.", 6, 2, kind="count").measured == "6 and 2, 3.000 times as much"
    )


def test_a_wrong_formula_fails_its_cell(logs):
    with pytest.raises(claims.Contradicted, match="The formula holds. Contradicted here: 150 MB"):
        claims.equal("x", "The formula holds.", 150e6, 100e6, within=0.02)
    with pytest.raises(claims.Contradicted, match="2 and 6"):
        claims.larger("y", "More.", 2, 6, kind="count")
    assert claims.read_notes()["y"]["verdict"] == claims.CONTRADICTED


def test_what_a_system_does_not_count_fails_nothing():
    assert claims.equal("x", "Sent.", None, 100e6).verdict == claims.NOT_COUNTED
    assert claims.larger("y", "More.", None, 1).verdict == claims.NOT_COUNTED


def test_a_claim_is_noted_with_the_last_verdict_and_counted():
    claims.faster("speed", "This wins.", times(1.0), times(2.0))
    claims.equal("bytes", "Sent.", 1, 1)
    claims.faster("speed", "This wins.", times(2.0), times(1.0))
    assert [claim["verdict"] for claim in claims.read_notes().values()] == [
        "contradicted",
        "supported",
    ]
    assert course.list_claims(claims.read_notes()).column("claim") == ["speed", "bytes"]
    assert course.count_verdicts(claims.read_notes()).column("contradicted") == [1, 0]
    assert claims.read_notes(since=math.inf) == {}


def test_beside_what_this_machine_does_not_support_stands_the_reference(logs):
    kept = {"machine": {"cpu": "a quiet CPU", "cores": 2}}
    kept["claims"] = {"speed": {"verdict": "supported", "measured": "1.4 times as fast"}}
    (logs / "reference").mkdir()
    (logs / "reference" / claims.FILE).write_text(json.dumps(kept))
    said = "Recorded on the reference machine (a quiet CPU, 2 cores): supported, 1.4 times as fast."
    assert said in str(claims.faster("speed", "This wins.", times(2.0), times(1.0)))
    assert said not in str(claims.faster("speed", "This wins.", times(1.0), times(2.0)))


CLAIM = re.compile(r'\bclaim\.(faster|equal|larger)\(\s*"(\w+)",')


def test_every_claim_of_the_course_has_a_name_of_its_own():
    names = Counter()
    for path in NOTEBOOKS.glob("*.ipynb"):
        for cell in json.loads(path.read_text())["cells"]:
            code = "".join(cell["source"])
            if cell["cell_type"] == "code":
                names.update(name for _, name in CLAIM.findall(code))
                calls = len(re.findall(r"\bclaim\.(faster|equal|larger)\(", code))
                assert calls == len(CLAIM.findall(code)), f"{path.stem}: a claim without a name"
    assert [name for name, count in names.items() if count > 1] == []
