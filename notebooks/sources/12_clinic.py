# %% [markdown]
# # 12 The clinic: broken programs
#
# **90 minutes** with three cases, on any machine, after lesson 04. Alone, at ten minutes each, the
# sixteen cases of the core take about three hours, all twenty-nine about five. Some lean on lessons
# 02b and 06c to 09. The ranks are CPU cores, even where there are GPUs.
#
# After this lesson you can tell from a symptom where to look first, read the stacks of ranks that
# wait for each other, fix mistakes that people copy from each other and prove each fix, and look up
# what an error of distributed training means.

# %% [markdown]
# ## The question
#
# Somebody brings you a program. It fails, or it hangs, or it runs and the numbers are wrong. You
# did not write it. What do you look at first?
#
# These are the patients: sixteen short programs, each with what its owner says about it.

# %%
from IPython.display import display

from bootcamp import Table, claim, clinic, errors, exercise, journal, predict, warm_up

warm_up()
clinic.list_cases()

# %% [markdown]
# ## The idea
#
# A distributed program fails in one of three ways.
#
# - **It raises.** Several ranks write errors, most of which only say that another rank is gone.
#   Look for the error that came *first*.
# - **It waits.** Some ranks are in a collective that others have not called. Ask every rank for its
#   **stack**, the list of calls that it is in: the launcher of this course does so after some
#   seconds without progress; elsewhere `py-spy dump` does. Then look for the line that differs.
# - **It ends, and is wrong.** Nothing points at the fault. You need something to compare with: the
#   same program on one rank, the ids of the samples, the parameters of two ranks.
#
# On GPUs a stack may mislead. A collective is only *queued* by the call, and the host goes on until
# it needs a result: the stack then shows a later `.item()` or `synchronize()`. There the **flight
# recorder** helps: torch keeps the last collectives of each rank, writes them down when NCCL times
# out (`TORCH_NCCL_DUMP_ON_TIMEOUT`, on by default), and `torchfrtrace`, installed with torch, says
# which rank missed which collective.
#
# The third way is the dangerous one. So the checks of this lesson never read your program. They run
# it and look at what it *does*: parameters and gradients of each rank, the samples it read, the
# files it wrote, and whether it came to its end.

# %% [markdown]
# ## Predict
#
# The first question is about `clipped_by_shard`: two ranks hold one shard of a gradient each, and
# scale it down until its norm is 0.5. The second is about `same_order`: 32 samples are dealt out to
# two ranks, in each of three epochs. The third is about `own_start`: each rank sets a seed of its
# own, and the gradients are averaged in each of ten steps.

# %%
guess_norm = predict(
    "clinic_norm",
    "clipped_by_shard: how large is the norm of the whole gradient then, in percent of 0.5?",
    unit="%",
)
guess_met = predict(
    "clinic_met",
    "same_order: how many different samples does rank 0 meet in three epochs?",
    unit="samples",
)
guess_apart = predict(
    "clinic_apart",
    "own_start: how far apart are the models at the end, compared with the start?",
    unit="%",
)
for guess in (guess_norm, guess_met, guess_apart):
    display(guess)

# %% [markdown]
# ## Run it
#
# All of them run, three at a time. (A program that stands still is given some seconds before the
# launcher ends it.) Which of the last column's lines tell you the cause?

# %%
clinic.run_all_cases()

# %% [markdown]
# ## The cases
#
# Each case has three cells.
#
# 1. `examine` writes the broken program to `notebooks/work/`, shows it, and runs *your* copy. (As
#    long as you have changed nothing, it shows the run from above.) Read the program first, then
#    what happened.
# 2. `diagnose` asks what is wrong. Give a letter after `answer=`. **Say what it is before you
#    change anything.**
# 3. Fix the file, save it, and `check` judges what your program does; once it is right, it says
#    where else the fault is met. Run `examine` again whenever you like;
#    `exercise.solution("clinic_...")`, with the case's name, shows a solution.
#
# In class, a pair takes three cases of different kinds, twenty minutes each. `deepspeed_copied` has
# four faults and counts for two.

