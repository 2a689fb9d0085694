# %% [markdown]
# # 06c Tensor parallelism: the matrices themselves are split
#
# **66 minutes**, on any machine, after lessons 04 and 06. Without several GPUs each rank is one CPU
# core, and the cells say so.
#
# After this lesson you can split a transformer block over ranks by hand and with PyTorch, say which
# collectives that needs and how many bytes they carry, check it by counting, and shrink what is
# left with sequence parallelism.

# %% [markdown]
# ## The question
#
# A pipeline cuts a model *between* its layers. What if a single layer is too large, or too slow?
# Can several ranks compute **one** matrix product, and still get exactly its result?

# %%
from bootcamp import check, claim, default_ranks, gpu_count, launch, warm_up
from bootcamp.paths import SRC
from bootcamp_lessons import excerpts, sharding_tables
from bootcamp_lessons.diagrams import tensor_parallel

warm_up()
RANKS = 4 if default_ranks() >= 4 else 2  # the smallest model has four attention heads
DEVICE = "cuda" if gpu_count() >= RANKS else "cpu"
print(f"{RANKS} ranks on {'GPUs' if DEVICE == 'cuda' else 'CPU cores'}.")

# %% [markdown]
# ## The idea
#
# You need no ranks to see it. Cut a matrix `A` into two halves **by columns**: each column of the
# result needs one column of `A` and all of `x`, so nothing has to be added. Cut `B` **by rows**:
# each half needs only *its* columns of the input, and gives a result of full size that is one part
# of a **sum**.

# %%
import torch
from torch.nn.functional import cross_entropy, gelu

torch.manual_seed(0)
draw = {"dtype": torch.float64}
x, A, B = (torch.randn(*shape, **draw) for shape in ((5, 8), (8, 12), (12, 8)))

left, right = A.chunk(2, dim=1)
assert torch.allclose(torch.cat([x @ left, x @ right], dim=1), x @ A)

upper, lower = B.chunk(2, dim=0)
first, second = (x @ A).chunk(2, dim=1)
assert torch.allclose(first @ upper + second @ lower, x @ A @ B)

# %% [markdown]
# A split by columns leaves the result in column halves, and a split by rows needs its input in
# column halves. So a pair of matrices, as in an MLP, needs **one** sum at the very end. Any
# function that treats each number by itself, such as gelu, may come between them. Rows first would
# put the sum *before* gelu, and gelu of a sum is not the sum of gelus.

# %%
split_mlp = gelu(x @ left) @ upper + gelu(x @ right) @ lower
assert torch.allclose(split_mlp, gelu(x @ A) @ B), "the split MLP is another function"

rows_first = gelu(x[:, :4] @ A[:4]) + gelu(x[:, 4:] @ A[4:])
print(f"rows first: off by up to {(rows_first - gelu(x @ A)).abs().max():.2f}")

# %%
from bootcamp import plots

plots.show(tensor_parallel.column_then_row())

# %% [markdown]
# **Attention** splits the same way, by heads. A head has its own columns of the query, key and
# value matrices, and looks at no other head. The output of the heads is multiplied by the output
# matrix, which is split by rows: one sum again. So the number of heads must be a multiple of the
# number of ranks. With **grouped-query attention** several query heads share one key-value head,
# and the number of *those* is the limit: 8 in Llama 3. More ranks would need copies of them.
# (DeepSeek-V3 makes keys and values from one latent, which has no heads: every rank holds it,
# arXiv:2412.19437.)
#
# The backward pass mirrors this. The gradient of a sum goes to all its parts unchanged, so there is
# nothing to send at the end of the pair. But at its *beginning* all ranks read the same `x`, and
# each computes a gradient for it from its own part. These have to be added. Megatron-LM calls the
# two functions **f** (forward: nothing; backward: all-reduce) and **g** (forward: all-reduce;
# backward: nothing).

# %%
by_hand = SRC / "snippets" / "tensor_by_hand.py"
excerpts.piece(by_hand, "class Enter", "def columns")

# %% [markdown]
# On real ranks, each compares the output, the input's gradient and its own weights' gradients with
# those of the complete computation.

# %%
from bootcamp import Table

rows = excerpts.parse_printed(launch(by_hand, RANKS, device="cpu", quiet=True))
for row in rows:
    assert max(v for k, v in row.items() if "apart" in k) < 1e-10, "the split is another function"
Table(rows, f"{RANKS} ranks against one, in float64: largest differences")

