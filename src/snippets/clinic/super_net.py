"""python src/snippets/clinic/super_net.py

A small network with a class of its own. "Copied from an old notebook. I only renamed the class."
"""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width: int):
        super(Net).__init__(self)
        self.hidden = nn.Linear(8, width)
        self.out = nn.Linear(width, 1)

    def forward(self, inputs):
        return self.out(torch.tanh(self.hidden(inputs)))


torch.manual_seed(0)
inputs = torch.randn(32, 8)
targets = inputs.sum(dim=1, keepdim=True)
model = Net(width=16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
losses = []
for _step in range(20):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"loss {losses[0]:.3f} at the start, {losses[-1]:.3f} at the end")
