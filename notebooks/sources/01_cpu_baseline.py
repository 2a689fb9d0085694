# %% [markdown]
# # 01 The CPU baseline: one step, and what it costs
#
# **30 minutes**, on any machine: this lesson uses the CPU everywhere.
#
# After this lesson you can read the training script from top to bottom, predict what a training
# step costs in arithmetic and in memory, read loss and throughput without fooling yourself, and
# recognise a forgotten `zero_grad`.

# %% [markdown]
# ## The question
#
# What does one training step do, what does it cost, and how would you notice that it is wrong?
# Every later lesson is held against the answers.
#
# The next cell gets ready: it starts to load PyTorch in the background.

# %%
from bootcamp import launch, warm_up

warm_up()

# %% [markdown]
# ## The idea
#
# A **model** is a function with many numbers in it, its **parameters**. Here it is a small GPT: it
# reads bytes of text and says, for each position, how likely each of the 256 possible next bytes
# is. Training goes in steps, and each step has the same parts:
#
# - **forward**: the model computes its predictions. On the way it keeps intermediate results, the
#   **activations**.
# - **loss**: one number that says how wrong the predictions are; here the mean cross-entropy.
# - **backward**: for each parameter, how the loss would change if the parameter grew a little. This
#   is the parameter's **gradient**. The backward needs the activations.
# - **optimizer**: changes each parameter a little against its gradient. **SGD** with momentum keeps
#   one more number for each parameter, a fading sum of its gradients. **AdamW** keeps two, running
#   means of the gradient and of its square, and divides one by the root of the other.
#
# The next cell draws it. Look at the lower row: what stays in memory, and from when on.

# %%
from bootcamp import plots
from bootcamp_lessons.diagrams import basics

plots.show(basics.training_step())

# %% [markdown]
# How large is the loss of a model that knows nothing? It gives each of the 256 bytes the same
# probability, and the cross-entropy is the logarithm of 256. The next cell computes it; the first
# loss of a run should lie near it.

# %% tags=["nbval-check-output"]
import math

print(f"A model that knows nothing has a loss of {math.log(256):.3f}.")

# %% [markdown]
# **The data** is the source code of Python's standard library, read as bytes. A **sample** is a
# window of it. The next cell shows one: what the model reads, and what it shall predict.

# %%
from bootcamp.train import data

corpus = data.Corpus(context=64)
inputs, targets = corpus[0]
print("inputs: ", bytes(inputs.tolist()))
print("targets:", bytes(targets.tolist()))
assert inputs[1:].tolist() == targets[:-1].tolist(), "a target is not the byte after its input"

# %% [markdown]
# The targets are the same bytes, one place further: at every position the next byte is asked for.
#
# Which samples are in which step? A global batch is a function of the seed and the step, and of
# nothing else. So one rank and many ranks train on the same samples in the same step. The next cell
# asks for the batch of step 7, once for one rank and once for two.

# %% tags=["nbval-check-output"]
from argparse import Namespace


def ids(rank, world, step=7):
    flags = Namespace(model="gpt", size="tiny", seed=0, global_batch=8)
    batches = data.Batches(flags, rank, world)
    batches(step)
    return batches.sample_ids


assert ids(0, world=1) == ids(0, world=2) + ids(1, world=2), "two ranks see other samples than one"
print("One rank and two ranks train on the same samples.")

# %% [markdown]
# The next cell draws these samples for one, two and four ranks. The numbers are the samples' ids.

# %%
plots.show(basics.batch_shares({n: [ids(rank, n) for rank in range(n)] for n in (1, 2, 4)}))

# %% [markdown]
# ## Predict
#
# Each parameter is a number of 4 bytes (float32), and so is each gradient. AdamW keeps two more
# numbers for each parameter. The next cell counts the parameters and asks you for the memory that
# these three take together. Write a number after `answer=` in place of `None`.

# %%
from bootcamp import predict
from bootcamp.train import models

flags = Namespace(model="gpt", size="tiny", seed=0, dtype="float32", global_batch=32)
parameters = sum(parameter.numel() for parameter in models.build(flags).parameters())
guess = predict(
    "cpu_baseline_state",
    f"{parameters:,} parameters: how many MB for parameters, gradients and AdamW's state?",
    unit="MB",
    answer=None,
)
guess

