"""Why ranks hang: each kind found in answers made up here, and in runs that hang for real."""

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import faults
import pytest
from processes import meanwhile, trains, until

from bootcamp import hang
from bootcamp.launcher import launch, simulated_hosts
from bootcamp.launcher.launch import Options
from bootcamp.records import flight_recorder, standstill

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


def explained(*answers, endings=None, raised=(None, None, None)):
    """What the reader makes of these entries of each rank; None for a rank without an answer."""
    ranks = {}
    for number, entries in enumerate(answers):
        groups = [one for one in (DEFAULT, PAIR, OTHER_PAIR) if number in one[1]]
        described = {
            name: {"name": name, "desc": "default_pg" if name == "0" else "", "ranks": str([*its])}
            for name, its in groups
        }
        dump = {"pg_config": described, "host": "aab"[number], "raised": raised[number]}
        ranks[number] = standstill.read_rank(
            None if entries is None else {**dump, "entries": entries},
            f'  File "/home/me/train.py", line {40 + number} in step',
            (endings or {}).get(number),
        )
    return standstill.explain(ranks)


FIRST = call("all_reduce", 1)
SECOND = call("all_reduce", 2)
SUM = waits("all_reduce", 2, (4, 5))
IN_PAIR = waits("all_reduce", 1, group=PAIR)
SCATTERED = [
    [call("scatter", 2, (size[0],)), waits("all_reduce", 3, size)]
    for size in [(6,), (2, 3), (3, 2)]
]
GLOO = "RuntimeError: [/src/gloo/pair.cc:1] Closed. Look"
# kind, who is at fault, words of the sentence, and the entries of each rank
KINDS = {
    "a rank is missing": (
        *("missing", (2,), "rank 2 on b never entered all_reduce #2 of shape [4, 5] in the def"),
        *([FIRST, SUM], [FIRST, SUM], [FIRST]),
    ),
    "two are missing": (
        *("missing", (1, 2), "they stand: rank 1 in train.py:41 in step, rank 2 in train.py:42"),
        *([FIRST, SUM], [FIRST], [FIRST]),
    ),
    "other collectives": (
        *("order", (0,), "the ranks diverge at collective #2: rank 0 on a called broadcast of sh"),
        *([FIRST, waits("broadcast", 2)], [FIRST, SUM], [FIRST, SUM]),
    ),
    "other shapes": (
        *("shapes", (2,), "ranks 0 and 1 called all_reduce of shape [4, 5]"),
        *([FIRST, SUM], [FIRST, SUM], [FIRST, waits("all_reduce", 2, (4, 6))]),
    ),
    "other types": (
        *("shapes", (2,), "rank 2 on b called all_reduce of shape [4, 5] (Half)"),
        *([FIRST, SUM], [FIRST, SUM], [FIRST, {**SUM, "input_dtypes": ["Half"]}]),
    ),
    "other shapes of as many numbers": ("network", (0, 1, 2), "entered all_reduce #3", *SCATTERED),
    "a rank is late": (
        *("late", (2,), "came to all_reduce #2 of shape [4, 5] in the default group 68.0 s after"),
        *([SUM], [SUM], [{**SUM, "time_created_ns": 70 * 10**9}]),
    ),
    "nobody is missing": (
        *("network", (0, 1, 2), "nobody is missing, look at the network between a and b"),
        *([FIRST, SUM], [FIRST, SUM], [FIRST, SUM]),
    ),
    "a chain over groups": (
        *("missing", (2,), "rank 2 on b never entered barrier #1 of shape [] in group 2 (ranks 1"),
        [FIRST, IN_PAIR],
        *([FIRST, waits("barrier", 1, (), group=OTHER_PAIR)], [FIRST]),
    ),
    "a circle of groups": (
        *("order", (0, 1, 2), "the ranks wait for each other: rank 0 on a in all_reduce #1 of s"),
        *([FIRST, IN_PAIR], [FIRST, SUM], [FIRST, SUM]),
    ),
    "two groups, of which the earlier is at fault": (
        *("shapes", (0, 1), "in group 1 (ranks 0 and 1) the ranks diverge at collective #1"),
        [call("all_reduce", 1, (2,), group=PAIR), SUM],
        [call("all_reduce", 1, (3,), group=PAIR), waits("all_reduce", 2, (4, 6))],
        [SUM],
    ),
    "an end that was noted late": (
        *("missing", (2,), "never entered barrier #3"),
        [waits("all_reduce", 1), SECOND, waits("barrier", 3)],
        *([FIRST, SECOND, waits("barrier", 3)], [FIRST, SECOND]),
    ),
    "old ones that one rank has forgotten": (
        *("missing", (2,), "never entered all_reduce #2"),
        *([SUM], [FIRST, SUM], [call("broadcast", 1)]),
    ),
    "nothing open": (
        *("none", (), "no rank stands in a collective"),
        *([FIRST], [FIRST], [FIRST, {**SUM, "is_p2p": True}]),
    ),
}


