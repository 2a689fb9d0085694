# %% [markdown]
# # 08c Three axes at once: would you notice a bug?
#
# **70 minutes**, on any machine, after lessons 06b, 06c and 08; sections marked (optional) are not
# included. The ranks are CPU cores, even where there are GPUs. Eight of them share your cores, so
# this lesson proves and counts, and claims nothing about speed.
#
# After this lesson you can lay out a mesh of three axes and say what each rank holds and sends
# along each of them, shard the stages of a pipeline, and find bugs of composed strategies that
# train, and train the wrong thing.
#
# ## The question
#
# The largest trainings use several axes at once. Llama 3 405B was trained on 16,384 GPUs: each
# matrix split over 8, the layers over a pipeline of 16, and 128 such models side by side (Llama
# Team, 2024, section 3.3). You know each axis alone. Does their composition still train what one
# process trains? And if somebody composes them wrong, **would you notice?**

# %%
from bootcamp import warm_up

warm_up()

# %% [markdown]
# ## The idea
#
# Each axis divides a different thing, and sends a different thing at a different time.

# %%
from bootcamp import plots
from bootcamp_lessons.diagrams import three_axes as diagrams

plots.show(diagrams.axes_map())

# %% [markdown]
# On a mesh of three axes, each rank is in three groups. Which axis gets which link follows from the
# map: `tensor` sends most and each layer waits for it, so its ranks are neighbours in a host. For
# the slowest link there are two candidates. A pipeline sends least: Megatron-LM and this lesson put
# it outside. Gradients can wait longest: Llama 3 had `data` on it.

# %%
plots.show(diagrams.mesh())

# %% [markdown]
# Launchers number ranks host by host, and `init_device_mesh` fills the last axis first. So
# `("pipeline", "data", "tensor")` is this picture: the order of the names gives each axis its link.
#
# Three rules make the composition right. Every bug of this lesson breaks one of them.
#
# 1. **A gradient is complete** when it has been summed over everything the parameter was applied
#    to: the micro-batches, the copies of the model, and the parts of the text.
# 2. **It is divided once** by the number of each of these over which the loss is a mean.
# 3. **What belongs to all of the model is computed over all axes**: a gradient norm, a loss, a
#    checkpoint.
#
# ## Predict

# %%
from IPython.display import display

from bootcamp import predict

guess_held = predict(
    "axes_held",
    "2 x 2 x 2 ranks, the tiny GPT. What share of the model's parameters does rank 0 hold?",
    unit="%",
)
guess_sent = predict(
    "axes_sent",
    "The tiny GPT: 335,360 parameters, six blocks of width 64. A step has 24 samples of 64 tokens. "
    "The head's 256 scores for each token are gathered, and gloo sends as much for a "
    "reduce-scatter as for an all-reduce. With two ranks along tensor alone, a rank sends how many "
    "times what it sends with two along data alone?",
    unit="times",
)
guess_shown = predict(
    "axes_shown",
    "Six bugs are planted into composed scripts, one at a time. How many show in a loss curve of "
    "50 steps with AdamW?",
    unit="bugs",
)
display(guess_held, guess_sent, guess_shown)

# %% [markdown]
# ## What changes
#
# The parent is `ddp_pp` of lesson 06b: pipelines side by side. Added are the plan of lesson 06c for
# the parts that this rank's stages have, and one question for each gradient: is it a DTensor?

# %%
from bootcamp import script_diff

script_diff("3d")

# %% [markdown]
# - Between blocks, and between stages, a rank has its part of the *text* (sequence parallelism). So
#   a stage sends only its part: with *t* tensor ranks, each rank sends 1/*t* of the activations.
# - `PipelineStage` hands on plain tensors, and so does each block. DTensors live inside the blocks.
#   The head's scores are gathered too, which lesson 06c avoids: with 256 entries it costs little,
#   with 128,000 it would dominate.
# - The all-reduce along `data` takes plain tensors: `to_local()` is this rank's part of a gradient.
#   Its partner in the data group has the same part.
#
# The data axis can also shard. Then no line averages gradients: `fully_shard` does, and the
# schedule tells it which micro-batch is the last.

