"""The table of strategies: how each script is proved, what the proof must reject, who resumes whom.

test_equality.py runs the cases and the mistakes, test_checkpoint.py the relays. What the ranks of
these runs hold and send is compared with the formulas in test_run_bytes.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import warm
from trained import PROOF, baseline, trained

from bootcamp.experiments import equality
from bootcamp.launcher import launch
from bootcamp.records.runs import Run
from bootcamp.scripts import strategies
from bootcamp.scripts.variants import variant
from bootcamp.train import pipeline_stages
from bootcamp_lessons import ddp_practice, sharding_tables
from bootcamp_lessons.labs import known_programs

SGD, ADAMW = ("sgd",), ("adamw",)
BOTH = equality.PROVEN_WITH
NEVER_EQUAL = ("amp",)  # 16 bits: test_one_device.py says how near it stays
EXACT, FLOAT64 = 0.0, 1e-6  # tolerances: bit for bit, and of runs in double precision
MLP, LSTM, MOE = {"model": "mlp"}, {"model": "striped-lstm"}, {"model": "moe"}
RESNET = known_programs.RESNET
# two steps: the second one's update has the momentum of the first; 8 samples are 8 micro-batches
SHORT = {"steps": 2, "global_batch": 8}
# of lessons, whose runs these are
COMPILED = {"options": launch.Options(hang_seconds=600)}
LESSON_02C = {**MLP, "steps": 20, "global_batch": 12}
LESSON_04B = {"model": "resnet50", "dtype": "float64", "steps": 5, "global_batch": 16}
LESSON_05 = {"steps": 12, "global_batch": 32}
LESSON_06B = {"steps": 4, "global_batch": 32}
LESSON_08C = {"steps": 3, "global_batch": 24, "micro_batches": 2}


@dataclass(frozen=True)
class Case:
    """A setting in which a script must train what the baseline trains.

    script: its name, or a function that writes it. clipped: the baseline clips its gradients, too.
    tolerance: None is the one that everybody gets.
    """

    script: str | Callable[[], Path]
    ranks: int = 1
    flags: dict = field(default_factory=dict)
    optimizers: tuple[str, ...] = BOTH
    tolerance: float | None = None
    clipped: bool = False

    @property
    def path(self) -> str | Path:
        """The file to launch."""
        return self.script() if callable(self.script) else self.script

    def __str__(self) -> str:
        own = (f"{name}={value}" for name, value in self.flags.items() if name != "options")
        return " ".join([strategies.describe(self.path).name, f"x{self.ranks}", *own])

    @property
    def missing(self) -> str | None:
        """The framework that this machine lacks, and how to get it."""
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
        return ddp_practice.launch_baseline(trained, **same) if self.clipped else baseline(**same)

    def compare(self, optimizer: str) -> equality.Proof:
        """Return the proof, failed or not."""
        pair = self.train(optimizer), self.train_baseline(optimizer)
        own = () if self.tolerance is None else (self.tolerance,)
        return equality.compare(*pair, *own)


_counting = partial(sharding_tables.make_counting_script, "ep")
CASES = [
    # one device
    Case("gpu"),
    Case("gpu", 1, MLP, SGD),
    Case("gpu", 1, LSTM, ADAMW),
    Case("accumulate", 1, {"micro_batches": 3}),
    Case("accumulate", 1, {"micro_batches": 5}, SGD),
    Case("activation_checkpointing", 1, {"keep": "inputs"}, BOTH, EXACT),
    Case("activation_checkpointing", 1, {"keep": "products"}, ADAMW, EXACT),
    Case("activation_checkpointing", 1, MOE, ADAMW, EXACT),
    Case("activation_checkpointing", 1, LSTM, ADAMW, EXACT),
    Case("compile", 1, {"backend": "inductor", **LESSON_02C, **COMPILED}),
    Case("compile", 1, {"backend": "aot_eager", **COMPILED}, SGD),
    Case("dp"),
    Case("dp_by_hand", 1, {"replicas": 2}),
    Case("dp_by_hand", 1, {"replicas": 4}, SGD),
    # replicas
    Case("ddp", 1, {}, SGD),
    Case("ddp", 2),
    Case("ddp", 2, MLP, SGD),
    Case("ddp", 3, {}, ADAMW),
    Case("ddp", 4, {}, ADAMW),
    Case("ddp", 4, LSTM, ADAMW),
    Case("ddp_by_hand", 2),
    Case("ddp_options", 2, {"bucket_mb": 0.2, "bucket_view": True, "static_graph": True}),
    Case(ddp_practice.make_compiled_script, 2, {**MLP, "backend": "aot_eager"}, BOTH, clipped=True),
    Case(ddp_practice.make_accumulating_script, 2, {"micro_batches": 3}, BOTH, clipped=True),
    Case("ddp_sync_batchnorm", 2, LESSON_04B, SGD, FLOAT64),
    Case("ddp_sync_batchnorm", 4, LESSON_04B, ADAMW, FLOAT64),
    Case("local_sgd", 2, {"average_every": 1}, SGD),  # linear in the gradients, as AdamW is not
    # frameworks
    Case("horovod", 2, LESSON_05),
    Case("horovod", 4, LSTM, SGD),
    Case("lightning", 2, {}, ADAMW),
    Case("lightning", 4, MLP, SGD),
    Case("accelerate", 1, {}, ADAMW),
    Case("accelerate", 2, {}, SGD),
    # shards
    Case("zero1", 4),
    Case("fsdp", 2, {"keep_gathered": True}, ADAMW),
    Case("fsdp", 2, MLP, SGD),
    Case("fsdp", 2, LSTM, ADAMW),
    Case("fsdp", 3, {}, ADAMW),
    Case("fsdp", 4),
    Case(known_programs.add_sync_batch_norm, 2, RESNET),
    Case("fsdp_in_practice", 4, {"reshard": 2}, ADAMW, clipped=True),
    Case("fsdp_in_practice", 4, {"micro_batches": 3}, SGD, clipped=True),
    Case("hsdp", 4, {"shard": 2}),
    Case("hsdp", 4, {"shard": 4}, SGD),
    *(Case("zero", 2, {"stage": stage}, ADAMW) for stage in range(4)),
    *(Case("zero", 3, {"stage": stage, **MLP}, SGD) for stage in (1, 3)),
    # parts of the model
    Case("mp"),
    Case("mp", 1, LSTM, SGD),
    Case("mp", 1, RESNET),
    Case("ddp_mp", 4),
    *(
        Case("pp", 2, {"schedule": n, "micro_batches": 8, **LESSON_06B}, SGD)
        for n in pipeline_stages.NAMES_IN_TORCH
    ),
    # stages in the middle: zero-bubble's are interleaved's, zb-v's are dualpipe's
    *(
        Case("pp", 4, {"schedule": name, "micro_batches": 8, **SHORT}, SGD)
        for name in ("gpipe", "1f1b", "interleaved", "dualpipe")
    ),
    Case("pp", 2, {"schedule": "1f1b", **LESSON_06B}, ADAMW),
    Case("pp", 2, LSTM, SGD),
    # micro-batches round differently, and the MLP's ReLUs have a kink
    Case("pp", 2, {**MLP, "dtype": "float64"}, ADAMW),
    Case("ddp_pp", 4, {"mesh": "2x2", **LESSON_06B}),
    Case("ddp_pp", 4, {"schedule": "dualpipe", **SHORT}, SGD),
    Case("tp", 2),
    Case("tp", 2, {"sequence_parallel": True}),
    Case("tp", 2, {"kv_heads": 2, **SHORT}, SGD),  # one head of keys on each rank
    Case("tp", 4, {}, ADAMW),
    Case("striped", 2, LSTM),
    Case("striped", 4, LSTM, SGD),
    Case(_counting, 2, MOE, ADAMW),
    Case(_counting, 4, MOE),
    Case("megatron", 2, {"steps": 4, "global_batch": 8}),
    # two and three axes
    Case("fsdp_tp", 4, {"mesh": "2x2", "sequence_parallel": True}),
    Case("fsdp_pp", 4, LESSON_08C),
    Case("3d", 8, LESSON_08C),
]


@dataclass(frozen=True)
class Mistake:
    """What people get wrong: lines of a script, or flags, with which it trains something else.

    rows: words of those rows of the proof that must fail. only: no other row fails.
    """

    script: str | Path
    what: str
    changes: dict[str, str]
    rows: tuple[str, ...] = ("final parameters",)
    ranks: int = 2
    flags: dict = field(default_factory=lambda: MLP)
    optimizers: tuple[str, ...] = SGD
    clipped: bool = False
    only: bool = False

    def __str__(self) -> str:
        return f"{Path(self.script).stem}, {self.what}"

    def write(self) -> str | Path:
        """Write the variant with the changes."""
        name = str(self).replace(", ", "_").replace(" ", "_")
        return variant(self.script, name, self.changes) if self.changes else self.script

    @property
    def case(self) -> Case:
        """The setting whose proof must fail."""
        return Case(self.write, self.ranks, self.flags, self.optimizers, clipped=self.clipped)


_INITIAL, _LOSS = ("initial parameters",), ("loss", "final parameters")
_SCALE = "parameter.grad /= world"
_DRAW, _SAME_DRAW = (f"batches = data.Batches(args, {which})" for which in ("rank, world", "0, 1"))
_OWN_BYTES = "batches.dataset._bytes.random_(generator=torch.Generator().manual_seed(rank))"
_OTHER_START = {
    "model = models.build(args).to(device)": "args.seed += rank\nmodel = models.build(args)",
    "dist.broadcast(parameter.data, src=0)": "pass",
}
_WRAP = "model = DistributedDataParallel(model)"
_LEAVE_OUT = "DistributedDataParallel._set_params_and_buffers_to_ignore_for_model"
_CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)"
_AVERAGE = "for p in model.parameters():\n    dist.all_reduce(p.grad)\n    p.grad /= world"
_CLASS = "class WithLoss(torch.nn.Sequential):"
_HIDDEN_OUTPUTS = {
    _CLASS: f"class Own:\n    def __init__(self, loss):\n        self.loss = loss\n\n\n{_CLASS}",
    'return models.loss(outputs, targets), {"outputs": outputs}': (
        "return Own(models.loss(outputs, targets))"
    ),
    _WRAP: "model = DistributedDataParallel(model, static_graph=True)",
    "loss, _ = model(inputs, targets)": "loss = model(inputs, targets).loss",
}
_MICRO_LOSS = "micro_loss = models.loss(model(inputs[micro]), targets[micro])"
_CLIPPED = ddp_practice.CLIPPED.partition("\n")[0]
_COPY = "import copy\ncompiled = torch.compile(copy.deepcopy(model), backend='eager')"
_FILL = "models.initialise(model, args)"
_OWN_PARTS = """torch.manual_seed(args.seed + rank)
for parameter in model.parameters():
    torch.nn.init.normal_(parameter, std=0.02)"""
_NORM_OF_SHARDS = """shards = [p.grad.to_local() for p in model.parameters()]
norm = torch.nn.utils.get_total_norm(shards)
torch.nn.utils.clip_grads_with_norm_(model.parameters(), args.clip, norm)"""
_SHARE_LOSS = "loss = models.loss(model(inputs[share]), targets[share])"
_SYNC = "model.set_requires_gradient_sync(share is shares[{}])"
_OPTIMIZER = "optimizer = optimizers.build(args, model{}.parameters())"
_OTHER_BATCH = "if rank:\n    batches.global_ids = lambda step: torch.arange(8)"
_DRIFT = "if rank:\n    model.block0.mlp_norm.weight.data += 0.01"
_SCHEDULE = "schedule = schedule_class(stage_or_stages, args.micro_batches, loss_fn=models.loss{})"
_JOIN = "model = pipeline_stages.join(parts[i] for i in mine)"
_COPIES = "batches = data.Batches(args, {}, copies.size())"
_STRIPES = "layer.lstm.keep(range({}))"
_BACK = "return all_to_all({}, experts.sent, experts.received, dist.group.WORLD)"
_TO_EXPERTS = "return rows, arriving.view({})"
_MOVE = "model = model.to(device)"
_UNWEIGHED = """for block in model[1:-1]:
    block.router.register_forward_hook(lambda *_: (_[2][0] * 0 + 0.5, _[2][1]))
