# %% [markdown]
# # 01 The CPU baseline: one step, and what it costs
#
# **30 minutes**, on any machine: this lesson uses the CPU everywhere.
#
# After this lesson you can read the training script from top to bottom, predict what a training
# step costs in arithmetic and in memory, read loss and throughput without fooling yourself, and
# recognise a forgotten `zero_grad`.
#
# ## The question
#
# What does one training step do, what does it cost, and how would you notice that it is wrong?
# Every later lesson is measured against the answers.
#
# ## The idea
#
# A **model** is a function with many numbers in it, its **parameters**. Here a small GPT reads
# bytes of text and gives, for each position, the probability of each of the 256 possible next
# bytes. Training proceeds in steps, and each step has the same parts:
#
# - **Forward pass**: the model computes its predictions. On the way it keeps intermediate results,
#   the **activations**.
# - **Loss**: one number that says how wrong the predictions are; here the mean cross-entropy, in
#   natural logarithms.
# - **Backward pass**: for each parameter, how the loss would change if the parameter grew a little.
#   This is the parameter's **gradient**. The backward pass needs the activations.
# - **Optimizer**: changes each parameter a little against its gradient. **SGD** with momentum keeps
#   one more number for each parameter, a fading sum of its gradients. **AdamW** keeps two
#   **moments**, running means of the gradient and of its square, and divides one by the root of the
#   other.

# %%
from bootcamp import plots, warm_up
from bootcamp_lessons.diagrams import basics

warm_up()  # loads PyTorch in the background
plots.show(basics.training_step())

# %% [markdown]
# **The data** is the text and the code of this course, read as bytes. It is frozen, so training
# gives the same losses on every machine, up to rounding. A **sample** is a window of it. The
# targets are the same bytes, shifted by one: at every position the model has to predict the next
# byte.

# %%
from bootcamp.train import data

inputs, targets = data.Corpus(context=64)[0]
print("inputs: ", bytes(inputs.tolist()))
print("targets:", bytes(targets.tolist()))

# %% [markdown]
# A **global batch**, the samples of one step, is a function of the seed and the step, and of
# nothing else. So one rank and many ranks train on the same samples in the same step. Here are the
# ids of the samples of step 7, for one, two and four ranks.

# %%
from argparse import Namespace


def sample_ids(rank, world):
    batches = data.Batches(Namespace(model="gpt", size="tiny", seed=0, global_batch=8), rank, world)
    batches(7)
    return batches.sample_ids


plots.show(basics.batch_shares({n: [sample_ids(rank, n) for rank in range(n)] for n in (1, 2, 4)}))

# %% [markdown]
# ## Predict
#
# Parameters, gradients and activations are numbers of 4 bytes (float32).

# %%
from IPython.display import display

from bootcamp import predict
from bootcamp.train import models

flags = Namespace(model="gpt", size="tiny", seed=0, dtype="float32", global_batch=32)
parameters = sum(parameter.numel() for parameter in models.build(flags).parameters())
guess_state = predict(
    "cpu_baseline_state",
    f"{parameters:,} parameters: how many MB for parameters, gradients and AdamW's state?",
    unit="MB",
)
guess_activations = predict(
    "cpu_baseline_activations",
    "And for the activations of 32 samples of 64 bytes, in 6 blocks of width 64: how many MB?",
    unit="MB",
)
display(guess_state, guess_activations)

# %% [markdown]
# ## What changes
#
# Nothing yet: this is the script that all others start from.

# %%
from bootcamp import strategies

print(strategies.find("cpu").read_text())

# %% [markdown]
# Five headings, the same in every script of the course:
#
# 1. **Processes.** One process: it is rank 0 of a world of 1. The names are here already, so that
#    the lines below need not change when there are more.
# 2. **Model.** Built from the seed, so that every run begins with the same parameters.
# 3. **Data.** This rank's share of every global batch, here all of it.
# 4. **Optimizer.** It gets the parameters that it should change.
# 5. **Training loop.** `zero_grad()` comes first, because `backward()` *adds* to the gradients that
#    are there. `with run.step(step):` encloses what the record times.
#
# What is left is the course's: `config.parse` reads the flags, `run` writes the record, and
# `checkpoint` saves and resumes if a flag asks for it (lesson 07b); otherwise `first` is 0.
#
# ## Run it

