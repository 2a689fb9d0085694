"""The clinic: every case is broken, can be fixed, and has an answer to those who fix it wrongly.

Broken and fixed scripts are launched; what readers get wrong is judged on written observations. And
the index of errors: each recorded text belongs to one entry.
"""

import copy
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from bootcamp.classroom import errors, tasks
from bootcamp.launcher import arguments
from bootcamp.records import summary
from bootcamp_lessons import exercise
from bootcamp_lessons.labs import clinic, clinic_judges
from bootcamp_lessons.labs.clinic_judges import Observed

pytestmark = pytest.mark.timeout(600)  # one fixture runs all cases; a loaded machine takes long

CASES = clinic.CASES
HERE = {file: case for file, case in CASES.items() if not arguments.missing(case.framework)}
MINE = 'torch.save(state, "checkpoint.pt")'
OPENED = """        with open("checkpoint.pt", "wb") as file:
            torch.save(state, file)
"""
ALL_RANDOM_STATES = """    states = [None] * world
    dist.all_gather_object(states, state["random"])
"""
MEAN = "    mean = loss.detach() / world\n    dist.all_reduce(mean)\n"
FLAG = "    flag = (loss.detach() < 0.5).int()\n    dist.all_reduce(flag)\n"
CLIPS = "    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5).full_tensor()\n"
BY_HAND = """    gradients = [parameter.grad.to_local() for parameter in model.parameters()]
    squares = sum(gradient.square().sum() for gradient in gradients)
    dist.all_reduce(squares)
    norm = squares.sqrt()
    for gradient in gradients:
        gradient.mul_((0.5 / norm).clamp(max=1.0))
"""
BREAK = "    if loss.item() < 0.5:\n        break\n"
VALID = "            loss = nn.functional.mse_loss(model(valid), valid.sum(dim=1, keepdim=True))\n"
SPLIT, TOGETHER = "[24, 8]", "DistributedDataParallel(Net(gpus)"
BEFORE = {"rank = dist.get_rank()\n": "rank = dist.get_rank()\ntorch.manual_seed(0)\n"}
SPAWN = "args=(machine, totals)"
OWN_SHARE = """            part = valid[rank::world]
            loss = nn.functional.mse_loss(model.module(part), part.sum(dim=1, keepdim=True))
"""
LAST_LINE = 'print(f"rank {rank}: the loss of its share is {loss.item():.3f}\\n", end="")\n'
HELD_AGAINST_ONE_RANK = ("wrapped_twice", "summed", "sometimes_unused", "clipped_by_shard")
# other ways of fixing that are as right, on top of the solution: the observer must not mind them
RIGHT = {
    "saved_by_all": [
        {f"        {MINE}\n": OPENED},
        {"    if rank == 0:\n": f"{ALL_RANDOM_STATES}    if rank == 0:\n"},
    ],
    "wrapped_twice": [{LAST_LINE: f"{LAST_LINE}dist.destroy_process_group()\n"}],
    "own_loss": [
        {MEAN: "    mean = loss.detach().clone()\n    dist.broadcast(mean, src=0)\n"},
        {MEAN: "    mean = loss.detach().clone()\n    dist.all_reduce(mean, dist.ReduceOp.MAX)\n"},
        {MEAN: FLAG, "mean.item() < 0.5": "flag.item()"},
    ],
    "clipped_by_shard": [{CLIPS: BY_HAND}],
    "drawn_anew": [{f"{SPLIT}, generator=torch.Generator().manual_seed(0)": f"{SPLIT}"} | BEFORE],
}
# ways that look like a fix, on top of the broken script, and what is said of each
LOOK_RIGHT = [
    ("own_loss", {BREAK: ""}, "the loss does not decide any more"),
    ("own_loss", {BREAK: "", "range(200)": "range(12)"}, "the loss does not decide any more"),
    ("evaluated_on_rank_0", {VALID: "            loss = torch.tensor(0.0)\n"}, "0.000, 0.000"),
    (
        "evaluated_on_rank_0",
        {VALID: OWN_SHARE, "    if rank == 0:\n": "    if True:\n"},
        "averaged",
    ),
    ("sometimes_unused", {"with_second=step % 2 == 1": "with_second=True"}, "Both heads must be"),
    ("shard_saved", {"model.state_dict()": "get_model_state_dict(model, options=WHOLE)"}, "hang"),
    ("clipped_by_shard", {"(0.5 / norm).clamp(max=1.0)": "1.0"}, "Clipping itself has to stay"),
    ("net_of_gpus", {"DDP(Net(gpus), device_ids=gpus": TOGETHER}, "only [0, 1, 4, 5] are used"),
    ("spawned_per_machine", {SPAWN: "args=(here, totals)"}, "it was started again"),
]
if "deepspeed_copied" in HERE:  # with two faults fixed, the third one is found
    TWO_FIXED = {'steps": 1': 'steps": 4', "model(batch)": "model(batch.bfloat16()).float()"}
    LOOK_RIGHT += [("deepspeed_copied", TWO_FIXED, "save_checkpoint is a collective")]


