# %% [markdown]
# # 11 Serving
#
# **90 minutes**, on any machine, after lesson 07b; one part uses what 06b explains. NVIDIA's Triton
# Inference Server (not the kernel language Triton) needs Linux and `make triton`; elsewhere that
# part shows what was recorded. Everything here runs on CPU cores.
#
# After this lesson you can turn a checkpoint in parts into one file, export the model and prove
# that the export computes the same, serve it in batches, measure a server without deceiving
# yourself, and say what its clients see when a part of it fails.

# %% [markdown]
# ## The question
#
# Training ends with a checkpoint in parts, which the training script can read. Now somebody wants
# to *use* the model: send a text, get an answer within milliseconds, at any time, beside a thousand
# others who do the same. What do you hand over? How do you know that it still computes the same?
# And how many answers per second does one device give?

# %%
import tempfile
from pathlib import Path

from bootcamp import available, launch, warm_up
from bootcamp.paths import LOGS

warm_up()
available("onnxruntime", fetch=True)  # and the other packages of this lesson
LOGS.mkdir(parents=True, exist_ok=True)
holder = tempfile.TemporaryDirectory(prefix="serving-", dir=LOGS)  # ends with the notebook
PLACE = Path(holder.name)

trained = launch("fsdp", 4, steps=5, global_batch=16, device="cpu", save=PLACE / "checkpoint")

# %% [markdown]
# ## The idea

# %%
from bootcamp import plots
from bootcamp_lessons.diagrams import serving as diagrams

plots.show(diagrams.path_to_answer())

# %% [markdown]
# ### Once: consolidate and export
#
# **Consolidating** puts the parts of all ranks together, and leaves the optimizer's state behind,
# since training is over. What remains are numbers with names. To compute with them, you still need
# the code of the model.
#
# **Exporting** replaces that code. `torch.export` follows one example through the model and writes
# down each operation: a **graph**, in which batch and length are symbols if you say so. From the
# graph come other formats: **ONNX**, which runtimes without torch read, or machine code
# (AOTInductor), which still needs torch's libraries.
#
# ### For each request: a queue, and batches
#
# A single request leaves most of a device idle. Each operation has its overhead, whether it
# computes one sample or eight, and on a GPU the weights are read from memory once per *batch*. So a
# server lets requests wait in a **queue**, and gives those that are waiting to an **instance** as
# one batch. An instance is a process with a copy of the model; there is one for each GPU or core.
#
# ### What to measure
#
# **Latency** is the time that one request takes, **throughput** how many are answered in a second.
# Users feel the slow ones, so latency is given in **percentiles**: 99 of 100 requests are faster
# than **p99**. A mean hides them.
#
# A load that waits for each answer before it asks again is a **closed loop**. Real users do not
# wait for each other: an **open loop** sends each request when it is due, and counts from then.

# %%
plots.show(diagrams.pause())

# %% [markdown]
# In the closed loop the client stops when the server stops. So nearly all of its requests are sent
# while all is well, and the slow ones are missing from the statistics. Gil Tene named this
# **coordinated omission**.

# %% [markdown]
# ## Predict
#
# Four ranks saved this checkpoint of a float32 model, trained with AdamW.

# %%
from bootcamp import predict
from bootcamp.train import sharded_checkpoint

saved = sharded_checkpoint.find_newest(PLACE / "checkpoint")
parts = sum(path.stat().st_size for path in saved.glob("*.distcp"))
guess_bytes = predict(
    "serving_bytes",
    f"The four parts have {parts / 1e6:.1f} MB. How large is the file to hand over?",
    unit="MB",
)
guess_bytes

# %% [markdown]
# A server pauses once for half a second, during two seconds of load. Requests take some
# milliseconds otherwise.

# %%
guess_closed = predict(
    "serving_closed", "One client asks in a closed loop. What is p99?", unit="ms"
)
guess_closed

# %%
guess_open = predict("serving_open", "In an open loop, what is p99?", unit="ms")
guess_open

# %% [markdown]
# Sixteen clients ask, each in a closed loop.

# %%
guess_batching = predict(
    "serving_batching",
    "Two instances that answer batches of up to 8, against one that answers one request at a time: "
    "how many times as many answers per second?",
    unit="times",
)
guess_batching

# %% [markdown]
# ## What changes
#
# ### The export

# %%
from bootcamp.paths import SRC
from bootcamp_lessons import excerpts

excerpts.piece(SRC / "serve/export.py", "# 3. torch.export", 'if "pt2"')

