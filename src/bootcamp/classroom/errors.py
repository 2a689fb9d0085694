"""Which error means what: `errors.explain(text)`, and `errors.index()`, a table to search.

    errors.explain("... Connection reset by peer ...")     a text that you paste
    errors.explain(error)                                  or an exception that you caught
    errors.explain()                                       or the last one of this notebook

An entry knows its error by fragments that stay the same from run to run. The texts beside it are
real: tools/errors.py provokes each error and writes down how it ends (logs/reference/errors.json).
What an error means, where to look and how to mend it is written by hand. Standard library only; the
widget needs a notebook.
"""

import html
import json
import re
import sys
from dataclasses import dataclass
from functools import cache

from bootcamp.paths import REFERENCE
from bootcamp.table import Table

RECORDED = REFERENCE / "errors.json"
LINES = 8  # of an error's end that are worth keeping
FIRST_THINGS = (
    "the first error of all ranks, by time: the others often only say that somebody is gone",
    "the last line of the traceback that stands in your own script",
    "whether all ranks were about to call the same collective, in the same order",
)


@dataclass(frozen=True)
class Entry:
    """One kind of error. `pattern`: a regular expression that finds it in a text."""

    name: str
    pattern: str
    means: str
    look_at: str
    fix: str
    lesson: str

    def matches(self, text: str) -> bool:
        return re.search(self.pattern, text) is not None


