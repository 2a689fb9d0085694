# %% [markdown]
# # 08b Experts: more parameters at the same compute
#
# **60 minutes**, on any machine, after lessons 04 and 07; sections marked (optional) are not
# included. Without several GPUs each rank is one CPU core, and the cells say so.
#
# After this lesson you can explain what a mixture of experts computes, divide its experts over
# ranks with two all-to-alls, count their bytes, give the experts' gradients the right scale, and
# measure and repair what happens when all tokens want the same expert.
#
# ## The question
#
# In all models so far each token passes through *every* matrix, so twice the parameters are twice
# the arithmetic. Can a model have more parameters with the same arithmetic, and where would they be
# kept?

# %%
from bootcamp import Table, check, claim, default_ranks, gpu_count, launch, plots, warm_up
from bootcamp.paths import SRC
from bootcamp_lessons import excerpts, sharding_tables
from bootcamp_lessons.diagrams import experts as pictures
from bootcamp_lessons.labs import experts_lab

warm_up()
RANKS = 4 if default_ranks() >= 4 else 2  # a layer has eight experts
DEVICE = "cuda" if gpu_count() >= RANKS else "cpu"
print(f"{RANKS} ranks on {'GPUs' if DEVICE == 'cuda' else 'CPU cores'}.")

# %% [markdown]
# ## The idea
#
# A **mixture of experts** has several MLPs in each block, the **experts**, and a **router**: a
# small matrix that gives each token a score for each expert. The token passes through only the few
# experts with the highest scores, and their results are added up with weights that are calculated
# from the scores.
#
# The course has such a GPT, `--model moe`. Each block has eight experts, and a token passes through
# two of them. Each expert has half the inner width of gpt's MLP, so two of them do one MLP's
# arithmetic.

# %%
from IPython.display import display

display(experts_lab.compute_table("tiny"))
gpt, mixture = table = experts_lab.compute_table("small")
display(table)
claim.equal(
    "experts_same_arithmetic",
    "At size small the mixture's forward pass has the FLOPs of gpt's, to within 1 %.",
    mixture["MFLOP of a sample"],
    gpt["MFLOP of a sample"],
    within=0.01,
    kind="count",
)

# %%
import torch

from bootcamp.train.models import moe

display(excerpts.source(moe.Router.forward, moe.Block.mixture))
torch.manual_seed(0)
weights, chosen = moe.Router(width=64, experts=8, chosen=2)(torch.randn(3, 64))
print("three tokens choose", chosen.tolist(), "\nwith weights", weights.detach().round(decimals=2))

# %% [markdown]
# - A **row** is a token on its way through one expert, so there are twice as many rows as tokens.
#   They are sorted by expert, and each expert computes all its rows at once, in two matrix
#   products.
# - The choice itself has no gradient. The router learns through the *weights*: a softmax over the
#   scores of the chosen. With one chosen expert that softmax would be 1, so such models take it
#   over *all* scores.
# - **Capacity.** Some programs give each expert room for a fixed number of rows and drop the rest:
#   those tokens skip the MLP. Our layer is *dropless*, so it can be proved equal on any number of
#   ranks.
# - Newer models have many narrow experts, and the router in float32. Some add **shared** experts
#   that every token passes, a sigmoid in place of the softmax, or a small loss (the z-loss) that
#   keeps the scores from growing.
#
# Models of this kind:

# %%
experts_lab.published_table()

# %% [markdown]
# **Expert parallelism** divides the experts of each layer over the data-parallel ranks. Each rank
# still trains its own share of the batch. In each layer a row travels to the rank that has its
# expert, and the result travels back. One collective does that: in an **all-to-all** each rank
# sends every other rank a different part of its data.

# %%
plots.show(pictures.exchange())

# %% [markdown]
# By hand: what is the backward pass of an all-to-all? The gradient of a row has to go where the row
# came from: an all-to-all with the two lists of lengths swapped.

# %%
by_hand = SRC / "snippets" / "experts_by_hand.py"
display(excerpts.piece(by_hand, "class AllToAll", "def mixture"))
excerpts.piece(by_hand, "def travel", "torch.manual_seed")

# %% [markdown]
# No rank knows beforehand how many rows will arrive, so the *numbers* of rows travel first. On real
# ranks, compared with the complete layer on one:

# %%
rows = excerpts.parse_printed(launch(by_hand, 2, device="cpu", quiet=True))
apart = max(value for row in rows for name, value in row.items() if "apart" in name)
assert apart < 1e-10, "the split is another layer"
print(f"Outputs and gradients differ by at most {apart:.1g} from those of one rank.")

