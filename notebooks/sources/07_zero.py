# %% [markdown]
# # 07 ZeRO: every rank keeps only its part
#
# **67 minutes** for the core, on any machine, after lessons 04 and 06. In this lesson the ranks are
# CPU cores, even where there are GPUs: it counts bytes, and these are the same.
#
# After this lesson you can shard optimizer state, gradients and parameters by hand; say to the byte
# what each ZeRO stage leaves on a rank and what it sends; use PyTorch's `ZeroRedundancyOptimizer`
# and FSDP2; and say when the gathering can be hidden.
#
# ## The question
#
# Training with AdamW keeps 16 bytes for each parameter (lesson 06). Data parallelism has *N* ranks,
# and so keeps them *N* times. Must it?

# %%
import torch
from IPython.display import display

from bootcamp import Table, check, claim, launch, plots, predict, variant, warm_up
from bootcamp.paths import SRC
from bootcamp_lessons import excerpts, sharding_tables
from bootcamp_lessons.diagrams import zero_stages as diagrams

warm_up()
RANKS = 4  # they may be more than the cores: for counting bytes that does not matter
PROVEN = {"device": "cpu", **check.settings(RANKS)}
ddp = launch("ddp", RANKS, optimizer="adamw", quiet=True, **PROVEN)
rows = [{"rank": rank, **sharding_tables.read_memory(ddp, rank)} for rank in range(RANKS)]
Table(rows, "DDP, bytes of each rank, counted from live tensors")

# %% [markdown]
# Four copies, and after each step they hold the same *numbers*.
#
# **ZeRO** stands for *zero redundancy optimizer* (Rajbhandari et al., 2019). Of what is equal on
# all ranks, each keeps a part, its **shard**, and asks the others when it needs the rest.
#
# ## The idea
#
# ZeRO comes in three stages, ZeRO-1 to ZeRO-3. The first one shards what is largest and what only
# `optimizer.step()` needs.

# %%
plots.show(diagrams.stages(RANKS))

# %% [markdown]
# ### By hand
#
# A small program does all of it, for a model of eight matrices. Its tools are **reduce-scatter**
# and **all-gather** (lesson 04), which together *are* an all-reduce. `free` releases the memory
# behind a weight but keeps the tensor, and `gather` fills it again.
#
# **ZeRO-1: the optimizer's state.** Each rank builds its optimizer over its parts alone: `optimizer
# = OPTIMIZERS[kind](parts.values(), lr=0.01)`. A part is a view into the weight, so the step
# changes the weight in one place. After the step each rank has one fresh part and old values
# elsewhere: an all-gather.
#
# **ZeRO-2: the gradients.** A rank updates its part, so it needs the mean gradient of its part
# only: a reduce-scatter in place of the all-reduce. In ZeRO-2 a hook on each weight does it as
# soon as the backward pass has the gradient, and frees the rest.
#
# **ZeRO-3: the parameters.** A layer's weight is needed while this layer computes: once in the
# forward pass, once in the backward pass. In between it is freed. Where is it freed after the
# backward pass?

# %%
by_hand = SRC / "snippets" / "zero_by_hand.py"
PIECES = {  # of this program: where each begins, and what comes after it
    "its tools": ("def part(", "class Held"),
    "the hooks": ("def shard_gradient", "    for inputs, targets in batches():\n        car"),
    "the loop": ("for inputs, targets in batches():\n        car", "    look()\n    held.look(opt"),
}
display(excerpts.piece(by_hand, *PIECES["its tools"]))
excerpts.piece(by_hand, *PIECES["the hooks"])

# %% [markdown]
# (It is freed in ZeRO-2's hook, `shard_gradient`.) The training loop adds what DDP and ZeRO-1 do
# after the backward pass, and the all-gather of ZeRO-1 and ZeRO-2 after the step.

# %%
excerpts.piece(by_hand, *PIECES["the loop"])

# %% [markdown]
# That is all of ZeRO. The program compares each stage with one process that shards nothing, in
# float64. The table shows the most that rank 0 held at any moment of a step.

