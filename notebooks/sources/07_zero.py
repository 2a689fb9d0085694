# %% [markdown]
# # 07 ZeRO: every rank keeps its part only
#
# **90 minutes**, on any machine, after lessons 04 and 06. In this lesson the ranks are CPU cores,
# even where there are GPUs: it counts bytes, and these are the same.
#
# After this lesson you can shard an optimizer's state, then the gradients, then the parameters by
# hand; say to the byte what each stage of ZeRO leaves on a rank, and what it costs in traffic; use
# PyTorch's `ZeroRedundancyOptimizer`, DeepSpeed and FSDP2; and choose the stage for a given model
# and device.

# %% [markdown]
# ## The question
#
# Training keeps 16 bytes for each parameter (lesson 06). Data parallelism has *N* ranks, and so has
# them *N* times. Must it?
#
# The next cell gets ready. DeepSpeed is an optional package. Where it is missing, its cells say so,
# and the lesson goes on with PyTorch's own.

# %%
from bootcamp import available, launch, warm_up
from bootcamp.launcher.launch import HOW_TO_GET

warm_up()
DEEPSPEED = available("deepspeed")
missing = f"DeepSpeed is not installed here: its runs are left out. {HOW_TO_GET['deepspeed']}"
print("DeepSpeed is installed." if DEEPSPEED else missing)

# %% [markdown]
# The next cell trains with DDP on four ranks, one sample each, so that activations do not hide the
# state. (Four ranks may be more than there are cores. For counting bytes that does not matter.)

# %%
RANKS, UNEVEN = 4, 3
few = {"device": "cpu", "steps": 4, "quiet": True}
ddp = launch("ddp", RANKS, optimizer="adamw", global_batch=RANKS, **few)

# %% [markdown]
# The next cell adds up what the ranks hold. How many copies of the state are there?

# %%
from bootcamp import Table

KINDS = ("parameters", "gradients", "optimizer", "activations")


def held(run, rank=0):
    """Bytes that a rank of a run holds, by kind."""
    return {kind: run.ranks[rank][f"{kind.removesuffix('s')}_bytes"] for kind in KINDS}


rows = [{"rank": rank, **held(ddp, rank)} for rank in range(RANKS)]
assert len({str(list(row.values())[1:4]) for row in rows}) == 1, "DDP's ranks hold the same"
Table(rows, "DDP, bytes of each rank, counted from live tensors")

# %% [markdown]
# Four copies. And they do not only have the same size: after each step they hold the same
# *numbers*. Every rank applies the same mean gradient to the same parameters. Three of the four do
# work that another one does too, and keep what another one keeps.
#
# **ZeRO** stands for *zero redundancy optimizer* (Rajbhandari et al., 2019). Its idea: of what is
# equal on all ranks, each keeps a part, its **shard**, and asks the others when it needs the rest.

# %% [markdown]
# ## The idea
#
# ZeRO comes in stages. The next cell draws them. Look at what is cut first, and why that one: it is
# the largest, and only `optimizer.step()` needs it.

# %%
from bootcamp import plots
from bootcamp_lessons.diagrams import zero_stages as diagrams

plots.show(diagrams.stages(RANKS))

# %% [markdown]
# ### By hand
#
# You will see all of it in one small program, on live ranks: eight layers, each a matrix. The next
# cell shows its tools. Which of them send, and which only gives memory back?

# %%
import json
import textwrap

from IPython.display import Markdown, display

from bootcamp.paths import SRC

by_hand = SRC / "snippets" / "zero_by_hand.py"
program = by_hand.read_text()


def piece(begin, end):
    """A piece of the program, from one text up to another."""
    before, code = program.split(begin, 1)
    code = before.rpartition("\n")[2] + begin + code[: code.index(end)]
    return Markdown(f"```python\n{textwrap.dedent(code)}```")


piece("def part(", "class Held")

# %% [markdown]
# In a **reduce-scatter** the ranks add up tensors, as in an all-reduce, but each gets only *its
# part* of the sum. In an **all-gather** each brings its part, and all get the whole. One after the
# other they *are* an all-reduce (lesson 06c).
#
# `free` empties the memory behind a weight and leaves its shell. So the model keeps its structure,
# and `gather` fills the same shell again.
#
# **Stage 1: the optimizer's state.** Each rank builds its optimizer over its parts alone. AdamW
# makes its two averages for what it is given, so there is nothing to cut. The next cell shows both
# lines.

# %%
display(piece("for weight in weights:\n        parts", "    def look"))
piece("# stage 1:", "    def shard_gradient")

# %% [markdown]
# Each part is a view into the weight, so the optimizer changes the weight itself, in one place.
# After the step each rank has one fresh part and old values elsewhere: an all-gather. The next cell
# shows the training loop. Find where stages 1 and 2 gather.

# %%
piece("for inputs, targets in batches():\n        carried", "    look()\n    held.look(opt")

