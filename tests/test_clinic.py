"""The clinic: every case is broken, can be fixed, and has an answer to those who fix it wrongly.

Broken and fixed scripts are launched; what readers get wrong is judged on written observations.
"""

import copy
import dataclasses
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from bootcamp.classroom import tasks
from bootcamp.launcher import arguments
from bootcamp.records import summary
from bootcamp_lessons import exercise
from bootcamp_lessons.labs import clinic, clinic_judges
from bootcamp_lessons.labs.clinic_judges import Observed

pytestmark = pytest.mark.timeout(600)  # one fixture runs all cases; a loaded machine takes long

CASES = clinic.CASES
HERE = {file: case for file, case in CASES.items() if not arguments.missing(case.framework)}
CURVES = [file for file, case in HERE.items() if "losses" in case.keep]  # those that look right
WITH_ALONE = ("wrapped_twice", "summed", "sometimes_unused", "own_part_first", "own_count")


@pytest.fixture(scope="module")
def broken():
    """{(case, ranks): the answer to a broken script}, and rank 0's output: all tried at once."""
    others = [dataclasses.replace(HERE[file], ranks=6 - HERE[file].ranks) for file in CURVES]
    tried, printed, run = [*HERE.values(), *others], {}, clinic.Case.run

    def run_and_keep(case, path, ranks, **flags):
        seen = run(case, path, ranks, **flags)
        printed[case.file, ranks] = seen.output(0)
        return seen

    with ThreadPoolExecutor(4) as pool, pytest.MonkeyPatch.context() as keeping:
        keeping.setattr(clinic.Case, "run", run_and_keep)
        answers = pool.map(lambda case: exercise.try_out(case, case.broken), tried)
        return dict(zip([(c.file, c.ranks) for c in tried], answers, strict=True)), printed


@pytest.fixture(scope="module")
def trials():
    """{case: what was observed of the fixed script}: the judges' verdicts on it are looked at."""

    def run(case):
        trial = clinic.Trial(case, case.solution_path())
        seen = Observed(
            trial.fixed,
            reseeded=trial.reseeded if case.file == "own_loss" else {},
            fixed=copy.deepcopy(trial.fixed),
            alone=trial.alone if case.file in WITH_ALONE else {},
        )
        assert case.judge(seen)
        return seen

    with ThreadPoolExecutor(4) as pool:
        return dict(zip(HERE, pool.map(run, HERE.values()), strict=True))


@pytest.mark.solves(*(case.name for case in CASES.values()))
@pytest.mark.parametrize("case", HERE.values(), ids=lambda case: case.file)
def test_broken_scripts_are_rejected_and_fixed_ones_accepted(case, broken, trials):
    for answer in [answer for (file, _), answer in broken[0].items() if file == case.file]:
        assert not answer.solved
        assert "Seen: " in str(answer)
        assert case.hint in str(answer)
    assert case.judge(trials[case.file])


SAVE = '        torch.save(state, "checkpoint.pt")\n'
OPEN_AND_SAVE = """        with open("checkpoint.pt", "wb") as file:
            torch.save(state, file)
"""
MEAN = "    mean = loss.detach() / world\n    dist.all_reduce(mean)\n"
FLAG = "    flag = (loss.detach() < 0.5).int()\n    dist.all_reduce(flag)\n"
CLIP = "    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5).full_tensor()\n"
CLIP_BY_HAND = """    gradients = [parameter.grad.to_local() for parameter in model.parameters()]
    squares = sum(gradient.square().sum() for gradient in gradients)
    dist.all_reduce(squares)
    norm = squares.sqrt()
    for gradient in gradients:
        gradient.mul_((0.5 / norm).clamp(max=1.0))
"""
LAST_LINE = 'print(f"rank {rank}: the loss of its share is {loss.item():.3f}\\n", end="")\n'
DRAW = "[24, 8]"
TOTAL = "    total = counts[mine].sum()\n    dist.all_reduce(total)\n"
PASS_OVER = "        if step < done:\n            continue\n"
DEAL_OUT = "range(32), batch_size=2, sampler=DistributedSampler(range(32))"
PLACE = "self.rank * workers.num_workers + workers.id"
# other ways of fixing that are as right, on top of the solution: the observer must not mind them
RIGHT = [
    ("saved_by_all", {SAVE: OPEN_AND_SAVE}),
    ("wrapped_twice", {LAST_LINE: f"{LAST_LINE}dist.destroy_process_group()\n"}),
    ("own_loss", {MEAN: FLAG, "mean.item() < 0.5": "flag.item()"}),
    ("clipped_by_shard", {CLIP: CLIP_BY_HAND}),
    (
        "drawn_anew",
        {
            f"{DRAW}, generator=torch.Generator().manual_seed(0)": DRAW,
            "rank = dist.get_rank()\n": "rank = dist.get_rank()\ntorch.manual_seed(0)\n",
        },
    ),
    ("own_count", {TOTAL: "    total = counts.sum()\n"}),
    ("streamed", {PLACE: "self.world * workers.id + self.rank"}),
    (
        "read_again",
        {DEAL_OUT: "[*DistributedSampler(range(32))][2 * done :], 2", PASS_OVER: ""}
        | {"enumerate(loader):": "enumerate(loader, done):"},
    ),
]
# and those that begin with the broken program
FREE = "log, written, writing = [], threading.Lock(), threading.Event()\n"
RIGHT_FROM_THE_START = [
    ("one_batch_more", {"mine = list(range(len(inputs)))": "mine = [*range(33), 0]"}),
    ("forked_late", {FREE: f"{FREE}os.register_at_fork(after_in_child=written._at_fork_reinit)\n"}),
    (
        "built_early",
        {
            "fully_shard(model)\n": "fully_shard(model)\n"
            "optimizer.param_groups[0]['params'] = list(model.parameters())\n"
        },
    ),
]