# %% [markdown]
# ## What changes
#
# Nothing yet: this is the script that all others begin with. The next cell shows it whole.

# %%
from bootcamp import family

print(family.find("cpu").read_text())

# %% [markdown]
# Five headings, the same in every script of the course:
#
# 1. **Processes.** One process: it is rank 0 of a world of 1. The names are here already, so that
#    the lines below need not change when there are more.
# 2. **Model.** Built with the seed, so that every run begins with the same parameters.
# 3. **Data.** This rank's share of every global batch, here all of it.
# 4. **Optimizer.** It gets the parameters that it shall change.
# 5. **Training loop.** The parts of the picture, one line each. `zero_grad()` comes first, because
#    `backward()` *adds* to the gradients that are there. What `with run.step(step):` encloses is
#    the step that the record times; `run.loss(loss.detach())` hands over the loss, without what
#    belongs to its backward.

# %% [markdown]
# ## Run it
#
# The next cell runs it for 20 steps. Look at the first loss: is it near the one computed above?

# %%
base = launch("cpu", steps=20, global_batch=32)

# %% [markdown]
# The next cell compares the first loss with the one of a model that knows nothing, and your
# prediction with the bytes that the record counted.

# %%
assert abs(base.losses[0] - math.log(256)) < 0.5, "the untrained model does not guess evenly"
print(f"First loss {base.losses[0]:.3f}, last loss {base.losses[-1]:.3f}")
counted = base.ranks[0]
kept = [counted[f"{kind}_bytes"] for kind in ("parameter", "gradient", "optimizer")]
guess.score(sum(kept) / 1e6)

# %% [markdown]
# 16 bytes for each parameter: 4 for itself, 4 for its gradient, 8 for AdamW's two numbers. Before
# any training the model's guesses are nearly even, but not quite: its random parameters prefer some
# bytes for no reason. So the first loss lies near that of an even guess, not on it.

# %% [markdown]
# ## Read the measurement
#
# ### Loss
#
# The next cell draws the loss of each step.

# %%
plots.show(plots.loss_curves(base))

# %% [markdown]
# The curve falls, but not at each step: every step is measured on other samples, and some are
# harder to predict. So a single step proves nothing; look at the trend, or compare runs at the same
# step.
#
# ### Time
#
# The next cell lists the time of the first steps beside the median of the later ones.

# %%
from bootcamp import Table

rows = [{"step": row["step"], "ms": 1e3 * row["seconds"]} for row in base.steps[:5]]
Table([*rows, {"step": "median after warm-up", "ms": 1e3 * base.seconds_per_step}])

# %% [markdown]
# The first step usually takes longer than the later ones: memory is asked for the first time, the
# optimizer creates its state, code is loaded on its first use. This is the **warm-up**. It says
# nothing about hours of training, so the course leaves the first steps out: three, or half of the
# steps where there are fewer than six.
#
# The others differ too, since a machine does other things meanwhile. So throughput is given as
# **median** (half of the steps were faster, half slower) with **quartiles** (half of the steps lie
# between them). One slow step moves a mean, but hardly a median. The next cell draws all three.

# %%
plots.show(plots.throughput(base))

# %% [markdown]
# ### Arithmetic
#
# A product of an (m × k) and a (k × n) matrix takes m·k·n multiplications and as many additions:
# 2·m·k·n **FLOP** (floating-point operations). For each token, a block of the GPT multiplies with
# 12·width² weights, and attention adds 4·context·width. Then the head scores the 256 bytes. The
# backward takes two products for each one of the forward: one for the gradient of the weights, one
# for that of the input. So the whole costs three times the forward. The next cell does this sum.

# %% tags=["nbval-check-output"]
from bootcamp.train.models import gpt

size = gpt.SIZES["tiny"]
layers, width, context = size["layers"], size["width"], size["context"]
forward_per_token = layers * (24 * width**2 + 4 * context * width) + 2 * width * 256
flops_per_sample = 3 * context * forward_per_token
assert flops_per_sample == models.flops_per_sample(flags), "the record counts something else"
print(f"{flops_per_sample / 1e6:.0f} million operations for each sample")

# %% [markdown]
# Operations per sample times samples per second is what the training **achieves**. Is it much? The
# yardstick is what this machine reaches with one large matrix product, also on one core: the
# **peak**. Your second prediction: what share of it does the training achieve?