# %% [markdown]
# And the gradients? A rank updates its part, so it needs the mean gradient of its part only. DDP's
# all-reduce has told it the rest for nothing. A reduce-scatter will do.
#
# **Stage 2: the gradients.** In stage 1 all gradients are there when the backward ends, and are cut
# then. In stage 2 each is cut as soon as the backward has it, and its memory is given back at once.
# The next cell shows it: a hook on each weight.

# %%
piece("def shard_gradient", "    # stage 3:")

# %% [markdown]
# **Stage 3: the parameters.** A layer's weight is needed while this layer computes: once in the
# forward, once in the backward. In between it is freed. Three hooks on each layer do it, as the
# next cell shows. Where is it freed after the backward? (Look at stage 2's hook.)

# %%
piece("# stage 3:", "    for inputs, targets in batches():\n        carried")

# %% [markdown]
# That is all of ZeRO. The next cell trains the four stages with AdamW and with SGD, and compares
# with one process that has all samples and shards nothing. The program computes in float64, so that
# rounding stays small.

# %%
snippet = {"device": "cpu", "quiet": True}


def printed(run):
    """The records that rank 0 of a snippet printed."""
    return [json.loads(line) for line in run.output(0).splitlines() if line.startswith('{"')]


hand = printed(launch(by_hand, RANKS, **snippet))
for stage in hand:
    assert max(stage["apart"].values()) < 1e-10, f"stage {stage['stage']} trains something else"
rows = [{"stage": s["stage"], **{f"{k} apart": v for k, v in s["apart"].items()}} for s in hand]
Table(rows, "Largest difference of any weight from one process")

# %% [markdown]
# All stages train the same model. Now what the rank held, *at the most* at any moment of a step.
# The next cell holds it against the number of weights, 8 bytes each. Where is a little more than a
# quarter, and why?

# %%
psi = hand[0]["numbers"]
layer = psi // 8
rows = []
for stage in hand:
    row = {
        "stage": stage["stage"],
        **stage["most"],
        "parameters after it": stage["kept"]["parameters"],
    }
    rows.append(row | {"all, bytes for a number": sum(stage["most"].values()) / psi})
assert hand[1]["most"]["optimizer"] == 2 * 8 * psi / RANKS, "a quarter of AdamW's two averages"
assert hand[2]["most"]["gradients"] == 8 * (layer + 7 * layer / RANKS), "one whole, seven parts"
assert hand[3]["most"]["parameters"] == 8 * (psi / RANKS + layer), "all parts, one whole layer"
Table(rows, f"Bytes of rank 0 at the most, {RANKS} ranks, {psi:,} numbers in float64")

# %% [markdown]
# A gradient is whole before it is cut, and a weight while its layer computes. So stage 2 needs a
# quarter of the gradients and *one layer* more, stage 3 a quarter of the parameters and one layer.
# With eight layers this is much; with a hundred it is little. The formulas of the paper leave it
# out, so do not forget it: **the largest layer has to fit.**

# %% [markdown]
# ## Predict
#
# Back to the course's model, float32 with AdamW: 4 bytes for the parameter, 4 for its gradient, 8
# for the two averages. The next cells ask four things.

# %%
from bootcamp import predict

guess_one = predict(
    "zero_one",
    f"ZeRO stage 1 on {RANKS} ranks: how many bytes of state does a rank hold per parameter?",
    unit="bytes",
    answer=None,
)
guess_one

# %%
guess_three = predict(
    "zero_three",
    f"And stage 3 on {RANKS} ranks?",
    unit="bytes",
    answer=None,
)
guess_three

# %% [markdown]
# Traffic: a reduce-scatter and an all-gather each send half of what an all-reduce does. Stage 3 by
# hand gathers each weight twice and reduces its gradient once.

# %%
guess_traffic = predict(
    "zero_traffic", "How many times what DDP sends does stage 3 send?", "times", answer=None
)
guess_traffic

# %% [markdown]
# The last one is about gradient accumulation (lesson 02): several backwards, then one step.

# %%
guess_first = predict(
    "zero_first",
    f"Two micro-batches, {RANKS} ranks, stage 2: after the first backward, "
    "what percentage of all gradients does a rank hold?",
    unit="%",
    answer=None,
)
guess_first

# %% [markdown]
# ## What changes
#
# ### Stage 1 in plain PyTorch
#
# `ZeroRedundancyOptimizer` takes the optimizer's place. The next cell shows the difference to the
# DDP script.

# %%
from bootcamp import script_diff

script_diff("zero1")

# %% [markdown]
# It gets the optimizer's *class*, because it builds one on each rank over that rank's share. DDP
# stays and all-reduces the gradients. After `step()` each rank broadcasts what it has updated. It
# deals out whole tensors, the largest first, and cuts none.
#
# ### DeepSpeed
#
# The next cell compares the DeepSpeed script with the DDP script. Who calls `backward` and `step`
# now?

# %%
script_diff("zero")