@pytest.mark.parametrize(("file", "changes"), RIGHT + RIGHT_FROM_THE_START)
def test_other_right_ways_are_accepted(file, changes, tmp_path):
    case, path = CASES[file], tmp_path / f"{file}.py"
    is_fixed = (file, changes) in RIGHT
    text = case.solution_path().read_text() if is_fixed else case.starting_point()
    path.write_text(clinic.replace_once(text, changes))
    result = exercise.try_out(case, path)
    assert result.solved, result


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("file", CURVES)
def test_fixes_of_curves_that_look_right_train_as_one_rank(file, ranks, broken, tmp_path):
    """With AdamW, as they come, and once with SGD."""
    case, path = CASES[file], tmp_path / f"{file}.py"
    fixed = clinic._observe_solution(file, ranks)[0]
    pairs = [(fixed, clinic._observe_solution(file, 1)[0])]
    if ranks == case.ranks:
        path.write_text(case.solution_path().read_text().replace("AdamW", "SGD"))
        pairs += [[case.observe(path, number)[0] for number in (ranks, 1)]]
    within = 5e-3 if file == "policy_of_the_root" else 1e-5  # sixteen bits round otherwise
    for together, alone in pairs:
        assert together["losses"] == pytest.approx(alone["losses"], abs=within)
    if file == "policy_of_the_root":  # 2,112 numbers, twice a step, in two bytes
        assert fixed["gathered"] == 20 * 2 * 2112 * 2
    if file == "expert_without_rows":  # it trains right until it hangs, in step 7 or 3
        said, line = str(broken[0][file, ranks]), "is in line 46: loss.backward()"
        assert ("the ranks diverge at collective #" in said, said.count(line)) == (True, ranks)
        assert "_observe.py" not in said
        printed = re.findall(r"loss is (\S+)", broken[1][file, ranks])
        assert printed == [f"{loss:.3f}" for loss in fixed["losses"]][: {2: 7, 4: 3}[ranks]]


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
TURNED = [EVENS, EVENS[::-1], EVENS[1:] + EVENS[:1]]
SHARED_GPU = setting("gpus", [0, 1], [0, 1], [4, 5], [0, 1])
SHIFTED = shifting("parameters", 1)
BOTH = shifting("parameters", 0, 1)
GATHER_ON_RANK_0 = {  # the right call, under the condition
    "from torch import nn\n": """from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
""",
    "model.state_dict()": (
        "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))"
    ),
}
FSDP_FIRST = {
    "fully_shard(model)": """from torch.distributed.tensor import parallel
model = nn.Linear(8, 16)
fully_shard(model, mesh=mesh["data"])
parallel.parallelize_module(model, mesh["tensor"], parallel.ColwiseParallel())"""
}
HOURS = '__import__("datetime").timedelta(hours=2)'
PART = "No rank may go on before all parts are added up"
EXPERTS = "AdamW([{'params': model[1:].parameters()}, "
TWICE_THE_RATE = {
    "AdamW(model.": f"{EXPERTS}{{'params': router.parameters(), 'lr': 0.02}}], lr=0.01)  #"
}
ONLY_IF_ALL_HAVE_ROWS = {  # so the ranks agree, and tokens are left out
    "            if len(places):\n": """            rows = torch.tensor(len(places))
            dist.all_reduce(rows, op=dist.ReduceOp.MIN)
            if rows:
"""
}
TWO_FIXED = {
    'steps": 1': 'steps": 4',
    "model(batch)": "model(batch.bfloat16()).float()",
}  # of three
# a script that somebody has changed, an observation of it, or the error with which it ended
MISTAKES = [
    ("no_address", setting("total", 1, 2), "has met nobody"),
    ("wrapped_twice", holding(1.0), "it is fully_shard that has to stay"),
    ("wrapped_twice", holding(0.25), "The mesh has rows of two"),
    ("wrapped_twice", SHIFTED, "Nobody brings the ranks together"),
    ("same_order", setting("seen", [list(range(32))] * 3), "every rank reads all of them"),
    ("same_order", setting("seen", [EVENS] * 3), "must shuffle alike"),
    ("same_order", setting("seen", [EVENS] * 3, [ODDS] * 3), "the epoch that it was told"),
    (
        "same_order",
        setting("seen", TURNED, [ODDS] * 3),
        "Shuffle before the samples are shared out",
    ),
    ("moved_on_rank_0", setting("parameters", [0.1] * 161, []), "has a shape and no numbers"),
    ("moved_on_rank_0", SHIFTED, "must be there on every rank"),
    ("moved_on_rank_0", setting("parameters", [0.0] * 161), "to_empty gives memory, not numbers"),
    ("saved_by_all", setting("saved", ["0.pt"], ["1.pt"]), "N copies cost N times"),
    ("saved_by_all", setting("saved", ["checkpoint.pt"]), "It went well this time, by chance"),
    ("saved_by_all", setting("restored", 1, 0), "Did a rank read before the file was whole?"),
    ("shard_saved", setting("restored", [0.0] * 212), "What was loaded is not what the ranks hold"),
    ("shard_saved", setting("saved", ["model.pt"]), "All ranks gather, one writes"),
    ("clipped_by_shard", BOTH, "One factor for all shards"),
    ("clipped_by_shard", holding(1.0), "fully_shard has to stay"),
    ("clipped_by_shard", {"(0.5 / norm).clamp(max=1.0)": "1.0"}, "Clipping itself has to stay"),
    ("summed", BOTH, "too large by their number"),
    ("summed", shifting("gradients", 0, 1), "correct the gradient"),
    ("summed", SHIFTED, "Nobody brings the ranks together"),
    ("sometimes_unused", BOTH, "as one device trains them"),
    ("sometimes_unused", head_unchanged, "a second head that learns"),
    ("sometimes_unused", SHIFTED, "Nobody brings the ranks together"),
    ("evaluated_on_rank_0", setting("buffers", {"num_batches_tracked": 6}), "model.eval()"),
    ("evaluated_on_rank_0", setting("measured", [7.0, 6.0]), "3 validation losses on rank 0"),
    ("evaluated_on_rank_0", shifting("measured", 0), "losses have to be averaged"),
    ("own_start", setting("noise", [0.1]), "both ranks draw the same numbers"),
    ("own_start", shifting("at_first", 1), "Averaged gradients move all models alike"),
    ("own_start", SHIFTED, "their gradients are not averaged"),
    ("own_loss", stopping(11, 12), "Each rank decides by a loss of its own"),
    ("own_loss", stopping(12, reseeded=[2.0, 0.6, 0.4, 0.3]), "the loss does not decide any more"),
    ("own_loss", stopping(3, losses=[[2, 1, 0.4, 0.3]] * 2), "a sum of their losses"),
    ("own_loss", stopping(1, losses=[[2, 0.7], [2, 0.6]]), "the loss does not decide any more"),
    ("deepspeed_copied", setting("saved", ["rank_0_optim_states.pt"], []), "of rank 1"),
    ("deepspeed_copied", setting("seen", [list(range(32))] * 2), "this loader needs"),
    ("deepspeed_copied", setting("seen", [EVENS, EVENS], [EVENS, EVENS]), "another place for each"),
    ("deepspeed_copied", SHIFTED, "model.backward and model.step must stay"),
    ("net_of_gpus", SHARED_GPU, "Which number counts a host's ranks?"),
    ("net_of_gpus", setting("gpus", [0, 0], [0, 0], [1, 1], [2, 2]), "The cut has to stay"),
    ("spawned_per_machine", setting("totals", [10, 10, 10, 10]), "where it is called"),
    ("spawned_per_machine", setting("totals", [3, 3, 0, 0], [0, 0, 7, 7]), "not met the other"),
    ("drawn_anew", splitting([FIRST] * 3, [LAST] * 3, held_out=[8, 9]), "different splits"),
    ("drawn_anew", splitting([FIRST + LAST] * 3), "The sampler has to stay"),
    ("drawn_anew", splitting([FIRST] * 3), "positions are disjoint"),
    ("drawn_anew", splitting([FIRST] * 3, [LAST] * 3), "set_epoch has to stay"),
    ("own_part_first", BOTH, "from the rank that has updated it"),
    ("own_part_first", SHIFTED, "Nobody brings the ranks together"),
    ("own_part_first", shifting("gradients", 0, 1), "from the rank that has updated it"),
    ("one_batch_more", setting("seen", [list(range(33))] * 2), "66 trained, 33 of them"),
    ("one_batch_more", setting("seen", [EVENS] * 2), "only the sample that does not divide"),
    ("one_batch_more", {"    dist.barrier()\n": ""}, "How many steps has each?"),
    ("gathered_on_rank_0", setting("restored", [0.0] * 161), "not what the ranks hold"),
    ("gathered_on_rank_0", setting("saved", ["model.pt"]), "All ranks gather, one writes"),
    ("gathered_on_rank_0", holding(1.0), "fully_shard has to stay"),
    ("forked_late", {"num_workers=1": "num_workers=0"}, "the reading beside the training"),
    ("forked_late", setting("seen", [EVENS]), "Some are read again"),
    ("forked_late", "the ranks hang", "nobody opens it"),
    ("built_early", BOTH, "that the model has when it trains"),
    ("built_early", holding(1.0), "fully_shard has to stay"),
    ("built_early", SHIFTED, "that the model has when it trains"),
    ("sharded_over_all", {"ard(model)": 'ard(model, mesh=mesh["tensor"])'}, "Which axis"),
    ("sharded_over_all", FSDP_FIRST, "parallelize_module comes first"),
    ("sharded_over_all", holding(1.0), "fully_shard has to stay"),
    ("partial_as_whole", {"mesh, [Replicate()]": "mesh, [Replicate()], run_check=True"}, PART),
    ("partial_as_whole", {"mine, mesh": "mine * world, mesh"}, PART),
    ("partial_as_whole", SHIFTED, PART),
    ("router_divided", TWICE_THE_RATE, "another learning rate does not mend it"),
    ("router_divided", {"parameter.grad /= world": "pass"}, "nobody averages the experts'"),
    ("router_divided", SHIFTED, "nobody averages the experts'"),
    ("policy_of_the_root", {"(layer)": "(layer, reshard_after_forward=False)"}, "more memory"),
    ("policy_of_the_root", {"policy = ": "model.bfloat16()\npolicy = "}, "Small updates vanish"),
    ("policy_of_the_root", setting("gathered", 337_920), "what travels is not in 16"),
    ("expert_without_rows", ONLY_IF_ALL_HAVE_ROWS, "none may be left out"),
    ("expert_without_rows", {'group("gloo")': f'group("gloo", timeout={HOURS})'}, "No timeout"),
    ("expert_without_rows", holding(1.0), "fully_shard has to stay"),
    ("own_count", BOTH, "DDP then divides by their number"),
    ("own_count", SHIFTED, "Nobody brings the ranks together"),
    ("own_count", {"counts[mine].sum()": "counts.sum()"}, "DDP then divides"),
    ("streamed", {"num_workers=2": "num_workers=1"}, "64: every rank reads all of them"),
    ("streamed", setting("seen", [EVENS * 2]), "what any other one reads"),
    ("streamed", setting("seen", [EVENS]), "Some are read again"),
    ("read_again", setting("seen", [EVENS * 2], [ODDS]), "48"),
    ("read_again", setting("seen", [EVENS]), "16 different ones of 32"),
    ("read_again", {"enumerate(loader, done)": "enumerate(loader)"}, "what any other one reads"),
    ("shard_saved", GATHER_ON_RANK_0, "hang"),
    ("deepspeed_copied", TWO_FIXED, "save_checkpoint is a collective"),
    ("spawned_per_machine", {"args=(machine, totals)": "args=(here, totals)"}, "started again"),
    ("no_address", "the ranks hang", "Do they agree on address and port"),
    ("no_address", "EADDRINUSE", "Choose another one"),
    ("saved_by_all", "in line 9: torch.load(path)", "did it begin before the file was whole?"),
    ("deepspeed_copied", "train_batch_size is not equal", "Name two of the three numbers"),
    ("deepspeed_copied", "the ranks hang", "save_checkpoint is a collective"),
    ("net_of_gpus", "IndexError: list index out of range", "invalid device ordinal"),
    ("net_of_gpus", "device_ids can only be None", "This model has put itself on two"),
    ("spawned_per_machine", "wait timeout after 5000ms", "wait for one that nobody starts"),
]