@pytest.fixture(scope="module")
def trials():
    """{case: what was observed of the fixed script}: the judges' verdicts on it are looked at."""

    def run(case):
        trial = clinic.Trial(case, case.solution_path())
        assert case.judge(trial)
        return Observed(
            trial.ranks,
            reseeded=trial.reseeded if case.file == "own_loss" else {},
            fixed=copy.deepcopy(trial.ranks[0]),
            alone=trial.alone if case.file in HELD_AGAINST_ONE_RANK else {},
        )

    with ThreadPoolExecutor(4) as pool:
        return dict(zip(HERE, pool.map(run, HERE.values()), strict=True))


@pytest.mark.solves(*(case.name for case in CASES.values()))
@pytest.mark.parametrize("case", HERE.values(), ids=lambda case: case.file)
def test_broken_is_rejected_and_fixed_accepted(case, trials):
    broken = exercise.try_out(case, case.broken)
    assert not broken.solved
    assert "Seen: " in str(broken)
    assert case.hint in str(broken)
    assert case.judge(trials[case.file])


@pytest.mark.parametrize(
    ("file", "changes"), [(file, changes) for file, ways in RIGHT.items() for changes in ways]
)
def test_another_right_way_is_accepted(file, changes, tmp_path):
    case, path = CASES[file], tmp_path / f"{file}.py"
    path.write_text(clinic.replace_once(case.solution_path().read_text(), changes))
    result = exercise.try_out(case, path)
    assert result.solved, result


@pytest.mark.parametrize(("file", "changes", "says"), LOOK_RIGHT)
def test_what_only_looks_like_a_fix_is_rejected(file, changes, says, tmp_path):
    case, path = CASES[file], tmp_path / f"{file}.py"
    text = clinic.replace_once(case.starting_point(), changes)
    if "WHOLE" in text:  # the right call, under the condition
        importing = "from torch.distributed.checkpoint.state_dict import StateDictOptions"
        options = "WHOLE = StateDictOptions(full_state_dict=True)"
        text = text.replace(
            "from torch import nn\n",
            f"from torch import nn\n{importing}, get_model_state_dict\n\n{options}\n",
        )
    path.write_text(text)
    result = exercise.try_out(case, path)
    assert not result.solved
    assert says in str(result), result


def setting(name, *values):
    """A change of what was observed: this value on all ranks, or one for each."""

    def change(seen):
        for rank, mine in enumerate(seen.ranks):
            mine[name] = values[rank % len(values)]

    return change


def shifting(name, *ranks, by=0.5):
    """A change of what was observed: these ranks' numbers are larger."""

    def change(seen):
        for rank in ranks:
            seen.ranks[rank][name] = [number + by for number in seen.ranks[rank][name]]

    return change


