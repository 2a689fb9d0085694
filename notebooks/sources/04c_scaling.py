# %% [markdown]
# # 04c Scaling: what more ranks gain, and what a larger batch does
#
# **30 minutes**, on any machine. Without two GPUs each rank is one CPU core, and the cells say so.
#
# After this lesson you can say when more ranks pay off and why, measure strong and weak scaling
# fairly, and choose a learning rate for a larger batch by experiment.

# %% [markdown]
# ## The question
#
# DDP trains the same model on more ranks (lesson 04). How much faster does that get you to a
# trained model? Two questions hide in this one: how many samples a second, and how many samples
# until the model is good.

# %%
from bootcamp import claim, default_ranks, gpu_count, launch, trial, warm_up

warm_up()
RANKS = max(2, min(8, default_ranks()))
DEVICE = "cuda" if gpu_count() >= RANKS else "cpu"
ALONE = "gpu" if DEVICE == "cuda" else "cpu"
MLP = {"model": "mlp", "device": DEVICE, "steps": 20}

# %% [markdown]
# ## The idea
#
# A step on *N* ranks takes 1/*N* of the computing time, plus the **overhead** of working together:
# averaging the gradients, and waiting for the slowest rank. The computing grows with the batch. The
# averaging does not: the gradients are equally large for any batch.
#
# - **Speed-up** is the throughput of *N* ranks divided by that of one.
# - **Efficiency** is the speed-up divided by *N*.
# - **Strong scaling** keeps the global batch: is the same work done sooner?
# - **Weak scaling** keeps the batch *per rank*: is more work done in the same time?
#
# Weak scaling is easier, and has a catch: the global batch grows, the training takes fewer
# optimizer steps for the same samples, and it is no longer the same training.

# %%
from bootcamp import plots
from bootcamp_lessons.diagrams import scaling

plots.show(scaling.strong_and_weak())

# %% [markdown]
# ## Predict
#
# 1. A small model, an MLP.
# 2. The MLP is trained on 15,360 samples with SGD, a batch of 32, and a learning rate of 0.05, a
#    good one for that batch. Now the batch is 256: one step takes as many samples as 8 steps took.
#    "Best" means the lowest loss on text that was not trained on, averaged over three seeds.
# 3. Batch 256 with the best rate for 32 is worse than batch 32, since it takes an eighth of the
#    steps. This one is a real guess.
# 4. DDP sends gradients while the backward pass computes the next ones (lesson 04). If there are
#    enough tokens on each rank, the averaging is hidden.

# %%
from IPython.display import display

from bootcamp import predict

alone = launch(ALONE, ranks=1, global_batch=16 * RANKS, **MLP)
guess_mlp = predict(
    "scaling_small_model",
    f"1. One process trains {alone.samples_per_second:,.0f} samples/s with {16 * RANKS} samples a "
    f"step. How many do {RANKS} ranks train, all together?",
    unit="samples/s",
)
guess_rate = predict(
    "scaling_best_rate",
    "2. Which of 0.05, 0.1, 0.2, 0.4 and 0.8 is the best rate for a batch of 256?",
)
guess_gap = predict(
    "scaling_gap",
    "3. How much of the difference in loss does the best rate for 256 close?",
    unit="%",
)
guess_tokens = predict(
    "scaling_tokens",
    "4. A transformer has twice as many parameters as another. How many times as many tokens does "
    "a rank need, to hide the averaging of the gradients behind the backward pass?",
    unit="times",
)
display(guess_mlp, guess_rate, guess_gap, guess_tokens)

# %% [markdown]
# ## What changes
#
# Nothing in the script: flags only. `launch("ddp", ranks=4, global_batch=128)` shares 128 samples;
# with `global_batch=32 * ranks` the share stays and the batch grows.

# %% [markdown]
# ## Run it

# %%
claim.faster(
    "scaling_small_model_loses",
    f"One process trains a small MLP faster than {RANKS} ranks, at 16 samples a rank.",
    trial(ALONE, ranks=1, global_batch=16 * RANKS, **MLP),
    trial("ddp", ranks=RANKS, global_batch=16 * RANKS, **MLP),
    otherwise="A link with a low latency, or a slow device, can make even this pay.",
)

# %% [markdown]
# How large must the batch be until the ranks win?

# %%
by_batch = [{**MLP, "global_batch": n * RANKS, "quiet": True} for n in (16, 64, 256, 1024)]
pairs = [(launch(ALONE, ranks=1, **f), launch("ddp", ranks=RANKS, **f)) for f in by_batch]
print(guess_mlp.score(pairs[0][1].samples_per_second))
plots.show(scaling.speed_up_by_batch(pairs))

# %% [markdown]
# ## Read the measurement
#
# Where does a step of the smallest batch go?

