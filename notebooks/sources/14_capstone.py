# %% [markdown]
# # 14 Capstone: compose a strategy
#
# **60 minutes**, after lessons 04, 06b, 07 and 08, on Linux with network namespaces; elsewhere
# without the slow link.
#
# After this lesson you can choose a strategy for given hardware: by what a rank holds, what crosses
# which link, and what the clock says. There is more than one answer.

# %% [markdown]
# ## The question
#
# A model, four CPU ranks on two hosts, a slow link between them, and less memory on each rank than
# DDP needs: **which plan trains the same model, fits, and is the fastest?**

# %%
from bootcamp import Table, capstone, launch, warm_up
from bootcamp.launcher import simulated_hosts

warm_up()
missing = simulated_hosts.why_not()
print(f"No hosts can be made here: {missing}." if missing else "Two hosts can be made here.")
Table([{"given": name, "value": value} for name, value in capstone.TASK.items()])

# %% [markdown]
# ## The idea
#
# A **plan** is a script of the course, or the path of yours, with its flags, such as
# `{"script": "ddp_options", "hook": "fp16"}`. The checker runs it on the slow link, counts what the
# fullest rank holds (states: parameters, gradients, optimizer; *and* activations), and proves with
# both optimizers that it trains what one process trains.
#
# | | states | activations | over the link |
# |---|---|---|---|
# | DDP | all | share of the batch | gradients, once a step |
# | FSDP | share | share of the batch | parameters twice, gradients: per micro-batch |
# | HSDP | share of a host | share of the batch | a part's gradients, once a step |
# | tensor parallel | share | three quarters split | activations, four times a block |
# | pipeline | own layers | own layers' micro-batches in flight | activations at one cut |
#
# Count bytes, not numbers: bf16 has 2, fp32 has 4.

# %% [markdown]
# ## Predict
#
# A *model*, as a unit, is the size of all parameters.

# %%
from IPython.display import display

from bootcamp import predict

states = predict(
    "capstone_states",
    "DDP: how many MB of activations does a rank hold for each MB of parameters, gradients and "
    "AdamW's state?",
    unit="MB",
)
cut = predict(
    "capstone_cut",
    "A GPipe pipeline, batch of 32 in 4 micro-batches. Each rank has two of the model's 8 parts "
    "(embedding, six blocks, head). What percentage of DDP's activations does the fullest hold?",
    unit="%",
)
link = predict(
    "capstone_link",
    "DDP sends 1.5 models over the link in a step. Tensor parallelism over all four ranks: how "
    "many?",
    unit="models",
)
display(states, cut, link)

# %% [markdown]
# ## Run it
#
# A few steps of each, with the link open: that does not change the bytes.

# %%
from bootcamp import claim

PLANS = {"ddp": {}, "pp": {"schedule": "gpipe", "micro_batches": 4}, "tp": {}}
where = {**capstone.where(), "quiet": True} | ({} if missing else {"link": None})
runs = {
    name: launch(name, capstone.RANKS, steps=3, **capstone.MODEL, **flags, **where)
    for name, flags in PLANS.items()
}
held = {name: capstone.fullest(run) for name, run in runs.items()}
print(states.score(held["ddp"]["activations"] / held["ddp"]["states"]))
print(cut.score(100 * held["pp"]["activations"] / held["ddp"]["activations"]))
claim.larger(
    "capstone_activations_exceed_states",
    "On a rank of DDP activations take more memory than parameters, gradients and optimizer state.",
    held["ddp"]["activations"],
    held["ddp"]["states"],
    kind="memory",
)

# %% [markdown]
# "FSDP saves memory" depends on what fills it. And a pipeline does not save activations by itself:
# it trades a share of the batch through all layers for the complete batch through a share of them.
# What saves is to have few micro-batches in flight.

