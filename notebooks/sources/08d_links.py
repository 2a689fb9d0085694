# %% [markdown]
# # 08d When a link decides
#
# **31 minutes**, on any machine, after lessons 08b and 08c.
#
# After this lesson you can say, before anything runs, whether a link limits data, tensor, expert,
# context or pipeline parallelism, and which of a model's sizes matter for that.
#
# ## The question
#
# A network that is twice as fast costs a lot. Would *your* training notice?
#
# ## The idea
#
# Compare two times of a step: a rank computes at *F* operations a second, and sends at *W* bytes a
# second. Their ratio, computing over sending, is above 1 where a link can keep up. *F* is what the
# GPU reaches while it computes, here in its best measured product. *W* depends on who sends what.
# Inside an NVLink domain it is NVLink's nominal rate, 450 GB/s. (A collective reaches less: 80 % on
# A100s, so published runs below count with 360 for an H100; `gpus.csv`.) Between domains a ring
# leaves each host once, through all its cards (lesson 04e); in an all-to-all each GPU has its own
# card alone.
#
# | axis | computes | meanwhile, or in between, sends |
# |---|---|---|
# | data: FSDP | a block, for its own tokens | the next block's parameters, gradients |
# | tensor | its part of a block | four all-reduces of the activations |
# | expert | rows in an expert of three matrices | these rows, there and back, in each pass |
# | context | attention of its own tokens to all | everyone's keys and values |
# | pipeline | micro-batches | little: stages wait while the pipeline fills |
#
# ## Predict
#
# Some sizes appear in both times of a ratio, and cancel. An H100 does 795 TFLOP/s in large
# products. All numbers are sent in 16 bits.

# %%
from IPython.display import display

from bootcamp import Table, claim, plots, predict, warm_up
from bootcamp.costs import hardware, model_shapes, overlap
from bootcamp_lessons import communication, excerpts

warm_up()
guess_width = predict(
    "communication_width",
    "Over NVLink's 450 GB/s eight tensor ranks take longer to compute than to send from a width of "
    "about 2,750 on (lesson 06c). From which width do 16, in a larger NVLink domain?",
    unit="numbers",
)
guess_inner = predict(
    "links_inner",
    "Experts on eight GPUs of eight hosts, each with a card of 50 GB/s: from which inner width of "
    "an expert does computing take longer than sending the rows? (Mixtral's have 14,336.)",
    unit="numbers",
)
published_runs = communication.published()
fsdp = [row["ratio"] for row in published_runs if row["axis"] == "FSDP"]
guess_slow = predict(
    "links_published",
    f"Of {len(fsdp)} published FSDP runs whose links are known, how many have a ratio below 1?",
    unit="runs",
)
display(guess_width, guess_inner, guess_slow)

# %% [markdown]
# ## What changes
#
# From axis to axis the two times change. Two ratios are the course's, two are short enough to write
# here:

# %%
display(excerpts.source(overlap.fsdp_ratio, overlap.tensor_ratio))


def expert_ratio(inner, ranks, F, W):
    computing = 18 * inner / F  # for each number of a row: three matrices, forward and backward
    return computing / (4 * 2 * (ranks - 1) / ranks / W)  # four all-to-alls, 2 bytes


def context_ratio(tokens, queries_of_a_key, ranks, F, W):
    computing = 2 * tokens * queries_of_a_key / F  # for each number of a key: causal, forward
    return computing / (2 * 2 * (ranks - 1) / ranks / W)  # the key's and the value's 2 bytes


h100 = hardware.gpu("H100")
F, rows = h100.peak * h100.reached, []
RING = "8 cards of a host, in a ring"
for link, W in (("NVLink, in a domain", 450e9), (RING, 400e9), ("1 card for each GPU", 50e9)):
    row = {"link": link, "FSDP: tokens on a rank": round(1 / overlap.fsdp_ratio(1, F, W))}
    row["gradients in fp32"] = round(1 / overlap.fsdp_ratio(1, F, W, reduced=4))
    if link != RING:
        row["8 tensor ranks: width"] = round(1 / overlap.tensor_ratio(1, 8, F, W))
        row["8 expert ranks: inner width"] = round(1 / expert_ratio(1, 8, F, W))
        row["16 context ranks: own tokens"] = round(1 / context_ratio(1, 16, 16, F, W))
    rows.append(row)