# %%
import math

from bootcamp import launch

base = launch("cpu", steps=20, global_batch=32)
print(f"The first loss here: {base.losses[0]:.2f}; -ln(1/256) = {math.log(256):.2f}.")

# %% [markdown]
# An untrained model gives each of the 256 bytes about the same probability, 1/256, and the loss is
# about -ln(1/256) = 5.545. Here it is a little more, and that too can be calculated. The scores
# (**logits**) of the 256 bytes differ: weights of standard deviation 0.0693 over 64 normalised
# numbers spread them by *s* = 0.0693·√64 = 0.55, and a softmax over scores spread like this costs
# *s*²/2 = 0.15 more: 5.70 in all. (GPT-2's weights, 0.02 over 768 numbers, give the same spread: ln
# 50,257 + 0.15 = 10.98.) A first loss far from that points at a mistake: wrong targets, a wrong
# reduction, a bad initialisation.

# %%
from bootcamp import claim

rank = base.ranks[0]
state_bytes = sum(rank[f"{kind}_bytes"] for kind in ("parameter", "gradient", "optimizer"))
print(guess_state.score(state_bytes / 1e6))
claim.equal(
    "baseline_state_bytes",
    "In float32 with AdamW, each parameter takes 16 bytes: 4 + 4 for its gradient + 8 of state.",
    state_bytes,
    16 * parameters,
    within=1e-3,  # AdamW also counts its steps, once for each tensor
)

# %% [markdown]
# ## Read the measurement
#
# ### Loss and time

# %%
plots.show(plots.loss_curves(base))
plots.show(plots.throughput(base))

# %% [markdown]
# The loss falls, but not in every step: every step is measured on other samples, and some are
# harder to predict. So look at the trend, or compare runs at the same step.
#
# The first steps do work that later ones do not: memory is requested, the optimizer creates its
# state, code is loaded on its first use. This **warm-up** says nothing about hours of training, so
# the course leaves it out: three steps, or half of them where there are fewer than six. The others
# differ too. So throughput is given as a **median** (half of the steps were faster) and
# **quartiles** (half of the steps lie between them). One slow step hardly moves a median.
#
# ### Arithmetic
#
# A product of an (m × k) and a (k × n) matrix takes m·k·n multiplications and as many additions:
# 2·m·k·n **FLOP** (floating-point operations). For each token, a block of the GPT (an attention
# layer and an MLP) multiplies with 12·width² weights, and attention adds 4·context·width FLOP (a
# token here attends to half of the context on average; as in most papers the full square is
# counted). Then the head, the last layer, scores the 256 bytes. The backward pass takes two
# products for each one of the forward pass, one for the gradient of the weights and one for that of
# the input. So a step costs three times the forward pass.

# %% tags=["nbval-check-output"]
from bootcamp.train.models import gpt

size = gpt.SIZES["tiny"]
layers, width, context = size["layers"], size["width"], size["context"]
weights = layers * 12 * width**2 + width * 256
flops_per_token = 3 * (2 * weights + layers * 4 * context * width)
assert context * flops_per_token == models.flops_per_sample(flags), "the record counts otherwise"
print(f"{flops_per_token / 1e6:.2f} MFLOP a token, of which 6 a weight: {6 * weights / 1e6:.2f}")

# %% [markdown]
# **6·N·D** is the rule of thumb that follows: 6 FLOP for each of N weights and each of D tokens.
# It omits attention, which is about a sixth on top here and less in wide models with a short
# context.
#
# FLOP per sample times samples per second is what the training **achieves**. The yardstick is the
# device's **peak**; here it is what one core reaches with one large matrix product. Their ratio is
# called **MFU**, model FLOPs utilisation. (On GPUs the peak is that of the data sheet for the
# number format in use, so compare MFUs only if they mean the same peak.)

# %%
from bootcamp.experiments import roofline

