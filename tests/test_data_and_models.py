"""Data that depends on (seed, step) alone, models that can be cut into stages."""

import argparse
import math
import sysconfig
import zlib

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from bootcamp import corpus
from bootcamp.train import config, data, models
from bootcamp.train.fingerprint import fingerprint


def flags(**changes):
    given = {"model": "gpt", "size": "tiny", "seed": 0, "dtype": "float32", "global_batch": 12}
    return argparse.Namespace(**given | changes)


@pytest.fixture(autouse=True)
def one_thread():
    """As a rank on the CPU: two threads wait for each other longer than such small models take."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("model", ["gpt", "resnet50"])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("step", [0, 7, 100_000])
def test_shares_add_up_to_the_same_global_batch(world, step, model):
    args = flags(model=model)
    ranks = [data.Batches(args, rank, world) for rank in range(world)]
    shares = [batches(step) for batches in ranks]
    ids = [i for batches in ranks for i in batches.sample_ids]
    inputs, targets = data.Batches(args, 0, 1)(step)
    assert torch.equal(torch.cat([share[0] for share in shares]), inputs)
    assert torch.equal(torch.cat([share[1] for share in shares]), targets)
    assert len(set(ids)) == 12


def test_data_loader_draws_from_the_batches():
    """As from any map-style dataset: each item is a batch, drawn in the order of the steps."""
    batches, expected = (data.Batches(flags(), 1, 3) for _ in range(2))
    loader = torch.utils.data.DataLoader(batches, batch_size=None, sampler=range(5))
    for step, drawn in enumerate(loader):
        assert all(map(torch.equal, drawn, expected(step)))
        assert batches.sample_ids == expected.sample_ids
    assert step == 4


def test_batch_depends_on_seed_and_step_only():
    batches = data.Batches(flags(), 0, 1)
    first = batches(3)[0]
    batches(50_000)  # another epoch in between
    assert torch.equal(batches(3)[0], first)
    assert not torch.equal(batches(4)[0], first)
    assert not torch.equal(data.Batches(flags(seed=1), 0, 1)(3)[0], first)


def test_epoch_visits_every_sample_once():
    batches = data.Batches(flags(global_batch=500), 0, 1)
    ids = torch.cat([batches.global_ids(step) for step in range(batches.steps_per_epoch)])
    assert len(ids.unique()) == len(ids)
    assert len(batches.dataset) - len(ids) < 500


def test_targets_are_the_next_bytes():
    inputs, targets = data.Corpus(context=64)[10]
    assert torch.equal(inputs[1:], targets[:-1])
    assert bytes(inputs.tolist()) in corpus.text()
    last = data.Corpus(context=16, next_byte_only=True)[10]
    assert last[1].shape == ()


def test_corpus_is_frozen_and_does_not_come_from_this_python(monkeypatch, tmp_path):
    """Everyone's losses follow from these bytes: no change to them is right."""
    assert zlib.crc32(corpus.text()) == corpus.CRC32 == 0x92536594
    monkeypatch.setattr(sysconfig, "get_path", lambda *_: str(tmp_path))
    assert corpus.text.__wrapped__() == corpus.text(), "read anew, of another Python"
    assert len(corpus.text()) > 1_000_000
    assert corpus.text().isascii()


def images():
    return data.Images(image_size=64, classes=10, dtype=torch.float32)


def test_image_is_the_same_alone_and_in_any_batch():
    ids = torch.tensor([7, 49_999, 0, 7])
    dataset = images()
    batch, targets = dataset.batch(ids)
    assert batch.shape == (4, 3, 64, 64)
    assert targets.tolist() == [7, 9, 0, 7]
    for _ in range(2):  # drawing a sample leaves the data as it was
        for row, sample_id in enumerate(ids.tolist()):
            image, target = dataset[sample_id]
            assert torch.equal(image, batch[row])
            assert torch.equal(target, targets[row])
    with pytest.raises(IndexError):
        dataset[50_000]


def test_images_of_a_class_share_their_tiles_and_nothing_else():
    batch, targets = images().batch(torch.arange(500))
    tiles = nn.functional.avg_pool2d(batch, 8)
    of_class = torch.stack([tiles[targets == k].mean(0) for k in range(10)])
    noise = batch - nn.functional.interpolate(of_class, scale_factor=8)[targets]
    assert abs(noise.mean()) < 0.01
    assert noise.std() == pytest.approx(1, abs=0.01)
    assert of_class.std() == pytest.approx(1, abs=0.05)
    assert torch.pdist(of_class.flatten(1)).min() > 10  # no two classes look alike
    flat = nn.functional.normalize(noise.flatten(1))
    assert (flat @ flat.T).fill_diagonal_(0).abs().max() < 0.1  # no two samples share their noise


