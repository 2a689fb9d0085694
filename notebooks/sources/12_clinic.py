# %% [markdown]
# # 12 The clinic: twelve broken programs
#
# **90 minutes**, on any machine, after lesson 04. Some cases lean on lessons 02, 07b and 08. The
# ranks are CPU cores, even where there are GPUs.
#
# After this lesson you can tell from a symptom where to look first; read the stacks of ranks that
# wait for each other; mend twelve mistakes that people copy from each other, and prove that they
# are mended; and look up what an error of distributed training means.

# %% [markdown]
# ## The question
#
# Somebody brings you a program of theirs. It fails, or it stands still, or it runs and the numbers
# are wrong. You did not write it. What do you look at first?
#
# The next cell starts to load PyTorch in the background, and lists the patients: twelve short
# programs, each with what its owner says about it.

# %%
from bootcamp import Table, clinic, exercise, warm_up

warm_up()
clinic.waiting_room()

# %% [markdown]
# ## The idea
#
# A distributed program fails in one of three ways.
#
# - **It raises.** Several ranks write errors, and most of them only tell that another rank is gone.
#   Look for the error that came *first*. Torch's own text often names the cause in its first or its
#   last sentence.
# - **It waits.** Some ranks stand in a collective that others have not called: those are in another
#   one, or have gone on without it. Ask every rank for its **stack**, the list of calls that it is
#   in. The launcher of this course does so after some seconds without progress; elsewhere `py-spy
#   dump` does it. Then look for the line of the script that differs.
# - **It ends, and is wrong.** Nothing points at the fault. You need something to hold it against:
#   the same program on one rank, the numbers of the samples, the parameters of two ranks side by
#   side.
#
# The third way is the dangerous one. So the checks of this lesson never read your program. They run
# it and look at what it *does*: the parameters and gradients of each rank, which samples it read,
# which files it wrote, and whether it came to its end.
#
# Two words before we begin. A **collective** is a call in which all ranks take part, such as an
# all-reduce, a broadcast or a barrier. **gloo** is the library with which CPU ranks talk.

# %% [markdown]
# ## Predict
#
# Three predictions. The next cell asks for the first: how many of the twelve are of the third kind?

# %%
from bootcamp import predict

guess_silent = predict(
    "clinic_silent",
    "Of the twelve broken programs, how many end by themselves, without an error?",
    unit="programs",
    answer=None,
)
guess_silent

# %% [markdown]
# The second is about `same_order`, whose loss has a saw-tooth. 32 samples are shared out to two
# ranks, in each of three epochs. The next cell asks what rank 0 gets to see.

# %%
guess_met = predict(
    "clinic_met",
    "How many different samples does rank 0 meet in three epochs?",
    unit="samples",
    answer=None,
)
guess_met

# %% [markdown]
# The third is about `own_start`. Each rank has a seed of its own, and the gradients are averaged in
# each of ten steps. The next cell asks what that does to the distance between the two models.

# %%
guess_apart = predict(
    "clinic_apart",
    "How far apart are the models at the end, in percent of their distance at the start?",
    unit="%",
    answer=None,
)
guess_apart

# %% [markdown]
# ## Run it
#
# The next cell runs all twelve, a few at a time, and notes how each one ends. (It takes some
# seconds: a program that stands still is given eight before the launcher ends it.) Read the last
# column as you would read a report from somebody else: which of these lines tell you the cause?

# %%
found = clinic.ward_round()
found

# %% [markdown]
# The next cell scores your first prediction.

# %%
guess_silent.score(found.column("ended").count("by itself"), within=0)

# %% [markdown]
# ## The cases
#
# Each case has four cells. The first writes the broken program to `notebooks/work/` and shows it.
# The second runs *your* copy and shows what happens. The third asks for your diagnosis: give a
# letter after `answer=`. **Say what it is before you change anything.** Then mend the file, save
# it, and run the fourth cell, which judges what your program does. `exercise.solution("...")` shows
# a solution.
#
# The order is that of the three ways: first those that raise, then those that wait, then those that
# are silent.

