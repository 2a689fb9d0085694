"""The flags, what follows from them, and where the record goes: in this process, without a run."""

import argparse
import json
import runpy

import pytest

from bootcamp.records import summary
from bootcamp.scripts import strategies
from bootcamp.train import config, own_script
from bootcamp.train.config import RunContext


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Parse these flags as `mine.py` with a run folder of the test's."""

    def parse(*flags, **how):
        folder = tmp_path / "run"
        monkeypatch.setattr("sys.argv", ["mine.py", "--device", "cpu", *flags])
        monkeypatch.setenv("BOOTCAMP_RUN", str(folder))
        monkeypatch.setattr(config, "use_cores", lambda *_: None)
        monkeypatch.setattr("sys.excepthook", lambda *_: None)
        return config.parse(**how)

    return parse


def test_args_have_the_flags_and_the_context_what_follows(command, tmp_path):
    args, context = command("--timeout", "3", own_flags={"--micro-batches": {"type": int}})
    assert set(vars(args)) == {
        *("model", "size", "steps", "global_batch", "optimizer", "lr", "seed", "dtype", "device"),
        *("cores_per_rank", "run_dir", "timeout", "save", "save_async", "save_every", "resume"),
        *("trace_step", "kv_heads", "micro_batches"),
    }
    assert (args.device, args.timeout, args.run_dir) == ("cpu", 3.0, None)
    assert context.args is args
    assert (context.device, context.devices, context.backend) == ("cpu", ["cpu"], "gloo")
    assert context.timeout.total_seconds() == 3
    assert (context.axes, context.mesh, context.data_parallel) == (("data",), (1,), 1)
    assert context.own_flags == ["micro_batches"]
    assert context.first_step == 0


def test_the_launchers_folder_is_taken_and_claimed(command, tmp_path):
    _, context = command()
    assert context.run_dir == tmp_path / "run"
    written = json.loads((context.run_dir / "config.json").read_text())
    assert written["corpus_crc32"] > 0
    assert summary.read(context.run_dir)["status"] == "running", "claimed, and never finished"


def test_a_folder_given_by_hand_comes_before_the_launchers(monkeypatch, tmp_path):
    monkeypatch.setenv("BOOTCAMP_RUN", str(tmp_path / "a"))
    assert config.find_folder(str(tmp_path / "b")) == tmp_path / "b"
    assert config.find_folder(None) == tmp_path / "a"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--stepz", "5"], "Did you mean --steps?"),
        (["--global-bach=5"], "Did you mean --global-batch?"),
        (["--qqq"], "Unrecognized arguments: --qqq. Run with"),
    ],
)
def test_a_misspelt_flag_names_the_one_that_is_meant(flags, says, capsys):
    with pytest.raises(SystemExit, match="2"):
        config._parser(("cpu",)).parse_args(flags)
    assert says in capsys.readouterr().err


REFUSED = [  # script, ranks, flags, words of the sentence
    ("ddp", 2, "--global-batch 33", "33 does not divide over 2 ranks"),
    ("ddp", 2, "--global-batch 1", "Give a multiple of 2, such as 2"),
    ("ddp", 2, "--global-batch 10000000 --model mlp", "--global-batch 10000000: the data has"),
    ("ddp", 2, "--size huge --model mlp", "mlp has no such size. Choose one of tiny, small"),
    ("ddp", 2, "--model llama", "Argument --model: invalid choice: 'llama'"),
    ("ddp", 2, "--timeout inf", "expected a number above 0, here at most 604800"),
    ("ddp", 2, "--lr -1", "--lr -1.0: expected a number above 0"),
    ("ddp", 2, "--cores-per-rank 4096", "expected a number above 0, here at most"),
    ("ddp", 2, "--steps 2.5", "Argument --steps: invalid int value: '2.5'"),
    ("ddp", 2, "--colour red", "Unrecognized arguments: --colour red"),
    ("cpu", 1, "--run-dir /dev/null/run", "/dev/null/run can't be written: Not a directory"),
    ("pp", 4, "--schedule 1f1b --micro-batches 2", "needs at least 4 micro-batches"),
    ("pp", 2, "--schedule dualpipe --micro-batches 2", "needs at least 4 micro-batches"),
    ("pp", 2, "--schedule interleaved --micro-batches 5 --global-batch 25", "rounds of equal size"),
    ("pp", 2, "--micro-batches 5", "does not divide the 24 samples"),
    ("pp", 2, "--micro-batches 0 --schedule gpipe", "needs at least 1 micro-batches, not 0"),
    ("pp", 4, "--schedule zero-bubble --model mlp", "need 8 stages, mlp"),
    ("pp", 2, "--model resnet50", "normalise each micro-batch by itself"),
    ("ddp_pp", 4, "--mesh 3x2", "data x pipeline is 3 x 2 = 6 ranks, and 4 were started"),
    ("ddp_pp", 3, "", "3 ranks need --mesh: data x pipeline is 1 x 2 = 2 ranks"),
    ("3d", 6, "", "Give sizes that multiply to 6, such as 6x1x1."),
    ("3d", 3, "--mesh 1x1x3", "4 heads do not divide over 3 ranks"),
    ("fsdp_tp", 4, "--mesh 2", "expected 2 numbers, data x tensor"),
    ("fsdp_tp", 4, "--global-batch 25", "does not divide over 2 models"),
    ("tp", 3, "", "4 heads do not divide over 3 ranks"),
    ("tp", 2, "--model mlp", "Say --model gpt"),
    ("tp", 2, "--kv-heads 1", "--kv-heads 1: key-value heads do not divide over 2 ranks"),
    ("tp", 2, "--kv-heads 3", "Give a number that divides gpt's"),
    ("striped", 3, "--model striped-lstm", "4 stripes do not divide over 3 ranks"),
    ("ep", 3, "--model moe", "8 experts do not divide over 3 ranks"),
    ("ep", 2, "", "Say --model moe"),
    ("hsdp", 4, "--shard 3", "4 ranks do not divide into groups of 3. Give one of 1, 2, 4."),
    ("fsdp_in_practice", 4, "--reshard 3", "into groups of 3. Give one of 1, 2, 4."),
    ("gpu", 1, "--save a --save-every 0", "--save-every 0: expected a number above 0"),
]


