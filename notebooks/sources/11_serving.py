# %% [markdown]
# # 11 Serving
#
# **90 minutes**, on any machine, after lesson 07b; the *(optional)* parts take another 20, and the
# last uses what 06b explains. NVIDIA's Triton Inference Server (not the kernel language
# Triton) needs Linux and `make triton`; elsewhere it shows what was recorded. All of it runs on CPU
# cores.
#
# After this lesson you can turn a checkpoint in parts into one file, export the model and prove
# that the export computes the same, serve it in batches, measure a server without deceiving
# yourself, say what bounds a language model's tokens per second, and what clients see when a part
# of the server fails.
#
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
# A single request leaves most of a device idle. Each operation has its overhead, for one sample or
# for eight, and on a GPU the weights are read from memory once per *batch*. So requests wait in a
# **queue**, and those that are waiting go to an **instance** as one batch. An instance is a process
# with a copy of the model; there is one for each GPU or core.
#
# ### What to measure
#
# **Latency** is the time that one request takes, **throughput** how many are answered in a second.
# Users feel the slow ones, so latency is given in **percentiles**: 99 of 100 requests are faster
# than **p99**. A mean hides them.
#
# A load that waits for each answer before it asks again is a **closed loop**. Real users do not
# wait for each other: an **open loop** sends each request when it is due, and counts from then.
#
# ## Predict
#
# Four ranks saved this checkpoint of a float32 model, trained with AdamW.

# %%
from IPython.display import display

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
guess_open = predict("serving_open", "In an open loop, what is p99?", unit="ms")
display(guess_closed, guess_open)

# %% [markdown]
# Sixteen clients ask, each in a closed loop.

# %%
guess_instances = predict(
    "serving_instances",
    "Two instances in place of one: how many times as many answers per second?",
    unit="times",
)
guess_batches = predict(
    "serving_batches",
    "And one instance that answers batches of up to 8, in place of one request at a time?",
    unit="times",
)
display(guess_instances, guess_batches)

# %% [markdown]
# Now language models. First Llama 3 8B in bfloat16 on an H100, which reads 3.35 TB of its memory in
# a second. Then the course's GPT: 48 requests for texts of 1 to 56 bytes, 14 on average, and a
# batch with eight places. In **static** batching those that wait fill all places together, and the
# next ones wait for the longest text. In **continuous batching** a place goes to the next request
# as soon as its text is complete. An open loop asks for 70 % of what the latter can answer.

# %%
guess_decode = predict(
    "serving_decode",
    "A single request: how many tokens per second, if each reads all weights?",
    unit="tokens/s",
)
guess_static = predict(
    "serving_static",
    "How many times as long does the median request wait for its first byte with static batching?",
    unit="times",
)
display(guess_decode, guess_static)

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
# Four parts become one file of parameters, and two exports. (`aoti` in `--formats` adds machine
# code, if there is a C++ compiler; compiling takes much longer than the rest.)

# %%
from bootcamp import run_command

EXPORTED = PLACE / "exported"
formats = "safetensors,pt2,onnx"
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

# %%
plots.show(diagrams.pause())

# %% [markdown]
# One client in a closed loop can meet the pause only once, since it stops when the server stops:
# the slow ones are missing from its statistics. Gil Tene named this **coordinated omission**. In
# the open loop every request that comes meanwhile is delayed.
#
# ### Each part of the server by itself

# %%
found = serving_lab.compare_servers(PLACE / "gpt", asked)
plots.show(diagrams.ablation(serving_lab.describe_measurement(), found))

# %%
from bootcamp import Table

by_name = {row["server"]: row["answers/s"] for row in found}
one_alone = by_name[serving_lab.PLAIN]
print(guess_instances.score(by_name["2 instances"] / one_alone))
print(guess_batches.score(by_name["1 instance, batches of 8"] / one_alone))
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
        supported="The table above shows how much of it batches give, and a second core.",
        otherwise="Server, instances and client may compete for the same cores here.",
    )
faster

