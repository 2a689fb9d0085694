"""Exercises of lesson 12: broken scripts that people copy. See it fail, say why, mend it.

    exercise.start("clinic_summed")      writes the broken script for the reader
    clinic.examine("clinic_summed")      runs the reader's script and shows what happens
    clinic.diagnose("clinic_summed")     asks what it is; with a letter, answers
    exercise.check("clinic_summed")      runs the reader's script and judges what it does

A judge looks at what a script does, never at its text: _observe.py runs it and tells. The scripts
are in src/snippets/clinic/, a solution is a few changed lines of one (`mend`).
"""

import ast
import json
import math
import re
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from bootcamp.classroom import errors, exercise
from bootcamp.classroom.exercise import Exercise, Shown, Wrong
from bootcamp.launcher import launch
from bootcamp.paths import SRC
from bootcamp.records.runs import Run
from bootcamp.table import Table

WARD = SRC / "snippets" / "clinic"
OBSERVE = WARD / "_observe.py"
HANG_SECONDS = 8  # a loaded machine may need some for a script that does not hang
NEAR = 1e-4  # how far numbers of float32 may be apart that were added up in another order
WITHOUT_HANG = "a script that runs to its end"


@dataclass(frozen=True)
class Option:
    """One answer to a diagnosis, and what to say to whoever gives it."""

    text: str
    reply: str
    right: bool = False


