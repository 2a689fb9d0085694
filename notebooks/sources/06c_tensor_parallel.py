# %% [markdown]
# # 06c Tensor parallelism: the matrices themselves are split
#
# **90 minutes**, on any machine, after lessons 04 and 06. Without several GPUs each rank is one CPU
# core, and the cells say so.
#
# After this lesson you can split a transformer block over ranks by hand and with PyTorch, say which
# collectives that needs and how many bytes they carry, and check it by counting, shrink what is
# left with sequence parallelism, combine it with sharded data parallelism, read Megatron-core, and
# split a long text over a ring of ranks.

# %% [markdown]
# ## The question
#
# A pipeline cuts a model *between* its layers. What if a single layer is too large, or too slow?
# Can several ranks compute **one** matrix product, and still get exactly its result?
#
# The next cell starts to load PyTorch in the background.

# %%
from bootcamp import available, default_ranks, gpu_count, launch, warm_up

warm_up()

# %% [markdown]
# The next cell chooses what this lesson works with: four ranks if there are four GPUs or cores,
# else two. (The smallest model has four attention heads, which is why.)

# %%
RANKS = 4 if default_ranks() >= 4 else 2
DEVICE = "cuda" if gpu_count() >= RANKS else "cpu"
BATCH = 16
print(f"{RANKS} ranks on {'GPUs' if DEVICE == 'cuda' else 'CPU cores'}, {BATCH} samples a step.")

# %% [markdown]
# ## The idea
#
# It needs no ranks to see it. The next cell makes an input `x` and a matrix `A`, cuts `A` into two
# halves **by columns**, multiplies with each, and puts the results side by side.

# %%
import torch

torch.manual_seed(0)
draw = {"dtype": torch.float64}
x, A, B = (torch.randn(*shape, **draw) for shape in ((5, 8), (8, 12), (12, 8)))

left, right = A.chunk(2, dim=1)
side_by_side = torch.cat([x @ left, x @ right], dim=1)
assert torch.allclose(side_by_side, x @ A), "columns do not depend on each other, so this can't be"

# %% [markdown]
# Each column of the result needs one column of `A`, and all of `x`. So nothing has to be added.
#
# The next cell cuts `B` **by rows** instead. Then each half needs only *its* columns of the input,
# and gives a result of full size that is one part of a **sum**.

# %%
hidden = x @ A
upper, lower = B.chunk(2, dim=0)
first, second = hidden.chunk(2, dim=1)
assert torch.allclose(first @ upper + second @ lower, hidden @ B), "the parts do not add up"

# %% [markdown]
# Now look at the two together. A split by columns leaves the result in column halves, and a split
# by rows needs its input in column halves. So a pair of matrices, as in an MLP, can be computed
# with **one** sum at the very end. What stands between them may be any function that treats each
# number by itself, such as gelu. The next cell does the whole MLP so.

# %%
from torch.nn.functional import gelu

parts = [gelu(x @ a) @ b for a, b in zip(A.chunk(2, dim=1), B.chunk(2, dim=0), strict=True)]
assert torch.allclose(sum(parts), gelu(x @ A) @ B), "the split MLP is another function"

# %% [markdown]
# Why not rows first? Because then the sum would come *before* gelu, and gelu of a sum is not the
# sum of gelus. The next cell shows how far off that is.

# %%
halves = zip(x.chunk(2, dim=1), A.chunk(2, dim=0), strict=True)
wrong = sum(gelu(x_part @ a) for x_part, a in halves)
print(f"off by up to {(wrong - gelu(x @ A)).abs().max():.2f}")
assert not torch.allclose(wrong, gelu(x @ A))

# %% [markdown]
# The next cell draws the MLP on two ranks. Look for the only place where something is sent.

# %%
from bootcamp import plots
from bootcamp_lessons.diagrams import tensor_parallel

plots.show(tensor_parallel.column_then_row())

# %% [markdown]
# **Attention** splits the same way, by heads. A head has its own columns of the query, key and
# value matrices, and looks at no other head. What comes out of the heads is multiplied with the
# output matrix, which is split by rows. One sum again. So the number of heads must be a multiple of
# the number of ranks.
#
# What of the backward? The gradient of a sum goes to all its parts unchanged, so there is nothing
# to send at the end of the pair. But at its *beginning* all ranks read the same `x`, and each
# computes a gradient for it from its own part. These have to be added. Two functions say all this.
# Megatron-LM calls them **f** (forward: nothing; backward: all-reduce) and **g** (forward:
# all-reduce; backward: nothing). The next cell shows them, and the pair between them, in a program
# for real ranks.

# %%
from IPython.display import Markdown, display

from bootcamp.paths import SRC

SNIPPETS = SRC / "snippets"
by_hand = SNIPPETS / "tensor_by_hand.py"
text = by_hand.read_text()
Markdown(f"```python\n{text[text.index('class Enter') : text.index('def columns')]}```")

