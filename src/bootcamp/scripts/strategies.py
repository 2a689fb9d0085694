"""The registry of training scripts: their parents, how each is started, and copies of them."""

from dataclasses import dataclass
from pathlib import Path

from bootcamp import files, paths
from bootcamp.paths import SRC


@dataclass(frozen=True)
class Script:
    """A script that can be launched: one of the course's, or any other."""

    name: str
    parent: str | None = None  # it differs from this one by a few lines; None for the baseline
    launcher: str = "torchrun"  # what starts it: python (one process), torchrun or horovodrun
    framework: str | None = None  # the package that it needs beside torch
    defines: tuple[str, ...] = ()  # functions and classes that its framework demands
    own_device: bool = False  # it chooses its device; launch passes it no --device
    cpu_only: bool = False  # it trains on the CPU even where there are GPUs
    file: str | None = None  # where it is, if that is not src/_train_<name>.py
    takes_course_flags: bool = True  # those of config.parse, and it writes a record

    @property
    def path(self) -> Path:
        return SRC / (self.file or f"_train_{self.name}.py")


HOROVOD = {"launcher": "horovodrun", "framework": "horovod", "own_device": True}
SCRIPTS = {
    script.name: script
    for script in (
        Script("cpu", launcher="python", own_device=True, cpu_only=True),
        Script("gpu", parent="cpu", launcher="python"),
        Script("amp", parent="gpu", launcher="python"),
        Script("activation_checkpointing", parent="gpu", launcher="python"),
        Script("accumulate", parent="gpu", launcher="python"),
        Script("compile", parent="gpu", launcher="python"),
        Script("dp", parent="gpu", launcher="python", own_device=True),
        Script("dp_by_hand", parent="gpu", launcher="python", own_device=True, cpu_only=True),
        Script("ddp", parent="gpu"),
        Script("ddp_by_hand", parent="gpu"),
        Script("ddp_options", parent="ddp", defines=("bf16_compress",)),
        Script("ddp_sync_batchnorm", parent="ddp", defines=("SyncBatchNorm",)),
        Script("ddp_in_practice", parent="ddp", defines=("WithLoss",)),
        Script("local_sgd", parent="ddp_by_hand"),
        Script("horovod", parent="ddp", **HOROVOD),
        Script("lightning", parent="ddp", framework="lightning", defines=("Training",)),
        Script("accelerate", parent="ddp", framework="accelerate"),
        Script("mp", parent="gpu", launcher="python", own_device=True),
        Script("ddp_mp", parent="mp", own_device=True),
        Script("pp", parent="ddp"),
        Script("ddp_pp", parent="pp"),
        Script("fsdp_pp", parent="ddp_pp"),
        Script("3d", parent="ddp_pp"),
        Script("tp", parent="ddp"),
        Script("striped", parent="ddp", defines=("enter", "leave")),
        Script("cp", parent="ddp", defines=("attend",)),
        Script("ep", parent="ddp", defines=("dispatch", "combine")),
        Script("fsdp_tp", parent="tp"),
        Script("zero1", parent="ddp"),
        Script("fsdp", parent="ddp"),
        Script("fsdp_in_practice", parent="fsdp"),
        Script("fsdp_fp8", parent="fsdp", defines=("to_fp8", "GatheredIn8Bits")),
        Script("hsdp", parent="fsdp"),
        Script("zero", parent="ddp", framework="deepspeed"),
        Script("megatron", parent="tp", framework="megatron"),
    )
}


def find(script: str | Path) -> Path:
    """Find a script's file by its name ("ddp", "_train_ddp.py") or path, or FileNotFoundError."""
    name = str(script)
    if name in SCRIPTS and SRC.is_dir():
        return SCRIPTS[name].path
    for place in (Path(), SRC.parent, SRC):
        if name.endswith(".py") and (place / name).exists():
            return (place / name).resolve()
    known = ", ".join(SCRIPTS) if SRC.is_dir() else "the repository's in a clone of it"
    raise FileNotFoundError(f"there is no script {name!r}: give one of {known}, or a .py file")


def list_ancestors(path: Path) -> list[Path]:
    """List a script's parent, its parent's, and so on; empty for one without a parent."""
    parents = {each.path: SCRIPTS[each.parent].path for each in SCRIPTS.values() if each.parent}
    return [parent, *list_ancestors(parent)] if (parent := parents.get(path)) else []


def describe(script: str | Path) -> Script:
    """Return the Script of a name or a path; of a copy, the one that it was made from."""
    if str(script) in SCRIPTS:
        return SCRIPTS[str(script)]
    path = Path(script).resolve()
    original = path if path.is_relative_to(SRC) else _find_original(path)
    known = {each.path: each for each in SCRIPTS.values()}
    if original in known:
        return known[original]
    # another of the course's own says by its imports how it runs
    text = original.read_text() if original.is_relative_to(SRC) and original.exists() else ""
    how = HOROVOD if "import horovod" in text else {}
    known_flags = "config.parse(" in text
    return Script(original.stem, file=str(original), takes_course_flags=known_flags, **how)


def variants_folder() -> Path:
    """Return the folder of variants, which also has an index of all copies and their originals."""
    return paths.LOGS / "variants"


def _find_original(path: Path) -> Path:
    """Return the script that a file is a copy of, or the file itself."""
    return Path(files.read_json(variants_folder() / "index.json").get(str(path), path))


def record_copy(path: Path | str, script: str | Path) -> None:
    """Record that a file is a copy of a script, or of its original, to be launched as that one."""
    note = {str(Path(path).resolve()): str(_find_original(find(script)))}
    files.update_json(variants_folder() / "index.json", lambda index: index.update(note))
