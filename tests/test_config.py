"""The flags, what follows from them, and where the record goes: in this process, without a run."""

import argparse
import json
import runpy

import pytest
import torch

from bootcamp.records import summary
from bootcamp.scripts import strategies
from bootcamp.train import config, own_script
from bootcamp.train.config import RunContext


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """Cores and exception hook of this process stay as they are; the run's folder is the test's."""
    monkeypatch.setenv("BOOTCAMP_RUN", str(tmp_path / "run"))
    monkeypatch.setattr(config, "use_cores", lambda *_: None)
    monkeypatch.setattr("sys.excepthook", lambda *_: None)


@pytest.mark.usefixtures("alone")
def test_context_is_what_follows_from_the_flags(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["mine.py", "--device", "cpu", "--timeout", "3"])
    args, context = config.parse(own_flags={"--micro-batches": {"type": int}})
    assert context.args is args
    assert (context.device, context.devices, context.backend) == ("cpu", ["cpu"], "gloo")
    assert context.timeout.total_seconds() == 3
    assert (context.axes, context.mesh, context.data_parallel) == (("data",), (1,), 1)
    assert (context.own_flags, context.first_step) == (["micro_batches"], 0)
    assert context.run_dir == tmp_path / "run"
    assert json.loads((context.run_dir / "config.json").read_text())["corpus_crc32"] > 0
    assert summary.read(context.run_dir)["status"] == "running", "claimed, and never finished"
    assert config.find_folder(str(tmp_path / "b")) == tmp_path / "b", "by hand comes first"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--stepz", "5"], "Did you mean --steps?"),
        (["--global-bach=5"], "Did you mean --global-batch?"),
        (["--qqq"], "Unrecognized arguments: --qqq. Run with"),
        (["--local-rank=0"], "Unrecognized arguments: --local-rank=0."),  # distributed.launch's
    ],
)
def test_flag_that_is_misspelt_names_the_one_that_is_meant(flags, says, capsys):
    with pytest.raises(SystemExit, match="2"):
        config._parser(("cpu",)).parse_args(flags)
    assert says in capsys.readouterr().err


REFUSED = [  # script, ranks, flags, words of the sentence
    ("ddp", 2, "--global-batch 33", "33 does not divide over 2 ranks"),
    ("ddp", 2, "--global-batch 1", "Give a multiple of 2, such as 2"),
    ("ddp", 2, "--global-batch 10000000 --model mlp", "--global-batch 10000000: the data has"),
    ("ddp", 2, "--model llama", "Argument --model: invalid choice: 'llama'"),
    ("ddp", 2, "--timeout inf", "expected a number above 0, here at most 604800"),
    ("ddp", 2, "--colour red", "Unrecognized arguments: --colour red"),
    ("cpu", 1, "--run-dir /dev/null/run", "/dev/null/run can't be written: Not a directory"),
    ("pp", 4, "--schedule 1f1b --micro-batches 2", "needs at least 4 micro-batches"),
    ("pp", 2, "--schedule interleaved --micro-batches 5 --global-batch 25", "rounds of equal size"),
    ("pp", 2, "--micro-batches 5", "does not divide the 24 samples"),
    ("pp", 4, "--schedule zero-bubble --model mlp", "need 8 stages, mlp"),
    ("pp", 4, "--schedule zero-bubble --micro-batches 9 --global-batch 9", "multiple of 4"),
    ("pp", 2, "--model resnet50", "normalise each micro-batch by itself"),
    ("ddp_pp", 4, "--mesh 3x2", "data x pipeline is 3 x 2 = 6 ranks, and 4 were started"),
    ("ddp_pp", 3, "", "3 ranks need --mesh: data x pipeline is 1 x 2 = 2 ranks"),
    ("3d", 3, "--mesh 1x1x3", "4 heads do not divide over 3 ranks"),
    ("fsdp_tp", 4, "--mesh 2", "expected 2 numbers, data x tensor"),
    ("fsdp_tp", 4, "--global-batch 25", "does not divide over 2 models"),
    ("tp", 3, "", "4 heads do not divide over 3 ranks"),
    ("tp", 2, "--model mlp", "Say --model gpt"),
    ("cp", 3, "", "64 positions of a text do not divide over 3 ranks"),
    ("fsdp_fp8", 1, "", "One rank has all rows"),
    ("fsdp_fp8", 3, "", "64 rows of a matrix do not divide over 3 ranks"),
    ("tp", 2, "--kv-heads 1", "--kv-heads 1: key-value heads do not divide over 2 ranks"),
    ("tp", 2, "--kv-heads 3", "Give a number that divides gpt's"),
    ("striped", 3, "--model striped-lstm", "4 stripes do not divide over 3 ranks"),
    ("ep", 3, "--model moe", "8 experts do not divide over 3 ranks"),
    ("ep", 2, "", "Say --model moe"),
    ("hsdp", 4, "--shard 3", "4 ranks do not divide into groups of 3. Give one of 1, 2, 4."),
    ("hsdp", 2, "--shard unknown", "this launcher does not say how many ranks are on a host"),
    ("gpu", 1, "--save a --save-every 0", "--save-every 0: expected a number above 0"),
]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("script", "ranks", "flags", "sentence"), REFUSED)
def test_script_refuses_sizes_that_do_not_fit(script, ranks, flags, sentence, monkeypatch, capsys):
    """In one sentence of rank 0's, before it waits for the others."""
    given = ["--device", "cpu", "--global-batch", "24", *flags.split()]
    monkeypatch.setattr("sys.argv", [f"_train_{script}.py", *given])
    for name, value in {"RANK": 0, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(strategies.find(script)), run_name="__main__")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"_train_{script}.py: ")
    assert sentence in line


