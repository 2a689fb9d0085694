# %% [markdown]
# # 14 Capstone: compose a strategy
#
# **60 minutes**, after lessons 04, 06b, 07 and 08, on Linux with network namespaces; elsewhere
# without the slow link.
#
# After this lesson you can choose a strategy for given hardware as you would at work: by what a
# rank holds, what crosses which link, and what the clock says. There is more than one answer.

# %% [markdown]
# ## The question
#
# You are given a model, four ranks on two hosts, a slow link between the hosts, and less memory on
# each rank than DDP needs. **Which plan trains the same model, fits, and is the fastest?**
#
# The next cell starts to load PyTorch in the background and shows the task. Its numbers are the
# same for everybody, so that a room can compare.

# %%
from bootcamp import Table, capstone, launch, warm_up

warm_up()
task = {
    **capstone.MODEL,
    "ranks": capstone.RANKS,
    "hosts": capstone.HOSTS,
    "link between the hosts": capstone.LINK,
    "most MB on a rank": capstone.MOST_BYTES / 1e6,
}
Table([{"given": name, "value": value} for name, value in task.items()])

# %% [markdown]
# The next cell says what this machine makes of it. The ranks are CPU ranks on every machine, for
# only these can be spread over hosts that are made on one.

# %%
from bootcamp.launcher import simulated_hosts

missing = simulated_hosts.why_not()
print(f"No hosts can be made here: {missing}." if missing else "Two hosts can be made here.")

# %% [markdown]
# ## The idea
#
# A **plan** is a dictionary: a script of the course, or the path of yours, and its flags, such as
# `{"script": "hsdp", "shard": 2}`. A flag `--micro-batches 8` becomes `"micro_batches": 8`. The
# checker
#
# 1. runs it on the slow link and measures tokens per second,
# 2. looks what the fullest rank holds: parameters, gradients, optimizer state *and* activations,
#    all counted while it trains,
# 3. proves with both optimizers that it trains what one process trains.
#
# So you need a table in your head: what does each strategy make smaller, and what does it send?
#
# | Strategy | states | activations | over the link between the hosts |
# |---|---|---|---|
# | DDP | whole | share of the batch | gradients |
# | FSDP, ZeRO-3 | share | share of the batch | parameters twice, gradients |
# | HSDP, a host as a row | share of a host | share of the batch | gradients' shards |
# | tensor parallel | share | most of them whole | activations, several times a block |
# | pipeline | own layers | own layers, per micro-batch under way | activations at one cut |
# | data parallel × pipeline | own layers | own, a share | gradients or activations, by the mesh |

# %% [markdown]
# ## Predict
#
# Start with DDP, which everybody tries first. The next cell trains the model in one process, to
# know its size, and asks what a rank of DDP will hold and send.

# %%
from bootcamp import check, predict

alone = check.baseline(**capstone.MODEL, steps=capstone.STEPS)
model_mb = alone.ranks[0]["parameter_bytes"] / 1e6
guess_held = predict(
    "capstone_held",
    f"The parameters are {model_mb:.2f} MB. How many MB of parameters, gradients and AdamW's state "
    "does a rank of DDP hold?",
    unit="MB",
    answer=None,
)
guess_activations = predict(
    "capstone_activations",
    "And how many MB of activations, for its 8 samples of the 32?",
    unit="MB",
    answer=None,
)
guess_link = predict(
    "capstone_link",
    "How many times the model's size does a host send to the other in a step of DDP?",
    unit="models",
    answer=None,
)
for guess in (guess_held, guess_activations, guess_link):
    print(guess)

# %% [markdown]
# ## Run it
#
# The next cell runs DDP on the two hosts. Watch how long a step takes.

# %%
ddp = launch("ddp", capstone.RANKS, steps=capstone.STEPS, **capstone.MODEL, **capstone.where())

# %% [markdown]
# ## Read the measurement
#
# The next cell scores your predictions. Look at which kind of bytes is the largest.

# %%
rank = ddp.ranks[0]
states = sum(rank[f"{kind}_bytes"] for kind in ("parameter", "gradient", "optimizer"))
print(guess_held.score(states / 1e6))
print(guess_activations.score(rank["activation_bytes"] / 1e6))
crossed = capstone.link_sizes(ddp)
print(guess_link.score(crossed) if crossed is not None else "No link here, so nothing crossed it.")