ENTRIES = (
    Entry(
        "no_meeting_place",
        r"environment variable \w+ expected, but not set",
        "The process wants to meet others, and nobody told it where, or who it is.",
        "how the script was started: python starts one process and sets nothing",
        "Start it with torchrun or launch(), or set MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE.",
        "12",
    ),
    Entry(
        "port_taken",
        r"EADDRINUSE|[Aa]ddress already in use",
        "The port is in use: by another run, or by one that has not ended.",
        "which process listens there: ss -ltnp, and ghosts() for runs of this course",
        "Take a free port: torchrun --standalone and launch() choose one. End the other run, if "
        "it is yours.",
        "04",
    ),
    Entry(
        "no_group",
        r"Default process group has not been initialized",
        "A collective was called in a process that has joined no group.",
        "whether init_process_group stands before it, and in this process (a worker of a "
        "DataLoader is another one)",
        "Call init_process_group first. In a script for one process too, guard collectives with "
        "dist.is_initialized().",
        "04",
    ),
    Entry(
        "no_nccl",
        r"Distributed package doesn't have NCCL built in",
        'The backend "nccl" was asked for, and this PyTorch was built without it.',
        "torch.version.cuda: None is a build for CPUs",
        'Use "gloo" for CPU ranks, or install a PyTorch with CUDA.',
        "04b",
    ),
    Entry(
        "main_not_guarded",
        r"before the\s+current process has finished its bootstrapping phase",
        "A process that was spawned runs the script from its first line, and comes to the line "
        "that spawns.",
        'whether mp.spawn stands under if __name__ == "__main__":',
        "Put it there, and all that only the first process shall do.",
        "04",
    ),
    Entry(
        "super_of_nothing",
        r"super\(\) argument 1 must be (a )?type",
        "super(Net).__init__(self) calls the constructor of super, not that of the parent class.",
        "the first line of __init__ in your module",
        "super().__init__()",
        "12",
    ),
    Entry(
        "module_not_begun",
        r"before Module\.__init__\(\) call",
        "A layer was assigned to a module whose parent class was not initialised.",
        "the first line of __init__ in your module",
        "super().__init__() before all else.",
        "12",
    ),
    Entry(
        "no_parameters",
        r"optimizer got an empty parameter list",
        "The optimizer was given no parameter at all.",
        "whether the layers are attributes of the module: those in a plain list do not count",
        "nn.ModuleList in place of a list, and the optimizer after the model.",
        "12",
    ),
    Entry(
        "parts_for_a_model",
        r"would remove or reshape sharded dimension|got mixed torch\.Tensor and DTensor|"
        r"does not have a sharding strategy registered",
        "A tensor that is one part of a whole met code that takes it for a whole.",
        "what was wrapped twice, or which operation mixes sharded and plain tensors",
        "fully_shard averages by itself: no DDP around it. Elsewhere full_tensor(), or move the "
        "operation to where both are whole.",
        "08",
    ),
    Entry(
        "left_on_meta",
        r"cannot be called on meta tensors|Cannot copy out of meta tensor",
        "A tensor on the meta device has a shape and no numbers, and somebody asked for them.",
        "which ranks, and which parts of the model, were never given a device",
        "to_empty(device=...) on every rank, then initialise or load. .to() can't move what is "
        "not there.",
        "12",
    ),
    Entry(
        "two_devices",
        r"[Tt]ensor on device \S+ is not on the expected device|Expected all tensors to be on the "
        r"same device",
        "An operation got tensors from two devices.",
        "the devices of the model and of the batch: print them before the line that fails",
        "Move the model once and each batch in every step to the same device.",
        "02",
    ),
    Entry(
        "device_ids_of_a_cpu",
        r"device_ids and output_device arguments only work with",
        "DDP was given device_ids, and the model is not on one GPU.",
        "the device that the error names",
        "device_ids only where the model is on a GPU, and then [local_rank]; on a CPU leave it "
        "out.",
        "04b",
    ),
    Entry(
        "models_differ",
        r"appears not to match (sizes|strides) of the same param|expects same model across all "
        r"ranks",
        "The ranks have built different models.",
        "what a rank's model depends on: its rank, its files, its version of the code",
        "Build the same model on every rank, from the same flags.",
        "04",
    ),
    Entry(
        "unused_parameters",
        r"Expected to have finished reduction in the prior iteration|did not receive grad for rank",
        "Some parameter took no part in the loss, so DDP still waits for its gradient.",
        "the indices that the error names, in the order of model.parameters()",
        "find_unused_parameters=True, if that is meant; else take the part out, or use it.",
        "04b",
    ),
    Entry(
        "static_graph_changed",
        r"Your training graph has changed in this iteration",
        "DDP was promised that each step uses the same parameters (static_graph), and one did not.",
        "which parts of the model are used in some steps only",
        "find_unused_parameters=True in place of static_graph=True.",
        "04b",
    ),
    Entry(
        "size_mismatch",
        r"size doesn't match expected size|is there a distributed collective mismatch|"
        r"op\.preamble\.length <= op\.nbytes",
        "Two ranks met in one collective with tensors of different sizes.",
        "the order of the collectives on each rank, and their shapes",
        "The same calls in the same order everywhere. TORCH_DISTRIBUTED_DEBUG=DETAIL names the "
        "first that differs.",
        "04",
    ),
    Entry(
        "peer_is_gone",
        r"Connection (closed|reset) by peer|Connection refused|Broken pipe",
        "Another rank has ended, by an error, a signal, or because it was done. This rank is not "
        "the culprit.",
        "the other ranks' output: which ended first, and why",
        "Mend what ended the other. If it ended well, the ranks did not agree when to stop.",
        "12",
    ),
    Entry(
        "timed_out",
        r"Timed out waiting \d+ms|Watchdog caught collective operation timeout|"
        r"timed out after \d+ ?(ms|seconds)",
        "This rank waited in a collective, and another one did not come within the time-out.",
        "where the other ranks stood: a collective under if rank == 0, fewer batches on one rank, "
        "a save that took long",
        "Every rank must call it. If it only takes long, give init_process_group a larger "
        "timeout=.",
        "04",
    ),
    Entry(
        "hang",
        r"no rank has finished a step for \d+ s",
        "The ranks wait, each for another, or one of them stands still. The launcher ended them.",
        "the line of the script that each rank was in",
        "Ranks in different collectives: one was called on some ranks only. One that waits for "
        "nobody: look there.",
        "04",
    ),
    Entry(
        "killed",
        r"killed by signal 9|SIGKILL|exitcode\s*:\s*-9",
        "The system or somebody ended a process. It could not say a word.",
        "memory, first of all: dmesg tells of the kernel's OOM killer, a cluster's log of limits",
        "Less memory per rank: a smaller share of the batch, fewer workers, shards. And save "
        "checkpoints.",
        "04b",
    ),
    Entry(
        "cpu_memory",
        r"DefaultCPUAllocator: (can't|not enough)|Cannot allocate memory",
        "The main memory does not hold a tensor of that size.",
        "the number of bytes in the error: a shape that is wrong, or a model that is too large",
        "Correct the shape, or shard the model.",
        "07",
    ),
    Entry(
        "gpu_memory",
        r"CUDA out of memory|CUDA error: out of memory",
        "The GPU's memory is full.",
        "the peak in the record of the run, and ghosts(): does a dead run hold memory?",
        "Accumulate gradients, recompute activations, 16 bits, then shards.",
        "02",
    ),
    Entry(
        "torn_checkpoint",
        r"PytorchStreamReader failed|EOFError: Ran out of input",
        "The file is no whole checkpoint: half written, or written by two at once.",
        "who writes it, and whether somebody was killed meanwhile",
        "One rank writes, to another name, and renames it when it is whole. The others wait.",
        "07b",
    ),
    Entry(
        "missing_part",
        r"no checkpoint of this course|__\d+_\d+\.distcp",
        "A checkpoint in parts lacks one of them, or the path is no checkpoint.",
        "the path, and whether each rank saved to its own disk",
        "All ranks save to storage that all can read.",
        "07b",
    ),
    Entry(
        "another_model",
        r"saved with --\w",
        "The checkpoint is of another model than the one that it shall go into.",
        "the flags of the run that saved it",
        "Resume with the model, size and optimizer that were saved.",
        "07b",
    ),
    Entry(
        "disk_full",
        r"No space left on device",
        "The disk is full, or a quota is used up.",
        "df -h and df -i for the folder in the error",
        "Make room. Records and checkpoints can be given another place: run_dir=, --save.",
        "07b",
    ),
    Entry(
        "folder_not_writable",
        r"the run folder .* can't be written: (?!No space)",
        "The launcher can't make the folder of the run.",
        "the reason at the end of the line, and who owns the folder",
        "Give run_dir= a folder that you may write to, or set BOOTCAMP_LOGS.",
        "00",
    ),
    Entry(
        "supervisor_died",
        r"the launcher's supervisor process died",
        "The process that watches over the ranks was ended, and the run with it.",
        "what ended it: somebody's kill, or a lack of memory",
        "Launch again: the next launch starts a new one.",
        "00",
    ),
    Entry(
        "apex",
        r"No module named '(apex|amp_C)",
        "The script wants NVIDIA's Apex, which is not installed. (apex on PyPI is another thing.)",
        "the imports at its top",
        "torch.autocast for its amp, torch's own DDP for its DDP.",
        "12",
    ),
    Entry(
        "sampler_and_shuffle",
        r"sampler option is mutually exclusive with\s+shuffle",
        "The DataLoader was given a sampler and shuffle=True: only one can choose the order.",
        "the arguments of the DataLoader",
        "Leave shuffle out, and tell the sampler the epoch: sampler.set_epoch(epoch).",
        "04",
    ),
)


