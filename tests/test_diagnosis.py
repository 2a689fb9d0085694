"""A failed proof names the cause: records written here, each with one thing wrong."""

import copy
import json
import math

import pytest

from bootcamp.experiments import equality
from bootcamp.records.runs import Run

STEPS, BATCH, EPOCH = 6, 8, 3  # three batches in an epoch
BEGIN = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
MOVES = [0.1, -0.2, 0.3, -0.1, 0.2, -0.3, 0.1, 0.2]
END = [a + b for a, b in zip(BEGIN, MOVES, strict=True)]
LOSSES = [2.0 - 0.1 * step for step in range(STEPS)]


def ids(step):
    """Other samples in each step and each epoch."""
    return list(range(step * BATCH, step * BATCH + BATCH))


def record(world):
    """(config, losses, ranks) of a right training on so many ranks."""
    config = {
        "model": "own",
        "strategy": "mine",
        "steps": STEPS,
        "global_batch": BATCH,
        "optimizer": "sgd",
        "processes": world,
        "data_parallel": world,
        "own_flags": ["lr"],
        "lr": 0.1,
        "device": "cpu",
        "versions": {"python": "3.11.7", "torch": "2.99"},
    }
    rank = {
        "world_size": world,
        "script_world_size": world,
        "first_step": 0,
        "stages": ["layers"],
        "gradient_bytes": 1_000_000,
        "sent_bytes_per_step": 0 if world == 1 else 1_000_100,
        "learning_rates": [0.1] * STEPS,
        "fingerprint_initial": BEGIN,
        "fingerprint_final": END,
    }
    ranks = [
        copy.deepcopy(rank)
        | {"rank": r, "data_share": r, "sample_ids": [ids(s)[r::world] for s in range(STEPS)]}
        for r in range(world)
    ]
    return config, list(LOSSES), ranks


