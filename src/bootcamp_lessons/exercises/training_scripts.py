"""Exercises on training scripts, and checks beyond equality with the baseline.

Each check_... gets a script that trains the same, and says what is still wrong with it, or "".
"""

import ast
import json
from dataclasses import dataclass
from pathlib import Path

from bootcamp.classroom.tasks import PATIENCE, ScriptTask, Wrong
from bootcamp.costs import model_shapes
from bootcamp.experiments.equality import Proof, baseline, compare
from bootcamp.launcher import launch, simulated_hosts
from bootcamp.paths import SRC
from bootcamp.scripts import variants

SAVE_PROGRAM, KILLS = SRC / "snippets" / "save_for_ever.py", 20


def _trains_otherwise(path: Path, ranks: int, steps: int, **flags) -> bool:
    """Tell whether a script with these flags trains something else than the baseline, with SGD."""
    same = {"optimizer": "sgd", "steps": steps, "model": "mlp"}
    run = launch.launch(path, ranks, quiet=True, options=PATIENCE, **same, **flags)
    return bool(compare(run, baseline(**same)).failed)


def check_moved(path: Path, proofs: list[Proof]) -> str:
    """Run a step on the meta device, where a tensor that was not moved is an error."""
    rank = launch.launch(path, 1, device="meta", steps=1, model="mlp", quiet=True).ranks[0]
    if (found := rank.parameter_device) != "meta":
        return f"with --device meta the model was on {found}: it was not moved."
    moved = rank.activation_devices == ["meta"]
    return "" if moved else "with --device meta a part of the batch was not moved."


def check_uneven_parts(path: Path, proofs: list[Proof]) -> str:
    """Run with parts of unequal size, which must count with their share of the samples."""
    if not _trains_otherwise(path, 1, steps=3, micro_batches=5):
        return ""
    return (
        "not with --micro-batches 5. There 32 samples are parts of 7, 7, 7, 7 and 4, and a mean of "
        "their means is not the mean of the batch: each part must count with its share of the "
        "samples, len(part_inputs) / len(inputs)."
    )


def check_shared_start(path: Path, proofs: list[Proof]) -> str:
    """Run with a seed for each rank: rank 0's initial parameters must reach all."""
    lines = path.read_text().splitlines()
    builds = [line.strip() for line in lines if "models.build(args)" in line]
    if len(builds) != 1:
        return ""  # nothing that could be tried
    seed, back = (f"args.seed {sign}= environment.rank()" for sign in "+-")
    drawn = f"from bootcamp.train import environment\n{seed}\n{builds[0]}\n{back}"
    own_seeds = variants.variant(path, f"{path.stem}_own_seeds", {builds[0]: drawn})
    if not _trains_otherwise(own_seeds, 2, steps=2):
        return ""
    return (
        "only as long as all ranks draw the same initial parameters. With a seed of its own each "
        "rank stays with its own model: rank 0's parameters must be broadcast before training."
    )


def check_sharded(path: Path, proofs: list[Proof]) -> str:
    """Compare a rank's parameters with its part, allowing a tenth more."""
    whole, ranks = proofs[0].baseline.ranks[0].parameter_bytes, proofs[0].run.ranks
    held = max(rank.parameter_bytes for rank in ranks)
    if held <= 1.1 * whole / len(ranks):
        return ""
    return (
        f"a rank holds {held:,} bytes of parameters. The model has {whole:,}, and there are "
        f"{len(ranks)} ranks: something is not sharded."
    )


def check_units(path: Path, proofs: list[Proof]) -> str:
    """As check_sharded, and look at what is gathered: at a time, and when the forward pass ends."""
    says = 'print("units", sum(hasattr(part, "unshard") for part in model.modules()))\nrun.finish()'
    counted = variants.variant(path, f"{path.stem}_counted", {"run.finish()": says})
    run = launch.launch(counted, 2, steps=1, model="mlp", quiet=True, options=PATIENCE)
    one = "it gathers all parameters at once, and saves nothing while it computes: shard its parts"
    if wrong := check_sharded(path, proofs) or ("units 1\n" in run.output(0) and f"{one} first."):
        return wrong
    run, alone = proofs[0].run, proofs[0].baseline.ranks[0]
    gathered = run.ranks[0].activation_bytes - alone.activation_bytes / run.world
    kept = "most parameters are still gathered when the backward pass begins: free each part, but "
    kept += "the last, after its forward pass."
    return kept if gathered > 0.75 * alone.parameter_bytes else ""