display(guess_width.score(1 / overlap.tensor_ratio(1, 16, F, 450e9), how="By formula"))
display(guess_inner.score(1 / expert_ratio(1, 8, F, 50e9), how="By formula"))
Table(rows, "Where computing begins to take longer than sending; context: 16 queries for a key")

# %% [markdown]
# - **FSDP**: the model drops out, tokens of a micro-batch on a rank are left (lesson 07). DDP's
#   all-reduce in 16 bits hides behind the backward pass from the same number. With tensor ranks
#   inside hosts, FSDP's rings have one card each.
# - **Tensor**: the tokens drop out. Only wider blocks help, or fewer ranks.
# - **Expert**: tokens, width and the number of chosen experts drop out. What is left is the inner
#   width of *one* expert, and models now have many narrow ones.
# - **Context**: the length of the text drops out, since attention's operations and the keys both
#   grow with it. Left are a rank's own tokens and how many queries share a key: grouped-query
#   attention makes long texts cheap to send.
# - **Pipeline**: link and model drop out. *m* micro-batches of work, for *p* - 1 of waiting.
#
# Which published models have experts that are wide enough?

# %%
rows = []
for name in ("Mixtral 8x7B", "DeepSeek-V3", "Qwen3-235B-A22B"):
    inner = model_shapes.find_model(name).inner
    row = {"model": name, "inner width": inner}
    row["NVLink"] = expert_ratio(inner, 8, F, 450e9)
    rows.append(row | {"1 card for each GPU": expert_ratio(inner, 8, F, 50e9)})
Table(rows, "Computing over sending of experts on eight H100s")

# %% [markdown]
# Mixtral's experts could be spread over hosts. DeepSeek-V3's need help: rows go out in 8 bits, to
# four hosts at most (lesson 08b). A larger NVLink domain helps most: in an NVL72 rack 72 GPUs
# exchange rows at NVLink's rate.
#
# ## Run it
#
# CPU ranks compute and then send, over a slow link whose rate we know. `roof` is the bound above.

# %%
measured = communication.measured()
shown = ("axis", "name", "ratio", "roof", "reached")
display(Table([{name: row[name] for name in shown} for row in measured], measured.caption))
communication.more_tokens()

# %% [markdown]
# ## Read the measurement
#
# With *C* seconds of computing and *S* of sending, *r* = *C*/*S*, a step takes at least max(*C*,
# *S*) if both go on at once, and *C* + *S* if a rank computes first and then sends. So the share of
# computing is at most min(*r*, 1), or *r*/(1 + *r*). Such a bound is called a **roofline** (lesson
# 02). Here are the runs of this machine and published ones under it, each with its GPU's and its
# link's rates.

# %%
display(guess_slow.score(sum(ratio < 1 for ratio in fsdp), within=0, how="By formula"))
plots.show(plots.communication_roofline([*published_runs, *measured]))
few, many = sorted(
    (row for row in published_runs if row["name"] == "GPT, width 8192, 4 x 8 x 16"),
    key=lambda row: row["ratio"],
)
claim.larger(
    "communication_more_micro_batches",
    "On one mesh of tensor 4, data 8 and pipeline 16, more micro-batches reached more.",
    many["reached"],
    few["reached"],
    kind="count",
    supported=f"The ratio of computing to waiting was {many['ratio']:.1f} and {few['ratio']:.1f}.",
)