# %% [markdown]
# One all-reduce forward and one backward for the MLP, the same for the attention. A transformer
# block is these two, so **four all-reduces in a block**.
#
# Ranks that share matrices in this way are a **tensor-parallel group**. They are not
# data-parallel: all of them train on the *same* samples.

# %% [markdown]
# ## Predict
#
# The activations that are summed have one number for each sample (the batch, *b*), each position in
# the text (*s*), and each element of the model's width (*h*). The model has six blocks and computes
# in float32. In a ring of *N* ranks each sends 2(*N*-1)/*N* times the bytes of what is all-reduced
# (lesson 04).

# %%
from bootcamp import predict
from bootcamp.train.models import gpt

TINY, BATCH = gpt.SIZES["tiny"], check.settings(RANKS)["global_batch"]
s, h = TINY["context"], TINY["width"]
guess_bytes = predict(
    "tensor_parallel_bytes",
    f"b = {BATCH}, s = {s}, h = {h}, {TINY['layers']} blocks: "
    f"how many MB does each of {RANKS} ranks send in a step?",
    unit="MB",
)
guess_bytes

# %% [markdown]
# Each rank has 1/*N* of the matrices. What about the **activations**, which the forward pass keeps
# for the backward pass? (Of a block's 16 vectors, lesson 01, query, key, value, the attention's
# output before its output matrix, and the 4 + 4 of the MLP's wide layer are inside the split
# parts.)

# %%
guess_memory = predict(
    "tensor_parallel_memory",
    f"With {RANKS} ranks: what percentage of one process's activations does each rank keep?",
    unit="%",
)
guess_memory

# %% [markdown]
# ## What changes
#
# In PyTorch you do not write f and g. You write a **plan**: how each module is split. **DTensors**,
# tensors that know that they are a part of a larger one, then call the collectives.

# %%
from bootcamp import script_diff

script_diff("tp")

# %% [markdown]
# - `init_device_mesh` arranges the ranks along named axes. Here there is one, `tensor`.
# - `ColwiseParallel` splits by columns: query, key, value, and the MLP's first matrix. (PyTorch
#   stores a weight transposed, so the code splits dimension 0.) `RowwiseParallel` splits by rows.
# - A layout is `Replicate()`, complete on every rank, or `Shard(d)`, a part of dimension *d*. An
#   output of `RowwiseParallel` begins as parts of a sum; the layout decides what happens to it.
# - `data.Batches(args, 0, 1)`: every rank takes the same batch, all of it.
# - Norms and embedding are not split: each rank computes them completely. (With a large vocabulary
#   the embedding is split by its entries: a rank looks up those that it has, takes zeros for the
#   others, and an all-reduce adds the results up.)
# - DDP is gone. Each rank owns the gradients of its part, and nothing has to be averaged.
# - Not in this model: one joint matrix for query, key and value has to be cut head by head, and
#   dropout draws alike on all ranks between the split parts, differently inside them.
#
# ### The loss, split over the vocabulary
#
# The head is split by columns too: each rank has the scores of *some* byte values. Cross-entropy
# needs log Σ exp(score) over *all* of them, and the score of the target. Only small tensors have to
# cross: maxima, sums, and the target's score from the half that has it.

# %%
scores, targets = torch.randn(6, 256, **draw), torch.randint(256, (6,))
parts = scores.chunk(2, dim=1)
top = torch.stack([part.amax(dim=1) for part in parts]).amax(dim=0)  # crosses: maxima
total = sum((part - top[:, None]).exp().sum(dim=1) for part in parts)  # crosses: sums
owner, place = targets // 128, targets % 128
found = [(owner == k) * part[range(6), place] for k, part in enumerate(parts)]  # 0 if not mine
loss = (total.log() + top - sum(found)).mean()  # crosses: the targets' scores
assert torch.allclose(loss, cross_entropy(scores, targets))

# %% [markdown]
# Three numbers for each token cross instead of one for each entry of the vocabulary, of which GPT-2
# has 50,257. In the script, `loss_parallel()` does that.

# %% [markdown]
# ## Run it
#
# The script runs with both optimizers and is compared with one process, and then again with the
# flag for **sequence parallelism**, which is explained below. It is a variant that also counts the
# collectives of one step, where PyTorch dispatches them.

# %%
PROVEN = {"device": DEVICE, **check.settings(RANKS)}
counting = sharding_tables.make_counting_script("tp")
script_diff(counting, parent="tp")