# %% [markdown]
# Where clients, server and instances share few cores, a second instance gives less than it would on
# a core of its own. A longer **delay** lets batches grow, but one that does not fill up waits until
# its end.
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
# latency rises steeply: the **knee**. Beyond it, a queue without a limit would grow for ever. This
# one lets 64 requests wait, and refuses others immediately, with status 503. So the wait in the
# queue is bounded; the wait before it, in sockets and in the event loop, is not. The upper panel
# has answered requests only; the gap beyond the knee in the lower one is what was refused.

# %%
with server_process.start("batching_server", PLACE / "gpt", instances=2) as server:
    by_rate = serving_lab.load_by_rate(server, asked)
plots.show(diagrams.knee(serving_lab.describe_measurement(), by_rate))

# %% [markdown]
# Plan for a load below the knee, with headroom for the peak hour.
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
# query heads share one key-value head. vLLM is told which share of a GPU's memory to take, such as
# 90 %; activations need some of it too.

# %% tags=["nbval-check-output"]
from bootcamp.costs import hardware, model_shapes
from bootcamp_lessons.sharding_tables import cache_rows

h100, llama = hardware.gpu("H100 80GB"), model_shapes.served_models()["Llama 3 8B"]
usable = 0.9 * h100.memory / 1e9
fit = [row for row in cache_rows((8192, 131_072), usable) if row["fit at 8,192"]]
Table(fit, f"{usable:.0f} of a GPU's 80 GB, weights and cache in bfloat16, by formula")

# %% [markdown]
# ### Language models: two latencies, and what bounds a decode step
#
# Users of a language model notice two waits: for the **first token** (the queue, then the prefill),
# and for each **further token** (a decode step). A decode step reads nearly all weights and every
# request's cache, and computes little with them, so it takes at least their bytes ÷ the bandwidth
# of the GPU's memory:

# %%
rows = []
for requests in (1, 8, llama.requests_that_fit(8192, 0.9 * h100.memory)):
    read = 2 * llama.parameters + requests * llama.cache_bytes(8192)
    row = {"requests": requests, "GB read in a step": read / 1e9, "ms": 1e3 * read / h100.hbm}
    row |= {"tokens/s of each": h100.hbm / read, "tokens/s of all": requests * h100.hbm / read}
    rows.append(row)
print(guess_decode.score(h100.hbm / (2 * llama.parameters), within=0.1, how="By formula"))
Table(rows, "Llama 3 8B on an H100, 8,192 tokens in each cache: at best, by formula")

# %% [markdown]
# So a batch is nearly free while the caches weigh little beside the weights, and no place in it
# should be empty. The scheduler of `src/serve/language_model.py`, 54 lines on the course's GPT, has
# both kinds of batching; they differ in one condition:

# %%
import sys

import torch

sys.path.append(str(SRC))
from serve import language_model as lm

excerpts.piece(SRC / "serve/language_model.py", "# 1. Requests", "        # 2.")

# %%
torch.set_num_threads(1)
large, small = lm.build(layers=3, steps=100), lm.build(layers=1, steps=100)  # small: for later
at_once = lm.measure(large)
FIRST, rate = "first byte, ms, p50", 0.7 * at_once["requests/s"]
static, continuous = (lm.measure(large, rate, continuous=each) for each in (False, True))
print(guess_static.score(static[FIRST] / continuous[FIRST], within=0.5))
columns = ("decode steps", FIRST, "ms for each further byte, p50")
batching = {"static": static, "continuous": continuous}
rows = [{"batching": name, **{c: row[c] for c in columns}} for name, row in batching.items()]
Table(rows, "8 places, CPU time of one core; every byte is the one that the model alone chooses")

# %%
claim.faster(
    "serving_continuous",
    "Under one open load, continuous batching brings most first bytes over twice as soon.",
    continuous["waits"],
    static["waits"],
    by=2,
    names=("continuous batching", "static batching"),
    supported="Static batching's places wait, empty, for the longest text of their batch.",
)