# %% [markdown]
# ### It raises
#
# #### `no_address`: they never meet
#
# It is started by hand, twice, once for each rank, without what a launcher sets. Which word of the
# error helps?

# %%
clinic.examine("clinic_no_address")

# %%
clinic.diagnose("clinic_no_address", answer=None)

# %%
print(exercise.check("clinic_no_address"))

# %% [markdown]
# #### `moved_on_rank_0`: rank 1 fails
#
# On GPUs this is the line `if rank == 0: model.cuda()`. To show it on CPUs, the model is built on
# the **meta device**, which knows shapes and holds no numbers, and moved to the CPU. The mistake is
# the same; the text of the error is not. Which rank complains, and which is to blame?

# %%
clinic.examine("clinic_moved_on_rank_0")

# %%
clinic.diagnose("clinic_moved_on_rank_0", answer=None)

# %%
print(exercise.check("clinic_moved_on_rank_0"))

# %% [markdown]
# #### `wrapped_twice`: sharded and replicated
#
# Four ranks, hybrid sharding as in lesson 08. The error speaks of a "sharded dimension": of which
# tensor?

# %%
clinic.examine("clinic_wrapped_twice")

# %%
clinic.diagnose("clinic_wrapped_twice", answer=None)

# %%
print(exercise.check("clinic_wrapped_twice"))

# %% [markdown]
# #### `sometimes_unused`: the second step fails
#
# A part of this network takes part in some steps only. In which step does it fail, and of which
# step does the error speak?

# %%
clinic.examine("clinic_sometimes_unused")

# %%
clinic.diagnose("clinic_sometimes_unused", answer=None)

# %%
print(exercise.check("clinic_sometimes_unused"))

# %% [markdown]
# #### `saved_by_all`: a file that can't be read
#
# With a fast disk this nearly always goes well. So here `torch.save` is made slow, 0.3 s for a
# file, and rank 1 begins a little later than rank 0. What does a rank find when it reads?

# %%
clinic.examine("clinic_saved_by_all")

# %%
clinic.diagnose("clinic_saved_by_all", answer=None)

# %%
print(exercise.check("clinic_saved_by_all"))

# %% [markdown]
# #### `shard_saved`: a file that nobody can load
#
# Only rank 0 saves, as it should. The model is sharded (lesson 07).

# %%
clinic.examine("clinic_shard_saved")

# %%
clinic.diagnose("clinic_shard_saved", answer=None)

# %%
print(exercise.check("clinic_shard_saved"))

# %% [markdown]
# #### `own_loss`: each rank decides for itself
#
# This one raises too, but the ranks disagree. It runs on one rank, then on two. Which rank stopped,
# and which one complains?

# %%
clinic.examine("clinic_own_loss")

# %%
clinic.diagnose("clinic_own_loss", answer=None)

# %%
print(exercise.check("clinic_own_loss"))

# %% [markdown]
# #### `net_of_gpus`: the lines of an old slide
#
# Each rank trains a network that is cut over two GPUs. Two hosts of different size are simulated:
# the ranks are told their hosts and how many GPUs there are, and a GPU is the CPU under a number.
# Three things are wrong. The first two raise.

# %%
clinic.examine("clinic_net_of_gpus")

# %%
clinic.diagnose("clinic_net_of_gpus", answer=None)

# %%
print(exercise.check("clinic_net_of_gpus"))

# %% [markdown]
# #### `spawned_per_machine`: a loop over machines
#
# Many older programs start their ranks themselves, with `mp.spawn`. This one is for two machines.
# It takes the machine's number, and was started on machine 0. `check` starts it on both. (Both are
# this machine. The timeout is 5 s, not half an hour, so it raises in the end.)

# %%
clinic.examine("clinic_spawned_per_machine")

# %%
clinic.diagnose("clinic_spawned_per_machine", answer=None)

# %%
print(exercise.check("clinic_spawned_per_machine"))

