"""The family of training scripts: which derives from which, how each is started, and its copies."""

from dataclasses import dataclass
from pathlib import Path

from bootcamp import files, paths
from bootcamp.paths import SRC

# Flags that all scripts of the family share and that are numbers, with their types
NUMBERS = {
    "steps": int,
    "global_batch": int,
    "kv_heads": int,
    "lr": float,
    "seed": int,
    "cores_per_rank": int,
    "timeout": float,
    "save_every": int,
    "trace_step": int,
}


@dataclass(frozen=True)
class Script:
    """One script of the course, or one that knows nothing of it.

    parent: the script that it differs from by a few lines, None for the baseline.
    launcher: what starts it: python (one process), torchrun or horovodrun.
    framework: the package that it needs beyond torch, None for most.
    defines: functions and classes that its framework demands; the others have none.
    own_device: whether it knows best what it can train on: launch passes it no --device.
    cpu_only: whether it trains on the CPU even where there are GPUs.
    in_parts: whether a rank holds only a part of the model.
    file: its place under src/, if that is not `_train_<name>.py`.
    takes_course_flags: whether it takes the flags that config.parse reads, --device among them, and
        writes a record; another script is given nothing but its own arguments.
    """

    name: str
    parent: str | None = None
    launcher: str = "torchrun"
    framework: str | None = None
    defines: tuple[str, ...] = ()
    own_device: bool = False
    cpu_only: bool = False
    in_parts: bool = False
    file: str | None = None
    takes_course_flags: bool = True

    @property
    def path(self) -> Path:
        return SRC / (self.file or f"_train_{self.name}.py")


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
        Script(
            "horovod", parent="ddp", launcher="horovodrun", framework="horovod", own_device=True
        ),
        Script("lightning", parent="ddp", framework="lightning", defines=("Training",)),
        Script("accelerate", parent="ddp", framework="accelerate"),
        Script("mp", parent="gpu", launcher="python", own_device=True),
        Script("ddp_mp", parent="mp", own_device=True),
        Script("pp", parent="ddp", in_parts=True),
        Script("ddp_pp", parent="pp", in_parts=True),
        Script("fsdp_pp", parent="ddp_pp", in_parts=True),
        Script("3d", parent="ddp_pp", in_parts=True),
        Script("tp", parent="ddp", in_parts=True),
        Script("striped", parent="ddp", defines=("enter", "leave"), in_parts=True),
        Script("ep", parent="ddp", defines=("dispatch", "combine"), in_parts=True),
        Script("fsdp_tp", parent="tp", in_parts=True),
        Script("zero1", parent="ddp"),
        Script("fsdp", parent="ddp", in_parts=True),
        Script("fsdp_in_practice", parent="fsdp", in_parts=True),
        Script("hsdp", parent="fsdp", in_parts=True),
        Script("zero", parent="ddp", framework="deepspeed", in_parts=True),
        Script("megatron", parent="tp", framework="megatron", in_parts=True),
    )
}


def _snippet(name: str, **about) -> Script:
    return Script(name, file=f"snippets/{name}.py", **about)


_HOROVOD = {"launcher": "horovodrun", "framework": "horovod"}
# Other scripts of the course that are more than plain ones, by their place under src/
PROGRAMS = {
    script.file: script
    for script in (
        Script("sweep_all_reduce", file="_sweep_all_reduce.py"),
        _snippet("ddp_accumulate"),
        _snippet("ddp_elastic"),
        _snippet("ddp_with_dataloader"),
        _snippet("ddp_from_horovod"),
        _snippet("serve_replicas"),
        _snippet("serve_pipeline", in_parts=True),
        _snippet("horovod_accumulate", **_HOROVOD, own_device=True),
        _snippet("horovod_scaled", **_HOROVOD, own_device=True),
        _snippet("horovod_names", **_HOROVOD, takes_course_flags=False),
        _snippet("horovod_ranks", **_HOROVOD, takes_course_flags=False),
    )
}
_BY_PLACE = {str(script.path.relative_to(SRC)): script for script in SCRIPTS.values()} | PROGRAMS


def find(script: str | Path) -> Path:
    """Find the file behind a script's name ("ddp", "_train_ddp.py") or path.

    Raises FileNotFoundError, naming the scripts that there are.
    """
    name = str(script)
    if name in SCRIPTS:
        return SCRIPTS[name].path
    for place in (Path(), SRC.parent, SRC):
        if name.endswith(".py") and (place / name).exists():
            return (place / name).resolve()
    known = ", ".join(SCRIPTS)
    raise FileNotFoundError(
        f"there is no script {name!r}: give one of {known}, or the path of a .py file"
    )


def ancestors(path: Path) -> list[Path]:
    """List a script's parent, its parent's, and so on; empty for what is not of the family."""
    script = next((each for each in SCRIPTS.values() if each.path == path), None)
    if script is None or script.parent is None:
        return []
    parent = SCRIPTS[script.parent].path
    return [parent, *ancestors(parent)]


def describe(script: str | Path) -> Script:
    """Say what is known of a script, given by its name or its path.

    A variant or a reader's copy is described by the script that it was made from. Any other script
    is a plain one, which torchrun can start.
    """
    if str(script) in SCRIPTS:
        return SCRIPTS[str(script)]
    path = Path(script).resolve()
    original = path if path.is_relative_to(SRC) else _original(path) or path
    place = str(original.relative_to(SRC)) if original.is_relative_to(SRC) else ""
    return _BY_PLACE.get(place) or Script(path.stem, takes_course_flags=False)


def variants_folder() -> Path:
    """Return where variants are written, and an index of all copies with their originals."""
    return paths.LOGS / "variants"


def _original(path: Path) -> Path | None:
    found = files.read_json(variants_folder() / "index.json").get(str(path))
    return Path(found) if found else None


def remember(path: Path | str, script: str | Path) -> None:
    """Note that a file is a copy of a script, given by name or path: it is launched as that one.

    A copy of a copy has the same original. A copy's text does not tell: it may be broken Python.
    """
    path, source = Path(path).resolve(), find(script)
    note = {str(path): str(_original(source) or source)}
    files.update_json(variants_folder() / "index.json", lambda index: index.update(note))
