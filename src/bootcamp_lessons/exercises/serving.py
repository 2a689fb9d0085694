"""Exercises of lesson 11: a draft's right guesses, faithful exports, requests that fit."""

from dataclasses import dataclass

import numpy

from bootcamp.classroom.tasks import FunctionTask


@FunctionTask.from_solution(
    hint="Behind a wrong guess nothing is proved. What is known behind the last right one?",
    stronger="Count the right guesses from the first on: guesses[0] should be best[0]. One byte "
    "more is known: the large model's own, behind the last right one.",
    cases=(([7, 8], [7, 8, 4]), ([7, 8, 9], [7, 5, 9, 4]), ([7, 8], [1, 8, 4]), ([], [3])),
    mistakes={
        ("[: right + 1]", "[:right]"): "The byte behind the last right guess is the large model's "
        "own. Without it a pass whose first guess is wrong adds nothing, and the text never ends.",
        ("[: right + 1]", "[: right + 2]"): "One too many: it follows a guess that is wrong.",
        ("best[: right + 1]", "(guesses[: right + 1] or best)[: right + 1]"): "The first wrong "
        "guess is not what the large model chooses.",
        ("right < len(guesses) and guesses[right] == best[right]", "right < len(guesses)"): "You "
        "accept without a look. What follows a wrong guess answers another text.",
        (lambda guesses, best: [g for g, b in zip(guesses, best, strict=False) if g == b]): "A "
        "guess behind a wrong one may agree by chance; it belongs to another text.",
    },
)
def accept(guesses, best):
    """Return the large model's bytes: the right guesses, and the one that follows them."""
    right = 0
    while right < len(guesses) and guesses[right] == best[right]:
        right += 1
    return best[: right + 1]


EXAMPLE_LENGTH = 8  # of the made-up exports


@dataclass(frozen=True)
class Model:
    """A made-up model or export, int64 (batch, length) -> float32 (batch, 256).

    It expects the last byte again; all other scores are at most 0.01, and follow from all bytes.
    flaw: what the export has fixed or lost, see UNFAITHFUL.
    """

    name: str
    flaw: str = ""

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __call__(self, ids):
        ids = numpy.asarray(ids)
        if self.flaw == "batch" and len(ids) != 1:
            raise RuntimeError(f"expected input 'ids' of shape (1, length), got {ids.shape}")
        if self.flaw == "first":
            ids = numpy.broadcast_to(ids[:1], ids.shape)
        read = ids[:, -EXAMPLE_LENGTH:] if self.flaw == "length" else ids
        phase = (read + 1).sum(axis=1, keepdims=True) + (2.0 if self.flaw == "weights" else 0.0)
        small = numpy.cos(phase * (1 + numpy.arange(256)))
        if self.flaw == "dropout":
            small = 2 * small * (numpy.random.default_rng().random(small.shape) < 0.5)
        best = (ids[:, -1:] + (self.flaw == "weights")) % 256
        scores = (numpy.arange(256) == best) + 0.01 * small
        scores = scores * (1 + 1e-7) if self.flaw == "rounding" else scores
        return scores.astype(numpy.float32)


EAGER = Model("the model itself")
FAITHFUL = Model("an export that is faithful, but for rounding", "rounding")
UNFAITHFUL = (
    Model("an export that takes a batch of 1 only", "batch"),
    Model("an export that answers every sample with the first one's scores", "first"),
    Model(f"an export that reads {EXAMPLE_LENGTH} bytes at most, as its example had", "length"),
    Model("an export with dropout on", "dropout"),
    Model("an export of the initial parameters", "weights"),
)