# %%
crossed = {name: capstone.link_sizes(run) for name, run in runs.items()}
print("No link here." if crossed["tp"] is None else link.score(crossed["tp"]))
claim.larger(
    "capstone_tensor_crosses_more",
    "Tensor parallelism across hosts sends more than 3 times as much over the link as DDP.",
    crossed["tp"],
    crossed["ddp"],
    by=3,
    kind="count",
    supported="Activations grow with the tokens of a step, gradients with the parameters.",
)

# %% [markdown]
# ## The board
#
# DDP is entered first. It is measured and refused, with the reason.

# %%
entered = capstone.enter("the course", "ddp")
assert entered.wrong, "DDP fits: the task has lost its point"
entered

# %% [markdown]
# Now yours. The board ranks what is valid by tokens per second on this machine. Close places may
# change: enter a plan twice before you claim the first.

# %%
MY_PLAN = None  # such as {"script": "ddp_options", "hook": "fp16"}

if MY_PLAN:
    print(capstone.enter("me", **MY_PLAN))
capstone.board()

# %% [markdown]
# ## Prove it
#
# `enter` proves every plan. Here is one that is fast because no gradient crosses the link: the
# forward pass calls the model inside DDP, so DDP's hooks never learn that a backward pass is
# coming.

# %%
from bootcamp import variant

loss = "loss = models.loss(model(inputs), targets)"
shortcut = variant("ddp", "capstone_shortcut", {loss: loss.replace("model(", "model.module(")})
caught = capstone.enter("a shortcut", shortcut)
assert caught.wrong, "ranks that average nothing passed for the same training"
caught

# %% [markdown]
# The samples are right, and every rank's loss falls. The second step's loss gives it away.

# %% [markdown]
# ## Exercise
#
# ### It fits, and you know why
#
# A plan within the limit, with your own estimate for its fullest rank, to within 10 %:
# `{"script": "ddp", "states_mb": 5.4, "activations_mb": 13.5}` is right and too much. Put it in
# place of `None`. `exercise.solution("capstone_fits")` shows one that fits; there are others.

# %%
from bootcamp import exercise

print(exercise.check("capstone_fits", None))

# %% [markdown]
# ### It fits into 10 MB
#
# Sharding the states is not enough now. A plan alone will do. One that fits:
# `exercise.solution("capstone_small")`.

# %%
print(exercise.check("capstone_small", None))

# %% [markdown]
# ### The first place (optional)
#
# Combine what the family has: `"mesh": "2x2"` for `ddp_pp` means two pipelines of two ranks,
# `"micro_batches"` and `"schedule"` change a pipeline, `"keep_gathered"` changes FSDP, `"hook"` of
# `ddp_options` compresses. (Is that still the same training?) Or start from `src/_train_fsdp.py`,
# and accumulate, or recompute activations.

# %% [markdown]
# ## When to use it and when not
#
# 1. **Does it fit on one device with the batch that you want?** Then DDP, and stop.
# 2. **What fills the memory?** States: shard them. Activations: smaller micro-batches, recompute
#    them, or cut the layers. One huge layer: tensor parallelism.
# 3. **What crosses the slowest link?** From the mesh's innermost axis to the outermost: tensor,
#    shards, then replicas or pipeline stages.
# 4. **Does the batch allow it?** It grows with the data-parallel ranks, and beyond some size learns
#    no faster per sample. Then more ranks must split the model instead.
# 5. **What does it cost?** About 6 floating-point operations for each parameter and token, at what
#    your GPUs achieve: often less than half of their peak.
# 6. **Is it still the same training?** Prove it in ten steps.
# 7. **Measure** where you will train.
#
# ## Sources
#
# - Narayanan et al., 2021, arXiv:2104.04473: tensor, pipeline and data parallelism combined.
# - Rajbhandari et al., *ZeRO*, 2019, arXiv:1910.02054: states.
# - Korthikanti et al., 2022, arXiv:2205.05198: activations.
# - McCandlish et al., *An Empirical Model of Large-Batch Training*, 2018, arXiv:1812.06162.