# %%
proofs = {
    "tensor parallel": check.prove(counting, RANKS, **PROVEN),
    "sequence parallel": check.prove(counting, RANKS, sequence_parallel=True, **PROVEN),
}
(_, adamw), (_, adamw_too) = proofs.values()
alone, split, sequence = adamw.baseline, adamw.run, adamw_too.run
print("final loss:", *(f"{run.losses[-1]:.5f}" for run in (alone, split, sequence)))

# %% [markdown]
# The model is tiny, and a step has 28 collectives. Each collective has a fixed cost and makes the
# ranks wait. DDP calls one for each bucket of gradients, while the backward pass goes on. Tensor
# parallelism pays off with blocks that are thousands wide: for a token its matrices take 72·*h*²
# FLOP on *N* ranks, and each of them sends 4 times 2(*N*-1)/*N* · 2*h* bytes in 16 bits. With *F*
# FLOP/s and *W* bytes/s, computing takes longer from **h = 2/9 · (N-1) · F/W** on. Eight H100 at
# 795 TFLOP/s, their best measured: about 2,750 over NVLink's nominal 450 GB/s, 24,700 over a
# network card's 50.

# %%
from bootcamp import trial

small = {"device": DEVICE, "steps": 8, "global_batch": 4}
data_parallel, tensor = (trial(name, 2, **small) for name in ("ddp", "tp"))
by_part = trial("tp", 2, sequence_parallel=True, **small)
one = trial("gpu" if DEVICE == "cuda" else "cpu", 1, **small)
plots.show(plots.throughput(*(run() for run in (one, data_parallel, tensor, by_part))))
claim.faster(
    "tensor_parallel_loses_to_ddp_when_small",
    "With 4 samples a step, two ranks train this small model faster with DDP than with TP.",
    data_parallel,
    tensor,
)

# %% [markdown]
# ## Read the measurement
#
# ### Which collectives, and how many
#
# Compare the bytes with *s b h* numbers of four bytes. (The three small ones are the loss: maxima,
# sums, targets' scores.)

# %%
Table(split.collectives(), "Collectives of one step, as rank 0 called them")

# %%
calls, sbh = split.collective_counts(), 4 * s * BATCH * h
claim.equal(
    "tensor_parallel_four_all_reduces_a_block",
    "A step calls four all-reduces of s b h numbers for each block, and one more.",
    calls["all-reduce", sbh],
    4 * TINY["layers"] + 1,
    kind="count",
    supported="The one more: the head is a column split of its own, and sums its input's gradient.",
)

# %% [markdown]
# Such a plan is easily written wrong, in a way that no proof of equality sees. One line of ours
# looks as if it did nothing: the input of the attention is on every rank already. It is
# `plan["attention"] = PrepareModuleInput(...)`.

# %%
guess_without = predict(
    "tensor_parallel_without",
    f"{calls['all-reduce', sbh]} all-reduces of s b h numbers with that line. How many without it?",
)
guess_without

# %%
one_f = 'plan["attention"] = PrepareModuleInput(input_layouts=layout, '
one_f += "desired_input_layouts=Replicate())"
script = sharding_tables.make_counting_script("tp", {one_f: ""}, "tp_without_one_f")
without = launch(script, RANKS, optimizer="adamw", quiet=True, **PROVEN)
check.same_training(without, alone)  # no proof of equality sees it
guess_without.score(without.collective_counts()["all-reduce", sbh], within=0)

# %% [markdown]
# Two more for each block, all in the backward pass. Where do they come from?
#
# <details><summary>Answer</summary>
#
# Query, key and value are three column splits of the *same* input. In our program by hand, f came
# once, before all three. A plan names modules, and without that line each of the three gets an f of
# its own: three all-reduces for gradients that are then added. The line makes the *attention's*
# input a DTensor, before it forks into three, so the gradients are added first and summed over the
# ranks once.
# </details>
#
# It trains the same and sends half as much again. So count what a plan does.

# %% [markdown]
# ### Sequence parallelism
#
# Between the split parts are the norms and the residual additions, `x + attention(...)`. There
# every rank does the same work on the same numbers, and *keeps* the same activations. An all-reduce
# is a reduce-scatter followed by an all-gather. Korthikanti et al. (2022) do all this between the
# two, on a *part of the text*. Compare how many vectors a rank keeps.

# %%
plots.show(tensor_parallel.sequence_parallel_block())

# %% [markdown]
# In the script `layout` becomes `Shard(1)`, the dimension of the text, and the norms work on such
# parts. The theory as code, against the count:

# %%
from IPython.display import display

from bootcamp.costs import model_shapes, traffic

