"""The table of strategies: how each script is proved, what the proof must reject, who resumes whom.

test_equality.py runs the cases and the mistakes, test_checkpoint.py the relays. What the ranks of
these runs hold and send is compared with the formulas in test_run_bytes.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import warm
from changes import read_changes
from trained import PROOF, baseline, trained

from bootcamp.experiments import equality
from bootcamp.launcher import launch, simulated_hosts
from bootcamp.paths import SRC
from bootcamp.records.runs import Run
from bootcamp.scripts import strategies
from bootcamp.scripts.variants import variant
from bootcamp.train import pipeline_stages
from bootcamp_lessons import ddp_practice, sharding_tables
from bootcamp_lessons.labs import known_programs
from snippets import experts_grouped, muon

SGD, ADAMW = ("sgd",), ("adamw",)
BOTH = equality.PROVEN_WITH
EXACT, FLOAT64 = 0.0, 1e-6  # tolerances: bit for bit, and of runs in double precision
FP16_SGD, FP16_ADAMW, BF16_ADAMW = 1e-3, 2e-2, 0.1  # AdamW enlarges rounding
MLP, LSTM, MOE = {"model": "mlp"}, {"model": "striped-lstm"}, {"model": "moe"}
IN_3 = {"micro_batches": 3}
RESNET, FP16 = known_programs.RESNET, {"autocast": "float16"}
# where a number is close to the middle of two in FP8, float32's rounding decides which it becomes
DOUBLE = {"dtype": "float64"}
# two steps: the second one's update has the momentum of the first; 8 samples are 8 micro-batches
SHORT = {"steps": 2, "global_batch": 8}
# of lessons, whose runs these are
COMPILED, EAGER = {"options": launch.Options(hang_seconds=600)}, {"backend": "aot_eager"}
LESSON_02C = {**MLP, "steps": 20, "global_batch": 12}
LESSON_04B = {"model": "resnet50", "dtype": "float64", "steps": 5, "global_batch": 16}
LESSON_05 = {"steps": 12, "global_batch": 32}
LESSON_06B = {"steps": 4, "global_batch": 32}
LESSON_08C = {"steps": 3, "global_batch": 24, "micro_batches": 2}


@dataclass(frozen=True)
class Case:
    """A setting in which a script must train what the baseline trains.

    script: its name, or a function that writes it. tolerance: None is the one that everybody gets.
    alone: trains the baseline.
    """

    script: str | Path | Callable[[], Path]
    ranks: int = 1
    flags: dict = field(default_factory=dict)
    optimizers: tuple[str, ...] = BOTH
    tolerance: float | None = None
    alone: Callable[..., Run] = baseline

    @property
    def path(self) -> str | Path:
        """The file to launch."""
        return self.script() if callable(self.script) else self.script

    @property
    def name(self) -> str:
        """The strategy's, also of a variant."""
        return strategies.describe(self.path).name

    def __str__(self) -> str:
        own = (f"{name}={value}" for name, value in self.flags.items() if name != "options")
        how = [Path(self.path).stem.split("_")[-1]] if self.alone is MUON else []
        return " ".join([self.name, f"x{self.ranks}", *how, *own])

    @property
    def missing(self) -> str | None:
        """The framework or the hosts that this machine lacks."""
        if "hosts" in self.flags and (why := simulated_hosts.why_not()):
            return f"no hosts here: {why}"
        framework = strategies.describe(self.path).framework
        if framework is None or launch.available(framework):
            return None
        return f"{framework} is not installed. {launch.HOW_TO_GET[framework]}"

    def train(self, optimizer: str) -> Run:
        """Return the run, which other tests and lessons may have trained."""
        with warm.workers():
            return trained(self.path, self.ranks, **PROOF | self.flags, optimizer=optimizer)

    def train_baseline(self, optimizer: str) -> Run:
        """Return the run of one process on the CPU with the same settings."""
        flags = PROOF | self.flags | {"optimizer": optimizer}
        same = {name: value for name, value in flags.items() if name in equality.SAME_SETTINGS}
        return self.alone(**same)

    def compare(self, optimizer: str) -> equality.Proof:
        """Return the proof, failed or not."""
        pair = self.train(optimizer), self.train_baseline(optimizer)
        own = () if self.tolerance is None else (self.tolerance,)
        return equality.compare(*pair, *own)


def with_muon(script: str, how: str) -> Path:
    """Write a variant of a script that trains hidden matrices with Muon, as lesson 07 does."""
    return variant(script, f"{script}_{how}", muon.lines(f"muon.Muon(hidden, muon.{how})"))