@cache
def recorded() -> tuple[dict, ...]:
    """The recorded errors: entry, provoked_by, text, torch, machine; empty without a record."""
    try:
        return tuple(json.loads(RECORDED.read_text())["errors"])
    except OSError:
        return ()


def last_lines(text: str, lines: int = LINES) -> str:
    """The end of an error's text: from the last line that names an exception, at most so many."""
    rows = text.rstrip().splitlines()
    named = [i for i, row in enumerate(rows) if re.match(r"[\w.]+(Error|Exception|Refused)\b", row)]
    begin = named[-1] if named else max(0, len(rows) - lines)
    return "\n".join(row.rstrip() for row in rows[begin:][:lines]).strip()


def find(text: str) -> Entry | None:
    """The entry of an error's text, None for an unknown one.

    Of several that fit, the one whose fragment stands last: the end of a traceback is what was
    raised, and what stands above may have caused it.
    """
    found = [(found.start(), entry) for entry in ENTRIES for found in entry_places(entry, text)]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def entry_places(entry: Entry, text: str) -> list[re.Match]:
    """Where an entry's fragments stand in a text."""
    return list(re.finditer(entry.pattern, text))


class Explanation:
    """What an error means, as text and as HTML; `entry` is None if the index does not know it."""

    def __init__(self, entry: Entry | None):
        self.entry = entry
        self.rows = _explained(entry) if entry else _unknown()

    def __str__(self) -> str:
        return "\n".join(f"{title}: {text}" for title, text in self.rows)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = (f"<dt><b>{t}</b></dt><dd>{html.escape(text)}</dd>" for t, text in self.rows)
        return f"<dl>{''.join(rows)}</dl>"


