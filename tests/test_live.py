"""Live ranks: what cells on them do, and that they are usable after whatever went wrong in one."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
from processes import Notebook, leftovers, until

from bootcamp.launcher import launch, live_ranks

WHY_NOT = live_ranks.why_not()
needs_live = pytest.mark.skipif(WHY_NOT is not None, reason=f"no live ranks here: {WHY_NOT}")
pytestmark = [pytest.mark.alone, needs_live]
COUNT = 4
ADD_ONES = "ones = torch.ones(1)\ndist.all_reduce(ones)\nones.item()"


@pytest.fixture(scope="module", autouse=True)
def four_ranks():
    live_ranks.start(ranks=COUNT)
    yield
    live_ranks.stop()


@pytest.fixture(autouse=True)
def no_rank_left():
    """Here ranks outlive a test, as they should; the last test of this file ends them."""


def said(code: str) -> list[str]:
    """The text of each rank, without its last line break."""
    texts = live_ranks.run(code, show=lambda _: None)
    return [text.rstrip("\n") for text in texts.values()]


def test_output_stands_by_rank_in_order_with_prints_before_the_value():
    shown = []
    live_ranks.run("print('hello')\ntorch.full((2, 2), rank)", show=shown.append)
    blocks = [
        f"rank {rank}: hello\n        tensor([[{rank}, {rank}],\n                [{rank}, {rank}]])"
        for rank in range(COUNT)
    ]
    assert shown[-1] == "\n".join(blocks)


# code that fails; what is said of it, and what is not; whether the ranks meet in a new group
FAILS = {
    "one rank raises": (
        "if rank == 1:\n    raise ValueError('enough')\ndist.all_reduce(mine)",
        ["rank 1 raised ValueError: enough", "line 2", "ranks 0, 2 and 3 waited in all_reduce"],
        True,
    ),
    "all raise": ("nonsense", ["NameError: name 'nonsense' is not defined"], False),
    "one rank calls a collective": (
        "if rank == 0:\n    dist.all_reduce(mine)",
        ["rank 0 waited in all_reduce, but ranks 1, 2 and 3"],
        True,
    ),
    "different collectives": (
        "dist.barrier() if rank else dist.all_reduce(mine)",
        ["the same collectives in the same order"],
        True,
    ),
}


@pytest.mark.parametrize("case", FAILS)
def test_error_is_told_once_frees_the_others_and_keeps_variables(case):
    code, words, apart = FAILS[case]
    said("mine, group = torch.ones(1) * rank, dist.group.WORLD")
    began = time.monotonic()
    with pytest.raises(live_ranks.RankRaised) as failed:
        said(code)
    assert time.monotonic() - began < 10
    text = str(failed.value)
    assert [word for word in words if word not in text] == []
    assert text.count("Error: ") <= 2  # in the sentence and in the traceback
    assert "live_rank.py" not in text, "the inside is not the reader's concern"
    assert said("group is dist.group.WORLD") == [str(not apart)] * COUNT
    assert said(ADD_ONES) == ["4.0"] * COUNT
    assert said("rank + mine.numel()") == ["1", "2", "3", "4"], "variables are kept"


def test_exit_leaves_the_ranks_alive():
    assert said("exit()\n'alive'") == ["'alive'"] * COUNT


def test_ranks_that_compute_are_left_in_peace():
    """The others wait longer than the patience with waiting ranks, and rightly so."""
    seconds = live_ranks.STUCK_SECONDS + 1
    code = f"import time\nif rank == 3:\n    time.sleep({seconds})\n{ADD_ONES}"
    assert said(code) == ["4.0"] * COUNT


@pytest.mark.parametrize(
    "code",
    [
        "while True:\n    pass",
        "import time\nif rank == 3:\n    time.sleep(600)\ndist.all_reduce(torch.ones(1))",
    ],
    ids=["computing", "in a collective"],
)
def test_interrupt_brings_all_ranks_back(code):
    threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        said(code)
    assert time.monotonic() - began < 12
    assert said(ADD_ONES) == ["4.0"] * COUNT


SLOW_TO_BEGIN = """
import time

def slow():
    shell.events.unregister("pre_execute", slow)
    time.sleep(1.5)