# %% [markdown]
# - `deepspeed.initialize` wraps model and optimizer into an **engine**. The engine owns the
#   backward, the reduction of gradients, the step, and setting gradients to zero.
# - The configuration is a dictionary, often a file. `stage` is all that changes between stages.
# - Two settings matter for a proof. `gradient_clipping` is 0 here: the section *Break it* shows why
#   that line is there. And by default DeepSpeed leaves small parameters whole in stage 3; the
#   `threshold` of 0 shards them too.
# - One line keeps a compiler away: without it this version of DeepSpeed would build an extension
#   for CPU ranks first, for minutes. The optimizer is PyTorch's, which needs no build either.
#
# ### FSDP2: stage 3 in PyTorch
#
# **Fully sharded data parallel** is PyTorch's stage 3. The next cell shows what it changes.

# %%
script_diff("fsdp")

# %% [markdown]
# - `fully_shard(block)` does to a block what our three hooks did to a layer: gather before, free
#   after, reduce-scatter the gradient. The last call, on the whole model, takes what is in no
#   block: embedding and head.
# - **What you give to one call is gathered together.** Blocks are a good size. With the last call
#   alone, the whole model would be gathered at once, and nothing saved while it computes.
# - Each parameter becomes a DTensor (lesson 06c), cut by rows. The optimizer is built after that,
#   over the shards, so it is sharded without knowing it.

# %% [markdown]
# ## Run it
#
# All of them shall train with both optimizers. The next cell defines how: AdamW on four ranks, SGD
# on *three*, since with three not everything divides, and that is worth a look.

# %%
runs = {"DDP": {RANKS: ddp}}


def train(name, script, **flags):
    """AdamW on four ranks and SGD on three, one sample for each rank."""
    runs[name] = {
        ranks: launch(script, ranks, optimizer=optimizer, global_batch=ranks, **few, **flags)
        for ranks, optimizer in ((RANKS, "adamw"), (UNEVEN, "sgd"))
    }


train("torch stage 1", "zero1")
train("FSDP2", "fsdp")

# %% [markdown]
# For DeepSpeed the next cell takes a variant that counts collectives in one step, with four lines
# that change nothing else (lesson 06c has it too). Stage 0 shards nothing, once is enough for it.

# %%
from bootcamp import variant

tools = "checkpoint, config, data, models, optimizers, record, sharding_flags"
imports = f"from bootcamp.train import {tools}"
COUNT = {
    imports: f"{imports}, collective_counter",
    "loss = models.loss(model(inputs), targets)": "if step == 2:\n"
    "    tally = collective_counter.Tally(model.basic_optimizer)\n    tally.start()\n"
    "loss = models.loss(model(inputs), targets)",
    "model.step()": "model.step()\nif step == 2:\n    tally.stop(context.run_dir)",
}
counting = variant("zero", "zero_counting", COUNT)
adamw = {**few, "optimizer": "adamw", "global_batch": RANKS}
if DEEPSPEED:
    runs["DeepSpeed stage 0"] = {RANKS: launch(counting, RANKS, stage=0, **adamw)}
for stage in (1, 2, 3) if DEEPSPEED else ():
    train(f"DeepSpeed stage {stage}", counting, stage=stage)
print(", ".join(runs) if DEEPSPEED else missing)

# %% [markdown]
# ## Read the measurement
#
# ### Bytes of each kind
#
# The next cell shows the formula, as it stands in the course.

# %%
import inspect

from bootcamp.theory import sharding as theory


def show(*functions):
    return Markdown("```python\n" + "\n\n".join(map(inspect.getsource, functions)) + "```")


show(theory.rank_bytes)

# %% [markdown]
# The table `each` says what a parameter costs. In float32 DeepSpeed has an entry of its own: from
# stage 1 on its optimizer works on a **copy** of its part, 4 bytes more. In 16-bit training that
# copy is the float32 one, which the paper's count of 12 contains. In float32 it is a waste.
#
# On top come 4 bytes in which AdamW counts its steps, for each tensor that it knows. Only PyTorch's
# stage 1 needs a different formula, since it deals out whole tensors. The next cell computes the
# formula for every run on four ranks.

# %%
from argparse import Namespace

from bootcamp.train import models

model = models.build(Namespace(model="gpt", size="tiny", seed=0, dtype="float32"))
shapes = [tuple(parameter.shape) for parameter in model.parameters()]
psi = sum(parameter.numel() for parameter in model.parameters())
formula = {}
for name in runs:
    stage = 3 if name == "FSDP2" else 0 if name == "DDP" else int(name[-1])
    own_copy = "DeepSpeed" in name and stage > 0
    each = theory.DEEPSPEED_FLOAT32 if own_copy else theory.FLOAT32
    formula[name] = theory.rank_bytes(psi, RANKS, stage, each)
    formula[name]["optimizer"] += 4 if own_copy else 4 * len(shapes)

# %% [markdown]
# The next cell holds it against what was counted on rank 0. Two cells of the table do not agree.
# Find them before you read on.

