"""Training scripts of other people run under launch as they are: no flag, no file is added."""

from pathlib import Path

import pytest
import warm

from bootcamp import machine
from bootcamp.launcher import launch
from bootcamp.launcher.arguments import to_arguments

FOREIGN = Path(__file__).parent / "foreign"


@pytest.mark.parametrize("start", ["warm", "torchrun"])
def test_positional_arguments(start, capsys):
    """Those of a script that trains with DDP and knows nothing of the course."""
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
    assert (tmp_path / "log").read_text() == "train at port 8080"


NANO = "max_iters = 600\nexec(open('configurator.py').read())"
FIELD = "@dataclass\nclass Args:\n    max_iters: int = 600\n    compile: bool = True"
SIX = {"max_iters": 6}


@pytest.mark.parametrize(
    ("text", "flags", "given"),
    [
        ("parser.add_argument('--max_iters', type=int)", SIX, "--max_iters 6"),
        ("parser.add_argument('--max-iters', '--max_iters')", SIX, "--max-iters 6"),
        ("parser.add_argument('--max_iters_of_all')", SIX, "--max-iters 6"),
        ("if max_iters == 600: pass", SIX, "--max-iters 6"),
        (NANO, SIX, "--max_iters=6"),
        (FIELD, SIX, "--max_iters=6"),
        (FIELD, {"compile": False, "max_iters": None}, "--compile=False"),
        ("", {"a": 8, "verbose": True, "quiet": False, "lr": None}, "--a 8 --verbose"),
    ],
)
def test_flags_have_the_spelling_of_the_scripts_text(text, flags, given):
    assert to_arguments(flags, text) == given.split()


def test_refusal_of_a_script_is_in_its_own_words(tmp_path):
    with pytest.raises(launch.RunRefused, match="^own_flags.py: error: .* required: --out"):
        launch.launch(FOREIGN / "own_flags.py", 2, ["train"], quiet=True)


RAISES = """
import sys, time, torch.distributed as dist

dist.init_process_group("gloo")
print("[1]: looks like the mark of a launcher")
if dist.get_rank() == 1:
    raise ValueError("boom")
dist.barrier()
"""
ENDS_LAST = """    show = sys.excepthook
    sys.excepthook = lambda *error: (show(*error), dist.destroy_process_group(), time.sleep(0.1))
    raise"""


@pytest.mark.parametrize(("start", "own"), [("warm", ENDS_LAST), ("torchrun", "    raise")])
def test_error_of_a_rank_within_a_process_group_is_its_own(start, own, tmp_path):
    """Torch marks its lines then, a rank's may look so too; another's end may be heard of first."""
    (script := tmp_path / "raises.py").write_text(RAISES.replace("    raise", own))
    with warm.workers(), pytest.raises(launch.RankFailed, match="^ValueError: boom") as seen:
        launch.launch(script, 2, device="cpu", start=start, quiet=True)
    assert "[rank1]" not in str(seen.value)
    assert 'raise ValueError("boom")' in str(seen.value)


@pytest.mark.skipif(not Path("/dev/shm").exists(), reason="semaphores are no files here")
def test_semaphores_of_a_program_that_is_killed_go_with_it():
    """Its child still has them then; who takes them away must not be killed before it has."""
    with pytest.raises(launch.RankFailed, match="rank 0 was killed by signal 9") as failed:
        launch.launch(FOREIGN / "semaphores.py", 1, quiet=True)
    names = (failed.value.run.folder / "ranks" / "0.out").read_text().split()
    assert len(names) == 2
    assert not [name for name in names if Path("/dev/shm", f"sem.{name[1:]}").exists()]


def test_arguments_are_passed_as_given_and_nothing_else(tmp_path):
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