cases = {"script": (split, {}), "without that line": (without, {"separate": True})}
cases["sequence parallel"] = (sequence, {"sequence_parallel": True})
for run, how in cases.values():
    assert run.collective_counts() == traffic.tensor_calls(
        model_shapes.course_model(), BATCH, **how
    )
display(excerpts.source(traffic.tensor_calls))
sharding_tables.compare_calls(cases, BATCH)

# %% [markdown]
# - With sequence parallelism no large all-reduce is left. Each block has four reduce-scatters and
#   four all-gathers, and the head one of each. One more all-gather is for the embedding, whose
#   gradient needs the complete text.
# - Small all-reduces carry *h* numbers: gradients of the norms, which each rank has from its part
#   of the text only. There are three for each of these parameters: the gradients stay unsummed
#   parts, which PyTorch sums whenever they are read, and the AdamW that runs here reads each three
#   times in a step.
#
# What Linux counts on a rank's connections can be compared with the formula of a ring. **gloo**,
# which carries the messages of CPU ranks, performs a reduce-scatter as an all-reduce, and so sends
# twice as much for it. NCCL does not: there sequence parallelism sends hardly more than the
# all-reduces.

# %%
table = sharding_tables.compare_sent_bytes(cases, BATCH)
display(table)
guess_bytes.score(table[0]["NCCL, formula MB"], how="By formula")

# %% [markdown]
# ### Memory

# %%
display(excerpts.source(model_shapes.Layer.kept_numbers))
sample, block = s * h, model_shapes.layers("gpt", "tiny")[1]
names = ("between the split parts", "whole on each rank", "inside them")
each = {name: kept / sample for name, kept in zip(names, block.kept, strict=True)}
Table([each], "What a block keeps of a sample, in s h")

# %%
held = {"one process": alone, "tensor parallel": split, "sequence parallel": sequence}
display(sharding_tables.compare_tensor_memory(held))
plots.show(plots.memory(*held.values()))

# %% [markdown]
# - **Parameters, gradients, optimizer state** are divided by a little less than the number of
#   ranks: norms, embedding and one bias are complete on every rank.
# - **Activations** shrink by less, since those between the split parts are complete on each rank.
# - **Sequence parallelism** takes a part of the rest. It would take more, but PyTorch keeps the
#   *gathered* input of each column split for the backward pass. Megatron keeps the part, and
#   gathers it once more in the backward pass.

# %%
one, mine, less = (run.ranks[0]["activation_bytes"] for run in (alone, split, sequence))
display(guess_memory.score(100 * mine / one))
claim.larger(
    "sequence_parallel_keeps_less",
    "With sequence parallelism a rank keeps less of the activations.",
    mine,
    less,
    kind="memory",
)

# %% [markdown]
# ## Prove it
#
# Unfold it and look at "shares of the batch": one. All ranks trained the same samples, and the
# proof requires that of ranks that hold one model together.

# %%
display(sharding_tables.list_proofs([(name, one) for name, both in proofs.items() for one in both]))
adamw_too

# %% [markdown]
# ## Break it
#
# ### First: heads that do not divide
#
# The model has four heads. Here are three ranks.

# %% tags=["nbval-check-output"]
refused = launch("tp", 3, device="cpu", steps=5, quiet=True, raises=False)
assert not refused.steps, "three ranks should not train"
print(refused.summary["error"]["message"])

# %% [markdown]
# One sentence, before any rank has trained. Other programs fail later, with a shape error deep in
# the attention, or not at all: their heads mix what does not belong together.
#
# ### Second: a sum that is missing
#
# In the plan a layout decides whether parts of a sum are added. Here the MLP's second matrix leaves
# them unsummed: `Partial()` in place of `Replicate()`. What do you expect?

# %%
from bootcamp import variant

imported = "from torch.distributed.tensor import Replicate, Shard"
down = 'plan["down"] = RowwiseParallel(output_layouts=layout)'
changes = {imported: imported.replace("Replicate", "Partial, Replicate")}
changes[down] = down.replace("layout)", "Partial())")
script = variant("tp", "tp_no_sum", changes)
no_sum = launch(script, RANKS, optimizer="adamw", quiet=True, **PROVEN)
pairs = zip(no_sum.losses[:3], alone.losses, strict=False)
display(Table([{"step": i, "loss": a, "baseline": b} for i, (a, b) in enumerate(pairs)]))
check.compare(no_sum, alone)