# %% [markdown]
# ## Predict
#
# The model has six blocks of width 64 and computes in float32, four bytes a number.

# %%
from bootcamp import predict
from bootcamp.costs import model_shapes

TINY, SETTINGS = model_shapes.MOE["tiny"], check.settings(RANKS)
tokens = SETTINGS["global_batch"] * TINY["context"] // RANKS
guess_bytes = predict(
    "experts_bytes",
    f"A rank has {tokens} tokens in a step, and each of them two rows in each of six blocks. How "
    "many MB of rows does it hand to all-to-alls in a step, forward and backward?",
    unit="MB",
)
from bootcamp.costs import experts

own, others = experts.parameter_bytes("tiny")
guess_memory = predict(
    "experts_memory",
    f"{100 * own / (own + others):.0f} % of the parameters are the experts'. What percentage of "
    f"all parameters does each of {RANKS} ranks hold?",
    unit="%",
)
guess_crowd = predict(
    "experts_imbalance",
    "At the start the router is random, then it learns. After 30 steps, the busiest expert of a "
    "layer gets how many times as many rows as the mean?",
    unit="times",
)
display(guess_bytes, guess_memory, guess_crowd)

# %% [markdown]
# ## What changes

# %%
from bootcamp import script_diff

script_diff("ep")

# %% [markdown]
# - `dispatch` and `combine` are hooks that run before and after the experts of each block. The
#   model's experts accept rows of several ranks, sorted by rank and then by expert: `counts` then
#   has a line for each rank.
# - DDP is told to leave the experts alone, by a method that torch marks as private
#   (`_set_params_and_buffers_to_ignore_for_model`), as is the all-to-all with a backward. Otherwise
#   it would copy rank 0's experts to all ranks, and average gradients of *different* parameters.
#   Router, attention, norms and embedding stay DDP's.
# - `parameter.grad /= world` is the line that people forget. DDP divides by the number of ranks,
#   because each rank's loss is a mean over its own share. Nothing does that for the experts: rows
#   of all ranks came here, and their gradients were added up.
# - Saving: each rank writes its experts under their names in the complete model, so any script on
#   any number of ranks can load them (lesson 07b).
#
# ## Run it
#
# A variant that also counts the collectives of one step, with both optimizers. Each run is compared
# with one process. The bars are runs that count nothing.

# %%
MOE = {"model": "moe", "device": DEVICE}
proofs = check.prove(sharding_tables.make_counting_script("ep"), RANKS, **MOE, **SETTINGS)
split = proofs[1].run
replicated = launch("ddp", RANKS, optimizer="adamw", quiet=True, **MOE, **SETTINGS)
timed = {**MOE, "steps": 8, "global_batch": 32, "quiet": True}
baseline = launch("gpu" if DEVICE == "cuda" else "cpu", 1, **timed)
plots.show(plots.throughput(baseline, *(launch(each, RANKS, **timed) for each in ("ddp", "ep"))))

# %% [markdown]
# ## Read the measurement
#
# ### Bytes
#
# On the way there a rank hands over exactly two rows for each of its tokens. On the way back it
# hands over as many as it was sent: more than that on a popular rank, fewer on others, the same on
# average. The backward pass repeats both. The theory as code, and what PyTorch counted:

# %%
display(excerpts.source(experts.rows_bytes, experts.exchanged_bytes))
handed_in = sum(experts_lab.count_handed_bytes(split)) / RANKS
display(guess_bytes.score(handed_in / 1e6))
claim.equal(
    "experts_all_to_all_bytes",
    "On average a rank hands 4 x tokens x 2 x width numbers to each layer's all-to-alls.",
    handed_in,
    experts.exchanged_bytes(TINY, tokens),
    within=0.01,
)

# %% [markdown]
# The part for the rank itself does not leave it. What does can be calculated from the rows that
# each rank has recorded, and Linux counts it on the connections, together with DDP's all-reduce.

# %%
counted, formula = experts_lab.count_sent_bytes(split)
claim.equal(
    "experts_sent_bytes",
    "Ranks send the rows for other ranks' experts, their numbers, and DDP's gradients.",
    None if DEVICE == "cuda" else counted,
    formula,
    within=0.01,
)

# %% [markdown]
# The bytes do not grow with the number of experts. Mixtral's shape, 4,096 tokens on a GPU, in bf16:

# %%
from bootcamp.costs import hardware, model_shapes