shell = get_ipython()
shell.events.register("pre_execute", slow)
"""


def test_interrupt_while_a_cell_is_sent_does_not_leave_it_running(monkeypatch):
    """It is held back until the cell is sent to all; then it must reach them.

    Also where it comes before a rank has begun the cell, when nothing of the cell hears of it.
    """
    said(SLOW_TO_BEGIN)
    order = live_ranks.LiveRanks._order

    def interrupted(self, *given):
        order(self, *given)
        if given[0] == "run_cell":
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(live_ranks.LiveRanks, "_order", interrupted)
        with pytest.raises(KeyboardInterrupt):
            said("import time\ntime.sleep(60)\nslept = True")
    assert said("'slept' in globals()") == ["False"] * COUNT
    assert said(ADD_ONES) == ["4.0"] * COUNT


def test_nothing_listens_beyond_this_machine_and_no_socket_is_left():
    pids = map(int, said("import os\nos.getpid()"))
    ends = [end for pid in pids for end in psutil.Process(pid).net_connections("inet")]
    listening = [end.laddr.ip for end in ends if end.status == psutil.CONN_LISTEN]
    assert len(listening) > COUNT
    assert set(listening) <= {"127.0.0.1", "::ffff:127.0.0.1"}
    folders = f"{live_ranks.PREFIX}{os.getpid()}-*"
    assert not list(Path(os.environ.get("TMPDIR", "/tmp")).glob(folders)), "the socket's folder"


SLEEPS = "import time\ntime.sleep(600)"
# what happens in a cell, and what is said of it then and ever after
ENDS = {
    "a rank is killed": (
        f"import os\nif rank == 2: os.kill(os.getpid(), 9)\n{SLEEPS}",
        "^rank 2 was killed by signal 9 ",
    ),
    "a rank leaves without an error": (
        "import os\nif rank == 1: os._exit(0)\ndist.barrier()",
        "^rank 1 has ended",
    ),
    "the supervisor is killed": (
        f"import os\nif rank == 0: os.kill(int(os.environ['SUPERVISOR']), 9)\n{SLEEPS}",
        "supervisor process died",
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_end_of_the_ranks_is_told_and_new_ones_can_be_started(end, tmp_path, monkeypatch):
    """Wherever temporary files are: the path of a Unix socket has at most 107 bytes."""
    code, words = ENDS[end]
    folder = tmp_path / ("long" * 20 if "supervisor" in end else "short")
    folder.mkdir()
    monkeypatch.setattr(live_ranks.tempfile, "tempdir", str(folder))
    if "without" in end:  # the supervisor never tells, however long it is waited for
        monkeypatch.setattr(live_ranks, "RETURN_SECONDS", 0.5)
    monkeypatch.setenv("SUPERVISOR", str(launch.connect().process.pid))
    live_ranks.stop()
    live_ranks.start(COUNT)
    for cell in (code, "rank"):
        with pytest.raises(live_ranks.RanksGone, match=rf"{words}.*live.start\("):
            said(cell)
    until(lambda: not leftovers(os.getpid(), allow_launcher=True))
    live_ranks.start()
    assert said(ADD_ONES) == ["4.0"] * COUNT


def test_cell_magic_in_a_notebook():
    """Output by rank, the stop button, and the next cell, on a real Jupyter kernel."""
    with Notebook() as notebook:
        reply, _ = notebook.run("from bootcamp import live\nlive.start(ranks=2)")
        assert reply["status"] == "ok"
        ask = "import sys\nrank, world_size, 'bootcamp.launcher' in sys.modules"
        _, text = notebook.run(f"%%ranks\n{ask}")
        assert text.splitlines()[-2:] == ["rank 0: (0, 2, False)", "rank 1: (1, 2, False)"]
        threading.Timer(1, notebook.interrupt).start()
        assert notebook.run(f"%%ranks\n{SLEEPS}")[0]["ename"] == "KeyboardInterrupt"
        assert notebook.run(f"%%ranks\n{ADD_ONES}")[1] == "rank 0: 2.0\nrank 1: 2.0\n"


def test_machine_without_live_ranks_says_so(monkeypatch, capsys):
    monkeypatch.setattr(live_ranks.sys, "platform", "darwin")
    live_ranks.start()
    assert live_ranks.run("rank") == {}
    assert capsys.readouterr().out.count("Live ranks need Linux: ") == 2


def test_record_says_how_they_ended():
    folder = Path(said("import os\nprint(os.environ['BOOTCAMP_RUN'])")[0])
    live_ranks.stop()
    assert json.loads((folder / "summary.json").read_text())["status"] == "interrupted"
    assert not leftovers(os.getpid(), allow_launcher=True)
    assert launch.connect().alive