def check_sequence_parallel(path: Path, proofs: list[Proof]) -> str:
    """Run with --sequence-parallel, where the sums are cut along the text."""
    flags = {name: proofs[0].run.config[name] for name in ("optimizer", "global_batch", "steps")}
    flags |= {"quiet": True, "options": PATIENCE}
    run = launch.launch(path, 2, sequence_parallel=True, raises=False, **flags)
    if run.status == "ok" and not compare(run, proofs[0].baseline).failed:
        return ""
    what = "trains something else" if run.status == "ok" else "ends with an error"
    return (
        f"with --sequence-parallel it {what}. There each rank has a part of the text between the "
        "blocks, and `layout` says so: give both sums output_layouts=layout."
    )


def check_mesh(path: Path, proofs: list[Proof]) -> str:
    """Measure what ranks hold and hosts send, since any mesh trains the same."""
    flags = {"steps": 4, "model": "mlp", "quiet": True, "options": PATIENCE}
    model = model_shapes.FLOAT32_BYTES * model_shapes.parameters("mlp", "tiny")
    for shard, hosts in ((2, 1 if simulated_hosts.why_not() else 2), (4, 1)):
        run = launch.launch(path, 4, device="cpu", hosts=hosts, shard=shard, **flags)
        share = run.ranks[0].parameter_bytes / model
        if abs(share * shard - 1) > 0.02:
            return (
                f"with --shard {shard} a rank holds {share:.0%} of the parameters, not "
                f"{1 / shard:.0%}. The second axis of the mesh is the one that is sharded."
            )
        sent = sum(rank.sent_to_other_hosts_bytes_per_step or 0 for rank in run.ranks[:2])
        if hosts > 1 and abs(sent / model - 1) > 0.1:
            return (
                f"with --shard 2 on two hosts of two ranks, a host sends {sent / model:.1f} times "
                "the model in a step, not once. The ranks of a row must be of one host."
            )
    return ""


@dataclass(frozen=True)
class SaveTask(ScriptTask):
    """A task whose answer is `save(state, path)`, which SAVE_PROGRAM tests."""

    def starting_point(self) -> str:
        return self._make_script("save_in_place").replace("save_in_place", "save")

    def solution_path(self) -> Path:
        return self.write_solution(self._make_script(self.solution))

    def _make_script(self, function: str) -> str:
        """Return the task, imports, and this function of SAVE_PROGRAM."""
        source = SAVE_PROGRAM.read_text()
        (node,) = (n for n in ast.parse(source).body if getattr(n, "name", "") == function)
        head = f'"""{self.task}"""\n\nimport os\n\nimport torch\n\n\n'
        return f"{head}{ast.get_source_segment(source, node)}\n"

    def check_script(self, path: Path) -> str:
        """Let a process save with the reader's function, and kill it, again and again."""
        run = launch.launch(SAVE_PROGRAM, 1, quiet=True, kills=KILLS, file=path)
        printed = [line for line in run.output(0).splitlines() if line.startswith('{"found"')]
        if not printed:
            raise Wrong("a function that returns", "the script ended by itself")
        report = json.loads(printed[-1])
        if wrong := _find_fault(report["found"], report["events"], report["path"]):
            raise Wrong("a good file whenever save is killed", wrong)
        return (
            f"{KILLS} kills at random moments left {KILLS} whole files. "
            "What save wrote was synced before it took its place."
        )