# %%
rows = []
for name, ranks in runs.items():
    counted = held(ranks[RANKS])
    row = {"": name}
    for kind in KINDS[:3]:
        row |= {kind: counted[kind], f"({kind})": formula[name][kind]}
    rows.append(row | {"activations": counted["activations"]})
    assert counted["parameters"] == formula[name]["parameters"]
    if name != "torch stage 1":
        assert counted["optimizer"] == formula[name]["optimizer"], f"{name}: optimizer state"
    if name != "DeepSpeed stage 1":
        assert abs(counted["gradients"] / formula[name]["gradients"] - 1) < 0.05
Table(rows, f"Bytes on rank 0 of {RANKS} ranks, {psi:,} parameters; in brackets: by formula")

# %% [markdown]
# Parameters and optimizer state agree to the byte. What does not:
#
# - **PyTorch's stage 1** gives whole tensors to ranks. They do not add up to exact quarters. The
#   next cell adds up all ranks: there is nothing twice, except one count of steps for each tensor.
# - **The gradients of DeepSpeed's stage 1.** The formula says all of them, the table says a
#   quarter. Was that not stage 2? We come back to it below.

# %%
states = [rank["optimizer_bytes"] for rank in runs["torch stage 1"][RANKS].ranks]
assert sum(states) == 8 * psi + 4 * len(shapes), "a tensor's state is missing, or kept twice"
print(f"{' + '.join(f'{size:,}' for size in states)} = {sum(states):,} bytes")
print(f"The largest is {max(states) / (sum(states) / RANKS) - 1:.1%} over the mean.")

# %% [markdown]
# The next cell draws all of them. The black mark is the formula's sum of the three kinds of state.
# Look at the grey part: does any stage change it?

# %%
counted = {name: held(ranks[RANKS]) for name, ranks in runs.items()}
sums = {name: sum(kinds.values()) for name, kinds in formula.items()}
four = [ranks[RANKS] for ranks in runs.values()]
plots.show(diagrams.held(counted, sums, four))

# %% [markdown]
# **Activations are not sharded by ZeRO.** They belong to a rank's own samples, so nothing is there
# twice. For them there are activation checkpointing, smaller micro-batches (lesson 02) and tensor
# parallelism (06c). The next cell scores your first two predictions, for PyTorch's stages.

# %%
state = {
    name: sum(counted[name][kind] for kind in KINDS[:3]) / psi
    for name in ("torch stage 1", "FSDP2")
}
display(guess_one.score(state["torch stage 1"]))
guess_three.score(state["FSDP2"])

# %% [markdown]
# ### What does not divide
#
# Three ranks do not divide this model, and each library has its own way. The next cell shows the
# formulas.

# %%
show(theory.flat_part, theory.parts_one_by_one, theory.rows_of_rank)

# %% [markdown]
# The next cell applies them to the runs on three ranks. SGD keeps 4 bytes a parameter, its
# momentum, and DeepSpeed its copy besides; dividing by that gives the numbers in a rank's part.
# Look at rank 2, and at the padding, the numbers that belong to no parameter.

# %%
part = {"FSDP2": [theory.rows_of_rank(shapes, UNEVEN, rank) for rank in range(UNEVEN)]}
part["DeepSpeed stage 2"] = [theory.flat_part(psi, UNEVEN)] * UNEVEN
part["DeepSpeed stage 3"] = [theory.parts_one_by_one(shapes, UNEVEN)] * UNEVEN
rows = []
for name in part.keys() & runs.keys():
    room = max(part[name]) * (UNEVEN if name == "DeepSpeed stage 2" else 1)  # not cut in stage 2
    for rank, said in zip(runs[name][UNEVEN].ranks, part[name], strict=True):
        counted_part = rank["optimizer_bytes"] // (4 if name == "FSDP2" else 8)
        row = {"": name, "rank": rank["rank"], "part by formula": said, "counted": counted_part}
        rows.append(row | {"padding, all ranks": UNEVEN * max(part[name]) - psi})
        assert counted_part == said, f"{name}: another part than the formula's"
        assert rank["parameter_bytes"] == 4 * room, f"{name}: memory for parameters"
rows.sort(key=lambda row: (row[""], row["rank"]))
Table(rows, f"Numbers in a rank's part; {psi:,} / {UNEVEN} = {psi / UNEVEN:,.1f}")

# %% [markdown]
# - **DeepSpeed, stages 1 and 2,** puts all parameters in one row, cuts it at equal places, through
#   the middle of matrices if need be, and pads the end.
# - **DeepSpeed, stage 3,** cuts each parameter by itself and pads each.
# - **FSDP2** cuts each parameter by its rows. The last rank gets what is left, and its optimizer
#   keeps state for no more. But its memory for parameters is as large as the others', so that all
#   can send equal parts.
#
# ### What stages 1 and 2 really differ in
#
# In the table above both held a quarter of the gradients. The record looks at them when the
# optimizer begins its work. Then they have been reduced, and each rank has kept its part. The
# difference is what came *before*. The next cell runs a small program: eight layers, a step of two
# micro-batches. It looks whenever the backward has one more gradient.

