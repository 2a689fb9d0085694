"""What the published tables say in words: "FSDP8 CP1", "SP + selective recompute", "400Gb/s".

Standard library only.
"""

import re

AXES = {"tp": "tensor", "cp": "context", "pp": "pipeline", "ep": "expert"}
GBIT = 1 / 8  # GB/s
IMAGE_MODELS = {
    "inceptionv3": "Inception V3",
    "resnet50": "ResNet-50",
    "resnet101": "ResNet-101",
    "resnet152": "ResNet-152",
    "alexnet": "AlexNet",
    "vgg16": "VGG-16",
}


def understand(texts: dict[str, str], numbers: dict) -> None:
    """Put what is said in words into `numbers`, where they do not say it."""
    said = f"{texts['parallelism']}, {texts['techniques']}"
    for name, size in re.findall(r"\b(fsdp|hsdp|ddp|dp|tp|cp|pp|ep)[ =:]*(\d+)", said, re.I):
        axis = AXES.get(name.lower(), "data")
        numbers.setdefault(axis, int(size))
    if match := re.search(r"\bhsdp[ =:]*(\d+) ?x ?(\d+)", said, re.I):  # rows, and ranks of a row
        numbers |= {"data": int(match[1]) * int(match[2]), "shard": int(match[2])}
    _model(texts, numbers)
    if match := re.search(r"\(b(\d+)\)", texts["model"]):  # a batch of its own
        numbers["micro_batch"] = int(match[1])
    if texts["conditions"]:
        _conditions(texts, numbers)
    if texts["workload"]:
        _workload(texts, numbers)
    sharding = f"{said} {texts['sharding']} {texts['scheme']}"
    if numbers.get("model_size", 1) == 1 and re.search(r"[fh]sdp|zero-?3", sharding, re.I):
        numbers.setdefault("stage", 3)
    if "interleaved" in said.lower():
        numbers.setdefault("virtual", 2)
    if texts["parallelism"] and "micro_batch" in numbers:
        numbers["local"] = 1
    if "host_gb_s" not in numbers:
        network = f"{texts['network']} {texts['inter']} {texts['section']} {texts['hardware']}"
        network = network.replace("p2.8xlarge", "10 Gb/s")  # as AWS promises
        if rate := _network(network, numbers.get("per_host", 8)):
            numbers["host_gb_s"] = rate


def _model(texts: dict[str, str], numbers: dict) -> None:
    """Sizes that stand in the model's name: "405B: L126 h16384 a128 kv8 ffn53248 V128256"."""
    fields = {"L": "layers", "h": "hidden", "a": "heads", "kv": "key_heads", "ffn": "inner"}
    fields["V"] = "vocabulary"
    name, _, sizes = texts["model"].partition(":")
    for key, size in re.findall(r"\b(L|h|a|kv|ffn|V)(\d+)", sizes):
        numbers.setdefault(fields[key], int(size))
    if sizes:
        texts["model"] = name
    if match := re.search(r"\b(\d+)M params", texts["model"]):
        numbers.setdefault("parameters", float(match[1]) * 1e6)
        hosts, each = re.search(r"(\d+)x(\d+) GPUs", texts["model"]).groups()
        numbers.setdefault("gpus", int(hosts) * int(each))
        numbers.setdefault("stage", 3 if "zero3" in texts["api"] else 2)
        largest = re.search(r"largest layer (\d+)M", texts["model"])
        numbers["largest"] = float(largest[1]) * 1e6 if largest else 0.0


def _conditions(texts: dict[str, str], numbers: dict) -> None:
    """One layer by itself: "h=6144,a=64), b=4, s=2048, TP=8, A100-80GB"."""
    fields = {"h": "hidden", "a": "heads", "b": "micro_batch", "s": "sequence_length"}
    for key, size in re.findall(r"\b(h|a|b|s|TP)=(\d+)", texts["conditions"]):
        numbers.setdefault(fields.get(key, "tensor"), int(size))
    if "no parallelism" in texts["technique"]:
        numbers["tensor"] = 1
    if texts["model"]:  # the paper's Table 3
        numbers["micro_batch"] = 4 if texts["model"] == "22B" else 1
    numbers |= {"layers": 1, "gpus": numbers["tensor"], "batch": numbers["micro_batch"]}