# %% [markdown]
# - **FSDP.** What keeps published runs below the roof is not the link but attention, small matrices
#   and the optimizer. A run far right and low has a problem that a faster network would not solve.
#   Left of 1 there are at most runs of this machine, under the dashed roof: the solid one's slope
#   is arithmetic that no run here tests.
# - **Tensor ranks** reach little where blocks are narrow.
# - **Pipelines.** With few micro-batches the roof is low. With more, each is smaller and may be
#   computed less efficiently.
# - **Runs of this machine** can lie above the dashed roof. While ranks compute, the token bucket of
#   the link fills, and the next bytes leave at once: in effect they were sent meanwhile.
#
# ## Prove it
#
# A bound that one published run breaks is wrong. (A run here can be above it: it is compared with
# one that was measured a moment earlier.)

# %%
claim.equal(
    "communication_published_under_the_roofs",
    "None of the published runs is above its roof.",
    sum(row["reached"] > row["roof"] for row in published_runs),
    0,
    kind="count",
)

# %% [markdown]
# ## Break it
#
# A host's eight cards of 400 Gbit/s, and somebody calculates with *W* = 50 GB/s for FSDP's ring:
# "each GPU has one card." Or somebody reads GB/s as Gbit/s. Each is eight times too little. What in
# this lesson would have told them?

# %%
rows = []
for run in published_runs:
    roof = communication.roof(run["axis"], run["ratio"] / 8)
    if run["axis"] != "pipeline" and run["reached"] > roof:
        row = {"axis": run["axis"], "run": run["name"], "reached": run["reached"]}
        rows.append(row | {"roof": run["roof"], "wrong roof": roof})
Table(rows, "Published runs that would be above their roofs")

# %% [markdown]
# By the wrong rate these runs sent faster than their links carry. Check a rate on a run that
# exists.
#
# ## Exercises
#
# ### First: enough tokens?
#
# `tokens_to_hide(flops_per_second, cards, bytes_per_second, gradient_bytes)` returns from how many
# tokens on a rank FSDP between hosts hides what it sends, over a whole step. A host has so many
# cards, each with that rate. Parameters are gathered twice in 16 bits.

# %%
from bootcamp import exercise


def tokens_to_hide(flops_per_second, cards, bytes_per_second, gradient_bytes):
    # your turn: return a number of tokens
    ...


print(exercise.check("tokens_to_hide", tokens_to_hide))

# %% [markdown]
# `exercise.solution("tokens_to_hide")` shows a solution.
#
# ### Second: rows in 8 bits
#
# `narrowest_expert(ranks, flops_per_second, bytes_per_second, there, back)` returns the inner width
# from which computing takes longer than sending the rows. A number of a row takes `there` bytes on
# its way to an expert and `back` bytes on its way back; the backward pass sends as much.

# %%


def narrowest_expert(ranks, flops_per_second, bytes_per_second, there, back):
    # your turn: return an inner width
    ...


print(exercise.check("narrowest_expert", narrowest_expert))

# %% [markdown]
# `exercise.solution("narrowest_expert")` shows a solution.
#
# ## When to use it and when not
#
# Compute the ratio before you buy a network or lay out a mesh: an axis with a low ratio belongs
# in the NVLink domain, one with a high ratio may cross hosts. It is a bound: below it are
# attention, small kernels, latency (lesson 04e) and links that are shared. Lesson 10 has a model of
# these.
#
# ## Sources
#
# - Narayanan et al., 2021, arXiv:2104.04473: tensor parallelism, and the ZeRO-3 runs. vTrain,
#   arXiv:2312.12391. MosaicML's MPT runs and IBM's are in `src/bootcamp/costs/published/`.
# - Austin et al., *How to Scale Your Model*, 2025, jax-ml.github.io/scaling-book: such ratios for
#   TPUs and GPUs.
# - DeepSeek-AI, *DeepSeek-V3 Technical Report*, 2024, arXiv:2412.19437: rows in 8 bits, four hosts
#   a token. Liu et al., 2023, arXiv:2310.01889: the ring of keys hides behind attention.
# - The H100's arithmetic and both bandwidths: `gpus.csv` and `network.csv` in that folder.