# %% [markdown]
# A further byte may come later: each newcomer's prefill holds up all others. Servers such as vLLM,
# SGLang and TensorRT-LLM do more. **Chunked prefill** reads long prompts in pieces, together with
# decode steps. Weights in FP8 or 4 bits are half or a quarter of the bytes (compare the answers).
# Prefill and decode on separate GPUs no longer hold each other up, but must send the cache. An
# optional part below has the rest.
#
# All read `safetensors`, a `config.json` that names an architecture which the server knows (the
# course's GPT is none), and a tokenizer. For a fine-tuned model, from the documentation of
# Transformers and vLLM, and not run here:
#
# ```python
# model = AutoModelForCausalLM.from_pretrained(BASE, dtype="bfloat16")
# model.load_state_dict(state)  # consolidated, with plain names
# model.save_pretrained("tuned")  # safetensors and config.json
# AutoTokenizer.from_pretrained(BASE).save_pretrained("tuned")
# ```
#
# ```
# vllm serve tuned --max-model-len 8192 --gpu-memory-utilization 0.9
# vllm bench serve --model tuned --request-rate 4
# ```
#
# The last line is an open loop, and prints both latencies.
#
# ## Prove it
#
# Every file is compared with the eager model, at batches and lengths that the export has not seen.
# Then the answers of a server to such requests: it may put them into one batch, but must not mix
# them up.

# %%
context = artifacts.read_info(EXPORTED / "gpt.onnx").context
rows = []
for name in ("gpt.pt2", "gpt.onnx"):
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
# Each table has a case that raises no error, and what it makes is wrong or fails later. *Itself*
# and *exported* are what the model and its export answer, as the first number and the shape:
# `8 of (2,)`. First two models, one with an `if` on a size, one with an `if` on values:

# %%
from bootcamp_lessons.labs import export_lab

excerpts.source(export_lab.LengthBranch, export_lab.ContentBranch)

# %%
display(export_lab.trace_one_branch(), export_lab.freeze_sizes())
display(export_lab.forget_eval(), export_lab.keep_ddp_prefix())

# %% [markdown]
# ### A server under load, and one thing that fails
#
# Each drill is a load of at least 400 requests, and every answer is compared: *wrong* must be 0.
# A client may send a request again that was refused (503).

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
lossless = [row["drill"] for row in drills if row["right"] == row["requests"]]
print(f"Every request has its right answer: {', '.join(lossless)}.")
Table([row for row in drills if row["drill"] not in lossless], "What clients see of the others")

# %% [markdown]
# A killed worker costs at most the requests that it was computing. A broken version never gets a
# request: the server loads it *beside* the one that answers, tries it, and keeps the old one. The
# death of the server itself affects all clients: in production at least two run behind a load
# balancer.
#
# ### Requests that nobody should answer

# %%
with server_process.start("batching_server", PLACE / "two" / "gpt") as server:
    refused = serving_lab.check_malformed(server, context)
    good = load_test.run_closed_loop(server.url, both, clients=1, count=10)
assert not good.failed
print(f"{len(refused)} kinds of malformed requests are refused with a status of 4xx. Five of them:")
FIVE = ("JSON that is cut off", "another datatype", "too long", "a byte of 256", "no inputs")
Table([row for row in refused if row["what is wrong"] in FIVE], "What the client is told")

# %% [markdown]
# ## Blocks, prefixes and a draft (optional)
#
# Nobody knows how long an answer will be, so a cache in one piece reserves room for the longest. A
# **paged** cache has **blocks**, here of 8 bytes of text, taken as needed; a table for each request
# says which. If none is free, the newest request is put back, and read again later.
#
# Prompts that begin alike can **share** blocks, and their prefill; here 48 begin with the same 40
# bytes. And in **speculative decoding** a small model, the **draft**, guesses, here four bytes. The
# large one reads them in one pass, keeps those before the first wrong one, and adds its own byte.

# %%
reserved = lm.PROMPT + lm.LONGEST
guess_filled = predict(
    "serving_filled",
    f"{reserved} bytes are reserved for each request, prompts have 41 to 56. What share is filled?",
    unit="%",
)
guess_draft = predict(
    "serving_draft",
    "The draft has one of three layers, and is mostly right. How many times as fast is it here?",
    unit="times",
)
display(guess_filled, guess_draft)
display(excerpts.source(lm.pieces), excerpts.source(lm.Cache.find))