# %% [markdown]
# The next cell runs it. Each rank multiplies with its parts, and compares the output, the input's
# gradient and its own weights' gradients with those of the whole computation.

# %%
import json

from bootcamp import Table

quiet = {"device": "cpu", "quiet": True}
snippet = {**quiet}
rows = [json.loads(line) for line in launch(by_hand, RANKS, **snippet).output(0).splitlines()]
for row in rows:
    assert max(v for k, v in row.items() if "apart" in k) < 1e-10, "the split is not the whole"
    assert row["all-reduces, forward"] == row["all-reduces, backward"] == 1
Table(rows, f"{RANKS} ranks against one, in float64: largest differences")

# %% [markdown]
# The differences are rounding. Count the all-reduces: one forward and one backward for the MLP, the
# same for the attention. A block of a transformer is these two, so **four all-reduces in a block**.
#
# Ranks that share matrices in this way are a **tensor-parallel group**. They are not
# data-parallel: all of them train on the *same* samples.

# %% [markdown]
# ## Predict
#
# The next cell asks for bytes. The activations that are summed have a number for each sample (the
# batch, *b*), each place in the text (*s*), and each element of the model's width (*h*). The model
# has six blocks and computes in float32. A rank sends 2(*N*-1)/*N* times the bytes of what is
# all-reduced, in a ring of *N* ranks (lesson 04).

# %%
from bootcamp import predict
from bootcamp.train.models import gpt

TINY = gpt.SIZES["tiny"]
b, s, h = BATCH, TINY["context"], TINY["width"]
guess_bytes = predict(
    "tensor_parallel_bytes",
    f"b = {b}, s = {s}, h = {h}, {TINY['layers']} blocks: "
    f"how many MB does each of {RANKS} ranks send in a step?",
    unit="MB",
    answer=None,
)
guess_bytes

# %% [markdown]
# The second question is about memory. Each rank has 1/*N* of the matrices. What of the
# **activations**, which the forward keeps for the backward?

# %%
guess_memory = predict(
    "tensor_parallel_memory",
    f"With {RANKS} ranks: what percentage of one process's activations does each rank keep?",
    unit="%",
    answer=None,
)
guess_memory

# %% [markdown]
# ## What changes
#
# In PyTorch nobody writes f and g. One writes a **plan**: which module is split how. PyTorch's
# tensors that know that they are a part of a whole, **DTensors**, then call the collectives. The
# next cell shows the difference to the DDP script.

# %%
from bootcamp import script_diff

script_diff("tp")

# %% [markdown]
# - `init_device_mesh` names the axes along which the ranks stand. Here there is one, `tensor`.
# - `ColwiseParallel` splits by columns: query, key, value, and the MLP's first matrix. (PyTorch
#   stores a weight transposed, so the code splits dimension 0.) `RowwiseParallel` splits by rows.
# - A layout is `Replicate()`, the whole on every rank, or `Shard(d)`, a part of dimension *d*. An
#   output of `RowwiseParallel` begins as parts of a sum; the layout says what becomes of it.
# - `data.Batches(args, 0, 1)`: every rank takes the whole batch.
# - Norms and embedding are not split, and are computed by all ranks alike.
# - DDP is gone. Each rank owns the gradients of its part, and nobody has to average them.
#
# ### The loss, split over the vocabulary
#
# The head gives a score for each byte value, and it is split by columns too: each rank has the
# scores of *some* byte values. Cross-entropy needs log Σ exp(score) over *all* of them, and the
# score of the target. Must the scores be gathered? The next cell does without. It cuts them into
# two halves, and lets only small things cross: maxima, sums, and the target's score from the half
# that has it.

# %%
scores, targets = torch.randn(6, 256, **draw), torch.randint(256, (6,))
parts = scores.chunk(2, dim=1)
top = torch.stack([part.amax(dim=1) for part in parts]).amax(dim=0)  # crosses: maxima
total = sum((part - top[:, None]).exp().sum(dim=1) for part in parts)  # crosses: sums
owner, place = targets // 128, targets % 128
found = [(owner == k) * part[range(6), place] for k, part in enumerate(parts)]  # 0 if not mine
loss = (total.log() + top - sum(found)).mean()  # crosses: the targets' scores
assert torch.allclose(loss, torch.nn.functional.cross_entropy(scores, targets))

# %% [markdown]
# Three numbers for each token cross instead of a number for each entry of the vocabulary. In the
# script, `loss_parallel()` does that. The next cell computes what a rank sends for one token in
# both ways, by the formula of a ring, in the forward. GPT-2's vocabulary has 50,257 entries
# (Radford et al., 2019).

