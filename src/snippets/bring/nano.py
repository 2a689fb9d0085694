"""python src/snippets/bring/nano.py --max_iters 8

A loop with get_batch, flags with underscores, AdamW and accumulation, as many language models are
trained. It has the seam and the course's record; one process still.
"""

import argparse

import torch
from torch import nn

from bootcamp.train import own_script

run_dir = own_script.begin()
parser = argparse.ArgumentParser()
parser.add_argument("--max_iters", type=int, default=8)
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
parser.add_argument("--learning_rate", type=float, default=1e-2)
parser.add_argument("--dtype", default="float32")
args = parser.parse_args()
rank, world = 0, 1
torch.manual_seed(0)
torch.set_default_dtype(getattr(torch, args.dtype))
text, block_size = torch.randint(64, (4096,)).sort().values, 32


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 64, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.block(self.embedding(tokens), mask, is_causal=True))


def get_batch(step):
    """This rank's sequences of a step, and where they begin; all ranks draw the same places."""
    drawn = torch.Generator().manual_seed(step)
    places = torch.randint(len(text) - block_size, (args.batch_size,), generator=drawn)
    places = places[rank::world]
    chosen = text[places[:, None] + torch.arange(block_size + 1)]
    return places, chosen[:, :-1], chosen[:, 1:]


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
parts = args.gradient_accumulation_steps
share = args.batch_size // world * parts
settings = {"lr": args.learning_rate, "dtype": args.dtype}
run = own_script.Run(run_dir, model, optimizer, share, world, args.max_iters, **settings)
for step in range(args.max_iters):
    mean = torch.zeros(())
    with run.step():
        optimizer.zero_grad()
        for part in range(parts):
            places, inputs, targets = get_batch(step * parts + part)
            run.samples(places, inputs, targets)
            logits = model(inputs)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()) / parts
            loss.backward()
            mean += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    run.loss(mean)
run.finish()