def _explained(entry: Entry) -> list[tuple[str, str]]:
    rows = [("It means", entry.means), ("Look at", f"{entry.look_at}.")]
    rows += [("Fix it", entry.fix), ("Lesson", entry.lesson)]
    samples = [r for r in recorded() if r["entry"] == entry.name]
    return rows + [(f"Recorded by {s['provoked_by']}", s["text"]) for s in samples[:1]]


def _unknown() -> list[tuple[str, str]]:
    places = ("Look first at", "Then at", "And at")
    rows = [("It means", "the index does not know this error.")]
    return rows + [(place, f"{what}.") for place, what in zip(places, FIRST_THINGS, strict=True)]


def explain(error: str | BaseException | None = None) -> Explanation:
    """What an error means: a pasted text, an exception, or the last one that a cell raised."""
    if error is None:
        error = getattr(sys, "last_value", None)
        if error is None:
            raise ValueError("no cell has failed so far: paste a text, errors.explain('...')")
    if isinstance(error, BaseException):
        error = f"{type(error).__name__}: {error}"
    return Explanation(find(error))


def table(words: str = "") -> Table:
    """The index as a table: all of it, what has all of these words, or a pasted error's entry."""
    known = find(words) if words else None
    wanted = words.lower().split()
    rows = [
        _row(entry)
        for entry in ENTRIES
        if entry is known or (not known and all(word in _all_words(entry) for word in wanted))
    ]
    counted = f"{len(rows)} of {len(ENTRIES)} errors"
    return Table(rows, f"{counted}. Texts recorded with {_with_what()}.")


def _row(entry: Entry) -> dict:
    texts = [r["text"] for r in recorded() if r["entry"] == entry.name]
    return {
        "lesson": entry.lesson,
        "the error says": _gist(entry, texts),
        "it means": entry.means,
        "look at": entry.look_at,
        "fix it": entry.fix,
    }


def _gist(entry: Entry, texts: list[str]) -> str:
    """What stands around the fragment in a recorded text; the fragment where none was recorded."""
    if not texts:
        return f"(not recorded) {entry.pattern.split('|')[0]}"
    text = " ".join(texts[0].split())
    found = re.search(entry.pattern, text)
    before, after = text[: found.start()].split(" "), text[found.end() :].split(" ")
    cut = "... " if len(before) > 8 else ""
    return cut + " ".join(before[-8:]) + found[0] + " ".join(after[:8])


def _all_words(entry: Entry) -> str:
    texts = [r["text"] for r in recorded() if r["entry"] == entry.name]
    parts = (entry.name, entry.means, entry.look_at, entry.fix, f"lesson {entry.lesson}", *texts)
    return " ".join(parts).lower()


def _with_what() -> str:
    kinds = sorted({f"torch {r['torch']} on {r['machine']}" for r in recorded()})
    return "; ".join(kinds) or "nothing: run python tools/errors.py"


def index() -> dict:
    """Show the index with a box to search it: words, or an error's text. Returns the control."""
    import ipywidgets

    from bootcamp.widgets import controls

    box = ipywidgets.Text(
        description="search",
        placeholder="words, or an error that you paste",
        continuous_update=False,
        layout={"width": "40em"},
    )
    return controls.follow(lambda words: table(words), words=box)