# %% [markdown]
# Nothing raises, and the loss falls. Only the comparison shows the fault. Which direction of the
# computation must be wrong, if the loss is off before any parameter has changed?
#
# <details><summary>Answer</summary>
#
# The forward pass. Each rank went on with its own part of the sum, as if it were all of it. The
# ranks' activations differ from there on, and so does every later tensor that should be replicated.
# A proof that looks at step 0 alone finds this kind of fault.
# </details>
#
# It does not find the next fault: the program by hand once more, now without f at the beginning of
# the pair. What is equal, and what is not?

# %%
entering = "split = Leave.apply(function(Enter.apply(again), *mine))"
no_f = variant(by_hand, "without_f", {entering: "split = Leave.apply(function(again, *mine))"})
rows = excerpts.parse_printed(launch(no_f, 2, device="cpu", quiet=True))
assert all(row["output apart"] < 1e-10 < 1e-3 < row["input's gradient apart"] for row in rows)
Table(rows, "Without f")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The output is right, so the loss of step 0 is right. This pair's own weights get the right
# gradients, too. Only what goes *back through the input*, to all earlier layers, is one rank's part
# of a sum. The loss is off from step 1 on, by a little. So prove several steps, and the parameters.
# </details>

# %% [markdown]
# ## Exercises
#
# ### First: which part is mine?
#
# To read a complete model from a file and train it with split matrices, you have to know which part
# a rank takes. `part_of_rank(name, shape, rank, ranks)` answers that for one weight of a block.
# `name` is `query`, `key`, `value`, `out`, `up` or `down`, and `shape` is that of the weight as
# `nn.Linear` stores it, `(outputs, inputs)`. It returns the part's rows and columns, as `((first
# row, end), (first column, end))`, with ends that are excluded as in a slice.

# %%
from bootcamp import exercise


def part_of_rank(name, shape, rank, ranks):
    outputs, inputs = shape
    # your turn: return two pairs, such as ((0, outputs), (0, inputs)) for the complete weight
    ...


print(exercise.check("part_of_rank", part_of_rank))

# %% [markdown]
# `exercise.solution("part_of_rank")` shows a solution.
#
# ### Second: the sums of a plan
#
# Here is the script without its row splits. Write the half of the plan that has the sums.

# %%
print(exercise.start("split_the_blocks"))

# %% [markdown]
# Edit the file, save it, and check it. The check trains with your plan on two ranks, with both
# optimizers and with sequence parallelism, and compares with the baseline.
# `exercise.solution("split_the_blocks")` shows the solution as a diff. To go further, make your
# plan pass with only four all-reduces in a block.

# %%
print(exercise.check("split_the_blocks"))

# %% [markdown]
# ## When to use it and when not
#
# **Use tensor parallelism** when
# - one block, with its activations, is too large for a device, or sharded data parallelism would
#   need a global batch that is larger than useful: the ranks of a tensor group share *one* batch.
# - a fast link connects the ranks, and the blocks are wide. The unit is the NVLink domain: mostly
#   the eight GPUs of a host, in some racks 72.
# - a single sample must be faster, as in serving a model.
#
# **Do not** when
# - the model trains with DDP or FSDP (lesson 07): those are simpler, and overlap their
#   communication. Here each collective is in the middle of the computation, and what follows needs
#   its result. *Async tensor parallelism* (PyTorch's symmetric memory, under `torch.compile`) cuts
#   the product into pieces and sends one while the next is computed; it hides a part.
# - the link is a network between hosts, or the width for each rank is small.
#
# Add **sequence parallelism** where a reduce-scatter and an all-gather together send no more than
# an all-reduce, as with NCCL: less memory for the same traffic. When one text does not fit,
# whatever the width, lesson 06d splits the text. Lesson 08 combines tensor parallelism with FSDP,
# lesson 08b splits a mixture of experts.
#
# ## Sources
#
# - Shoeybi et al., *Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
#   Parallelism*, 2019, arXiv:1909.08053. f, g, the split loss.
# - Korthikanti et al., *Reducing Activation Recomputation in Large Transformer Models*, 2022,
#   arXiv:2205.05198. Sequence parallelism, activations by formula.
# - Grattafiori et al., *The Llama 3 Herd of Models*, 2024, arXiv:2407.21783. Key and value heads.
# - Radford et al., *Language Models are Unsupervised Multitask Learners*, 2019. GPT-2.
# - The H100's rates: the sources of `gpus.csv` and `network.csv` (lesson 07).
# - PyTorch documentation: *torch.distributed.tensor.parallel*, *torch.distributed.tensor*,
#   *DeviceMesh*.