peak_flops = roofline.matmul_flops_per_second("cpu", "float32", cores=1)
guess_mfu = predict(
    "cpu_baseline_share",
    f"One core reaches {peak_flops / 1e9:,.0f} GFLOP/s. The training did "
    f"{base.tokens_per_second:,.0f} tokens a second. What is its MFU?",
    unit="%",
)
guess_mfu

# %%
plots.show(plots.achieved(base, peak_flops_per_second=peak_flops))
guess_mfu.score(100 * base.achieved_flops_per_second / peak_flops)

# %% [markdown]
# What keeps it below 100 %: the matrices of this tiny model are small, so a core spends time on
# starting each product. And norms, softmax and the optimizer move numbers through memory, which
# takes time that the formula does not count.
#
# ### Memory
#
# Parameters, gradients and optimizer state depend on the model alone. Activations also depend on
# the batch: each token keeps its own. In a block these are 16 vectors of `width` numbers (input,
# norm, query, key, value, mixed values, input and norm of the MLP, and 4 + 4 for its wide layer)
# and a few single numbers. Attention is one fused operation here. Without that, its square of
# probabilities comes on top: Korthikanti et al. (2022) count 34·width + 5·heads·context bytes a
# token, in 16 bits and with dropout.

# %%
per_token = layers * (16 * width + size["heads"] + 4) + 2 * width + 2 + 256
plots.show(plots.memory(base))
print(guess_activations.score(rank["activation_bytes"] / 1e6))
claim.equal(
    "baseline_activation_bytes",
    "The formula gives the activations, up to a few percent for the batch and other small things.",
    rank["activation_bytes"],
    4 * base.config["global_batch"] * context * per_token,
    within=0.05,
)

# %% [markdown]
# Activations are most of it, since the model is tiny and the batch is not. The state dominates
# below about 3·width tokens a step.
#
# ## Prove it
#
# A baseline must be repeatable. The seed decides the initial parameters and the samples, and one
# core adds in the same order each time. The parameters are compared by their **fingerprint**: eight
# random projections of all parameters, kept in the record.

# %%
again = launch("cpu", steps=20, global_batch=32, quiet=True)
assert again.ranks[0]["fingerprint_final"] == rank["fingerprint_final"], "other parameters"
claim.equal(
    "baseline_repeats",
    "Run again with the same seed, no step has another loss: the runs agree digit by digit.",
    sum(one != two for one, two in zip(base.losses, again.losses, strict=True)),
    0,
    kind="count",
)

# %% [markdown]
# Several ranks add in another order, which changes the last digits. So later lessons compare with a
# small tolerance, 1e-5. It needs two things of the course's own: a gradient that is zero but for
# rounding must not move a parameter. So AdamW's `eps` is 1e-6 (with torch's 1e-8 two *correct* runs
# end up to 2e-5 apart), and attention has no biases, since a key's bias has such a gradient.
#
# ## Break it
#
# One line of the script is gone. It runs, it raises nothing. Would you notice without the baseline?

# %%
from bootcamp import variant

broken = variant("cpu", "broken_loop", {"optimizer.zero_grad()": ""})
with_adamw = launch(broken, 1, device="cpu", steps=20, global_batch=32, quiet=True)
plots.show(plots.loss_curves(base, with_adamw))

# %% [markdown]
# The same broken script with SGD:

# %%
sgd = {"steps": 20, "global_batch": 32, "optimizer": "sgd", "quiet": True}
good_sgd, with_sgd = launch("cpu", **sgd), launch(broken, 1, device="cpu", **sgd)
plots.show(plots.loss_curves(good_sgd, with_sgd))
claim.larger(
    "baseline_sgd_shows_the_fault",
    "With SGD, the broken script's last loss is more than twice the baseline's.",
    with_sgd.losses[-1],
    good_sgd.losses[-1],
    by=2,
    kind="count",
)

