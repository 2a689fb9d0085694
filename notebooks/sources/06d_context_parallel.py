# %% [markdown]
# # 06d Context parallelism: one text on several ranks
#
# **33 minutes** for the core, on any machine, after lessons 04 and 06c. Without several GPUs each
# rank is one CPU core, and the cells say so.
#
# After this lesson you can split each text over ranks, say what that sends and what a rank still
# holds, choose among three ways, and name what such a split breaks silently.

# %% [markdown]
# ## The question
#
# FSDP shards parameters, tensor parallelism splits matrices, without copies over no more ranks than
# there are key-value heads. What if the *text* (the sequence) is too long? A block like ours keeps
# 16 vectors of each position for the backward pass (lesson 01). Llama 3 405B is 16,384 wide, and
# was trained on texts of 8,192 tokens, and at the end of 131,072.

# %%
from IPython.display import display

from bootcamp import Table, check, claim, default_ranks, gpu_count, launch, plots, predict, warm_up
from bootcamp.paths import SRC
from bootcamp_lessons import excerpts, sharding_tables
from bootcamp_lessons.diagrams import tensor_parallel

warm_up()
RANKS = 4 if default_ranks() >= 4 else 2
DEVICE = "cuda" if gpu_count() >= RANKS else "cpu"
texts = (8_192, 131_072)
Table([{"tokens": n, "a block keeps, GB": 16 * n * 16_384 * 2 / 1e9} for n in texts], "In 16 bits")

# %% [markdown]
# One text, one block of 126, and an H100 has 80 GB. (Recomputing, lesson 02b, helps with what is
# kept, but computes one block at a time with all of this.)
#
# ## The idea
#
# **Context parallelism** splits the text everywhere: each rank has some of the positions, in all
# layers, and all parameters. Norms and MLPs treat each position by itself, so nothing changes for
# them. Attention looks at others: a query needs the keys and values of all positions before it. So
# **gather keys and values**, and let each rank compute the queries of its own positions:

# %%
import torch
from torch.nn.functional import scaled_dot_product_attention as attention

torch.manual_seed(0)
draw = {"dtype": torch.float64}
q, k, v = (torch.randn(1, 2, 64, 16, **draw) for _ in range(3))
complete = attention(q, k, v, is_causal=True)
for rank, mine in enumerate(torch.arange(64).chunk(4)):
    seen = mine[:, None] >= torch.arange(64)  # a query sees its own position and those before it
    assert torch.allclose(attention(q[:, :, mine], k, v, attn_mask=seen), complete[:, :, mine])
    print(f"rank {rank}, positions {mine[0]} to {mine[-1]}: {seen.sum()} pairs of query and key")

# %% [markdown]
# The result is right, and the work is not shared well: the last rank has nearly seven times the
# pairs of the first, and all wait for it. So the text is cut into twice as many pieces as there are
# ranks, and a rank takes an early one and a late one: the first and the last, the second and the
# second to last, and so on. This order is called **zigzag**. Here *every* rank then has 520 pairs.
#
# Every rank has all parameters, and computes their gradients from its own positions. These have to
# be added up: DDP does that, as for shares of a batch.

# %% [markdown]
# ## Predict

# %%
same = {"device": DEVICE, "quiet": True, **check.settings(RANKS)}
alone = launch("cpu", optimizer="adamw", **same | {"device": "cpu"})
ddp = launch("ddp", RANKS, optimizer="adamw", **same)
gradients = ddp.ranks[0]["sent_bytes_per_step"]
guess_kept = predict(
    "context_parallel_kept",
    f"With {RANKS} ranks: what percentage of one process's activations does each rank keep?",
    unit="%",
)
guess_sent = predict(
    "context_parallel_sent",
    f"DDP with {RANKS} ranks sends gradients once in a step. How many times its bytes does context "
    f"parallelism send on {same['global_batch']} texts of 64 bytes?",
    unit="times",
)
guess_lstm = predict(
    "context_parallel_lstm",
    "The same split under a model without attention, an LSTM. By how many per cent is its loss "
    "above the baseline's after 40 steps?",
    unit="%",
)
display(guess_kept, guess_sent, guess_lstm)

# %% [markdown]
# ## What changes

# %%
from bootcamp import script_diff

script_diff("cp")

# %% [markdown]
# - `attend` takes the place of the attention's function in each block. The all-gather has a
#   backward pass: a reduce-scatter, which adds up what all queries say of a rank's keys.
# - The embedding looks up all positions and keeps this rank's, so each has its true place.
# - `data.Batches(args, 0, 1)`: all ranks take the same texts, as in tensor parallelism.
# - `targets[:, mine]`: a rank has the loss of its own positions. The mean of the ranks' means is
#   the mean of all, since all have as many.
#
# ## Run it