# %%
guess_share = predict(
    "cpu_baseline_share",
    "What share of the peak of one core does the training above achieve?",
    unit="%",
    answer=None,
)
guess_share

# %% [markdown]
# The next cell measures the peak (once; the value is kept), draws both and scores your prediction.

# %%
from bootcamp.experiments import matmul_peak

peak_flops = matmul_peak.matmul_flops_per_second("cpu", "float32", cores=1)
plots.show(plots.achieved(base, peak_flops_per_second=peak_flops))
guess_share.score(100 * flops_per_sample * base.samples_per_second / peak_flops)

# %% [markdown]
# The share is below 100 % for good reasons. The matrices of this tiny model are small, so a core
# spends time on starting each product. And much of a step is no matrix product at all: norms,
# softmax, the optimizer. These move numbers through memory and count nothing in the formula.
#
# ### Memory
#
# Parameters, gradients and optimizer state depend on the model alone. Activations also depend on
# the batch: each token keeps its own. For a block these are 16 vectors of `width` numbers (input,
# norm, query, key, value, mixed values, input and norm of the MLP, and 4 + 4 for its wide layer)
# and a few single numbers. The next cell predicts all four kinds and holds them against the record.

# %%
tokens = base.config["global_batch"] * context
per_token = layers * (16 * width + size["heads"] + 4) + 2 * width + 2 + 256
formula = {
    "parameter": 4 * parameters,
    "gradient": 4 * parameters,
    "optimizer": 2 * 4 * parameters,
    "activation": 4 * tokens * per_token,
}
rows = [(kind, bytes_, counted[f"{kind}_bytes"]) for kind, bytes_ in formula.items()]
assert all(abs(found / said - 1) < 0.1 for _, said, found in rows), "the formula is off"
Table([{"bytes of": k, "by formula": said, "counted": found} for k, said, found in rows])

# %% [markdown]
# Formula and count agree but for little things, such as the batch itself and one counter that AdamW
# keeps for each tensor. Look at the sizes: activations are by far the largest here, since the model
# is tiny and the batch is not. The next cell draws them, with the peak of the whole process.

# %%
plots.show(plots.memory(base))

# %% [markdown]
# The process's peak is much larger than the four kinds together: Python and PyTorch's own libraries
# are in it. With a large model they no longer matter; the four kinds do.
#
# ### All cores
#
# A rank computes with one core, so that it can stand for one device. PyTorch can also use all cores
# in one process. Your third prediction: how much faster is that?

# %%
from bootcamp import machine

all_cores = len(machine.cores())
guess_cores = predict(
    "cpu_baseline_cores",
    f"One process with {all_cores} core(s) of this machine: how many times as fast as with one?",
    unit="times",
    answer=None,
)
guess_cores

# %% [markdown]
# The next cell runs the same training with all cores, and compares.

# %%
wide = launch("cpu", steps=20, global_batch=32, cores_per_rank=all_cores)
Table(
    [
        {"cores": run.config["cores_per_rank"], "samples/s": run.samples_per_second}
        for run in (base, wide)
    ],
    "One process, measured here",
)

# %% [markdown]
# The next cell scores your prediction.

# %%
guess_cores.score(wide.samples_per_second / base.samples_per_second)

# %% [markdown]
# Is it as many times faster as there are cores? Usually not: each small matrix product is cut into
# pieces for the cores, and they wait for each other at the end of it. On a machine that is busy
# with other things this can even be slower than one core. One process with many threads is one way
# to use the whole machine. One rank for each core is another, and lesson 04 measures it.

# %% [markdown]
# ## Prove it
#
# A baseline is worth something only if it gives the same result each time. The next cell runs it
# again with the same seed and once with another, and compares every digit of every loss and the
# parameters' **fingerprint** (eight random projections of all parameters, kept in the record).

# %%
again = launch("cpu", steps=20, global_batch=32, quiet=True)
other = launch("cpu", steps=20, global_batch=32, seed=1, quiet=True)
fingerprints = [run.ranks[0]["fingerprint_final"] for run in (base, again)]
assert again.losses == base.losses, "the same seed gave other losses"
assert fingerprints[0] == fingerprints[1], "the same seed gave other parameters"
assert other.losses != base.losses, "another seed gave the same run"
print("The same seed: the same run, digit by digit. Another seed: another run.")