# %% [markdown]
# ### It raises
#
# #### `no_address`: they never meet
#
# The first program is started by hand, twice, once for each rank. The next cell writes and shows
# it.

# %%
print(exercise.start("clinic_no_address"))
clinic.show("clinic_no_address")

# %% [markdown]
# The next cell starts both processes as `python` would, without what a launcher sets. Which word of
# the error helps?

# %%
clinic.examine("clinic_no_address")

# %% [markdown]
# The next cell asks for your diagnosis.

# %%
clinic.diagnose("clinic_no_address", answer=None)

# %% [markdown]
# Mend the file and save it. The next cell runs it and says what it did.

# %%
print(exercise.check("clinic_no_address"))

# %% [markdown]
# <details><summary>When it is mended</summary>
#
# The name `env://` in the error means that torch looks into the **environment**, the variables that
# each process inherits. torchrun sets all of them, and so does `launch`. By hand they are yours:
# the same address and port on every rank, and a port that is free. On several hosts it is the
# address of the host of rank 0, not `127.0.0.1`.
# </details>

# %% [markdown]
# #### `super_net`: it fails before training
#
# One process, no collective. But no network, no training. The next cell shows the program.

# %%
print(exercise.start("clinic_super_net"))
clinic.show("clinic_super_net")

# %% [markdown]
# The next cell runs it. Compare the error with the line that it names.

# %%
clinic.examine("clinic_super_net")

# %% [markdown]
# The next cell asks for your diagnosis.

# %%
clinic.diagnose("clinic_super_net", answer=None)

# %% [markdown]
# Mend the file and save it. The next cell runs it and says what it did.

# %%
print(exercise.check("clinic_super_net"))

# %% [markdown]
# <details><summary>When it is mended</summary>
#
# `super()` finds the class and the object by itself, so nothing can go wrong when a class is
# renamed. The two older spellings, `super(Net, self).__init__()` and `nn.Module.__init__(self)`,
# are right too. Mixed, they are not.
# </details>

# %% [markdown]
# #### `moved_on_rank_0`: rank 1 fails
#
# On a machine with GPUs this is the line `if rank == 0: model.cuda()`. To show it on a machine
# without one, the program uses another pair of places: the model is made on the **meta device**,
# which knows shapes and holds no numbers, and is moved to the CPU. The mistake is the same, a move
# under a condition; the text of the error is not. (There it reads "Expected all tensors to be on
# the same device", or NCCL says that it has no backend for the CPU.) The next cell shows the
# program.

# %%
print(exercise.start("clinic_moved_on_rank_0"))
clinic.show("clinic_moved_on_rank_0")

# %% [markdown]
# The next cell runs it on two ranks. Which rank complains, and which is to blame?

# %%
clinic.examine("clinic_moved_on_rank_0")

# %% [markdown]
# The next cell asks for your diagnosis.

# %%
clinic.diagnose("clinic_moved_on_rank_0", answer=None)

# %% [markdown]
# Mend the file and save it. The next cell runs it and says what it did.

# %%
print(exercise.check("clinic_moved_on_rank_0"))

# %% [markdown]
# <details><summary>When it is mended</summary>
#
# The rank that complains is the one that was forgotten. DDP compares the shapes on all ranks, then
# copies rank 0's numbers *into* the tensors of the others. It makes no tensors and moves none.
# Whatever builds or moves a model belongs on every rank; loading a file can be for rank 0 alone.
# </details>

# %% [markdown]
# #### `wrapped_twice`: sharded and replicated
#
# Lesson 08 had the idea and its failure. Here is it again, in few lines, for you to mend. The next
# cell shows it.

# %%
print(exercise.start("clinic_wrapped_twice"))
clinic.show("clinic_wrapped_twice")

# %% [markdown]
# The next cell runs it on four ranks. The error speaks of a "sharded dimension": of which tensor?

# %%
clinic.examine("clinic_wrapped_twice")

# %% [markdown]
# The next cell asks for your diagnosis.

