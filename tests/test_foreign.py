"""Training scripts of other people run under launch as they are: no flag, no file is added."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import faults
import pytest
import warm

from bootcamp import machine
from bootcamp.launcher import launch
from bootcamp.launcher.arguments import to_arguments
from bootcamp.launcher.launch import ArgumentError, Options
from bootcamp.records import summary

FOREIGN = Path(__file__).parent / "foreign"
FOR_EVER = ["1000000", "5"]


@pytest.mark.parametrize("start", ["warm", "torchrun"])
def test_positional_arguments(start, capsys):
    script = FOREIGN / "positional.py"
    with warm.workers():
        run = launch.launch(script, ranks=2, args=["11", "5"], start=start)
    shown = capsys.readouterr().out
    assert "torchrun --standalone --nproc-per-node 2 tests/foreign/positional.py 11 5" in shown
    assert "2 ranks" in shown
    assert run.status == "ok"
    said = "".join(path.read_text() for path in (run.folder / "ranks").glob("*.out"))
    assert [f"epoch {epoch}," in said for epoch in (0, 1, 5, 10)] == [True, False, True, True]
    assert not (run.folder / "config.json").exists(), "no record was forced on it"


def test_flags_of_its_own_and_one_that_is_the_launchers_name(tmp_path):
    args = ["train", "--port", "8080"]
    run = launch.launch(FOREIGN / "own_flags.py", 2, args, out=tmp_path / "log", quiet=True)
    assert run.status == "ok"
    lines = (tmp_path / "log").read_text().splitlines()
    assert [line.split()[:2] for line in lines] == [["train", "0"], ["train", "1"]]
    assert lines[0].endswith("port 8080")


NANO = "max_iters = 600\nexec(open('configurator.py').read())"
FIELD = "@dataclass\nclass Args:\n    max_iters: int = 600\n    compile: bool = True"


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("parser.add_argument('--max_iters', type=int)", ["--max_iters", "6"]),
        ("parser.add_argument('--max-iters', '--max_iters')", ["--max-iters", "6"]),
        ("parser.add_argument('--max_iters_of_all')", ["--max-iters", "6"]),
        ("if max_iters == 600: pass", ["--max-iters", "6"]),
        (NANO, ["--max_iters=6"]),
        (FIELD, ["--max_iters=6"]),
    ],
)
def test_a_flag_has_the_spelling_of_the_scripts_text(text, given):
    assert to_arguments({"max_iters": 6}, text) == given


def test_a_field_of_yes_and_no_is_set_to_either():
    found = to_arguments({"compile": False, "max_iters": None}, FIELD)
    assert found == ["--compile=False"]
    assert to_arguments({"compile": False, "nothing": True}) == ["--nothing"]


def test_settings_of_a_script_are_changed_as_nanogpt_reads_them():
    run = launch.launch(FOREIGN / "settings.py", 1, max_iters=6, compile=False, quiet=True)
    assert run.output().strip() == "6 False"


def test_no_flags_at_all():
    run = launch.launch(FOREIGN / "constants.py", 2, device="cpu", quiet=True)
    assert run.output().strip() == "found [1.0, -2.0, 0.5, 3.0]"
    assert run.output(1) == ""


def test_its_own_refusal_is_its_own_words(tmp_path):
    with pytest.raises(launch.RunRefused, match="^own_flags.py: error: .* required: --out"):
        launch.launch(FOREIGN / "own_flags.py", 2, ["train"], quiet=True)


RAISES = """
import torch.distributed as dist

dist.init_process_group("gloo")
print("[1]: looks like the mark of a launcher")
if dist.get_rank() == 1:
    raise ValueError("boom")
dist.barrier()
"""


@pytest.mark.parametrize("start", ["warm", "torchrun"])
def test_the_error_of_a_rank_within_a_process_group_is_its_own(start, tmp_path):
    """Torch's excepthook marks its lines then; a line that a rank prints may look marked too."""
    script = tmp_path / "raises.py"
    script.write_text(RAISES)
    with warm.workers(), pytest.raises(launch.RankFailed, match="^ValueError: boom") as seen:
        launch.launch(script, 2, device="cpu", start=start, quiet=True)
    assert "[rank1]" not in str(seen.value)
    assert 'raise ValueError("boom")' in str(seen.value)


