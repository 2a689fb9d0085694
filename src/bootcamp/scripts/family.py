"""The family of training scripts: who is whose parent, and who runs in one process."""

import ast
from dataclasses import dataclass
from pathlib import Path

from bootcamp.paths import SRC


@dataclass(frozen=True)
class Script:
    """One training script of the course.

    parent: the script that it differs from by a few lines, None for the baseline.
    most_lines: how many code lines that difference may be (a test measures it).
    launcher: what starts it: python (one process), torchrun or horovodrun.
    framework: the package that it needs beyond torch, None for most.
    defines: functions and classes that its framework demands; the others have none.
    own_device: whether it knows best what it can train on: launch passes it no --device.
    in_parts: whether a rank holds only a part of the model.
    """

    name: str
    parent: str | None
    most_lines: int
    launcher: str = "torchrun"
    framework: str | None = None
    defines: tuple[str, ...] = ()
    own_device: bool = False
    in_parts: bool = False

    @property
    def path(self) -> Path:
        return SRC / f"_train_{self.name}.py"


SCRIPTS = {
    script.name: script
    for script in (
        Script("cpu", parent=None, most_lines=0, launcher="python", own_device=True),
        Script("gpu", parent="cpu", most_lines=5, launcher="python"),
        Script("amp", parent="gpu", most_lines=15, launcher="python"),
        Script("checkpoint", parent="gpu", most_lines=15, launcher="python"),
        Script("accumulate", parent="gpu", most_lines=15, launcher="python"),
        Script("dp", parent="gpu", most_lines=15, launcher="python", own_device=True),
        Script("dp_by_hand", parent="gpu", most_lines=30, launcher="python", own_device=True),
        Script("ddp", parent="gpu", most_lines=15),
        Script("ddp_by_hand", parent="gpu", most_lines=15),
        Script("ddp_options", parent="ddp", most_lines=30, defines=("bf16_compress",)),
        Script("ddp_sync_batchnorm", parent="ddp", most_lines=25, defines=("SyncBatchNorm",)),
        Script("local_sgd", parent="ddp_by_hand", most_lines=15),
        Script(
            "horovod",
            parent="ddp",
            most_lines=15,
            launcher="horovodrun",
            framework="horovod",
            own_device=True,
        ),
        Script(
            "lightning", parent="ddp", most_lines=35, framework="lightning", defines=("Training",)
        ),
        Script("accelerate", parent="ddp", most_lines=15, framework="accelerate"),
        Script("mp", parent="gpu", most_lines=15, launcher="python", own_device=True),
        Script("ddp_mp", parent="mp", most_lines=15, own_device=True),
        Script("pp", parent="ddp", most_lines=35, in_parts=True),
        Script("ddp_pp", parent="pp", most_lines=15, in_parts=True),
        Script("tp", parent="ddp", most_lines=40, in_parts=True),
        Script("fsdp_tp", parent="tp", most_lines=15, in_parts=True),
        Script("zero1", parent="ddp", most_lines=5),
        Script("fsdp", parent="ddp", most_lines=15, in_parts=True),
        Script("hsdp", parent="fsdp", most_lines=15, in_parts=True),
        Script("zero", parent="ddp", most_lines=35, framework="deepspeed", in_parts=True),
        Script("megatron", parent="tp", most_lines=45, framework="megatron", in_parts=True),
    )
}


def launcher(script: str | Path) -> str:
    """What starts a script: its own entry, or of a variant the first word of its docstring."""
    if str(script) in SCRIPTS:
        return SCRIPTS[str(script)].launcher
    first = ast.get_docstring(ast.parse(Path(script).read_text())) or ""
    return "horovodrun" if first.startswith("horovodrun ") else "torchrun"


def find(script: str | Path) -> Path:
    """The file behind a script's name ("ddp") or path. Raises FileNotFoundError, naming both."""
    if str(script) in SCRIPTS:
        return SCRIPTS[str(script)].path
    path = Path(script)
    if path.suffix == ".py" and path.exists():
        return path.resolve()
    known = ", ".join(SCRIPTS)
    raise FileNotFoundError(
        f"there is no script {str(script)!r}: give one of {known}, or the path of a .py file"
    )