def holding(share):
    return lambda seen: setting("held", share * len(seen.ranks[0]["parameters"]))(seen)


def head_unchanged(seen):
    for mine in seen.ranks:
        mine["parameters"][-17:] = mine["at_first"][-17:]


def stopping(*steps, losses=None, reseeded=None):
    """Ranks that stop in these steps, after these losses; what one rank does with other data."""

    def change(seen):
        setting("step", *steps)(seen)
        if losses:
            setting("backward_losses", *losses)(seen)
        seen.reseeded["backward_losses"] = reseeded or [2.0, 0.6, 0.4]

    return change


def splitting(*read, held_out=tuple(range(8))):
    """Ranks that read these samples and hold out others."""

    def change(seen):
        setting("seen", *read)(seen)
        setting("held_out", held_out)(seen)

    return change


FIRST, LAST = list(range(8, 20)), list(range(20, 32))
EVENS, ODDS = list(range(0, 32, 2)), list(range(1, 32, 2))
SHIFTED = shifting("parameters", 1)
BOTH = shifting("parameters", 0, 1)
WRONG = {
    "no_address": [
        (setting("total", 1, 2), "has met nobody"),
    ],
    "wrapped_twice": [
        (holding(1.0), "it is fully_shard that has to stay"),
        (holding(0.25), "The mesh has rows of two"),
        (SHIFTED, "Nobody brings the ranks together"),
    ],
    "same_order": [
        (setting("seen", [list(range(32))] * 3), "every rank reads all of them"),
        (setting("seen", [EVENS] * 3), "must shuffle alike"),
        (setting("seen", [EVENS] * 3, [ODDS] * 3), "the epoch that it was told"),
        (
            setting("seen", [EVENS, EVENS[::-1], EVENS[1:] + EVENS[:1]], [ODDS] * 3),
            "Shuffle before the samples are shared out",
        ),
    ],
    "moved_on_rank_0": [
        (setting("parameters", [0.1] * 161, []), "has a shape and no numbers"),
        (SHIFTED, "must be there on every rank"),
        (setting("parameters", [0.0] * 161), "to_empty gives memory, not numbers"),
    ],
    "saved_by_all": [
        (setting("saved", ["checkpoint-0.pt"], ["checkpoint-1.pt"]), "N copies cost N times"),
        (setting("saved", ["checkpoint.pt"]), "It went well this time, by chance"),
        (setting("restored", 1, 0), "Did a rank read before the file was whole?"),
    ],
    "shard_saved": [
        (setting("restored", [0.0] * 212), "What was loaded is not what the ranks hold"),
        (setting("saved", ["model.pt"]), "All ranks gather, one writes"),
        (holding(1.0), "fully_shard has to stay"),
        (lambda seen: seen.ranks[0].pop("restored"), "`restored` is gone: leave it there"),
    ],
    "clipped_by_shard": [
        (BOTH, "One factor for all shards"),
        (holding(1.0), "fully_shard has to stay"),
    ],
    "summed": [
        (BOTH, "Divide once"),
        (shifting("gradients", 0, 1), "Correct the gradient"),
        (SHIFTED, "The all-reduce must stay"),
    ],
    "sometimes_unused": [
        (BOTH, "as one device trains them"),
        (head_unchanged, "a second head that learns"),
        (SHIFTED, "Nobody brings the ranks together"),
    ],
    "evaluated_on_rank_0": [
        (setting("buffers", {"num_batches_tracked": 6}), "model.eval() comes before"),
        (setting("measured", [7.0, 6.0]), "3 validation losses on rank 0"),
        (setting("measured", [0.0] * 3), "losses have to be averaged"),
        (shifting("measured", 0), "losses have to be averaged"),
        (SHIFTED, "The training itself still needs DDP"),
    ],
    "own_start": [
        (setting("noise", [0.1]), "both ranks draw the same numbers"),
        (shifting("at_first", 1), "Averaged gradients move all models alike"),
        (SHIFTED, "their gradients are not averaged"),
    ],
    "own_loss": [
        (stopping(11, 12), "Each rank decides by a loss of its own"),
        (stopping(12, reseeded=[2.0, 0.6, 0.4, 0.3]), "the loss does not decide any more"),
        (stopping(12, reseeded=[2.0, 0.6]), "the loss does not decide any more"),
        (stopping(3, losses=[[2, 1, 0.4, 0.3], [2, 1, 0.4, 0.3]]), "is it a sum of their losses?"),
        (stopping(1, losses=[[2, 0.7], [2, 0.6]]), "the loss does not decide any more"),
    ],
    "deepspeed_copied": [
        (setting("saved", ["model_states.pt", "rank_0_optim_states.pt"], []), "of rank 1"),
        (setting("seen", [list(range(32))] * 2), "this loader needs"),
        (setting("seen", [EVENS, EVENS], [EVENS, EVENS]), "another place for each"),
        (SHIFTED, "model.backward and model.step must stay"),
    ],
    "net_of_gpus": [
        (setting("gpus", [0, 1], [0, 1], [4, 5], [0, 1]), "counts the ranks of one host"),
        (setting("gpus", [0, 0], [0, 0], [1, 1], [2, 2]), "The cut has to stay"),
        (SHIFTED, "DistributedDataParallel has to stay"),
    ],
    "spawned_per_machine": [
        (setting("totals", [10, 10, 10, 10]), "on the machine where it is called"),
        (setting("totals", [3, 3, 0, 0], [0, 0, 7, 7]), "has not met the other machine"),
    ],
    "drawn_anew": [
        (splitting([FIRST] * 3, [LAST] * 3, held_out=[8, 9]), "have drawn different splits"),
        (splitting([FIRST + LAST] * 3), "The sampler has to stay"),
        (splitting([FIRST] * 3), "positions are disjoint"),
        (splitting([FIRST] * 3, [LAST] * 3), "set_epoch has to stay"),
    ],
}

