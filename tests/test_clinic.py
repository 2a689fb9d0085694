"""The clinic: every case is broken, can be mended, and has an answer to those who mend it wrongly.

And the index of errors: each recorded text belongs to one entry.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest

from bootcamp.classroom import clinic, errors, exercise, script_task

pytestmark = pytest.mark.timeout(600)  # one fixture runs all cases; a loaded machine takes long

CASES = {task.file: task for task in clinic.TASKS}
SAVE = '    torch.save(state, "checkpoint.pt")\n'
MINE = 'torch.save(state, "checkpoint.pt")'
BY_HAND = 'import os\nos.environ["MASTER_ADDR"] = "127.0.0.1"\n'
FORWARD = "    loss = nn.functional.mse_loss(model(inputs[rank::world]).float(), targets"
SCALED = """    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
"""
APEX = "from apex import amp\nfrom apex.parallel import DistributedDataParallel\n"
INITIALIZE = 'model, optimizer = amp.initialize(model, optimizer, opt_level="O1")\n'
OWN_DDP = "from torch.nn.parallel import DistributedDataParallel\n"
SUM = "        dist.all_reduce(parameter.grad)\n"
WRAP = "model = DistributedDataParallel(model)\n"

# for each case what readers try, on top of nothing or of the solution, and what helps them then
WRONG = {
    "no_address": [
        ({"dist.init_": f"{BY_HAND}dist.init_"}, "set MASTER_ADDR, MASTER_PORT, RANK"),
        ({"MEND": "", '"29517"': "str(29610 + rank)"}, "Do they agree on address and port"),
        (
            {"MEND": "", '"29517"': "str(29620 + rank)", "rank=rank, world_size=world": "rank=0, "
             "world_size=1"},
            "has met nobody",
        ),
    ],
    "super_net": [
        ({"super(Net).__init__(self)": "super(Net, self).__init__(self)"}, "takes 1 positional"),
        ({"super(Net).__init__(self)": "pass"}, "parent class was not initialised"),
        (
            {
                "MEND": "",
                "self.hidden = nn.Linear(8, width)": "self.all = [nn.Linear(8, width)]",
                "self.out = nn.Linear(width, 1)": "self.all += [nn.Linear(width, 1)]",
            },
            "nn.ModuleList in place of a list",
        ),
        (
            {
                "MEND": "",
                "self.hidden = nn.Linear(8, width)": "self.all = [nn.Linear(8, width)]",
                "self.hidden(": "self.all[0](",
            },
            "when it is assigned to it as an attribute",
        ),
    ],
    "wrapped_twice": [
        ({"fully_shard(model, mesh=mesh)\n": ""}, "it is fully_shard that has to stay"),
        ({"MEND": "", "mesh=mesh": ""}, "The mesh has rows of two"),
        ({"MEND": "", "fully_shard(model, mesh=mesh)\n": "fully_shard(model[0], mesh=mesh)\n"},
         "Nobody brings the ranks together"),
    ],
    "same_order": [
        ({"sampler=sampler": "sampler=sampler, shuffle=True"}, "Leave shuffle out"),
        ({"sampler=sampler": "shuffle=True"}, "every rank reads all of them"),
        ({"MEND": "", "shuffle=True)": "shuffle=True, seed=rank)"}, "must shuffle alike"),
        ({"MEND": "", "set_epoch(epoch)": "set_epoch(1)"}, "the epoch that it was told"),
    ],
    "moved_on_rank_0": [
        ({"MEND": "", "model.to_empty(device=device)": "model.to(device)"}, "can't move what is"),
        ({"MEND": "", WRAP: ""}, "must be there on every rank"),
        ({"MEND": "", WRAP: f"if rank == 0:\n    {WRAP}"}, "on 2 ranks"),
        ({"MEND": "", "    layer.reset_parameters()": "    [p.data.zero_() for p in "
          "layer.parameters()]", "lr=0.02": "lr=0.0"}, "to_empty gives memory, not numbers"),
    ],
    "saved_by_all": [
        ({'"checkpoint.pt")\n': 'f"checkpoint-{rank}.pt")\n', '"checkpoint.pt")["step"]':
          'f"checkpoint-{rank}.pt")["step"]'}, "N copies cost N times"),
        ({SAVE: f"    if rank == 0:\n        {MINE}\n"}, "before the file was whole"),
        ({SAVE: f"    if rank == 0:\n        {MINE}\n        dist.barrier()\n"},
         "one was called on some ranks only"),
    ],
    "apex_amp": [
        ({APEX: "", INITIALIZE: "", SCALED: "    loss.backward()\n",
          "from torch import nn\n": f"from torch import nn\n{OWN_DDP}"}, "precision is gone"),
        ({APEX: "", INITIALIZE: "model.bfloat16()\n", SCALED: "    loss.backward()\n",
          "from torch import nn\n": f"from torch import nn\n{OWN_DDP}",
          "model(inputs[rank::world])": "model(inputs[rank::world].bfloat16())"},
         "leaves the parameters as they are"),
        ({"MEND": "", WRAP: ""}, "torch's own DDP takes its place"),
    ],
    "summed": [
        ({"MEND": "", "loss.backward()": "(loss / world).backward()"}, "Divide once"),
        ({"lr=0.1": "lr=0.1 / world"}, "Correct the gradient"),
        ({SUM: "        parameter.grad /= world\n"}, "The all-reduce must stay"),
    ],
    "sometimes_unused": [
        ({"(TwoHeads())": "(TwoHeads(), static_graph=True)"}, "in place of static_graph=True"),
        ({"self.second = nn.Linear(16, 1)": "self.second = nn.Linear(16, 1).requires_grad_(False)"},
         "a second head that learns"),
        ({"DistributedDataParallel(TwoHeads())": "TwoHeads()"}, "Nobody brings the ranks together"),
        ({"step % 2 == 1": "True"}, "as one device trains them"),
    ],
    "evaluated_on_rank_0": [
        ({"MEND": "", "        model.eval()\n": ""}, "model.eval() comes before"),
        ({"MEND": "", "    dist.barrier()": "        dist.barrier()"}, "on some ranks only"),
        ({WRAP: ""}, "The training itself still needs DDP"),
        ({"MEND": "", "loss = nn.functional.mse_loss(model.module(valid), valid.sum(dim=1, "
          "keepdim=True))": "loss = torch.tensor(0.0)"}, "losses have to be averaged"),
        ({"model(valid), valid.sum": "model.module(valid[rank::world]), valid[rank::world].sum"},
         "losses have to be averaged"),
    ],
    "own_start": [
        ({"torch.manual_seed(rank)": "torch.manual_seed(0)"}, "both ranks draw the same numbers"),
        ({"size = sum(": "for parameter in model.parameters():\n"
          "    dist.all_reduce(parameter.data)\n    parameter.data /= world\nsize = sum("},
         "Averaged gradients move all models alike"),
        ({"MEND": "", SUM: "", "        parameter.grad /= world\n": "        pass\n"},
         "their gradients are not averaged"),
    ],
    "own_loss": [
        ({"MEND": "", "loss.detach() / world": "loss.detach()"}, "is it a sum"),
        ({"if loss.item() < 0.5": "if rank == 0 and loss.item() < 0.5"}, "not agree when to stop"),
        ({"MEND": "", "        break\n": "        pass\n"}, "the loss does not decide any more"),
        ({"range(200)": "range(12)", "        break\n": "        pass\n"},
         "the loss does not decide any more"),
    ],
}  # fmt: skip

OPENED = """        with open("checkpoint.pt", "wb") as file:
            torch.save(state, file)