# %%
few = {"blocks": lm.ROOM // 3}
ways = {
    "blocks for all": {},
    "a third of them": few,
    "a third, reserved": {**few, "reserve": reserved},
}
ways |= {"shared prefixes": {"share": True}, "a draft": {"draft": lm.Draft(small)}}
served = {way: lm.measure(large, **how) for way, how in ways.items()}
for row in served.values():
    row["filled, %"] = 100 * row["filled"] / row["held"]
    row["accepted in a pass"] = row["bytes of them"] / row["text passes"]
alone, paged, whole, shared, draft = served.values()
print("filled:", guess_filled.score(whole["filled, %"]))
print("draft:", guess_draft.score(draft["requests/s"] / alone["requests/s"]))
columns = ("decode steps", "read in prefills", "filled, %", "accepted in a pass", "requests/s")
rows = [{"cache": way, **{c: row[c] for c in columns}} for way, row in served.items()]
Table(rows, "All requests come at once; the same texts, byte for byte")

# %%
display(
    claim.larger(
        "serving_reserved_steps",
        "In the same memory, reserving takes over twice as many steps.",
        whole["decode steps"],
        paged["decode steps"],
        by=2,
        kind="count",
    ),
    claim.at_most(
        "serving_shared_prefix",
        "Once the first eight are read, no prompt's first 40 bytes are read again.",
        shared["read in prefills"],
        alone["read in prefills"] - (lm.REQUESTS - lm.PLACES) * lm.PREFACE,
        kind="count",
    ),
    claim.larger(
        "serving_draft_steps",
        "The draft saves over half of the large model's steps.",
        alone["decode steps"],
        draft["decode steps"],
        by=2,
        kind="count",
    ),
)
k, layers = lm.GUESSES, 3  # a pass: k times the draft's one layer, then all layers for k + 1 bytes
kept = (draft["bytes"] - draft["requests"]) / draft["text passes"]  # the prefills gave the others
read, computed = ((k + bytes_read * layers) / kept for bytes_read in (1, k + 1))
rows = [{"": "alone", "weights read": layers, "computed": layers}]
rows.append({"": "with the draft", "weights read": read, "computed": computed})
Table(rows, "Layers of the models for each byte of text")

# %% [markdown]
# So a draft pays where *reading* weights takes the time: on a GPU, with few requests. A core, or a
# large batch, is short of arithmetic, and a draft adds to it. A bad draft only costs more. Where
# text is sampled, the paper's random rule keeps the distribution.
#
# | | its paper | in vLLM 0.33 |
# |---|---|---|
# | continuous batching | Orca | always; places: `--max-num-seqs` |
# | blocks | PagedAttention: before it 20 to 38 % of a cache held tokens | always; `--block-size` |
# | shared prefixes | PagedAttention, of known texts | by default; `--no-enable-prefix-caching` |
# | a draft | Leviathan et al. | `--speculative-config`, with `"method": "draft_model"` |
#
# In 16 bits a batch of another size rounds differently, so texts may differ; float64 hides it here.
#
# ## Triton, and several devices (optional)
#
# ### Triton
#
# **Triton Inference Server** is NVIDIA's server: a *repository* of models with a configuration for
# each, instances, a dynamic batcher, metrics, versions. A *backend* runs the model: here Python's,
# which calls ONNX Runtime.

# %%
triton = serving_lab.Triton(PLACE, EXPORTED / "gpt.onnx", asked)
print(triton.config())
Table(triton.measure(), triton.says)

# %% [markdown]
# If it answers fewer than the server above, do not conclude that Triton is slow: its Python backend
# hands each batch to another process, its ONNX Runtime backend does not. Under the same drills,
# behind a **front** that checks each request first (`src/serve/checking_front.py`):

# %%
Table(triton.drills(), triton.says)

# %% [markdown]
# Triton (2.51, of 2024) does not restart an instance whose process was killed: its requests fail,
# while the health check reports that all is well. So watch what is *answered*. The front is there
# because this version answers several mistakes of clients with 500, as if the server had failed,
# and a body of a hundred thousand brackets crashes it. The front turns 500 into 503: refused.
#
# The same backend runs other models and formats: here a StripedLSTM as TorchScript, the format
# before `torch.export`. Then one line of its configuration after the other is replaced:

# %%
CONFIGURATIONS = SRC / "snippets/triton_configurations.py"
Table(triton.configurations(CONFIGURATIONS), triton.says)

# %% [markdown]
# So two instances answer at the same time, and a configuration that is refused leaves the one
# before it serving. Triton's parser takes all lines but the last, and tells the server's log alone
# what it has not understood.
#
# PyPI's Triton has no other backend than Python's; NVIDIA's containers have those for ONNX and
# TorchScript. By Triton's documentation, `backend: "onnxruntime"` is all that changes for an
# `.onnx` file; PyTorch's reads `model.pt`, and wants an output named `scores__0`. `gpus: [ 0, 1 ]`
# puts `count` instances on each of these GPUs; without an `instance_group` every GPU has one. A
# trace keeps the device on which it was made, so for GPUs `src/serve/triton_model.py` takes the
# `.pt2` file, and moves it to its instance's own.
#
# ### Several devices
#
# Two ways to use two devices: **replicas**, a model on each, or **one model over both**, the
# pipeline of lesson 06b without its backward passes.

# %%
ways = serving_lab.compare_devices()
Table(ways, "Two CPU ranks, one core each, against one process")

# %% [markdown]
# Replicas need no communication: two bring about twice the throughput, at the latency of one. A
# pipeline halves the parameters on each device, and makes no request faster, since each passes
# through all stages. Copy a model that fits, cut one that does not. (Tensor parallelism, lesson
# 06c, can make one faster, on fast links.)
#
# ## Exercises
#
# ### First: what is accepted?
#
# A small model guessed k bytes. `best` has the large model's k + 1: the likeliest byte after the
# text and after each guess. `accept(guesses, best)` returns the bytes to add, all that one pass
# proves.

# %%
from bootcamp import exercise


def accept(guesses, best):
    # your turn: return a list of numbers, one for each byte
    ...


print(exercise.check("accept", accept))

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
# how many requests of `length` tokens fit into `gpu_gb` beside the weights, all in bfloat16.

# %%


def requests_that_fit(gpu_gb, billions, layers, query_heads, kv_heads, head_width, length):
    # your turn: return a whole number
    ...


print(exercise.check("requests_that_fit", requests_that_fit))

# %% [markdown]
# `exercise.solution("accept")`, `exercise.solution("same_model")` and
# `exercise.solution("requests_that_fit")` show solutions.
#
# ## When to use it and when not
#
# Which server for what, as of November 2026, by each project's own documentation and releases:
#
# - **vLLM, SGLang, TensorRT-LLM**: language models.
# - **Triton**: many models and formats on GPUs. Missing: checks of requests, repair of dead
#   instances.
# - **ONNX Runtime, OpenVINO**: CPUs, GPUs and small devices, as a library. Missing: the server.
# - **LitServe, BentoML, Ray Serve**: Python around a model, with batches and replicas.
# - **KServe**: any of these on Kubernetes.
# - **TorchServe**: nothing new, for it was archived in August 2025.
#
# Apart from that:
#
# - **Export** when the server must not depend on your code, or (ONNX) not on torch. Otherwise the
#   eager model with `torch.compile` is the simpler choice.
# - **Batches** where one request leaves the device idle. They do nothing for requests that fill it.
# - **Refuse** early. A queue without a limit turns overload into timeouts for everybody.
# - **Test** with an open loop, with every answer compared, and with a worker killed.
#
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
# - Y. Leviathan et al.: *Fast Inference from Transformers via Speculative Decoding*,
#   arXiv:2211.17192; A. Agrawal et al.: *Sarathi-Serve*, arXiv:2403.02310 (chunked prefill); Y.
#   Zhong et al.: *DistServe*, arXiv:2401.09670 (prefill and decode apart).
# - vLLM documentation, 0.33.0: `vllm serve`, `vllm bench serve`, *Automatic Prefix Caching*,
#   *Speculative Decoding*. NVIDIA, *H100* data sheet.
# - KServe: *Open Inference Protocol*; NVIDIA: *Triton Inference Server* documentation, *Model
#   Configuration* and the README of its PyTorch backend.
# - PyTorch documentation: *torch.export*, *AOTInductor*, *torch.onnx*.