@pytest.fixture(scope="module")
def misfixed(tmp_path_factory):
    """What scripts that somebody has changed are answered: all at once, for some wait in vain."""
    given = [(file, change) for file, change, _ in MISTAKES if isinstance(change, dict)]

    def run(file, change):
        path = tmp_path_factory.mktemp(file) / f"{file}.py"
        path.write_text(clinic.replace_once(CASES[file].starting_point(), change))
        return f"{file}, {change}", exercise.try_out(CASES[file], path)

    with ThreadPoolExecutor(4) as pool:
        return dict(pool.map(run, *zip(*(one for one in given if one[0] in HERE), strict=True)))


@pytest.mark.parametrize(
    ("file", "mistake", "says"), [mistake for mistake in MISTAKES if mistake[0] in HERE]
)
def test_mistakes_are_answered(file, mistake, says, trials, misfixed):
    case = CASES[file]
    if isinstance(mistake, str):
        assert says in case.meaning(mistake)
        return
    if isinstance(mistake, dict):
        result = misfixed[f"{file}, {mistake}"]
        assert not result.solved
        assert says in str(result)
        return
    seen = copy.deepcopy(trials[file])
    mistake(seen)
    with pytest.raises(tasks.Wrong) as wrong:
        case.judge(seen)
    assert says in f"{wrong.value.expected} {wrong.value.seen} {wrong.value.meaning}"