# %%
if DEEPSPEED:
    accumulate = launch(SRC / "snippets" / "zero_accumulate.py", RANKS, **snippet)
    seen = printed(accumulate)
    plots.show(diagrams.accumulated(seen, RANKS, [ddp]))
else:
    print(missing)

# %% [markdown]
# Read the two curves:
#
# - **Stage 1** lets the gradients come in, as in any backward. When the first backward has ended,
#   all are there, and they stay: the second micro-batch adds to them. Only at the end of the last
#   one are they reduced, once, and cut.
# - **Stage 2** cuts them while they come in, one bucket after the other, here a layer each. The
#   curve rises where rank 0's own part comes by: the first layers, so at the end. (The bucket that
#   is on its way is not drawn, one layer more.) It never holds all of one backward. But it has to
#   reduce in *every* micro-batch.
#
# So with accumulation stage 2 pays in traffic what it saves in memory: a reduction for each
# micro-batch in place of one for each step. The next cell holds the numbers against the formula,
# and scores your prediction.

# %%
if DEEPSPEED:
    whole = seen[0]["whole"]
    assert seen[0]["ends"] == [whole, whole / RANKS], "stage 1: all, and a part at the end"
    assert seen[1]["ends"] == [whole / RANKS, whole / RANKS], "stage 2: a part after each"
    shown = guess_first.score(100 * seen[1]["ends"][0] / whole)
else:
    shown = guess_first.score(100 / RANKS)
shown

# %% [markdown]
# ### The published row
#
# The paper's first figure has a model of 7.5 billion parameters on 64 GPUs, in 16 bit with AdamW's
# state in float32. The next cell computes it with the *same function* that has just agreed with the
# bytes of our ranks.

# %% tags=["nbval-check-output"]
from bootcamp.theory.published import table as published_table

published = published_table("zero_figure1")
computed, rows = {}, []
for row in published:
    size, ranks, stage = (int(row[key]) for key in ("parameters", "ranks", "stage"))
    computed[stage] = theory.rank_bytes(size, ranks, stage, theory.MIXED)
    ours = sum(computed[stage].values()) / 1e9
    rows.append({"stage": stage, "GB by formula": ours, "GB published": float(row["gb"])})
    assert abs(ours - float(row["gb"])) < 0.05, "not what the paper printed"
Table(rows, f"Model state on each of {ranks} GPUs. Published: {row['source']}")

# %% [markdown]
# The next cell draws it. Which stage brings most, and what is left in stage 2?

# %%
plots.show(diagrams.published(computed, published))

# %% [markdown]
# In stage 2 the parameters are left, 2 bytes each. That is why stage 3 matters for large models and
# hardly for small ones. And look at the first bar: without sharding this model trains on no GPU of
# 80 GB.
#
# The next cell adds activations and other ways of using many ranks, for models from tiny to 175
# billion parameters. With a micro-batch of 0 it shows the row above. Move ranks and micro-batch:
# which bars follow, and what does sharding not shrink?

# %%
from bootcamp import simulators

controls = simulators.memory()

# %% [markdown]
# ### What it costs: traffic
#
# In the paper's words, with ψ for the number of parameters: data parallelism sends 2ψ, stages 1 and
# 2 send 2ψ as well, stage 3 sends 3ψ. (All times (*N*-1)/*N*, in a ring.) For an all-reduce sends
# twice what a reduce-scatter or an all-gather does. Our program by hand has counted what it gave to
# each collective. The next cell adds it up.

# %%
rows = []
for stage in hand:
    asked = {kind: size / stage["numbers"] for kind, size in stage["carried"].items()}
    sent = sum(theory.RING[kind] * share for kind, share in asked.items())
    row = {"stage": stage["stage"], **dict.fromkeys(theory.RING), **asked}
    rows.append(row | {"sent, in psi": sent})
assert [row["sent, in psi"] for row in rows] == [2, 2, 2, 3], "not the paper's 2, 2, 2, 3"
display(Table(rows, "By hand: collectives of one step, in sizes of the model"))
guess_traffic.score(rows[3]["sent, in psi"] / rows[0]["sent, in psi"])

# %% [markdown]
# So stages 1 and 2 cost *nothing*: they only stop halfway in the all-reduce, and spend the other
# half on the parameters. Stage 3 costs half as much again.
#
# Do the libraries do that? First one more run of FSDP2, for comparison: `--keep-gathered` tells it
# not to free the blocks after the forward (`reshard_after_forward=False`). And one of DeepSpeed's
# stage 3, with thresholds of 0. You will see why. The next cell runs both.