# %%
hand = excerpts.parse_printed(launch(by_hand, RANKS, device="cpu", quiet=True))
numbers = hand[0]["numbers"]
layer = numbers // 8
for stage in hand:
    assert max(stage["apart"].values()) < 1e-10, f"stage {stage['stage']} trains something else"
rows = [{"stage": stage["stage"], **stage["most"]} for stage in hand]
display(Table(rows, f"Peak bytes of rank 0, {RANKS} ranks, {numbers:,} numbers of 8 bytes"))
claim.equal(
    "zero_largest_layer_has_to_fit",
    "At its peak a rank of ZeRO-3 holds a quarter of the parameters and one complete layer.",
    hand[3]["most"]["parameters"],
    8 * (numbers / RANKS + layer),
    kind="memory",
    supported="The largest layer has to fit, whatever the number of ranks.",
)

# %% [markdown]
# A gradient is complete before it is cut, and a weight while its layer computes. The paper's
# formulas leave that out.
#
# ## Predict
#
# Back to the course's model, float32 with AdamW: 4 bytes for the parameter, 4 for its gradient, 8
# for the two moments. A reduce-scatter and an all-gather each send half as much as an all-reduce:
# count those that ZeRO-3 needs for a weight and its gradient in one step.
#
# Numbers are not bytes. DDP in float32 sends 8 bytes for each parameter: an all-reduce counts
# twice, 4 bytes each. (All of this times (*N*-1)/*N*, in a ring.)
#
# And seconds are not bytes. While one block computes, the next one is gathered, in 16 bits. A
# forward pass takes 2 FLOP for each parameter and token (lesson 01). Between hosts a ring enters
# each host once, and NCCL spreads it over all network cards of the host (lesson 04e). If
# you miss a number in the last question, see whether you need it.

# %%
guess_one = predict(
    "zero_one",
    f"ZeRO-1 on {RANKS} ranks: how many bytes of state does a rank hold for each parameter?",
    unit="bytes",
)
guess_traffic = predict(
    "zero_traffic", "How many times as many numbers as DDP does ZeRO-3 send?", unit="times"
)
guess_bytes = predict(
    "zero_bytes",
    "FSDP gathers in bfloat16, 2 bytes, and reduces gradients in float32. "
    "How many bytes does it send for each parameter?",
    unit="bytes",
)
guess_tokens = predict(
    "zero_tokens",
    "Many hosts, each with eight H100s and eight network cards of 50 GB/s. In large products an "
    "H100 reaches 795 TFLOP/s. From how many tokens on each rank can a block's forward pass hide "
    "the gather of the next block?",
    unit="tokens",
)
display(guess_one, guess_traffic, guess_bytes, guess_tokens)

# %% [markdown]
# ## What changes
#
# ### ZeRO-1 in PyTorch
#
# `ZeroRedundancyOptimizer` gets the optimizer's *class*, because it builds one on each rank over
# that rank's share. It deals out whole tensors, the largest first. DDP stays and all-reduces the
# gradients; after `step()` each rank broadcasts what it has updated.

# %%
from bootcamp import script_diff

script_diff("zero1")

# %% [markdown]
# ### ZeRO-3 in PyTorch: FSDP2
#
# **Fully sharded data parallel**, in its second version: `fully_shard` does to a block what our
# hooks did to a layer.

# %%
script_diff("fsdp")

# %% [markdown]
# - **Everything passed to one `fully_shard` call is gathered together.** A block is a good size.
#   With the last call alone, the entire model would be gathered at once, and nothing saved while it
#   computes. Layers that share a matrix belong in one call (lesson 08).
# - The head stays gathered after the forward pass, since the backward pass begins with it. The last
#   call makes the model the **root** and takes what is left, here nothing. PyTorch leaves a root
#   gathered by default.
# - Each parameter becomes a DTensor (lesson 06c), cut by rows. The optimizer is built after that,
#   over the shards, so its state is sharded, too.
# - The model is built on the **meta device**, which has shapes and no memory. After the sharding,
#   `to_empty` gives memory to this rank's shards, and `initialise` fills them: it draws one stage
#   after another, as one process does, and keeps the rank's part of each.
#
# So a rank never holds the model. A small program enforces that: Linux lets each rank allocate only
# 60 % of a GPT's bytes. The GPT is built completely and then sharded, or built on the meta device.