# %% [markdown]
# Why does one optimizer hide what the other shows? Think, then open the answer.
#
# <details><summary>Answer</summary>
#
# Without `optimizer.zero_grad()` each step uses the sum of *all* gradients since the start. The
# first update is still right, so the losses of steps 0 and 1 are equal; from step 2 on they differ.
#
# With SGD the updates grow with the sum: they overshoot, and the loss explodes. AdamW divides by
# the gradients' own size, so its updates keep their length however large the sum becomes. Only
# their direction is wrong. A falling curve is no proof, and so this course proves every strategy
# with *both* optimizers.
# </details>
#
# ## The loop of a real training (optional)
#
# **Clipping** scales down a gradient that is longer than a limit: after `backward()`, before
# `step()`. A **schedule** changes the learning rate after each optimizer step: a ramp while AdamW's
# means know little, then a decay. It counts steps, so it belongs in the checkpoint. This loop
# trains 256 samples twenty times: at once; saved half-way and resumed; and resumed with a new
# schedule.

# %%
from bootcamp_lessons.excerpts import SNIPPETS, parse_printed, piece

loop = SNIPPETS / "real_loop.py"
piece(loop, "loss.backward()", 'found["losses"]')

# %%
from bootcamp_lessons.labs import faster_step

at_once, resumed, forgotten = parse_printed(launch(loop, ranks=1, device="cpu", quiet=True))
assert at_once["losses"][-len(resumed["losses"]) :] == resumed["losses"], "resumed differently"
assert resumed["losses"] != forgotten["losses"], "the schedule made no difference"
faster_step.loop_table(at_once, resumed, forgotten)

# %% [markdown]
# With a new schedule the resumed run ramps up again, to the full rate, where it should decay. The
# **held-out loss**, on text that is never trained on, says what was learnt about text: keep the
# checkpoint with the lowest.

# %%
held_out = list(at_once["held_out"].values())
claim.larger(
    "baseline_held_out",
    "The held-out loss ends at twice its lowest or higher.",
    held_out[-1],
    min(held_out),
    by=2,
    kind="count",
)

# %% [markdown]
# ## Exercise
#
# ### First: SGD by hand
#
# A parameter begins at 0. `sgd(gradients, lr, momentum)` gets its gradient of each step, and
# returns a list: its value after each step. With momentum 0.9, nine tenths of the sum are left when
# the next gradient is added. How long do the steps become if all gradients are equal?

# %%
from bootcamp import exercise


def sgd(gradients, lr, momentum):
    # your turn: return a value for each step
    ...


print(exercise.check("sgd", sgd))

# %% [markdown]
# `exercise.solution("sgd")` shows a solution.
#
# ### Second: how long will it take?
#
# How many days does a training need on one device? Count the products with the weights of the
# model's matrices only. The device achieves a `share` of its peak, between 0 and 1. Write the
# function in place of the three dots. `exercise.solution("training_days")` shows the solution.


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
# 7 billion weights, a thousand billion tokens, and a GPU that achieves half of 989·10¹² FLOP/s (the
# published dense bf16 peak of an H100): 983 days. That is on one GPU; the rest of this course is
# about several.
# </details>
#
# ## When to use it and when not
#
# - **Use it** to find out whether a model trains at all, to debug, and as the reference for every
#   faster way. It is the simplest thing that can be right, and it repeats digit by digit.
# - **Leave it** when a run takes longer than you can wait. Then a faster device (lesson 02) comes
#   before more devices (lesson 04): it changes less.
#
# ## Sources
#
# - Vaswani et al., *Attention Is All You Need*, 2017, arXiv:1706.03762; Radford et al., *Language
#   Models are Unsupervised Multitask Learners*, 2019 (GPT-2): the model.
# - Kingma and Ba, *Adam: A Method for Stochastic Optimization*, 2014, arXiv:1412.6980; Loshchilov
#   and Hutter, *Decoupled Weight Decay Regularization*, 2017, arXiv:1711.05101: AdamW.
# - Kaplan et al., *Scaling Laws for Neural Language Models*, 2020, arXiv:2001.08361: 6·N·D.
# - Chowdhery et al., *PaLM*, 2022, arXiv:2204.02311, appendix B: MFU, and the count used here.
# - Korthikanti et al., *Reducing Activation Recomputation in Large Transformer Models*, 2022,
#   arXiv:2205.05198: bytes of activations.
# - Pascanu, Mikolov and Bengio, *On the difficulty of training recurrent neural networks*, 2012,
#   arXiv:1211.5063: clipping. Loshchilov and Hutter, *SGDR*, 2016, arXiv:1608.03983: cosine decay.