# %% [markdown]
# `Dim` makes batch and length symbols. Without it, the graph holds for the example's shape alone.
# The example has a batch of 2, because `torch.export` treats sizes of 0 and 1 as constants.
#
# The exported model answers with the scores (logits) for the *last* byte only: 256 numbers for each
# sample, in place of 256 for each byte.
#
# ### A server, and one that batches
#
# The first server is a dozen lines. Its one thread runs the **event loop**, which reads requests
# and calls these functions. `predict(ids)` blocks it: while the model computes, no other request is
# read.

# %%
excerpts.code((SRC / "serve/simple_server.py").read_text().split('"""', 2)[2])

# %% [markdown]
# In the second one a request awaits its turn, and others are read meanwhile. Requests and arguments
# are checked by the same lines.

# %%
from bootcamp.scripts.diff import ScriptDiff

ScriptDiff(SRC / "serve/batching_server.py", SRC / "serve/simple_server.py")

# %% [markdown]
# This function puts the batch together. Requests of another length wait for the next batch: one
# tensor holds samples of one length, unless they are padded.

# %%
from bootcamp.serving.batcher import Batcher

excerpts.source(Batcher._gather)

# %% [markdown]
# ## Run it
#
# Four parts become one file of parameters, and three exports. (`aoti` in `--formats` adds machine
# code, if there is a C++ compiler; compiling takes much longer than the rest.)

# %%
from bootcamp import run_command

EXPORTED = PLACE / "exported"
formats = "safetensors,pt2,onnx,ts"
export = ["python", str(SRC / "serve/export.py"), str(PLACE / "checkpoint"), str(EXPORTED)]
print(run_command([*export, "--formats", formats]))

# %% [markdown]
# Start a server with the ONNX file, and send it one request in the **Open Inference Protocol**,
# which Triton and KServe speak as well:

# %%
import json
import urllib.request

import numpy

from bootcamp.serving import artifacts, load_test, protocol, server_process, versions

ids = numpy.array([list(b"import ")])
body = json.dumps(protocol.make_request(ids)).encode()
with server_process.start("simple_server", EXPORTED / "gpt.onnx") as server:
    answer = urllib.request.urlopen(server.url + protocol.INFER, body).read()
scores = protocol.read_scores(json.loads(answer))
print(f"{body.decode()[:75]} ...")
print(f"ready after {server.seconds_to_start:.1f} s; the likeliest byte: {chr(scores.argmax())!r}")

# %% [markdown]
# ## Read the measurement
#
# ### What is handed over

# %%
from bootcamp import claim

handed_over = (EXPORTED / "gpt.safetensors").stat().st_size
print(guess_bytes.score(handed_over / 1e6))
claim.larger(
    "serving_leaves_the_optimizer",
    "The parts have more than three times the bytes of the file with the parameters.",
    parts,
    handed_over,
    by=3,
    supported="Of 12 bytes for each parameter 4 are left: AdamW's two moving averages stay behind. "
    "So do the headers of each rank's pieces, which weigh much for so small a model.",
)

# %% [markdown]
# ### The pause

# %%
from bootcamp_lessons.labs import serving_lab

eager = artifacts.load(EXPORTED / "gpt.safetensors")
asked = load_test.make_requests(eager, count=50, length=8)
versions.publish(PLACE / "gpt", EXPORTED / "gpt.onnx")
with server_process.start("batching_server", PLACE / "gpt") as server:
    loops = serving_lab.load_with_pause(server, asked)
plots.show(diagrams.latencies(serving_lab.describe_measurement(), loops))

# %%
closed, opened = loops.values()
print("closed:", guess_closed.score(1e3 * closed.percentile(99)))
print("open:", guess_open.score(1e3 * opened.percentile(99)))
for name, loop in loops.items():
    slow = sum(latency > serving_lab.PAUSE_SECONDS / 4 for latency in loop.latencies)
    print(f"{name}: {slow} of {loop.sent} requests waited for over a quarter of the pause")

# %% [markdown]
# The pause is the same. One client in a closed loop can meet it only once, however long it is. In
# the open loop it delays every request that comes while it lasts.
#
# ### Each part of the server by itself

# %%
found = serving_lab.compare_servers(PLACE / "gpt", asked)
plots.show(diagrams.ablation(serving_lab.describe_measurement(), found))

# %%
from bootcamp import Table

