"""What becomes a recorded run, and what is refused."""

import gzip
import json
import re
import shutil
import sys

import pytest
import reference
from matplotlib.text import Text

from bootcamp import corpus
from bootcamp.drawing import plots
from bootcamp.experiments import replay
from bootcamp.files import write_json
from bootcamp.paths import REFERENCE, ROOT
from bootcamp.records import runs

RECORD = REFERENCE / "xeon-2core-ddp-2"


@pytest.fixture
def run(tmp_path):
    """A run of this machine's, with all kinds of files in its folder."""
    folder = tmp_path / "logs" / "run"
    shutil.copytree(RECORD, folder)
    (folder / "ranks" / "0.out").write_text(f"wrote {ROOT}/notebooks/x\n")
    (folder / "ranks" / "1.err").write_text("[W] a warning of the socket\n")
    (folder / "ranks" / "launcher.err").write_text("what horovodrun said\n")
    (folder / "ranks" / "0.beat").write_text("1 2\n")
    return folder


def share_cores(folder):
    said = json.loads((folder / "summary.json").read_text())
    write_json(folder / "summary.json", said | {"shared_cores": True})


def test_record_has_what_lessons_read_and_no_folder_of_this_machine(run, tmp_path):
    replay.keep_run(runs.Run(run), tmp_path / "record")
    kept = {path.name for path in (tmp_path / "record" / "ranks").iterdir()}
    assert {"0.json", "1.json", "0.out", "launcher.err"} <= kept
    assert not kept & {"1.err", "0.beat"}
    assert (tmp_path / "record" / "ranks" / "0.out").read_text() == "wrote ./notebooks/x\n"


def test_run_that_shared_its_cores_becomes_no_record(run, tmp_path, monkeypatch, capsys):
    """It leaves an earlier record alone, and ends the tool that records with one sentence."""
    share_cores(run)
    kept = tmp_path / "new" / "xeon-2core-cpu-1" / "summary.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("the earlier one")
    with pytest.raises(replay.NotRecorded, match="run shared its cores with another run, so its"):
        replay.keep_run(runs.Run(run), kept.parent)
    assert kept.read_text() == "the earlier one"
    monkeypatch.setattr(reference.launch, "launch", lambda *_, **__: runs.Run(run))
    arguments = ["reference.py", "here", "--folder", str(tmp_path / "other"), "--only", "cpu-1"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert reference.main() == 1
    assert re.fullmatch("run shared its cores with another run.*\n", capsys.readouterr().out)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["here", "--only", "cpu-1", "cpu-7"], "no run cpu-7: choose from cpu-1, gpu-1,"),
        (["my/machine"], "begins names of folders: letters"),
        ([""], "begins names of folders: letters"),
        (["here", "--folder", __file__], "is a file: name a folder"),
    ],
)
def test_tool_refuses_names_that_it_can_not_keep(wrong, says, monkeypatch, capsys):
    monkeypatch.setattr(reference, "record", lambda *_: pytest.fail("it ran"))
    monkeypatch.setattr(sys, "argv", ["reference.py", *wrong])
    with pytest.raises(SystemExit) as ended:
        reference.main()
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_run_that_shared_its_cores_is_marked_wherever_it_is_shown(run):
    alone = runs.Run(RECORD)
    assert not alone.shared_cores
    share_cores(run)
    shared = runs.Run(run)
    assert shared.shared_cores
    assert "ddp, 2 ranks (CPU, shared cores)" in repr(shared)
    assert shared.origin.endswith("on shared cores")
    table = runs.table(alone, shared)
    assert "shared cores" not in table[0]["run"]
    assert "shared cores" in table[1]["run"]


def test_recorded_runs_are_all_read_by_somebody():
    """A run that no deck, lesson or test names is weight."""
    texts = [
        path.read_text()
        for folder, pattern in (
            ("slides", "**/*.md"),
            ("notebooks/sources", "*.py"),
            ("src/bootcamp_lessons", "**/*.py"),
            ("tests", "*.py"),
        )
        for path in (ROOT / folder).glob(pattern)
        if "expected" not in path.parts
    ]
    text = "\n".join(texts)
    names = [path.name for path in REFERENCE.glob("xeon-2core-*")]
    names += [path.name for path in REFERENCE.glob("0*/*") if path.is_dir()]
    assert len(names) > 50
    named = [rf'["/]{re.escape(name.removeprefix("xeon-2core-"))}\b' for name in names]
    unread = [pattern for pattern in named if not re.search(pattern, text)]
    assert not unread


def test_tool_records_what_is_there():
    wanted = {f"xeon-2core-{run.name}-{run.ranks}" for run in reference.RUNS}
    assert wanted == {path.name for path in REFERENCE.glob("xeon-2core-*")}


@pytest.mark.parametrize(
    ("crc32", "says"), [(2_800_914_578, True), (corpus.CRC32, False), (None, False)]
)
def test_losses_on_an_earlier_text_say_so(crc32, says):
    run = runs.Run(RECORD)
    run.config["corpus_crc32"] = crc32
    said = [text.get_text() for text in plots.loss_curves(run).findobj(Text)]
    assert any("Trained on an earlier text" in text for text in said) == says


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("phases", "name"), [(False, "0.trace.json.gz"), (True, "0.trace.json")])
def test_trace_made_slim_has_the_name_that_figures_look_for(tmp_path, packed, phases, name):
    """A run's trace is packed where it is large, and then too its slim copy is found."""
    event = {"name": "forward", "ph": "X", "cat": "user_annotation", "ts": 5.0, "dur": 2.0}
    opened = {True: gzip.open, False: open}
    folder = tmp_path / "ranks"
    folder.mkdir()
    with opened[packed](folder / f"0.trace.json{'.gz' * packed}", "wt") as file:
        json.dump({"traceEvents": [event | {"tid": 1}]}, file)
    reference.slim(tmp_path, phases)
    assert [path.name for path in folder.iterdir()] == [name]
    with opened[name.endswith(".gz")](folder / name, "rt") as file:
        (kept,) = json.load(file)["traceEvents"]
    assert kept["name"] == "forward"