# %% tags=["nbval-check-output"]
rows = []
for vocabulary in (256, 50_257):
    ring = 3 / 4  # (N-1)/N with four ranks
    gathered, three = ring * 4 * vocabulary, 2 * ring * 4 * 3
    rows.append({"vocabulary": vocabulary, "scores gathered": gathered, "split loss": three})
    rows[-1]["times less"] = gathered / three
Table(rows, "Bytes that one of 4 ranks sends for one token, float32, by formula")

# %% [markdown]
# And the gathered scores would have to be *kept*, all of them on every rank.

# %% [markdown]
# ## Run it
#
# The next cell trains in one process, and then with the matrices split.

# %%
same = {"device": DEVICE, "steps": 12, "global_batch": BATCH}
alone = launch("gpu" if DEVICE == "cuda" else "cpu", 1, **same)
split = launch("tp", RANKS, **same)

# %% [markdown]
# The script has a flag that changes what happens *between* the split parts: **sequence
# parallelism**. We come to it below; the next cell runs it too and compares the three.

# %%
from bootcamp import runs

sequence = launch("tp", RANKS, sequence_parallel=True, **same)
runs.table(alone, split, sequence)

# %% [markdown]
# The losses agree. Do not read much into the speed: the model is tiny, its ranks meet many times in
# each step, and each meeting has its price. Tensor parallelism is there for models whose blocks are
# thousands wide.

# %% [markdown]
# ## Read the measurement
#
# ### Which collectives, and how many
#
# By hand we counted four all-reduces in a block. What does the library call? We count where PyTorch
# dispatches them. The next cell makes a variant of the script that counts in one step. Look at the
# lines that it adds.

# %%
from bootcamp import variant
from bootcamp.train import collective_counter

tools = "checkpoint, config, data, models, optimizers, record, tensor_flags"
imports = f"from bootcamp.train import {tools}"
zero, step = "optimizer.zero_grad()", "optimizer.step()"
COUNT = {imports: f"{imports}, collective_counter"}
COUNT[zero] = (
    f"{zero}\nif step == 3:\n    tally = collective_counter.Tally(optimizer)\n    tally.start()"
)
COUNT[step] = f"{step}\nif step == 3:\n    tally.stop(context.run_dir)"
counting = variant("tp", "tp_counting", COUNT)
script_diff(counting, parent="tp")

# %% [markdown]
# The next cell runs it, on CPU ranks, so that it is the same everywhere. Compare the bytes with
# *s b h* numbers of four bytes. (The three small ones are the loss: maxima, sums, targets' scores.)

# %%
few = {**quiet, "steps": 6, "global_batch": BATCH}
counted = launch(counting, RANKS, **few)
called = collective_counter.read(counted)
sbh = 4 * s * b * h
large = sum(row["count"] for row in called if row["nbytes"] == sbh)
print(f"s b h in float32 is {sbh:,} bytes. {large} collectives had that size; four in each of")
print(f"{TINY['layers']} blocks are {4 * TINY['layers']}.")
Table(called, "Collectives of one step, as rank 0 called them")

# %% [markdown]
# Four for each block, as by hand, and one more: the head is a column split of its own, and its
# backward has to sum the gradient of its input.
#
# Such a plan is easily written wrong, in a way that no proof of equality sees. One line of ours
# looks as if it did nothing: the input of the attention is on every rank already. It is
# `plan["attention"] = PrepareModuleInput(...)`. The next cell asks what its absence costs.

# %%
guess_without = predict(
    "tensor_parallel_without",
    f"{large} collectives of s b h numbers with that line. How many without it?",
    answer=None,
)
guess_without

# %% [markdown]
# The next cell takes the line out and counts again.

# %%
one_f = 'plan["attention"] = PrepareModuleInput(input_layouts=between, '
one_f += "desired_input_layouts=Replicate())"
without = launch(variant("tp", "tp_without_one_f", {**COUNT, one_f: ""}), RANKS, **few)
called = collective_counter.read(without)
display(Table(called, "Collectives of one step, without that line"))
guess_without.score(sum(row["count"] for row in called if row["nbytes"] == sbh), within=0)

# %% [markdown]
# Two more for each block, all in the backward. Where do they come from? Think before you go on.
#
# <details><summary>Answer</summary>
#
# Query, key and value are three column splits of the *same* input. In our program by hand, f stood
# once before all three. A plan names modules, and without that line each of the three gets an f of
# its own: three all-reduces for gradients that are then added. The line makes the *attention's*
# input a DTensor, before it forks into three: one f for all, so the gradients are added first and
# summed over the ranks once.
# </details>
#
# The result is the same to the last digits, the time is not. So count what a plan does.