ERRORS = [  # with which wrong fixes end, and what is said of each
    ("no_address", "the ranks hang", "Do they agree on address and port"),
    ("no_address", "EADDRINUSE", "Choose another one"),
    ("saved_by_all", "in line 9: torch.load(path)", "did it begin before the file was whole?"),
    ("deepspeed_copied", "train_batch_size is not equal", "Name two of the three numbers"),
    ("deepspeed_copied", "mat1 and mat2 must have the same dtype", "cast at both ends"),
    ("deepspeed_copied", "Type fp16 is not supported on your device", "bf16 works"),
    ("deepspeed_copied", "the ranks hang", "save_checkpoint is a collective"),
    ("net_of_gpus", "IndexError: list index out of range", "invalid device ordinal"),
    ("net_of_gpus", "device_ids can only be None", "This model has put itself on two"),
    ("spawned_per_machine", "wait timeout after 5000ms", "wait for one that nobody starts"),
    ("spawned_per_machine", "EADDRINUSE", "of its own machine only"),
]


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [(file, *wrong) for file in HERE for wrong in WRONG[file]],
)
def test_what_readers_get_wrong_is_answered(file, change, says, trials):
    seen = copy.deepcopy(trials[file])
    change(seen)
    with pytest.raises(tasks.Wrong) as wrong:
        CASES[file].judge(seen)
    assert says in f"{wrong.value.expected} {wrong.value.seen} {wrong.value.meaning}"


@pytest.mark.parametrize(("file", "error", "says"), ERRORS)
def test_an_error_of_a_wrong_fix_is_explained(file, error, says):
    assert says in CASES[file].meaning(error)