# %%
clinic.diagnose("clinic_wrapped_twice", answer=None)

# %% [markdown]
# Mend the file and save it. The next cell runs it and says what it did.

# %%
print(exercise.check("clinic_wrapped_twice"))

# %% [markdown]
# <details><summary>When it is mended</summary>
#
# `fully_shard` with a mesh of two axes does both. The check looks at the parameters that each rank
# holds, since a program without any sharding trains just as well.
# </details>

# %% [markdown]
# #### `sometimes_unused`: the second step fails
#
# A part of this network takes part in some steps only. The next cell shows it.

# %%
print(exercise.start("clinic_sometimes_unused"))
clinic.show("clinic_sometimes_unused")

# %% [markdown]
# The next cell runs it. In which step does it fail, and of which step does the error speak?

# %%
clinic.examine("clinic_sometimes_unused")

# %% [markdown]
# The next cell asks for your diagnosis.

# %%
clinic.diagnose("clinic_sometimes_unused", answer=None)

# %% [markdown]
# Mend the file and save it. The next cell runs it and says what it did.

# %%
print(exercise.check("clinic_sometimes_unused"))

# %% [markdown]
# <details><summary>When it is mended</summary>
#
# The fault is in the first step, the error comes in the second, when DDP notices that the first was
# never finished. `find_unused_parameters=True` makes DDP walk through the graph before each
# backward, which costs time. So use it where it is needed. Lesson 04b measures what it costs.
# </details>

# %% [markdown]
# #### `apex_amp`: a tutorial of 2019
#
# Apex is a collection by NVIDIA, from the time before PyTorch had mixed precision. It is not
# installed here. (If it is on your machine, you will see another error.) The next cell shows the
# program.

# %%
print(exercise.start("clinic_apex_amp"))
clinic.show("clinic_apex_amp")

# %% [markdown]
# The next cell runs it. At which line does it end?

# %%
clinic.examine("clinic_apex_amp")

# %% [markdown]
# The next cell asks for your diagnosis.

# %%
clinic.diagnose("clinic_apex_amp", answer=None)

# %% [markdown]
# Mend the file and save it. The next cell runs it and says what it did.

# %%
print(exercise.check("clinic_apex_amp"))

# %% [markdown]
# <details><summary>When it is mended</summary>
#
# In bfloat16 numbers have the range of float32, so the loss need not be scaled. With float16 on a
# GPU, add `torch.amp.GradScaler`. Lesson 02 shows what happens without it.
# </details>

# %% [markdown]
# #### `saved_by_all`: a file that can't be read
#
# The file is sometimes good and sometimes not. The next cell shows the program.

# %%
print(exercise.start("clinic_saved_by_all"))
clinic.show("clinic_saved_by_all")

# %% [markdown]
# With a fast disk this goes well nearly always. So the next cell makes `torch.save` slow, 0.3 s for
# a file, and lets rank 1 begin a little later than rank 0. Nothing else is changed. What does a
# rank find when it reads?

# %%
clinic.examine("clinic_saved_by_all")

# %% [markdown]
# The next cell asks for your diagnosis.

# %%
clinic.diagnose("clinic_saved_by_all", answer=None)

# %% [markdown]
# Mend the file and save it. The next cell runs it and says what it did.

# %%
print(exercise.check("clinic_saved_by_all"))

# %% [markdown]
# <details><summary>When it is mended</summary>
#
# Two things were wrong: who writes, and when the others read. A barrier after the save answers the
# second. What is left is a kill in the middle of a save, and lesson 07b has the cure: write to
# another name, then rename.
# </details>

# %% [markdown]
# #### `own_loss`: a decision of one's own
#
# This one raises too, but the cause is of the second kind: the ranks do not agree. The next cell
# shows the program.

# %%
print(exercise.start("clinic_own_loss"))
clinic.show("clinic_own_loss")

# %% [markdown]
# The next cell runs it on one rank, then on two. Which rank stopped, and which one complains?

