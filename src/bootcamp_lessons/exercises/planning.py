"""Exercises of lesson 10: a plan, claims that cannot be true, and how many GPUs to rent."""

from dataclasses import dataclass
from functools import cached_property

from bootcamp.classroom.tasks import FunctionTask, NotTried, PythonSource, Task, Wrong
from bootcamp.costs.planner import WORDS
from bootcamp.table import Table
from bootcamp_lessons import forecasts, plan_contest

MODEL, WITHIN = "Llama 3 70B", 0.05
STATES = (
    "Parameters, gradients and optimizer state are the largest part: split the model over more "
    "ranks (tensor, pipeline), or shard more of it (stage)."
)
FILLED = dict.fromkeys(("parameters", "gradients", "optimizer"), STATES) | {
    "activations": "Activations are the largest part: a smaller micro-batch, recomputation, or "
    "more ranks that share one sample.",
    "buffers": "Scores and gathered parameters: take a smaller micro-batch, or more tensor ranks.",
}
SLOWED = {
    "compute": "It computes longer than the best plan. Recomputation repeats forward passes; very "
    "narrow pieces of a matrix, and stages of unequal length, leave a GPU partly idle.",
    "host": "The GPUs wait for the host's kernel launches: each micro-batch is too small.",
    "tensor": "Tensor ranks wait for each other in every layer: fewer of them wait less. Groups of "
    "more than 8 put their all-reduces on the network between hosts.",
    "context": "Context ranks exchange keys and values in every layer: short sequences need none.",
    "data": "Gradients and parameters wait for the network. Stage 3 without a pipeline gathers and "
    "reduces for every micro-batch; more stages leave each rank fewer parameters to send.",
    "pipeline": "Each cut of the pipeline adds a hop to the way of a micro-batch: use fewer.",
    "bubble": "The bubble is what costs: more micro-batches, or fewer stages.",
}


@dataclass(frozen=True)
class PlanAtScale(Task):
    """A plan that fits and whose predicted step is within 5 % of the fastest.

    host_gb_s: GB/s that a host sends to others. solution: one of the answers. Data ranks follow.
    """

    gpus: int
    host_gb_s: float
    solution: dict

    def row(self, fields: dict) -> dict:
        """Predict a plan. Raises ValueError for an impossible one."""
        shape = forecasts.find_model(MODEL)
        cluster = forecasts.make_cluster(self.gpus, self.host_gb_s)
        batch = forecasts.count_samples(shape, forecasts.BATCH)
        asked = plan_contest.Task("", MODEL, shape, cluster, batch)
        plan = asked.plan(forecasts.add_data_ranks(self.gpus, fields))
        return forecasts.predict_plan(shape, cluster, plan)

    @cached_property
    def tried(self) -> Table:
        """The plans to compare an answer with, those that fit first, the fastest first."""
        return forecasts.list_plans(MODEL, gpus=self.gpus, host_gb_s=self.host_gb_s)

    def attempt(self, given) -> str:
        """Predict the reader's plan. Raises Wrong."""
        if given is None:
            raise NotTried("a dictionary as the second argument", "None")
        if not isinstance(given, dict) or not given:
            raise Wrong('a dictionary such as {"tensor": 8}', repr(given))
        try:
            row = self.row(given)
        except ValueError as error:
            raise Wrong("a plan that this model and these GPUs allow", str(error)) from None
        if not row["fits"]:
            most = max(row["gb"], key=row["gb"].get)
            seen = f"{row['peak_gb']:.1f} GB, of them {row['gb'][most]:.1f} GB of {most}"
            raise Wrong(f"at most {row['gpu_gb']:.0f} GB on the fullest GPU", seen, FILLED[most])
        best, seconds = self.tried[0], row["seconds_per_step"]
        if seconds > self.most_seconds:
            longer = {part: row["seconds"][part] - best["seconds"][part] for part in SLOWED}
            most = max(longer, key=longer.get)
            raise Wrong(
                f"a step within {WITHIN:.0%} of the fastest, {best['seconds_per_step']:.1f} s",
                f"it fits, and takes {seconds:.1f} s: {longer[most]:.1f} s more for "
                f"{WORDS.get(most, 'computing')}",
                SLOWED[most],
            )
        return f"{seconds:.1f} s, {self._distance(row)}. {self._others()}"

    @property
    def most_seconds(self) -> float:
        """The longest step of an answer."""
        return (1 + WITHIN) * self.tried[0]["seconds_per_step"]

    def _distance(self, row: dict) -> str:
        slower = row["seconds_per_step"] / self.tried[0]["seconds_per_step"] - 1
        fit = f"the fastest of {sum(other['fits'] for other in self.tried)} that fit"
        if slower < -1e-9:
            return f"{-slower:.1%} faster than {fit} and were tried"
        return f"{slower:.1%} slower than {fit}" if slower > 1e-9 else fit

    def _others(self) -> str:
        """Of the plans that are no answer, the fastest for each limit."""
        first = {}
        for row in self.tried:
            if not row["fits"] or row["seconds_per_step"] > self.most_seconds:
                first.setdefault(row["limit"].partition(":")[0], row)
        named = ("tensor", "pipeline", "data", "micro-batch", "recompute")
        lines = ["What limits others:"]
        for row in first.values():
            name = ", ".join(f"{knob} {row[knob]}" for knob in named)
            lines.append(f"- {name}: {row['seconds_per_step']:.1f} s; {row['limit']}")
        return "\n".join(lines)

    def solution_text(self) -> PythonSource:
        """Return one answer; there are others."""
        return PythonSource(f'exercise.check("{self.name}", {self.solution})')