# %%
script_diff("fsdp_pp")

# %% [markdown]
# ## Run it
#
# Eight ranks, three steps, with SGD. Rank 0 is in the tensor group 0, 1; in the data group 0, 2;
# and in the pipeline 0, 4.

# %%
from bootcamp import launch

same = {"device": "cpu", "global_batch": 24, "micro_batches": 2, "steps": 3, "quiet": True}
run = launch("3d", 8, optimizer="sgd", **same)
print(run.config["mesh"], [f"{loss:.3f}" for loss in run.losses])

# %% [markdown]
# ## Read the measurement
#
# ### What each kind of rank holds and sends

# %%
from bootcamp import Table, check, claim
from bootcamp_lessons import excerpts, sharding_tables

table = sharding_tables.compare_ranks(run)
one_process = check.baseline(steps=3, global_batch=24, optimizer="sgd")
whole = one_process.ranks[0]["parameter_bytes"]
print(guess_held.score(100 * run.ranks[0]["parameter_bytes"] / whole))
display(table)
claim.equal(
    "axes_parameters",
    "Each rank holds the parameters that the formula gives.",
    *sharding_tables.find_largest_difference(table, "parameters"),
    within=0.01,
    kind="memory",
)

# %% [markdown]
# Rank 0 holds more than a quarter of the model, since three things are not split: the embedding,
# the norms, and the biases that are added after the sum over ranks.
#
# The kernel counts the bytes that a rank writes to its connections: here along one axis at a time.
# The bars are the speed of these runs; more ranks than cores share them.

# %%
alone = {
    axis: launch("3d", 2, mesh=sharding_tables.mesh_along(axis), optimizer="sgd", **same)
    for axis in sharding_tables.AXES
}
sent = sharding_tables.compare_axes(alone)
tensor, data = (alone[axis].ranks[0]["sent_bytes_per_step"] for axis in ("tensor", "data"))
if tensor and data:
    print(guess_sent.score(tensor / data))
display(sent)
plots.show(plots.throughput(one_process, *alone.values(), run))
display(
    claim.equal(
        "axes_sent_alone",
        "Along each axis alone a rank sends what the formula says.",
        *sharding_tables.find_largest_difference(sent),
        within=0.05,
    )
)
claim.equal(
    "axes_sent_together",
    "On eight ranks a rank sends the sum of the three formulas.",
    *sharding_tables.find_largest_difference(table, "sent"),
    within=0.05,
)

# %% [markdown]
# Composed, the axes help each other: two copies halve the tokens of each tensor group, and a stage
# has half of the gradients.
#
# ### Shards in the stages
#
# On four ranks, each stage is sharded over its two copies. Between steps a rank holds half of half
# of the model, of its gradients and of the optimizer's state. During a step its stage is complete:
# `reshard_after_forward=False` gathers the parameters once and keeps them until the step's end, and
# gradients add up unsharded until the last micro-batch. Its peak is that of ZeRO-1.

# %%
sharded = launch("fsdp_pp", 4, optimizer="sgd", **same)
held = sum(rank["parameter_bytes"] for rank in sharded.ranks)
claim.equal(
    "axes_sharded_stages",
    "With shards in the stages, four ranks together hold the model once.",
    held,
    whole,
    within=0.001,
    kind="memory",
)

# %% [markdown]
# ## Prove it
#
# The losses, the samples and all parameters are those of one process, with both optimizers. Unfold
# the last proof and look at "shares of the batch": eight ranks, two shares.

# %%
for trained in (sharded, run):
    check.same_training(trained, one_process)
with_adamw = check.baseline(steps=3, global_batch=24, optimizer="adamw")
for script, ranks in (("fsdp_pp", 4), ("3d", 8)):
    proof = check.same_training(launch(script, ranks, optimizer="adamw", **same), with_adamw)
proof

# %% [markdown]
# ## Break it
#
# Six colleagues have changed a composed script, each for a reason that sounds right. `summed`,
# `divided` and `clipped` get a division or a norm wrong; `norms`, `copies` and `resumed` forget
# some of the parameters. Here are their loss curves over 50 steps, recorded on another machine, on
# top of the right ones.