def _while_it_trains(folder: Path, then) -> threading.Thread:
    """Call `then` once rank 0 has reported an epoch."""

    def wait():
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            out = folder / "ranks" / "0.out"
            if out.exists() and "epoch 5" in out.read_text():
                return then()
            time.sleep(0.02)
        raise TimeoutError(f"{folder} did not begin: the fault is not provoked")

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.slow
def test_interrupted(tmp_path):
    folder = tmp_path / "run"
    thread = _while_it_trains(folder, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(launch.Interrupted, match="its ranks have ended, and the record is in"):
        launch.launch(
            FOREIGN / "positional.py", 2, FOR_EVER, options=Options(run_dir=folder), quiet=True
        )
    thread.join()
    assert not faults.leftovers(os.getpid(), allow_launcher=True)
    assert summary.read(folder)["status"] == "interrupted"


@pytest.mark.slow
def test_a_rank_is_killed(tmp_path):
    folder = tmp_path / "run"

    def kill():
        names = [f"rank {rank} of 2" for rank in range(2)]
        ranks = {Path(f"/proc/{pid}/comm").read_text().strip(): pid for pid in mine()}
        assert set(names) <= set(ranks)
        os.kill(ranks[names[1]], signal.SIGKILL)

    def mine():
        return faults.leftovers(os.getpid(), allow_launcher=True)

    thread = _while_it_trains(folder, kill)
    with pytest.raises(launch.RankFailed, match="rank 1 was killed by signal 9") as failed:
        launch.launch(
            FOREIGN / "positional.py", 2, FOR_EVER, options=Options(run_dir=folder), quiet=True
        )
    thread.join()
    assert not mine()
    assert failed.value.run.status == "failed"


@pytest.mark.skipif(not Path("/dev/shm").exists(), reason="semaphores are no files here")
def test_semaphores_of_a_program_that_is_killed_go_with_it():
    """Its child still has them then; who takes them away must not be killed before it has."""
    with pytest.raises(launch.RankFailed, match="rank 0 was killed by signal 9") as failed:
        launch.launch(FOREIGN / "semaphores.py", 1, quiet=True)
    names = (failed.value.run.folder / "ranks" / "0.out").read_text().split()
    assert len(names) == 2
    assert not [name for name in names if Path("/dev/shm", f"sem.{name[1:]}").exists()]


@pytest.mark.slow
def test_a_kernel_that_is_killed_leaves_nothing(tmp_path):
    code = (
        "from bootcamp import Options, launch\n"
        f"options = Options(run_dir={str(tmp_path / 'run')!r})\n"
        f"launch({str(FOREIGN / 'positional.py')!r}, 2, {FOR_EVER}, options=options, quiet=True)"
    )
    kernel = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    _while_it_trains(tmp_path / "run", kernel.kill).join()
    kernel.wait()
    faults._gone(kernel.pid)
    assert summary.read(tmp_path / "run")["error"]["kind"] == "kernel died"


def test_only_what_is_given_is_passed(tmp_path):
    """Neither --device nor --run-dir; the folder of the record is in the environment."""
    script = tmp_path / "says.py"
    script.write_text(
        "import os, sys\nprint(sys.argv[1:], os.environ['BOOTCAMP_RUN'], "
        "os.environ.get('CUDA_VISIBLE_DEVICES', 'all'))\n"
    )
    run = launch.launch(script, 1, ["a b", "--x=1"], quiet=True, device="cpu", lr=0.1)
    visible = "" if machine.gpu_names() else "all"
    given = f"['a b', '--x=1', '--lr', '0.1'] {run.folder} {visible}".strip()
    assert run.output().strip() == given


def test_a_busy_script_without_a_record_is_given_time(tmp_path):
    """Nobody sees its steps; without a number from the reader it is not taken for stuck."""
    script = tmp_path / "busy.py"
    script.write_text("import time\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass")
    call = launch.Call(script, 1)
    assert call.choose_patience() == (60.0, float("inf"))
    assert launch.launch(script, 1, options=Options(hang_seconds=1), quiet=True).status == "ok"


def test_a_syntax_error_is_the_ranks_own(tmp_path):
    script = tmp_path / "open_bracket.py"
    script.write_text("import os\n\nprint((1, 2)\n")
    with pytest.raises(launch.RankFailed) as failed:
        launch.launch(script, 2, quiet=True)
    text = str(failed.value)
    assert text.startswith("SyntaxError: '(' was never closed")
    assert 'open_bracket.py", line 3' in text
    assert "print((1, 2)" in text
    assert "bootcamp/launcher" not in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"ranks": "2"}, "ranks='2': expected a whole number from 1 on"),
        ({"ranks": 2.0}, "ranks=2.0: expected a whole number"),
        ({"ranks": True}, "ranks=True: expected a whole number"),
        ({"args": "50 10"}, "args='50 10': expected a list of texts"),
        ({"args": [50]}, r"args=\[50\]: expected a list of texts"),
        ({"device": "tpu"}, "device='tpu': expected one of auto, cpu, cuda, meta"),
        ({"hosts": "2"}, "hosts='2': expected at least one"),
        ({"options": {"env": 1}}, r"options=.*: expected Options\(...\)"),
        ({"hang_seconds": 5}, r"hang_seconds= is .*: write options=Options\(hang_seconds=5\)\."),
        ({"run_dir": "x"}, r"write options=Options\(run_dir='x'\)"),
    ],
)
def test_wrong_types_end_in_one_sentence_before_anything_starts(arguments, sentence, monkeypatch):
    monkeypatch.setattr(launch, "connect", None)  # nothing may be started
    with pytest.raises(ArgumentError, match=sentence) as refused:
        launch.launch("ddp", **{"ranks": 2, **arguments})
    (shown,) = refused.value._render_traceback_()
    assert "\n" not in shown


@pytest.mark.parametrize(
    "wrong",
    [
        {"hang_seconds": "5"},
        {"max_restarts": 1.5},
        {"fewest_hosts": "two"},
        {"run_dir": 3},
        {"env": ["A=1"]},
        {"framework": "keras"},
    ],
)
def test_options_of_a_wrong_type_are_named(wrong):
    (name,) = wrong
    with pytest.raises(ArgumentError, match=f"^{name}=.*: expected "):
        Options(**wrong)