# writes the variant that counts collectives: lessons train it
counting = partial(partial, sharding_tables.make_counting_script)
# baselines that are not those of all
CLIPPED = partial(ddp_practice.launch_baseline, trained)
FP8 = partial(trained, SRC / "snippets" / "fp8_alone.py", 1)


def MUON(**same) -> Run:
    return trained(with_muon("gpu", "whole"), 1, **same)


_as_printed = partial(variant, "zero", "zero_as_printed", known_programs.print_settings())
PORTED = SRC / "snippets" / "amp_from_apex.py"
EXPERTS = SRC / "snippets" / "experts_sharded.py"
# on a CPU oneDNN computes LSTMs, in fp16 only from AVX512-FP16 on; torch's own does it anywhere
OWN_LSTM = {"# 2. Model": "torch.backends.mkldnn.enabled = False"}
_own_lstm = partial(variant, "amp", "amp_own_lstm", OWN_LSTM)
CASES = [
    # one device
    Case("gpu"),
    Case("accumulate", 1, IN_3, ADAMW),
    Case("accumulate", 1, {"micro_batches": 5}, SGD),  # parts of unequal size
    Case("amp", 1, SHORT | FP16, SGD, FP16_SGD),
    Case("amp", 1, FP16, ADAMW, FP16_ADAMW),
    Case("amp", 1, {}, ADAMW, BF16_ADAMW),
    Case(PORTED, 1, SHORT, SGD, FP16_SGD, alone=CLIPPED),
    Case(PORTED, 1, SHORT, ADAMW, FP16_ADAMW, alone=CLIPPED),
    Case(_own_lstm, 1, LSTM | FP16, SGD, FP16_SGD),
    Case("activation_checkpointing", 1, {"keep": "inputs"}, BOTH, EXACT),
    Case("activation_checkpointing", 1, {"keep": "products"}, ADAMW, EXACT),
    Case("activation_checkpointing", 1, MOE, ADAMW, EXACT),
    Case("compile", 1, {"backend": "inductor", **LESSON_02C, **COMPILED}),
    Case("dp"),
    Case("dp_by_hand", 1, {"replicas": 2}),
    # replicas
    Case("ddp", 2),
    Case("ddp", 4, {}, ADAMW),
    Case("ddp", 2, LSTM),
    Case("ddp", 2, {**MLP, "global_batch": 512}, ("adam",)),
    Case("ddp_by_hand", 2),
    Case("ddp_options", 2, {"bucket_mb": 0.2, "bucket_view": True, "static_graph": True}),
    Case(ddp_practice.make_compiled_script, 2, MLP | EAGER, SGD, alone=CLIPPED),
    Case("ddp_in_practice", 2, MLP, ADAMW, alone=CLIPPED),
    Case(ddp_practice.make_accumulating_script, 2, IN_3, BOTH, alone=CLIPPED),
    Case("ddp_sync_batchnorm", 2, LESSON_04B, SGD, FLOAT64),
    Case("ddp_sync_batchnorm", 2, RESNET, ADAMW, FLOAT64),
    Case("local_sgd", 2, {"average_every": 1}, SGD),  # linear in the gradients, as AdamW is not
    # frameworks
    Case("horovod", 2, LESSON_05),
    Case("lightning", 2),
    Case("lightning", 2, {"hosts": 2}, SGD),
    Case("accelerate", 2),
    # shards
    Case("zero1", 4),
    Case(counting("fsdp"), 4, {"keep_gathered": True}, ADAMW),
    Case("fsdp", 2, LSTM, SGD),
    Case("fsdp", 3, MLP, ADAMW),
    Case("fsdp", 4),
    Case(known_programs.add_sync_batch_norm, 2, RESNET, SGD),
    Case(counting("fsdp_in_practice"), 4, {"reshard": 2, **IN_3}, ADAMW, alone=CLIPPED),
    Case("fsdp_in_practice", 2, MLP | IN_3, SGD, alone=CLIPPED),
    Case("hsdp", 4, {"shard": 2}, ADAMW),
    Case("hsdp", 4, {"shard": 2, **MLP}, SGD),
    Case(partial(with_muon, "ddp", "whole"), 2, alone=MUON),
    Case(partial(with_muon, "fsdp", "gathered"), 4, {}, ADAMW, alone=MUON),
    Case(partial(with_muon, "fsdp", "exchanged"), 4, {}, SGD, alone=MUON),
    Case(partial(with_muon, "tp", "gathered"), 2, {}, ADAMW, alone=MUON),
    Case("fsdp_fp8", 4, DOUBLE, BOTH, FLOAT64, alone=FP8),
    Case("zero", 2, {"stage": 0}, ADAMW),
    *(Case(counting("zero"), 4, {"stage": stage}, ADAMW) for stage in (1, 2, 3)),
    Case("zero", 3, {"stage": 3, **MLP}, SGD),
    Case(_as_printed, 2, {"stage": 2, **MLP}, SGD),
    # parts of the model
    Case("mp"),
    Case("mp", 1, LSTM, SGD),
    Case("mp", 1, RESNET),
    Case("ddp_mp", 2),
    *(
        Case("pp", 2, {"schedule": n, "micro_batches": 8, **LESSON_06B}, SGD)
        for n in pipeline_stages.NAMES_IN_TORCH
    ),
    # stages in the middle: gpipe's are 1f1b's, zero-bubble's interleaved's, zb-v's dualpipe's
    *(
        Case("pp", 4, {"schedule": name, "micro_batches": 8, **SHORT}, SGD)
        for name in ("1f1b", "interleaved", "dualpipe")
    ),
    Case("pp", 2, {"schedule": "1f1b", **LESSON_06B}, ADAMW),
    Case("pp", 2, LSTM, SGD),
    Case("ddp_pp", 4, {"mesh": "2x2", **LESSON_06B}),
    Case("ddp_pp", 4, {"schedule": "dualpipe", **SHORT}, SGD),
    Case(counting("tp"), 2),
    Case(counting("tp"), 2, {"sequence_parallel": True}),
    Case("tp", 2, {"kv_heads": 2, **SHORT}, SGD),  # one head of keys on each rank
    Case("cp", 2),
    Case("cp", 4, {"kv_heads": 2, **SHORT}, SGD),
    Case("striped", 2, LSTM),
    Case("striped", 4, LSTM, SGD),
    Case(counting("ep"), 2, MOE),
    Case("ep", 4, MOE, ADAMW),
    Case("megatron", 2),
    # two and three axes
    Case("fsdp_tp", 4, {"mesh": "2x2"}, SGD),
    Case("fsdp_tp", 4, {"mesh": "2x2", "sequence_parallel": True}, ADAMW),
    Case("fsdp_pp", 4, LESSON_08C),
    Case("3d", 8, LESSON_08C),
    Case(EXPERTS, 4, {"mesh": "2x2", **MOE}),
    Case(partial(variant, "ep", "ep_grouped", experts_grouped.lines()), 2, MOE),
]


