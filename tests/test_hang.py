"""Why ranks hang: each kind found in answers made up here, and in runs that hang for real."""

import os
import pickle
import re
import subprocess
import sys

import pytest
from processes import meanwhile, until

from bootcamp import hang
from bootcamp.launcher import launch, simulated_hosts
from bootcamp.launcher.launch import Options
from bootcamp.records import flight_recorder, heartbeat, standstill
from bootcamp.scripts.variants import variant
from bootcamp.table import Table

DEFAULT, PAIR, OTHER_PAIR = ("0", (0, 1, 2)), ("1", (0, 1)), ("2", (1, 2))


def call(name, number, size=(5,), *, ended=True, group=DEFAULT, **more):
    """A collective in torch's format; more: other values of the entry."""
    return {
        "process_group": (group[0], "default_pg" if group == DEFAULT else "undefined"),
        "profiling_name": f"gloo:{name}",
        "collective_seq_id": number,
        "input_sizes": [list(size)],
        "input_dtypes": ["Float"],
        "state": "scheduled",
        "retired": ended,
        "is_p2p": False,
        "time_created_ns": number * 10**9,
        "timeout_ms": 60_000,
        "frames": [
            {"filename": "/x/site-packages/torch/c10d.py", "line": 1, "name": name},
            {"filename": "/home/me/train.py", "line": number, "name": "step"},
        ],
        **more,
    }


def waits(name, number, size=(5,), **more):
    return call(name, number, size, ended=False, **more)


def explained(*answers, endings=None, hosts=("a", "a", "b"), raised=(None, None, None)):
    """What the reader makes of these entries of each rank; None for a rank without an answer."""
    ranks = {}
    for number, entries in enumerate(answers):
        groups = [one for one in (DEFAULT, PAIR, OTHER_PAIR) if number in one[1]]
        described = {
            name: {"name": name, "desc": "default_pg" if name == "0" else "", "ranks": str([*its])}
            for name, its in groups
        }
        dump = {"pg_config": described, "host": hosts[number], "raised": raised[number]}
        ranks[number] = standstill.read_rank(
            None if entries is None else {**dump, "entries": entries},
            f'  File "/home/me/train.py", line {40 + number} in step',
            (endings or {}).get(number),
        )
    return standstill.explain(ranks)