columns = ("server", "answers/s", "p50, ms", "p99, ms", "samples in a batch")
Table([{name: row[name] for name in columns} for row in found], "16 clients in a closed loop")

# %%
with serving_lab.start_two_servers(PLACE / "gpt", asked) as (best, plain):
    faster = claim.faster(
        "serving_batches_and_instances",
        "Two instances with batches of 8 answer more requests than one without.",
        best,
        plain,
        names=("two instances with batches", "one without"),
        supported="Overhead is shared by a batch, and a second core computes.",
        otherwise="Server, instances and client may compete for the same cores here.",
    )
print(guess_batching.score(faster.effect))
faster

# %% [markdown]
# Where clients, server and instances share few cores, a second instance gives less than it would on
# a core of its own. A longer **delay** lets batches grow, but a batch that does not fill up waits
# until its end. The last column shows how full they get with sixteen clients.
#
# **Little's law** (1961) ties the figures together: requests under way = throughput × mean latency.
# In a closed loop as many are under way as there are clients, less the moments in which a client
# checks an answer. So once throughput has reached its limit, twice as many clients mean twice the
# latency.

# %%
with server_process.start("batching_server", PLACE / "gpt", instances=2) as server:
    by_clients = serving_lab.load_by_clients(server, asked)
Table(by_clients, "The best server under more and more clients")

# %% [markdown]
# ### The knee
#
# An open loop at rising rates. Near the rate that the server can just answer, the queue grows, and
# latency rises steeply: the **knee**. Beyond it, the queue of a server without a limit would grow
# for ever. This one lets 64 requests wait, and refuses others immediately, with status 503. So the
# wait in the queue is bounded; what is waited for before it, in sockets and in the event loop, is
# not. The upper panel has the latencies of answered requests only; the gap beyond the
# knee in the lower one is what was refused.

# %%
with server_process.start("batching_server", PLACE / "gpt", instances=2) as server:
    by_rate = serving_lab.load_by_rate(server, asked)
plots.show(diagrams.knee(serving_lab.describe_measurement(), by_rate))

# %% [markdown]
# Plan for a load below the knee, with headroom for the peak hour.
#
# ### Triton
#
# **Triton Inference Server** is NVIDIA's server: a *repository* of models with a configuration for
# each, instances on GPUs or cores, a dynamic batcher, metrics for Prometheus, several versions of a
# model. This one is the real server, whose Python backend runs ONNX Runtime.

# %%
triton = serving_lab.Triton(PLACE, EXPORTED / "gpt.onnx", asked)
print(triton.config())

# %%
Table(triton.measure(), triton.says)

# %% [markdown]
# ### Several devices
#
# Two ways to use two devices: **replicas**, a model on each, or **one model over both**, the
# pipeline of lesson 06b without its backward passes.

# %%
ways = serving_lab.compare_devices()
Table(ways, "Two CPU ranks, one core each, against one process")

# %% [markdown]
# Replicas need no communication: two replicas bring about twice the throughput, at the latency of
# one. A pipeline halves the parameters on each device, and makes no request faster, since a request
# passes through all stages; with several micro-batches under way, its throughput can grow too. Copy
# a model that fits, cut one that does not. (Tensor parallelism, lesson 06c, can make a single
# request faster, on links that are fast enough.)
#
# ### Generating text: the KV cache
#
# A language model writes its answer token by token (here, byte by byte), and reads the text so far
# for each of them. Attention of the newest byte needs the **keys** and **values** of all before it,
# and these do not change, since no byte looks ahead. So they are kept, in a **KV cache**. Reading
# the prompt is the **prefill**, each byte after it a **decode** step.

# %%
from bootcamp_lessons import generation

plots.show(diagrams.cached_steps())

# %%
model = artifacts.rebuild(EXPORTED / "gpt.safetensors")
plain, cached = (generation.greedy(model, b"def ", 48, cached=kept) for kept in (False, True))
print(f"scores are {generation.prove(cached, plain):.1e} apart, the bytes are the same")
claim.equal(
    "serving_cache_bytes",
    "The cache has 2 x layers x heads x width of a head x 4 bytes for each byte of text.",
    cached.cache_bytes,
    generation.formula_bytes(model, len(cached.prompt + cached.text)),
)

# %%
plots.show(diagrams.seconds_by_length(generation.measure((64, 256, 1024))))

# %% [markdown]
# The cache spends memory to save arithmetic, and on a large model memory is what runs out: it
# limits how many requests a GPU answers at a time. In grouped-query attention (lesson 06c) several
# query heads share one key-value head.