def _find_fault(found: list[str], events: list[list[str]], path: str) -> str:
    """Say what is wrong in the files after each kill, and the events of a save, or ""."""
    wrote = [event for event in events if event[0] in ("write", "rename")]
    placed = [event for event in wrote if event[0] == "rename" and event[2] == path]
    if "save ended" in found:
        return "save raised an error when it was called again: see the script's own output."
    if ["remove", path] in events:
        return (
            "it removes the old file before the new one has its place: a kill in between leaves "
            "nothing. os.replace needs no free place."
        )
    if not placed or "torn" in found or "missing" in found:
        left = ", ".join(f"{found.count(what)} {what}" for what in ("whole", "torn", "missing"))
        straight = "" if placed else " It writes straight to the checkpoint's place."
        return f"{len(found)} kills left files that were: {left}.{straight}"
    if Path(placed[-1][1]).parent != Path(path).parent:
        return (
            "the new file is written in another folder. That may be another file system, and from "
            "one to another a file can't be renamed: write it beside its place."
        )
    if ["sync"] not in events[: events.index(placed[-1])]:
        return (
            "all files are whole, but nothing was synced before the rename: a power cut may leave "
            "the new name with half of its content. flush() the file, then os.fsync its fileno()."
        )
    return ""


TASKS = [
    ScriptTask(
        "first_run",
        task="Exercise of notebook 00: this script reads data and computes a loss, but learns "
        "nothing.\nOne line is missing.",
        solution="cpu",
        takes_out=("optimizer.step()",),
        hint="The gradients are there after loss.backward(). Who changes the parameters?",
        stronger="loss.backward() only computes gradients. Between it and the record stands the "
        "call that moves every parameter along its gradient: a method of the optimizer.",
    ),
    ScriptTask(
        "to_the_gpu",
        task="Exercise of notebook 02: move this training to whatever device --device names.",
        solution="gpu",
        also=check_moved,
        errors={
            "is not on the expected device": "In this rehearsal the device is meta, which stands "
            "for a GPU. Two tensors met, one there and one still on the CPU. tensor.to(device) "
            "returns the moved tensor and leaves the old one where it was: keep what it returns.",
            "--device: invalid choice": "That of the baseline allows CPUs only: drop devices=.",
        },
        hint="Let config.parse() accept every device, then move two things to "
        "torch.device(context.device): the model once, the batch in every step.",
        stronger="device = torch.device(context.device) at the top; model.to(device) before the "
        "optimizer is built; in the loop both inputs and targets go through .to(device).",
    ),
    ScriptTask(
        "data_parallel",
        task="Exercise of notebook 04: make this script train on several ranks.",
        solution="ddp",
        ranks=2,
        also=check_shared_start,
        hint="Join a process group, take rank and world from it, wrap the model, average the loss.",
        stronger="dist.init_process_group(), then rank and world from dist.get_rank() and "
        "dist.get_world_size(); DistributedDataParallel(model) before the optimizer; "
        "dist.all_reduce on the loss, divided by world.",
    ),
    ScriptTask(
        "thread_replicas",
        task="Exercise of notebook 03: DataParallel by hand, without its last phase.\nThe "
        "replicas have their gradients, the model that is trained has none.",
        solution="dp_by_hand",
        takes_out=(
            'with record_function("reduce"):',
            "same = zip(*(m.parameters() for m in [model, *replicas]), strict=True)",
            "for parameter, *copies in same:",
            "parameter.grad = sum(replica.grad for replica in copies)",
        ),
        errors={
            "'NoneType' and 'Tensor'": "The model's own gradients are None, for only its copies "
            "have computed. Set parameter.grad, do not add to it."
        },
        hint="Walk through model.parameters() and the replicas' parameters side by side: zip() "
        "does that.\nThe loss is the mean over the whole batch already: are the replicas' "
        "gradients to be summed or averaged?",
        stronger="For each parameter and its copies: parameter.grad = the sum of the copies' "
        ".grad. The loss was a mean over the whole batch, so nothing is divided.",
    ),
    ScriptTask(
        "own_hook",
        task="Exercise of notebook 04d: HOOKS lacks its first entry, a communication hook that "
        'averages exactly.\nWrite it, and enter it under the name "none".',
        solution="ddp_options",
        takes_out=('"none": default_hooks.allreduce_hook,',),
        ranks=2,
        errors={
            "must return a torch.futures.Future": "The hook has to return at once, with a future "
            "of the averaged bucket: dist.all_reduce(..., async_op=True).get_future().",
            "expected the hook result is a PyObject": "The value of all_reduce's future is a list "
            "with one tensor. DDP wants the tensor: return future.then(lambda done: "
            "done.value()[0]).",
        },
        hint="Take bf16_compress as the model and leave the compression out. Summing is not "
        "averaging, and the hook returns a future of the averaged bucket.",
        stronger="def average(state, bucket): divide bucket.buffer() by the world size, all-reduce "
        "it with async_op=True, and return get_future().then(lambda future: future.value()[0]).",
    ),
    ScriptTask(
        "accumulate",
        task="Exercise of notebook 02b: gradient accumulation, with the heart of its inner loop "
        "taken out.\nEach part of the batch has to be trained on; their sum has to be the whole "
        "batch's gradient.",
        solution="accumulate",
        takes_out=(
            "loss = models.loss(model(part_inputs), part_targets) * len(part_inputs) / len(inputs)",
            "loss.backward()",
        ),
        also=check_uneven_parts,
        hint="backward() adds to the gradients. models.loss is the mean over a part, but the sum "
        "over all parts has to be the mean over the batch: what share of it is a part?",
        stronger="loss = models.loss(...) * len(part_inputs) / len(inputs), and backward() at "
        "once, inside the inner loop, so that a part's activations are freed before the next one.",
    ),
    ScriptTask(
        "ranks_of_two_devices",
        task="Exercise of notebook 06: train this on several ranks, each with two devices.",
        solution="ddp_mp",
        ranks=2,
        errors={
            "device_ids and output_device arguments": "device_ids names the one device that has "
            "the whole model. This one has two, and moves all itself: leave device_ids at None.",
            "'DistributedDataParallel' object is not subscriptable": "The model was wrapped "
            "before it was cut, and the wrapper has no stages: move both halves first.",
        },
        hint="Join a process group, take rank and world from it, wrap the model after its halves "
        "were moved, and average the loss. DDP need not know any device: device_ids stays None.",
        stronger="Take the four places from _train_ddp.py: init_process_group, rank and world, "
        "DistributedDataParallel(model) without device_ids, the all-reduce of the loss.",
    ),
    ScriptTask(
        "pipeline",
        task="Exercise of notebook 06b: a pipeline without the heart of its loop.\nThe schedule "
        "is made. Who gives it the inputs, who the targets, and who gets losses?",
        solution="pp",
        takes_out=(
            "stage_inputs = (inputs,) if first_here else ()",
            "losses = []",
            "if last_here:",
            "schedule.step(*stage_inputs, target=targets, losses=losses, return_outputs=False)",
            "else:",
            "schedule.step(*stage_inputs)",
        ),
        ranks=2,
        errors={
            "target required for last stage": "The last stage's rank has to pass target=targets.",
            "missing 1 required positional argument: 'input'": "The first stage's must be passed.",
            "the ranks hang": "A rank waits for another's output or gradient: every rank has to "
            "call schedule.step once in each step, not only the first or the last.",
        },
        hint="Every rank calls schedule.step once in a step. Which rank has inputs to pass, which "
        "one needs the targets, and where do losses come from? first_here and last_here tell you.",
        stronger="if last_here: schedule.step(*stage_inputs, target=targets, losses=losses), "
        "else: schedule.step(*stage_inputs), where stage_inputs is (inputs,) with the first stage "
        "and () elsewhere, and losses a new list.",
    ),
    ScriptTask(
        "split_the_blocks",
        task="Exercise of notebook 06c: this plan splits the first matrix of each pair by its "
        "columns.\nThe plan for the second ones is missing, and so is every sum.",
        solution="tp",
        takes_out=(
            'plan["attention.out"] = RowwiseParallel(output_layouts=layout)',
            'plan["down"] = RowwiseParallel(output_layouts=layout)',
        ),
        ranks=2,
        also=check_sequence_parallel,
        errors=dict.fromkeys(
            ("shapes cannot be multiplied", "must have same reduction dim"),
            "A matrix met an input of another size. query, key, value and up leave on each rank "
            "some of their outputs. attention.out and down read those: split both by rows.",
        ),
        hint="Two modules of a block read what a column split has left on each rank: their "
        "matrices are split by rows. The sum over the ranks comes out laid out as `layout`.",
        stronger='Two entries of the plan, "attention.out" and "down", both '
        "RowwiseParallel(output_layouts=layout).",
    ),
    ScriptTask(
        "attend_to_all",
        task="Exercise of notebook 06d: every rank attends to the keys of its own positions "
        "alone.\nWhat is missing between `attend` and the attention?",
        solution="cp",
        takes_out=(
            "key, value = (all_gather(part, 2, dist.group.WORLD) for part in (key, value))",
            "seen = mine[:, None] >= gathered",
        ),
        ranks=2,
        errors={"name 'seen' is not defined": "`seen` says which keys each of my queries sees."},
        hint="Which keys do my queries need, and in which order do they come? Whether a query may "
        "see a key depends on their positions, `mine` and `gathered`, not on the rows.",
        stronger="Gather key and value along dimension 2 with all_gather(part, 2, "
        "dist.group.WORLD), which has a backward pass; then seen = mine[:, None] >= gathered.",
    ),
    ScriptTask(
        "fully_sharded",
        task="Exercise of notebook 07: make this DDP script fully sharded with FSDP2.",
        solution="fsdp",
        ranks=2,
        also=check_units,
        errors={
            "does not have a sharding strategy registered": "DistributedDataParallel is still "
            "around the model, and wants to send parameters that are parts now. fully_shard "
            "averages gradients by itself: leave DDP out.",
            "Invariant encountered: value was None": "The whole model was sharded before its "
            "blocks. Begin inside: each block first, then the model, which takes what is left.",
        },
        hint="fully_shard takes DDP's place. What is one unit of it in this model, and what is "
        "left over? Which comes first, the sharding or the optimizer? What fills the memory that "
        "to_empty gives?",
        stronger="for part in model[:-1]: fully_shard(part, mesh=mesh); then fully_shard(model, "
        "mesh=mesh). No DistributedDataParallel, and no parameter taken from the model before.",
    ),
    SaveTask(
        "save_for_good",
        task="Exercise of notebook 07b: save a state so that a kill at any moment leaves a "
        "good file.\nstate is a dictionary for torch.save, path a pathlib.Path. The file at "
        "path is the old one or\nthe new one at every moment, also after a power cut.",
        solution="save",
        hint="At which moment does the path hold no good file? What can be written elsewhere "
        "first, and what must be certain before it takes its place?",
        stronger='beside = path.with_name(...); with open(beside, "wb") as file: '
        "torch.save(state, file), file.flush(), os.fsync(file.fileno()); os.replace(beside, path).",
    ),
    ScriptTask(
        "two_axes",
        task="Exercise of notebook 08: hybrid sharding without its mesh.\nThe ranks of a row, "
        "args.shard of them, hold one copy of the model together.",
        solution="hsdp",
        takes_out=(
            "shape = (world // args.shard, args.shard)",
            'mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))',
        ),
        ranks=4,
        also=check_mesh,
        errors=dict.fromkeys(
            ("bigger than default world size", "list index out of range"),
            "Each rank has a place in the mesh: rows times columns is the world size.",
        ),
        hint="A mesh of two axes, the first for the copies, the second for the parts of one. How "
        "many rows does it have, how many columns? init_device_mesh fills row after row.",
        stronger='The shape is (world // args.shard, args.shard), its names ("replicate", '
        '"shard"): init_device_mesh(device.type, shape, mesh_dim_names=...).',
    ),
]