# %%
runs["FSDP2, kept gathered"] = {RANKS: launch("fsdp", RANKS, keep_gathered=True, **adamw)}
overlap = '"overlap_comm": False,'
zeros = ("max_reuse_distance", "max_live_parameters", "prefetch_bucket_size")
strict = overlap + "".join(f'\n"stage3_{name}": 0,' for name in zeros)
if DEEPSPEED:
    frees = variant("zero", "zero_frees", {**COUNT, overlap: strict})
    runs["DeepSpeed stage 3, frees"] = {RANKS: launch(frees, RANKS, stage=3, **adamw)}

# %% [markdown]
# The next cell names what each run asks for in a step, in sizes of the model. For DeepSpeed it
# reads what was counted.

# %%
from bootcamp.train import collective_counter

TORCH = {
    "DDP": {"all-reduce": 1},
    "torch stage 1": {"all-reduce": 1, "broadcast": 1},
    "FSDP2": {"all-gather": 2, "reduce-scatter": 1},
    "FSDP2, kept gathered": {"all-gather": 1, "reduce-scatter": 1},
}


def asked(name, run):
    """{kind: sizes of the model} that the run's ranks asked for in a step."""
    if name in TORCH:
        return TORCH[name]
    sizes = {}
    for (kind, nbytes), count in collective_counter.total(run).items():
        sizes[kind] = sizes.get(kind, 0) + count * nbytes / (4 * psi)
    return {kind: round(size) for kind, size in sizes.items() if size > 0.01}


# %% [markdown]
# The last piece: **gloo**, which carries the messages of CPU ranks, does a reduce-scatter with the
# bytes of an all-reduce. NCCL, on GPUs, does not. So the next cell applies both formulas, and
# compares gloo's with what the kernel counted on the ranks' connections, the mean over the ranks.
# (The kernel's count is there on Linux only.) Which run sends 2ψ on GPUs?

# %%
from statistics import mean

rows, unit = [], 4 * psi * (RANKS - 1) / RANKS
for name, ranks in runs.items():
    calls = asked(name, ranks[RANKS])
    row = {"": name, "asks for": " + ".join(f"{n} {kind}" for kind, n in calls.items())}
    for wire, factors in (("NCCL", theory.RING), ("gloo", theory.GLOO)):
        row[f"psi on {wire}"] = sum({**factors, "broadcast": 1}[k] * n for k, n in calls.items())
    sent = [rank["sent_bytes_per_step"] for rank in ranks[RANKS].ranks]
    row["psi counted"] = mean(sent) / unit if all(sent) else None
    rows.append(row)
    assert not all(sent) or abs(row["psi counted"] / row["psi on gloo"] - 1) < 0.05, name
Table(rows, f"What a rank sends in a step, {RANKS} ranks; NCCL by formula only")

# %% [markdown]
# The count agrees with gloo's formula. (A few percent more are the protocol and the mean of the
# loss.) But the libraries do not do what the paper says:
#
# - **PyTorch's stage 1** is DDP with a broadcast on top: 3ψ. It deals out
#   whole tensors, so it fits optimizers that have to see a whole matrix, too.
# - **DeepSpeed's stages 1 and 2** ask for an all-reduce here, although its part would do: 3ψ. That
#   is this version's default (`use_multi_rank_bucket_allreduce`): one large message in place of one
#   for each owner.
# - **DeepSpeed's stage 3** gathers everything *once*: its thresholds, a billion parameters, say
#   what it may keep. Our model is smaller, so it keeps all of it from the forward to the backward.
#   Set to 0, it frees and gathers again. Then it is the paper's 3ψ.
# - **FSDP2** is the paper's stage 3, or 2ψ if it keeps the blocks.
#
# So count before you believe a volume, and know the thresholds before you believe a memory figure.

# %% [markdown]
# ### What `reshard_after_forward` trades
#
# The next cell compares memory of the two FSDP2 runs. The parameters that stay gathered after the
# forward are counted among what the forward keeps, the activations.

# %%
free, kept = (runs[name][RANKS] for name in ("FSDP2", "FSDP2, kept gathered"))
more = kept.ranks[0]["activation_bytes"] - free.ranks[0]["activation_bytes"]
assert more == 4 * psi, "kept gathered: exactly the whole parameters more"
print(f"{more:,} bytes more between forward and backward: 4 for each of {psi:,} parameters")

# %% [markdown]
# So `reshard_after_forward=False` has the traffic of stage 2 and, when the backward begins, its
# parameters; the rest of the time it has the memory of stage 3.
#
# ### When are the parameters there?
#
# `trace_step=` records one step, and FSDP2 names its phases in the trace. The next cell draws them
# for two ranks, a line for each block. Follow one line from left to right: when is a block whole?
# And where does a gather begin while *another* block is still whole?

# %%
traced = launch("fsdp", 2, trace_step=2, global_batch=16, **few)
step = diagrams.read_gathers(traced.folder / "ranks" / "0.trace.json")
for name, spans in step["groups"].items():
    gathers = sum(phase == "all-gather" for phase, *_ in spans)
    assert gathers == 2, f"{name} was gathered {gathers} times, not in forward and backward"
