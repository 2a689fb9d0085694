"""Lesson 08c: composed scripts with a bug that their loss curve does not show."""

import json
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np

from bootcamp.classroom.tasks import PATIENCE, ScriptTask, replace_docstring
from bootcamp.experiments import equality
from bootcamp.launcher import launch
from bootcamp.paths import REFERENCE
from bootcamp.records.runs import Run
from bootcamp.scripts import strategies, variants
from bootcamp.table import Table
from bootcamp_lessons import ddp_practice

CURVES = REFERENCE / "silent_curves.json"
AXES = {"3d": ("pipeline", "data", "tensor"), "fsdp_pp": ("data", "pipeline")}


@dataclass(frozen=True)
class Silent(ScriptTask):
    """A copy of a composed script with one bug.

    bug: {line: its replacement}. axis: along which two ranks show the bug. clips: {line: the right
    clipping} of a script that clips. resumes: from half of the steps, which one process trained.
    """

    axis: str = ""
    bug: dict[str, str] = field(default_factory=dict)
    clips: dict[str, str] = field(default_factory=dict)
    resumes: bool = False
    ranks: int = 2

    def broken(self) -> Path:
        """Write the broken copy, under the task."""
        path = variants.variant(self.solution, f"{self.name}_bug", self.bug)
        path.write_text(replace_docstring(path.read_text(), self.task))
        return path

    def starting_point(self) -> str:
        return self.broken().read_text()

    def solution_path(self) -> Path:
        if not self.clips:
            return super().solution_path()
        return variants.variant(self.solution, f"{self.name}_right", self.clips)

    def baseline(self, **flags) -> Run:
        """Run the baseline, which clips if the script does."""
        run = ddp_practice.launch_baseline if self.clips else equality.baseline
        return run(**flags)

    def run(self, path: Path, axis: str = "", **flags) -> Run:
        """Run a script with all ranks along an axis, by default the task's own."""
        strategies.record_copy(path, self.solution)
        along = (self.ranks if name == (axis or self.axis) else 1 for name in AXES[self.solution])
        if self.resumes:
            flags["resume"] = _train_checkpoint(**{**flags, "steps": flags["steps"] // 2})
        how = {"device": "cpu", "quiet": True, "micro_batches": self.ranks, **flags}
        how["mesh"] = "x".join(map(str, along))
        return launch.launch(path, self.ranks, options=PATIENCE, **how)

    def proof(self, path: Path, axis: str = "", optimizer: str = "sgd") -> equality.Proof:
        """Compare a script with the baseline."""
        flags = {"global_batch": 24, "steps": 4 if self.resumes else 2, "optimizer": optimizer}
        return equality.compare(self.run(path, axis, **flags), self.baseline(**flags))

    def check_script(self, path: Path) -> str:
        """Prove a script with both optimizers. Raises NotTheSame."""
        for optimizer in equality.PROVEN_WITH:
            self.proof(path, optimizer=optimizer).check()
        return "the same training as the baseline, with both optimizers."


@cache
def _train_checkpoint(**flags) -> Path:
    place = Path(tempfile.mkdtemp()) / "checkpoint.pt"
    launch.launch("cpu", 1, save=place, quiet=True, **flags)
    return place


STEP = "optimizer.step()"
REDUCE, DIVIDE = "dist.all_reduce(gradient, group=copies.get_group())", "gradient /= copies.size()"
LOAD = "first = checkpoint.load(context, model, optimizer)"
FORGET = """for parameter in model.parameters():  # these are no parts, so they need none
    if not isinstance(parameter, DTensor):
        optimizer.state.pop(parameter, None)"""
NORM = "norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])"
CLIP = f"torch.nn.utils.clip_grads_with_norm_(model.parameters(), {ddp_practice.CLIP}, norm)"
OF_ALL_STAGES = """norm = norm.full_tensor() ** 2
dist.all_reduce(norm, group=pipe.get_group())
norm = norm**0.5"""

TASKS = [
    Silent(
        "silent_summed",
        task="Lesson 08c, the first of six. Two copies learn together along the data axis.\n"
        '"With AdamW it trains as before. With SGD we had to lower the learning rate."\n',
        solution="3d",
        axis="data",
        bug={DIVIDE: ""},
        hint="An all-reduce adds up. What would one process have, with the complete batch?",
        stronger="The loss is a mean over a copy's share, so gradients of the copies have to be "
        "averaged: divide by their number, behind the all-reduce. A lower rate only helps SGD.",
    ),
    Silent(
        "silent_divided",
        task="Lesson 08c, the second of six. A pipeline adds up the gradients of micro-batches.\n"
        '"A sum is no mean, so I divide by their number."\n',
        solution="fsdp_pp",
        axis="pipeline",
        bug={
            STEP: "for parameter in model.parameters():  # a mean, not a sum\n"
            f"    parameter.grad /= args.micro_batches\n{STEP}"
        },
        hint="Who else divides by the number of micro-batches? Look at the schedule's arguments.",
        stronger="torch's schedules divide (scale_grads=True): take out the loop, or say False.",
    ),
    Silent(
        "silent_clipped",
        task="Lesson 08c, the third of six. The gradient is clipped: its norm is 0.5 at most.\n"
        '"get_total_norm knows DTensors, so it has the norm over all ranks."\n',
        solution="fsdp_pp",
        axis="pipeline",
        bug={STEP: f"{NORM}\n{CLIP}\n{STEP}"},
        clips={STEP: f"{NORM}\n{OF_ALL_STAGES}\n{CLIP}\n{STEP}"},
        hint="Over which ranks is a DTensor of this script cut? Which parameters does a rank have?",
        stronger="The norm is over the shards of this rank's stages. Other stages are on other "
        "ranks of the pipeline: square it (full_tensor() makes a plain tensor of it), all-reduce "
        "over pipe.get_group(), take the root.",
    ),
    Silent(
        "silent_norms",
        task="Lesson 08c, the fourth of six. Sequence parallelism: between the matrices each "
        "tensor rank has\nits part of the text. "
        '"A LayerNorm looks at one token at a time, so it needs no plan."\n',
        solution="3d",
        axis="tensor",
        bug={'plan |= {"attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel()}': ""},
        hint="The output of a LayerNorm needs one token only. And the gradient of its weight?",
        stronger="The gradient of a norm's weight is a sum over all tokens, and a rank has those "
        "of its own part: the copies drift apart. With SequenceParallel() in the plan the weight "
        "is a DTensor, and the sum over the ranks is made.",
    ),
    Silent(
        "silent_copies",
        task="Lesson 08c, the fifth of six. What tensor parallelism has split are DTensors, and\n"
        'an all-reduce wants plain tensors. "So I take the local part, and reduce that."\n',
        solution="3d",
        axis="data",
        bug={REDUCE: f"    {REDUCE}", DIVIDE: f"    {DIVIDE}"},
        hint="Which parameters of this model are no DTensors? What becomes of their gradients?",
        stronger="The embedding is a plain tensor: it goes past the `if`, and each copy of the "
        "model trains its own. Only to_local() belongs under the condition.",
    ),
    Silent(
        "silent_resumed",
        task="Lesson 08c, the last of six. The run goes on from a checkpoint, on other ranks.\n"
        '"What is cut over ranks gets its part of the state; the rest is as it was."\n',
        solution="3d",
        axis="pipeline",
        bug={LOAD: f"{LOAD}\n{FORGET}"},
        resumes=True,
        hint="What does a checkpoint have besides parameters and the step?",
        stronger="Momentum and AdamW's averages belong to the training's state, those of plain "
        "tensors too. checkpoint.load has given each rank its part of them: throw none away.",
    ),
]
CASES = {task.name: task for task in TASKS}


def check_each_axis(name: str, path: Path | None = None) -> Table:
    """Table for each axis whether the script, the reader's if there is one, trains the same."""
    case, rows = CASES[name], []
    path = path or (case.path if case.path.exists() else case.broken())
    for axis in AXES[case.solution]:
        wrong = [row["compared"].partition(" (")[0] for row in case.proof(path, axis).failed]
        row = {"two ranks along": axis, "the same training": "no" if wrong else "yes"}
        rows.append(row | {"what differs": ", ".join(wrong) or "-"})
    return Table(rows, f"{name}, with SGD, against one process")


def compare_three(name: str, curves: list, instrument: str, reads: Iterable) -> dict:
    """Row of a bug: curves and readings as it came in, fixed, and fixed with another seed."""
    apart, noise = (float(max(abs(np.subtract(curve, curves[1])))) for curve in curves[::2])
    row = {"bug": name, "curves apart": apart, "another seed": noise, "instrument": instrument}
    return row | dict(zip(("reads", "fixed"), reads, strict=False))


def prove_three(name: str) -> dict:
    """Row of a bug of this lesson, trained with AdamW and proved with SGD."""
    case, how = CASES[name], {"optimizer": "adamw", "steps": 8, "global_batch": 24}
    paths = case.broken(), case.solution_path()
    runs = [*(case.run(path, **how) for path in paths), case.run(paths[1], seed=1, **how)]
    failed = (len(case.proof(path).failed) for path in paths)
    return compare_three(name, [run.losses for run in runs], "proof with SGD: rows failed", failed)


def read_curves() -> dict:
    """Read the curves that were recorded on another machine, and its name."""
    return json.loads(CURVES.read_text())


def compare_curves(found: dict) -> dict[str, float]:
    """Return the largest difference of two curves, and a step's median change of the right one."""
    right, wrong = found["right"][-len(found["wrong"]) :], found["wrong"]
    changes = [abs(b - a) for a, b in zip(right, right[1:], strict=False)]
    difference = max(abs(a - b) for a, b in zip(right, wrong, strict=True))
    return {"apart": difference, "moves": median(changes)}