PLAN = PlanAtScale(
    "plan_for_256",
    task="Llama 3 70B on 256 H100s, 8 in a host, 100 Gbit/s (12.5 GB/s) between hosts, 4,194,304 "
    "tokens (512 sequences) a step: a plan that fits, at most 5 % slower than the fastest.",
    hint="On so slow a network, what sends least between hosts: shards, copies, or stages?",
    stronger="Keep tensor ranks inside a host. FSDP gathers all parameters over the network for "
    "every micro-batch; a pipeline hands over activations at its cuts, and leaves each rank fewer "
    "gradients to reduce. Then shorten the bubble: a micro-batch of 1.",
    gpus=256,
    host_gb_s=12.5,
    solution={"tensor": 4, "pipeline": 8, "data": 8, "stage": 1, "micro_batch": 1},
)


def _claim(billions, gpus, gpu, rate, step_tokens, host_gb_s=50.0) -> dict:
    """Make a claim of the exercise: one micro-batch a step, 8 GPUs in a host."""
    memory, peak = {"A100": (80e9, 312e12), "H100": (80e9, 989e12)}[gpu]
    return {
        "parameters": 1e9 * billions,
        "gpus": gpus,
        "gpus_per_host": 8,
        "gpu_bytes": memory,
        "peak_flops": peak,
        "host_bytes": 1e9 * host_gb_s,
        "tokens_per_step_per_gpu": step_tokens,
        "tokens_per_second_per_gpu": rate,
    }


MADE_UP = {
    "A": _claim(70, 8, "H100", 900, 8192),
    "B": _claim(70, 64, "H100", 2600, 16384),
    "C": _claim(70, 64, "A100", 340, 1024),
    "D": _claim(7, 8, "H100", 9000, 16384),
    "E": _claim(7, 8, "H100", 10_000, 4096, host_gb_s=1.0),
    "F": _claim(13, 32, "A100", 3400, 4096, host_gb_s=12.5),
    "G": _claim(13, 2, "H100", 90_000, 4096),
    "H": _claim(30, 64, "A100", 1500, 4096),
    "I": _claim(180, 64, "H100", 950, 16384),
    "J": _claim(30, 8, "A100", 2500, 8192),
    "K": _claim(70, 2, "H100", 300, 8192),
}
# tokens a second and GPU of the IBM blog's Table 1 and of llm-foundry's README: see the lesson
PUBLISHED = {
    "Llama 2 70B on 128 A100s": _claim(69, 128, "A100", 370, 8192),
    "Llama 2 7B on 128 A100s": _claim(6.74, 128, "A100", 3700, 8192),
    "MPT 70B on 64 A100s": _claim(64.9, 64, "A100", 410, 16384, host_gb_s=200),
}
RATE = 'claim["tokens_per_second_per_gpu"]'