plots.show(diagrams.gathers(step, traced))

# %% [markdown]
# - In the **forward** the blocks become whole one after the other, from top to bottom, each for a
#   short time. The rest, embedding and head, stays whole beside them. In the **backward** it goes
#   back up, and behind each block its gradient is reduced and cut.
# - In the backward a block is gathered before the one *below* it in the picture has been freed:
#   FSDP2 **prefetches**. It knows the order from the forward. So two blocks are whole at once.
# - On CPU ranks a gather makes the script wait. On GPUs gathers run beside the computation: the
#   script runs ahead of the GPU, so the next block's gather is queued while this block computes, in
#   the forward too. If computing a block takes longer than gathering one, stage 3's traffic costs
#   hardly any time. If not, the GPUs wait. `set_modules_to_forward_prefetch` asks for more blocks
#   ahead, for more memory.
#
# ### 16 bit and offload: configuration
#
# All runs here compute in float32, since CPU ranks are slow in 16 bit, and fp16 is refused by
# DeepSpeed on CPUs. On GPUs you write one of these lines into the configuration. The next cell
# lists them beside FSDP2's counterpart.

# %% tags=["nbval-check-output"]
bf16, fp16 = (f"MixedPrecisionPolicy(param_dtype=torch.{kind})" for kind in ("bfloat16", "float16"))
options = {
    '"bf16": {"enabled": True}': (bf16, "arithmetic in 16 bit: the paper's 2 + 2 + 12 bytes"),
    '"fp16": {"enabled": True}': (fp16, "the same; needs a loss scale (lesson 02)"),
    '"offload_optimizer": {"device": "cpu"}': ("CPUOffloadPolicy()", "state in main memory"),
    '"offload_param": {"device": "cpu"}': ("CPUOffloadPolicy()", "parts in main memory, stage 3"),
    '"overlap_comm": True': ("always, on GPUs", "reduce while the backward goes on"),
}
Table([{"DeepSpeed": k, "FSDP2": a, "what it does": b} for k, (a, b) in options.items()])

# %% [markdown]
# `offload_...` goes into `"zero_optimization"`. **Offload** (Ren et al., 2021) moves the
# optimizer's state to the host's main memory and lets the CPU do the step. It makes room on a GPU,
# for time on the way. On CPU ranks it would save nothing: there is only main memory. With FSDP2 the
# policies are arguments of `fully_shard`, and the parameters that the optimizer updates stay in
# float32.

# %% [markdown]
# ## Prove it
#
# The next cell holds every run against the CPU baseline: AdamW on four ranks, SGD on three, each
# with losses of all steps, parameters and samples.

# %%
from bootcamp import check

rows = []
for name, ranks in runs.items():
    for world, run in ranks.items():
        setting = {"steps": few["steps"], "global_batch": world}
        setting["optimizer"] = run.config["optimizer"]
        proof = check.same_training(run, check.baseline(**setting))
        *_, loss, _, final = proof.rows
        row = {"": name, "ranks": world, "optimizer": setting["optimizer"]}
        rows.append(row | {"loss apart": loss["measured"], "parameters apart": final["measured"]})
Table(rows, "Against one process; allowed is 1e-5")

# %% [markdown]
# The next cell shows one proof whole: FSDP2 with SGD on three ranks.

# %%
base = check.baseline(steps=few["steps"], global_batch=UNEVEN, optimizer="sgd")
check.same_training(runs["FSDP2"][UNEVEN], base)

# %% [markdown]
# Sharding moves numbers to other places and changes none of them.

# %% [markdown]
# ## Break it
#
# Somebody writes DeepSpeed's configuration anew, and leaves out one line that "only switches
# something off". The next cell does the same, and trains with SGD. It raises nothing.

# %%
off = '"gradient_clipping": 0.0,  # left out, gradients are clipped to a norm of 1'
sgd = {**few, "optimizer": "sgd", "global_batch": 8}
alone = check.baseline(steps=few["steps"], global_batch=8, optimizer="sgd")
if DEEPSPEED:
    broken = launch(variant("zero", "zero_default", {off: ""}), 2, stage=2, **sgd)
    found = check.compare(broken, alone)
    assert found.failed, "the default configuration trained what the baseline trained"
    display(found)
    plots.show(plots.loss_curves(alone, broken))
else:
    print(missing)

# %% [markdown]
# Look at the rows of the proof. The samples are right, the start is right, the loss of the first
# step too. From the second step on it is another training. What could do that, and how would you
# find out?
#
# <details><summary>Answer</summary>
#
# Data and forward are right, so the *update* is not. Its direction or its size? In DeepSpeed 0.19.8
# `gradient_clipping` is 1.0 if the line is missing: whenever the norm of all gradients together is
# above 1, they are scaled down to 1. The next cell tests that guess.
# </details>
#
# A guess about an update is tested by making the same fault on purpose where you know every line.
# The next cell adds clipping to the *baseline*, and compares again.