# %%
plots.show(plots.timeline(launch("ddp", ranks=RANKS, trace_step=15, **by_batch[0])))

# %% [markdown]
# The last column is the overhead: what a step of the ranks takes beyond 1/*N* of one process's.
# The averaging has the same bytes for any batch. Waiting for the slowest rank, caches, and what
# else this machine does may grow with it. (Each row is one pair of runs: one that stands out
# may well be noise.)

# %%
scaling.overhead_table(pairs)

# %% [markdown]
# So data parallelism pays off when each rank computes much for each byte of gradient. How much is
# enough? A transformer of *P* parameters takes 2*P* operations for a token in the forward pass and
# 4*P* in the backward pass (lesson 01). A ring of many ranks sends 8*P* bytes of gradients in
# float32 (lesson 04). With *F* operations and *W* bytes a second, *T* tokens on a rank hide it if
#
# $$\frac{4PT}{F} \ge \frac{8P}{W}, \quad\text{so}\quad T \ge \frac{2F}{W}$$
#
# *P* drops out: a larger model takes longer to compute *and* to send.

# %%
from bootcamp.costs import hardware
from bootcamp.table import Table

print(guess_tokens.score(1, how="By formula"))
h100 = hardware.gpu("H100")
F = h100.peak * h100.reached  # in its best product
links = {"NVLink, in one host": 450e9, "8 network cards of 400 Gbit/s": 400e9, "1 such card": 50e9}
rows = [{"links of a host": name, "tokens": round(2 * F / W)} for name, W in links.items()]
Table(rows, "H100s, links at nominal rates: tokens on a rank that hide the averaging")

# %% [markdown]
# One ring uses one card of a host; NCCL makes several (lesson 04e). Convolutions, which use a
# parameter at every place of an image, compute more for each byte.
#
# ### Strong and weak scaling

# %%
numbers = [n for n in range(1, RANKS + 1) if RANKS % n == 0]
GPT = {"device": DEVICE, "steps": 8, "quiet": True}


def run_on(n: int, samples: int):
    return launch(ALONE if n == 1 else "ddp", ranks=n, global_batch=samples, **GPT)


strong = [run_on(n, 32 * RANKS) for n in numbers]
weak = [run_on(n, 32 * n) for n in numbers[:-1]] + strong[-1:]
plots.show(plots.scaling(*strong, kind="strong"))
plots.show(plots.scaling(*weak, kind="weak"))

# %% [markdown]
# In strong scaling a rank has less to compute the more ranks there are, against the same overhead,
# so efficiency falls with *N* (Amdahl, 1967). In weak scaling the work of a rank stays, and only
# what grows with *N* costs efficiency (Gustafson, 1988): on GPUs DDP's authors report
# "near-linear scalability using 256 GPUs" (Li et al., 2020, abstract). Few ranks can't show the
# difference: both figures end in the same run, and they begin with one process whose speed hardly
# depends on the batch. On CPU ranks the cores also share caches and memory bandwidth.
#
# ### A fair comparison
#
# Compare ranks of one core each with one process that computes with all these cores: its threads
# meet after every operation, ranks only in an all-reduce. (Never both at once: ranks whose library
# starts a thread for every core keep each other waiting, so `torchrun` sets `OMP_NUM_THREADS=1`.)

# %%
from bootcamp import machine, runs

cores = len(machine.cores())
cpu = {"device": "cpu", "steps": 6, "global_batch": 16 * cores, "quiet": True}
polite = launch("ddp", ranks=cores, **cpu)
threads = launch("cpu", cores_per_rank=cores, **cpu)
runs.table(polite, threads, caption="The same cores: a rank for each, one process with all")

# %% [markdown]
# ### A larger batch, and the learning rate
#
# The **linear scaling rule** (Goyal et al., 2017): when the batch is *k* times as large, multiply
# the learning rate by *k*. Where the gradient changes little, one step of *k* times the rate goes
# where *k* steps went. At the start it changes fast, so they ramp the rate from the base rate up to
# *k* times it: **warm-up** (of the rate; throughput leaves out a warm-up of its own). Here *k* = 8,
# and the warm-up takes a twentieth of the steps. Each point is a run of 15,360 samples, judged by
# its loss on held-out text.

# %%
from bootcamp.paths import SRC
from bootcamp_lessons.excerpts import parse_printed

sweep = launch(SRC / "snippets" / "learning_rates.py", ranks=2, device="cpu", quiet=True)
trainings = parse_printed(sweep)
plots.show(scaling.rate_sweep(trainings, alone))