# %%
from bootcamp import runs

split = launch("cp", RANKS, optimizer="adamw", **same)
display(runs.table(alone, ddp, split))
plots.show(plots.throughput(alone, ddp, split))

# %% [markdown]
# DDP is faster on short texts: it waits once in a step, context parallelism in every layer. But DDP
# divides a batch of texts, and here is a batch of one:

# %%
one_text = {"device": DEVICE, "steps": 3, "quiet": True, "global_batch": 1}
refused = launch("ddp", RANKS, raises=False, **one_text)
assert not refused.steps, "one text does not divide over ranks"
print("ddp:", refused.summary["error"]["message"])
print("cp:", launch("cp", RANKS, **one_text).losses)

# %% [markdown]
# ## Read the measurement

# %%
plots.show(plots.memory(alone, ddp, split))
whole, shared, mine = (run.ranks[0]["activation_bytes"] for run in (alone, ddp, split))
guess_kept.score(100 * mine / whole)

# %% [markdown]
# DDP's ranks keep exactly their share. Here each keeps the *gathered* keys and values too, and its
# rows of the mask, for the backward pass. Llama 3 has 16 heads of queries for one of keys, so that
# there is little to keep; PyTorch's `context_parallel` gathers them again.
#
# What travels, by formula? One all-reduce of gradients, as in DDP, and in each layer keys and
# values, *K* bytes for all texts of the batch: (*N*-1)/*N* · *K* in the forward pass, and as much
# in the backward pass where the backend has a reduce-scatter. gloo sends twice as much for it.

# %%
from bootcamp.costs import sharding, traffic
from bootcamp.train.models import gpt

tiny = gpt.SIZES["tiny"]
tokens, of_head = same["global_batch"] * tiny["context"], tiny["width"] // tiny["heads"]
K = traffic.keys_bytes(tokens, tiny["heads"], of_head)
a_layer = traffic.context_bytes(
    "all-gather", tokens, tiny["heads"], tiny["heads"], of_head, RANKS, factors=sharding.GLOO
)
by_formula = tiny["layers"] * sum(a_layer.values())
by_formula += sharding_tables.calculate_sent_bytes("ddp", "gpt", "tiny", RANKS)
counted = split.ranks[0]["sent_bytes_per_step"]
display(guess_sent.score(counted and counted / gradients))
claim.equal(
    "context_parallel_sends",
    "A rank sends the formula's bytes in a step, within 1 %.",
    counted and counted / by_formula,
    1.0,
    within=0.01,
    kind="count",
)

# %% [markdown]
# Gradients do not grow with the text; keys and values do. But attention grows with its *square*: so
# the longer the text, the better computing hides the gather. Llama 3 used 16 context ranks for
# 131,072 tokens; lesson 08d has the formula.
#
# ## Prove it
#
# "Shares of the batch" is one again: all ranks train one model on the same texts.

# %%
check.prove("cp", RANKS, device=DEVICE)

# %% [markdown]
# ## Break it
#
# ### First: a layer that looks along the text
#
# The script refuses all models but the one that it knows:

# %% tags=["nbval-check-output"]
refused = launch("cp", 2, model="striped-lstm", device="cpu", steps=5, quiet=True, raises=False)
print(refused.summary["error"]["message"])

# %% [markdown]
# Is that pedantic? Without the refusal an LSTM (lesson 13b) is split over the ranks.

# %%
from bootcamp import variant

no_refusal = {'flags.count_parts_of_rank(context, "gpt", "context")': ""}
no_attention = {"for block in model[1:-1]:": "for block in ():"}
script = variant("cp", "cp_lstm", no_refusal | no_attention)
lstm = {"model": "striped-lstm", "optimizer": "sgd", "steps": 40, "global_batch": 16, "quiet": True}
right, wrong = launch("cpu", **lstm), launch(script, RANKS, device="cpu", **lstm)
plots.show(plots.loss_curves(right, wrong))
display(guess_lstm.score(100 * (wrong.losses[-1] / right.losses[-1] - 1)))
check.compare(wrong, right)

# %% [markdown]
# Nothing raises, all ranks agree, and the loss falls nearly as well. Why is it another training?
#
# <details><summary>Answer</summary>
#
# An LSTM carries a state from position to position. Each rank begins its part with a state of
# zeros, so what was read before the cut is forgotten. Convolutions along the text, state-space
# layers, norms over positions and losses that compare positions break in the same way: whatever
# looks along the text has to exchange something at the cuts.
# </details>
#
# ### Second: positions that begin at zero
#
# Let each rank look up its own part of the text alone, so that every rank's first byte is at
# position 0. Keys are still gathered, the mask is right.