# %% [markdown]
# ### It waits
#
# #### `evaluated_on_rank_0`: it stands still in the validation
#
# After some seconds the launcher asks each rank for its stack. Put the two lines side by side.

# %%
clinic.examine("clinic_evaluated_on_rank_0")

# %%
clinic.diagnose("clinic_evaluated_on_rank_0", answer=None)

# %%
print(exercise.check("clinic_evaluated_on_rank_0"))

# %% [markdown]
# ### It ends, and is wrong
#
# #### `same_order`: a saw-tooth
#
# The loss has a saw-tooth. Look at the ids of the samples, line by line.

# %%
clinic.examine("clinic_same_order")

# %%
clinic.diagnose("clinic_same_order", answer=None)

# %%
print(exercise.check("clinic_same_order"))

# %% [markdown]
# In the program as it came in, the sampler deals out the same half in each epoch:

# %%
met = {number for epoch in clinic.observe("clinic_same_order")[0]["seen"] for number in epoch}
print(guess_met.score(len(met), within=0))
claim.equal(
    "clinic_half_of_the_data",
    "Without set_epoch, each of two ranks meets half of the 32 samples, however many epochs.",
    len(met),
    16,
    kind="count",
)

# %% [markdown]
# #### `summed`: better with more ranks
#
# It runs on one, two and four ranks, with the same global batch. What should the three losses be?

# %%
clinic.examine("clinic_summed")

# %%
clinic.diagnose("clinic_summed", answer=None)

# %%
print(exercise.check("clinic_summed"))

# %% [markdown]
# #### `clipped_by_shard`: another loss for each number of ranks
#
# Each rank of a sharded model clips what it holds. It runs on one rank and on two: compare the
# norms.

# %%
clinic.examine("clinic_clipped_by_shard")

# %%
clinic.diagnose("clinic_clipped_by_shard", answer=None)

# %%
print(exercise.check("clinic_clipped_by_shard"))

# %%
import math

gradient = clinic.observe("clinic_clipped_by_shard")[0]["gradients"]  # as it came in, both shards
guess_norm.score(100 * math.hypot(*gradient) / 0.5)

# %% [markdown]
# #### `own_start`: two models
#
# The noise must differ between the ranks, the model must not. The last line of each rank gives the
# norm of all its parameters. Is it the same on both?

# %%
clinic.examine("clinic_own_start")

# %%
clinic.diagnose("clinic_own_start", answer=None)

# %%
print(exercise.check("clinic_own_start"))

# %% [markdown]
# How far apart are the two models in the program as it came in?

# %%
first, second = clinic.observe("clinic_own_start")  # what was seen of either rank
start, end = (math.dist(first[when], second[when]) for when in ("at_first", "parameters"))
print(guess_apart.score(100 * end / start))
claim.equal(
    "clinic_apart_for_ever",
    "Averaged gradients leave the distance of two models as it was.",
    end,
    start,
    within=0.01,
    kind="count",
)

# %% [markdown]
# #### `drawn_anew`: a validation loss too good to be true
#
# The sampler shares out positions, and nothing is wrong with those. Compare what the ranks validate
# with.

# %%
clinic.examine("clinic_drawn_anew")

# %%
clinic.diagnose("clinic_drawn_anew", answer=None)

# %%
print(exercise.check("clinic_drawn_anew"))

# %% [markdown]
# ### All of these at once
#
# #### `deepspeed_copied`: four faults
#
# One raises at once, one in the first step, one makes the ranks wait, one says nothing. Fix one,
# then `check`: it names the next. (Needs DeepSpeed, lesson 07c.)

# %%
clinic.examine("clinic_deepspeed_copied")

# %%
clinic.diagnose("clinic_deepspeed_copied", answer=None)

# %%
print(exercise.check("clinic_deepspeed_copied"))

# %% [markdown]
# ### More that wait (optional)
#
# Thirteen more programs for those who want them. Each has one cell: run it again for each of the
# three steps.
#
# #### `own_part_first`: who sends first
#
# Each rank keeps the optimizer's state of its own parameters only, as ZeRO-1 does, and sends what
# it has updated. Both ranks stand in one line. In one collective?