@FunctionTask.from_solution(
    hint="Bytes of state for each parameter? Operations for each parameter and token, "
    "forward and backward? How often does FSDP send all parameters or gradients in a step?",
    stronger="16 bytes of state over all GPUs; 6 operations for each parameter and token; two "
    "gathers and one reduce-scatter of 2 bytes for each parameter, if there is more than one host. "
    "A step lasts tokens_per_step_per_gpu / tokens_per_second_per_gpu seconds.",
    cases=tuple((claim,) for claim in (*MADE_UP.values(), *PUBLISHED.values())),
    mistakes={
        ("16 *", "2 *"): "2 bytes for each parameter are the weights alone. AdamW in mixed "
        "precision keeps 16: weight, gradient, and 12 of float32 copy and averages.",
        ("16 *", "4 *"): "4 bytes are weight and gradient; the optimizer keeps 12 more.",
        ("6 * parameters * claim", "2 * parameters * claim"): "2 operations for each parameter and "
        "token are the forward pass. The backward pass takes twice as many: 6 together.",
        (RATE, f"(gpus * {RATE})"): "The rate is one GPU's already, and so is the peak.",
        ("6 * parameters / claim", "2 * parameters / claim"): "FSDP sends parameters or gradients "
        "three times: gathered for the forward pass, again for the backward pass, and reduced.",
        ('gpus > claim["gpus_per_host"] and ', ""): "On one host nothing crosses the network.",
        ("> step_seconds", "> 1"): "Compare the seconds on the network with those of a step, "
        "tokens_per_step_per_gpu / tokens_per_second_per_gpu.",
        ("6 * parameters / claim", "8 * 6 * parameters / claim"): "host_bytes is in bytes already.",
    },
)
def cannot_be(claim):
    """Which limit a claim of FSDP training breaks: "memory", "compute", "network", or "none"."""
    parameters, gpus = claim["parameters"], claim["gpus"]
    if 16 * parameters / gpus > claim["gpu_bytes"]:
        return "memory"
    if 6 * parameters * claim["tokens_per_second_per_gpu"] > claim["peak_flops"]:
        return "compute"
    step_seconds = claim["tokens_per_step_per_gpu"] / claim["tokens_per_second_per_gpu"]
    if gpus > claim["gpus_per_host"] and 6 * parameters / claim["host_bytes"] > step_seconds:
        return "network"
    return "none"


def claims_table() -> Table:
    """Table the made-up claims of the exercise."""
    columns = {
        "made-up claim": lambda name: name,
        "parameters, billion": lambda name: MADE_UP[name]["parameters"] / 1e9,
        "GPUs": lambda name: MADE_UP[name]["gpus"],
        "peak, TFLOP/s": lambda name: MADE_UP[name]["peak_flops"] / 1e12,
        "network of a host, GB/s": lambda name: MADE_UP[name]["host_bytes"] / 1e9,
        "tokens/s per GPU": lambda name: MADE_UP[name]["tokens_per_second_per_gpu"],
        "tokens per GPU and step": lambda name: MADE_UP[name]["tokens_per_step_per_gpu"],
    }
    caption = "Made up for this exercise: FSDP, AdamW, 80 GB a GPU, 8 GPUs in a host"
    return Table.of(list(MADE_UP), columns, caption)


FEWER_ARE_CHEAPER = ((128, 80, 98, 492e3), (256, 41, 50, 504e3), (512, 21.5, 26, 528e3))
ONE_IS_DEAR = ((64, 30, 33, 900e3), (128, 28, 32, 170e3), (256, 20, 25, 250e3))
OFFERS = [
    [dict(zip(("GPUs", "days", "days, high", "dollars"), row, strict=True)) for row in rows]
    for rows in (FEWER_ARE_CHEAPER, ONE_IS_DEAR)
]


@FunctionTask.from_solution(
    hint="Which number of days must be within the deadline, if it is to hold nine times in ten?",
    stronger='An 80 % interval leaves out a tenth at each end: compare "days, high". Of the offers '
    "that are left, take the one with the fewest dollars; if there is none, the word none.",
    cases=tuple((offers, days) for offers in OFFERS for days in (20, 29, 45, 99)),
    mistakes={
        ('offer["days, high"] <=', 'offer["days"] <='): "In half of the cases it takes longer than "
        "predicted, and misses the deadline.",
        ('offer["dollars"]', 'offer["GPUs"]'): "The fewest GPUs are not always the cheapest.",
        ("min(", "max("): "That is the dearest.",
    },
)
def rent(offers, deadline_days):
    """The cheapest offer that meets the deadline nine times in ten, or "none"."""
    safe = [offer for offer in offers if offer["days, high"] <= deadline_days]
    return min(safe, key=lambda offer: offer["dollars"], default="none")
