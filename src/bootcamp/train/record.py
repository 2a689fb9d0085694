"""The record that a rank leaves of its run, in `logs/<run>/`; logs/README.md has its fields.

- `config.json`, at the start: flags, command, versions, machine, git commit (run_folder.py).
- `steps.jsonl`, from rank 0: one flat object per step (step_clock.py).
- `ranks/<k>.json`, at the end: bytes, samples, the parameters' fingerprint.
- `ranks/<k>.trace.json`, if asked for: one step as torch.profiler saw it.
- `summary.json`: how it ended, and its measures.
"""

import contextlib
import sys
from pathlib import Path

import torch

from bootcamp.records import heartbeat, summary, trace
from bootcamp.train import environment, memory_usage, models, process_end, process_group
from bootcamp.train.fingerprint import fingerprint
from bootcamp.train.run_context import RunContext
from bootcamp.train.sent_bytes import SentPerStep
from bootcamp.train.step_clock import StepLog, clock_of


class Run:
    """Record one rank's training: `step` around every step, `loss` behind it, `finish` at the end.

    model, optimizer: read for bytes and fingerprints, never changed; without an optimizer a step
    is a forward. batches: the data.Batches of the script. world: the number of ranks as the
    script's framework reports it.
    """

    def __init__(self, context: RunContext, model, optimizer, batches, world: int):
        self.context, self.args, self.folder = context, context.args, context.run_dir
        self.model, self.batches, self.optimizer = model, batches, optimizer
        self.world, self.script_world = process_group.size(framework=world), world
        self.rank = environment.rank()
        self.device = torch.device(context.device)
        self.tokens = models.tokens_per_sample(self.args)
        self.steps_done = 0
        self.sample_ids, self.sample_checksums, self.learning_rates = [], [], []
        self._routers, self._expert_counts = models.moe.routers(model), []
        context.heartbeat = heartbeat.Heartbeat(self.folder, self.rank)
        steps = self.args.steps - context.first_step
        # a pipeline's first step also runs the stages to learn their shapes: watch its second
        self._watched = min(int("pipeline" in context.axes), steps - 1)
        self._batch_norms = 0
        self._sent = SentPerStep(last_counted=steps - 2)
        self._memory = memory_usage.Held(model, optimizer)
        self.initial_fingerprint = fingerprint(model, context.heartbeat.beat)
        self._activations = memory_usage.Activations(model)
        self._clock = clock_of(self.device)
        self._log = StepLog(self.folder / "steps.jsonl" if self.rank == 0 else None)
        context.write_steps = self._log.flush
        self._profiler = self._traced = None

    @contextlib.contextmanager
    def step(self, step: int):
        """Time one step of training: on a GPU between two events in its stream."""
        self.begin_step(step)
        try:
            yield
        except BaseException:
            self._log.salvage()
            raise
        self.end_step()

    def begin_step(self, step: int) -> None:
        """Begin a step, for a framework whose loop calls methods."""
        self._step = step
        groups = getattr(self.optimizer, "param_groups", ())
        self.learning_rates += [float(group["lr"]) for group in groups[:1]]
        if self.args.trace_step is not None:
            self._prepare_trace(steps_left=self.args.trace_step - step)
        if self.steps_done == self._watched:
            self._activations.start()
        self._clock.begin()

    def end_step(self) -> None:
        """The step ends here."""
        seconds = self._clock.end()
        if self.steps_done == self._watched:
            self._activations.stop()
            self._batch_norms = batch_norm_layers(self.model)  # a validation ends in eval mode
        self._sent.step_ended(self.steps_done)
        if self._traced:
            self._end_trace()
        row = {
            "step": self._step,
            "attempt": environment.attempt(),
            "samples": self.args.global_batch,
            "tokens": self.args.global_batch * self.tokens,
        }
        self._log.step_ended(row, seconds)
        self.sample_ids.append(self.batches.sample_ids)
        self.sample_checksums.append(getattr(self.batches, "sample_checksums", []))
        self._expert_counts.append([router.counts for router in self._routers])
        self.steps_done += 1
        self.context.heartbeat.beat(self.steps_done)

    def loss(self, loss: torch.Tensor, pending=None) -> None:
        """Note the loss of the step that has just ended: the mean over the global batch, shape ().

        pending: the handle of an asynchronous all-reduce, or a function that waits. Both are read
        after the next step, so that no step waits for the record.
        """
        self._log.loss(loss, pending)

    def finish(self) -> None:
        """Write the rank's record and, on rank 0, the summary; see process_end.py."""
        self._log.flush()
        record = self._record()
        summary.write_json(self.folder / "ranks" / f"{self.rank}.json", record)
        if self.rank == 0:
            measures = summary.measures_of(self.folder)
            flops = models.flops_per_sample(self.args, trained=self.optimizer is not None)
            samples = measures["samples_per_second"]["median"]
            summary.write(
                self.folder,
                "ok",
                **measures,
                world_size=self.world,
                launcher=environment.launcher(),
                restarts=environment.attempt(),
                peak_bytes=record["peak_bytes"],
                flops_per_sample=flops,
                achieved_flops_per_second=flops and flops * samples,
            )
        process_end.leave_without_freeing()

    def _record(self) -> dict:
        graphs = compiled_graphs()
        return {
            "rank": self.rank,
            "world_size": self.world,
            "script_world_size": self.script_world,
            "data_share": getattr(self.batches, "rank", self.rank),
            "stages": stages(self.model),
            "batch_norm_layers": self._batch_norms,
            "first_step": self.context.first_step,
            "device": str(self.device),
            "parameter_device": next(self.model.parameters()).device.type,
            "activation_devices": sorted(self._activations.devices),
            "parameter_bytes": self._memory.parameter_bytes,
            "gradient_bytes": self._memory.gradient_bytes,
            "optimizer_bytes": self._memory.optimizer_bytes,
            # what a fused kernel makes is nobody's to count
            "activation_bytes": None if graphs else self._activations.bytes,
            "compiled_graphs": graphs,
            "peak_bytes": memory_usage.peak_bytes(self.device),
            "sent_bytes_per_step": self._sent.per_step("all"),
            "sent_to_other_hosts_bytes_per_step": self._sent.per_step("other hosts"),
            "host_sent_bytes_per_step": self._sent.per_step("host"),
            "communication_seconds": self._communication_seconds(),
            "fingerprint_initial": self.initial_fingerprint,
            "fingerprint_final": fingerprint(self.model, self.context.heartbeat.beat),
            "sample_ids": self.sample_ids,
            "sample_checksums": self.sample_checksums,
            "learning_rates": self.learning_rates,
            "expert_counts": [[each.tolist() for each in step] for step in self._expert_counts],
        }

    def _prepare_trace(self, steps_left: int) -> None:
        """Start the profiler a step early: ranks take different times for that."""
        if steps_left not in (0, 1):
            return
        if self._profiler is None:
            activities = [torch.profiler.ProfilerActivity.CPU]
            if self.device.type == "cuda":
                activities.append(torch.profiler.ProfilerActivity.CUDA)
            one = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
            self._profiler = torch.profiler.profile(activities=activities, schedule=one)
            self._profiler.__enter__()
        if steps_left == 0:
            self._log.flush()  # no earlier step's loss is on its way within the traced one
            self._profiler.step()  # from here on it records
            self._traced = torch.profiler.record_function("training_step")
            self._traced.__enter__()

    def _end_trace(self) -> None:
        self._traced.__exit__(None, None, None)
        self._profiler.__exit__(None, None, None)
        self._profiler.export_chrome_trace(str(self._trace_path()))
        self._profiler = self._traced = None

    def _trace_path(self) -> Path:
        return self.folder / "ranks" / f"{self.rank}.trace.json"

    def _communication_seconds(self) -> float | None:
        """Add up the traced step's time in torch's collectives, waiting included; or None."""
        if not self._trace_path().exists():
            return None
        return trace.total_seconds(trace.read(self._trace_path())["communicate"]) or None


def compiled_graphs() -> int:
    """Count the graphs that torch.compile has made in this process, without loading it."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return counters.get("stats", {}).get("unique_graphs", 0)


def stages(model: torch.nn.Module) -> list[str]:
    """List the names of the model's stages that this rank holds, such as ["block2", "head"]."""
    names = (models.own_name(name) for name, _ in model.named_parameters())
    return sorted({name.partition(".")[0] for name in names})


def batch_norm_layers(model: torch.nn.Module) -> int:
    """Count layers that normalise over this rank's samples, neither frozen nor synchronised."""
    kinds = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
    return sum(type(layer) in kinds and layer.training for layer in model.modules())