# %% [markdown]
# ### Sequence parallelism
#
# Between the split parts stand the norms and the residuals. There every rank does the same work on
# the same numbers, and *keeps* the same activations. Korthikanti et al. (2022) noticed that an
# all-reduce is a reduce-scatter followed by an all-gather, and that all this can be done in the
# pause between them, on a *part of the text*. The next cell draws it. Compare the heights.

# %%
plots.show(tensor_parallel.between_blocks())

# %% [markdown]
# A reduce-scatter and an all-gather together send what one all-reduce sends. So the bytes on the
# link stay what they were, and the norms' work and the activations between the split parts are
# divided by the number of ranks. In the script, look back at the diff: `between` becomes
# `Shard(1)`, the dimension of the text, and the norms work on such parts.
#
# ### Collectives, counted and by theory
#
# The next cell shows the theory as code, so that you can check it against your own reasoning.

# %%
import inspect

from bootcamp.theory import tensor as tensor_theory


def show(*functions):
    """The functions' code, as it stands in the course."""
    return Markdown("```python\n" + "\n\n".join(map(inspect.getsource, functions)) + "```")


show(tensor_theory.collectives)

# %% [markdown]
# The next cell counts with sequence parallelism, and puts everything side by side.

# %%
sp = launch(counting, RANKS, sequence_parallel=True, **few)
cases = {"script": (counted, {}), "without that line": (without, {"apart": True})}
cases["sequence parallel"] = (sp, {"sequence_parallel": True})
rows, sums = [], {}
for name, (run, how) in cases.items():
    sums[name], theory = (
        collective_counter.total(run),
        tensor_theory.collectives(TINY, BATCH, **how),
    )
    assert sums[name] == theory, f"{name}: counted {sums[name]}, by theory {theory}"
    for (kind, size), count in sums[name].items():
        row = {"run": name, "collective": kind, "bytes each": size, "counted": count}
        by_theory = theory[kind, size]
        rows.append(
            row | {"by theory": by_theory, "MB": count * size / 1e6, "error": count - by_theory}
        )
Table(rows, "Collectives of one step; the size is that of the whole tensor")

# %% [markdown]
# Number and size agree exactly. With sequence parallelism look at:
#
# - No large all-reduce is left. Four reduce-scatters and four all-gathers stand in each block, one
#   of each around the head. One more all-gather is for the embedding, whose gradient needs the
#   whole text.
# - Small all-reduces carry *h* numbers. They are gradients of the norms, which each rank has from
#   its part of the text only. There are three for each of these parameters, because the gradient
#   stays a part of a sum, and AdamW reads it three times. Tiny, but each has its fixed cost.
#
# Does the network agree? The next cell compares what Linux counted on a rank's connections with
# the formula of a ring. One thing must be known: gloo carries out a reduce-scatter as an
# all-reduce, and so sends twice as much for it. NCCL does not.

# %%
halves = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 2}  # with NCCL the last is 1
rows = []
for name, (run, _) in cases.items():
    formula = tensor_theory.sent_bytes(sums[name], RANKS, halves) / 1e6
    sent = (run.ranks[0]["sent_bytes_per_step"] or 0) / 1e6  # 0 where the system does not count
    assert not sent or abs(sent / formula - 1) < 0.05, f"{name}: {sent} is not {formula}"
    error = f"{sent / formula - 1:.1%}" if sent else None
    rows.append({"run": name, "counted MB": sent or None, "formula MB": formula, "error": error})
display(Table(rows, f"Sent by a rank in a step, {RANKS} CPU ranks, gloo"))
guess_bytes.score(rows[0]["counted MB"] or rows[0]["formula MB"])

# %% [markdown]
# The error is what the library and the protocol add to each message. Your prediction is scored
# against the script's plan.
#
# ### Memory
#
# The next cell shows the formulas: what a rank holds of parameters and of AdamW's state, and what
# its forward keeps.

# %%
show(tensor_theory.parameter_bytes, tensor_theory.adamw_bytes, tensor_theory.activation_bytes)

# %% [markdown]
# One more strategy belongs into the table, with two axes. It is explained below; the next cell
# proves first that it trains the same model, on four ranks.

# %%
from bootcamp import check

TWO_AXES = {"mesh": "2x2", "device": "cuda" if gpu_count() >= 4 else "cpu"}
proven = {"steps": 6, "global_batch": BATCH}
proofs_2d = check.prove("fsdp_tp", 4, **TWO_AXES, **proven)
(two_axes,) = [proof.run for proof in proofs_2d if proof.run.config["optimizer"] == "adamw"]

# %% [markdown]
# The next cell puts the measured memory of a rank, counted from live storages, over the formulas.