# %%
clinic.examine("clinic_own_loss")

# %% [markdown]
# The next cell asks for your diagnosis.

# %%
clinic.diagnose("clinic_own_loss", answer=None)

# %% [markdown]
# Mend the file and save it. The next cell runs it and says what it did.

# %%
print(exercise.check("clinic_own_loss"))

# %% [markdown]
# <details><summary>When it is mended</summary>
#
# The same holds for every decision: early stopping, skipping a batch with a NaN, the choice of the
# best checkpoint. Make the number that decides the same on all ranks, then decide.
# </details>

# %% [markdown]
# ### It waits
#
# #### `evaluated_on_rank_0`: it stands still in the validation
#
# Training is over, and the program does not end. The next cell shows it.

# %%
print(exercise.start("clinic_evaluated_on_rank_0"))
clinic.show("clinic_evaluated_on_rank_0")

# %% [markdown]
# The next cell runs it, and after eight seconds the launcher asks each rank for its stack. Put the
# two lines side by side.

# %%
clinic.examine("clinic_evaluated_on_rank_0")

# %% [markdown]
# The next cell asks for your diagnosis.

# %%
clinic.diagnose("clinic_evaluated_on_rank_0", answer=None)

# %% [markdown]
# Mend the file and save it. The next cell runs it and says what it did.

# %%
print(exercise.check("clinic_evaluated_on_rank_0"))

# %% [markdown]
# <details><summary>When it is mended</summary>
#
# Any call of the *wrapped* model may talk. With buffers, as BatchNorm has them, its forward does so
# even in evaluation. `model.module` is the model without the wrapper. For much validation data, let
# all ranks evaluate a share and average the results: nobody waits, and it is faster.
# </details>

# %% [markdown]
# ### It ends, and is wrong
#
# #### `same_order`: a saw-tooth
#
# The loss has a saw-tooth. The next cell shows how the data is read.

# %%
print(exercise.start("clinic_same_order"))
clinic.show("clinic_same_order")

# %% [markdown]
# The next cell runs it. Look at the numbers of the samples, line by line.

# %%
clinic.examine("clinic_same_order")

# %% [markdown]
# The next cell asks for your diagnosis.

# %%
clinic.diagnose("clinic_same_order", answer=None)

# %% [markdown]
# Mend the file and save it. The next cell runs it and says what it did.

# %%
print(exercise.check("clinic_same_order"))

# %% [markdown]
# <details><summary>When it is mended</summary>
#
# Nothing but the numbers of the samples shows it. So let a new program print them, once.
# </details>

# %% [markdown]
# The next cell counts the samples that rank 0 met, in the program as it came in, and scores your
# second prediction.

# %%
met = {number for epoch in clinic.observe("clinic_same_order")[0]["seen"] for number in epoch}
assert len(met) == 16, "rank 0 met other samples in another epoch"
guess_met.score(len(met))

# %% [markdown]
# #### `summed`: better with more ranks
#
# This one looks like a success. The next cell shows the program.

# %%
print(exercise.start("clinic_summed"))
clinic.show("clinic_summed")

# %% [markdown]
# The next cell runs it on one, two and four ranks. The global batch is the same in all three. What
# should the three losses be?

# %%
clinic.examine("clinic_summed")

# %% [markdown]
# The next cell asks for your diagnosis.

# %%
clinic.diagnose("clinic_summed", answer=None)

# %% [markdown]
# Mend the file and save it. The next cell runs it and says what it did.

# %%
print(exercise.check("clinic_summed"))

# %% [markdown]
# <details><summary>When it is mended</summary>
#
# The three losses should be equal. That is the strongest test there is: one rank and several, the
# same samples, the same result. A program that gets *better* with more ranks, at the same global
# batch, is as suspicious as one that gets worse. Use SGD for the test: AdamW divides by the size of
# the gradient, and hides the mistake.
# </details>

# %% [markdown]
# #### `own_start`: the ranks drift apart
#
# The noise must differ between the ranks, the model must not. The next cell shows the program.