@pytest.fixture
def make_own(monkeypatch, tmp_path, alone):
    """make_own(loader, steps) -> a Run of a script that is not the course's, and its step."""
    monkeypatch.setattr(torch, "save", torch.save)
    monkeypatch.setattr("bootcamp.train.process_end.leave_without_freeing", lambda: None)

    def make(loader, steps):
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        own = own_script.Run(tmp_path / "own", model, optimizer, loader, 1, steps)

        def train(batch, calls=()):
            with own.step():
                for ids in calls:
                    own.samples(ids, torch.tensor(ids))
                loss = model(batch.unsqueeze(1)).mean()
                loss.backward()
                optimizer.step()
            own.loss(loss.detach())

        return own, train

    return make


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"steps": 3, "drop_last": False}, ValueError, "give it drop_last=True"),
        ({"steps": 2, "shuffle": True}, ValueError, "has shuffle=True"),
        ({"steps": 7, "batch_size": None, "drop_last": False}, ValueError, "needs a DataLoader wi"),
        ({"steps": 1}, RuntimeError, "told steps=1, and this is one more"),
        (
            {"steps": 4, "loops": 2},
            RuntimeError,
            "give it the DataLoader of the training loop, and",
        ),
        ({"steps": 31}, RuntimeError, "told steps=31, and the loop made 2"),
    ],
)
def test_slip_at_the_seam_gets_a_sentence(make_own, given, error, says):
    given = {"batch_size": 3, "drop_last": True, "loops": 1} | given
    steps, loops = given.pop("steps"), given.pop("loops")

    def train_all():
        loader = torch.utils.data.DataLoader(torch.arange(7.0), **given)
        own, train = make_own(loader, steps)
        for batch in [*loader] * loops:
            train(batch)
        own.finish()

    with pytest.raises(error, match=says):
        train_all()


def test_loop_without_a_loader_names_its_samples(make_own):
    steps = [[[5, 8]], [[1], [3]]]
    own, train = make_own(2, len(steps))
    for calls in steps:
        train(torch.ones(2), calls)
    own.finish()
    record = json.loads((own.folder / "ranks" / "0.json").read_text())
    assert record["sample_ids"] == [[5, 8], [1, 3]]
    assert [len({*found}) for found in record["sample_checksums"]] == [2, 2]


@pytest.mark.parametrize(("calls", "count"), [([], 0), ([[1, 2, 3]], 3)])
def test_step_that_names_too_few_or_many_samples_is_refused(make_own, calls, count):
    _, train = make_own(2, 1)
    with pytest.raises(RuntimeError, match=f"got {count} sample ids in this step and expected 2"):
        train(torch.ones(2), calls)


def test_loader_is_no_sampler():
    with pytest.raises(TypeError, match="got a range: give it the DataLoader"):
        own_script.watch_loader(range(7), 1)


def test_parts_that_are_odd_in_a_saved_file_is_counted():
    shard = argparse.Namespace(to_local=None)
    state = {"model": {"module.a": 1, "module.b": shard}, "step": 3}
    assert own_script.count_odd_parts(state) == {"module_names": 2, "shards": 1}


@pytest.mark.parametrize(
    ("axes", "mesh", "data_parallel"), [(("data", "tensor"), (2, 4), 2), (("pipeline",), (4,), 1)]
)
def test_context_names_its_axes_and_ranks_of_one_model_share_a_batch(axes, mesh, data_parallel):
    given = dict.fromkeys(RunContext.__dataclass_fields__)
    context = RunContext(**given | {"args": argparse.Namespace(), "axes": axes, "mesh": mesh})
    assert context.size(axes[-1]) == mesh[-1]
    assert context.data_parallel == data_parallel