# %%
from bootcamp_lessons.labs import silent_bugs

curves = silent_bugs.read_curves()
plots.show(diagrams.loss_curves(curves))

# %% [markdown]
# "Apart" is the largest distance of the two curves in any step. "A step moves" is the median change
# of the right curve from one step to the next: the noise in which you would have to see a
# difference.

# %%
gaps = {name: silent_bugs.compare_curves(both) for name, both in curves["curves"].items()}
print(guess_shown.score(sum(gap["apart"] > gap["moves"] for gap in gaps.values()), within=0))
worst = max(gaps.values(), key=lambda gap: gap["apart"] / gap["moves"])
claim.larger(
    "axes_silent",
    "In none of the six are the curves ever further apart than one step moves them.",
    worst["moves"],
    worst["apart"],
    kind="count",
)

# %% [markdown]
# AdamW hardly notices a factor of two, norms have few of the parameters, and a loss is as noisy as
# its batch. **A loss curve cannot prove a composition.** The cost comes later: ranks that hold
# different models, a checkpoint of only one of them.
#
# The proof takes two steps. It compares parameters, and with SGD the length of a step is
# proportional to the gradient.

# %%
rows = []
for name, case in silent_bugs.CASES.items():
    proof = case.proof(case.broken())
    assert proof.failed, f"the proof did not notice {name}"
    last = proof.failed[-1]
    row = {"bug": name, "curves apart": gaps[name]["apart"], "rows that fail": len(proof.failed)}
    rows.append(row | {last["compared"].partition(",")[0]: last["measured"]})
Table(rows, "Six of six: SGD, two ranks, two steps (four from a checkpoint); 1e-5 is allowed")

# %% [markdown]
# ### Where is it? One axis at a time
#
# The proof shows that something is wrong. With two ranks along one axis and one along the others,
# it shows along which. So compose only what is proved alone, and when a composition fails, take it
# apart again.

# %%
silent_bugs.check_each_axis("silent_norms", silent_bugs.CASES["silent_norms"].broken())

# %% [markdown]
# ### A seventh, in the data
#
# The six train on texts of one length. In padded or packed texts the number of tokens that count
# differs, and each mean in the code, over a micro-batch or a copy, is a mean over another number.
# Neither a schedule nor `fully_shard` knows: by rule 2 divide by the tokens of the *global* batch.
# In a pipeline that needs `scale_grads=False` as well. Lesson 04b's program, four ranks, two more
# ways:

# %%
program = excerpts.SNIPPETS / "token_means.py"
means = excerpts.parse_printed(launch(program, 4, device="cpu", quiet=True))
for row in means:
    equal = max(row["sgd: apart"], row["adamw: apart"]) < 1e-9
    assert equal == (row["divided by"] == "all tokens"), row
rows = [row for row in means if row["way"] in ("FSDP2", "pipeline")]
Table(rows, "Parameters against one process, relative to how far these moved; the reported loss")

# %% [markdown]
# ## Ranks without ranks (optional)
#
# One process can try a mesh. In torch's **fake process group** (`torch.testing`) it is one rank of
# 128: it builds that rank's part, and a collective gives back what the rank has itself. **Local
# tensor mode** (`torch.distributed._local_tensor`, private) keeps all ranks' tensors in one process
# and computes the collectives.

# %%
guess_fake = predict(
    "axes_found_by_a_fake",
    "Four mistakes in a program, data x tensor: gradients summed and not averaged, a model with "
    "two heads over four tensor ranks, a mesh that leaves out a quarter of the ranks, a last loss "
    "that rank 0 alone adds up. How many raise an error in a fake run as rank 0 of 128?",
    unit="mistakes",
)
guess_fake

# %%
import sys

from bootcamp.paths import SRC

sys.path.append(str(SRC))
from snippets import ranks_without_ranks as without