# %% [markdown]
# The next cell draws what each rank holds.

# %%
from bootcamp import plots

plots.show(plots.memory(ddp))

# %% [markdown]
# For this model the activations are the larger part. Sharding the states alone saves the smaller
# one. Keep that in mind when you read "FSDP saves memory": it depends on what fills it.

# %% [markdown]
# ## The board
#
# The next cell enters DDP. It is measured and refused, with the reason.

# %%
entered = capstone.enter("the course", "ddp")
assert entered.wrong, "DDP fits: the task has lost its point"
entered

# %% [markdown]
# Now yours. Write a plan into the next cell, with your name, and run it as often as you like.
# `None` enters nothing.

# %%
MY_PLAN = None  # such as {"script": "fsdp"} or {"script": "pp", "micro_batches": 8}

if MY_PLAN:
    print(capstone.enter("me", **MY_PLAN))
capstone.board()

# %% [markdown]
# The table ranks what is valid by tokens per second on this machine. Look also at what crossed the
# link, in sizes of the model. On a loaded machine places that are close may change: enter a plan
# twice before you claim the first.

# %% [markdown]
# ## Prove it
#
# `enter` proves every plan. The next cell shows what such a proof catches: a plan that is fast
# because nothing crosses the link. It changes one line of DDP: the forward calls the model inside
# of DDP, so DDP's hooks never learn that a backward is coming.

# %%
from bootcamp import variant

loss = "loss = models.loss(model(inputs), targets)"
shortcut = variant("ddp", "capstone_shortcut", {loss: loss.replace("model(", "model.module(")})
caught = capstone.enter("a shortcut", shortcut)
assert caught.wrong, "ranks that average nothing passed for the same training"
caught

# %% [markdown]
# The samples are right, and every rank's loss falls. What gives it away are the losses from the
# second step on, and the parameters at the end.

# %% [markdown]
# ## Exercise
#
# ### It fits
#
# Any plan within the limit. Put yours in place of `None`; the checker says what was expected, what
# was seen, and gives a hint. `exercise.solution("capstone_fits")` shows one that fits.

# %%
from bootcamp import exercise

print(exercise.check("capstone_fits", None))

# %% [markdown]
# ### It fits into 10 MB
#
# Now sharding the states is not enough. `exercise.solution("capstone_small")` shows one that fits.

# %%
print(exercise.check("capstone_small", None))

# %% [markdown]
# ### The first place
#
# There is no solution to this one. Combine what the family has: `"mesh": "2x2"` for `ddp_pp` means
# two pipelines of two ranks, `"micro_batches"` and `"schedule"` change a pipeline,
# `"keep_gathered": True` changes FSDP, `"hook"` of `ddp_options` compresses. (Is a compressed
# gradient still the same training? Try.)
# Or write your own script: start from `src/_train_fsdp.py`, and train the batch in parts, or
# compute activations twice, as lesson 02 had it.
#
# The next cell shows what you have done in the whole course.

# %%
from bootcamp.classroom.journal import progress

progress()

# %% [markdown]
# ## When to use it and when not
#
# How to choose, in the order in which to ask:
#
# 1. **Does it fit on one device with the batch that you want?** Then DDP, and stop.
# 2. **What fills the memory?** States: shard them. Activations: smaller micro-batches, compute them
#    twice, or cut the layers. One huge layer: tensor parallelism.
# 3. **What crosses the slowest link?** Lay the mesh so that the largest traffic stays inside a
#    host: tensor parallelism first, then shards, then data parallel or a pipeline between hosts.
# 4. **Is it still the same training?** Prove it in ten steps.
# 5. **Measure** on the hardware that you will use. This machine's ranking is this machine's.
#
# ## Sources
#
# - Narayanan et al., *Efficient Large-Scale Language Model Training on GPU Clusters Using
#   Megatron-LM*, 2021, arXiv:2104.04473: how tensor, pipeline and data parallelism are combined.
# - Rajbhandari et al., *ZeRO*, 2019, arXiv:1910.02054. What the states take.
# - Korthikanti et al., *Reducing Activation Recomputation in Large Transformer Models*, 2022,
#   arXiv:2205.05198. What the activations take.
