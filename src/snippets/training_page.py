"""python src/snippets/training_page.py fast '{"data": 256, "stage": 3}' --tokens 5e11 --dollars 2.5

Write one page about a training before anybody pays for it, in Markdown: one of lesson 14's planned
tasks, a plan for it, and what the planner predicts. Prices, the rate of saves and the minutes of a
restart are yours to give.
"""

import argparse
import json
import sys

from bootcamp.costs import failures, fitted_constants
from bootcamp_lessons import plan_contest

GB, HOUR, DAY = 1e9, 3600, 86_400
SAVED = 12  # bytes of a parameter: itself and AdamW's two means in float32
MEASURE = {  # a constant of the planner -> how to measure it
    "matmul": "a layer's largest product on one GPU",
    "clock": "the same product for some minutes, until the GPU is warm",
    "attention": "a layer's attention on one GPU, both passes",
    "memory": "a norm on one GPU, in bytes a second",
    "bus": "an all-reduce inside a host",
    "network": "an all-reduce between two hosts, beside their nominal rate",
    "filling": "a micro-batch's activations, sent from host to host",
}

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("task", choices=plan_contest.TASKS)
parser.add_argument("plan", type=json.loads, help='such as {"tensor": 8, "data": 32, "stage": 3}')
parser.add_argument("--tokens", type=float, required=True, help="of the training")
dollars = failures.DOLLARS
parser.add_argument("--dollars", type=float, default=dollars, help=f"of a GPU an hour; {dollars:g}")
parser.add_argument("--save-gb-s", type=float, default=20, help="all ranks together; 20")
parser.add_argument("--restart-minutes", type=float, default=10, help="after a failure; 10")
args = parser.parse_args()

# 1. The planner: does it fit, and how long does a step take?
task = plan_contest.TASKS[args.task]
verdict = plan_contest.judge(args.plan, task)
if not verdict.fits:
    sys.exit(str(verdict))
plan = task.plan(args.plan)
gpus, gpu = task.cluster.gpus, task.cluster.gpu
tokens = task.batch * task.shape.sequence
speed = tokens / verdict.seconds / gpus
low, high = fitted_constants.interval(1.0, "", gpus)  # of a stack never seen, per second predicted
measure = [MEASURE.get(name, name) for name in plan_contest.measure_first(plan, task)]

# 2. Saves: often enough for GPUs as reliable as those of Llama 3's training
save = SAVED * task.shape.parameters / GB / args.save_gb_s
between, restart = failures.mtbf_seconds(gpus), 60 * args.restart_minutes
interval = failures.daly_interval(save, between)
counts = failures.effective_share(interval, save, between, restart)

# 3. The whole training: days, and what they cost
cost = failures.bill(args.tokens, speed, gpu, gpus, args.dollars, save, restart)
days, hours = cost["days"], cost["gpu_hours"]
saves = f"{SAVED * task.shape.parameters / GB:,.0f} GB in {save:.0f} s, every "
saves += f"{interval / 60:.0f} minutes ({max(1, interval / verdict.seconds):.0f} steps)"
about, held = task.description, verdict.peak_bytes / GB
first = f"1. {' and '.join(measure)} (that halves what constants leave open). 2. ten steps on as "
first += f"few hosts as hold the model: {speed:,.0f} tokens/s of a GPU? 3. a save, and a restart."
step = f"{verdict.seconds:.2f} s for {tokens / 1e6:.1f} million tokens; MFU {verdict.mfu:.0%}"
rows = {
    "training": (f"{about['model']}; {args.tokens / 1e9:,.0f} billion tokens", "you"),
    "cluster": (f"{about['GPUs']}; {about['network']}", "the task"),
    "plan": (verdict.given, "you"),
    "memory": (f"{held:.0f} of {gpu.memory / GB:.0f} GB on the fullest GPU", "the planner"),
    "a step": (step, "the planner"),
    "limited by": (verdict.limit, "the planner"),
    "a failure": (f"about every {between / DAY:.1f} days", "Llama 3's training, per GPU"),
    "saves": (saves, f"Daly's interval, at {args.save_gb_s:g} GB/s"),
    "time that counts": (f"{counts:.1%}", f"Daly's model, {args.restart_minutes:g} min a restart"),
    "days": (
        f"{days:.1f}, or {low * days:.1f} to {high * days:.1f} four times in five",
        "tokens, step, time that counts",
    ),
    "cost": (
        f"{hours:,.0f} GPU-hours, {hours * args.dollars:,.0f} dollars",
        f"{args.dollars:g} dollars an hour",
    ),
    "energy": (
        f"{cost['mwh']:,.0f} MWh",
        f"{gpu.watts:.0f} W each, rated, and a tenth for the data centre",
    ),
    "measure first": (first, "the constants whose ranges matter most"),
}
print("| | predicted | from |\n|---|---|---|")
for name, (says, source) in rows.items():
    print(f"| **{name}** | {says} | {source} |")