changes = {**without.changes(128), **without.add_replicas()}
of_128 = sharding_tables.make_counting_script("fsdp_tp", changes, "fsdp_tp_of_128_ranks")
display(script_diff(of_128, parent="fsdp_tp"))
how = {"device": "cpu", "quiet": True}
tried = launch(of_128, 1, mesh="2x16x4", global_batch=128, steps=3, **how)
print("Losses:", [f"{loss:.3f}" for loss in tried.losses])
claim.equal(
    "axes_of_128_ranks",
    "Rank 0 of 2 x 16 x 4 ranks, replicas x shards x tensor, would send what the formulas say.",
    *without.sent_bytes(tried, shard=16, tensor=4),
    within=0.01,
)

# %%
program = excerpts.SNIPPETS / "ranks_without_ranks.py"
runs = [launch(program, 1, how="fake", rank=rank, world=128, **how) for rank in (0, 127)]
runs += [launch(program, 1, how="local", **how), launch(program, 4, **how)]
found = without.compare(*map(excerpts.parse_printed, runs))
display(guess_fake.score(sum(row["fake, rank 0"] == "raises" for row in found), within=0))
Table(found, "What shows each mistake: two fake ranks of 128, four local ones, four real ones")

# %% [markdown]
# A fake rank has the right shapes and bytes. Its loss is a part, which shows no wrong gradient; two
# ranks' calls show the other two mistakes. Local ranks compute what real ones do, but all go
# the same way at `if rank == 0`: only real ranks wait. The fake group receives nothing, which a
# pipeline does not survive. Local tensor mode refuses FSDP2 (`resize_() on an invalid python
# storage`), DDP and `shares[rank]`.
#
# ## Exercises
#
# Find the six bugs and fix them. Each is a copy of `_train_3d.py` or `_train_fsdp_pp.py`; its first
# lines quote the colleague. Take two or three in class. The cell of a bug writes the copy; run it
# again when you have saved your fix. For each:
#
# 1. `silent_bugs.check_each_axis("silent_summed")`: along which axis is it?
# 2. Read what the script does along that axis. Which of the three rules is broken?
# 3. Fix it. The check proves your script on two ranks with both optimizers.
#
# `exercise.solution("silent_...")`, with the case's name, shows a solution as a diff.
#
# Last, optional: who waits for ever? `calls[rank]`, such as "ac", has the group of each collective
# in turn; `groups["a"]` has its ranks. `exercise.solution("who_waits")` shows how.

# %%
from bootcamp import exercise

print(exercise.start("silent_summed"))
print(exercise.check("silent_summed"))

# %%
print(exercise.start("silent_divided"))
print(exercise.check("silent_divided"))

# %%
print(exercise.start("silent_clipped"))
print(exercise.check("silent_clipped"))

# %%
print(exercise.start("silent_norms"))
print(exercise.check("silent_norms"))

# %%
print(exercise.start("silent_copies"))
print(exercise.check("silent_copies"))

# %%
print(exercise.start("silent_resumed"))
print(exercise.check("silent_resumed"))


# %%
def who_waits(calls, groups):
    # your turn: return the ranks that wait for ever
    ...


print(exercise.check("who_waits", who_waits))

# %% [markdown]
# ## When to use it and when not
#
# **Add an axis only when the ones that you have are exhausted.** DDP or FSDP first. Tensor
# parallelism inside the NVLink domain when a layer is too large, or the batch would be. A pipeline
# across domains when the link is too slow to gather parameters. Three axes are for models that need
# hundreds of GPUs.
#
# **Prove before you train.** A tiny model, two steps, SGD, every mesh that you will use, from a
# checkpoint too, with clipping and accumulation: that is where the divisions are.
#
# **In a run that is too large to check against one process** look at what has to agree: the norm of
# the gradient on two meshes, replicated parameters on all ranks that hold them, the norm of the
# momentum before and after a restart.
#
# ## Sources
#
# - Llama Team, *The Llama 3 Herd of Models*, 2024, arXiv:2407.21783. Section 3.3.2 and table 4: the
#   axes of the 405B model, and in which order.
# - Narayanan et al., 2021, arXiv:2104.04473. Tensor inside a host, pipeline across hosts.
# - Korthikanti et al., 2022, arXiv:2205.05198. Sequence parallelism.
# - PyTorch documentation: *torch.distributed.pipelining*, *torch.distributed.tensor.parallel*,
#   *fully_shard*. `PipelineStage` calls FSDP's reduction after the last micro-batch.
