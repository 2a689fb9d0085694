"""How quiet the machine is, from counts that are given: no test depends on this machine's load."""

import pytest

from bootcamp import quietness

STEADY, HALF = [100] * 12, [50] * 12  # rounds in each window


@pytest.fixture
def logs(tmp_path, monkeypatch):
    monkeypatch.setattr(quietness, "LOGS", tmp_path)
    return tmp_path


@pytest.fixture
def count(logs, monkeypatch):
    """count(alone, both) measures what workers give that count these rounds in their windows."""

    def measure(alone, both=None, cores=4, share=1.0):
        answers = {1: [[*alone, 1.0]], 2: [[*(both or []), 1.0], [*(both or []), share]]}
        monkeypatch.setattr(quietness.machine, "cores", lambda: list(range(cores)))
        monkeypatch.setattr(quietness, "_count_rounds", lambda cores: answers[len(cores)])
        return quietness.measure()

    return measure


@pytest.mark.parametrize(
    ("counts", "is_quiet", "said"),
    [
        ((STEADY, STEADY), True, "two processes reach 2.00 times one."),
        (
            (STEADY, HALF),
            True,
            "two processes reach 1.00 times one (a second core is not a full one here)",
        ),
        ((STEADY, HALF, 4, 0.5), False, "a process gets 50% of its core"),
        (([60, 140] * 6, STEADY), False, "repeats differ by 80%"),
        (([*STEADY[1:], 10], STEADY), True, "repeats differ by 0%"),
        ((STEADY, None, 1), True, "repeats differ by 0%."),
    ],
    ids=["full cores", "half a core", "other programs", "repeats differ", "an outlier", "one core"],
)
def test_machine_is_busy_where_other_programs_run_and_not_where_a_core_is_slow(
    count, counts, is_quiet, said
):
    found = count(*counts)
    assert found.is_quiet == is_quiet
    assert found.words.startswith("a quiet machine" if is_quiet else "a busy machine (")
    assert str(found).startswith(f"This machine is {'quiet' if is_quiet else 'busy'}: ")
    assert said in str(found)


def test_last_measurement_is_kept_for_a_while(count, monkeypatch):
    assert quietness.read_last() is None
    found = count(STEADY, STEADY)
    assert quietness.read_last() == found
    now = found.unix_seconds
    monkeypatch.setattr(quietness.time, "time", lambda: now + quietness.VALID_SECONDS + 1)
    assert quietness.read_last() is None
    assert quietness.read_last(quietness.FOOT_SECONDS) == found
    monkeypatch.setattr(quietness.time, "time", lambda: now - 5)
    assert quietness.read_last() is None, "from the future: another machine's, or a clock set back"


def test_workers_count_in_every_window(logs, monkeypatch):
    work = quietness.WORK.replace(f"{quietness.WINDOW_SECONDS}", "0.001")
    monkeypatch.setattr(quietness, "WORK", work)
    found = quietness.measure()
    assert 0 <= found.spread < 100
    assert (found.second_core is None) == (len(quietness.machine.cores()) == 1)


def test_figures_of_runs_that_were_measured_here_name_it_once(count, make_run):
    pytest.importorskip("matplotlib")  # a GPU machine may lack all of the notebook side
    from figures import read_foot

    from bootcamp.drawing import plots

    runs = [make_run(ranks=1), make_run(ranks=2)]
    assert "machine at" not in read_foot(plots.throughput(*runs)), "it was not measured"
    count(STEADY, HALF, share=0.5)
    figure = plots.throughput(*runs)
    assert read_foot(figure).count("This was a busy machine (a process gets 50% of its core") == 1
    assert "a busy machine" in figure.alt
    other = plots.throughput(make_run(cpu="Other Processor"))
    assert "busy machine" not in read_foot(other)
