"""python src/snippets/real_loop.py --optimizer adamw

The loop of a real training: gradients clipped, a learning rate with warm-up and decay, the loss on
text that was held out. Trained at once, then saved half-way and resumed: with everything, and
without the schedule. One JSON line for each of the three.
"""

import argparse
import copy
import json
import math

import torch
from torch.optim.lr_scheduler import LambdaLR

from bootcamp.train import data, models, optimizers

STEPS, WARM_UP, BATCH, LONGEST = 160, 16, 32, 4.0  # LONGEST: that a gradient may be
SAMPLES, HELD_OUT, EVERY = 256, 2048, 16  # few samples, so that each is trained on twenty times

parser = argparse.ArgumentParser()
parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
parser.add_argument("--lr", type=float, default=2e-3)
args = parser.parse_args()
args.model, args.size, args.seed, args.dtype = "mlp", "tiny", 0, "float32"
torch.set_num_threads(1)
text = data.dataset(args)
held_out = text.batch(torch.arange(len(text) - HELD_OUT, len(text)))


def share_of_rate(step: int) -> float:
    """What the learning rate is multiplied with: a ramp to 1, then half a cosine down to 0.1."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.55 + 0.45 * math.cos(math.pi * (step - WARM_UP) / (STEPS - WARM_UP))


def train(first: int, last: int, saved: dict) -> tuple[dict, dict]:
    """Train these steps, beginning with what was saved; what was measured, and what to save."""
    model = models.build(args)
    optimizer = optimizers.build(args, model.parameters())
    schedule = LambdaLR(optimizer, share_of_rate)
    state = {"model": model, "optimizer": optimizer, "schedule": schedule}
    for name in saved:
        state[name].load_state_dict(saved[name])
    found = {"losses": [], "rates": [], "lengths": [], "held_out": {}, "longest": LONGEST}
    for step in range(first, last):
        inputs, targets = text.batch((step * BATCH + torch.arange(BATCH)) % SAMPLES)
        optimizer.zero_grad()
        loss = models.loss(model(inputs), targets)
        loss.backward()
        length = torch.nn.utils.clip_grad_norm_(model.parameters(), LONGEST)
        optimizer.step()
        found["rates"].append(schedule.get_last_lr()[0])
        schedule.step()  # once for each optimizer step
        found["losses"].append(loss.item())
        found["lengths"].append(length.item())
        if (step + 1) % EVERY == 0:
            model.eval()
            with torch.no_grad():
                found["held_out"][step] = models.loss(model(held_out[0]), held_out[1]).item()
            model.train()
    return found, {name: copy.deepcopy(part.state_dict()) for name, part in state.items()}


at_once, _ = train(0, STEPS, {})
_, saved = train(0, STEPS // 2, {})
resumed, _ = train(STEPS // 2, STEPS, saved)
del saved["schedule"]
without_schedule, _ = train(STEPS // 2, STEPS, saved)
for found in (at_once, resumed, without_schedule):
    print(json.dumps(found))