# %% [markdown]
# The seed decides the initial parameters and the order of the samples, and with one core the
# arithmetic always happens in the same order. With several ranks that order changes, and the last
# digits with it. So later lessons compare with a small tolerance instead.

# %% [markdown]
# ## Break it
#
# Someone has changed one line of the script. It runs, it raises nothing, the loss falls. The next
# cell makes the broken script, runs it and draws it over the baseline.

# %%
from bootcamp import variant

broken = variant("cpu", "broken_loop", {"optimizer.zero_grad()": ""})
with_adamw = launch(broken, 1, device="cpu", steps=20, global_batch=32)
plots.show(plots.loss_curves(base, with_adamw))

# %% [markdown]
# Would you have noticed without the baseline beside it? Now the same broken script with SGD.

# %%
good_sgd = launch("cpu", steps=20, global_batch=32, optimizer="sgd")
with_sgd = launch(broken, 1, device="cpu", steps=20, global_batch=32, optimizer="sgd")
assert with_sgd.losses[-1] > 2 * good_sgd.losses[-1], "SGD hides the fault too"
plots.show(plots.loss_curves(good_sgd, with_sgd))

# %% [markdown]
# Which line is missing, and why does one optimizer hide what the other shows? Look at the cell that
# made the script, think, then open the answer.
#
# <details><summary>Answer</summary>
#
# `optimizer.zero_grad()` is missing. `backward()` adds to the gradients that are there, so each
# step uses the sum of *all* gradients since the start. The first update is still right: there was
# nothing to add to. So the losses of steps 0 and 1 are equal, and from step 2 on they differ.
#
# With SGD the steps grow with the sum: they become too long, overshoot, and the loss explodes.
# AdamW divides by the gradients' own size, so its steps keep their length however large the sum
# becomes. Only their direction is wrong, stuck in the past: it learns, but worse. So a falling
# curve is no proof, and this course proves every strategy with *both* optimizers.
# </details>

# %% [markdown]
# ## Exercise
#
# ### First: three lines are missing
#
# Write the heart of the training loop. The next cell writes a script from which three lines are
# taken out.

# %%
from bootcamp import exercise

print(exercise.start("training_loop"))

# %% [markdown]
# Edit the file, save it, and run the next cell. It runs your script with both optimizers and
# compares it with the baseline. `exercise.solution("training_loop")` shows the solution as a diff.

# %%
print(exercise.check("training_loop"))

# %% [markdown]
# ### Second: how long will it take?
#
# Before a large training somebody has to say how many days it needs. The section "Arithmetic" has
# what it takes. Count only the products with the weights of the model's matrices: how many
# operations does each weight cost for one token, forward and backward together? The device achieves
# a `share` of its peak, between 0 and 1. Write the function in place of the three dots and run the
# cell. The solution is one step away: `exercise.solution("training_days")`.


# %%
def training_days(weights, tokens, peak_flops_per_second, share):
    """Days that one device needs to train a model with so many weights on so many tokens.

    share: of the device's peak that the training achieves, between 0 and 1.
    """
    ...


print(exercise.check("training_days", training_days))

# %% [markdown]
# <details><summary>What such numbers look like</summary>
#
# 7 billion weights, a thousand billion tokens, and a GPU that achieves half of 989·10¹² operations
# in a second (the published peak of an H100 with 16-bit numbers): 983 days. On one GPU, that is.
# For that reason the rest of this course is about several.
# </details>

# %% [markdown]
# ## When to use it and when not
#
# - **Use it** to find out whether a model trains at all, to debug, and as the reference that a
#   faster way is held against. It is the simplest thing that can be right, and it repeats digit by
#   digit.
# - **Leave it** when a run takes longer than you can wait. Then a faster device (lesson 02) comes
#   before more devices (lesson 04): it changes less.
#
# ## Sources
#
# - Vaswani et al., *Attention Is All You Need*, 2017, arXiv:1706.03762; Radford et al., *Language
#   Models are Unsupervised Multitask Learners*, 2019 (GPT-2): the model.
# - Kingma and Ba, *Adam: A Method for Stochastic Optimization*, 2014, arXiv:1412.6980; Loshchilov
#   and Hutter, *Decoupled Weight Decay Regularization*, 2017, arXiv:1711.05101: AdamW.
# - Chowdhery et al., *PaLM*, 2022, arXiv:2204.02311, appendix B: how operations are counted here.