# %%
best = scaling.find_best_rates(trainings)
print(guess_rate.score(best.rate_of_large, within=0))
print(guess_gap.score(best.share_closed))
claim.larger(
    "scaling_rate_grows",
    "The best rate for a batch of 256 is larger than that for a batch of 32.",
    best.rate_of_large,
    best.rate_of_base,
    kind="count",
    supported="The rule says 8 times. What was found, and does it make up for fewer steps?",
)

# %% [markdown]
# Look at the same rates with warm-up: does it help here? Do runs diverge at the largest rate, and
# does warm-up save them? It protects the first steps; a rate that is too large later stays too
# large. And three seeds are few: compare the scatter of one rate's seeds with the differences
# between rates before you trust the best one.
#
# The rule is a rule of thumb. Goyal et al. found it to hold for ResNet-50 up to batches of 8,192
# images, and to fail beyond. For Adam, theory suggests a factor of √*k* (Malladi et al., 2022). How
# large a useful batch is depends on the data and on how far the training has come: McCandlish et
# al. (2018) estimate it by the **gradient noise scale**, from the norm of a rank's own gradient and
# that of the average, both of which DDP has. So measure: loss against *samples*, and *seconds*.

# %% [markdown]
# ## Prove it
#
# The batch changes the training; the ranks do not. *N* ranks train what one process with the same
# batch does:

# %%
from bootcamp import check

check.prove("ddp", RANKS, model="mlp", device=DEVICE)[0]

# %% [markdown]
# ## Break it
#
# Somebody takes eight times the ranks to be done sooner. Each rank keeps its batch of 32 and the
# learning rate, and the script stops after the same samples. The throughput is eight times as high.
# And the model? The runs from above, averaged over their seeds:

# %%
from statistics import fmean

worse = [
    {"global batch": batch, "rate": 0.05, "held-out loss": fmean(row["held_out"] for row in same)}
    for batch in (32, 256)
    if (same := [row for row in trainings if (row["batch"], row["rate"]) == (batch, 0.05)])
]
assert worse[0]["held-out loss"] < worse[1]["held-out loss"]
Table(worse, "The same samples, the same rate")

# %% [markdown]
# <details><summary>What has happened, and what are the two ways to fix it?</summary>
#
# The same samples are an eighth of the optimizer steps, at the same rate. Either keep the global
# batch (strong scaling: the same training, less efficient), or keep the batch per rank, choose a
# new rate for the larger batch, as above, and check the held-out loss. A throughput alone is no
# result.
# </details>

# %% [markdown]
# ## Exercise
#
# ### First: the rate of a step
#
# Write the learning rate of Goyal et al. for step `step` (counted from 0): it rises linearly from
# `base_rate` at step 0 to `factor * base_rate` at step `warm_up`, and stays there. `warm_up` may be
# 0. The solution: `exercise.solution("scaled_rate")`.


# %%
def scaled_rate(step, base_rate, factor, warm_up):
    """The learning rate of this step: a ramp from the base rate to factor times it."""
    ...


from bootcamp import exercise

exercise.check("scaled_rate", scaled_rate)

# %% [markdown]
# ### Second: how many ranks?
#
# One process computes a step in `compute_seconds`. Several ranks divide that evenly, and have an
# overhead of `overhead_seconds`, the same for any number of them from two on. Write the smallest
# number of ranks whose step is at least `times` times as fast; 0 if no number of ranks is. The
# solution: `exercise.solution("ranks_for_speed_up")`.


# %%
def ranks_for_speed_up(compute_seconds, overhead_seconds, times):
    """The fewest ranks that finish a step at least `times` times as fast as one process."""
    ...


exercise.check("ranks_for_speed_up", ranks_for_speed_up)

# %% [markdown]
# ## When to use it and when not
#
# **Add ranks** while the efficiency is worth the devices, and the global batch is one that your
# training makes good use of. Raise the batch per rank first: that adds no overhead.
#
# **Do not** when a rank computes for a shorter time than the averaging takes: a small model, a
# small share of the batch, a slow network. Accumulate gradients, or stay with fewer devices.
#
# **To compare runs of your own:** `plots.scaling` draws their speed-up.
#
# ## Sources
#
# - Amdahl, *Validity of the Single Processor Approach to Achieving Large Scale Computing
#   Capabilities*, 1967. Gustafson, *Reevaluating Amdahl's Law*, 1988.
# - Goyal et al., *Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour*, 2017,
#   arXiv:1706.02677. The linear scaling rule and warm-up.
# - Malladi et al., *On the SDEs and Scaling Rules for Adaptive Gradient Algorithms*, 2022,
#   arXiv:2205.10287.
# - McCandlish et al., *An Empirical Model of Large-Batch Training*, 2018, arXiv:1812.06162.
# - Li et al., *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, VLDB 2020,
#   arXiv:2006.15704.
