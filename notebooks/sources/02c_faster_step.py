# %% [markdown]
# # 02c A faster step: where its time goes, and what shortens it
#
# **32 minutes**, on any machine. What only a GPU can show is in one cell, which says so.
#
# After this lesson you can read a profile of one step, compile a model and say when that pays off,
# choose DataLoader workers by arithmetic, and say what TF32 rounds.

# %% [markdown]
# ## The question
#
# The batch is chosen and fits (lessons 02 and 02b). What makes a step of the *same* training
# shorter, and how do you know that it is still the same?

# %% [markdown]
# ## The idea
#
# Each of the usual ways shortens one part of a step, and gains nothing if nothing waits for that
# part. So look first, then choose.

# %%
from bootcamp import gpu_count, plots, warm_up
from bootcamp_lessons.diagrams import single_device as pictures

warm_up()
plots.show(pictures.parts_of_a_step())

# %% [markdown]
# - **Fused** is one operator in place of several: one call, and one pass over memory.
# - **foreach** is one call for a list of tensors. What it does inside may still be a loop.
# - **torch.compile** records the operators of the model as a **graph**, and a **backend** writes
#   kernels for it. `inductor`, the default, writes Triton for a GPU and C++ for a CPU.
#   `aot_eager` only records, forward and backward, and runs the same operators as before.

# %% [markdown]
# ## Predict

# %%
from IPython.display import display

from bootcamp import predict

guess_calls = predict(
    "faster_step_calls",
    "The tiny GPT has 77 parameter tensors. How many operators does Python call in a step of "
    "AdamW(foreach=False, fused=False)?",
)
guess_chain = predict(
    "faster_step_chain",
    "residual + relu(x * factor + summand): four operators on tensors that no cache holds. "
    "Compiled, they are one. How many times as fast, by the bytes that are read and written?",
    unit="times",
)
display(guess_calls, guess_chain)

# %% [markdown]
# ## What changes

# %%
from bootcamp import script_diff

script_diff("compile")

# %% [markdown]
# `compiled` shares its parameters with `model`. Optimizer, record and checkpoint keep `model`: the
# names in the compiled module begin with `_orig_mod.`, which no other script expects. The fused
# optimizer is one argument, `AdamW(..., fused=True)`.

# %% [markdown]
# ## Run it
#
# With `trace_step` torch's profiler records one step. (On a CPU the first compilation takes ten
# seconds to a minute. What it has written stays on the disk for the next run.)

# %%
from bootcamp import launch
from bootcamp.launcher.launch import Options
from bootcamp_lessons.labs import faster_step

traced = launch("gpu", steps=8, global_batch=12, trace_step=6)
faster_step.profile_table(traced)

# %%
same = {"model": "gpt" if gpu_count() else "mlp", "steps": 20, "global_batch": 12, "quiet": True}
patient = Options(hang_seconds=600)  # while a compiler works, no step is finished
how = {"backend": faster_step.choose_backend(), "options": patient}
compiled, plain = launch("compile", **same, **how), launch("gpu", **same)
faster_step.compile_table(compiled, plain)

# %% [markdown]
# ## Read the measurement
#
# ### The profile
#
# An operator's own time excludes that of the operators it calls; on a GPU the rows are kernels.
# `mm` and `addmm` are matrix products, without and with a bias, of the forward and of the backward
# pass; the share in the caption leaves out those inside attention. (`aten::linear` only calls them.
# This is one step: where the system interrupts an operator, it looks long.) Among the others are
# many short calls of the optimizer, such as `mul_` and `lerp_`: one for each tensor. The last row
# is Python, and the profiler itself. For the order in time, open the run's `ranks/0.trace.json` in
# ui.perfetto.dev. (On GPUs, NVIDIA's Nsight Systems shows what torch does not.)
#
# More FLOP/s shorten only the matrix products. Fusing shortens the rows that move many bytes and
# compute little; fewer calls shorten the last row.
#
# ### Fewer calls

# %%
from bootcamp import Table, claim