# %% tags=["nbval-check-output"]
from bootcamp.costs import memory

fit = [row for row in memory.cache_rows((8192, 131_072)) if row["fit at 8,192"]]
Table(fit, "A GPU of 80 GB, weights and cache in bfloat16, by formula")

# %% [markdown]
# A decode step reads all weights for one token of each request, so batches matter even more here.
# Servers of language models let requests join and leave the batch at every step: **continuous
# batching** (Orca; vLLM).

# %% [markdown]
# ## Prove it
#
# Every file is compared with the eager model, at batches and lengths that the export has not seen.
# Then the answers of a server to such requests: it may put them into one batch, but must not mix
# them up.

# %%
context = artifacts.read_info(EXPORTED / "gpt.onnx").context
rows = []
for name in ("gpt.pt2", "gpt.onnx", "gpt.ts"):
    compared = artifacts.compare(artifacts.load(EXPORTED / name), eager, context)
    rows.append({"file": name, "shapes": len(compared), "apart": artifacts.furthest(compared)})
assert max(row["apart"] for row in rows) < 1e-5, "another model"
Table(rows, "The largest difference of a score")

# %%
mixed = [
    one
    for batch in (1, 3, 8)
    for length in (1, 7, context)
    for one in load_test.make_requests(eager, 20, length, batch)
]
with server_process.start("batching_server", PLACE / "gpt", instances=2) as server:
    served = load_test.run_closed_loop(server.url, mixed, clients=16, count=len(mixed))
assert (served.wrong, served.failed) == (0, 0)
print(f"{served.sent} answers, all within 1e-5 of the eager model's")

# %% [markdown]
# ## Break it
#
# ### Four ways to lose the model
#
# Each of the four tables has a case in which the export raises no error, and what it makes is wrong
# or fails later. The columns *itself* and *exported* show what the model and its export answer, as
# the first number and the shape: `8 of (2,)`. The first table is about two models, one with an `if`
# on a size, one with an `if` on its input's values:

# %%
from bootcamp_lessons.labs import export_lab

excerpts.source(export_lab.LengthBranch, export_lab.ContentBranch)

# %%
export_lab.trace_one_branch()

# %%
export_lab.freeze_sizes()

# %%
export_lab.forget_eval()

# %%
export_lab.keep_ddp_prefix()

# %% [markdown]
# ### A server under load, and one thing that fails
#
# Each row is a load of at least 400 requests, and every answer is compared. *Wrong* must be 0 in
# all of them. A client may send a request again that was refused (503).

# %%
other = serving_lab.write_other_model(EXPORTED / "gpt.onnx", PLACE / "other.onnx")
for file in (EXPORTED / "gpt.onnx", other):
    versions.publish(PLACE / "two" / "gpt", file)

both = load_test.make_requests(eager, 50, 8, or_else=artifacts.load(other))
with server_process.start("batching_server", PLACE / "two" / "gpt", instances=2) as server:
    server.switch(1)
    drills = [serving_lab.run_drill(name, server, both) for name in serving_lab.DRILLS]

with server_process.start("batching_server", PLACE / "two" / "gpt", instances=2) as server:
    killed = serving_lab.kill_server(server, both, 400)
with server_process.start("batching_server", PLACE / "two" / "gpt", instances=2) as server:
    anew = load_test.run_closed_loop(server.url, both, clients=8, count=serving_lab.AFTERWARDS)
drills.append(serving_lab.make_row("the server is killed, a new one started", killed, anew))
assert not any(row["wrong"] for row in drills), "a wrong answer"
Table(drills, "What clients see, of the course's server")

# %% [markdown]
# A killed worker costs at most the requests that it was computing. A broken version never gets a
# request: the server loads it *beside* the one that answers, tries it, and keeps the old one. Only
# the death of the server itself affects all clients: in production at least two run behind a load
# balancer. A server that is told to stop (TERM) takes nothing new, answers what it has, and ends.
#
# Triton under the same drills:

# %%
Table(triton.drills(), triton.says)

# %% [markdown]
# <details><summary>What differs?</summary>
#
# Triton (2.51) does not restart an instance whose process was killed: the requests that it would
# have answered fail, while the health check reports that all is well. So watch what is *answered*.
# And it trusts its clients: its JSON parser answers several mistakes of a client with 500, as if
# the server had failed, and one body of a hundred thousand brackets crashes the server. So here a
# **front** checks each request before Triton sees it: `src/serve/checking_front.py`. It answers 503
# in place of Triton's 500, so the table counts these requests as refused.
# </details>
#
# ### Requests that nobody should answer