@pytest.mark.parametrize(("script", "ranks", "flags", "sentence"), REFUSED)
def test_script_refuses_sizes_that_do_not_fit(
    script, ranks, flags, sentence, monkeypatch, tmp_path, capsys
):
    """In one sentence of rank 0's, before it waits for the others."""
    given = ["--device", "cpu", "--global-batch", "24", *flags.split()]
    monkeypatch.setattr("sys.argv", [f"_train_{script}.py", *given])
    monkeypatch.setattr("sys.excepthook", lambda *_: None)
    monkeypatch.setattr(config, "use_cores", lambda *_: None)
    environment = {"RANK": 0, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    for name, value in {**environment, "BOOTCAMP_RUN": tmp_path / "run"}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(strategies.find(script)), run_name="__main__")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"_train_{script}.py: ")
    assert sentence in line


@pytest.fixture
def own_run(monkeypatch, tmp_path):
    """A run of a script that is not the course's, of a model of two numbers."""
    import torch

    monkeypatch.setattr(config, "use_cores", lambda *_: None)
    monkeypatch.setattr("sys.excepthook", lambda *_: None)
    monkeypatch.setattr(torch, "save", torch.save)
    monkeypatch.setattr("bootcamp.train.process_end.leave_without_freeing", lambda: None)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run(steps, loops=1, **options):
        options = {"batch_size": 3, "drop_last": True} | options
        loader = torch.utils.data.DataLoader(torch.arange(7.0), **options)
        own = own_script.Run(tmp_path / "own", model, optimizer, loader, 1, steps)
        for batch in [*loader] * loops:
            with own.step():
                optimizer.zero_grad()
                loss = model(batch.unsqueeze(1)).mean()
                loss.backward()
                optimizer.step()
            own.loss(loss.detach())
        own.finish()

    return run


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
def test_a_slip_at_the_seam_gets_a_sentence(own_run, given, error, says):
    with pytest.raises(error, match=says):
        own_run(**given)


@pytest.fixture
def given_run(monkeypatch, tmp_path, own_run):
    """A run without a DataLoader, whose script names the samples: lists of ids, one per call."""
    import torch

    def run(*steps):
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        own = own_script.Run(tmp_path / "given", model, optimizer, 2, 1, len(steps))
        for calls in steps:
            with own.step():
                for ids in calls:
                    own.samples(ids, torch.tensor(ids))
                loss = model(torch.ones(2, 1)).mean()
                loss.backward()
                optimizer.step()
            own.loss(loss.detach())
        own.finish()
        return json.loads((tmp_path / "given" / "ranks" / "0.json").read_text())

    return run


def test_a_loop_without_a_loader_names_its_samples(given_run):
    record = given_run([[5, 8]], [[1], [3]])
    assert record["sample_ids"] == [[5, 8], [1, 3]]
    assert [len(found) for found in record["sample_checksums"]] == [2, 2]
    assert len({*record["sample_checksums"][0], *record["sample_checksums"][1]}) == 4


@pytest.mark.parametrize(("calls", "count"), [([], 0), ([[1, 2, 3]], 3)])
def test_a_step_that_names_too_few_or_many_samples_is_refused(given_run, calls, count):
    with pytest.raises(RuntimeError, match=f"got {count} sample ids in this step and expected 2"):
        given_run(calls)


def test_a_loader_is_no_sampler():
    with pytest.raises(TypeError, match="got a range: give it the DataLoader"):
        own_script.watch_loader(range(7), 1)


def test_what_is_odd_in_a_saved_file_is_counted():
    shard = argparse.Namespace(to_local=None)
    state = {"model": {"module.a": 1, "module.b": shard}, "step": 3}
    assert own_script.count_odd_parts(state) == {"module_names": 2, "shards": 1}


@pytest.mark.parametrize(
    ("axes", "mesh", "data_parallel"),
    [(("data", "tensor"), (2, 4), 2), (("pipeline",), (4,), 1)],
)
def test_a_context_names_its_axes_and_ranks_of_one_model_share_a_batch(axes, mesh, data_parallel):
    given = dict.fromkeys(RunContext.__dataclass_fields__)
    context = RunContext(**given | {"args": argparse.Namespace(), "axes": axes, "mesh": mesh})
    assert context.size(axes[-1]) == mesh[-1]
    assert context.data_parallel == data_parallel