@pytest.mark.parametrize("both_small_from", [2, 3])
def test_ranks_may_stop_by_the_largest_the_smallest_or_one_of_their_losses(both_small_from, trials):
    first, second = [2.0, 0.9, 0.4, 0.3], [2.0, 1.0, 0.6, 0.4]
    if both_small_from == 2:  # one rank's loss is small: the smallest decides, or a broadcast
        first, second = first[:3], second[:3]
    seen = copy.deepcopy(trials["own_loss"])
    stopping(len(first) - 1, losses=[first, second])(seen)
    assert "by a loss that is small enough" in clinic_judges.judge_common_stop(seen)


def test_an_error_of_a_wrong_fix_comes_with_what_the_index_knows(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("first = 1\nmodel = Net()\n")
    said = f'  File "{path}", line 2, in <module>\nAttributeError: cannot assign module before '
    said += "Module.__init__() call"
    wrong = tasks.make_wrong(summary.failure(0, "raised", "rank 0 failed", said), path)
    assert "This was rank 0, in line 2: model = Net()" in wrong.seen
    assert "parent class was not initialised" in wrong.meaning
    stack = f'rank 0, 1 steps done:\n  File "{path}", line 2\nrank 1, 1 steps done:\n  File "x"'
    said = "the ranks hang: no rank has finished a step for 6 s. More"
    hung = tasks.make_wrong(summary.failure(None, "hang", said, stack), path)
    assert "rank 0 is in line 2: model = Net()" in hung.seen
    assert "rank 1 is in no line of the script" in hung.seen
    assert "one was called on some ranks only" in hung.meaning


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.file)
def test_a_case_says_what_it_is_and_asks_one_question(case):
    first = case.broken.read_text().splitlines()[0].lstrip('"')
    started = "python" if case.ranks == 1 or case.flags.get("by_hand") else "torchrun"
    assert first.startswith(started)
    assert f"src/snippets/clinic/{case.file}.py" in first
    assert case.task in case.broken.read_text()
    assert len(case.options) == 4
    assert sum(option.get("right", False) for option in case.options) == 1
    assert len({option["reply"] for option in case.options}) == 4
    asked = str(clinic.diagnose(case.name))
    assert case.question in asked
    assert "none yet" in asked
    for letter, option in zip("abcd", case.options, strict=True):
        answer = str(clinic.diagnose(case.name, letter))
        assert option["reply"] in answer
        assert ("\nYes. " in answer) == option.get("right", False)
    assert 'give one of "a", "b", "c", "d"' in clinic.diagnose(case.name, "x")


def test_right_answers_are_spread_over_the_letters():
    right = [
        [option.get("right") for option in case.options].index(True) for case in CASES.values()
    ]
    assert all(right.count(place) >= 2 for place in range(4))


def test_every_script_of_the_clinic_is_a_case():
    assert {p.stem for p in clinic.FOLDER.glob("[a-z]*.py")} == set(CASES) == set(WRONG)
    answered = Counter(file for file, *_ in [*LOOK_RIGHT, *ERRORS])
    assert all(len(WRONG[file]) + answered[file] >= 3 for file in CASES)


def test_a_reader_goes_through_a_case(monkeypatch, tmp_path):
    monkeypatch.setattr(tasks, "WORK", tmp_path)
    name, fix = "clinic_same_order", "    sampler.set_epoch(epoch)\n    seen.append([])"
    clinic._run_case(CASES["same_order"])
    with monkeypatch.context() as only_what_the_round_saw:
        only_what_the_round_saw.setattr(clinic.Case, "run", None)
        seen = clinic.examine(name)
    path = exercise.find(name).path
    assert path.read_text() == seen.script == CASES["same_order"].starting_point()
    assert "rank 1, epoch 2: samples" in seen
    assert seen.script in seen._repr_markdown_()
    assert "still the starting point" in str(exercise.check(name))
    assert "Your script is" in exercise.start(name)
    path.write_text(path.read_text().replace("    seen.append([])", fix))
    assert "set_epoch" in clinic.examine(name).script
    assert exercise.check(name).solved
    path.write_text(CASES["same_order"].starting_point())
    assert "+    sampler.set_epoch(epoch)" in str(exercise.solution(name))


