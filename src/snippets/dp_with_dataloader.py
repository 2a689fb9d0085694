"""python src/snippets/dp_with_dataloader.py

nn.DataParallel as tutorials print it: Dataset, DataLoader, CrossEntropyLoss, Adam. With the same
batches of 512 also one process, two replicas by hand, and these with a mistake; SGD and AdamW too.
Prints what torch did without a word, what it said, and how far from one process each way ends.
"""

import copy
import json
import warnings

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.data import DataLoader, Dataset


class Points(Dataset):
    """Points, each labelled by its largest coordinate."""

    def __init__(self, samples=2048):
        self.points = torch.randn(samples, 16, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.points)

    def __getitem__(self, number):
        return self.points[number], self.points[number].argmax()


class ByHand(nn.Module):
    """What DataParallel does with two devices, on one."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, inputs):
        outputs = []
        for share in inputs.chunk(2):
            # autograd adds up what comes back to the copies: the reduce
            replica = {name: value.clone() for name, value in self.module.named_parameters()}
            outputs.append(functional_call(self.module, replica, share))
        return torch.cat(outputs)


def parallel(module):
    """Wrap a module for all GPUs; where there is none, for two, as tutorials do."""
    gpus = list(range(torch.cuda.device_count()))
    return nn.DataParallel(module, device_ids=gpus or [0, 1])


def flatten(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


OPTIMIZERS = {"SGD": {"lr": 0.1, "momentum": 0.9}, "AdamW": {"lr": 0.001}, "Adam": {"lr": 0.001}}
WAYS = {"one process": lambda module: module, "nn.DataParallel": parallel}
WAYS |= {"two replicas": ByHand, "a mean for each replica": ByHand}

if __name__ == "__main__":  # where workers are spawned, each one imports this file
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loader = DataLoader(Points(), batch_size=512, shuffle=True, num_workers=4, pin_memory=True)
        batches = list(loader)
    criterion = nn.CrossEntropyLoss()
    first = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16)).to(device)
    start = flatten(first.parameters())
    print(
        json.dumps({"device_ids": parallel(first).device_ids, "pinned": batches[0][0].is_pinned()})
    )
    print(json.dumps({"said": sorted({str(warning.message) for warning in said})}))
    for name, settings in OPTIMIZERS.items():
        for way, wrap in WAYS.items():
            model = wrap(copy.deepcopy(first))
            optimizer = getattr(torch.optim, name)(model.parameters(), **settings)
            gradients = []
            for inputs, labels in batches:
                inputs, labels = inputs.to(device), labels.to(device)
                optimizer.zero_grad()
                outputs = model(inputs)
                if way == "a mean for each replica":
                    pairs = zip(outputs.chunk(2), labels.chunk(2), strict=True)
                    loss = sum(criterion(*pair) for pair in pairs)
                else:
                    loss = criterion(outputs, labels)
                loss.backward()
                optimizer.step()
                gradients.append(flatten(p.grad for p in model.parameters()))
            found = gradients[0], flatten(model.parameters()) - start
            if way == "one process":
                alone = found
                continue
            apart = [((a - b).norm() / b.norm()).item() for a, b in zip(found, alone, strict=True)]
            row = {"optimizer": name, "way": way, "first gradient apart": apart[0]}
            print(json.dumps(row | {"update apart": apart[1]}))