FIRST = call("all_reduce", 1)
SUM = waits("all_reduce", 2, (4, 5))
KINDS = {
    "missing": (
        ([FIRST, SUM], [FIRST, SUM], [FIRST]),
        {},
        "missing",
        (2,),
        "rank 2 on b never entered all_reduce #2 of shape [4, 5] in the default group, in which "
        "ranks 0 and 1 wait; it stands in train.py:42 in step",
    ),
    "two missing, one host": (
        ([FIRST, SUM], [FIRST], [FIRST]),
        {"hosts": ("a", "a", "a")},
        "missing",
        (1, 2),
        "ranks 1 and 2 never entered all_reduce #2 of shape [4, 5] in the default group, in which "
        "rank 0 waits; they stand: rank 1 in train.py:41 in step, rank 2 in train.py:42 in step",
    ),
    "died": (
        ([FIRST, SUM], [FIRST, SUM], None),
        {"endings": {2: "was killed by signal 9 (SIGKILL)"}},
        "died",
        (2,),
        "rank 2 was killed by signal 9 (SIGKILL), and never entered all_reduce #2 of",
    ),
    "raised, and the others met it": (
        ([FIRST, call("all_reduce", 2)], [FIRST, call("all_reduce", 2)], [FIRST]),
        {"raised": (*["RuntimeError: [/src/gloo/pair.cc:1] Closed. Look"] * 2, "KeyError: 'x'")},
        "died",
        (2,),
        "rank 2 on b ended with KeyError: 'x', and never entered all_reduce #2 of shape [5]",
    ),
    "order": (
        ([FIRST, waits("broadcast", 2)], [FIRST, SUM], [FIRST, SUM]),
        {},
        "order",
        (0,),
        "the ranks diverge at collective #2: rank 0 on a called broadcast of shape [5] in "
        "train.py:2 in step, ranks 1 and 2 called all_reduce of shape [4, 5] in train.py:2 in step",
    ),
    "shapes": (
        ([FIRST, SUM], [FIRST, SUM], [FIRST, waits("all_reduce", 2, (4, 6))]),
        {},
        "shapes",
        (2,),
        "ranks 0 and 1 called all_reduce of shape [4, 5]",
    ),
    "types": (
        ([FIRST, SUM], [FIRST, SUM], [FIRST, {**SUM, "input_dtypes": ["Half"]}]),
        {},
        "shapes",
        (2,),
        "rank 2 on b called all_reduce of shape [4, 5] (Half)",
    ),
    "another shape of as many numbers, and a scatter of uneven parts": (
        tuple(
            [call("scatter", 2, (size[0],)), waits("all_reduce", 3, size)]
            for size in [(6,), (2, 3), (3, 2)]
        ),
        {},
        "network",
        (0, 1, 2),
        "all ranks have entered all_reduce #3",
    ),
    "late": (
        ([SUM], [SUM], [{**SUM, "time_created_ns": 70 * 10**9}]),
        {},
        "late",
        (2,),
        "rank 2 on b came to all_reduce #2 of shape [4, 5] in the default group 68.0 s after rank "
        "0, later than the time-out of 60 s",
    ),
    "network": (
        ([FIRST, SUM], [FIRST, SUM], [FIRST, SUM]),
        {},
        "network",
        (0, 1, 2),
        "and it does not end: nobody is missing, look at the network between a and b",
    ),
    "a chain over groups": (
        (
            [FIRST, waits("all_reduce", 1, group=PAIR)],
            [FIRST, waits("barrier", 1, (), group=OTHER_PAIR)],
            [FIRST],
        ),
        {},
        "missing",
        (2,),
        "rank 2 on b never entered barrier #1 of shape [] in group 2 (ranks 1 and 2), in which "
        "rank 1 on a waits",
    ),
    "a circle of groups": (
        (
            [FIRST, waits("all_reduce", 1, group=PAIR)],
            [FIRST, waits("all_reduce", 2)],
            [FIRST, waits("all_reduce", 2)],
        ),
        {},
        "order",
        (0, 1, 2),
        "the ranks wait for each other: rank 0 on a in all_reduce #1 of shape [5] in group 1 "
        "(ranks 0 and 1) for rank 1 on a (train.py:1 in step), ranks 1 and 2 in all_reduce #2 of "
        "shape [5] in the default group for rank 0 on a",
    ),
    "two groups, of which the earlier is at fault": (
        (
            [call("all_reduce", 1, (2,), group=PAIR), SUM],
            [call("all_reduce", 1, (3,), group=PAIR), waits("all_reduce", 2, (4, 6))],
            [SUM],
        ),
        {},
        "shapes",
        (0, 1),
        "in group 1 (ranks 0 and 1) the ranks diverge at collective #1",
    ),
    "an end that was noted late": (
        (
            [waits("all_reduce", 1), call("all_reduce", 2), waits("barrier", 3)],
            [FIRST, call("all_reduce", 2), waits("barrier", 3)],
            [FIRST, call("all_reduce", 2)],
        ),
        {},
        "missing",
        (2,),
        "never entered barrier #3",
    ),
    "old ones that one rank has forgotten": (
        ([SUM], [FIRST, SUM], [call("broadcast", 1)]),
        {},
        "missing",
        (2,),
        "never entered all_reduce #2",
    ),
    "nothing open": (
        ([FIRST], [FIRST], [FIRST, {**SUM, "is_p2p": True}]),
        {},
        "none",
        (),
        "no rank stands in a collective",
    ),
}


@pytest.mark.parametrize("case", KINDS)
def test_hang_is_of_a_kind_that_is_recognised_and_said(case):
    answers, more, kind, ranks, sentence = KINDS[case]
    found = explained(*answers, **more)
    assert (found.kind, found.ranks) == (kind, ranks), found
    assert sentence in found.sentence


