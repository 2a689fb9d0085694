"""How quiet the machine is, from counts that are given: no test depends on this machine's load."""

import json

import preflight_checks as checks
import pytest

from bootcamp import quietness

STEADY = [100] * 12


@pytest.fixture
def logs(tmp_path, monkeypatch):
    monkeypatch.setattr(quietness, "LOGS", tmp_path)
    monkeypatch.setattr(quietness.machine, "cores", lambda: [0, 1, 2, 3])
    return tmp_path


@pytest.fixture
def counted(logs, monkeypatch):
    """counted(alone, [first, second]) has the workers count these rounds in their windows."""

    def give(alone, both=None, cores=4):
        answers = {1: [alone], 2: both}
        monkeypatch.setattr(quietness.machine, "cores", lambda: list(range(cores)))
        monkeypatch.setattr(quietness, "_count_rounds", lambda cores: answers[len(cores)])

    return give


def test_two_processes_with_a_core_each_are_quiet(counted):
    counted(STEADY, [STEADY, STEADY])
    found = quietness.measure()
    assert (found.second_core, found.spread, found.is_quiet) == (1.0, 0.0, True)
    assert found.words == "a quiet machine"
    assert "This machine is quiet: two processes reach 2.00 times one" in str(found)


def test_two_processes_on_one_core_are_busy(counted):
    counted(STEADY, [[50] * 12, [50] * 12])
    found = quietness.measure()
    assert (found.second_core, found.is_quiet) == (0.0, False)
    assert "This machine is busy: two processes reach 1.00 times one" in str(found)
    assert "may say the reverse of what is true" in str(found)


def test_repeats_that_differ_are_busy_and_one_outlier_is_not(counted):
    counted([60, 140] * 6, [STEADY, STEADY])
    found = quietness.measure()
    assert found.spread == pytest.approx(0.8)
    assert not found.is_quiet
    assert found.words.endswith("repeats differ by 80%)")
    counted([*STEADY[1:], 10], [STEADY, STEADY])
    assert quietness.measure().is_quiet


def test_one_core_has_no_second(counted):
    counted(STEADY, cores=1)
    found = quietness.measure()
    assert found.second_core is None
    assert found.is_quiet
    assert "one core, repeats differ by 0%" in str(found)


def test_the_last_measurement_is_kept_for_a_while(counted, logs, monkeypatch):
    assert quietness.read_last() is None
    counted(STEADY, [STEADY, STEADY])
    found = quietness.measure()
    assert quietness.read_last() == found
    now = found.unix_seconds
    monkeypatch.setattr(quietness.time, "time", lambda: now + quietness.VALID_SECONDS + 1)
    assert quietness.read_last() is None
    assert quietness.read_last(quietness.FOOT_SECONDS) == found
    monkeypatch.setattr(quietness.time, "time", lambda: now - 5)
    assert quietness.read_last() is None, "from the future: another machine's, or a clock set back"


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"spread": 1}', '{"other": 1}'])
def test_a_file_that_is_no_measurement_is_none(logs, text):
    (logs / quietness.FILE).write_text(text)
    assert quietness.read_last() is None


def test_a_folder_that_can_not_be_written_stops_nobody(counted, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(quietness, "LOGS", tmp_path / "file" / "logs")
    counted(STEADY, [STEADY, STEADY])
    assert quietness.measure().is_quiet
    assert quietness.read_last() is None


def test_workers_count_in_every_window(monkeypatch):
    monkeypatch.setattr(
        quietness, "WORK", quietness.WORK.replace(f"{quietness.WINDOW_SECONDS}", "0.001")
    )
    core = quietness.machine.cores()[0]
    counts = quietness._count_rounds([core, core])
    assert [len(each) for each in counts] == [quietness.WINDOWS] * 2
    assert min(map(min, counts)) > 0


@pytest.mark.parametrize(("both", "verdict"), [(STEADY, checks.READY), ([55] * 12, checks.LIMITS)])
def test_preflight_reports_it(counted, both, verdict):
    counted(STEADY, [both, both])
    (row,) = checks.quietness(None)
    assert row["verdict"] == verdict
    assert ("busy machine" in row["found"]) == (verdict == checks.LIMITS) == bool(row["to do"])


def test_preflight_measures_before_its_own_launch_begins(monkeypatch):
    import preflight

    done = []
    monkeypatch.setitem(checks.CHECKS, "cores", lambda options: done.append("cores") or [])
    monkeypatch.setitem(checks.CHECKS, "quietness", lambda options: done.append("quiet") or [])
    monkeypatch.setattr(preflight, "Launch", lambda: done.append("launch"))
    preflight.run_checks(preflight.argparse.Namespace(only=["quietness", "cores", "launch"]))
    assert done == ["quiet", "launch", "cores"]


def test_figures_of_runs_that_were_measured_here_name_it_once(counted, make_run):
    pytest.importorskip("matplotlib")  # a GPU machine may lack all of the notebook side
    import test_plots

    from bootcamp.drawing import plots

    runs = [make_run(ranks=count) for count in (1, 2)]
    assert "machine at" not in test_plots.foot(plots.throughput(*runs)), "it was not measured"
    counted(STEADY, [[50] * 12, [50] * 12])
    quietness.measure()
    figure = plots.throughput(*runs)
    assert test_plots.foot(figure).count("This was a busy machine (two processes reach 1.00") == 1
    assert "a busy machine" in figure.alt
    other = make_run(cpu="Other Processor")
    assert "busy machine" not in test_plots.foot(plots.throughput(other))


def test_what_is_noted_is_plain_json(counted, logs):
    counted(STEADY, [STEADY, STEADY])
    quietness.measure()
    assert set(json.loads((logs / quietness.FILE).read_text())) == {
        "second_core",
        "spread",
        "unix_seconds",
    }