mixtral = model_shapes.find_model("Mixtral 8x7B")
once = experts.rows_bytes(4096, mixtral.hidden, mixtral.chosen, number=2)
step = experts.EXCHANGES * mixtral.layers * once
print(
    f"{mixtral.parameters / 1e9:.1f} billion parameters, "
    f"{mixtral.matrix_parameters / 1e9:.1f} in a token's matrix products"
)
print(f"one all-to-all {once / 1e6:.0f} MB, a step {step / 1e9:.1f} GB")
computing = 6 * mixtral.matrix_parameters * 4096 / (0.4 * hardware.gpu("H100").peak)
print(f"an H100 computes for {computing:.2f} s, at 40 % of its peak; on the way, with 8 ranks:")
for link, W in (("NVLink at its nominal rate", 450e9), ("a card of 400 Gbit/s for each GPU", 50e9)):
    print(f"{step * 7 / 8 / W:.3f} s over {link}")

# %% [markdown]
# An all-to-all is no ring: between hosts each GPU has only its own card. Each of these is in the
# middle of the computation, and what follows waits for it. Inside an NVLink domain (lesson 08) that
# costs little here, between hosts nearly a fifth. DeepSeek-V3 spreads its experts over eight hosts:
# there each token may go to four hosts at most, and a second micro-batch computes while the first
# one's rows travel (DualPipe, lesson 06b; the library is DeepEP).
#
# ### Memory

# %%
display(experts_lab.memory_table({"ddp": replicated, "ep": split}))
plots.show(plots.memory(replicated, split))

# %%
holds = split.ranks[0]["parameter_bytes"]
display(guess_memory.score(100 * holds / replicated.ranks[0]["parameter_bytes"]))
claim.equal(
    "experts_memory",
    "A rank holds its experts and everything that is not an expert.",
    holds,
    sum(experts.parameter_bytes("tiny", RANKS)),
    kind="memory",
)

# %% [markdown]
# The experts' state is divided by the number of ranks; FSDP can shard the rest (lesson 07).
# Activations are not divided: a rank with popular experts holds more than the others.
#
# ### Who gets how many rows
#
# Each rank has recorded how often its tokens chose each expert. Here are 30 steps.

# %%
LONG = {**MOE, "steps": 30, "global_batch": SETTINGS["global_batch"], "quiet": True}
left_alone = launch("ep", RANKS, **LONG)
experts_lab.rows_table(left_alone, step=29)

# %% [markdown]
# A router can reinforce its own choices: an expert that gets more rows learns faster, gives better
# results, and is chosen more often. In the end every token of a layer chooses the same experts: the
# router has **collapsed**. An expert without rows wastes memory, and a rank with popular experts
# makes all others wait.
#
# Two repairs are common. Switch Transformers add a term to the loss: for each layer, the sum over
# experts of (share of the rows) × (mean probability that the router gives this expert). It pulls on
# the same parameters as the real loss, and the mean of the ranks' terms is *not* the term of the
# batch. DeepSeek-V3 adds a number to each expert's score, for the choice alone and not for the
# weights. After each step the number grows for experts with too few rows, and shrinks for those
# with too many.

# %%
script = experts_lab.write_balanced_script("ep")
script_diff(script, parent="ep")

# %%
balanced = launch(script, RANKS, **LONG)
both = {"left alone": left_alone, "balanced": balanced}
crowds = {name: experts_lab.imbalance(run) for name, run in both.items()}
plots.show(pictures.imbalance(both, crowds, most=TINY["experts"] / TINY["chosen"]))

# %%
display(guess_crowd.score(crowds["left alone"][-1]))
claim.larger(
    "experts_crowd_unless_balanced",
    "Left alone, the busiest expert gets over 1.5 times the rows of the busiest balanced one.",
    crowds["left alone"][-1],
    crowds["balanced"][-1],
    by=1.5,
    kind="count",
)

# %% [markdown]
# ### What the slowest rank costs
#
# The same arithmetic in another place: every token chooses the same two experts. Either rank 0 has
# one and rank 1 the other, or rank 0 has both, and rank 1 none.

# %%
from bootcamp import trial

shared = experts_lab.write_crowded_script(0, 4)
crowded = experts_lab.write_crowded_script(0, 1)
shared, crowded = (trial(each, 2, **MOE, steps=6, global_batch=32) for each in (shared, crowded))
busy = [experts_lab.imbalance(run(), experts.rows_of_ranks)[0] for run in (shared, crowded)]
claim.equal(
    "experts_on_one_rank_are_all_its_work",
    "With both on rank 0 of two, the busiest rank computes twice the mean number of rows.",
    busy[1] / busy[0],
    2,
    kind="count",
)