"""
_TWO_COPIES, _IN_PARTS = {"ranks": 4, "flags": SHORT}, {"flags": {**MLP, "micro_batches": 3}}
MISTAKES = [
    # replicas; a whole batch on each rank has the baseline's losses and parameters
    Mistake("ddp_by_hand", "summed", {_SCALE: ""}, _LOSS),
    Mistake("ddp_by_hand", "other start", _OTHER_START, _INITIAL, optimizers=BOTH),
    Mistake(
        "ddp",
        "whole batch on each rank",
        {_DRAW: _SAME_DRAW},
        ("samples that two ranks trained on",),
        only=True,
    ),
    Mistake(
        "ddp",
        "contents drawn by each rank",
        {_DRAW: f"{_DRAW}\n{_OWN_BYTES}"},
        ("samples with the baseline's ids and other contents", *_LOSS),
        only=True,
    ),
    Mistake(
        "ddp",
        "one layer left out",
        {_WRAP: f'{_LEAVE_OUT}(model, ["head.weight"])\n{_WRAP}'},
        optimizers=BOTH,
    ),
    Mistake("ddp", "statistics of a share", {}, _LOSS, flags=LESSON_04B),
    Mistake("gpu", "ranks that never met", {}, ("ranks in the process group",)),
    Mistake("local_sgd", "averaged too rarely", {}, flags={**MLP, "average_every": 2}),
    Mistake("local_sgd", "averaged after AdamW", {}, flags={"average_every": 1}, optimizers=ADAMW),
    Mistake(
        "ddp_in_practice",
        "clipped before the average",
        {_WRAP: "", _CLIP: f"{_CLIP}\n{_AVERAGE}"},
        clipped=True,
    ),
    Mistake("ddp_in_practice", "outputs hidden from DDP", _HIDDEN_OUTPUTS, clipped=True),
    Mistake(
        ddp_practice.ACCUMULATE,
        "parts not divided",
        {
            f"{_MICRO_LOSS} / args.micro_batches": _MICRO_LOSS,
            ddp_practice.STEP: ddp_practice.CLIPPED,
        },
        ("loss",),
        clipped=True,
        **_IN_PARTS,
    ),
    Mistake(
        ddp_practice.ACCUMULATE,
        "each part clipped",
        {"micro_loss.backward()": f"micro_loss.backward()\n{_CLIPPED}"},
        clipped=True,
        **_IN_PARTS,
    ),
    Mistake(
        "compile",
        "a copy compiled",
        {"compiled = torch.compile(model, backend=args.backend)": _COPY},
        ranks=1,
        flags={**LESSON_02C, **COMPILED},
    ),
    # shards; many programs draw after to_empty, and another number of ranks is another model
    *(
        Mistake(script, "drawn by each rank", {_FILL: _OWN_PARTS}, _INITIAL, ranks, SHORT)
        for script, ranks in (("fsdp", 2), ("hsdp", 4), ("tp", 2), ("fsdp_tp", 4))
    ),
    Mistake("fsdp", "statistics of a share", {}, _LOSS, flags=RESNET),
    Mistake("fsdp_in_practice", "norm of own shards", {_CLIP: _NORM_OF_SHARDS}, clipped=True),
    Mistake(
        "fsdp_in_practice",
        "parts not divided",
        {f"{_SHARE_LOSS} * len(share) / len(inputs)": _SHARE_LOSS},
        clipped=True,
    ),
    Mistake(
        "fsdp_in_practice", "reduced too early", {_SYNC.format(-1): _SYNC.format(0)}, clipped=True
    ),
    Mistake("zero", "clipped unasked", {'"gradient_clipping": 0.0,': ""}, _LOSS, flags={}),
    # parts of the model; each rank's own copy of a norm, and of a stripe, is in its fingerprint
    Mistake(
        "mp",
        "second half not trained",
        {_OPTIMIZER.format(""): _OPTIMIZER.format("[:half]")},
        ranks=1,
        flags=RESNET,
    ),
    Mistake(
        "tp",
        "other batches",
        {_SAME_DRAW: f"{_SAME_DRAW}\n{_OTHER_BATCH}"},
        ("batches that differ among the ranks of one model",),
        flags=SHORT,
    ),
    Mistake("tp", "other norms", {_FILL: f"{_FILL}\n{_DRIFT}"}, _INITIAL, flags=SHORT),
    Mistake(
        "pp",
        "summed over micro-batches",
        {_SCHEDULE.format(""): _SCHEDULE.format(", scale_grads=False")},
        _LOSS,
        flags=SHORT,
    ),
    Mistake(
        "pp",
        "a stage lost",
        {_JOIN: f"{_JOIN}\nif rank == 0:\n    del model[-1]"},
        ("stages that a model has",),
        flags=SHORT,
    ),
    Mistake(
        "ddp_pp",
        "pipelines with one share",
        {_COPIES.format("copies.get_local_rank()"): _COPIES.format("0")},
        ("shares of the batch",),
        **_TWO_COPIES,
    ),
    Mistake(
        "striped",
        "gradients not summed",
        {"return same.to_local(grad_placements=[Partial()])": "return same.to_local()"},
        _LOSS,
        flags=LSTM,
    ),
    Mistake(
        "striped",
        "stripes kept twice",
        {_STRIPES.format("rank * stripes, (rank + 1) * stripes"): _STRIPES.format("stripes")},
        _INITIAL,
        flags=LSTM,
    ),
    *(
        Mistake("ep", what, changes, flags=MOE)
        for what, changes in {
            "not divided": {_SCALE: "pass"},
            "divided twice": {_SCALE: "parameter.grad /= world**2"},
            "averaged": {_SCALE: f"dist.all_reduce(parameter.grad)\n{_SCALE}"},
            "experts in DDP too": {f"{_LEAVE_OUT}(model, mine)": ""},
            "back in another order": {_BACK.format("results"): _BACK.format("results.flip(0)")},
            "to another expert": {
                _TO_EXPERTS.format("world, each"): f"{_TO_EXPERTS.format('each, world')}.t()"
            },
            "unweighed": {_MOVE: _UNWEIGHED + _MOVE},
        }.items()
    ),
]

# Scripts that take up each other's checkpoints, two steps each: the flags of all, then for each
# its ranks and its own flags. All but the first of a relay resume.
RELAYS = {
    "one device": (
        {**MLP, "optimizer": "sgd"},
        Case("cpu"),
        Case("gpu"),
        Case("accumulate", 1, {"micro_batches": 3}),
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
        Case("fsdp", 4),
        Case("hsdp", 4, {"shard": 2}),
        Case("zero", 2, {"stage": 3}),
        Case("fsdp_in_practice", 2, {"clip": 1e9}),
        Case("zero", 4, {"stage": 1}),
        Case("zero1", 2),
        Case("zero", 2, {"stage": 0}),
        Case("fsdp", 1),
        Case("cpu"),
    ),
    "shards, momentum": (
        {**MLP, "optimizer": "sgd"},
        Case("fsdp", 2),
        Case("zero", 2, {"stage": 3}),
        Case("zero1", 2),
        Case("zero", 2, {"stage": 1}),
        Case("cpu"),
    ),
    "parts": (
        {"optimizer": "adamw"},
        Case("cpu"),
        Case("pp", 2, {"schedule": "interleaved"}),
        Case("tp", 2, {"sequence_parallel": True}),
        Case("ddp_pp", 4, {"micro_batches": 2}),
        Case("fsdp_tp", 4),
        Case("3d", 4, {"mesh": "2x1x2", "micro_batches": 2}),
        Case("fsdp_pp", 4, {"micro_batches": 2}),
        Case("megatron", 2),
    ),
    "experts": ({**MOE, "optimizer": "adamw"}, Case("ddp", 2), Case("ep", 4), Case("ep", 2)),
    "stripes": ({**LSTM, "optimizer": "adamw"}, Case("striped", 2), Case("striped", 4)),
    "statistics": (
        {"model": "resnet50", "dtype": "float64", "optimizer": "sgd"},
        Case("gpu"),
        Case("ddp_sync_batchnorm", 2),
    ),
}