@pytest.fixture
def failed(tmp_path):
    """failed(change) -> {what was compared: hint} of the rows that fail after change(...)."""

    def write(name, config, losses, ranks):
        folder = tmp_path / name
        (folder / "ranks").mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "summary.json").write_text('{"status": "ok"}')
        rows = [{"step": step, "loss": loss} for step, loss in enumerate(losses)]
        (folder / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for rank in ranks:
            (folder / "ranks" / f"{rank['rank']}.json").write_text(json.dumps(rank))
        return Run(folder)

    def compare(change, world=2, baseline=lambda *_: None):
        one, many = record(1), record(world)
        baseline(*one)
        change(*many)
        proof = equality.compare(write("run", *many), write("baseline", *one))
        return {row["compared"].split(" (")[0]: row["hint"] for row in proof.failed}

    return compare


LOSS = "largest difference of a step's loss"
FINAL = "final parameters apart, relative to how far the baseline's moved"
INITIAL = "initial parameters apart, relative to how far the baseline's moved"


def end(ranks, share=1.0, aside=0.0, only=None):
    """Ranks go another share of the baseline's way, or (rank `only`) aside of it."""
    for rank in ranks:
        off = aside if only in (None, rank["rank"]) else 0.0
        pairs = zip(BEGIN, MOVES, strict=True)
        rank["fingerprint_final"] = [a + share * b + off for a, b in pairs]


def differ_from(losses, step, by=0.5):
    losses[step:] = [loss + by for loss in losses[step:]]


def test_a_right_training_passes(failed):
    assert failed(lambda *_: None) == {}


def test_ranks_without_a_process_group_and_without_ddp(failed):
    """Two trainings side by side: the group itself reports one rank, whatever the script says."""

    def change(config, losses, ranks):
        for rank in ranks:
            rank |= {"world_size": 1, "sent_bytes_per_step": 0}
        differ_from(losses, 1)
        end(ranks, aside=0.1, only=1)

    hints = failed(change)
    joined = hints["ranks in the process group"]
    assert "2 processes were started and none has joined a process group" in joined
    assert "nothing is synchronised" in joined
    assert hints[FINAL].startswith("Nothing is synchronised")


def test_a_process_group_that_the_script_does_not_ask(failed):
    def change(config, losses, ranks):
        for rank in ranks:
            rank["script_world_size"] = 1

    hints = failed(change)
    assert list(hints) == ["ranks in the process group"]
    assert "take rank and world size from it" in hints["ranks in the process group"]


def end_apart(sent, gradient_bytes=1_000_000, noted=()):
    """Ranks that have sent so many bytes in a step and end with different parameters."""

    def change(config, losses, ranks):
        for rank in ranks:
            rank |= {"sent_bytes_per_step": sent, "gradient_bytes": gradient_bytes}
            rank["noted"] = {name: [0.0] * STEPS for name in noted}
        differ_from(losses, 1)
        end(ranks, aside=0.1, only=1)

    return change


@pytest.mark.parametrize(
    "how",
    [
        {"sent": 148},  # a loss between two ranks, as Linux counts it
        {"sent": 148, "gradient_bytes": 900},
        {"sent": 3 * 148, "gradient_bytes": 900, "noted": ("norm", "accuracy")},
    ],
)
def test_a_process_group_without_ddp(failed, how):
    hints = failed(end_apart(**how))
    assert set(hints) == {LOSS, FINAL}
    assert hints[FINAL].startswith("Nothing is synchronised: the ranks send each other next to")


@pytest.mark.parametrize(
    "how",
    [
        {"sent": 1_000_100},
        {"sent": 900 + 148, "gradient_bytes": 900},
        {"sent": 125_000},  # parameters, every eighth step
    ],
)
def test_a_layer_that_is_not_synchronised(failed, how):
    hints = failed(end_apart(**how))
    assert set(hints) == {LOSS, FINAL}
    assert hints[FINAL].startswith("A layer is not synchronised: the ranks end with different")


def test_set_epoch_is_forgotten(failed):
    def change(config, losses, ranks):
        for rank in ranks:
            rank["sample_ids"][EPOCH:] = rank["sample_ids"][:EPOCH]
        differ_from(losses, EPOCH)
        end(ranks, aside=0.05)

    hint = failed(change)["samples that differ from the baseline's batches"]
    assert hint.startswith("From step 3 on the ranks draw batches again")
    assert "sampler.set_epoch(epoch)" in hint


def test_other_samples_without_a_repetition_are_no_forgotten_epoch(failed):
    def change(config, losses, ranks):
        for rank in ranks:
            rank["sample_ids"] = [[i + 500 for i in step] for step in rank["sample_ids"]]

    hint = failed(change)["samples that differ from the baseline's batches"]
    assert "set_epoch" not in hint
    assert "the batch size divided by the number of ranks" in hint


def test_ranks_that_train_the_same_samples(failed):
    def change(config, losses, ranks):
        for rank in ranks:
            rank["sample_ids"] = [ids(step) for step in range(STEPS)]

    hints = failed(change)
    assert list(hints) == ["samples that two ranks trained on"]
    assert "DistributedSampler(dataset, world, rank)" in hints["samples that two ranks trained on"]


def test_a_schedule_that_is_stepped_for_each_rank(failed):
    def change(config, losses, ranks):
        for rank in ranks:
            rank["learning_rates"] = [0.1 * 0.5 ** (2 * step) for step in range(STEPS)]
        differ_from(losses, 2)
        end(ranks, share=0.7)

    def baseline(config, losses, ranks):
        ranks[0]["learning_rates"] = [0.1 * 0.5**step for step in range(STEPS)]

    hints = failed(change, baseline=baseline)
    for row in (LOSS, FINAL):
        assert hints[row].startswith("The learning rate of step 1 is 0.025, the baseline's 0.05.")
        assert "stepped once in each step, whatever the number of ranks" in hints[row]


def test_data_made_with_a_seed_of_each_rank(failed):
    """The ids agree, the contents do not: only the first loss tells."""

    def change(config, losses, ranks):
        differ_from(losses, 0, by=0.01)
        end(ranks, aside=0.05)

    hint = failed(change)[LOSS]
    assert "ids of the samples and initial parameters agree" in hint
    assert "a seed that depends on the rank" in hint


def checksums(ranks, drawn_by=None):
    """Each id's checksum is a function of the id; of one rank's, another function."""
    for rank in ranks:
        added = rank["rank"] == drawn_by
        rank["sample_checksums"] = [[7 * i + added for i in step] for step in rank["sample_ids"]]


def test_checksums_tell_who_drew_other_contents(failed):
    def change(config, losses, ranks):
        checksums(ranks, drawn_by=1)
        differ_from(losses, 0, by=0.01)
        end(ranks, aside=0.05)

    hints = failed(change, baseline=lambda config, losses, ranks: checksums(ranks))
    said = hints["samples with the baseline's ids and other contents"]
    assert said.startswith("Rank 1 drew other data under the same ids")
    assert "the samples are not the baseline's" in hints[LOSS]


def test_a_record_without_checksums_is_no_fault(failed):
    """Those that older runs left, such as the recorded ones."""
    assert failed(lambda config, losses, ranks: checksums(ranks, drawn_by=1)) == {}


def test_equal_checksums_clear_the_contents(failed):
    def change(config, losses, ranks):
        checksums(ranks)
        differ_from(losses, 0, by=0.01)
        end(ranks, aside=0.05)

    hints = failed(change, baseline=lambda config, losses, ranks: checksums(ranks))
    assert "what a step does to its samples" in hints[LOSS]


def test_a_first_loss_is_told_by_what_else_differs(failed):
    def other_samples(config, losses, ranks):
        differ_from(losses, 0, by=0.01)
        ranks[0]["sample_ids"][0] = [700, 701, 702, 703]
        end(ranks, aside=0.05)

    assert "the samples are not the baseline's" in failed(other_samples)[LOSS]


def test_another_start_is_told(failed):
    def change(config, losses, ranks):
        differ_from(losses, 0, by=0.01)
        ranks[1]["fingerprint_initial"] = [x + 1 for x in BEGIN]
        end(ranks, aside=1.0, only=1)

    hints = failed(change)
    assert "the initial parameters are not the baseline's" in hints[LOSS]
    assert hints[INITIAL] == "Ranks begin with different parameters: broadcast those of rank 0."


def test_a_recorded_loss_of_one_rank(failed):
    hints = failed(lambda config, losses, ranks: differ_from(losses, 0, by=0.01))
    assert hints[LOSS].startswith("All parameters agree, so the training is right")


def test_a_sum_in_place_of_a_mean(failed):
    def change(config, losses, ranks):
        losses[:] = [2 * loss for loss in losses]
        end(ranks, share=2.0)

    hints = failed(change)
    assert hints[LOSS].startswith("The first one is 2 times the baseline's")
    assert hints[FINAL].startswith("They went 2.0 times as far as the baseline's")


def test_gradients_clipped_before_they_are_averaged(failed):
    """All ranks end alike: they are synchronised, by another step."""

    def shorter(config, losses, ranks):
        differ_from(losses, 1)
        end(ranks, share=0.5)

    hints = failed(shorter)
    assert "They agree before step 1" in hints[LOSS]
    assert "0.50 times as far" in hints[FINAL]
    assert "clipped before they are averaged" in hints[FINAL]


def test_ranks_that_end_alike_are_not_called_unsynchronised(failed):
    hints = failed(lambda config, losses, ranks: end(ranks, aside=0.01))
    assert hints[FINAL].startswith("The ranks end alike, so they are synchronised")
    assert "clipped before they are averaged" in hints[FINAL]


@pytest.mark.parametrize(
    ("optimizer", "aside", "rounding"),
    [("adamw", 1e-4, True), ("adamw", 0.01, False), ("sgd", 1e-4, False)],
)
def test_what_may_be_rounding_under_adam_is_not_called_a_fault(failed, optimizer, aside, rounding):
    def use(config, *_):
        config["optimizer"] = optimizer

    def nearly(config, losses, ranks):
        use(config)
        end(ranks, aside=aside)

    hints = failed(nearly, baseline=use)
    assert set(hints) == {FINAL}
    words = "this may be rounding that Adam enlarges. Repeat with SGD or in float64"
    assert (words in hints[FINAL]) == rounding


def test_parameters_that_never_moved(failed):
    hints = failed(lambda config, losses, ranks: end(ranks, share=0.0))
    assert hints[FINAL].startswith("They are the initial ones still")


@pytest.mark.parametrize("layers", [0, 4])
def test_batch_norm_is_named_if_the_model_has_any(failed, layers):
    def change(config, losses, ranks):
        for rank in ranks:
            rank["batch_norm_layers"] = layers
        differ_from(losses, 1)
        end(ranks, aside=0.01)

    hints = failed(change)
    named = [f"The model has {layers} BatchNorm layers" in hints[row] for row in (LOSS, FINAL)]
    assert named == [bool(layers)] * 2
    assert all((".eval() on each of them" in hints[row]) == bool(layers) for row in (LOSS, FINAL))


def test_one_process_has_no_trouble_with_batch_norm(failed):
    def change(config, losses, ranks):
        ranks[0]["batch_norm_layers"] = 4
        end(ranks, aside=0.01)

    assert "BatchNorm" not in failed(change, world=1)[FINAL]


def set_config(**values):
    def change(config, losses, ranks):
        config |= values

    return change


@pytest.mark.parametrize(
    ("batch", "world", "says"),
    [
        (16, 2, "each rank takes as many samples as the baseline in all. Divide the batch size"),
        (6, 3, "8 samples can't be divided among 3 ranks. Choose a batch size"),
        (4, 2, "global_batch is 4 here and 8 in the baseline$"),
    ],
)
def test_another_batch_size_is_told_by_its_cause(failed, batch, world, says):
    with pytest.raises(ValueError, match=says):
        failed(set_config(global_batch=batch, steps=99), world)


def test_another_corpus_is_told_in_a_sentence(failed):
    with pytest.raises(ValueError, match=r"on different texts.+ an older record may have another"):
        failed(set_config(corpus_crc32=1), baseline=set_config(corpus_crc32=2))


def test_no_hint_ends_in_an_error_when_numbers_are_none(failed):
    def change(config, losses, ranks):
        losses[0] = math.nan
        ranks[0]["fingerprint_final"] = [math.nan] * 8

    hints = failed(change)
    assert "They differ from step 0 on" in hints[LOSS]
    assert hints[FINAL]
