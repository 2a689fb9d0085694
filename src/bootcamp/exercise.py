"""Exercises on the scripts themselves: `exercise.start(name)`, edit, `exercise.check(name)`.

The solution of an exercise is a script of the course. Its starting point is made from it, or from
its parent, when the reader starts: nothing is kept twice. The checker runs the reader's own script.
"""

from dataclasses import dataclass
from pathlib import Path

from bootcamp import check as proof
from bootcamp import compare, family, launch
from bootcamp.paths import ROOT, WORK
from bootcamp.runs import Run

PLACE = "# YOUR TURN: lines are missing here"


@dataclass(frozen=True)
class Exercise:
    """One task. `takes_out`: lines of the solution that the reader is to find again; empty means
    that the starting point is the solution's parent. `ranks`: how many the checker starts.
    `rehearse`: also run it on the meta device, where a tensor that was not moved is an error.
    """

    name: str
    task: str
    solution: str
    takes_out: tuple[str, ...] = ()
    ranks: int = 1
    rehearse: bool = False
    hint: str = ""

    @property
    def path(self) -> Path:
        """The reader's script."""
        return WORK / f"{self.name}.py"

    def starting_point(self) -> str:
        """The text that the reader starts from."""
        solution = family.SCRIPTS[self.solution]
        if not self.takes_out:
            return _with_docstring(family.SCRIPTS[solution.parent].path.read_text(), self.task)
        lines, place_left = [], True
        for line in solution.path.read_text().splitlines():
            if line.strip() in self.takes_out:
                if place_left:
                    lines.append(line[: len(line) - len(line.lstrip())] + PLACE)
                    place_left = False
                continue
            lines.append(line)
        return _with_docstring("\n".join(lines) + "\n", self.task)


def _with_docstring(text: str, task: str) -> str:
    """A script's text with its docstring replaced by the task."""
    return f'"""{task}"""' + text.split('"""', 2)[2]


EXERCISES = {
    exercise.name: exercise
    for exercise in (
        Exercise(
            "first_run",
            task="Exercise of notebook 00: this script reads data and computes a loss, but learns "
            "nothing.\nOne line is missing.",
            solution="cpu",
            takes_out=("optimizer.step()",),
            hint="The gradients are there after loss.backward(). Who changes the parameters?",
        ),
        Exercise(
            "training_loop",
            task="Exercise of notebook 01: write the heart of the training loop.\n"
            "Three lines are missing.",
            solution="cpu",
            takes_out=("optimizer.zero_grad()", "loss.backward()", "optimizer.step()"),
            hint="Gradients add up until somebody sets them to zero; the order of the three lines "
            "and their place before and after the loss matter.",
        ),
        Exercise(
            "to_the_gpu",
            task="Exercise of notebook 02: move this training to whatever device --device names.",
            solution="gpu",
            rehearse=True,
            hint="Let config.parse() accept every device, then move two things to "
            "torch.device(args.device): the model once, the batch in every step.",
        ),
        Exercise(
            "data_parallel",
            task="Exercise of notebook 04: make this script train on several ranks.",
            solution="ddp",
            ranks=2,
            hint="Join a process group, take rank and world from it, wrap the model, and average "
            "the loss over the ranks before it is recorded.",
        ),
        Exercise(
            "thread_replicas",
            task="Exercise of notebook 03: DataParallel by hand, without its last phase.\n"
            "The replicas have their gradients, the model that is trained has none.",
            solution="dp_by_hand",
            takes_out=(
                'with record_function("reduce"):',
                "for parameter, *copies in zip(*(m.parameters() for m in [model, *replicas]), "
                "strict=True):",
                "parameter.grad = sum(replica.grad for replica in copies)",
            ),
            hint="Walk through model.parameters() and the replicas' parameters side by side: "
            "zip() does that.\nThe loss is the mean over the whole batch already: are the "
            "replicas' gradients to be summed or averaged?",
        ),
        Exercise(
            "own_hook",
            task="Exercise of notebook 04b: HOOKS lacks its first entry, a communication hook that "
            'averages exactly.\nWrite it, and enter it under the name "none".',
            solution="ddp_options",
            takes_out=('"none": default_hooks.allreduce_hook,',),
            ranks=2,
            hint="Take bf16_compress as the model and leave the compression out. Summing is not "
            "averaging, and the hook returns a future of the averaged bucket.",
        ),
        Exercise(
            "accumulate",
            task="Exercise of notebook 02: gradient accumulation, with the heart of its inner loop "
            "taken out.\nEach part of the batch has to be trained on; their sum has to be the "
            "whole batch's gradient.",
            solution="accumulate",
            takes_out=(
                "loss = models.loss(model(part_inputs), part_targets) * len(part_inputs) "
                "/ len(inputs)",
                "loss.backward()",
            ),
            hint="backward() adds to the gradients. models.loss is the mean over a part, but the "
            "sum over all parts has to be the mean over the batch: what share of it is a part?",
        ),
        Exercise(
            "ranks_of_two_devices",
            task="Exercise of notebook 06: make this script train on several ranks, each with its "
            "model on two devices.",
            solution="ddp_mp",
            ranks=2,
            hint="Join a process group, take rank and world from it, wrap the model after its "
            "halves were moved, and average the loss. DDP need not know any device: device_ids "
            "stays None.",
        ),
        Exercise(
            "pipeline",
            task="Exercise of notebook 06b: a pipeline without the heart of its loop.\n"
            "The schedule is made. Who gives it the inputs, who the targets, and who gets losses?",
            solution="pp",
            takes_out=(
                "given, losses = (inputs,) if first_here else (), []",
                "if last_here:",
                "schedule.step(*given, target=targets, losses=losses, return_outputs=False)",
                "else:",
                "schedule.step(*given)",
            ),
            ranks=2,
            hint="Every rank calls schedule.step once in a step. Only the rank with the first "
            "stage passes inputs. Only the one with the last stage passes target= and losses=, "
            "an empty list that the schedule fills. Elsewhere losses stays empty.",
        ),
        Exercise(
            "with_horovod",
            task="horovodrun --gloo -np 2 python notebooks/work/with_horovod.py --device cpu\n\n"
            "Exercise of notebook 05: turn this DDP script into a Horovod script.\n"
            "The first line above says who starts it: leave it there.",
            solution="horovod",
            ranks=2,
            hint="Joining the ranks, a model that is wrapped no more, an optimizer that is, equal "
            "parameters at the start, the mean of the loss under a name; and on a machine with "
            "GPUs, config.parse(devices=...) as the course's script has it.",
        ),
        Exercise(
            "split_the_blocks",
            task="Exercise of notebook 06c: this plan splits the first matrix of each pair by its "
            "columns.\nThe plan for the second ones is missing, and so is every sum.",
            solution="tp",
            takes_out=(
                'plan["attention.out"] = RowwiseParallel(output_layouts=between)',
                'plan["down"] = RowwiseParallel(output_layouts=between)',
            ),
            ranks=2,
            hint="Two modules of a block read what a column split has left on each rank: their "
            "matrices are split by rows. The sum over the ranks comes out laid out as `between`.",
        ),
    )
}