"""
LAST = 'print(f"rank {rank}: the loss of its share is {loss.item():.3f}\\n", end="")\n'
# other ways of mending that are as right
DECIDES = "    if loss.item() < 0.5:\n"
ALL_RANDOM_STATES = """    states = [None] * world
    dist.all_gather_object(states, state["random"])
"""
RIGHT = {
    "saved_by_all": [
        {"MEND": "", f"        {MINE}\n": OPENED},
        {"MEND": "", "    if rank == 0:\n": f"{ALL_RANDOM_STATES}    if rank == 0:\n"},
    ],
    "wrapped_twice": [{"MEND": "", LAST: f"{LAST}dist.destroy_process_group()\n"}],
    "own_loss": [
        {DECIDES: "    first = loss.detach()\n    dist.broadcast(first, src=0)\n"
         "    if first.item() < 0.5:\n"},
        {DECIDES: "    largest = loss.detach()\n    dist.all_reduce(largest, dist.ReduceOp.MAX)\n"
         "    if largest.item() < 0.5:\n"},
        {DECIDES: "    small = (loss.detach() < 0.5).int()\n    dist.all_reduce(small)\n"
         "    if small.item() > 0:\n"},
    ],
}  # fmt: skip


def attempt(case, changes, path):
    """A reader's script: the broken one with changes, after those of the solution for MEND."""
    changes = dict(changes)
    mended = case.fix if "MEND" in changes else {}
    changes.pop("MEND", None)
    path.write_text(clinic.changed(clinic.changed(case.starting_point(), mended), changes))
    return path


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    """{case: results of the broken script, the mended one, and each wrong one}.

    All at once, for some wait until the launcher ends them.
    """
    folder, found = tmp_path_factory.mktemp("clinic"), {}
    with ThreadPoolExecutor(4) as pool:
        for file, case in CASES.items():
            paths = [case.broken, case.solved()]
            for number, (changes, _) in enumerate(WRONG[file]):
                paths.append(attempt(case, changes, folder / f"{file}_{number}.py"))
            for number, changes in enumerate(RIGHT.get(file, [])):
                paths.append(attempt(case, changes, folder / f"{file}_too_{number}.py"))
            found[file] = [pool.submit(exercise.try_out, case, path) for path in paths]
    return {file: [each.result() for each in results] for file, results in found.items()}


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.file)
def test_broken_is_rejected_mended_accepted_and_mistakes_are_answered(case, tried):
    broken, mended, *wrong = tried[case.file]
    assert not broken.solved
    assert "Seen: " in str(broken)
    assert mended.solved, mended
    for _ in RIGHT.get(case.file, []):
        right = wrong.pop()
        assert right.solved, right
    assert len(wrong) >= 3
    for result, (_, says) in zip(wrong, WRONG[case.file], strict=True):
        assert not result.solved
        assert says in str(result), result
        assert case.hint in str(result)


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.file)
def test_a_case_says_what_it_is_and_asks_one_question(case):
    first = case.broken.read_text().splitlines()[0].lstrip('"')
    started = "python" if case.ranks == 1 or case.flags.get("by_hand") else "torchrun"
    assert first.startswith(started)
    assert f"src/snippets/clinic/{case.file}.py" in first
    assert case.task in case.broken.read_text()
    assert len(case.options) == 4
    assert sum(option.right for option in case.options) == 1
    assert len({option.reply for option in case.options}) == 4
    asked = str(clinic.diagnose(case.name))
    assert case.question in asked
    assert "none yet" in asked
    for letter, option in zip("abcd", case.options, strict=True):
        answer = str(clinic.diagnose(case.name, letter))
        assert option.reply in answer
        assert ("\nYes. " in answer) == option.right
    assert 'give one of "a", "b", "c", "d"' in clinic.diagnose(case.name, "x")