# %%
def patient(name, answer):
    display(clinic.examine(name), clinic.diagnose(name, answer))


patient("clinic_own_part_first", answer=None)
print(exercise.check("clinic_own_part_first"))

# %% [markdown]
# #### `one_batch_more`: after a year
#
# Compare the two lines, then count.

# %%
patient("clinic_one_batch_more", answer=None)
print(exercise.check("clinic_one_batch_more"))

# %% [markdown]
# #### `gathered_on_rank_0`: one rank saves
#
# Which of the two lines is a collective?

# %%
patient("clinic_gathered_on_rank_0", answer=None)
print(exercise.check("clinic_gathered_on_rank_0"))

# %% [markdown]
# #### `forked_late`: before the first batch
#
# Neither line is a collective. Who are the ranks waiting for, and what is that process doing?

# %%
patient("clinic_forked_late", answer=None)
print(exercise.check("clinic_forked_late"))

# %% [markdown]
# ### More that end, and are wrong (optional)
#
# #### `built_early`: a loss that stands still
#
# Look at all digits of the loss.

# %%
patient("clinic_built_early", answer=None)
print(exercise.check("clinic_built_early"))

# %% [markdown]
# #### `own_count`: texts of different length
#
# The loss of all tokens is printed, on one rank and on two, and should be the same.

# %%
patient("clinic_own_count", answer=None)
print(exercise.check("clinic_own_count"))

# %% [markdown]
# #### `streamed`: no gain from ranks
#
# Look at the samples that begin rank 0's epoch.

# %%
patient("clinic_streamed", answer=None)
print(exercise.check("clinic_streamed"))

# %% [markdown]
# #### `read_again`: resumed at the right step
#
# Compare the samples of the two jobs.

# %%
patient("clinic_read_again", answer=None)
print(exercise.check("clinic_read_again"))

# %% [markdown]
# ### Curves that look right (optional)
#
# Five more. Their owners trust the curve. (The last one's is right until it hangs.) What finds each
# fault is an **instrument**.

# %% [markdown]
# #### `sharded_over_all`: less memory than promised
#
# Pairs of ranks halve each matrix, then FSDP shards. Over which ranks?

# %%
patient("clinic_sharded_over_all", answer=None)
print(exercise.check("clinic_sharded_over_all"))

# %% [markdown]
# #### `partial_as_whole`: a label
#
# What does `redistribute` do, given these two labels?

# %%
patient("clinic_partial_as_whole", answer=None)
print(exercise.check("clinic_partial_as_whole"))

# %% [markdown]
# #### `router_divided`: a constant factor
#
# Who divides which gradient?

# %%
patient("clinic_router_divided", answer=None)
print(exercise.check("clinic_router_divided"))

# %% [markdown]
# #### `policy_of_the_root`: sixteen bits for nothing
#
# Two lines have a `fully_shard`. Which one has the parameters?

# %%
patient("clinic_policy_of_the_root", answer=None)
print(exercise.check("clinic_policy_of_the_root"))

# %% [markdown]
# #### `expert_without_rows`: the eighth step
#
# Its curve is right until it stands still. One line, two collectives: which ones?

# %%
patient("clinic_expert_without_rows", answer=None)
print(exercise.check("clinic_expert_without_rows"))

# %% [markdown]
# The four that end, and `silent_divided` of lesson 08c: the table compares the curve with the fixed
# program's, and that with another seed's.

# %%
from bootcamp_lessons.labs import silent_bugs