# %%
guess_peak = predict(
    "zero_initialised",
    f"A GPT of 345 MB, its largest block 28 MB, on {RANKS} ranks, built on the meta device: how "
    "many MB does a rank need while its shards are initialised?",
    unit="MB",
)
guess_peak

# %%
too_large = SRC / "snippets" / "initialise_sharded.py"
rows, grown, formula = [], None, 0.0
for way in ("complete", "meta"):
    for rank in excerpts.parse_printed(launch(too_large, RANKS, way=way, device="cpu", quiet=True)):
        grown, formula = rank["grown"], rank["model"] / RANKS + rank["largest"]
        row = {"built": way, "rank": rank["rank"], "may allocate MB": rank["room"] / 1e6}
        rows.append(row | {"grew, with libraries, MB": grown / 1e6, "error": rank["error"]})
display(Table(rows))
if grown:
    display(guess_peak.score(grown / 1e6))
claim.equal(
    "zero_initialised_in_shards",
    "A rank needs room for its shards and the largest stage.",
    grown,
    formula,
    within=0.05,
    kind="memory",
    supported="The largest unit has to fit, here as in training.",
)

# %% [markdown]
# ## Run it
#
# Each strategy runs with both optimizers; we measure the runs with AdamW.

# %%
proofs = {
    "ZeRO-1, PyTorch": check.prove("zero1", RANKS, **PROVEN),
    "FSDP2": check.prove("fsdp", RANKS, **PROVEN),
}
runs = {"DDP": ddp} | {name: adamw.run for name, (_, adamw) in proofs.items()}
same = {**PROVEN, "optimizer": "adamw", "quiet": True}

# %% [markdown]
# ## Read the measurement
#
# ### Bytes of each kind

# %%
from bootcamp.costs import model_shapes
from bootcamp.costs import sharding as theory

display(excerpts.source(theory.rank_bytes))
shapes = sharding_tables.parameter_shapes()
psi = sum(torch.Size(shape).numel() for shape in shapes)
formulas = {
    name: sharding_tables.calculate_state(run, psi, len(shapes)) for name, run in runs.items()
}
sharding_tables.compare_state(runs, formulas, f"Bytes on rank 0 of {RANKS}")

# %% [markdown]
# `each` is the number of bytes per parameter. AdamW's step counters add 4 bytes for each tensor.
# PyTorch's ZeRO-1 gives whole tensors to ranks, and they do not add up to exact quarters. In the
# figure the black mark is the formula's sum of the three kinds of state. Look at the grey part.

# %%
display(guess_one.score(sharding_tables.state_bytes(runs["ZeRO-1, PyTorch"]) / psi))
display(
    claim.equal(
        "zero_fsdp_holds_a_quarter",
        f"FSDP2's state on each of {RANKS} ranks is a quarter of DDP's.",
        sharding_tables.state_bytes(runs["FSDP2"]),
        sharding_tables.state_bytes(ddp) / RANKS,
        within=0.001,
        kind="memory",
    )
)
counted = {name: sharding_tables.read_memory(run) for name, run in runs.items()}
sums = {name: sum(kinds.values()) for name, kinds in formulas.items()}
plots.show(diagrams.rank_memory(counted, sums, list(runs.values())))

# %% [markdown]
# **ZeRO does not shard activations.** They belong to a rank's own samples, so nothing is stored
# twice. For them there are checkpointing, smaller micro-batches (lesson 02b) and tensor parallelism
# (06c).
#
# ### The published figure
#
# The paper's first figure has 7.5 billion parameters on 64 GPUs, in 16 bits with AdamW's state in
# float32. The bars are the *same function*. ZeRO-2 leaves all parameters on every rank, 2 bytes
# each: large models need ZeRO-3. Then with activations. Move the two sliders, ranks and
# micro-batch: what does sharding not shrink?