def test_right_answers_are_spread_over_the_letters():
    right = [[option.right for option in case.options].index(True) for case in CASES.values()]
    assert all(right.count(place) >= 2 for place in range(4))


def test_every_script_of_the_clinic_is_a_case():
    assert {p.stem for p in clinic.WARD.glob("[a-z]*.py")} == set(CASES) == set(WRONG)


def test_a_reader_goes_through_a_case(monkeypatch, tmp_path):
    monkeypatch.setattr(script_task, "WORK", tmp_path)
    assert "Wrote" in exercise.start("clinic_super_net")
    assert "still the starting point" in str(exercise.check("clinic_super_net"))
    seen = clinic.examine("clinic_super_net")
    assert "TypeError: super() argument 1 must be" in seen
    path = exercise.find("clinic_super_net").path
    path.write_text(path.read_text().replace("super(Net).__init__(self)", "super().__init__()"))
    assert "at the end" in clinic.examine("clinic_super_net")
    assert exercise.check("clinic_super_net").solved
    path.write_text(CASES["super_net"].starting_point())
    assert "+        super().__init__()" in str(exercise.solution("clinic_super_net"))


def test_a_change_that_fits_nowhere_is_an_error():
    with pytest.raises(ValueError, match="'gone' is there 0 times"):
        clinic.changed("text", {"gone": ""})


@pytest.mark.parametrize("record", errors.recorded(), ids=lambda r: r["provoked_by"])
def test_a_recorded_error_is_found_by_its_own_entry_only(record):
    assert [e.name for e in errors.ENTRIES if e.matches(record["text"])] == [record["entry"]]
    told = str(errors.explain(f"noise before\n{record['text']}\n"))
    assert errors.find(record["text"]).means in told
    assert record["torch"]
    assert record["machine"]


def test_the_index_was_recorded_and_names_no_machine():
    assert len(errors.recorded()) >= 25
    known = {entry.name for entry in errors.ENTRIES}
    assert {record["entry"] for record in errors.recorded()} <= known
    text = errors.RECORDED.read_text()
    assert not [place for place in ("/work", "/home", "/tmp", "/root") if place in text]
    for entry in errors.ENTRIES:
        assert entry.means.endswith((".", ")"))
        assert entry.fix.endswith((".", ")", '"'))


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
    assert all(thing in told for thing in errors.FIRST_THINGS)
    assert len(errors.FIRST_THINGS) == 3
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
    assert len(errors.table("RuntimeError: ... Connection reset by peer. GLHF")) == 1
    assert "recorded" in errors.table().caption.lower()


def test_the_search_box_follows(monkeypatch):
    import IPython.display

    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda it, **_: shown.append(it))
    controls = errors.index()
    assert controls["words"].description == "search"
    assert any("<table>" in getattr(it, "data", "") for it in shown)