# %%
rows, kinds = [], ("parameters", "gradients", "optimizer", "activations")
for run in (alone, split, sequence, two_axes):
    has = dict(zip(kinds, tensor_theory.memory(run.config, TINY), strict=True))
    held = {kind: run.ranks[0][f"{kind.removesuffix('s')}_bytes"] for kind in kinds}
    assert held["parameters"] == has["parameters"] == held["gradients"], "not the formula's share"
    off = max(abs(held[kind] / has[kind] - 1) for kind in kinds)
    assert off < 0.05 or run.device == "cuda", f"{run.label}: {held} instead of {has}"
    name = run.label + (", sequence" if run.config.get("sequence_parallel") else "")
    for what, values in (("measured", held), ("formula", has)):
        shown = {kind: f"{value / 1e6:.3f}" for kind, value in values.items()}
        rows.append({"run": name, "MB": what, **shown, "largest error": f"{off:.1%}"})
display(Table(rows, "Memory of one rank"))
plots.show(plots.memory(alone, split, sequence, two_axes))

# %% [markdown]
# Look at three things.
#
# - **Parameters, gradients, optimizer state** are divided by a little less than the number of
#   ranks: norms, embedding and one bias are whole on every rank. FSDP divides those too.
# - **Activations** shrink by less, since those between the split parts are whole on each rank. The
#   next cell scores your prediction.
# - **Sequence parallelism** takes a part of the rest. It would take more, but PyTorch keeps the
#   *gathered* input of each column split for the backward. Megatron keeps the part, and gathers it
#   once more in the backward.
#
# With FSDP, the activations here contain the embedding and the head, which it keeps gathered from
# the forward to the backward; the blocks it does not. (On a GPU the attention keeps other small
# things than on a CPU; the error says how much.)

# %%
one, mine = alone.ranks[0]["activation_bytes"], split.ranks[0]["activation_bytes"]
assert 1 / RANKS < mine / one < 1, "activations should shrink, but by less than the ranks"
guess_memory.score(100 * mine / one)

# %% [markdown]
# ## Two axes: tensor parallel inside a host, data parallel between hosts
#
# Tensor parallelism divides the model, data parallelism the batch. With ranks enough one does both:
# the ranks stand on a **mesh**, and each rank is in two groups. The next cell draws a mesh of four.

# %%
plots.show(tensor_parallel.mesh(2, 2))

# %% [markdown]
# Along `tensor` the ranks split matrices. Along `data` they are FSDP2: each keeps a shard of its
# part of the parameters, gathers them before use, and reduce-scatters the gradients. The next cell
# shows what that adds to the script.

# %%
script_diff("fsdp_tp")

# %% [markdown]
# That it trains the same model was proved above. The next cell shows the proof. Look at "shares of
# the batch": four ranks, two shares.

# %%
assert not any(proof.failed for proof in proofs_2d), "the mesh trained something else"
proofs_2d[1]

# %% [markdown]
# ### Which bytes on which link
#
# Why is a row of the mesh a *host*? The next cell computes what a rank sends in a step along each
# axis, for two models: this course's `large`, and GPT-3 with its published shape (Brown et al.,
# 2020). Two bytes a number, eight samples for each row, eight rows.

# %% tags=["nbval-check-output"]
GPT3 = {"layers": 96, "width": 12288, "heads": 96, "context": 2048}
rows, rows_of_mesh, samples = [], 8, 8
for name, shape, ranks in (("large", gpt.SIZES["large"], 4), ("GPT-3", GPT3, 8)):
    layers, bsh = shape["layers"], 2 * samples * shape["context"] * shape["width"]
    parameters = 2 * 12 * layers * shape["width"] ** 2 / ranks
    tensor = 4 * layers * 2 * (ranks - 1) / ranks * bsh
    fsdp = 3 * (rows_of_mesh - 1) / rows_of_mesh * parameters
    row = {"model": name, "tensor ranks": ranks, "GB along tensor": tensor / 1e9}
    row |= {"GB along data": fsdp / 1e9, "tensor / data": tensor / fsdp}
    rows.append(row | {"all-reduces in a step": 4 * layers, "MB each": bsh / 1e6})
Table(rows, "Sent by one rank in one step, by formula, blocks only")

# %% [markdown]
# Along `tensor` there is several times as much to send. More important is *when*: each all-reduce
# stands in the middle of the computation, and what follows needs its result, so little can be
# overlapped. FSDP gathers the next block's parameters while this one is computed. So the tensor
# axis gets the fastest link that there is, between the GPUs of one host, and the data axis may
# cross the network. That is why tensor parallelism is rarely wider than a host.
#
# Note the batch: more samples mean more bytes along `tensor`, and no more along `data`.

# %% [markdown]
# ## Prove it
#
# The next cell holds tensor parallelism against the CPU baseline with two optimizers, without and
# with sequence parallelism.

# %%
proofs = check.prove("tp", RANKS, device=DEVICE, **proven)
proofs += check.prove("tp", RANKS, device=DEVICE, sequence_parallel=True, **proven)
for proof in proofs:
    assert not proof.failed, f"{proof.run.label} trained something else"