# %%
print(exercise.start("clinic_own_start"))
clinic.show("clinic_own_start")

# %% [markdown]
# The next cell runs it. The last line of each rank gives the norm of all its parameters (the root
# of the sum of their squares). Is it the same on both?

# %%
clinic.examine("clinic_own_start")

# %% [markdown]
# The next cell asks for your diagnosis.

# %%
clinic.diagnose("clinic_own_start", answer=None)

# %% [markdown]
# Mend the file and save it. The next cell runs it and says what it did.

# %%
print(exercise.check("clinic_own_start"))

# %% [markdown]
# <details><summary>When it is mended</summary>
#
# Averaging gradients keeps ranks together that are together. It never brings them together. DDP
# copies rank 0's parameters to all when it wraps; by hand it is the first thing to do.
# </details>

# %% [markdown]
# The next cell computes the distance of the two models at the first forward and at the end, in the
# program as it came in, and scores your third prediction.

# %%
import math

ranks = clinic.observe("clinic_own_start")
start, end = (
    math.dist(ranks[0][moment], ranks[1][moment]) for moment in ("at_first", "parameters")
)
assert abs(end / start - 1) < 0.01, "the models came nearer to each other"
print(f"{start:.3f} apart at the start, {end:.3f} at the end.")
guess_apart.score(100 * end / start)

# %% [markdown]
# ## Which error means what
#
# The course provokes many errors on purpose. Each was run once, and the end of its text was written
# down, with the version of torch. What it means stands beside it. `errors.explain` finds the entry
# of a text that you paste, whatever stands around it. The next cell tries it with an error from a
# log.

# %%
from bootcamp import errors

errors.explain(
    """[rank1]:   File "train.py", line 41, in <module>
[rank1]: RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.7]:4421
"""
)

# %% [markdown]
# After a cell has failed, `errors.explain()` with nothing in its brackets takes that error. An
# error that the index does not know is said to be unknown. The next cell shows what to look at
# then.

# %%
errors.explain("RuntimeError: the flux capacitor is not aligned")

# %% [markdown]
# The next cell shows the whole index. Write words into its box, such as *optimizer* or *lesson 08*,
# or paste an error, and press Enter.

# %%
controls = errors.index()

# %% [markdown]
# ## Exercise
#
# The twelve cases are the exercises of this lesson. The next cell shows which of them you have
# solved.

# %%
from bootcamp import journal

Table([row for row in journal.progress() if row["lesson"].startswith("12")], "What you have done")

# %% [markdown]
# One more, without a checker: **break one yourself**. Take a program that works, `_train_ddp.py`
# for example, change one line so that nothing fails and the result is wrong, and give it to
# somebody else. What would have found it?

# %% [markdown]
# ## When to use it and when not
#
# - **It raises:** read the first error by time, then look it up. An index is a beginning: the same
#   text can have another cause in your program.
# - **It waits:** stacks of all ranks, and a time-out that you chose. Do not begin by making the
#   time-out longer.
# - **It ends:** one rank against several, with SGD, at the same global batch; the samples' numbers;
#   the parameters of two ranks. Do this once for each new program, *before* it seems to be wrong.
# - **Do not guess by changing several lines at once.** Say what it is, predict what a change will
#   do, change one thing. A fault that went away without an explanation comes back.
# - **Do not copy a mend either.** `find_unused_parameters=True`, a longer time-out, a barrier here
#   and there: each of them silences an error that may have been right.
#
# ## Sources
#
# - PyTorch documentation: *DistributedDataParallel*, *Distributed communication package*,
#   *torch.utils.data* (DistributedSampler), *Automatic mixed precision*, *torch.distributed.fsdp*.
# - PyTorch source, `torch/nn/parallel/distributed.py`: what the forward of DDP sends.
# - S. Li et al.: *PyTorch Distributed: Experiences on Accelerating Data Parallel Training.* VLDB
#   2020, arXiv:2006.15704.
# - The errors of the index: recorded by `tools/errors.py`; its caption names torch and machine.