# %%
hook = "model.embedding.register_forward_hook(lambda embedding, inputs, output: output[:, mine])"
early = "model.embedding.register_forward_pre_hook(lambda embedding, inputs: inputs[0][:, mine])"
longer = {"device": "cpu", "steps": 20, "global_batch": 16, "quiet": True}
at_zero = launch(variant("cp", "cp_at_zero", {hook: early}), RANKS, **longer)
right = launch("cpu", **longer)
plots.show(plots.loss_curves(right, at_zero))
check.compare(at_zero, right)

# %% [markdown]
# The pieces' places are lost, their bytes are not, and so short a training does not tell the
# difference by its curve. In models with rotary positions it is `position_ids` that has to be cut
# like the text.
#
# ### Third: PyTorch's own, called by another name
#
# In `with context_parallel(mesh, buffers=..., buffer_seq_dims=...)` PyTorch cuts the buffers and
# *replaces* `torch.nn.functional.scaled_dot_product_attention`. Here a program calls it through the
# module, and then by a name that it has imported before.

# %%
by_torch = launch(SRC / "snippets" / "torch_context_parallel.py", 2, device=DEVICE, quiet=True)
rows = excerpts.parse_printed(by_torch)
print(*{row["refused"] for row in rows if "refused" in row})
Table([row for row in rows if "refused" not in row], "Largest differences")

# %% [markdown]
# Through the module it refuses to run on a CPU; on GPUs it is right. By name, nothing was replaced:
# each rank attends to its own part alone, exactly, and nobody says so. So compare one step with a
# single process whenever a library replaces functions.

# %% [markdown]
# ## Two other ways (optional)
#
# In **ring attention** (Liu et al., 2023) the queries stay, and keys and values go round a ring. In
# each step a rank computes attention between its queries and the keys that it holds now, and then
# passes them on: no rank ever holds those of the complete text. Softmax needs the sum over *all*
# keys, but it can be kept as a running sum: when a new block comes, what was summed before is
# scaled to the new total.

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
# The forward pass of the ring is this with `pass_on` at the end of a step. The backward pass goes
# round once more; the gradients of keys and values travel with them, and return to their own rank.

# %%
by_context = SRC / "snippets" / "context_parallel.py"
excerpts.piece(by_context, "class RingAttention", "        ctx.save_for_backward")

# %% [markdown]
# `list_pairs` leaves out blocks that the causal mask hides entirely. Each rank compares its output
# and gradients with plain attention over the complete text, in both orders.

# %%
orders = {}
for order in ("straight", "zigzag"):
    run = launch(by_context, 4, order=order, device="cpu", quiet=True)
    orders[order] = excerpts.parse_printed(run)
    for rank in orders[order]:
        assert max(rank["output_apart"], rank["gradients_apart"]) < 1e-5
plots.show(tensor_parallel.ring(orders))

# %% [markdown]
# A box is filled by the share that is computed; a dotted one is a step in which a rank has nothing
# to do. In straight order rank 0 is idle after the first step, but the ring goes at the pace of the
# slowest rank, so the causal mask saves no time. In zigzag order all have equal work.

# %%
every_rank = [rank for ranks in orders.values() for rank in ranks]
claim.larger(
    "ring_attention_holds_a_sixteenth_of_the_scores",
    "Plain attention has at least 16 times the scores that a rank of the ring has at any time.",
    sum(len(rank["tokens"]) for rank in orders["zigzag"]) ** 2,
    max(rank["largest_scores"] for rank in every_rank),
    by=15.99,
    kind="count",
)

# %% [markdown]
# Scores shrink with the square of the number of ranks, keys with the number. (Fused attention, such
# as PyTorch's, does not store all scores on one device either. But it needs all keys there.)
#
# **Ulysses** (Jacobs et al., 2023) changes the split with an **all-to-all**, in which each rank
# sends every other rank a different part: before the attention from parts of the text to some heads
# of the complete text, and after it back again. So the number of heads limits the number of ranks.

# %%
excerpts.piece(by_context, "def attend_to_gathered", "WAYS =")

# %% [markdown]
# All three are proved equal to plain attention, forward and backward. What do they send, if
# gathered keys are kept for the backward pass? Of keys and values together, *K* bytes, a rank of
# *N* has *K*/*N*. In Ulysses queries and outputs travel too, but a rank sends only its own part. In
# the backward pass of the ring the gradients make one hop more, back to their own rank.