proofs[-1]

# %% [markdown]
# Look at "shares of the batch": one. All ranks trained the same samples, and the proof demands it
# of ranks that hold one model together.
#
# ### Megatron-core
#
# Many large models were trained with NVIDIA's Megatron, whose layers come as a package of their
# own, Megatron-core. The next cell shows how its script differs from `_train_tp.py`.

# %%
script_diff("megatron")

# %% [markdown]
# Three things to see. Megatron's layers *replace* those of the model. Each gets
# the whole matrix from `init_method` and keeps its own part. f is written out, once for query, key
# and value, by `copy_to_tensor_model_parallel_region`; Megatron's own attention has these three in
# one matrix. And the loss is `vocab_parallel_cross_entropy`, which does what you did above.
#
# The next cell proves that it trains the baseline's model, and counts. It runs on CPU ranks on
# every machine, and needs some seconds, since the package takes long to load.

# %%
if available("megatron"):
    script = variant("megatron", "megatron_counted", COUNT)
    megatron = check.prove(script, 2, device="cpu", **proven)
    assert not any(proof.failed for proof in megatron), "Megatron trained something else"
    theory = tensor_theory.collectives(TINY, BATCH)
    assert collective_counter.total(megatron[0].run) == theory, "not four all-reduces in a block"
    display(megatron[0])
else:
    print('Megatron-core is not installed here: pip install "megatron-core>=0.16,<0.17"')

# %% [markdown]
# The proof compares losses and parameters with the baseline's. The last assertion compares the
# collectives with the theory: they are those of `_train_tp.py`.
#
# Not everything of Megatron runs on CPU ranks. Its pipeline schedules, its default attention and
# its sequence parallelism ask for CUDA devices.

# %% [markdown]
# ## When the text is too long: ring attention
#
# Everything so far splits width. **Context parallelism** splits the *text*: each rank has a part of
# the places, in all layers. Norms and MLPs treat each place by itself, so nothing changes for them.
# Attention does look at other places: a query needs the keys and values of all places before it.
#
# In **ring attention** (Liu et al., 2023) the queries stay, and keys and values go round a ring. In
# each step a rank computes attention between its queries and the keys that it holds now, and then
# passes them on. Softmax needs the sum over *all* keys. But it can be kept as a running sum: when a
# new block comes, what was summed before is scaled to the new total. The next cell does that on
# live tensors, with one query that sees its keys in three blocks.

# %%
query, keys, values = (torch.randn(*shape, **draw) for shape in ((4,), (9, 4), (9, 4)))
out, log_sum = torch.zeros(4, **draw), torch.tensor(float("-inf"), **draw)
for k, v in zip(keys.chunk(3), values.chunk(3), strict=True):
    scores = k @ query
    new = torch.logaddexp(log_sum, scores.logsumexp(0))
    out = out * (log_sum - new).exp() + (scores - new).exp() @ v  # the old part shrinks
    log_sum = new
assert torch.allclose(out, (keys @ query).softmax(0) @ values), "not the softmax over all keys"

# %% [markdown]
# The next cell shows the forward of the ring, which is this with `pass_on` at the end of a step.

# %%
ring_script = SNIPPETS / "ring_attention.py"
text = ring_script.read_text()
forward = text[text.index("class RingAttention") : text.index("        ctx.save_for_backward")]
Markdown(f"```python\n{forward}```")

# %% [markdown]
# `pairs` leaves out blocks that the causal mask hides entirely: keys that all lie *after* the
# queries. The backward goes round once more, and computes each block's softmax again from the sum
# that was kept. The gradients of keys and values travel with them, and come home.
#
# The next cell runs it on four ranks, in two orders of the text. `straight`: rank 0 has the first
# quarter, rank 1 the second. `zigzag`: the text is cut into eight, rank 0 has the first and the
# last piece, rank 1 the second and the second to last, and so on. Each rank compares its output and
# gradients with plain attention over the whole text.

# %%
orders = {}
for order in ("straight", "zigzag"):
    run = launch(ring_script, 4, order=order, **snippet)
    orders[order] = [json.loads(run.output(rank)) for rank in range(4)]
    for rank in orders[order]:
        assert rank["output_apart"] < 1e-5, "the ring's output is not plain attention's"
        assert rank["gradients_apart"] < 1e-5, "the ring's gradients are not plain attention's"
plots.show(tensor_parallel.ring(orders))

# %% [markdown]
# A dotted box is a step in which a rank has nothing to do. In the straight order rank 0 is idle
# after the first step, but the ring goes at the pace of the slowest, so the causal mask saves
# nothing. In zigzag order each rank has an early piece and a late one, and all have equal work.
# (Llama 3's texts were cut in this order.)
#
# The next cell compares memory: the largest matrix of scores that a rank had at any time, against
# the whole one, and what it had of keys and values.