ways = {"for-loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
adamw = {name: faster_step.prepare_optimizer_step("adamw", **how) for name, how in ways.items()}
calls = {name: faster_step.count_calls(step) for name, step in adamw.items()}
display(Table([calls], "Operators that Python calls in a step"))
print(guess_calls.score(calls["for-loop"], within=0.1))
print(
    claim.larger(
        "faster_step_fused_calls",
        "The fused AdamW calls less than a hundredth of the for-loop's operators.",
        calls["for-loop"],
        calls["fused"],
        by=100,
        kind="count",
    )
)
claim.faster(
    "faster_step_fused_small",
    "For 77 small tensors the fused AdamW takes less time than the for-loop.",
    lambda: faster_step.measure_seconds(adamw["fused"]),
    lambda: faster_step.measure_seconds(adamw["for-loop"]),
    names=("fused", "the for-loop"),
    otherwise="A call costs a CPU core little beside its arithmetic; on a GPU each is a launch.",
)

# %% [markdown]
# ### Compiled
#
# Compiling pays off when all that later steps save is longer than the first step took: the table
# above counts the steps. On a CPU core that MLP gains little or nothing, since it is matrix
# products, and these stay as they are. The gain is *between* the products. This is the end of a
# ResNet block, with its norm as one factor and one summand for each channel:

# %%
from bootcamp import roofline, run_command
from bootcamp_lessons.excerpts import SNIPPETS, parse_printed, piece

chain = SNIPPETS / "compiled_chain.py"
piece(chain, "def end_of_block", "tensors =")

# %%
command = ["python", str(chain), "--backend", how["backend"]]
(taken,) = parse_printed(run_command(command, env=roofline.REUSE_MEMORY))
passes = {"plain": 2 + 2 + 2 + 3, "compiled": 2 + 1}  # tensors that are read and written
print(guess_chain.score(passes["plain"] / passes["compiled"], how="By formula"))
claim.faster(
    "faster_step_compiled",
    "Compiled, the end of the block takes less than half the time.",
    taken["compiled"],
    taken["plain"],
    by=2,
    names=("compiled", "plain"),
    otherwise="Without a compiler nothing is fused; and a very large cache may hold the tensors.",
)

# %% [markdown]
# - Blocks that are alike can share their kernels: with `block.compile()` on each (**regional**
#   compiling) the first one's are written, and the others use them.
# - `mode="reduce-overhead"` adds CUDA graphs, where a GPU waits for Python to launch its kernels.
#   `"max-autotune"` times several kernels for each operation, which makes compiling slower.
#
# ### A loader with real work
#
# Each sample is 16 KiB of text that is unpacked and cut into words; training on a batch is a few
# matrix products. First without workers: what takes how long?

# %%
from bootcamp import machine

loader, cores = SNIPPETS / "loader_workers.py", len(machine.cores())
work = {"ranks": 1, "device": "cpu", "quiet": True}
alone = parse_printed(launch(loader, workers=0, **work))[0]
read, train = (1e3 * alone[name] for name in ("waited_seconds_per_batch", "train_seconds"))
guess_loader = predict(
    "faster_step_loader",
    f"{read:.0f} ms to make a batch, {train:.0f} ms to train on it, {cores} cores. How many ms "
    "does a batch take with two workers?",
    unit="ms",
)
guess_loader

# %%
two = parse_printed(launch(loader, workers=2, epochs=2, **work))[0]
more = {"workers": 2, "epochs": 2, "prefetch": 4, "persistent": True}
persistent = parse_printed(launch(loader, **more, **work))[0]
print(guess_loader.score(1e3 * two["seconds_per_batch"], within=0.25))
faster_step.loader_table([alone, two, persistent], read, train, cores)

# %% [markdown]
# No batch takes less than the longest of three: the training process, a worker's share of the
# reading, and all the work spread over the cores. (A row may end a little below that: measured
# times scatter.) On two cores two workers and the training share the cores, so they cannot gain a
# factor of three. A job with one core gains nothing (on Slurm: `--cpus-per-task`).
#
# `prefetch_factor` is how many batches each worker makes ahead, 2 by default. That evens out slow
# samples and takes memory; on average it makes nothing faster. `persistent_workers=True` keeps the
# workers for the next epoch. Otherwise each epoch begins with starting them.

# %%
print(
    claim.equal(
        "faster_step_prefetch",
        "When the first batch is there, workers x prefetch_factor others have been asked for.",
        persistent["asked_for_with_the_first_batch"] - 1,
        2 * more["prefetch"],
        kind="count",
    )
)
claim.equal(
    "faster_step_persistent",
    "Without persistent_workers, two epochs start the workers twice.",
    two["processes"],
    2 * persistent["processes"],
    kind="count",
)

# %% [markdown]
# ### Fewer bits in a product
#
# What TF32 does to a product can be computed anywhere: round the fraction of both inputs to 10
# bits, bfloat16's to 7, the error eight times as large. As a check, 7 bits must give PyTorch's own
# bfloat16:

# %%
import torch

numbers = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0))
assert (faster_step.round_bits(numbers, 7) == numbers.bfloat16().float()).all(), "rounded otherwise"
errors = faster_step.measure_product_errors()
rows = [{"inputs": name, "relative error": f"{error:.1e}"} for name, error in errors.items()]
Table(rows, "A product of two matrices, with rounded inputs")

# %% [markdown]
# Both accumulate in float32. Allow TF32 with `torch.set_float32_matmul_precision("high")`, or for
# CUDA's products alone with `torch.backends.cuda.matmul.fp32_precision = "tf32"`; use one of the
# two. A proof of equality to 1e-5 needs it off.
#
# ### What only a GPU shows
#
# - **Streams** are queues of a GPU: what is in two of them may run at the same time. A copy from
#   pageable memory holds up the script. One from pinned memory with `non_blocking=True` returns at
#   once and runs beside the kernels of another stream. After a non-blocking copy *to* the host,
#   synchronise before you read the numbers.
# - **CUDA graphs** record launches and replay all of them with one. Addresses and shapes are
#   fixed, so each batch is copied into the place of the one that was recorded.
# - **The allocator** keeps freed memory in **segments** and cuts **blocks** from them. A block lies
#   within one segment, and a segment with one small tensor in it cannot go back. So there may be
#   enough memory and no block: **fragmentation**. The error says how much is "reserved by PyTorch
#   but unallocated". `PYTORCH_ALLOC_CONF=expandable_segments:True` lets segments grow; batches of
#   one length help too. A **snapshot** (lesson 02b) shows which line holds which block.