@pytest.mark.parametrize("case", KINDS)
def test_hang_is_of_a_kind_that_is_recognised_and_said(case):
    kind, ranks, words, *answers = KINDS[case]
    found = explained(*answers)
    assert (found.kind, found.ranks) == (kind, ranks), found
    assert words in found.sentence


def test_hang_names_a_rank_that_died_or_raised_before_the_others():
    ending = {2: "was killed by signal 9 (SIGKILL)"}
    died = explained([FIRST, SUM], [FIRST, SUM], None, endings=ending)
    assert (
        "rank 2 was killed by signal 9 (SIGKILL), and never entered all_reduce #" in died.sentence
    )
    raised = explained([FIRST, SECOND], [FIRST, SECOND], [FIRST], raised=(GLOO, GLOO, "KeyError"))
    assert "rank 2 on b ended with KeyError, and never entered all_reduce #2" in raised.sentence
    for found in (died, raised):
        assert (found.kind, found.ranks) == ("died", (2,))


def test_hang_has_a_table_of_where_each_rank_is():
    table = explained([FIRST, SUM], [FIRST, SUM], [FIRST]).table
    assert table.column("standing in") == [*["all_reduce #2 of shape [4, 5]"] * 2, ""]
    assert table.column("waits for") == ["2", "2", ""]
    assert table.column("where it is")[2] == "train.py:42 in step"


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


RANK = """
import os, time
rank = int(os.environ["RANK"])
def compute(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
"""
PRINTS = "for k in range(8):\n    print(k, flush=True); time.sleep(0.25)\ntime.sleep(60)"
COMPUTES_ALONE = """
from bootcamp.records.heartbeat import Heartbeat
heart, ended = Heartbeat(os.environ["BOOTCAMP_RUN"], rank), os.environ["BOOTCAMP_RUN"] + "/ended"
while rank == 1 and time.process_time() < 2:
    heart.beat(int(10 * time.process_time()))  # however long this takes on a busy machine
if rank == 1:
    time.sleep(0.6)  # the launcher looks
    open(ended, "w").close()
else:
    while not os.path.exists(ended):
        time.sleep(0.01)
    compute(2)
"""


def test_hang_is_told_from_a_rank_that_goes_on_to_print_or_compute(tmp_path):
    def watched(lines, ranks):
        script = tmp_path / f"watched_{ranks}.py"
        script.write_text(RANK + lines)
        how = {"quiet": True, "start": "cold", "options": Options(hang_seconds=1)}
        return launch.launch(script, ranks, raises=False, **how)

    with ThreadPoolExecutor(2) as pool:
        run, other = pool.map(watched, (PRINTS, COMPUTES_ALONE), (1, 2))
    assert run.output().split() == list("01234567")
    assert run.summary["error"]["kind"] == "hang"
    assert "a larger Options(hang_seconds=)" in run.summary["error"]["message"]
    # the processor time of a rank that has ended must not hide that of the one that goes on
    assert other.status == "ok"


@pytest.mark.slow
def test_hang_of_a_live_run_is_asked_from_outside_and_read_after_its_end(tmp_path):
    """One rank sleeps, and is then killed."""
    script, folder, seen = faults.in_rank_1("ddp", faults.HANGS["line"]), tmp_path / "run", []

    def ask():
        """For a moment either rank may be the one that has not entered an all-reduce yet."""
        found = hang.read(folder)
        return found.ranks == (1,) and found.sentence == hang.read(folder).sentence and found

    def look():
        seen.append(until(ask))
        command = [sys.executable, "-m", "bootcamp.launcher.hang", str(folder)]
        seen.append(subprocess.run(command, capture_output=True, text=True).stdout)
        os.kill(faults.pids_of_ranks(folder)[1], 9)

    with meanwhile(lambda: trains(folder, 2), look):
        options = Options(run_dir=folder)
        run = launch.launch(script, 2, raises=False, options=options, **faults.SHORT)
    live, printed = seen
    assert live.kind == "missing"
    assert "rank 1 never entered all_reduce #" in live.sentence
    assert "it stands in faulty_ddp.py:" in live.sentence
    assert live.sentence in printed
    after = hang.read(run)
    assert (after.kind, after.ranks) == ("died", (1,))
    missed = live.sentence[live.sentence.index("never entered") :].partition(" of ")[0]
    assert f"rank 1 was killed by signal 9 (SIGKILL), and {missed}" in after.sentence