# %%
tokens = sum(len(rank["tokens"]) for rank in orders["zigzag"])
rows = [{"": "plain attention, one process", "entries of scores": tokens**2, "keys held": tokens}]
for order, ranks in orders.items():
    most = max(rank["largest_scores"] for rank in ranks)
    held = len(ranks[0]["tokens"])
    rows.append({"": f"ring of 4, {order}", "entries of scores": most, "keys held": held})
    assert most <= (tokens / 4) ** 2, "a rank has computed more than one block at a time"
Table(rows, f"A text of {tokens} tokens, one head; keys in transit come on top")

# %% [markdown]
# Scores shrink with the square of the number of ranks, keys with the number. (Fused attention, such
# as PyTorch's, does not store all scores on one device either. But it needs all keys there.) What
# is sent are keys and values, once round the ring in the forward.

# %% [markdown]
# ## Break it
#
# ### First: heads that do not divide
#
# The model has four heads. The next cell starts three ranks.

# %% tags=["nbval-check-output"]
refused = launch("tp", 3, device="cpu", steps=5, quiet=True, raises=False)
assert not refused.steps, "three ranks should not train"
print(refused.summary["error"]["message"])

# %% [markdown]
# One sentence, before any rank has trained. Other programs fail later: with a shape error deep in
# the attention, or not at all, with heads that mix what does not belong together.
#
# ### Second: a sum that is missing
#
# In the plan a layout decides whether parts of a sum are added. The next cell lets the MLP's second
# matrix leave them as they are: `Partial()` in place of `Replicate()`. What do you expect?

# %%
down = 'plan["down"] = RowwiseParallel(output_layouts={})'
layouts = "from torch.distributed.tensor import {}Replicate, Shard"
changes = {down.format("between"): down.format("Partial()")}
changes[layouts.format("")] = layouts.format("Partial, ")
no_sum = launch(variant("tp", "tp_no_sum", changes), 2, **few)
base = check.baseline(steps=6, global_batch=BATCH)
found = check.compare(no_sum, base)
assert found.failed, "a missing sum went unnoticed"
found

# %% [markdown]
# Nothing raises, and the loss falls. Only the comparison knows. The next cell looks at the first
# steps. Which direction of the computation must be wrong, if the loss is off before any parameter
# has changed?

# %%
pairs = list(zip(no_sum.losses, base.losses, strict=True))
rows = [
    {"step": i, "loss": a, "baseline": b, "apart": abs(a - b)} for i, (a, b) in enumerate(pairs)
]
assert rows[0]["apart"] > 1e-3, "the forward should be off in step 0 already"
Table(rows[:3])

# %% [markdown]
# <details><summary>Answer</summary>
#
# The forward. Each rank went on with its own part of the sum, as if it were all of it. The residual
# streams of the ranks differ from there on, and every later "replicated" tensor is a different one
# on each rank. A proof that looks at step 0 alone finds this kind of fault.
# </details>
#
# The next fault it does not find. The program by hand once more, now without f, at the beginning of
# the pair. What is equal, and what is not?

# %%
entering = "split = Leave.apply(function(Enter.apply(again), *mine))"
no_f = variant(
    by_hand, "tensor_without_f", {entering: "split = Leave.apply(function(again, *mine))"}
)
rows = [json.loads(line) for line in launch(no_f, 2, **snippet).output(0).splitlines()]
for row in rows:
    assert row["output apart"] < 1e-10 < 1e-3 < row["input's gradient apart"]
Table(rows, "Without f")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The output is right, so the loss of step 0 is right. This pair's own weights get the right
# gradients, too. Only what goes *back through the input*, to all earlier layers, is one rank's part
# of the truth. The loss is off from step 1 on, by a little. Therefore prove several steps, and the
# parameters.
# </details>

# %% [markdown]
# ## Exercises
#
# ### First: which part is mine?
#
# To read a whole model from a file and train it with split matrices, one has to know which part a
# rank takes. `part_of_rank(name, shape, rank, ranks)` answers that for one weight of a block.
# `name` is `query`, `key`, `value`, `out`, `up` or `down`, and `shape` is that of the weight as
# `nn.Linear` stores it, `(outputs, inputs)`. It returns the part's rows and columns, as
# `((first row, end), (first column, end))`, with ends that are excluded as in a slice. The next
# cell has the function's first line, and checks it.

# %%
from bootcamp import exercise


def part_of_rank(name, shape, rank, ranks):
    outputs, inputs = shape
    # your turn: return two pairs, such as ((0, outputs), (0, inputs)) for the whole
    ...


print(exercise.check("part_of_rank", part_of_rank))

# %% [markdown]
# `exercise.solution("part_of_rank")` shows a solution.
#
# ### Second: the sums of a plan
#
# Write the half of the plan that has the sums. The next cell writes your starting point: the script
# without its row splits.