# %%
from bootcamp import simulators
from bootcamp.costs.published import table as published_table

published = published_table("zero_figure1")
size, ranks = (int(published[0][key]) for key in ("parameters", "data"))
computed = {stage: theory.rank_bytes(size, ranks, stage, theory.MIXED) for stage in range(4)}
plots.show(diagrams.published_memory(computed, published))
controls = simulators.memory()

# %% [markdown]
# ### Traffic, in numbers
#
# With ψ for the number of parameters, data parallelism sends 2ψ numbers, and so do ZeRO-1 and
# ZeRO-2: they stop halfway in the all-reduce and spend the other half on the parameters. By hand:

# %%
sent = [sum(theory.RING[kind] * n for kind, n in stage["carried"].items()) for stage in hand]
assert sent == [sent[0], sent[0], sent[0], 1.5 * sent[0]], "not the paper's 2, 2, 2, 3"
guess_traffic.score(sent[3] / sent[0])

# %% [markdown]
# Do the libraries do that? `--keep-gathered` sets `reshard_after_forward=False`: FSDP2 then frees a
# block only after its backward pass. gloo's reduce-scatter sends as much as an all-reduce, NCCL's
# does not (lesson 06c). So there are two formulas.

# %%
fsdp = sharding_tables.make_counting_script("fsdp")
runs["FSDP2"] = launch(fsdp, RANKS, **same)
runs["FSDP2, kept gathered"] = launch(fsdp, RANKS, keep_gathered=True, **same)
sharding_tables.compare_volumes(runs, psi)

# %% [markdown]
# - **FSDP2** is the paper's ZeRO-3, nearly: the head is gathered once. Kept gathered it sends 2ψ.
# - **PyTorch's ZeRO-1** is DDP with a broadcast on top: 3ψ. Since it deals out whole tensors, it
#   fits optimizers that have to see a whole matrix.
#
# So count before you believe a volume. (DeepSpeed's differ again: lesson 07c.) What
# `reshard_after_forward=False` saves in traffic it costs in memory.

# %%
free, kept = (runs[name].ranks[0] for name in ("FSDP2", "FSDP2, kept gathered"))
claim.equal(
    "zero_kept_gathered_holds_the_parameters",
    "Kept gathered, a rank also holds nearly all parameters when the backward pass begins.",
    kept["activation_bytes"] - free["activation_bytes"],
    4 * psi,
    within=0.12,
    kind="memory",
    supported="All but the head, which is there in any case, and a buffer of the last gather.",
)

# %% [markdown]
# ### Traffic, in bytes
#
# On GPUs the gathered parameters are bfloat16. The **shards** stay float32, parameters, gradients
# and state: 4 + 4 + 8 bytes. The 16-bit copy exists only while a block is gathered. `reduce_dtype`
# is the type in which gradients are summed over the ranks; without it they are summed in
# `param_dtype`, with the 8 significant bits of bfloat16.

# %%
practice = sharding_tables.make_counting_script("fsdp_in_practice")
mixed = launch(practice, 2, gather_dtype="bfloat16", micro_batches=1, **same)
bytes_by_nccl = sharding_tables.sent_bytes_per_parameter(mixed, psi)
display(guess_bytes.score(bytes_by_nccl, how="Counted calls, sent as NCCL does"))
display(
    claim.equal(
        "zero_mixed_fsdp_sends_ddps_bytes",
        "FSDP that gathers in bfloat16 and reduces in float32 sends the bytes of DDP in float32.",
        sharding_tables.sent_bytes_per_parameter(mixed, psi) * psi,
        sharding_tables.sent_bytes_per_parameter(ddp, psi) * psi,
        within=0.03,
        kind="formula",
        unit="bytes",
        supported="2 + 2 + 4 = 2 · 4, times (N-1)/N. (A little less: the head is gathered once.)",
    )
)
narrow = {"gather_dtype": "bfloat16", "reduce_dtype": "bfloat16", "micro_batches": 1}
narrow = launch(practice, 2, **narrow, **same)
claim.equal(
    "zero_reduce_dtype_halves_the_gradients",
    "Gradients that are reduced in bfloat16 save 2 bytes for each parameter.",
    sharding_tables.sent_bytes_per_parameter(narrow, psi) * psi,
    (sharding_tables.sent_bytes_per_parameter(mixed, psi) - 2) * psi,
    within=0.01,
    kind="formula",
    unit="bytes",
)