def _workload(texts: dict[str, str], numbers: dict) -> None:
    if match := re.search(r"per-device batch (\d+)", texts["workload"]):
        numbers.setdefault("micro_batch", int(match[1]))


def _network(text: str, per_host: int) -> float | None:
    """GB/s that a host sends, from words such as "8x200Gb HDR per node"; None without any."""
    if match := re.search(r"(\d+)\s*x\s*(\d+)\s*Gb", text):
        return int(match[1]) * int(match[2]) * GBIT
    if not (match := re.search(r"([\d.]+)\s*Gb(ps|/s|it/s)?\b", text)):
        return None
    each = per_host if re.search(r"per GPU", text) else 1
    return float(match[1]) * GBIT * each


def image_model(name: str) -> str:
    """The name of a convolutional network, or ""."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower().partition("(")[0])
    return IMAGE_MODELS.get(plain, "")


def flags(texts: dict[str, str], numbers: dict) -> dict:
    """What of a plan is said in words: recomputation, precision, ZeRO's stage and the rest."""
    technique = f"{texts['technique']} {texts['techniques']} {texts['experiment']}".lower()
    precision = f"{texts['precision']} {technique}".lower()
    stage = int(numbers.get("stage", 0))
    if texts["sharding"].upper() == "NO_SHARD" or texts["mode"].upper() in ("DP", "DDP"):
        stage = 0
    if "fsdp" in numbers:
        stage = 3 if numbers["fsdp"] > 1 else 1
    yes, no = ("y", "yes", "true", "1"), ("n", "no", "false", "0")
    return {
        "stage": stage,
        "recompute": recompute(texts["recompute"] or texts["act_ckpt"], technique),
        "precision": "fp8"
        if re.search(r"fp8|float8|fp4", precision)
        else "fp32"
        if re.search(r"fp32|float32|tf32", precision)
        else "bf16",
        "compiled": texts["compile"].lower() in yes or "compile" in technique,
        "sequence": texts["sequence"].lower() in yes
        or bool(re.search(r"\bsp\b|sequence", technique))
        and "no sp" not in technique,
        "attention": attention(texts["attention"].lower()),
        "overlap": texts["overlap"].lower() not in no and texts["mode"].upper() != "DP",
        "fused_loss": texts["fused_loss"].lower() in yes,
        "early_stop": texts["early_stop"].lower() not in no,
        # MegaScale sends between the pieces of its products (arXiv:2402.15627, section 3.2)
        "asynchronous": "async" in technique or texts["method"].lower() == "megascale",
        "keep_gathered": texts["sharding"].upper() == "SHARD_GRAD_OP",
        "schedule": schedule(texts["schedule"].lower(), texts["parallelism"].lower()),
        "offload": texts["cpu_offload"].lower() in yes,
    }


def attention(said: str) -> str:
    """fused, softmax or unfused, from the name of a kernel."""
    return "fused" if not said or re.search(r"flash|sdpa|triton|cudnn|^fa\d?$", said) else said


def schedule(said: str, besides: str = "") -> str:
    """1f1b, gpipe, interleaved or zero-bubble, from what a table says; 1f1b where it says none."""
    kinds = {"interleaved": r"interleav", "zero-bubble": r"zero.?bubble|\bzb|dualpipe"}
    kinds |= {"gpipe": r"gpipe", "1f1b": r"1f1b|one forward"}
    found = [kind for kind, words in kinds.items() if re.search(words, said or besides)]
    return found[0] if found else said or "1f1b"


def recompute(said: str, technique: str = "") -> str:
    """none, selective, selective op or full, from what a table says. Raises ValueError."""
    said = said.lower().strip()
    if said in ("true", "yes", "y", "1") or re.search(r"full|block|uniform|every layer", said):
        return "full"
    if said in ("false", "no", "n", "0", "none", "off", "n/a", "-"):
        return "none"
    if re.search(r"\bop\b|\bsac\b|selective.*\d", said):
        return "selective op"
    if "selective" in (said or technique):
        return "selective"
    if said:
        raise ValueError(f"recompute={said!r}: expected none, selective, selective op or full")
    return "full" if re.search(r"full recompute|with recompute", technique) else "none"