# %%
guess_ulysses = predict(
    "context_ulysses",
    "Four ranks, as many query heads as key-value heads: an all-gather and its backward send "
    "1.5 K. How many K does Ulysses send, forward and backward together?",
    unit="K",
)
guess_ulysses

# %%
sizes = {"text": 1024, "width": 64, "heads": 8}
flags = {"way": ",".join(traffic.CONTEXT_WAYS), "key_heads": "8,4", "order": "zigzag", **sizes}
said = excerpts.parse_printed(launch(by_context, 4, device="cpu", quiet=True, **flags))
assert max(max(each["output_apart"], each["gradients_apart"]) for each in said) < 1e-5
rows = []
for each in said[: len(said) // 4]:  # of rank 0
    how = (each["way"], 1024, 8, each["key_heads"], 64, 4)
    gloo = sum(traffic.context_bytes(*how, factors=sharding.GLOO).values())
    counted = each["forward_bytes"] + each["backward_bytes"]
    row = {"way": each["way"], "key-value heads": each["key_heads"]}
    row |= {"gloo, counted MB": counted / 1e6, "gloo, formula MB": gloo / 1e6}
    rows.append(row | {"NCCL, formula MB": sum(traffic.context_bytes(*how).values()) / 1e6})
display(excerpts.source(traffic.context_bytes))
display(Table(rows, "Sent by a rank of four for one layer's attention, forward and backward"))
K = traffic.keys_bytes(1024, 8, 64)
sends = sum(traffic.context_bytes("ulysses", 1024, 8, 8, 64, 4).values())
display(guess_ulysses.score(sends / K, how="By formula"))
claim.equal(
    "context_parallel_bytes",
    "Each way sends the formula's bytes, within 1 %.",
    max(row["gloo, counted MB"] / row["gloo, formula MB"] for row in rows) if counted else None,
    1.0,
    within=0.01,
    kind="count",
    supported="This is the one furthest above. gloo adds a few bytes to each message.",
)

# %% [markdown]
# With many key-value heads Ulysses sends least, and less still with more ranks. With grouped-query
# attention there are few of them: an all-gather then has little to gather, and Ulysses soon runs
# out of heads. The ring sends most; but it is the only one that never holds the complete text, of
# any head.

# %% [markdown]
# ## Exercises
#
# ### First: attend to all
#
# Here is the script without what happens to keys and values. Edit the file, save it, and check it.

# %%
from bootcamp import exercise

print(exercise.start("attend_to_all"))

# %%
print(exercise.check("attend_to_all"))

# %% [markdown]
# `exercise.solution("attend_to_all")` shows a solution as a diff.
#
# ### Second: which way? (optional)
#
# A long text is split over ranks. `cheapest_way(tokens, heads, key_heads, of_head, ranks, room)`
# returns the way that sends the fewest numbers in a step, `"all-gather"`, `"ring"` or `"ulysses"`.
# All-gather needs `room`, in numbers, for all keys and values; Ulysses needs a number of key-value
# heads that is divisible by the ranks (other implementations copy them); the ring is always
# possible. `of_head` is the width of a head.


# %%
def cheapest_way(tokens, heads, key_heads, of_head, ranks, room):
    # your turn: return one of the three
    ...


print(exercise.check("cheapest_way", cheapest_way))

# %% [markdown]
# `exercise.solution("cheapest_way")` shows a solution.
#
# ## When to use it and when not
#
# **Use context parallelism** when
# - one text does not fit on a GPU, whatever else is sharded, or its attention alone takes too long.
#   Combine it with FSDP: its ranks hold the same parameters, so these can be sharded over them too.
#
# **Do not** when
# - there are more texts in a step than ranks: data parallelism sends gradients once, and nothing
#   within a layer.
# - anything but attention looks along the text, unless you know what it must exchange.
# - short texts are packed into long ones: then most pairs are masked, and zigzag no longer shares
#   the work equally.
#
# ## Sources
#
# - Grattafiori et al., *The Llama 3 Herd of Models*, 2024, arXiv:2407.21783, section 3.3.2. Keys
#   and values all-gathered, pieces from both ends of the text, 16 ranks for 131,072 tokens.
# - Liu, Zaharia and Abbeel, *Ring Attention with Blockwise Transformers for Near-Infinite Context*,
#   2023, arXiv:2310.01889.
# - Jacobs et al., *DeepSpeed Ulysses: System Optimizations for Enabling Training of Extreme Long
#   Sequence Transformer Models*, 2023, arXiv:2309.14509.
# - PyTorch documentation: *torch.distributed.tensor.experimental.context_parallel*.