@pytest.mark.parametrize("model", models.NAMES)
def test_batch_fits_its_model_in_every_dtype(model):
    """In float64, each gradient of a whole tensor is far above float32's rounding of it."""
    for dtype in config.DTYPES:
        args = flags(model=model, dtype=dtype)
        inputs, targets = data.Batches(args, 0, 1)(0)
        network = models.build(args)
        loss = models.loss(network(inputs), targets)
        loss.backward()
        for name, parameter in network.named_parameters() if dtype == "float64" else ():
            assert parameter.grad.norm() > 1e-4, name
        assert loss.dtype == config.DTYPES[dtype]
        assert math.isfinite(loss.item())
        assert targets.numel() == 12 * models.tokens_per_sample(args)


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # torch's, on switching oneDNN off
@pytest.mark.parametrize("model", models.NAMES)
def test_flops_formula_matches_torchs_counter(model):
    args = flags(model=model)
    network = models.build(args)
    inputs, targets = data.Batches(args, 0, 1)(0)
    if inputs.is_floating_point():  # the formula counts the gradient of an image, too
        inputs.requires_grad_()
    # the counter does not know the CPU's fused kernels of attention and LSTM: count the plain ones
    with (
        FlopCounterMode(display=False) as counter,
        nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH),
        torch.backends.mkldnn.flags(enabled=False),
    ):
        models.loss(network(inputs), targets).backward()
    formula = models.flops_per_sample(args) * 12
    assert formula == pytest.approx(counter.get_total_flops(), rel=0.01)


@pytest.mark.parametrize("model", models.NAMES)
def test_stages_are_named_and_can_be_cut(model):
    whole = models.build(flags(model=model))
    first, second = whole[:3], whole[3:]
    names = [name for name, _ in first.named_parameters()]
    names += [name for name, _ in second.named_parameters()]
    assert names == [name for name, _ in whole.named_parameters()]
    inputs, _ = data.Batches(flags(model=model), 0, 1)(0)
    assert torch.equal(second(first(inputs)), whole(inputs))


@pytest.mark.parametrize(
    ("size", "millions"), [("small", 124), ("medium", 355), ("large", 774), ("xl", 1558)]
)
def test_sizes_are_gpt2s_without_its_vocabulary(size, millions):
    """GPT-2's published sizes less its 50,257 tokens, plus our head and bytes."""
    count = parameter_count(models.gpt, **models.gpt.SIZES[size])
    width = models.gpt.SIZES[size]["width"]
    assert (count + (50_257 - 2 * 256) * width) / 1e6 == pytest.approx(millions, rel=0.01)


def parameter_count(family, **sizes):
    """Parameters of a model that is too large to be built here."""
    with torch.device("meta"):
        stages = [stage() for _, stage in family.stages(**sizes)]
    return sum(p.numel() for stage in stages for p in stage.parameters())


def test_resnet50_is_resnet50():
    """The count of He et al.'s network as every library publishes it, and its 16 blocks."""
    sizes = models.resnet50.SIZES["medium"]
    assert sizes == {"width": 64, "image_size": 224, "classes": 1000}
    assert parameter_count(models.resnet50, **sizes) == 25_557_032
    assert len(models.build(flags(model="resnet50"))) == 1 + 16 + 1


@pytest.fixture
def sequence():
    """Inputs of 5 times, 3 in the batch, 8 numbers, and a state of 2 layers of 6 units."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    return draw(5, 3, 8), (draw(2, 3, 6), draw(2, 3, 6))


def striped(num_stripes=3, num_layers=2):
    return models.striped_lstm.StripedLSTM(8, 6, num_layers=num_layers, num_stripes=num_stripes)


def test_stripe_alone_is_torchs_lstm(sequence):
    ours, torchs = striped(num_stripes=1), nn.LSTM(8, 6, num_layers=2)
    for layer, (stripe,) in enumerate(ours.layers):
        for name, parameter in stripe.named_parameters():
            parameter.data.copy_(getattr(torchs, name.replace("l0", f"l{layer}")))
    for arguments in (sequence, sequence[:1]):  # with a state, and from zero
        torch.testing.assert_close(ours(*arguments), torchs(*arguments))


def test_stripes_are_lstms_of_their_own_on_the_whole_input(sequence):
    """One layer's stripe k is an nn.LSTM that never sees another stripe's state."""
    inputs, (h_0, c_0) = (sequence[0], [part[:1] for part in sequence[1]])
    lstm = striped(num_layers=1)
    output, (h_n, c_n) = lstm(inputs, (h_0, c_0))
    for k, alone in enumerate(lstm.layers[0]):
        part = slice(2 * k, 2 * k + 2)
        state = (h_0[..., part].contiguous(), c_0[..., part].contiguous())
        expected, (h, c) = alone(inputs, state)
        torch.testing.assert_close(output[..., part], expected)
        torch.testing.assert_close(h_n[..., part], h)
        torch.testing.assert_close(c_n[..., part], c)


def test_stage_has_the_same_parameters_whoever_builds_it():
    a, b = models.build(flags()), models.build(flags())
    assert fingerprint(a) == fingerprint(b)
    assert fingerprint(a) != fingerprint(models.build(flags(seed=1)))
    spread = a.block0.up.weight.std().item()
    assert spread == pytest.approx(models.gpt.initial_std(64), rel=0.05)