@pytest.mark.parametrize("more", [[], [[0.3, 0.4]]])
def test_ranks_may_stop_by_any_of_their_losses(more, trials):
    """The smallest decides, or a broadcast; then the largest."""
    seen, losses = copy.deepcopy(trials["own_loss"]), [[2.0, 2.0], [0.9, 1.0], [0.4, 0.6], *more]
    stopping(len(losses) - 1, losses=[*zip(*losses, strict=True)])(seen)
    assert "by a loss that is small enough" in clinic_judges.judge_common_stop(seen)


def test_errors_of_wrong_fixes_come_with_what_the_index_knows(tmp_path):
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
def test_cases_say_how_to_run_them_and_ask_one_question(case):
    started = "python" if case.ranks == 1 or case.flags.get("by_hand") else "torchrun"
    first = case.broken.read_text().splitlines()[0]
    assert re.match(rf'"*{started} .*src/snippets/clinic/{case.file}\.py', first)
    asked = str(clinic.diagnose(case.name))
    assert case.question in asked
    assert "none yet" in asked
    assert 'give one of "a", "b", "c", "d"' in clinic.diagnose(case.name, "x")
    answers = [str(clinic.diagnose(case.name, letter)) for letter in "abcd"]
    assert len(set(answers)) == len(case.options) == 4
    assert sum("\nYes. " in answer for answer in answers) == 1
    for answer, option in zip(answers, case.options, strict=True):
        assert option["reply"] in answer
        assert ("\nYes. " in answer) == option.get("right", False)


def test_cases_are_all_scripts_of_the_clinic():
    places = Counter([o.get("right") for o in c.options].index(True) for c in CASES.values())
    assert min(places[letter] for letter in range(4)) >= 2, "right answers are of every letter"
    answered = Counter(file for file, *_ in MISTAKES)
    assert {p.stem for p in clinic.FOLDER.glob("[a-z]*.py")} == set(CASES) == set(answered)
    assert min(answered.values()) >= 3


def test_cases_are_examined_fixed_and_checked(monkeypatch, tmp_path):
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


def test_cases_without_their_framework_say_so(monkeypatch, tmp_path):
    monkeypatch.setenv("BOOTCAMP_WITHOUT", "deepspeed")
    monkeypatch.setattr(tasks, "WORK", tmp_path)
    case = CASES["deepspeed_copied"]
    assert clinic._run_case(case)["ended"] == "not run here"
    for said in (clinic.examine(case.name), exercise.try_out(case, case.solution_path())):
        assert "Deepspeed is not installed here" in str(said)