# %% [markdown]
# One and a half times as many numbers, and the same bytes. With gradients in bfloat16 too it is 6
# bytes, against the 4 of DDP with a hook (lesson 04d).
#
# ### What real programs add
#
# The last two runs are of this script, with three more things.

# %%
script_diff("fsdp_in_practice")

# %% [markdown]
# - **Gradient accumulation.** By itself FSDP2 reduces after every micro-batch. Without gradient
#   synchronisation it adds the gradients up, *complete* on each rank, and reduces them with the
#   last one: less traffic, more memory. Parameters are still gathered for each micro-batch.
# - **`reshard_after_forward=2`.** Between `True`, free the parameters, and `False`, keep them, is a
#   number: two neighbours keep a block together after the forward pass, and the second gather is
#   among these two.
# - **Clipping.** The gradients are DTensors, and so is their norm: `clip_grad_norm_` takes it over
#   all ranks. A norm of local shards would differ from rank to rank.

# %%
guess_reduces = predict(
    "zero_reduces_once",
    "The model has 8 units: embedding, six blocks, head. A step has three micro-batches, and "
    "their gradients are reduced once. How many reduce-scatters does a rank call?",
)
guess_reduces

# %%
from bootcamp_lessons import ddp_practice

by_two = launch(practice, RANKS, reshard=2, micro_batches=3, **same)
check.same_training(by_two, ddp_practice.launch_baseline(**{**same, "device": "cpu"}))
calls = by_two.collective_counts()
reduces = sum(count for (kind, _), count in calls.items() if kind == "reduce-scatter")
display(guess_reduces.score(reduces, within=0))
claim.equal(
    "zero_reshard_by_number",
    "Bytes of that step are the formula's: three gathers over all ranks, three among two, "
    "one reduce.",
    by_two.ranks[0]["sent_bytes_per_step"],
    sharding_tables.calculate_sent_bytes(
        "fsdp", "gpt", "tiny", RANKS, micro_batches=3, once=True, reshard=2
    ),
    within=0.02,
    supported="gloo adds a few bytes to each message; in a larger model they are less than 1 %.",
)

# %% [markdown]
# The clipped run follows a clipped baseline, losses and parameters.
#
# ### When are the parameters complete?
#
# `trace_step=` records one step, and FSDP2 names its phases in the trace. When is a block complete?
# And where does a gather begin while *another* block is still complete? The curve below has the
# memory for it.

# %%
traced = launch("fsdp", 2, device="cpu", steps=4, global_batch=16, trace_step=2, quiet=True)
step = diagrams.read_gathers(traced.folder / "ranks" / "0.trace.json")
units = {layer.name: 4 * sum(layer.numbers) for layer in model_shapes.layers("gpt", "tiny")}
plots.show(diagrams.gathers(step, traced, units))

# %% [markdown]
# - In the **forward pass** the blocks become complete one after the other, each for a short time.
#   The head stays complete. In the **backward pass** the order is reversed, and after each block
#   its gradient is reduced and cut.
# - In the backward pass a block is gathered before the one *below* it in the picture has been
#   freed: FSDP2 **prefetches**, in the reverse of the order that it recorded in the forward pass.
#   So a rank needs room for the largest unit, and for two with prefetch.
# - On CPU ranks a gather makes the script wait. On GPUs the script runs ahead, so the next block's
#   gather is queued while this block computes. Where it does not run ahead far enough,
#   `set_modules_to_forward_prefetch` names the blocks to gather early.
#
# ### When can it be hidden?
#
# A block has *P* parameters. To gather it in 16 bits a rank receives nearly 2*P* bytes. At *W*
# bytes a second that takes 2*P*/*W*. Its forward pass needs 2 FLOP for each parameter and token:
# for *T* tokens in a rank's micro-batch and *F* FLOP/s, 2*PT*/*F*. Computing takes longer if
#
# $$T > F / W$$
#
# *P* has dropped out: **larger blocks do not help, more tokens in each micro-batch do.** The
# backward pass computes twice as much and sends twice as much, a gather and a reduce-scatter, so
# the condition is the same with gradients in 16 bits; with float32 gradients the backward pass
# alone needs 1.5 *F*/*W* and the whole step 4/3 *F*/*W*.
#
# *F* is the rate while a block computes, here that of an H100's best measured product. An MFU of
# 40 % is not *F*: it is measured over whole steps, waiting included.