def test_hang_has_a_table_of_where_each_rank_is():
    table = explained([FIRST, SUM], [FIRST, SUM], [FIRST]).table
    assert table.column("host") == ["a", "a", "b"]
    assert table.column("last completed") == ["all_reduce #1 of shape [5]"] * 3
    assert table.column("standing in") == [*["all_reduce #2 of shape [4, 5]"] * 2, ""]
    assert table.column("waits for") == ["2", "2", ""]
    assert table.column("where it is")[2] == "train.py:42 in step"
    assert "host" not in explained([FIRST], [FIRST], [FIRST], hosts="aaa").table.columns


def test_hang_shows_a_place_in_angle_brackets_in_a_notebook():
    table = Table([{"rank": 0}])
    found = standstill.Standstill("none", (), "it stands in a.py:2 in <module>", table)
    assert "in &lt;module&gt;." in found._repr_html_()


def test_answer_that_would_run_something_is_none(tmp_path):
    folder = tmp_path / flight_recorder.FOLDER
    folder.mkdir()
    (folder / "rank_0").write_bytes(pickle.dumps({"entries": []}))
    (folder / "rank_1").write_bytes(pickle.dumps({"entries": os.system}))
    (folder / "rank_2").write_bytes(pickle.dumps({"entries": []})[:-3])
    (folder / ".rank_3.1").write_bytes(pickle.dumps({"entries": []}))
    assert flight_recorder.read(tmp_path) == {0: {"entries": []}}


def test_answer_is_not_asked_of_another_process_of_the_same_number(tmp_path):
    """The beat of a rank on another host, or of one that is gone: its number may be anybody's."""
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        (tmp_path / "ranks").mkdir()
        (tmp_path / "ranks" / "0.beat").write_text(f"{stranger.pid} 3\n")
        assert hang.find_processes(tmp_path) == {}
        assert hang.read(tmp_path).kind == "none"
        assert stranger.poll() is None, "SIGUSR1 has ended a process that knows nothing of it"
    finally:
        stranger.communicate()


START = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
"""


@pytest.fixture
def hangs(tmp_path):
    """hangs(lines, ranks) -> the error of a script that does these lines in a process group."""

    def run(lines, ranks, **how):
        script = tmp_path / "train.py"
        script.write_text(START + lines)
        with pytest.raises(launch.RunHung) as caught:
            launch.launch(script, ranks, quiet=True, options=Options(hang_seconds=1), **how)
        return caught.value

    return run


def test_hang_by_swapped_collectives_is_named_with_hosts(hangs):
    hosts = 1 if simulated_hosts.why_not() else 2
    lines = "first, second = dist.all_reduce, dist.broadcast\n"
    lines += "if rank == 3: first(torch.ones(2)); second(torch.ones(2), 0)\n"
    lines += "else: second(torch.ones(2), 0); first(torch.ones(2))\n"
    error = hangs(lines, 4, hosts=hosts)
    who = "rank 3 on host1" if hosts == 2 else "rank 3"
    said = "In the default group the ranks diverge at collective #1: ranks 0, 1 and 2 called "
    said += f"broadcast of shape [2] in train.py:8 in <module>, {who} called all_reduce of shape"
    assert said in str(error)
    assert error.error["rank"] == 3
    found = hang.read(error.run)
    assert found.kind == "order"
    assert "collective #1:" in found.sentence
    assert ("host" in found.table.columns) == (hosts == 2)


def test_hang_by_other_shapes_is_found_where_they_were_and_not_where_ranks_wait(hangs):
    """gloo lets a receiver of a broadcast wait for more than is sent, and goes on."""
    lines = "dist.broadcast(torch.ones(8 if rank == 1 else 5), 0)\n"
    lines += "time.sleep(60 * rank)\ndist.barrier()\n"
    error = hangs(lines, 2)
    assert "rank 0 called broadcast of shape [5]" in str(error)
    assert "rank 1 called broadcast of shape [8]" in str(error)
    assert hang.read(error.run).kind == "shapes"


RANK = """
import os, time
rank = int(os.environ["RANK"])
def compute(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
"""
PRINTS = "for k in range(10):\n    print(k, flush=True); time.sleep(0.25)\n"
COMPUTES_ALONE = """
from bootcamp.records.heartbeat import Heartbeat
heart, ended = Heartbeat(os.environ["BOOTCAMP_RUN"], rank), os.environ["BOOTCAMP_RUN"] + "/ended"
while rank == 1 and time.process_time() < 3:
    heart.beat(int(10 * time.process_time()))  # however long this takes on a busy machine
if rank == 1:
    time.sleep(0.6)  # the launcher looks
    open(ended, "w").close()
else:
    while not os.path.exists(ended):
        time.sleep(0.01)
    compute(2.5)
"""
# lines of a script, its ranks, and whether a launcher that waits for one second ends it
WATCHED = {
    "prints": (PRINTS, 1, False),
    "stops printing": (f"{PRINTS}time.sleep(60)", 1, True),
    "computes": ("compute(3)", 1, False),
    "sleeps": ("time.sleep(60)", 1, True),
    # the processor time of a rank that has ended must not hide that of the one that goes on
    "computes alone after another has ended": (COMPUTES_ALONE, 2, False),
}


@pytest.mark.parametrize("case", WATCHED)
def test_hang_is_told_from_ranks_that_print_or_compute(case, tmp_path):
    lines, ranks, hangs = WATCHED[case]
    script = tmp_path / "watched.py"
    script.write_text(RANK + lines)
    how = {"quiet": True, "start": "cold", "options": Options(hang_seconds=1)}
    run = launch.launch(script, ranks, raises=False, **how)
    assert run.status == ("failed" if hangs else "ok"), run.summary
    if hangs:
        assert run.summary["error"]["kind"] == "hang"
        assert "a larger Options(hang_seconds=)" in run.summary["error"]["message"]


def test_hang_is_given_time_where_nobody_sees_steps(tmp_path):
    """A busy script of somebody else, without a number from the reader."""
    script = tmp_path / "busy.py"
    script.write_text("")
    assert launch.Call(script, 1).choose_patience() == (60.0, float("inf"))


def test_hang_in_a_backward_without_a_process_group_is_no_wait_for_others(tmp_path):
    script = tmp_path / "backward.py"
    lines = "import torch\nx = torch.ones(1, requires_grad=True)\n"
    lines += "x.register_hook(lambda _: time.sleep(60 * (1 - rank)))\nx.sum().backward()\n"
    script.write_text(RANK + lines)
    with pytest.raises(launch.RunHung) as caught:
        launch.launch(script, 2, quiet=True, options=Options(hang_seconds=1))
    assert "torch/autograd/graph.py" in str(caught.value)
    assert "waits for the others" not in str(caught.value)


def test_hang_of_a_live_run_is_asked_from_outside_and_read_after_its_end(tmp_path):
    """One rank sleeps, and is then killed."""
    line = "optimizer.step()"
    slow = {line: f"if rank == 1 and step == 2: __import__('time').sleep(60)\n{line}"}
    folder, seen = tmp_path / "run", []

    def beat():
        return heartbeat.read(folder / "ranks" / "1.beat") or (0, 0, 0)

    def look():
        # for a moment rank 0 may be the one that has not entered an all-reduce yet
        seen.append(until(lambda: (found := hang.read(folder)).ranks == (1,) and found))
        command = [sys.executable, "-m", "bootcamp.launcher.hang", str(folder)]
        seen.append(subprocess.run(command, capture_output=True, text=True).stdout)
        os.kill(beat()[0], 9)

    with meanwhile(lambda: beat()[1] >= 2, look):
        how = {"raises": False, "quiet": True, "options": Options(run_dir=folder)}
        flags = {"model": "mlp", "steps": 5, "device": "cpu"}
        run = launch.launch(variant("ddp", "sleeps_ddp", slow), 2, **how, **flags)
    live, printed = seen
    assert (live.kind, live.ranks) == ("missing", (1,))
    assert "rank 1 never entered all_reduce #" in live.sentence
    assert "it stands in sleeps_ddp.py:" in live.sentence
    assert live.sentence in printed
    after = hang.read(run)
    assert (after.kind, after.ranks) == ("died", (1,))
    killed = "rank 1 was killed by signal 9 (SIGKILL), and never entered all_reduce #"
    assert killed in after.sentence
    numbers = [re.search(r"all_reduce #(\d+)", each.sentence)[1] for each in (live, after)]
    assert numbers[0] == numbers[1]