# %%
claim.faster(
    "experts_crowded_rank_slows_the_step",
    "A step is shorter when the two wanted experts are on two ranks than when both are on one.",
    shared,
    crowded,
    seconds=20,
    supported="The idle rank waits for the busy one, in each layer.",
    otherwise="Here the experts' arithmetic is too small a part of a step to be seen.",
)

# %% [markdown]
# ## Prove it

# %%
display(sharding_tables.list_proofs([("ep", proof) for proof in proofs]))
proofs[1]

# %% [markdown]
# (Two scores that differ by less than rounding could send a token elsewhere on another number of
# ranks. That takes a near tie, and it moves one token of many.)
#
# The balanced script has a baseline of its own: the same lines there, without the all-reduce.

# %%
FEW = {**LONG, "steps": 6}
alone_balanced = launch(experts_lab.write_balanced_script("cpu"), 1, **{**FEW, "device": "cpu"})
check.same_training(launch(script, RANKS, **FEW), alone_balanced)

# %% [markdown]
# ## Break it
#
# ### First: the scale of the experts' gradients
#
# Without `parameter.grad /= world` the experts' gradients are too large by the number of ranks.
# Which of the two optimizers shows it more?

# %%
from bootcamp import variant

SCALE = "parameter.grad /= world"
BROKEN = {**MOE, **SETTINGS, "raises": False}
not_divided = variant("ep", "ep_not_divided", {SCALE: "pass"})
for proof in check.prove(not_divided, 2, **BROKEN):
    apart = {row["compared"]: row["measured"] for row in proof.failed}
    assert apart, "the proof should see it"
    print(proof.run.config["optimizer"], {k.split(",")[0]: f"{x:.2g}" for k, x in apart.items()})

# %% [markdown]
# <details><summary>Answer</summary>
#
# The proof fails with both, but SGD shows it most: AdamW divides each gradient by its own size, so
# a constant factor nearly cancels.
# </details>
#
# ### Second: averaged like all others
#
# Somebody averages *all* gradients over the ranks "to be safe". The shapes agree, and nothing
# raises. What is averaged here?

# %%
averaged = variant("ep", "ep_averaged", {SCALE: f"dist.all_reduce(parameter.grad)\n{SCALE}"})
sgd = launch(averaged, 2, optimizer="sgd", quiet=True, **MOE, **SETTINGS)
plots.show(plots.loss_curves(proofs[0].baseline, sgd))

# %% [markdown]
# <details><summary>Answer</summary>
#
# The gradient of expert 0 with that of expert 4, which is another expert, on another rank. The loss
# falls all the same. Only gradients of the same expert may be averaged.
# </details>
#
# An expert has **replicas** when the experts are divided over *a part* of the data-parallel ranks:
# on 64 GPUs with one expert each, eight experts have eight replicas. Rows travel in one group; in
# another FSDP2 shards an expert over its replicas, and the rest over all ranks. FSDP2 makes a mean
# over each group, so what is left to divide by?

# %%
program = excerpts.SNIPPETS / "experts_sharded.py"
display(script_diff(program, parent="ep"))
sharded = check.prove(program, 4, mesh="2x2", model="moe", device="cpu", **SETTINGS)
display(sharding_tables.list_proofs([("2 x 2 ranks, FSDP2", proof) for proof in sharded]))
counted, formula = experts_lab.count_sent_bytes(sharded[0].run)
claim.equal(
    "experts_with_replicas",
    "Ranks send rows along the second axis, and what FSDP2 sends for two groups.",
    counted,
    formula,
    within=0.01,
)

# %% [markdown]
# ### Third: each rank balances by its own counts
#
# The all-reduce of the counts is gone. What do you expect?

# %%
apart = experts_lab.write_balanced_script("ep", together=False)
proof = check.compare(launch(apart, RANKS, **FEW), alone_balanced)
assert proof.failed, "the proof should see it"
proof

# %% [markdown]
# <details><summary>Answer</summary>
#
# Counts of a rank's share of the batch give another balance. It is due to DDP that the ranks agree
# at all: `balance` is a buffer, and DDP copies rank 0's buffers to all ranks before each forward
# pass. The other ranks' counts are ignored.
# </details>
#
# ## All experts at once (optional)
#
# A loop over experts starts many small kernels, and at `tolist()` the host waits for the GPU.
# `torch.nn.functional.grouped_mm` takes all rows, sorted by expert, all matrices, and the ends of
# the groups as a tensor.