@dataclass(frozen=True)
class Case(Exercise):
    """A broken script. `file`: its name in the clinic. `mend`: pieces, and what replaces each.

    question, options: the diagnosis. judge: looks at a Trial; says why the script is right, or
    raises Wrong. keep: names of the script whose values the judge needs. shown_on: with how many
    ranks examine runs it. flags: of _observe.py.
    """

    ranks: int = 2
    file: str = ""
    mend: dict = field(default_factory=dict)
    question: str = ""
    options: tuple[Option, ...] = ()
    judge: Callable[["Trial"], str] = None
    keep: tuple[str, ...] = ()
    shown_on: tuple[int, ...] = ()
    flags: dict = field(default_factory=dict)

    @property
    def broken(self) -> Path:
        """The script as the reader meets it."""
        return WARD / f"{self.file}.py"

    def starting_point(self) -> str:
        """The broken script, whole: that it is broken is what the reader starts from."""
        return self.broken.read_text()

    def solved(self) -> Path:
        """A script that solves it."""
        path = self.path.with_name(f".{self.name}_solved.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(changed(self.starting_point(), self.mend))
        return path

    def tried(self, path: Path) -> str:
        """Run a script and judge what it did. Raises Wrong."""
        return self.judge(Trial(self, path))

    def run(self, path: Path, ranks: int) -> Run:
        """One run of a script under observation; its record, also if it failed."""
        flags = {"file": path, "keep": ",".join(self.keep), **self.flags}
        how = {"device": "cpu", "finishes": False, "quiet": True, "raises": False}
        return launch.launch(OBSERVE, ranks, hang_seconds=HANG_SECONDS, **how, **flags)


def changed(text: str, changes: dict[str, str]) -> str:
    """A text with pieces of it replaced. Raises ValueError for one that is not there just once."""
    for old, new in changes.items():
        if text.count(old) != 1:
            raise ValueError(f"{old!r} is there {text.count(old)} times, not once")
        text = text.replace(old, new)
    return text


class Trial:
    """A script that is being judged: what each rank did, with as many ranks as the judge asks."""

    def __init__(self, case: Case, path: Path):
        self.case, self.path = case, path

    def seen(self, ranks: int) -> list[dict]:
        """What was observed of each rank. Raises Wrong if the script did not end well."""
        run = self.case.run(self.path, ranks)
        if run.status != "ok":
            raise _failed(run, self.path, ranks)
        return [_observed(run, rank) for rank in range(ranks)]

    @cached_property
    def ranks(self) -> list[dict]:
        """What was observed with as many ranks as the exercise is about."""
        return self.seen(self.case.ranks)

    @cached_property
    def alone(self) -> dict:
        """What was observed with one rank, which has the whole batch."""
        return self.seen(1)[0]

    def all_have(self, name: str) -> list:
        """A name's value on each rank. Raises Wrong where it is gone."""
        if any(name not in rank for rank in self.ranks):
            raise Wrong(f"a script with the name `{name}`", f"`{name}` is gone: leave it there")
        return [rank[name] for rank in self.ranks]


def _failed(run: Run, path: Path, ranks: int) -> Wrong:
    """Why a run counts as wrong: the end of its error, and what the index has to say to it."""
    expected = WITHOUT_HANG if ranks == 1 else f"{WITHOUT_HANG} on {ranks} ranks"
    error = run.summary["error"]
    entry = errors.find(f"{error['message']}\n{error['traceback']}")
    meaning = f"{entry.means} {entry.mend}" if entry else ""
    return Wrong(expected, f"an error.\n{said_by(run, path)}", meaning)


def said_by(run: Run, path: Path) -> str:
    """The error of a run in a few lines, and the line of the script that each rank was in."""
    error = run.summary["error"]
    if error["kind"] != "hang":
        said = errors.last_lines(error["traceback"] or error["message"])
        line = _line_of(path, error["traceback"], last=True)
        return f"{said}\nThis was rank {error['rank']}, in {line}" if line else said
    told = [error["message"].partition(". ")[0]]
    for stack in re.split(r"^(?=rank \d)", error["traceback"], flags=re.M)[1:]:
        line = _line_of(path, stack) or "no line of the script: at its end, or not begun"
        told.append(f"{stack.partition(',')[0]} is in {line}")
    return "\n".join(told)


def _line_of(path: Path, stack: str, last: bool = False) -> str:
    """The line of a script that a stack names first (or last); empty if it names none."""
    numbers = re.findall(rf"{re.escape(path.name)}\", line (\d+)", stack)
    if not numbers:
        return ""
    number = int(numbers[-1 if last else 0])
    return f"line {number}: {path.read_text().splitlines()[number - 1].strip()}"


def _observed(run: Run, rank: int) -> dict:
    lines = [line for line in run.output(rank).splitlines() if line.startswith('{"observed"')]
    if not lines:
        raise Wrong(WITHOUT_HANG, f"rank {rank} left before its end: nothing could be seen of it")
    return json.loads(lines[-1])["observed"]


def examine(name: str) -> "Plain":
    """Run the reader's script (the broken one, if they have none) and show what happens."""
    case = exercise.find(name)
    path = case.path if case.path.exists() else case.broken
    told = []
    for ranks in case.shown_on or (case.ranks,):
        run = case.run(path, ranks)
        told += [f"On {ranks} rank{'s' * (ranks > 1)}:"]
        lines = _printed(run, ranks)
        lines += said_by(run, path).splitlines() if run.status != "ok" else []
        told += [textwrap.indent(textwrap.fill(line, 94), "    ") for line in lines if line]
    return Plain("\n".join(told))


def show(name: str) -> Shown:
    """The reader's script (the broken one, if they have none), to read it."""
    case = exercise.find(name)
    return Shown((case.path if case.path.exists() else case.broken).read_text())


def observe(name: str) -> list[dict]:
    """What can be seen of each rank of a broken script that ends by itself."""
    case = exercise.find(name)
    return Trial(case, case.broken).ranks


def ward_round() -> Table:
    """Run all broken scripts, some at once, and note how each ends."""
    with ThreadPoolExecutor(3) as pool:
        runs = list(pool.map(lambda case: case.run(case.broken, case.ranks), TASKS))
    return Table([_bedside(*pair) for pair in zip(TASKS, runs, strict=True)], "As they came in")


def _bedside(case: Case, run: Run) -> dict:
    error = run.summary.get("error") or {"kind": None, "message": ""}
    ended = {None: "by itself", "hang": "not at all"}.get(error["kind"], "with an error")
    said = said_by(run, case.broken).splitlines() if error["kind"] else [""]
    return {"script": case.file, "ranks": case.ranks, "ended": ended, "it said": said[0][:90]}


class Plain(str):
    """Text that a notebook shows as it is."""

    __repr__ = str.__str__


def _printed(run: Run, ranks: int) -> list[str]:
    outs = [run.folder / "ranks" / f"{rank}.out" for rank in range(ranks)]
    lines = [line for out in outs if out.exists() for line in out.read_text().splitlines()]
    return [line for line in lines if not line.startswith('{"observed"')]


def diagnose(name: str, answer: str | None = None) -> Plain:
    """Ask what is wrong with a script; with a letter, say whether that is it, and why not."""
    case = exercise.find(name)
    letters = "abcdefgh"[: len(case.options)]
    if answer is None:
        asked = [f"{letter}) {o.text}" for letter, o in zip(letters, case.options, strict=True)]
        return Plain("\n".join([case.question, *asked, "Your diagnosis: none yet. Give a letter."]))
    if answer not in letters:
        return Plain(f"{answer!r} is none of the answers: give one of {', '.join(letters)}.")
    chosen = case.options[letters.index(answer)]
    verdict = "Yes" if chosen.right else "No"
    return Plain(f"{chosen.text}\n{verdict}. {chosen.reply}")


def _apart(a: list[float], b: list[float]) -> float:
    """The largest difference of two lists of numbers, infinite where they are not comparable."""
    if a is None or b is None or len(a) != len(b) or not all(map(math.isfinite, [*a, *b])):
        return math.inf
    return max((abs(x - y) for x, y in zip(a, b, strict=True)), default=math.inf)


def _ranks_agree(trial: Trial, what: str = "parameters", meaning: str = "") -> None:
    """Raise Wrong unless the ranks end with the same model."""
    first, *others = trial.all_have(what)
    apart = max(_apart(first, other) for other in others)
    if apart > NEAR:
        raise Wrong(f"the same {what} on all ranks", f"they are up to {apart:.2g} apart", meaning)


def _trains_as_alone(trial: Trial, meaning: str = "") -> str:
    """The ranks agree, and have the gradients and parameters that one rank has on all the data."""
    _ranks_agree(trial, meaning="Nobody brings the ranks together: each trains a model of its own.")
    for what in ("parameters", "gradients"):
        apart = _apart(trial.ranks[0][what], trial.alone[what])
        if apart > NEAR:
            expected = f"the {what} that one rank has, with the whole batch"
            raise Wrong(expected, f"they are up to {apart:.2g} apart", meaning)
    return "the ranks agree, and have trained what one rank trains on the whole batch."


def meets(trial: Trial) -> str:
    """Two processes started by hand add up what both have."""
    for _ in range(3):
        try:
            found = trial.all_have("total")
            break
        except Wrong as wrong:  # a port that was chosen may be in use just now
            if "the ranks hang" in wrong.seen:
                where = "Do they agree on address and port, and on how many they are?"
                raise Wrong("two processes that meet", wrong.seen, where) from None
            if "EADDRINUSE" not in wrong.seen:
                raise
    else:
        raise Wrong("a free port", "the port is taken by another program", "Choose another one.")
    if found != [3, 3]:
        raise Wrong(
            "the sum 3 on both ranks",
            " and ".join(map(str, found)),
            "A rank that has only its own number has met nobody: world_size says how many meet.",
        )
    return "both processes found each other, and each has the sum of both."


def learns(trial: Trial) -> str:
    """The network has all of its 161 parameters, and its loss falls."""
    (rank,) = trial.ranks
    (losses,) = trial.all_have("losses")
    count = len(rank.get("parameters", []))
    if count != 161:
        raise Wrong(
            "161 parameters, those of two layers",
            str(count),
            "A layer becomes a part of a module when it is assigned to it as an attribute.",
        )
    if not losses[-1] < 0.2 * losses[0]:
        raise Wrong("a loss that falls", f"{losses[0]:.3g} becomes {losses[-1]:.3g}")
    return f"161 parameters, and the loss falls from {losses[0]:.2f} to {losses[-1]:.2f}."


def shards_inside(trial: Trial) -> str:
    """Each of four ranks holds half of the model, and trains as one rank does."""
    whole = len(trial.all_have("parameters")[0])
    share = max(trial.all_have("held")) / whole
    if share > 0.75:
        raise Wrong(
            "half of the parameters on each rank",
            f"{share:.0%} of them",
            "Nothing is sharded any more: it is fully_shard that has to stay.",
        )
    if share < 0.35:
        raise Wrong(
            "half of the parameters on each rank",
            f"{share:.0%} of them",
            "That is a quarter: FSDP over all ranks. The mesh has rows of two.",
        )
    return f"each rank holds half of the model, and {_trains_as_alone(trial)}"


def reads_well(trial: Trial) -> str:
    """Every epoch has all samples once, shared out, in an order of its own."""
    seen = trial.all_have("seen")
    for epoch, parts in enumerate(zip(*seen, strict=False)):
        numbers = [number for part in parts for number in part]
        if len(numbers) > 32:
            raise Wrong(
                f"32 samples in epoch {epoch}, shared out",
                f"{len(numbers)}: every rank reads all of them",
                "The DistributedSampler shares them out, shuffle=True of the DataLoader does not.",
            )
        if sorted(numbers) != list(range(32)):
            raise Wrong(
                f"every sample once in epoch {epoch}",
                f"{len(set(numbers))} different ones of 32",
                "The ranks must shuffle alike, with one seed, so that their shares don't overlap.",
            )
    orders = [tuple(epoch) for epoch in seen[0]]
    if len(set(orders)) < len(orders):
        raise Wrong(
            "another order in each of three epochs",
            f"{len(set(orders))} different orders on rank 0",
            "The sampler draws its order from its seed and the epoch that it was told: tell it.",
        )
    if len({frozenset(order) for order in orders}) == 1:
        raise Wrong(
            "a rank that meets other samples in another epoch",
            "the same 16 samples in another order",
            "Shuffle before the samples are shared out, not after.",
        )
    return "three epochs, three orders; the shares are disjoint and change from epoch to epoch."


def all_moved(trial: Trial) -> str:
    """Every rank has the whole model with numbers in it."""
    parameters = trial.all_have("parameters")
    if any(len(mine) != 161 for mine in parameters):
        raise Wrong(
            "161 numbers on each rank",
            " and ".join(str(len(mine)) for mine in parameters),
            "A tensor on the meta device has a shape and no numbers.",
        )
    _ranks_agree(trial, meaning="DistributedDataParallel must be there on every rank.")
    if _apart(parameters[0], [0.0] * 161) < 0.05:
        raise Wrong(
            "parameters that were initialised",
            "all of them are nearly 0",
            "to_empty gives memory, not numbers: call reset_parameters() of each layer too.",
        )
    return "every rank has the model on its device, and they end with the same parameters."


def one_writes(trial: Trial) -> str:
    """One rank writes checkpoint.pt, and all can read it when they do."""
    try:
        saved = [rank["saved"] for rank in trial.ranks]
    except Wrong as wrong:
        early = "If a rank could not read: did it begin before the file was whole?"
        raise Wrong(wrong.expected, wrong.seen, f"{wrong.meaning} {early}".strip()) from None
    files = {path for paths in saved for path in paths}
    writers = [rank for rank, paths in enumerate(saved) if paths]
    if len(files) > 1:
        raise Wrong(
            "one file, checkpoint.pt",
            f"{', '.join(sorted(files))}",
            "The ranks hold the same model. N copies cost N times the time and the place, and a "
            "job with other ranks does not know which to read.",
        )
    if len(writers) != 1:
        raise Wrong(
            "one rank that writes",
            f"{len(writers)} ranks wrote to {', '.join(files) or 'nothing'}",
            "It went well this time, by chance. Let one rank save.",
        )
    if trial.all_have("restored") != [1] * len(saved):
        raise Wrong(
            "the checkpoint of step 1 on all ranks",
            f"steps {trial.all_have('restored')}",
            "Did a rank read before the file was whole?",
        )
    return f"rank {writers[0]} writes, and every rank reads a whole file."


def autocasts(trial: Trial) -> str:
    """Layers compute in 16 bits, parameters stay in 32, and the ranks stay together."""
    kinds, gave = trial.all_have("types")[0], trial.ranks[0]["linear_gave"]
    if kinds != ["torch.float32"]:
        raise Wrong(
            "parameters in float32",
            ", ".join(kinds),
            "An update is often too small for a 16-bit parameter to notice. autocast leaves the "
            "parameters as they are and computes in 16 bits.",
        )
    if "torch.bfloat16" not in gave:
        raise Wrong(
            "linear layers that compute in bfloat16",
            ", ".join(gave) or "no linear layer was called",
            "The mixed precision is gone: the forward belongs under torch.autocast, which needs "
            'dtype=torch.bfloat16 and the device_type "cpu" here.',
        )
    _ranks_agree(trial, meaning="apex averaged the gradients too: torch's own DDP takes its place.")
    return "layers compute in bfloat16, parameters are float32, and the ranks agree."


def averages(trial: Trial) -> str:
    """Gradients and parameters are those of one rank on the whole batch."""
    _ranks_agree(trial, meaning="The all-reduce must stay: without it each rank is on its own.")
    alone, found = trial.alone["gradients"], trial.ranks[0]["gradients"]
    same = _apart(trial.ranks[0]["parameters"], trial.alone["parameters"]) <= NEAR
    if same and _apart(found, alone) > NEAR:
        raise Wrong(
            "the gradients that one rank has, with the whole batch",
            "the training is right, but the gradients are larger by the number of ranks",
            "A smaller learning rate makes up for it with SGD. With clipping, weight decay or "
            "another optimizer it does not. Mend the gradient.",
        )
    return _trains_as_alone(
        trial,
        "A sum over the ranks is too large by their number, a mean divided once more too small. "
        "Divide once, before the optimizer's step.",
    )


def uses_both_heads(trial: Trial) -> str:
    """As one rank; and the second head was trained."""
    if _apart(trial.all_have("at_first")[0][-17:], trial.ranks[0]["parameters"][-17:]) < 1e-3:
        raise Wrong(
            "a second head that learns",
            "its parameters are as they were at the start",
            "It is unused in some steps, not in all: it must stay a part of the training.",
        )
    return _trains_as_alone(trial, "Both heads must be trained as one device trains them.")


def measures_and_goes_on(trial: Trial) -> str:
    """Three measurements, ranks together, and BatchNorm has not learnt from validation data."""
    measured = trial.all_have("measured")[0]
    if len(measured) != 3:
        raise Wrong("3 validation losses on rank 0", str(len(measured)))
    tracked = [mine["num_batches_tracked"] for mine in trial.all_have("buffers")]
    if max(tracked) > 3:
        raise Wrong(
            "3 batches that BatchNorm has learnt from, one for each step of training",
            str(max(tracked)),
            "The model was in training mode while it was evaluated: model.eval() comes before.",
        )
    _ranks_agree(trial, meaning="The training itself still needs DDP.")
    return "every rank gets through all epochs, and the validation changes nothing."


def starts_alike(trial: Trial) -> str:
    """One start, noise of its own on each rank, one end."""
    first, second = trial.all_have("at_first")
    noise = trial.all_have("noise")
    if noise[0] == noise[1]:
        raise Wrong(
            "noise that differs between the ranks",
            "both ranks draw the same numbers",
            "One seed for all makes the models alike, and the noise too. Which of the two has to "
            "be alike?",
        )
    if _apart(first, second) > NEAR:
        raise Wrong(
            "the same parameters on all ranks at the first forward",
            f"they are up to {_apart(first, second):.2g} apart",
            "Averaged gradients move all models alike: what differs at the start differs for ever.",
        )
    _ranks_agree(trial, meaning="They begin alike, but their gradients are not averaged.")
    return "the ranks begin and end with one model, and each has noise of its own."


def stops_together(trial: Trial) -> str:
    """All ranks stop in the step in which one rank with the whole batch stops."""
    stops, alone = trial.all_have("step"), trial.alone["step"]
    if len(set(stops)) > 1:
        raise Wrong(
            "all ranks to stop in the same step",
            f"they stop in steps {', '.join(map(str, stops))}",
            "Each rank decides by a loss of its own.",
        )
    if stops[0] != alone:
        raise Wrong(
            f"a stop in step {alone}, as on one rank with the whole batch",
            f"a stop in step {stops[0]}",
            "The ranks agree, but not on the mean loss of the whole batch: is it a sum, or the "
            "loss of one rank?",
        )
    return f"all ranks stop in step {alone}, as one rank with the whole batch does."


def _case(file: str, **content) -> Case:
    """A case whose task is what its own script says of itself."""
    said = ast.get_docstring(ast.parse((WARD / f"{file}.py").read_text()))
    return Case(f"clinic_{file}", task=said.partition("\n\n")[2], file=file, **content)


TASKS = [
    _case(
        "no_address",
        mend={
            "import sys\n": "import os\nimport sys\n",
            'dist.init_process_group("gloo", rank': "os.environ.setdefault("
            '"MASTER_ADDR", "127.0.0.1")\n'
            'os.environ.setdefault("MASTER_PORT", "29517")\ndist.init_process_group("gloo", rank',
        },
        judge=meets,
        keep=("total",),
        flags={"by_hand": True},
        question="Two processes want to meet. What do they lack?",
        options=(
            Option(
                "A backend for CPUs",
                'They have one: "gloo". The error is about the way to each other, not about what '
                "travels on it.",
            ),
            Option(
                "An address and a port where one of them waits for the other",
                "Rank 0 opens a small server, the store, and all others call it. MASTER_ADDR and "
                "MASTER_PORT say where. A launcher sets both, here nobody does.",
                right=True,
            ),
            Option(
                "Their ranks",
                "Those come from the command line, and are given to init_process_group.",
            ),
            Option("A free port", "It has not come to that: no port was named at all."),
        ),
        hint="The error names what it expected. All processes must agree on it before they meet.",
        stronger='Before init_process_group, on every rank: os.environ["MASTER_ADDR"] = '
        '"127.0.0.1" and os.environ["MASTER_PORT"] = some number above 1024 that is free. '
        "setdefault in place of = leaves what a launcher has set.",
    ),
    _case(
        "super_net",
        ranks=1,
        mend={"super(Net).__init__(self)": "super().__init__()"},
        judge=learns,
        keep=("losses",),
        question="Which of these says what the line with super does wrong?",
        options=(
            Option(
                "Net has no parent class to call",
                "It has: nn.Module. It must be called, or the module can't hold layers.",
            ),
            Option(
                "It comes too early: layers have to be made first",
                "The other way round. nn.Module.__init__ makes the place where layers are kept, so "
                "it comes first.",
            ),
            Option(
                "It calls the constructor of super itself, not that of nn.Module",
                "super(Net) without an object is bound to nothing, so .__init__ is super's own. "
                "super().__init__() binds both by itself.",
                right=True,
            ),
            Option(
                "It lacks the argument width",
                "nn.Module.__init__ takes no argument but the object.",
            ),
        ),
        hint="Two spellings were mixed: super(Net, self).__init__() of Python 2, and "
        "nn.Module.__init__(self).",
        stronger="super().__init__() as the first line, with nothing in any of the brackets.",
    ),
    _case(
        "wrapped_twice",
        ranks=4,
        mend={
            "from torch.nn.parallel import DistributedDataParallel\n": "",
            "model = DistributedDataParallel(model)\n": "",
        },
        judge=shards_inside,
        question="Who averages the gradients between the rows of the mesh?",
        options=(
            Option(
                "DDP, so it has to be the outer wrapper",
                "It would want to send the whole model of rank 0 to all. But rank 0 has only a "
                "part, and another one than its neighbour.",
            ),
            Option(
                "Nobody, until an all-reduce is written by hand",
                "With a mesh of one axis you would be right. This one has two.",
            ),
            Option(
                "DDP, but it has to be the inner wrapper",
                "Then there would be whole models inside, and nothing is saved.",
            ),
            Option(
                "fully_shard itself, along the first axis of the mesh",
                "Given a mesh of two axes, it shards along the second and averages along the "
                "first. Nothing has to be wrapped around it.",
                right=True,
            ),
        ),
        hint="fully_shard was given a mesh of two axes and shards along the second. What can it do "
        "along the first?",
        stronger="Take DistributedDataParallel out. fully_shard(model, mesh=mesh) does both.",
    ),
    _case(
        "same_order",
        mend={"    seen.append([])\n": "    sampler.set_epoch(epoch)\n    seen.append([])\n"},
        judge=reads_well,
        keep=("seen",),
        question="Why does every epoch have the same order?",
        options=(
            Option(
                "The sampler draws it from a seed and the epoch, and nobody tells it the epoch",
                "The ranks must shuffle alike without talking, so the order is computed, not drawn "
                "at random. The epoch is a number that you pass on.",
                right=True,
            ),
            Option(
                "The DataLoader lacks shuffle=True",
                "With a sampler that is an error: only one of them can choose the order.",
            ),
            Option(
                "torch.manual_seed is missing",
                "DistributedSampler has a seed of its own, 0 unless you give one.",
            ),
            Option(
                "The ranks have to be given different seeds",
                "Then their shares would overlap. They shuffle alike and take every other sample.",
            ),
        ),
        hint="Look at the methods of DistributedSampler: one of them is there for this.",
        stronger="sampler.set_epoch(epoch) as the first line inside the loop over the epochs.",
    ),
    _case(
        "moved_on_rank_0",
        mend={
            "if rank == 0:\n    model.to_empty(device=device)\n": "model.to_empty(device=device)\n"
        },
        judge=all_moved,
        question="Rank 1 fails. What does DDP expect of it?",
        options=(
            Option(
                "Nothing: rank 1 should not make the model at all",
                "Then rank 0 would wait for it. DDP is built by all ranks together.",
            ),
            Option(
                "A model on its device, of the same shapes; DDP then copies rank 0's numbers in",
                "It copies numbers into memory that is there. It moves nothing to a device.",
                right=True,
            ),
            Option(
                "The numbers of rank 0, loaded from a file",
                "Numbers are what DDP brings along. What it can't bring is the memory for them.",
            ),
            Option(
                "device_ids=[rank]",
                "That names a device of a model which is there already, and only for GPUs.",
            ),
        ),
        hint="What of all this should happen on rank 0 only?",
        stronger="Nothing. Take the condition away: every rank moves its own model.",
    ),
    _case(
        "saved_by_all",
        mend={
            '    torch.save(state, "checkpoint.pt")\n': "    if rank == 0:\n"
            '        torch.save(state, "checkpoint.pt")\n'
            "dist.barrier()  # nobody reads before the file is whole\n",
        },
        judge=one_writes,
        keep=("restored",),
        flags={"save_seconds": 0.3},
        question="How can a file of a model that all ranks have alike be damaged?",
        options=(
            Option(
                "The ranks' models differ after all, and get mixed",
                "They are the same to the last bit, which is what DDP is for. (The random state "
                "beside them does differ.)",
            ),
            Option(
                "torch.save can't be used with DDP",
                "It can, and the names without `module.` are right too.",
            ),
            Option(
                "A rank that begins to write empties the file that another one is reading",
                "Opening for writing cuts the file to nothing. Until the last rank has written its "
                "last byte nobody may read, and a kill in between leaves half a file.",
                right=True,
            ),
            Option(
                "The disk is too slow",
                "A slow disk only makes it likely. With a fast one it happens once in a month.",
            ),
        ),
        hint="Who should write? And how do the others know when they may read?",
        stronger="if rank == 0: around torch.save; dist.barrier(), for all ranks, between the "
        "loop and torch.load.",
    ),
    _case(
        "apex_amp",
        mend={
            "from apex import amp\nfrom apex.parallel import DistributedDataParallel\n": "",
            "from torch import nn\n": "from torch import nn\n"
            "from torch.nn.parallel import DistributedDataParallel\n",
            'model, optimizer = amp.initialize(model, optimizer, opt_level="O1")\n': "",
            "    loss = nn.functional.mse_loss(model(inputs[rank::world]).float(), "
            "targets[rank::world])\n"
            "    with amp.scale_loss(loss, optimizer) as scaled_loss:\n"
            "        scaled_loss.backward()\n": '    with torch.autocast("cpu", '
            "dtype=torch.bfloat16):\n"
            "        outputs = model(inputs[rank::world])\n"
            "    loss = nn.functional.mse_loss(outputs.float(), targets[rank::world])\n"
            "    loss.backward()\n",
        },
        judge=autocasts,
        question="What is the shortest way to a script that works and lasts?",
        options=(
            Option(
                "pip install apex",
                "The package of that name on PyPI is an unrelated one. NVIDIA's Apex has to be "
                "built from source, for CUDA.",
            ),
            Option(
                "An older PyTorch",
                "One that fits a tutorial of 2019 knows neither today's GPUs nor today's Python.",
            ),
            Option(
                "Delete all lines with apex or amp in them",
                "Then it runs, in float32, and without DDP the ranks train apart.",
            ),
            Option(
                "torch.autocast and torch's own DDP",
                "Both came into PyTorch itself: DDP before Apex was written, autocast in 1.6. "
                "Apex's amp is no longer maintained.",
                right=True,
            ),
        ),
        hint="Lesson 02 has mixed precision, lesson 04 has DDP: both without Apex. bfloat16 needs "
        "no scaler.",
        stronger='with torch.autocast("cpu", dtype=torch.bfloat16): around the forward only; '
        "loss.backward(); DistributedDataParallel from torch.nn.parallel.",
    ),
    _case(
        "summed",
        mend={
            "        dist.all_reduce(parameter.grad)\n": "        dist.all_reduce(parameter.grad)\n"
            "        parameter.grad /= world\n"
        },
        judge=averages,
        shown_on=(1, 2, 4),
        question="What becomes larger with the number of ranks?",
        options=(
            Option(
                "The gradient: all_reduce adds up, and each rank's loss is a mean already",
                "N means added up are N times the mean. It acts like a learning rate that is N "
                "times as large.",
                right=True,
            ),
            Option(
                "The batch, and a larger batch needs a smaller learning rate",
                "The batch is the same: 32 samples, shared out.",
            ),
            Option(
                "The momentum",
                "It is as it was. What it adds up has become larger.",
            ),
            Option(
                "The rounding errors of the all-reduce",
                "They are there, some 1e-7 of the value. Here the loss is another one.",
            ),
        ),
        hint="What does all_reduce do if you do not name an operation? What should become of the "
        "ranks' gradients?",
        stronger="parameter.grad /= world after the all-reduce. (dist.ReduceOp.AVG does both, "
        "where the backend knows it.)",
    ),
    _case(
        "sometimes_unused",
        mend={
            "model = DistributedDataParallel(TwoHeads())": "model = DistributedDataParallel("
            "TwoHeads(), find_unused_parameters=True)"
        },
        judge=uses_both_heads,
        question="For what does DDP wait in the first step?",
        options=(
            Option(
                "For rank 1, which is slower",
                "Both ranks raise the same error, and both have done one step.",
            ),
            Option(
                "For the gradients of the second head, which do not come",
                "DDP sends a bucket when all of its gradients are there. A parameter that took no "
                "part in the loss gets none, and the bucket is never complete.",
                right=True,
            ),
            Option(
                "For optimizer.zero_grad()",
                "It is called in every step, and DDP does not need it.",
            ),
            Option(
                "For the first head: its gradient comes twice",
                "It comes once in each step. The indices in the error are those of the last two "
                "parameters.",
            ),
        ),
        hint="DDP can look, before each backward, which parameters take part. The error says how.",
        stronger="DistributedDataParallel(TwoHeads(), find_unused_parameters=True). Or let the "
        "second head always take part, with a factor of 0.",
    ),
    _case(
        "evaluated_on_rank_0",
        mend={"model(valid)": "model.module(valid)"},
        judge=measures_and_goes_on,
        keep=("measured",),
        question="Rank 1 is in the barrier. In which collective is rank 0?",
        options=(
            Option(
                "In the barrier too",
                "Then both would go on. Its last line is another one.",
            ),
            Option(
                "In an all-reduce of gradients",
                "Under no_grad there are none, and there is no backward.",
            ),
            Option(
                "In none: it computes",
                "The batch has 16 samples. And its stack says that it waits.",
            ),
            Option(
                "In a broadcast of BatchNorm's running statistics, in DDP's forward",
                "DDP gives all ranks rank 0's buffers before each forward, also under no_grad. The "
                "forward of a wrapped model is a collective.",
                right=True,
            ),
        ),
        hint="The wrapper's forward talks to the other ranks. Who does not?",
        stronger="model.module is the model inside of the wrapper: model.module(valid).",
    ),
    _case(
        "own_start",
        mend={
            "nn.Linear(16, 1))\n": "nn.Linear(16, 1))\n"
            "for parameter in model.parameters():\n"
            "    dist.broadcast(parameter.data, src=0)\n"
        },
        judge=starts_alike,
        keep=("noise",),
        question="The gradients are averaged. Why do the models differ?",
        options=(
            Option(
                "The noise differs, so the gradients do",
                "Before they are averaged, yes. After it all ranks have the same.",
            ),
            Option(
                "They differed at the start, and the same steps keep the distance",
                "The seed was set before the model was made. DDP would have copied rank 0's "
                "parameters to all; by hand it is yours to do.",
                right=True,
            ),
            Option(
                "Rounding: the ranks add up in another order",
                "That gives 1e-7. And an all-reduce gives all ranks the same bits.",
            ),
            Option(
                "The optimizers have different states",
                "This one, SGD without momentum, has none.",
            ),
        ),
        hint="Equal models, different noise: both are drawn after one manual_seed. What would DDP "
        "do when it wraps?",
        stronger="After the model is made: dist.broadcast(parameter.data, src=0) for each "
        "parameter. Or one seed before the model, and another one, of the rank, after it.",
    ),
    _case(
        "own_loss",
        mend={
            "    if loss.item() < 0.5:\n": "    mean = loss.detach() / world\n"
            "    dist.all_reduce(mean)\n"
            "    if mean.item() < 0.5:\n"
        },
        judge=stops_together,
        keep=("step",),
        shown_on=(1, 2),
        question="Whose fault is the broken connection?",
        options=(
            Option(
                "The network's",
                "It is the loopback of one machine. And it breaks in the same step each time.",
            ),
            Option(
                "Rank 1's: it is too slow",
                "It is where it should be: in the backward of the next step.",
            ),
            Option(
                "Rank 0's: it has stopped, for its own share's loss was small enough",
                "Its process ended, and with it the connection. The rank that complains is the one "
                "that still worked. A decision that all must take needs a number that all have.",
                right=True,
            ),
            Option(
                "DDP's: it can't be left in the middle of a loop",
                "It can, if all ranks leave in the same step.",
            ),
        ),
        hint="loss is the loss of this rank's share. All ranks need the same number before they "
        "decide.",
        stronger="mean = loss.detach() / world; dist.all_reduce(mean); mean.item() decides.",
    ),
]