# %%
clip = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
clipping = variant("gpu", "gpu_clips", {"optimizer.step()": f"{clip}\noptimizer.step()"})
clipped = launch(clipping, 1, **sgd)
if DEEPSPEED:
    check.same_training(broken, clipped)
worst = max(abs(a - b) for a, b in zip(clipped.losses, alone.losses, strict=True))
assert worst > 1e-3, "the gradients' norm should be above 1 here"
print(f"Clipping alone moves the loss by up to {worst:.2f}.")

# %% [markdown]
# With clipping the baseline follows the broken run to 1e-5: found. Clipping is no mistake in
# itself, many models are trained with it. But it must be *your* line. And AdamW would have hidden
# most of it, since it divides by the size of the gradients.

# %% [markdown]
# ## Exercises
#
# ### First: which stage fits?
#
# `lowest_stage(parameters, ranks, gigabytes, share)` returns the lowest stage of ZeRO, 0 to 3, that
# fits: the state on a rank may take at most this share of a GPU of so many GB (1e9 bytes), since
# the rest is for activations. Training is in 16 bit, with the paper's bytes. In each case stage 3
# fits. The next cell has the function's first line, and checks it.

# %%
from bootcamp import exercise


def lowest_stage(parameters, ranks, gigabytes, share):
    # your turn: return 0, 1, 2 or 3
    ...


print(exercise.check("lowest_stage", lowest_stage))

# %% [markdown]
# `exercise.solution("lowest_stage")` shows a solution. The next cell has four cases with 60 % for
# the state. Guess each stage before you run it.

# %%
cases = ((1.3e9, 8, 80), (3e9, 8, 40), (7e9, 64, 40), (70e9, 64, 80))
rows = []
for size, ranks, gb in cases:
    sums = [sum(theory.rank_bytes(size, ranks, stage).values()) / 1e9 for stage in range(4)]
    lowest = next(stage for stage, total in enumerate(sums) if total <= 0.6 * gb)
    row = {"billion": size / 1e9, "GPUs": ranks, "GB": gb}
    row |= {f"stage {stage}": total for stage, total in enumerate(sums)}
    rows.append(row | {"lowest": lowest})
Table(rows, "GB of state on each GPU, and the lowest stage within 60 % of it")

# %% [markdown]
# ### Second: from DDP to FSDP2
#
# The next cell writes the DDP script for you. Make it fully sharded.

# %%
print(exercise.start("fully_sharded"))

# %% [markdown]
# Edit the file, save it, and run the next cell. It trains with your script on two ranks with both
# optimizers, holds it against the baseline, and looks what each rank holds.
# `exercise.solution("fully_sharded")` shows the solution as a diff. For more: call `fully_shard` on
# pairs of blocks, or on the whole model alone, and look what that does to the trace.

# %%
print(exercise.check("fully_sharded"))

# %% [markdown]
# ## When to use it and when not
#
# - **The model fits with DDP:** stay with DDP. Nothing here sends less, and it is the simplest to
#   debug.
# - **The state is a little too large:** stage 1, or stage 2. By the formula they send what DDP
#   sends. With gradient accumulation stage 1 sends less than stage 2, and holds all gradients.
# - **The parameters are too large:** stage 3. In PyTorch that is FSDP2. The link has to carry 3ψ in
#   the time of a step, and the blocks have to be large enough to hide it.
# - **Kept gathered** (`reshard_after_forward=False`) when parameters fit and the link is slow.
# - **The activations are too large:** not ZeRO. Checkpointing, smaller micro-batches, or tensor
#   parallelism.
# - **The largest layer does not fit:** not ZeRO either, since it is whole while it computes.
# - **DeepSpeed or FSDP2?** DeepSpeed has offload to main memory and disk, and a configuration that
#   many programs share. FSDP2 is in PyTorch, works on tensors that know their layout, and combines
#   with tensor parallelism (06c). Whatever you take: its defaults are part of your training.
# - **Many hosts, slow link between them:** a lesson of its own, the next one: shard inside a host,
#   replicate between hosts.
#
# ## Sources
#
# - Rajbhandari et al., *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*,
#   2019, arXiv:1910.02054: the stages, the formulas, 2ψ and 3ψ, and the 7.5 billion row (its figure
#   1; `src/bootcamp/theory/published/zero_figure1.csv`).
# - Zhao et al., *PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel*, 2023,
#   arXiv:2304.11277.
# - Ren et al., *ZeRO-Offload: Democratizing Billion-Scale Model Training*, 2021, arXiv:2101.06840.
# - PyTorch documentation: *torch.distributed.fsdp.fully_shard*,
#   *torch.distributed.optim.ZeroRedundancyOptimizer*, tutorial *Getting Started with Fully Sharded
#   Data Parallel (FSDP2)*.
# - DeepSpeed documentation: *DeepSpeed Configuration JSON*, *ZeRO*; the source of version 0.19.8
#   for its defaults.
