"""The family of training scripts: which derives from which, and how each is started."""

from dataclasses import dataclass
from pathlib import Path

from bootcamp.paths import SRC
from bootcamp.scripts import copies

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
    of_course: whether it takes the flags that config.parse reads, --device among them, and writes
        a record. A script that is not of the course is given nothing but its own arguments.
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
    of_course: bool = True

    @property
    def path(self) -> Path:
        return SRC / (self.file or f"_train_{self.name}.py")

    @property
    def takes_device(self) -> bool:
        """Whether it has a flag --device."""
        return self.of_course


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


# Other scripts of the course that are more than plain ones, by their place under src/
PROGRAMS = {
    script.file: script
    for script in (
        Script("sweep_all_reduce", file="snippets/sweep_all_reduce.py"),
        Script("ddp_accumulate", file="snippets/ddp_accumulate.py"),
        Script("ddp_elastic", file="snippets/ddp_elastic.py"),
        Script("ddp_with_dataloader", file="snippets/ddp_with_dataloader.py"),
        Script("ddp_from_horovod", file="snippets/ddp_from_horovod.py"),
        Script("serve_replicas", file="snippets/serve_replicas.py"),
        Script("serve_pipeline", file="snippets/serve_pipeline.py", in_parts=True),
        *(
            Script(
                name,
                file=f"snippets/{name}.py",
                launcher="horovodrun",
                framework="horovod",
                own_device=of_course,
                of_course=of_course,
            )
            for name, of_course in (
                ("horovod_accumulate", True),
                ("horovod_scaled", True),
                ("horovod_names", False),
                ("horovod_ranks", False),
            )
        ),
    )
}


def find(script: str | Path) -> Path:
    """The file behind a script's name ("ddp", "_train_ddp.py") or path.

    Raises FileNotFoundError, naming the scripts that there are.
    """
    name = str(script)
    if name in SCRIPTS:
        return SCRIPTS[name].path
    path = Path(script)
    if path.suffix == ".py" and path.exists():
        return path.resolve()
    for place in (SRC.parent, SRC):
        if path.suffix == ".py" and (place / path).exists():
            return (place / path).resolve()
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
    """What is known of a script, given by its name or its path.

    A variant or a reader's copy is described by the script that it was made from (copies.py). Any
    other script is a plain one, which torchrun can start.
    """
    if str(script) in SCRIPTS:
        return SCRIPTS[str(script)]
    path = Path(script).resolve()
    original = path if path.is_relative_to(SRC) else copies.original(path) or path
    if original.is_relative_to(SRC):
        place = str(original.relative_to(SRC))
        family = {each.path.name: each for each in SCRIPTS.values()}
        if found := PROGRAMS.get(place) or family.get(place):
            return found
    return Script(path.stem, of_course=False)