# %%
print(run_command(["python", str(SNIPPETS / "on_a_gpu.py")]))

# %% [markdown]
# ## Prove it
#
# Compiled and fused train what the plain script trains, with both optimizers. If torch.compile
# gives up, it runs the model as it is, perhaps without a warning. So the record counts graphs.

# %%
from bootcamp import check, variant

usual = "optimizer = optimizers.build(args, model.parameters())"
chosen = "optimizer_class, settings = optimizers.choose(args)"
fused = f"{chosen}\noptimizer = optimizer_class(model.parameters(), fused=True, **settings)"
fused, sgd = variant("gpu", "fused", {usual: fused}), same | {"optimizer": "sgd"}
print(check.same_training(compiled, plain), end="\n\n")
print(check.same_training(launch(fused, 1, **same), plain), end="\n\n")
plain_sgd = launch("gpu", **sgd)
print(check.same_training(launch("compile", **sgd, **how), plain_sgd), end="\n\n")
print(check.same_training(launch(fused, 1, **sgd), plain_sgd), end="\n\n")
graphs = compiled.ranks[0]["compiled_graphs"]
claim.equal("faster_step_one_graph", "The model is one graph.", graphs, 1, kind="count")

# %% [markdown]
# ## Break it
#
# **A broken graph.** The first function asks Python for a value; it is called twice with
# a vector longer than 1, then with a shorter one. The second meets other batch sizes, such as that
# of a last batch that is not full. How many graphs are there after each call?


# %%
def with_if(x):
    length = x.norm()
    return x / length if length.item() > 1 else x


def without_if(x):
    return x / x.norm().clamp(min=1)


long, short = torch.ones(8), torch.full((8,), 0.1)
sizes = [(torch.ones(size),) for size in (8, 8, 7, 6, 5)]
print("with if:   ", *faster_step.count_graphs(with_if, (long,), (long,), (short,)))
print("five sizes:", *faster_step.count_graphs(without_if, *sizes))

# %% [markdown]
# Why more than one, and why does the second stop at 2? Then open the answer.
#
# <details><summary>Answer</summary>
#
# `.item()` ends a graph: Python needs the value to know what comes next. Each side of the `if` is
# a graph of its own. Between graphs plain Python runs; here it also waits for the GPU, since
# `.item()` needs a number from it. `torch.compile(fullgraph=True)` makes a break an error, and the
# environment's `TORCH_LOGS=graph_breaks,recompiles` prints where and why.
#
# A graph is made for the shapes (and Python numbers) that it has seen. At the second size it is
# made again, now for any size; `torch._dynamo.mark_dynamic(x, 0)` says so beforehand. With
# `dynamic=False` each size is compiled, up to a limit, and then none: the function runs as it is.
# `drop_last=True` avoids the odd batch.
# </details>

# %% [markdown]
# ## Exercise
#
# ### First: one graph
#
# Clip a gradient without an `if`. The checker compares the values, then counts graphs. The
# solution: `exercise.solution("one_graph")`.


# %%
from bootcamp import exercise


def clipped(gradient, longest):
    """The gradient, a tensor, scaled down to the length `longest` if it is longer."""
    ...


print(exercise.check("one_graph", clipped))

# %% [markdown]
# ### Second: how many workers?
#
# Making a batch takes `read` ms of work, training on it `train` ms. Return the fewest workers with
# which a batch takes as little time as it can. The solution: `exercise.solution("workers_for")`.


# %%
def workers_for(read, train, cores):
    """The fewest workers of a DataLoader with which a batch takes as little time as it can."""
    ...


print(exercise.check("workers_for", workers_for))

# %% [markdown]
# ## When to use it and when not
#
# - **Workers** when the step waits for its batch and cores are free.
# - **Fused optimizers** on a GPU; on a CPU measure.
# - **torch.compile** for long runs with few shapes and much between the products. Not for the first
#   run of a new model: errors are harder to read, and tools that watch operators see less.
# - **TF32** on a GPU unless you prove equality. **CUDA graphs** where launches are the limit.
#
# ## Sources
#
# - PyTorch documentation: *torch.compile*, *torch.utils.data*, *CUDA semantics* (TF32, streams,
#   memory management, CUDA graphs), *torch.optim*, *Understanding CUDA Memory Usage*.
# - Ansel et al., *PyTorch 2*, ASPLOS 2024, doi:10.1145/3620665.3640366.