@dataclass(frozen=True)
class Mistake:
    """What people get wrong: lines of a script, or flags, with which it trains something else.

    rows: words of the rows of the proof that must fail. alone: no other row fails. setting: that of
    the run, without its script.
    """

    script: str | Path
    what: str
    changes: dict[str, str]
    rows: tuple[str, ...]
    alone: bool
    setting: Case

    def __str__(self) -> str:
        return f"{Path(self.script).stem}, {self.what}"

    def write(self) -> str | Path:
        """Write the variant with the changes."""
        name = str(self).replace(", ", "_").replace(" ", "_")
        return variant(self.script, name, self.changes) if self.changes else self.script

    @property
    def case(self) -> Case:
        """The setting whose proof must fail."""
        return replace(self.setting, script=self.write)


SETTINGS = {
    "mlp": Case("", 2, MLP, SGD),
    "mlp, both": Case("", 2, MLP),
    "mlp, clipped": Case("", 2, MLP, SGD, alone=CLIPPED),
    "mlp in parts": Case("", 2, MLP | IN_3, SGD, alone=CLIPPED),
    "mlp, local": Case("", 2, {**MLP, "average_every": 2}, SGD),
    "gpt, muon": Case("", 2, {}, SGD, alone=MUON),
    "gpt, local": Case("", 2, {"average_every": 1}, ADAMW),
    "gpt": Case("", 2, {}, SGD),
    "gpt, short": Case("", 2, SHORT, SGD),
    "gpt, fp8": Case("", 2, DOUBLE, SGD, FLOAT64, alone=FP8),
    "gpt, 4 ranks": Case("", 4, SHORT, SGD),
    "lstm": Case("", 2, LSTM, SGD),
    "moe": Case("", 2, MOE, SGD),
    "moe, 4 ranks": Case("", 4, {"mesh": "2x2", **MOE}, SGD),
    "gpt, fp16": Case("", 1, SHORT | FP16, SGD, FP16_SGD, alone=CLIPPED),
    "images": Case("", 2, RESNET, SGD),
    "images, 1 rank": Case("", 1, RESNET, SGD),
    "compiled": Case("", 1, {**LESSON_02C, **COMPILED}, SGD),
}
ROWS = {  # of a proof, by the words that a mistake is noticed by
    "losses": ("loss",),
    "end": ("final parameters",),
    "losses and end": ("loss", "final parameters"),
    "start": ("initial parameters",),
    "repeated": ("samples that two ranks trained on",),
    "contents": ("samples with the baseline's ids and other contents", "loss", "final"),
    "ranks": ("ranks in the process group",),
    "shares": ("shares of the batch",),
    "batches": ("batches that differ among the ranks of one model",),
    "stages": ("stages that a model has",),
}


