"""python tools/planted_bugs.py [NAME ...]

Proves that the tests can fail: plants one bug at a time in a copy of the project and runs the tests
that must find it. A bug that no test finds, or whose text is no longer in the project, ends the
command with 1. Prints a table of the bugs, the test that found each, and the seconds it took.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import interrupts

from bootcamp.paths import SRC
from bootcamp.table import Table

ROOT = SRC.parent
COPIED = ("src", "tests", "tools", "notebooks", "slides", "logs/reference")


@dataclass(frozen=True)
class Bug:
    """A line of a file that is replaced, and the tests that must fail then.

    file: from the project's folder. line: text that the file has exactly once. becomes: what stands
    in its place. tests: what pytest is given, in the suite as it is; --nbval-lax for a notebook.
    """

    name: str
    file: str
    line: str
    becomes: str
    tests: tuple[str, ...]


BUGS = (
    Bug(
        "the embedding is no FSDP unit of its own",
        "src/_train_fsdp.py",
        "for part in model[:-1]:",
        "for part in model[1:-1]:",
        ("tests/test_sharding.py", "-k", "units_of_fsdp"),
    ),
    Bug(
        "the proof allows a hundred times as much",
        "src/bootcamp/records/runs.py",
        "TOLERANCE = 1e-5",
        "TOLERANCE = 1e-3",
        ("tests/test_equality.py", "-k", "trains and gpu"),
    ),
    Bug(
        "the mesh of hybrid sharding has its axes swapped",
        "src/_train_hsdp.py",
        'mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))',
        "grid = torch.arange(world).view(args.shard, -1).T\n"
        'names = ("replicate", "shard")\n'
        "mesh = dist.device_mesh.DeviceMesh(device.type, grid, mesh_dim_names=names)",
        ("tests/test_sharding.py", "-k", "link_of_two_hosts"),
    ),
    Bug(
        "a script goes on without the optimizer's state that it has loaded",
        "src/_train_accumulate.py",
        "first = checkpoint.load(context, model, optimizer)\n",
        "first = checkpoint.load(context, model, optimizer)\n"
        "optimizer = optimizers.build(args, model.parameters())\n",
        ("tests/test_checkpoint.py", "-k", "relay and device"),
    ),
    Bug(
        "a resumed run begins with momentum zero",
        "src/bootcamp/train/checkpoint.py",
        "for key, v in own.items()}",
        'for key, v in own.items() if key != "momentum_buffer"}',
        ("tests/test_checkpoint.py", "-k", "relay and replicas"),
    ),
    Bug(
        "a rank of 1F1B has a micro-batch too few in flight",
        "src/bootcamp/costs/pipeline_schedules.py",
        '"1f1b": below, ',
        '"1f1b": max(0, below - 1), ',
        ("tests/test_schedules.py", "-k", "in_flight or bubble"),
    ),
    Bug(
        "the batches of an epoch overlap",
        "src/bootcamp/train/data.py",
        "first = step_in_epoch * self.global_batch",
        "first = step_in_epoch * (self.global_batch - 1)",
        ("tests/test_data_and_models.py", "-k", "epoch"),
    ),
    Bug(
        "an exported file has numbers of 16 bits",
        "src/bootcamp/serving/consolidate.py",
        "{name: tensor.contiguous() for",
        "{name: tensor.bfloat16().contiguous() for",
        ("tests/test_export.py", "-k", "becomes_one_file"),
    ),
    Bug(
        "the gradients of FSDP are reduced after the first micro-batch",
        "src/_train_fsdp_in_practice.py",
        "(share is shares[-1])",
        "(share is shares[0])",
        ("tests/test_equality.py", "-k", "trains and fsdp_in_practice"),
    ),
    Bug(
        "the package wraps a model itself",
        "src/bootcamp/train/optimizers.py",
        "import torch\n",
        "import torch\nfrom torch.nn.parallel import DistributedDataParallel as Wrapped\n",
        ("tests/test_scripts.py",),
    ),
    Bug(
        "padding forgotten in a formula",
        "src/bootcamp/costs/sharding.py",
        "return 2 * math.ceil(parameters / (2 * ranks))",
        "return parameters // ranks",
        ("tests/test_formulas.py",),
    ),
    Bug(
        "gradients summed, not averaged",
        "src/_train_ddp_by_hand.py",
        "            parameter.grad /= world\n",
        "",
        ("tests/test_equality.py", "-k", "trains and ddp_by_hand"),
    ),
    Bug(
        "each rank starts from parameters of its own",
        "src/bootcamp/train/models/__init__.py",
        "torch.manual_seed(args.seed * 1_000_003 + position)",
        'torch.manual_seed(position + int(__import__("os").environ.get("RANK", 0)))',
        ("tests/test_equality.py", "-k", "trains and fsdp and x2"),
    ),
    Bug(
        "two stages are complete at once while shards are initialised",
        "src/bootcamp/train/models/__init__.py",
        "            del drawn\n",
        "",
        ("tests/test_sharding.py", "-k", "no_rank_could_hold and meta"),
    ),
    Bug(
        "gradients are summed in the width of gathered parameters",
        "src/_train_fsdp_in_practice.py",
        "args.reduce_dtype or args.dtype)",
        "args.gather_dtype or args.dtype)",
        ("tests/test_sharding.py", "-k", "sends_the_bytes and 32"),
    ),
    Bug(
        "gathered keys get the gradient of this rank's queries alone",
        "src/snippets/context_parallel.py",
        "        dist.reduce_scatter(own, list(d_parts.contiguous()))\n",
        "        own.copy_(d_parts[rank])\n",
        ("tests/test_tensor_lesson.py", "-k", "three_ways and gather"),
    ),
    Bug(
        "a rank's generator is not taken up",
        "src/snippets/stateful_checkpoint.py",
        '        torch.set_rng_state(state[f"generator{rank}"])\n',
        "",
        ("tests/test_checkpoints_lesson.py", "-k", "loader_and_generators"),
    ),
    Bug(
        "a sample is trained twice",
        "src/bootcamp/train/data.py",
        ".chunk(self.world)[self.rank]",
        ".chunk(self.world)[max(0, self.rank - 1)]",
        ("tests/test_equality.py", "-k", "trains and ddp and x2"),
    ),
    Bug(
        "a shard is not saved",
        "src/bootcamp/train/sharded_checkpoint.py",
        "        dcp.save(state, checkpoint_id=part)\n",
        "        if environment.rank() == 0:\n"
        "            dcp.save(state, checkpoint_id=part, no_dist=True)\n",
        ("tests/test_checkpoint.py", "-k", "relay and shards"),
    ),
    Bug(
        "the proof of a script is lost",
        "tests/test_equality.py",
        "@pytest.mark.proves(*PROVED)\n",
        "",
        ("tests/test_proofs.py",),
    ),
    Bug(
        "the records import what runs in a rank",
        "src/bootcamp/records/steps.py",
        "import json\n",
        "import json\n\nimport bootcamp.train.config  # noqa: F401\n",
        ("tests/test_subpackages.py",),
    ),
    Bug(
        "the public interface loads all at once",
        "src/bootcamp/__init__.py",
        "__all__ = list(FRONT_DOOR)\n",
        "__all__ = list(FRONT_DOOR)\nimportlib.import_module('bootcamp.records.runs')\n",
        ("tests/test_subpackages.py", "-k", "loads_nothing_else"),
    ),
    Bug(
        "a launch with other arguments is answered by an earlier one",
        "tests/run_cache.py",
        "        groups,\n        how,\n",
        "        how,\n",
        ("tests/test_run_cache.py",),
    ),
    Bug(
        "a rank is left behind",
        "src/bootcamp/launcher/supervisor.py",
        "                await self._end_all()\n",
        "                pass\n",
        ("tests/test_faults.py",),
    ),
    Bug(
        "a formula of bytes forgets the second half of the ring",
        "src/bootcamp/costs/sharding.py",
        'RING = {"all-reduce": 2,',
        'RING = {"all-reduce": 1,',
        ("tests/test_formulas.py",),
    ),
    Bug(
        "a notebook's cell is broken",
        "notebooks/01_cpu_baseline.ipynb",
        "from bootcamp import launch",
        "from bootcamp import lunch",
        ("notebooks/01_cpu_baseline.ipynb",),
    ),
    Bug(
        "a checker accepts every answer",
        "src/bootcamp/classroom/tasks.py",
        "if not is_same(answer, expected, self.within):",
        "if False:",
        ("tests/test_classroom.py", "-k", "functions"),
    ),
    Bug(
        "a slide shows a number without a record",
        "slides/04_ddp.md",
        'The gradients are {{ megabytes("ddp-2", "gradient_bytes") }}.',
        "The gradients are 1.34 MB.",
        ("tests/test_slides.py", "-k", "typed"),
    ),
    Bug(
        "letters of a slide's figures stay as small as in a notebook",
        "slides/embed.py",
        "    _enlarge_letters(figure, px_per_inch)\n",
        "",
        ("tests/test_slides.py", "-k", "letters"),
    ),
    Bug(
        "a diff on a slide shows headings that nobody asked for",
        "slides/lookups.py",
        "not headings or int(match[1]) in headings",
        "True",
        ("tests/test_slides.py", "-k", "diff"),
    ),
    Bug(
        "a page shows what answers its prediction",
        "tools/pages.py",
        '        elif asked and cell.get("outputs"):',
        "        elif False:",
        ("tests/test_pages.py", "-k", "folded"),
    ),
    Bug(
        "pages are written over whatever is there",
        "tools/pages.py",
        "if (output / BUILT).is_file():",
        "if output.is_dir():",
        ("tests/test_pages.py", "-k", "earlier_build"),
    ),
    Bug(
        "an agenda teaches a lesson before what it needs",
        "tools/lessons.py",
        "if each not in {*taught, *skips}]:",
        "if False]:",
        ("tests/test_kit.py", "-k", "refused"),
    ),
    Bug(
        "an agenda goes on without a pause",
        "tools/lessons.py",
        "if without_pause > LONGEST:",
        "if False:",
        ("tests/test_kit.py", "-k", "refused"),
    ),
    Bug(
        "expected outputs are recorded on a busy machine",
        "tools/course.py",
        "if args.expected and not (found := quietness.measure()).is_quiet:",
        "if False:",
        ("tests/test_kit.py", "-k", "busy"),
    ),
    Bug(
        "a class counts an exercise that nobody has solved",
        "tools/results.py",
        'return int(lesson["exercises solved"].partition(" ")[0])',
        'return int(lesson["exercises solved"].rpartition(" ")[2])',
        ("tests/test_results.py",),
    ),
    Bug(
        "a lesson's plan counts its optional parts",
        "tools/kit.py",
        "now += 0 if free else minutes",
        "now += minutes",
        ("tests/test_kit.py", "-k", "plan"),
    ),
    Bug(
        "a claim on devices is not released",
        "src/bootcamp/launcher/device_locks.py",
        "self._held.close()",
        "pass",
        ("tests/test_device_locks.py",),
    ),
    Bug(
        "who waits for two devices keeps one of them",
        "src/bootcamp/launcher/device_locks.py",
        "            for lock in held:\n                lock.release()\n            now",
        "            now",
        ("tests/test_device_locks.py", "-k", "all_at_once_or_none"),
    ),
    Bug(
        "a failed run keeps its devices",
        "src/bootcamp/launcher/supervisor.py",
        "                self.devices.release()\n        return self._conclude(failure)",
        "                pass\n        if not failure:\n            self.devices.release()\n"
        "        return self._conclude(failure)",
        ("tests/test_device_locks.py", "-k", "failed_run"),
    ),
    Bug(
        "ranks that share their cores say nothing of it",
        "src/bootcamp/launcher/device_locks.py",
        "            self.shared |= not _try_to_lock(file, fcntl.LOCK_EX)\n",
        "            _try_to_lock(file, fcntl.LOCK_EX)\n",
        ("tests/test_device_locks.py", "-k", "shared"),
    ),
    Bug(
        "rank 0 is blamed for a hang",
        "src/bootcamp/launcher/hang.py",
        "        rank = stuck[0] if len(stuck) == 1 else None\n",
        "        rank = ranks[0]\n",
        ("tests/test_faults.py", "-k", "rank_hangs"),
    ),
    Bug(
        "a rank that computes counts as idle",
        "src/bootcamp/launcher/hang.py",
        "            self._computed = now\n",
        "            pass\n",
        ("tests/test_hang.py", "-k", "print_or_compute"),
    ),
    Bug(
        "an interrupted run is recorded as ok",
        "src/bootcamp/launcher/supervisor.py",
        'self._write("interrupted" if stopped else "failed", error=failure)',
        'self._write("ok" if stopped else "failed", error=failure)',
        ("tests/test_faults.py", "-k", "interrupted"),
    ),
    Bug(
        "the failed rank of the lowest number counts as the first",
        "src/bootcamp/launcher/first_failure.py",
        "for name, code in failed.items() if code < 0), next(iter(failed)))",
        "for name, code in failed.items() if code < 0), min(failed))",
        ("tests/test_faults.py", "-k", "rank_raises"),
    ),
    Bug(
        "a line of steps.jsonl that is being written is read",
        "src/bootcamp/records/steps.py",
        'complete, newline, _ = file.read().rpartition(b"\\n")',
        'complete, newline = file.read(), b""',
        ("tests/test_files.py", "-k", "steps"),
    ),
    Bug(
        "two processes change a shared file at once",
        "src/bootcamp/files.py",
        'with FileLock(path.with_name(f".{path.name}.lock"), timeout=60):',
        "with contextlib.nullcontext():",
        ("tests/test_files.py", "-k", "two"),
    ),
    Bug(
        "a simulated host's link is as fast as the machine",
        "src/bootcamp/launcher/simulated_hosts.py",
        "            if rate:\n",
        "            if not rate:\n",
        ("tests/test_hosts.py", "-k", "link"),
    ),
    Bug(
        "a job file does not say how many tasks a host starts",
        "src/jobs/ddp_srun.sbatch",
        "#SBATCH --ntasks-per-node=2\n",
        "",
        ("tests/test_jobs.py", "-k", "known_fault"),
    ),
    Bug(
        "a record made on shared cores is kept as a reference",
        "src/bootcamp/experiments/replay.py",
        "    if run.shared_cores:\n",
        "    if False:\n",
        ("tests/test_recorded.py",),
    ),
    Bug(
        "live ranks do not meet again after an error",
        "src/bootcamp/launcher/live_ranks.py",
        "        if parted:\n            self._meet()\n",
        "",
        ("tests/test_live.py",),
    ),
    Bug(
        "a file's bytes are not on the disk when it takes its place",
        "src/bootcamp/files.py",
        "        os.fsync(file.fileno())\n",
        "",
        ("tests/test_checkpoint.py", "-k", "synced_before"),
    ),
    Bug(
        "a step of the warm-up is counted",
        "src/bootcamp/records/summary.py",
        "WARMUP_STEPS = 3",
        "WARMUP_STEPS = 2",
        ("tests/test_record.py", "-k", "warm_up"),
    ),
    Bug(
        "the first row of a repeated step counts",
        "src/bootcamp/records/steps.py",
        "for row in rows}",
        "for row in reversed(rows)}",
        ("tests/test_files.py", "-k", "steps"),
    ),
    Bug(
        "the rank that waits is taken for the cause",
        "src/bootcamp/records/standstill.py",
        "for rank in divergence.absent if rank not in waiting",
        "for rank in waiting",
        ("tests/test_hang.py", "-k", "kind_that_is_recognised"),
    ),
    Bug(
        "a variant replaces a line that stands twice",
        "src/bootcamp/scripts/variants.py",
        "if len(places) != 1:",
        "if False:",
        ("tests/test_lessons.py", "-k", "variant"),
    ),
    Bug(
        "job files may start torchrun twice on a host",
        "src/jobs/ddp_torchrun.sbatch",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --ntasks-per-node=2",
        ("tests/test_jobs.py", "-k", "known_fault"),
    ),
    Bug(
        "a bubble by formula has one rank too many",
        "src/bootcamp/costs/pipeline_schedules.py",
        "return (ranks - 1) / (CHUNKS[schedule] * micro_batches)",
        "return ranks / (CHUNKS[schedule] * micro_batches)",
        ("tests/test_schedules.py", "-k", "bubble"),
    ),
    Bug(
        "a cache of keys without the values",
        "src/bootcamp/costs/model_shapes.py",
        "return 2 * self.layers * heads",
        "return self.layers * heads",
        ("tests/test_generation.py", "-k", "kibibytes"),
    ),
    Bug(
        "Young's interval without its factor",
        "src/bootcamp/costs/failures.py",
        "return math.sqrt(2 * save_seconds * mtbf)\n",
        "return math.sqrt(save_seconds * mtbf)\n",
        ("tests/test_failures_at_scale.py",),
    ),
    Bug(
        "a message costs no latency",
        "src/bootcamp/costs/alpha_beta.py",
        "return self.alpha_seconds + self.beta",
        "return self.beta",
        ("tests/test_allreduce_sweep.py", "-k", "fit"),
    ),
    Bug(
        "one all-to-all of the experts is forgotten",
        "src/bootcamp/costs/experts.py",
        "EXCHANGES = 4",
        "EXCHANGES = 3",
        ("tests/test_experts.py", "-k", "bytes or planner"),
    ),
    Bug(
        "a pipeline is cut where it is slowest",
        "src/bootcamp/costs/layer_cut.py",
        "return min(cuts, key",
        "return max(cuts, key",
        ("tests/test_layer_split.py", "-k", "cut"),
    ),
    Bug(
        "a GPU's operations without their backward",
        "tools/gpu.py",
        'return 3 * (shape["layers"]',
        'return 1 * (shape["layers"]',
        ("tests/test_gpu.py", "-k", "theory"),
    ),
    Bug(
        "a part with errors is said to be well",
        "tools/gpu.py",
        '"failed" if part.content["errors"] else "ok"',
        '"ok"',
        ("tests/test_gpu.py", "-k", "what_fails_is_recorded"),
    ),
    Bug(
        "what an ended part has started goes on",
        "tools/gpu.py",
        "os.killpg(process.pid, signal.SIGKILL)",
        "process.kill()",
        ("tests/test_gpu.py", "-k", "what_fails_is_recorded"),
    ),
    Bug(
        "a rehearsal is shown as a GPU's record",
        "src/bootcamp/experiments/replay.py",
        'if not part.get("rehearsal", True)]',
        "]",
        ("tests/test_gpu.py", "-k", "rehearsal_is_not"),
    ),
    Bug(
        "a wheel of Horovod is taken for any torch",
        "tools/horovod.py",
        "-torch{torch}-",
        "-",
        ("tests/test_horovod.py", "-k", "belongs_to_one_torch"),
    ),
    Bug(
        "a recorded trace loses the clock that ranks share",
        "tools/recorders/reference.py",
        ' + round(1e3 * events[0]["ts"])',
        "",
        ("tests/test_traces.py",),
    ),
    Bug(
        "a stack never seen borrows the largest constant",
        "tools/recorders/published_fit.py",
        "return {name: statistics.median(values) for",
        "return {name: max(values) for",
        ("tests/test_plan.py", "-k", "write_what_is_stored"),
    ),
    Bug(
        "a fingerprint of numbers that do not cancel",
        "src/bootcamp/train/fingerprint.py",
        ".mul_(2).sub_(1)",
        "",
        ("tests/test_record.py", "-k", "fingerprint"),
    ),
    Bug(
        "a loss is read before the ranks have added it up",
        "src/bootcamp/train/step_clock.py",
        '            getattr(pending, "wait", pending)()',
        "            pass",
        ("tests/test_step_clock.py",),
    ),
    Bug(
        "a launch without ranks is tried",
        "src/bootcamp/launcher/arguments.py",
        "if ranks is not None and not is_count(ranks):",
        "if False:",
        ("tests/test_launch.py", "-k", "mean_nothing"),
    ),
    Bug(
        "two ranks may train the same samples",
        "src/bootcamp/experiments/equality.py",
        'yield "samples that two ranks trained on", pair.repeated_samples, 0, hint',
        'yield "samples that two ranks trained on", 0, 0, hint',
        ("tests/test_equality.py", "-k", "rejects and whole"),
    ),
    Bug(
        "an interval that is too narrow",
        "src/bootcamp/experiments/claims.py",
        "half = T_99[count] * stdev(logarithms)",
        "half = stdev(logarithms)",
        ("tests/test_claims.py", "-k", "interval"),
    ),
    Bug(
        "requests of different lengths make one tensor",
        "src/bootcamp/serving/batcher.py",
        "(waiting.ids.shape[1] == length and len(waiting.ids) <= room)",
        "len(waiting.ids) <= room",
        ("tests/test_batcher.py", "-k", "equal_length"),
    ),
    Bug(
        "a batch's answers go to the wrong requests",
        "src/bootcamp/serving/batcher.py",
        "numpy.split(scores, ends[:-1])",
        "numpy.split(scores[::-1], ends[:-1])",
        ("tests/test_batcher.py", "-k", "equal_length"),
    ),
    Bug(
        "a request whose client has gone stays in the queue",
        "src/bootcamp/serving/batcher.py",
        "                self.queue.remove(waiting)\n",
        "                pass\n",
        ("tests/test_batcher.py", "-k", "client_has_gone"),
    ),
    Bug(
        "a request that was cancelled in a batch is answered",
        "src/bootcamp/serving/batcher.py",
        "            if one.answer.done():  # its client has gone\n                continue\n",
        "",
        ("tests/test_batcher.py", "-k", "client_has_gone"),
    ),
    Bug(
        "a figure's error bars are turned round",
        "src/bootcamp/drawing/plots/run_bars.py",
        "[[median - low], [high - median]]",
        "[[high - median], [median - low]]",
        ("tests/test_figures.py", "-k", "quartiles"),
    ),
    Bug(
        "ranks without a core of their own count as scaling",
        "src/bootcamp/drawing/plots/scaling.py",
        "fitting = [run for run in runs if not run.oversubscribed]",
        "fitting = list(runs)",
        ("tests/test_figures.py", "-k", "measures_none"),
    ),
    Bug(
        "bytes by formula are drawn as counted",
        "src/bootcamp/drawing/plots/run_bars.py",
        "counted = sum(counts) / len(counts)",
        "counted = formula",
        ("tests/test_figures.py", "-k", "sent_bytes"),
    ),
    Bug(
        "an axis has no label",
        "src/bootcamp/drawing/plots/run_bars.py",
        "axes.dataLim.x1 or 1), xlabel=xlabel)",
        "axes.dataLim.x1 or 1))",
        ("tests/test_figures.py", "-k", "legible and throughput"),
    ),
    Bug(
        "a bar's two values lie over each other",
        "src/bootcamp/drawing/plots/run_bars.py",
        "charts.beside(axes, x, row, below, up=-10,",
        "charts.beside(axes, x, row, below, up=9,",
        ("tests/test_figures.py", "-k", "legible and throughput"),
    ),
    Bug(
        "a run of another machine is called measured here",
        "src/bootcamp/records/measurement.py",
        'same_cpu = described.get("cpu") == machine.cpu_name()',
        "same_cpu = True",
        ("tests/test_figures.py", "-k", "origins"),
    ),
    Bug(
        "waiting is drawn as sending",
        "src/bootcamp/drawing/plots/timeline.py",
        '(sends, step["sending"], 0.25',
        '(sends, step["communicate"], 0.25',
        ("tests/test_figures.py", "-k", "late"),
    ),
    Bug(
        "a prediction does not say that it is one",
        "src/bootcamp/drawing/plots/plans.py",
        'notes = (DALY, f"{takes} {table.caption}.")',
        'notes = (f"{takes} {table.caption}.",)',
        ("tests/test_figures.py", "-k", "legible and checkpoint_interval"),
    ),
    Bug(
        "an explorer forgets the choice that it is called with",
        "src/bootcamp_lessons/explorers.py",
        'control["initial"] = known.index(chosen)',
        "assert chosen in known",
        ("tests/test_explorers.py", "-k", "table"),
    ),
    Bug(
        "a control of an explorer moves nothing",
        "src/bootcamp_lessons/explorers.js",
        'input.addEventListener("input", () => moved());',
        "",
        ("tests/test_explorers.py", "-k", "page"),
    ),
    Bug(
        "the monitor counts the memory of a process that took over a rank's number",
        "src/bootcamp/launcher/hang.py",
        "return here, process.memory_info().rss if here else None",
        "return True, process.memory_info().rss",
        ("tests/test_monitor.py", "-k", "holds_its_file_open"),
    ),
    Bug(
        "a run without a process is still going",
        "src/bootcamp/widgets/monitor.py",
        "is_lost = not any(here) and now - _last_sign(folder) > patience",
        "is_lost = False",
        ("tests/test_dashboard.py", "-k", "lost"),
    ),
    Bug(
        "a negative prediction is one",
        "src/bootcamp/classroom/predict.py",
        "if not AMOUNT.fullmatch(text):",
        "if not AMOUNT.search(text):",
        ("tests/test_predict.py", "-k", "amount"),
    ),
    Bug(
        "a prediction in another unit is taken",
        "src/bootcamp/classroom/predict.py",
        ".strip().removesuffix(unit).strip().lower()",
        '.strip().rstrip("MGkmsB ").lower()',
        ("tests/test_predict.py", "-k", "amounts"),
    ),
    Bug(
        "a prediction's error is relative to the guess",
        "src/bootcamp/classroom/predict.py",
        "within * abs(measured)",
        "within * abs(self.answer)",
        ("tests/test_predict.py", "-k", "scored"),
    ),
    Bug(
        "a prediction changed after the measurement counts",
        "src/bootcamp/classroom/journal.py",
        'if not any(here.items() <= old.items() for old in kept["scored"]):',
        "if True:",
        ("tests/test_predict.py", "-k", "first_answers"),
    ),
    Bug(
        "a cell that was never filled in counts as an attempt",
        "src/bootcamp_lessons/exercise.py",
        "attempts = 0 if isinstance(wrong, NotTried) else note(False)",
        "attempts = note(False)",
        ("tests/test_classroom.py", "-k", "attempts"),
    ),
    Bug(
        "a case of the clinic accepts ranks that all save",
        "src/bootcamp_lessons/labs/clinic_judges.py",
        "is_one = len(writers) == 1",
        "is_one = bool(writers)",
        ("tests/test_clinic.py", "-k", "saved_by_all"),
    ),
    Bug(
        "a checker asks for no parts of unequal size",
        "src/bootcamp_lessons/exercises/training_scripts.py",
        "if not _trains_otherwise(path, 1, steps=3, micro_batches=5):",
        "if True:",
        ("tests/test_exercises.py", "-k", "told_what_helps and accumulate"),
    ),
    Bug(
        "a number of a lesson means those that begin with it too",
        "tools/lessons.py",
        'f"{name}_" if name in notebooks() else name',
        "name",
        ("tests/test_course.py", "-k", "named_by_number"),
    ),
    Bug(
        "an interrupt ends one lesson of the course, and the next begins",
        "tools/course.py",
        'self.error, client.shutdown_kernel = INTERRUPTED, "immediate"',
        'self.error, client.shutdown_kernel = "failed", "immediate"',
        ("tests/test_course.py", "-k", "interrupts_leave"),
    ),
    Bug(
        "a version that can't be loaded is the one of the next start",
        "src/bootcamp/serving/batcher.py",
        "            if errors := [error for error in starts if error]:",
        "            if errors := []:",
        ("tests/test_serving.py", "-k", "broken_versions and course"),
    ),
    Bug(
        "a symptom is told in place of its cause",
        "src/bootcamp/classroom/errors.py",
        "return entries[max(found)[-1]] if found else None",
        "return entries[min(found)[-1]] if found else None",
        ("tests/test_errors.py", "-k", "wherever_they_stand"),
    ),
    Bug(
        "catching up writes over a reader's script",
        "tools/reset.py",
        "if path.exists() and path.read_text() != task.starting_point():",
        "if False:",
        ("tests/test_reset.py", "-k", "catching_up"),
    ),
    Bug(
        "a reset forgets the copy of the reader before",
        "tools/reset.py",
        "next(place for place in places if not place.exists())",
        "next(places)",
        ("tests/test_reset.py", "-k", "twice"),
    ),
    Bug(
        "a layer's activations are the same when it is recomputed",
        "src/bootcamp/costs/memory.py",
        "kept = plan.recompute if kept is None else kept",
        'kept = "none" if kept is None else kept',
        ("tests/test_plan.py", "-k", "memory_is_the_published_one"),
    ),
    Bug(
        "a column of a plan is ignored in silence",
        "src/bootcamp/plan/__main__.py",
        'if name not in known and not name.startswith("published_"):',
        "if False:",
        ("tests/test_plan_rows.py", "-k", "columns_that_nobody_reads"),
    ),
    Bug(
        "a plan that does not fit wins the contest",
        "src/bootcamp_lessons/plan_contest.py",
        "return self.fits and self.slower <= 1 + self.task.within",
        "return self.slower is not None and self.slower <= 1 + self.task.within",
        ("tests/test_planned.py", "-k", "accepted"),
    ),
    Bug(
        "a solution forgets the hosts before",
        "src/bootcamp_lessons/exercises/hosts.py",
        "        rank -= count\n",
        "",
        ("tests/test_exercises.py", "-k", "functions_accept"),
    ),
    Bug(
        "gradients of experts are summed",
        "src/_train_ep.py",
        "            parameter.grad /= world\n",
        "            pass\n",
        ("tests/test_equality.py", "-k", "trains and ep"),
    ),
    Bug(
        "a short part of a batch counts as much as a long one",
        "src/_train_accumulate.py",
        " * len(part_inputs) / len(inputs)",
        " / args.micro_batches",
        ("tests/test_equality.py", "-k", "trains and accumulate"),
    ),
    Bug(
        "a missing torch does not stop the course",
        "tools/preflight_checks.py",
        'GROUPS = ("core", "kernel", "lab")',
        'GROUPS = ("kernel", "lab")',
        ("tests/test_preflight.py", "-k", "missing or before"),
    ),
    Bug(
        "preflight says ready after a launch that failed",
        "tools/preflight.py",
        'return row(label, said[-1] if said else "failed", needed, NOT_READY, fix)',
        'return row(label, said[-1] if said else "failed", needed, LIMITS, fix)',
        ("tests/test_preflight.py", "-k", "launch"),
    ),
    Bug(
        "a group that was not installed is not named",
        "tools/install.py",
        "if step.optional and (failed or (not download and not step.is_done(versions_here()))):",
        "if step.optional and failed and download:",
        ("tests/test_install.py",),
    ),
    Bug(
        "a wheel without its data",
        "pyproject.toml",
        'bootcamp = ["**/*.csv", ',
        "bootcamp = [",
        ("tests/test_wheel.py", "-k", "contains"),
    ),
    Bug(
        "job files and snippets at a wheel's top",
        "pyproject.toml",
        'include = ["bootcamp*"]',
        "",
        ("tests/test_wheel.py", "-k", "contains"),
    ),
    Bug(
        "preflight calls a machine ready that has nothing installed",
        "tools/preflight_checks.py",
        "verdict = LIMITS if group not in GROUPS else NOT_READY if is_made() else TO_INSTALL",
        "verdict = LIMITS if group not in GROUPS or not is_made() else NOT_READY",
        ("tests/test_preflight.py", "-k", "before"),
    ),
    Bug(
        "a lesson asks for a package and gets none",
        "src/bootcamp/launcher/arguments.py",
        'if not fetch or not Path(sys.prefix, ".ready").exists():',
        "if fetch:",
        ("tests/test_install.py",),
    ),
    Bug(
        "every make installs again",
        "tools/install.py",
        "if download or outdated or not step.is_done(here)",
        "if not download or outdated",
        ("tests/test_install.py", "-k", "reader"),
    ),
    Bug(
        "a stored measurement in a notebook",
        "notebooks/00_start_here.ipynb",
        '"id": "00-002",\n   "metadata": {},\n   "outputs": [],',
        '"id": "00-002",\n   "metadata": {},\n   "outputs": [{"text": ["12 ms"]}],',
        ("tests/test_fresh_clone.py",),
    ),
    Bug(
        "those who need help come last",
        "tools/preflight.py",
        "order = [], (NOT_READY, TO_INSTALL, LIMITS, checks.READY)",
        "order = [], (checks.READY, LIMITS, TO_INSTALL, NOT_READY)",
        ("tests/test_preflight.py", "-m", "not slow"),
    ),
    Bug(
        "a blank in VENV is not refused",
        "Makefile",
        "ifneq ($(words $(VENV)),1)",
        "ifneq ($(words $(VENV)),$(words $(VENV)))",
        ("tests/test_install.py", "-k", "blank"),
    ),
    Bug(
        "JupyterLab of the image can't be reached from outside",
        "Containerfile",
        "--ServerApp.ip=0.0.0.0",
        "--no-browser",
        ("tests/test_containers.py",),
    ),
    Bug(
        "another server's packages are changed",
        "tools/hosted.py",
        'kept = [f"{name}=={version}" for name, version in here.items()]',
        "kept = []",
        ("tests/test_hosted.py",),
    ),
    Bug(
        "a reader's notebook is overwritten by the next make lab",
        "tools/lab.py",
        "if not copy.exists():",
        "if copy:",
        ("tests/test_situations.py",),
    ),
    Bug(
        "a pin outside the range of pyproject.toml",
        "constraints.txt",
        "filelock==4.2.11",
        "filelock==3.1.0",
        ("tests/test_environment.py",),
    ),
    Bug(
        "the image's server runs as root",
        "Containerfile",
        "USER 1000:1000",
        "USER 0:0",
        ("tests/test_containers.py",),
    ),
    Bug(
        "runs of one clone go to another's folder",
        "src/bootcamp/paths.py",
        "for folder in (start, *start.parents):",
        "for folder in (start,):",
        ("tests/test_paths.py",),
    ),
    Bug(
        "a sum of split matrices is not added up",
        "src/snippets/tensor_by_hand.py",
        'return sum_over_ranks(partial_sum, "forward")',
        "return partial_sum.clone()",
        ("tests/test_tensor_lesson.py", "-k", "hand"),
    ),
)


def plant(bug: Bug, copy: Path) -> None:
    """Change the copy of the project. Raises ValueError if the text is not there exactly once."""
    path = copy / bug.file
    text = path.read_text()
    if text.count(bug.line) != 1:
        times = text.count(bug.line)
        raise ValueError(f"{bug.name}: {bug.file} has {bug.line!r} {times} times, expected once")
    path.write_text(text.replace(bug.line, bug.becomes))


def copy_project(folder: Path) -> Path:
    """A copy of what the tests read; the packages of this environment are used as they are."""
    for name in COPIED:
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "work")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, folder)
    return folder


def run_tests(bug: Bug, copy: Path) -> tuple[int, str]:
    """The exit code of pytest in the copy, and its output."""
    nbval = ["--nbval-lax"] if any(test.endswith(".ipynb") for test in bug.tests) else []
    command = [sys.executable, "-m", "pytest", "-x", "-rfE", *nbval, *bug.tests]
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "BOOTCAMP_LOGS": str(copy / "l")}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def found_by(output: str) -> str:
    """The first test that failed, from pytest's summary."""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.M)
    return failed[1] if failed else ""


def try_out(bug: Bug) -> dict:
    """Plant one bug in a copy of its own and run its tests: a row of the table."""
    with tempfile.TemporaryDirectory(prefix="bootcamp-bug-") as folder:
        copy = copy_project(Path(folder))
        plant(bug, copy)
        began = time.monotonic()
        code, output = run_tests(bug, copy)
        seconds = time.monotonic() - began
    test = found_by(output) if code == 1 else ""
    return {"bug": bug.name, "file": bug.file, "found by": test or "-", "seconds": seconds}


def main() -> int:
    """Plant the bugs that were named, or all; 1 if any is not found."""
    interrupts.accept()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="bugs, each in quotation marks (default: all)")
    wanted, rows = parser.parse_args().names, []
    known = {bug.name: bug for bug in BUGS}
    if unknown := [name for name in wanted if name not in known]:
        parser.error(f"no bug {unknown[0]!r}: there are {'; '.join(known)}")
    for name in wanted or known:
        rows.append(try_out(known[name]))
        print(f"{name}: {rows[-1]['found by']}", flush=True)
    print(Table(rows, "Bugs that were planted"))
    return 1 if any(row["found by"] == "-" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
