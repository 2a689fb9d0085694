"""A failed proof names the cause: records written here, each with one thing wrong."""

import math
import re

import pytest
from records import write_files

from bootcamp.experiments import equality

STEPS, BATCH, EPOCH = 6, 8, 3  # three batches in an epoch
BEGIN = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
MOVES = [0.1, -0.2, 0.3, -0.1, 0.2, -0.3, 0.1, 0.2]
CONFIG = {
    "model": "own",
    "strategy": "mine",
    "steps": STEPS,
    "global_batch": BATCH,
    "optimizer": "sgd",
    "own_flags": ["lr"],
    "lr": 0.1,
    "device": "cpu",
    "versions": {"python": "3.11.7", "torch": "2.99"},
}


class Training:
    """A right training on so many ranks, in which single things can be made wrong."""

    def __init__(self, world):
        self.config = CONFIG | {"processes": world, "data_parallel": world}
        self.losses = [2.0 - 0.1 * step for step in range(STEPS)]
        rank = {
            "world_size": world,
            "script_world_size": world,
            "first_step": 0,
            "stages": ["layers"],
            "gradient_bytes": 1_000_000,
            "sent_bytes_per_step": 0 if world == 1 else 1_000_100,
            "learning_rates": [0.1] * STEPS,
            "fingerprint_initial": BEGIN,
        }
        self.ranks = [rank | {"rank": r, "data_share": r} for r in range(world)]
        self.draw(lambda step, rank: ids(step)[rank::world])
        self.end()

    def configure(self, **values):
        self.config |= values
        return self

    def note(self, only=None, **values):
        """Let ranks, or one of them, record other values."""
        for rank in self.ranks:
            rank |= values if only in (None, rank["rank"]) else {}
        return self

    def draw(self, samples):
        """Let ranks draw the samples of (step, rank)."""
        for r in range(len(self.ranks)):
            self.note(r, sample_ids=[samples(step, r) for step in range(STEPS)])
        return self

    def sum_contents(self, drawn_by=None):
        """Note a checksum of each sample: a function of its id, another one of this rank's."""
        for r, rank in enumerate(self.ranks):
            sums = [[7 * i + (r == drawn_by) for i in step] for step in rank["sample_ids"]]
            self.note(r, sample_checksums=sums)
        return self

    def lose(self, step, by=0.5):
        """Let the losses differ from this step on."""
        self.losses[step:] = [loss + by for loss in self.losses[step:]]
        return self

    def end(self, share=1.0, aside=0.0, only=None):
        """Let ranks go another share of the baseline's way, or one of them end aside of it."""
        ways = [a + share * b for a, b in zip(BEGIN, MOVES, strict=True)]
        self.note(fingerprint_final=ways)
        return self.note(only, fingerprint_final=[x + aside for x in ways])

    def write(self, folder):
        """Write the record."""
        steps = [{"step": step, "loss": loss} for step, loss in enumerate(self.losses)]
        return write_files(folder, self.config, {"status": "ok"}, steps, self.ranks)


def ids(step):
    """Other samples in each step and each epoch."""
    return list(range(step * BATCH, step * BATCH + BATCH))


@pytest.fixture
def failed(tmp_path):
    """failed(spoil, baseline, world) -> {what was compared: hint} of the rows that fail."""

    def compare(spoil, baseline=lambda _: None, world=2):
        one, many = Training(1), Training(world)
        baseline(one)
        spoil(many)
        proof = equality.compare(many.write(tmp_path / "run"), one.write(tmp_path / "baseline"))
        return {row["compared"].split(" (")[0]: row["hint"] for row in proof.failed}

    return compare


LOSS = "largest difference of a step's loss"
FINAL = "final parameters apart, relative to how far the baseline's moved"
INITIAL = "initial parameters apart, relative to how far the baseline's moved"
GROUP = "ranks in the process group"
SAMPLES = "samples that differ from the baseline's batches"
REPEATED = "samples that two ranks trained on"
CONTENTS = "samples with the baseline's ids and other contents"
ANY = ""
UNSYNCHRONISED = {LOSS: ANY, FINAL: "^Nothing is synchronised: the ranks send each other next to"}
A_LAYER_IS_NOT = {LOSS: ANY, FINAL: "^A layer is not synchronised: the ranks end with different"}
STEPPED_FOR_EACH = (
    "^The learning rate of step 1 is 0.025, the baseline's 0.05..*"
    "stepped once in each step, whatever the number of ranks"
)
BATCH_NORM = r"The model has 4 BatchNorm layers.*\.eval\(\) on each of them"


def drift(training):
    """Two trainings side by side: losses differ from step 1 on, and one rank ends elsewhere."""
    return training.lose(1).end(aside=0.1, only=1)


def other_contents(training):
    return training.lose(0, by=0.01).end(aside=0.05)


def halve_rates(training, each):
    return training.note(learning_rates=[0.1 * 0.5 ** (each * step) for step in range(STEPS)])