def list_mistakes() -> list[Mistake]:
    """Read those of `script: setting: what is wrong: where it shows, alone or among others`."""
    found = []
    for heading, changes in read_changes("strategies"):
        script, setting, what, where = heading.split(": ")
        path = {"ddp_accumulate": ddp_practice.ACCUMULATE, "experts": EXPERTS}.get(script, script)
        rows, alone = ROWS[where.removesuffix(" alone")], where.endswith(" alone")
        found.append(Mistake(path, what, changes, rows, alone, SETTINGS[setting]))
    return found


MISTAKES = list_mistakes()
OWN_ROWS = muon.lines("muon.Muon(hidden, muon.shards)"), ROWS["losses and end"], False
MISTAKES.append(Mistake("fsdp", "shards made orthogonal", *OWN_ROWS, SETTINGS["gpt, muon"]))

# Scripts that take up each other's checkpoints, two steps each: the flags of all, then for each
# its ranks and its own flags. All but the first of a relay resume.
RELAYS = {
    "one device": (
        {**MLP, "optimizer": "sgd"},
        Case("cpu"),
        Case("gpu"),
        Case("accumulate", 1, IN_3),
        Case("activation_checkpointing"),
        Case("compile", 1, {"backend": "aot_eager"}),
        Case("dp"),
        Case("dp_by_hand", 1, {"replicas": 2}),
        Case("mp"),
    ),
    "replicas": (
        {**MLP, "optimizer": "sgd"},
        Case("gpu"),
        Case("ddp_mp", 2),
        Case("ddp_by_hand", 2),
        Case("ddp", 2),
        Case("ddp_options", 2),
        Case("ddp_in_practice", 2, {"clip": 1e9}),
        Case("accelerate", 2),
        Case("lightning", 2),
        Case("horovod", 2),
        # last: a rank's momentum is its own, and only rank 0's is saved
        Case("local_sgd", 2, {"average_every": 1}),
    ),
    "shards": (
        {**MLP, "optimizer": "adamw"},
        Case("fsdp", 2),
        Case("hsdp", 4, {"shard": 2}),
        Case("pp", 2, {"schedule": "interleaved"}),
        Case("zero", 2, {"stage": 3}),
        Case("ddp_pp", 4, {"micro_batches": 2}),
        Case("fsdp_in_practice", 2, {"clip": 1e9}),
        Case("zero", 3, {"stage": 1}),
        Case("fsdp_pp", 4, {"micro_batches": 2}),
        Case("zero1", 2),
        Case("fsdp", 1),
        Case("cpu"),
    ),
    "shards, momentum": (
        {**MLP, "optimizer": "sgd"},
        Case("fsdp", 2),
        Case("zero", 2, {"stage": 3}),
        Case("zero1", 2),
        Case("cpu"),
    ),
    "parts": (
        {"optimizer": "adamw"},
        Case("cpu"),
        Case("tp", 2, {"sequence_parallel": True}),
        Case("cp", 2),
        Case("fsdp_tp", 4),
        Case("3d", 4, {"mesh": "2x1x2", "micro_batches": 2}),
        Case("megatron", 2),
    ),
    "experts": ({**MOE, "optimizer": "adamw"}, Case("ddp", 2), Case("ep", 4), Case("ep", 2)),
    "stripes": ({**LSTM, "optimizer": "adamw"}, Case("striped", 2), Case("striped", 4)),
    "statistics": (
        {"model": "resnet50", "dtype": "float64", "optimizer": "sgd", "global_batch": 4},
        Case("gpu"),
        Case("ddp_sync_batchnorm", 2),
    ),
}