def test_without_its_framework_a_case_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("BOOTCAMP_WITHOUT", "deepspeed")
    monkeypatch.setattr(tasks, "WORK", tmp_path)
    case = CASES["deepspeed_copied"]
    assert clinic._run_case(case)["ended"] == "not run here"
    for said in (clinic.examine(case.name), exercise.try_out(case, case.solution_path())):
        assert "Deepspeed is not installed here" in str(said)


def test_a_change_that_fits_nowhere_is_an_error():
    with pytest.raises(ValueError, match="'gone' is there 0 times"):
        clinic.replace_once("text", {"gone": ""})


@pytest.mark.parametrize("record", errors.read_recorded(), ids=lambda r: r["provoked_by"])
def test_a_recorded_error_is_found_by_its_own_entry(record):
    assert errors.find(record["text"]).name == record["entry"]
    told = str(errors.explain(f"noise before\n{record['text']}\n"))
    assert errors.find(record["text"]).means in told
    assert record["torch"]
    assert record["machine"]


def test_the_index_was_recorded_and_names_no_machine():
    assert len(errors.read_recorded()) >= 90
    known = {entry.name for entry in errors.ENTRIES}
    assert {record["entry"] for record in errors.read_recorded()} <= known
    text = errors.RECORDED.read_text()
    assert not [place for place in ("/work/", "/home/", "/tmp/", "/root/") if place in text]


@pytest.mark.parametrize(
    ("text", "name", "helps"),
    [
        ("ValueError: SyncBatchNorm layers only work with GPU modules", "sync_batchnorm_on_cpu",
         ".eval() of each BatchNorm"),
        ("ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!", "no_nccl",
         'Use "gloo"'),
        ("ValueError: DistributedDataParallel device_ids and output_device arguments only work "
         "with single-device/multiple-device GPU modules or CPU modules, but got device_ids [0], "
         "output_device None, and module parameters {device(type='cpu')}.", "device_ids_of_a_cpu",
         "on a CPU leave it out"),
    ],
)  # fmt: skip
def test_what_gpu_users_type_on_a_cpu_is_explained(text, name, helps):
    told = errors.explain(text)
    assert told.entry.name == name
    assert helps in str(told)


def test_an_unknown_error_gets_three_things_to_look_at():
    told = str(errors.explain("KeyError: 'cheese'"))
    assert "does not know" in told
    assert all(thing in told for thing in errors.UNKNOWN.values())
    assert len(errors.UNKNOWN) == 4, "the answer, and three things"
    assert "<dl>" in errors.explain("KeyError: 'cheese'")._repr_html_()


def test_explain_takes_exceptions_and_the_last_one(monkeypatch):
    wrong = RuntimeError("Distributed package doesn't have NCCL built in")
    assert errors.explain(wrong).entry.name == "no_nccl"
    monkeypatch.setattr(errors.sys, "last_value", wrong, raising=False)
    assert errors.explain().entry.name == "no_nccl"
    monkeypatch.delattr(errors.sys, "last_value")
    with pytest.raises(ValueError, match="paste a text"):
        errors.explain()


def test_the_index_is_searched_by_words_and_by_a_pasted_error():
    assert len(errors.table()) == len(errors.ENTRIES)
    assert 0 < len(errors.table("optimizer")) < len(errors.ENTRIES)
    assert len(errors.table("no such words in it")) == 0
    assert len(errors.table("pair.cc:5] Connection closed by peer [10.0.0.7]:4421. GLHF")) == 1
    assert "recorded" in errors.table().caption.lower()


def test_the_search_box_follows(monkeypatch):
    import IPython.display

    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda it, **_: shown.append(it))
    controls = errors.index()
    assert controls["words"].description == "search"
    assert any("<table>" in getattr(it, "data", "") for it in shown)