INSTRUMENTS = {
    "sharded_over_all": ("memory: numbers held by a rank", lambda ranks: ranks[0]["held"]),
    "partial_as_whole": (
        "fingerprint: two copies of the head apart",
        lambda ranks: math.dist(*(rank["parameters"][-9:] for rank in ranks)),  # the head's
    ),
    "router_divided": (
        "gradients: the router's norm",
        lambda ranks: math.hypot(*ranks[0]["gradients"][:36]),  # the router's
    ),
    "policy_of_the_root": ("bytes gathered", lambda ranks: ranks[0]["gathered"]),
}
rows = []
for name, (instrument, read) in INSTRUMENTS.items():
    seen = clinic.observe_three(f"clinic_{name}")  # as it came in, fixed, with another seed
    curves = [ranks[0]["losses"] for ranks in seen]
    rows.append(silent_bugs.compare_three(name, curves, instrument, map(read, seen)))
rows.append(silent_bugs.prove_three("silent_divided"))
hang = {"bug": "expert_without_rows", "instrument": "stacks: two collectives"}
display(Table([*rows, hang], "Losses, and what an instrument reads"))
worst = max(rows, key=lambda row: row["curves apart"] / row["another seed"])
claim.larger(
    "clinic_curves_look_right",
    "All five curves are nearer to the right one than that is to itself with another seed.",
    worst["another seed"],
    worst["curves apart"],
    kind="count",
)

# %% [markdown]
# ## Which error means what
#
# People paste the end of all ranks' output. One rank shows the cause, the others report that a rank
# is gone, and the launcher reports it once more. `errors.explain` names the cause, whatever
# surrounds it. After a cell has failed, `errors.explain()` takes that error. If the index does not
# know an error, it says so, and names what to look at.

# %%
display(errors.explain("RuntimeError: the flux capacitor is not aligned"))
errors.explain(
    """[rank0]: RuntimeError: one of the variables needed for gradient computation has been modified
[rank0]: by an inplace operation: [torch.FloatTensor [64]] is at version 3; expected version 2
[rank1]: RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.7]:4421
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
train.py FAILED
"""
)

# %% [markdown]
# Without rank 0's lines only the echo is left, and the index says that this rank is not to blame.

# %%
errors.explain("[rank1]: RuntimeError: ... pair.cc:553] Connection closed by peer [10.0.0.7]:4421")

# %% [markdown]
# The index counts its errors by the layer of software that reports them. *Recorded* are those that
# this course has provoked, so that their text is the real one. Type words such as *optimizer*,
# *NCCL* or *lesson 08*, or paste an error, and press Enter.

# %%
controls = errors.index()

# %% [markdown]
# ## Exercise
#
# The cases are the exercises. What is still to solve?

# %%
Table([row for row in journal.progress() if row["lesson"].startswith("12")], "What you have done")

# %% [markdown]
# One more, without a checker: **break one yourself**. Take a program that works, such as
# `_train_ddp.py`, change one line so that nothing fails and the result is wrong, and give it to
# somebody else. What would have found it?
#
# ## When to use it and when not
#
# - **It raises:** read the first error by time, then look it up. The same error may have another
#   cause in your program.
# - **It waits:** stacks of all ranks (on GPUs, the flight recorder too), and a timeout that you
#   chose. Do not begin by making the timeout longer.
# - **It ends:** one rank against several, with SGD, at the same global batch; the ids of the
#   samples; the parameters of two ranks. Do this once for each new program, *before* it seems to be
#   wrong.
# - **Change one thing at a time**, and predict what the change will do. A fault that went away
#   without an explanation comes back.
# - **Do not copy a fix.** `find_unused_parameters=True`, a longer timeout, a barrier here and
#   there: each of them silences an error that may have been right.
#
# ## Sources
#
# - PyTorch documentation: *DistributedDataParallel*, *Distributed communication package*,
#   *torch.utils.data* (DistributedSampler), *torch.distributed.fsdp*,
#   *torch.distributed.checkpoint.state_dict*; tutorial *Flight Recorder for Debugging Stuck Jobs*.
# - PyTorch source, `torch/nn/parallel/distributed.py`: what the forward pass of DDP sends.
# - S. Li et al.: *PyTorch Distributed: Experiences on Accelerating Data Parallel Training.* VLDB
#   2020, arXiv:2006.15704.
# - The errors of the index: recorded; its caption names torch and machine.