# %%
print(exercise.start("split_the_blocks"))

# %% [markdown]
# Edit the file, save it, and run the next cell. It trains with your plan on two ranks, with both
# optimizers and with sequence parallelism, and holds it against the baseline.
# `exercise.solution("split_the_blocks")` shows the solution as a diff. For more: make your plan
# pass with four all-reduces in a block.

# %%
print(exercise.check("split_the_blocks"))

# %% [markdown]
# ## When to use it and when not
#
# "From about 500 million parameters on you need model parallelism", people say. Where does such a
# number come from? With Adam, training keeps 16 bytes for each parameter: in float32 four each for
# the parameter, its gradient and two averages; with mixed precision it comes to 16 too
# (Rajbhandari et al., 2019). The next cell asks how many parameters fill *half* of a device, the
# other half being for activations. Device memory is from the table of GPUs in
# `src/bootcamp/theory/published/hardware.csv`, which names its source.

# %% tags=["nbval-check-output"]
import re

from bootcamp.theory.published import table as published_table

rows = []
for gpu in published_table("hardware"):
    gigabytes = int(re.match(r"\d+", gpu["memory"])[0])
    millions = gigabytes * 1e9 / 2 / 16 / 1e6
    rows.append({"GPU": gpu["gpu"], "memory GB": gigabytes, "millions of parameters": millions})
Table(rows, "16 bytes a parameter, half of the memory")

# %% [markdown]
# So the sentence is about a device of 16 GB, and it has moved. And it holds for plain DDP only:
# sharded data parallelism divides those 16 bytes by the number of ranks, without splitting one
# matrix. What it does not divide are the activations, for which the next cell computes one sample
# of this course's models, whole, and split over eight ranks or as many as their heads allow.

# %% tags=["nbval-check-output"]
rows = []
for name, shape in list(gpt.SIZES.items())[1:]:
    ranks = next(n for n in (8, 4, 5) if shape["heads"] % n == 0)
    gigabytes = [
        tensor_theory.activation_bytes(shape, 1, n, sequence_parallel=n > 1) / 1e9
        for n in (1, ranks)
    ]
    row = {
        "size": name,
        "GB of 16 bytes a parameter": tensor_theory.parameter_bytes(shape) * 4 / 1e9,
    }
    row |= {"GB of one sample, whole": gigabytes[0], "tensor ranks": ranks}
    rows.append(row | {"GB of one sample, split": gigabytes[1]})
Table(rows, "By formula, float32, no checkpointing; attention matrix not stored")

# %% [markdown]
# Even `xl` with one sample fits on a device of 80 GB. Tensor parallelism is for what comes after.
#
# **Use tensor parallelism** when
# - one block, with its activations, is too large for a device, or sharded data parallelism would
#   need a global batch that is larger than useful: the ranks of a tensor group share *one* batch.
# - the ranks are GPUs of one host with a fast link, and the blocks are wide.
# - a single sample must be faster, as in serving a model.
#
# **Do not** when
# - the model trains with DDP or FSDP: those are simpler, and overlap their communication.
# - the link is a network between hosts, or the width for each rank is small.
# - the heads do not divide.
#
# Add **sequence parallelism** whenever you use it: the bytes are the same and memory is less. Take
# **context parallelism** when one text does not fit, whatever the width.

# %% [markdown]
# ## Sources
#
# - Shoeybi et al., *Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
#   Parallelism*, 2019, arXiv:1909.08053. f, g, the split loss.
# - Korthikanti et al., *Reducing Activation Recomputation in Large Transformer Models*, 2022,
#   arXiv:2205.05198. Sequence parallelism, activations by formula.
# - Narayanan et al., *Efficient Large-Scale Language Model Training on GPU Clusters Using
#   Megatron-LM*, 2021, arXiv:2104.04473. Tensor parallelism inside a host, pipelines between.
# - Liu, Zaharia and Abbeel, *Ring Attention with Blockwise Transformers for Near-Infinite Context*,
#   2023, arXiv:2310.01889.
# - Grattafiori et al., *The Llama 3 Herd of Models*, 2024, arXiv:2407.21783. Context parallelism
#   with pieces from both ends of the text.
# - Rajbhandari et al., *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*,
#   2019, arXiv:1910.02054. 16 bytes a parameter.
# - Brown et al., *Language Models are Few-Shot Learners*, 2020, arXiv:2005.14165. GPT-3's shape.
# - Radford et al., *Language Models are Unsupervised Multitask Learners*, 2019. GPT-2.
# - PyTorch documentation: *torch.distributed.tensor.parallel*, *torch.distributed.tensor*,
#   *DeviceMesh*. Megatron-core's documentation of `tensor_parallel`.
