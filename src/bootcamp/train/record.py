"""Record a rank's run in `logs/<run>/`: the files and fields that logs/README.md describes."""

import contextlib
import sys

import torch

from bootcamp.records import heartbeat, summary, trace, turn
from bootcamp.train import environment, memory_usage, models, process_end
from bootcamp.train.config import RunContext
from bootcamp.train.fingerprint import fingerprint
from bootcamp.train.sent_bytes import count_sent_bytes
from bootcamp.train.step_clock import Clock, StepLog


class Run:
    """Record one rank's training: `step` around every step, `loss` behind it, `finish` at the end.

    model, optimizer: read for bytes and fingerprints, never changed; without an optimizer a step is
    a forward. batches: the script's data.Batches. world: the ranks that its framework counts.
    """

    def __init__(self, context: RunContext, model, optimizer, batches, world: int):
        self.context, self.args, self.folder = context, context.args, context.run_dir
        self.model, self.batches, self.optimizer = model, batches, optimizer
        self.world, self.script_world = environment.count_ranks(world), world
        self.rank = environment.rank()
        self.device = torch.device(context.device)
        self.steps_done = 0
        self.sample_ids, self.sample_checksums, self.learning_rates = [], [], []
        self._routers, self._expert_counts = models.moe.list_routers(model), []
        context.heartbeat = heartbeat.Heartbeat(self.folder, self.rank)
        steps = self.args.steps - context.first_step
        # a pipeline's first step also runs the stages to learn their shapes: watch its second
        self._watched = min(int("pipeline" in context.axes), steps - 1)
        # bytes sent are counted from the end of the first step, which makes connections, to that of
        # the last but one: in the last a neighbour may leave before this rank counts
        self._last_counted, self._sent = steps - 2, []
        self._batch_norms = 0
        self._memory = memory_usage.ModelMemory(model, optimizer)
        self.initial_fingerprint = fingerprint(model, context.heartbeat.beat)
        self._activations = memory_usage.Activations(model)
        self._clock = Clock(self.device)
        self._log = StepLog(self.folder / "steps.jsonl" if self.rank == 0 else None)
        context.write_steps = self._log.flush
        self._takes_turns = (self.folder / turn.FILE).exists()
        self._trace, self._profiler = contextlib.ExitStack(), None
        self._trace_path = self.folder / "ranks" / f"{self.rank}.trace.json"

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
        if self._takes_turns:
            turn.wait(self.folder, step, before=self._log.flush)
        self._step = step
        groups = getattr(self.optimizer, "param_groups", ())
        self.learning_rates += [float(group["lr"]) for group in groups[:1]]
        if self.args.trace_step is not None:
            self._prepare_trace(steps_left=self.args.trace_step - step)
        if self.steps_done == self._watched:
            self._activations.start()
        self._clock.begin()

    def end_step(self) -> None:
        """End the step: stop its clock, and note its samples and counts."""
        seconds = self._clock.end()
        if self.steps_done == self._watched:
            self._activations.stop()
            self._batch_norms = count_batch_norms(self.model)  # a validation ends in eval mode
        if self.steps_done in (0, self._last_counted):
            self._sent.append(count_sent_bytes())
        if self._step == self.args.trace_step:
            self._trace.close()
            self._profiler = None
        samples = self.args.global_batch
        row = {"step": self._step, "attempt": environment.attempt(), "samples": samples}
        row["tokens"] = samples * models.tokens_per_sample(self.args)
        self._log.step_ended(row, seconds)
        self.sample_ids.append(self.batches.sample_ids)
        self.sample_checksums.append(getattr(self.batches, "sample_checksums", []))
        self._expert_counts.append([router.counts for router in self._routers])
        self.steps_done += 1
        self.context.heartbeat.beat(self.steps_done)

    def loss(self, loss: torch.Tensor, pending=None) -> None:
        """Note the loss of the step that has just ended: the mean over the global batch, shape ().

        pending: an asynchronous all-reduce's handle, or a function; awaited after the next step.
        """
        self._log.loss(loss, pending)

    def finish(self) -> None:
        """Write the rank's record and, on rank 0, the summary."""
        self._log.flush()
        record = self._record()
        summary.write_json(self.folder / "ranks" / f"{self.rank}.json", record)
        if self.rank == 0:
            flops = models.flops_per_sample(self.args, trained=self.optimizer is not None)
            how = {"launcher": environment.launcher(), "restarts": environment.attempt()}
            measured = {"peak_bytes": record["peak_bytes"], "flops_per_sample": flops}
            summary.write(self.folder, "ok", world_size=self.world, **how, **measured)
        process_end.leave_without_freeing()

    def _record(self) -> dict:
        # those of torch.compile in this process, without loading it
        counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
        graphs = counters.get("stats", {}).get("unique_graphs", 0)
        names = (models.own_name(name) for name, _ in self.model.named_parameters())
        sent = self._sent_per_step()
        return {
            "rank": self.rank,
            "world_size": self.world,
            "script_world_size": self.script_world,
            "data_share": getattr(self.batches, "rank", self.rank),
            "stages": sorted({name.partition(".")[0] for name in names}),
            "batch_norm_layers": self._batch_norms,
            "first_step": self.context.first_step,
            "device": str(self.device),
            "parameter_device": next(self.model.parameters()).device.type,
            "activation_devices": sorted(self._activations.devices),
            **self._memory.count(),
            # tensors within a fused kernel can't be seen
            "activation_bytes": None if graphs else self._activations.bytes,
            "compiled_graphs": graphs,
            "peak_bytes": memory_usage.read_peak_bytes(self.device),
            "sent_bytes_per_step": sent.get("all"),
            "sent_to_other_hosts_bytes_per_step": sent.get("other hosts"),
            "host_sent_bytes_per_step": sent.get("host"),
            "communication_seconds": self._communication_seconds(),
            "fingerprint_initial": self.initial_fingerprint,
            "fingerprint_final": fingerprint(self.model, self.context.heartbeat.beat),
            "sample_ids": self.sample_ids,
            "sample_checksums": self.sample_checksums,
            "learning_rates": self.learning_rates,
            "expert_counts": [[each.tolist() for each in step] for step in self._expert_counts],
        }

    def _sent_per_step(self) -> dict[str, float]:
        if len(self._sent) < 2:
            return {}
        before, after = self._sent
        return {way: (after[way] - before[way]) / self._last_counted for way in after}

    def _prepare_trace(self, steps_left: int) -> None:
        """Start the profiler a step early: ranks take different times for that."""
        if steps_left == 1 or (steps_left == 0 and self._profiler is None):
            kinds = torch.profiler.ProfilerActivity
            activities = [kinds.CPU, kinds.CUDA] if self.device.type == "cuda" else [kinds.CPU]
            self._profiler = torch.profiler.profile(
                activities=activities,
                schedule=torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1),
                on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(self._trace_path)),
            )
            self._trace.enter_context(self._profiler)
        if steps_left == 0:
            self._log.flush()  # no earlier step's loss is on its way within the traced one
            self._profiler.step()  # from here on it records
            self._trace.enter_context(torch.profiler.record_function("training_step"))

    def _communication_seconds(self) -> float | None:
        """Add up the traced step's time in torch's collectives, waiting included; or None."""
        if not self._trace_path.exists():
            return None
        return trace.total_seconds(trace.read_timeline(self._trace_path)["communicate"]) or None


def count_batch_norms(model: torch.nn.Module) -> int:
    """Count layers that normalise over this rank's samples, neither frozen nor synchronised."""
    kinds = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
    return sum(type(layer) in kinds and layer.training for layer in model.modules())