# %%
from bootcamp.costs import hardware

h100 = hardware.gpu("H100")
F, W = h100.peak * h100.reached, 8 * 50e9
print(f"Tokens at nominal rates: one card {F / 50e9:,.0f}, all of a host {F / W:,.0f}, ", end="")
print(f"NVLink {F / 450e9:,.0f}")
guess_tokens.score(F / W, how="By formula")

# %% [markdown]
# The eight cards together bring nearly as much as NVLink inside a host. Lesson 08d asks the same of
# every axis, with published runs. With fewer tokens the GPUs wait: over a slow network HSDP (lesson
# 08) gathers inside the host.
#
# While everything fits, what is the case for DDP? It sends fewer numbers in the same type, and its
# all-reduce is needed by the end of the step, not before each block.

# %%
from bootcamp import trial

small = {"device": "cpu", "global_batch": 4, "steps": 8}
one, *two = (trial(*how, **small) for how in (("cpu", 1), ("ddp", 2), ("zero1", 2), ("fsdp", 2)))
plots.show(plots.throughput(*(run() for run in (one, *two))))
claim.faster(
    "zero_ddp_is_faster_while_it_fits",
    "With 4 samples a step, two ranks train this model, which fits, faster with DDP than FSDP.",
    two[0],
    two[-1],
    otherwise="Few or busy cores can hide the waiting for each block's parameters.",
)

# %% [markdown]
# ## Prove it

# %%
found = [(name, proof) for name, both in proofs.items() for proof in both]
display(sharding_tables.list_proofs(found))
proofs["FSDP2"][0]

# %% [markdown]
# ## Break it
#
# `to_empty` leaves memory without values. Many programs initialise it in one loop over the shards.

# %%
sgd = {**PROVEN, "optimizer": "sgd", "quiet": True}
own = "torch.manual_seed(args.seed + rank)\nfor parameter in model.parameters():\n"
own += "    torch.nn.init.normal_(parameter, std=0.02)"
draws = variant("fsdp", "fsdp_draws", {"models.initialise(model, args)": own})
check.compare(launch(draws, 2, **sgd), proofs["FSDP2"][0].baseline)

# %% [markdown]
# It trains. But two ranks begin with a different model than four, and neither is the baseline's.
# (With the same seed on all ranks it is worse: CPU ranks then draw the same numbers, and a matrix
# consists of repeated shards. On GPUs DTensor gives each shard its part of one random stream.)
#
# ## What if an optimizer needs whole matrices? (optional)
#
# AdamW treats each number by itself, so a shard needs nothing of the others. **Muon** (Jordan et
# al., 2024; a variant trained Kimi K2) makes the momentum of a hidden matrix nearly orthogonal
# before the step: all singular values come near 1, so that rare directions count as much as
# frequent ones. **Newton-Schulz** needs only products for that, since an odd polynomial of a matrix
# is that of its singular values. All other parameters stay with AdamW.

# %%
by_muon = SRC / "snippets" / "muon.py"
display(excerpts.piece(by_muon, "def orthogonalise", "def whole"))
(said,) = excerpts.parse_printed(launch(by_muon, 1, device="cpu", quiet=True))
assert said["apart"] < 0.02, "other updates than those of torch.optim.Muon"
values = zip(said["before"], said["after"], strict=True)
Table([{"singular value": before, "then": after} for before, after in values])