CASES = {
    "a right training": (lambda t: t, {}),
    "ranks without a process group and without DDP": (
        lambda t: drift(t.note(world_size=1, sent_bytes_per_step=0)),
        {
            GROUP: "2 processes were started and none has joined .*nothing is synchronised",
            LOSS: ANY,
            FINAL: "^Nothing is synchronised",
        },
    ),
    "a process group that the script does not ask": (
        lambda t: t.note(script_world_size=1),
        {GROUP: "take rank and world size from it"},
    ),
    "no DDP: only a loss is sent, as Linux counts it": (
        lambda t: drift(t.note(sent_bytes_per_step=148)),
        UNSYNCHRONISED,
    ),
    "a layer that DDP does not see": (drift, A_LAYER_IS_NOT),
    "a forgotten set_epoch": (
        lambda t: t.draw(lambda step, rank: ids(step % EPOCH)[rank::2]).lose(EPOCH).end(aside=0.05),
        {
            SAMPLES: r"^From step 3 on the ranks draw batches again.*sampler.set_epoch\(epoch\)",
            LOSS: ANY,
            FINAL: ANY,
        },
    ),
    "other samples without a repetition": (
        lambda t: t.draw(lambda step, rank: [i + 500 for i in ids(step)[rank::2]]),
        {SAMPLES: "^(?!.*set_epoch).*the batch size divided by the number of ranks"},
    ),
    "ranks that train the same samples": (
        lambda t: t.draw(lambda step, rank: ids(step)),
        {REPEATED: r"DistributedSampler\(dataset, world, rank\)"},
    ),
    "a schedule that is stepped for each rank": (
        lambda t: halve_rates(t, each=2).lose(2).end(share=0.7),
        {LOSS: STEPPED_FOR_EACH, FINAL: STEPPED_FOR_EACH},
        lambda t: halve_rates(t, each=1),
    ),
    "data made with a seed of each rank": (
        other_contents,
        {
            LOSS: "ids of the samples and initial parameters agree.*a seed that depends on the",
            FINAL: ANY,
        },
    ),
    "checksums tell who drew other contents": (
        lambda t: other_contents(t.sum_contents(drawn_by=1)),
        {
            CONTENTS: "^Rank 1 drew other data under the same ids",
            LOSS: "the samples are not the baseline's",
            FINAL: ANY,
        },
        lambda t: t.sum_contents(),
    ),
    "equal checksums clear the contents": (
        lambda t: other_contents(t.sum_contents()),
        {LOSS: "what a step does to its samples", FINAL: ANY},
        lambda t: t.sum_contents(),
    ),
    "another start": (
        lambda t: (
            t.lose(0, by=0.01)
            .note(only=1, fingerprint_initial=[x + 1 for x in BEGIN])
            .end(aside=1.0, only=1)
        ),
        {
            INITIAL: "^Ranks begin with different parameters: broadcast rank 0's, or initialise",
            LOSS: "the initial parameters are not the baseline's",
            FINAL: ANY,
        },
    ),
    "a recorded loss of one rank": (
        lambda t: t.lose(0, by=0.01),
        {LOSS: "^All parameters agree, so the training is right"},
    ),
    "a sum in place of a mean": (
        lambda t: setattr(t.end(share=2.0), "losses", [2 * loss for loss in t.losses]),
        {
            LOSS: "^The first one is 2 times the baseline's",
            FINAL: "^They went 2.0 times as far as the baseline's",
        },
    ),
    "gradients clipped before they are averaged": (
        lambda t: t.lose(1).end(share=0.5),
        {
            LOSS: "They agree before step 1",
            FINAL: "0.50 times as far.*clipped before they are averaged",
        },
    ),
    "ranks that end alike": (
        lambda t: t.end(aside=0.01),
        {FINAL: "^The ranks end alike, so they are synchronised.*clipped before they are averaged"},
    ),
    "parameters that never moved": (
        lambda t: t.end(share=0.0),
        {FINAL: "^They are the initial ones still"},
    ),
    "batch norms": (
        lambda t: t.note(batch_norm_layers=4).lose(1).end(aside=0.01),
        {LOSS: BATCH_NORM, FINAL: BATCH_NORM},
    ),
    "losses and parameters that are no numbers": (
        lambda t: t.lose(0, by=math.nan).end(aside=math.nan, only=0),
        {LOSS: "They differ from step 0 on", FINAL: "."},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_hint_names_the_cause(failed, case):
    spoil, expected, *baseline = CASES[case]
    hints = failed(spoil, *baseline)
    assert set(hints) == set(expected)
    for row, words in expected.items():
        assert re.search(words, hints[row], re.S), hints[row]


@pytest.mark.parametrize(
    ("optimizer", "aside", "rounding"),
    [("adamw", 5e-4, True), ("adamw", 0.01, False), ("sgd", 1e-4, False)],
)
def test_hint_calls_what_may_be_rounding_under_adam_no_fault(failed, optimizer, aside, rounding):
    def use(training):
        return training.configure(optimizer=optimizer)

    hints = failed(lambda t: use(t).end(aside=aside), use)
    assert set(hints) == {FINAL}
    words = "this may be rounding that Adam enlarges. Repeat with SGD or in float64"
    assert (words in hints[FINAL]) == rounding


def test_hint_names_no_batch_norm_to_one_process(failed):
    hints = failed(lambda t: t.note(batch_norm_layers=4).end(aside=0.01), world=1)
    assert "BatchNorm" not in hints[FINAL]


@pytest.mark.parametrize(
    ("mine", "world", "says"),
    [
        ({"global_batch": 16, "steps": 99}, 2, "as many samples .* Divide the batch size"),
        ({"global_batch": 6}, 3, "8 samples can't be divided among 3 ranks. Choose a batch size"),
        ({"global_batch": 4}, 2, "global_batch is 4 here and 8 in the baseline$"),
        ({"corpus_crc32": 1}, 2, "on different texts.+ an older record may have another"),
    ],
)
def test_settings_that_differ_are_told_by_their_cause(failed, mine, world, says):
    with pytest.raises(ValueError, match=says):
        failed(lambda t: t.configure(**mine), lambda t: t.configure(corpus_crc32=2), world)