# %%
with server_process.start("batching_server", PLACE / "two" / "gpt") as server:
    refused = serving_lab.check_malformed(server, context)
    good = load_test.run_closed_loop(server.url, both, clients=1, count=10)
assert not good.failed
Table(refused, "Malformed requests: the status, and what the client is told")

# %% [markdown]
# ## Exercises
#
# ### First: names
#
# A state dict saved from a DDP-wrapped model names its parameters `module.head.weight`.
# `plain_names(state)` returns a dictionary with the names of the plain model.

# %%
from bootcamp import exercise


def plain_names(state):
    # your turn: return a dictionary
    ...


print(exercise.check("plain_names", plain_names))

# %% [markdown]
# ### Second: is it the same model?
#
# `same_model(exported, eager, context)` returns whether an exported model is the eager one. Both
# are functions from int64 numpy arrays (batch, length) to scores (batch, 256); lengths go up to
# `context`, and scores may differ by 1e-5.

# %%


def same_model(exported, eager, context):
    # your turn: return True or False
    ...


print(exercise.check("same_model", same_model))

# %% [markdown]
# ### Third: how many requests fit?
#
# `requests_that_fit(gpu_gb, billions, layers, query_heads, kv_heads, head_width, length)` returns
# how many requests of `length` tokens fit on a GPU beside the weights, all in bfloat16.

# %%


def requests_that_fit(gpu_gb, billions, layers, query_heads, kv_heads, head_width, length):
    # your turn: return a whole number
    ...


print(exercise.check("requests_that_fit", requests_that_fit))

# %% [markdown]
# `exercise.solution("plain_names")`, `exercise.solution("same_model")` and
# `exercise.solution("requests_that_fit")` show solutions.

# %% [markdown]
# ## When to use it and when not
#
# Which server for what, as of November 2026, by each project's own documentation and releases:
#
# - **Your own, as here**: one model, full control, learning. Missing: all that you do not write.
# - **Triton**: many models and formats on GPUs; batching, versions, metrics. Missing: checks of
# requests, repair of dead instances; most examples for its PyTorch backend load TorchScript, which
# torch has deprecated.
# - **vLLM, SGLang, TensorRT-LLM**: language models, with continuous batching and a KV cache in
#   pages. Missing: other kinds of models.
# - **ONNX Runtime, OpenVINO**: CPUs, GPUs and small devices, as a library in your program. Missing:
#   queue and instances, unless OpenVINO Model Server is around it.
# - **LitServe, BentoML, Ray Serve**: Python around a model; batches and replicas are there.
#   Missing: the speed of a front end in C++.
# - **KServe**: any of these on Kubernetes: routing, scaling, canaries. Missing: a way without it.
# - **TorchServe**: nothing new, for it was archived in August 2025.
#
# Apart from that:
#
# - **Export** when the server must not depend on your code, or (ONNX) not on torch. Otherwise the
#   eager model with `torch.compile` is the simpler choice.
# - **Batches** where one request leaves the device idle. They do nothing for requests that fill it.
# - **Refuse** early. A queue without a limit turns overload into timeouts for everybody.
# - **Test** with an open loop, with every answer compared, and with a worker killed.

# %% [markdown]
# ## Sources
#
# - D. Crankshaw et al.: *Clipper: A Low-Latency Online Prediction Serving System*, NSDI 2017:
#   batching with a delay.
# - J. D. C. Little: *A Proof for the Queuing Formula L = λW*, Operations Research 9(3), 1961.
# - G. Tene: *How NOT to Measure Latency*, 2013: coordinated omission.
# - N. Shazeer: *Fast Transformer Decoding: One Write-Head is All You Need*, arXiv:1911.02150; J.
#   Ainslie et al.: *GQA*, arXiv:2305.13245.
# - G.-I. Yu et al.: *Orca*, OSDI 2022; W. Kwon et al.: *Efficient Memory Management for Large
#   Language Model Serving with PagedAttention* (vLLM), SOSP 2023.
# - A. Grattafiori et al.: *The Llama 3 Herd of Models*, arXiv:2407.21783, table 3.
# - KServe: *Open Inference Protocol*; NVIDIA: *Triton Inference Server* documentation.
# - PyTorch documentation: *torch.export*, *AOTInductor*, *torch.onnx*.