# %% [markdown]
# Momentum stays sharded, but `x @ x.mT` needs all rows. In DDP each rank has them; FSDP2 has cut
# them. A Muon of our own can **gather** the momentum once, in float32: all ranks orthogonalise
# every matrix, and keep their parts. Or it can **exchange**: each matrix goes to one rank, which
# orthogonalises it and sends the parts back. PyTorch's gets DTensors as they are.

# %%
guess_torch = predict(
    "muon_torch",
    "How many times the bytes of our gather does `torch.optim.Muon` send? (0: it takes each shard "
    "for a matrix.)",
    unit="times",
)
guess_exchange = predict(
    "muon_exchange",
    f"How many times the bytes of the gather does the exchange send, with {RANKS} ranks?",
    unit="times",
)
display(guess_torch, guess_exchange)

# %%
import sys

from bootcamp.scripts import variants

sys.path.append(str(SRC))
from snippets import muon

display(excerpts.source(muon.gathered, muon.exchanged))
WAYS = {way: f"muon.Muon(hidden, muon.{way})" for way in ("whole", "gathered", "exchanged")}
WAYS["torch"] = "torch.optim.Muon(hidden, lr=0.02)"
variant("fsdp", "fsdp_gathered", muon.lines(WAYS["gathered"]))


def train(script, ranks, way, **flags):
    path = variants.variant(script, f"{script}_{way}", muon.lines(WAYS[way]))  # shows no diff
    return launch(path, ranks, **{**same, **flags})


blocks = model_shapes.layers("gpt", "tiny")[1:-1]
whole = 4 * sum(torch.Size(s).numel() for block in blocks for s in block.shapes if len(s) == 2)
formulas = {
    "gathered": theory.ring_bytes("all-gather", whole, RANKS),
    "exchanged": 2 * theory.ring_bytes("all-to-all", whole / RANKS, RANKS),
}
with_muon = {way: train("fsdp", RANKS, way) for way in formulas}
with_muon["torch"] = train("fsdp", RANKS, "torch", steps=3)  # it is slow
sent = {way: run.ranks[0]["sent_bytes_per_step"] for way, run in with_muon.items()}
off = None
if all(sent.values()):  # else this system does not count them
    more = {way: n - runs["FSDP2"].ranks[0]["sent_bytes_per_step"] for way, n in sent.items()}
    display(Table([{"bytes": "counted", **more}, {"bytes": "formula", **formulas}], "Muon sends"))
    display(guess_torch.score(more["torch"] / more["gathered"]))
    display(guess_exchange.score(more["exchanged"] / more["gathered"]))
    off = max(abs(more[way] / formulas[way] - 1) for way in formulas)
claim.at_most(
    "muon_sends",
    "What gather and exchange add to FSDP2's bytes is within 1 % of the formulas.",
    off,
    0.01,
    kind="count",
)

# %% [markdown]
# The gather is (*N*-1)/*N* of each matrix. The exchange sends 2/*N* of that, on 64 ranks 1/32, and
# a rank computes 1/*N* as much. PyTorch's takes no shard for a matrix: DTensor communicates in up
# to 15 products of each, though in bfloat16. (Moonlight's authors gather once, in bfloat16, and
# count at most 1.25 times AdamW's bytes.)

# %%
found = []
for optimizer in ("sgd", "adamw"):  # of the other parameters
    alone = train("gpu", 1, "whole", optimizer=optimizer)
    for way in formulas:
        run = with_muon[way] if optimizer == "adamw" else train("fsdp", RANKS, way, optimizer="sgd")
        found.append((way, check.same_training(run, alone)))
alone, torchs = (train("gpu", 1, way, steps=3) for way in ("whole", "torch"))
in_bfloat16 = {"torch": with_muon["torch"], "torch, one process": torchs}
found += [(name, check.compare(run, alone)) for name, run in in_bfloat16.items()]
sharding_tables.list_proofs(found)

# %% [markdown]
# Ours is equal, in float32. PyTorch's is as near on shards as in one process, but no nearer:
# bfloat16 has 8 significant bits, and Newton-Schulz makes small singular values, and the rounding
# in them, hundreds of times larger. So prove a sharded Muon in float32, and then take bfloat16. Now
# each rank orthogonalises the rows that it has:

# %%
WAYS["shards"] = "muon.Muon(hidden, muon.shards)"
longer = {"steps": 12, "global_batch": 16}
by_shards, right = train("fsdp", RANKS, "shards", **longer), train("gpu", 1, "whole", **longer)
plots.show(plots.loss_curves(right, by_shards))
check.compare(by_shards, right)

# %% [markdown]
# No error, nothing sent, hardly a higher loss, and for each number of ranks another optimizer: rows
# of different ranks are not orthogonal. Tensor parallelism cuts matrices too; there `gathered` is
# right as well.
#
# ## Exercises
#
# ### First: from DDP to FSDP2
#
# Here is the DDP script as a file of your own. Make it fully sharded: edit the file, save it, and
# run the cell again. The check trains with your script on two ranks with both optimizers, compares
# with the baseline, and looks at what each rank holds. `exercise.solution("fully_sharded")` shows
# the solution as a diff.

# %%
from bootcamp import exercise

print(exercise.start("fully_sharded"))
print(exercise.check("fully_sharded"))

# %% [markdown]
# ### Second: a rank's rows of Muon's step (optional)
#
# `direction_of_rank(gradients, momenta, rank)` gets two lists with the rows of each rank, and
# returns this rank's rows of what Muon steps along: gradient + 0.95 × momentum, made orthogonal.
# Here that is exact: `u @ vt`, with `u, _, vt = torch.linalg.svd(matrix, full_matrices=False)`.
# `exercise.solution("direction_of_rank")` shows a solution.

# %%


def direction_of_rank(gradients, momenta, rank):
    # your turn
    ...


print(exercise.check("direction_of_rank", direction_of_rank))

# %% [markdown]
# ## When to use it and when not
#
# - **The model fits with DDP:** stay with DDP. Nothing here sends fewer numbers, and it is the
#   simplest to debug.
# - **The state is a little too large:** ZeRO-1, which by the formula sends what DDP sends. In
#   Megatron it is called the distributed optimizer, and is the usual partner of tensor and pipeline
#   parallelism.
# - **The parameters are too large:** ZeRO-3, in PyTorch FSDP2. Give each micro-batch more than
#   *F*/*W* tokens, and compare bytes in the types that are sent. Large programs also compile each
#   block before they shard it, gather in FP8 (torchao), and pad or choose the dimension that is cut
#   (`shard_placement_fn`).
# - **Kept gathered** (`reshard_after_forward=False`) when parameters fit and the link is slow.
# - **The activations are too large:** not ZeRO. Checkpointing, smaller micro-batches, or tensor
#   parallelism.
# - **The largest unit does not fit,** two of them with prefetch: not ZeRO either, since it is
#   complete while it computes.
# - **DeepSpeed or FSDP2?** Lesson 07c. Whichever you take, its defaults are part of your training.
# - **A slow link between hosts:** HSDP, lesson 08.
#
# ## Sources
#
# - Rajbhandari et al., *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*,
#   2019, arXiv:1910.02054: the stages, the formulas, 2ψ and 3ψ, and the 7.5 billion row (its figure
#   1; `src/bootcamp/costs/published/zero_figure1.csv`).
# - Jordan et al., *Muon: An optimizer for hidden layers in neural networks*, 2024,
#   kellerjordan.github.io/posts/muon; Liu et al., *Muon is Scalable for LLM Training*, 2025,
#   arXiv:2502.16982, section 2.3 (Moonlight). Kimi Team, *Kimi K2*, 2025, arXiv:2507.20534,
#   section 2.1 (MuonClip).
# - Zhao et al., *PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel*, 2023,
#   arXiv:2304.11277.
# - The H100's arithmetic and both bandwidths: `src/bootcamp/costs/published/gpus.csv` and
#   `network.csv`, which name their sources.
# - PyTorch documentation: *torch.distributed.fsdp.fully_shard*,
#   *torch.distributed.optim.ZeroRedundancyOptimizer*, tutorial *Getting Started with Fully Sharded
#   Data Parallel (FSDP2)*.