@FunctionTask.from_solution(
    hint="What is fixed shows only on other shapes. What do you compare, and what is an exception?",
    stronger="For each of several batches and of several lengths, 1 and context among them, draw "
    "random bytes; compare all 256 scores, shapes first, with a tolerance. An exception of "
    "exported is a difference: return False.",
    cases=tuple((exported, EAGER, 32) for exported in (FAITHFUL, *UNFAITHFUL)),
    mistakes={
        ("(1, 3, 8)", "(1,)"): "You try a batch of 1 only. An export that was made with it may "
        "have fixed it, and refuse the others or answer them wrongly.",
        ("(1, context // 2, context)", "(EXAMPLE_LENGTH,)"): "You try one length only, perhaps the "
        "one it was exported with. Try 1 and the whole context too.",
        (
            "abs(scores - expected) < 1e-5",
            "scores.argmax(axis=1) == expected.argmax(axis=1)",
        ): "You compare the best byte only. With dropout on, or bytes left unread, all scores are "
        "wrong long before the best byte is another: compare all numbers.",
        ("scores = numpy.empty(0)", "continue"): "An exception counts as right in your check.",
        ("< 1e-5", "== 0"): "A faithful export adds up in another order: allow 1e-5.",
        ("integers(256", "integers(1"): "All your samples are equal, so an export that reads the "
        "first one alone gives them all their scores. Draw random bytes.",
    },
)
def same_model(exported, eager, context):
    """Check that two models give the same float32 scores for several batch sizes and lengths."""
    rng = numpy.random.default_rng(0)
    for batch in (1, 3, 8):
        for length in (1, context // 2, context):
            ids = rng.integers(256, size=(batch, length))
            expected = eager(ids)
            try:
                scores = exported(ids)
            except Exception:  # each runtime has its own types
                scores = numpy.empty(0)
            if scores.shape != expected.shape or not (abs(scores - expected) < 1e-5).all():
                return False
    return True


@FunctionTask.from_solution(
    hint="How many bytes are left beside the weights? How many numbers are kept for one token?",
    stronger="Left are 1e9 * (gpu_gb - 2 * billions) bytes. A token keeps a key and a value in "
    "every layer, for each of the kv_heads: 2 * layers * kv_heads * head_width numbers of 2 bytes. "
    "Round down, and give 0 rather than less.",
    cases=(
        (80, 8, 32, 32, 8, 128, 8192),
        (80, 8, 32, 32, 8, 128, 131072),
        (80, 7.5, 36, 32, 32, 128, 2048),
        (24, 1.5, 48, 25, 25, 64, 1024),
        (80, 70, 80, 64, 8, 128, 8192),
        (160, 70, 80, 64, 8, 128, 8192),
    ),
    unit="requests",
    mistakes={
        ("gpu_gb - 2 * billions", "gpu_gb"): "The weights are there too, 2 bytes each.",
        ("2 * billions", "billions"): "Weights have 2 bytes: a billion of them is 2 GB.",
        ("2 * layers", "layers"): "That keeps keys or values. A token leaves both, in every layer.",
        ("kv_heads * head_width", "query_heads * head_width"): "That keeps keys and values for "
        "every query head. Heads of queries that share them need them once: count kv_heads.",
        ("2 * billions", "16 * billions", "2 * layers", "16 * layers"): "A number of 16 bits has 2 "
        "bytes: your weights and requests are eight times too large.",
        ("1e9 * (gpu_gb - 2 * billions)", "2**30 * gpu_gb - 2e9 * billions"): "A GB is 10^9 bytes.",
        ("max(0, int(left // request))", "int(left // request)"): "No request fits: 0, not less.",
        ("int(left // request)", "left / request"): "A part of a request is none: round down.",
        ("(gpu_gb -", "(0.9 * gpu_gb -"): "The share that vLLM takes: here all of gpu_gb is yours.",
    },
)
def requests_that_fit(gpu_gb, billions, layers, query_heads, kv_heads, head_width, length):
    """How many requests fit beside the weights; every number has 16 bits.

    billions: of parameters. length: tokens of a request.
    """
    left = 1e9 * (gpu_gb - 2 * billions)
    request = 2 * layers * kv_heads * head_width * 2 * length
    return max(0, int(left // request))