class Result:
    """What a checker found: `solved`, and a text that helps."""

    def __init__(self, solved: bool, text: str):
        self.solved, self.text = solved, text

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


def find(name: str) -> Exercise:
    """The exercise of this name. Raises KeyError with the names that there are."""
    if name not in EXERCISES:
        raise KeyError(f"no exercise {name!r}: choose one of {', '.join(EXERCISES)}")
    return EXERCISES[name]


def start(name: str, again: bool = False) -> str:
    """Write the starting point for the reader, unless a script of theirs is there already.

    again: begin anew; what was there is kept beside it with the ending .before.
    """
    exercise = find(name)
    path = exercise.path
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    if path.exists() and not again:
        return f"Your script is {shown}: open it from the file browser on the left and edit it."
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.replace(path.with_suffix(".py.before"))
    path.write_text(exercise.starting_point())
    return f"Wrote {shown}: open it from the file browser on the left, edit it, save it."


def check(name: str) -> Result:
    """Run the reader's script and hold it against the CPU baseline, with both optimizers.

    Raises nothing: an unsolved exercise is a result too.
    """
    exercise = find(name)
    if not exercise.path.exists():
        return Result(False, f'Not started yet: run exercise.start("{name}") first.')
    if exercise.path.read_text() == exercise.starting_point():
        return Result(
            False, "Not solved yet: the script is still the starting point.\n" + _help(exercise)
        )
    return check_script(exercise, exercise.path)


def check_script(exercise: Exercise, path: Path) -> Result:
    """As check, for any file."""
    try:
        if exercise.rehearse:
            _rehearse(path)
        proofs = proof.prove(path, exercise.ranks, steps=5, hang_seconds=30)
    except (proof.NotTheSame, ValueError) as error:
        return Result(False, f"Not solved yet: it runs, but {error}\n{_help(exercise)}")
    except launch.LaunchError as error:
        return Result(
            False, f"Not solved yet: the script ended with an error.\n{error}\n{_help(exercise)}"
        )
    lines = ["Solved: the same training as the baseline with both optimizers."]
    worst = max(_worst_loss(each.run, each.baseline) for each in proofs)
    lines.append(f"The largest difference of any step's loss is {worst:.1e}.")
    return Result(True, " ".join(lines))


def _rehearse(path: Path) -> None:
    """Every tensor must be on the device that --device names, here one that holds no numbers."""
    rank = launch.launch(path, 1, device="meta", steps=1, quiet=True).ranks[0]
    found = rank["parameter_device"]
    if found != "meta":
        raise proof.NotTheSame(f"with --device meta the model was on {found}: it was not moved.")
    if rank["activation_devices"] != ["meta"]:
        raise proof.NotTheSame("with --device meta a part of the batch was not moved.")


def _worst_loss(run: Run, baseline: Run) -> float:
    return max(abs(a - b) for a, b in zip(run.losses, baseline.losses, strict=True))


def _help(exercise: Exercise) -> str:
    return f'Hint: {exercise.hint}\nThe solution: exercise.solution("{exercise.name}")'


def solution(name: str) -> compare.ScriptDiff:
    """What is between the reader's script (or the starting point) and the solution, as a diff."""
    exercise = find(name)
    if not exercise.path.exists():
        start(name)
    return compare.ScriptDiff(family.SCRIPTS[exercise.solution].path, exercise.path)