# %%
guess_waits = predict(
    "experts_waits",
    "A step of `ep` calls `tolist()` 18 times in six blocks. How often with grouped products?",
    unit="calls",
)
guess_waits

# %%
import sys

sys.path.append(str(SRC))
from bootcamp.costs import fitted_constants, kernels
from snippets import experts_grouped

display(excerpts.source(experts_grouped.at_once))
at_once = variant("ep", "ep_grouped", experts_grouped.lines())
grouped = check.prove(at_once, RANKS, **MOE, **SETTINGS)
display(sharding_tables.list_proofs([("grouped", proof) for proof in grouped]))
waits, *_ = excerpts.parse_printed(grouped[0].run)
display(guess_waits.score(waits["tolist"], within=0))
layer = launch(excerpts.SNIPPETS / "experts_grouped.py", 1, device="cpu", quiet=True)
(apart,) = excerpts.parse_printed(layer)
waits_of = {f"{call} in a step": times for call, times in waits.items()}
display(Table([waits_of | apart], "Calls that wait; apart from the loop's; rows right by starts"))
launches = fitted_constants.find_constants("", "H100").launch  # seconds: of a layer's forward
one, each = launches / kernels.KERNELS[0], waits["tolist"] / TINY["layers"]
idle = (100 * mixtral.layers * seconds / (computing / 3) for seconds in (each * one, launches))
says = "Mixtral's forward pass: {:.0f} to {:.0f} % longer with {:.0f} waits a layer"
print(says.format(*idle, each))

# %% [markdown]
# Twelve are left: an all-to-all wants its lengths on the host. (`bincount` waits too.) A host that
# waits launches nothing. So after each wait the GPU is idle, for one launch at least, and for a
# layer's at most (the planner's constant, fitted to published steps).
#
# Given the groups' *starts*, `grouped_mm` raises nothing: no row meets its own expert, and behind
# the last start the result is whatever memory held.
#
# ## Exercises
#
# ### First: what travels where
#
# `rows_between(counts)` gets a list for each rank: how many rows its tokens have for each expert.
# It returns a list for each sending rank: how many rows go to each rank, the lengths that the
# all-to-all needs. As in the script, all ranks have equally many experts, in order.

# %%
from bootcamp import exercise


def rows_between(counts):
    # your turn: return a list for each rank, with a number for each rank
    ...


print(exercise.check("rows_between", rows_between))

# %% [markdown]
# `exercise.solution("rows_between")` shows a solution.
#
# ### Second: the way back
#
# Here is the script without its second half. Bring the results back, and set the scale.

# %%
print(exercise.start("experts_over_ranks"))

# %% [markdown]
# Edit the file, save it, and check it: it trains on two ranks with both optimizers, and is compared
# with the baseline. `exercise.solution("experts_over_ranks")` shows the solution as a diff.

# %%
print(exercise.check("experts_over_ranks"))

# %% [markdown]
# ## When to use it and when not
#
# **Use a mixture of experts** when arithmetic is what you lack and memory is not: many GPUs, much
# data, and a model that should learn more at the same FLOPs.
#
# **Divide experts over ranks** when they and their state do not fit on each rank, and a fast link
# connects the ranks. Watch the rows of each expert from the first step on.
#
# **Do not** when
# - memory is the limit, as in serving on one device: all experts must be there, and a batch of many
#   tokens uses all of them.
# - the experts fit on each rank: DDP or FSDP train the same model, without an all-to-all.
# - the link between the ranks is slow, or each rank has few tokens: an expert then computes a
#   handful of rows at a time.
#
# ## Sources
#
# - Lepikhin et al., *GShard: Scaling Giant Models with Conditional Computation and Automatic
#   Sharding*, 2020, arXiv:2006.16668. Two all-to-alls a layer; capacity.
# - Fedus, Zoph and Shazeer, *Switch Transformers*, 2021, arXiv:2101.03961. One expert a token; the
#   term that balances, equation 4; parameters and FLOPs, Table 9.
# - Gale et al., *MegaBlocks: Efficient Sparse Training with Mixture-of-Experts*, 2022,
#   arXiv:2211.15841. No token is dropped.
# - Jiang et al., *Mixtral of Experts*, 2024, arXiv:2401.04088. A softmax over the chosen.
# - Wang et al., *Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts*, 2024,
#   arXiv:2408.15664. A number added to the scores, for the choice alone.
# - DeepSeek-AI, *DeepSeek-V3 Technical Report*, 2024, arXiv:2412.19437. Experts over eight hosts,
#   four hosts a token.
# - PyTorch documentation: `torch.distributed.all_to_all_single`, `DistributedDataParallel`.
