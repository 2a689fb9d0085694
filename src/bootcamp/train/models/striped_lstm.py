"""StripedLSTM over bytes: an LSTM whose hidden state is split into stripes that run side by side.

A layer's recurrent matrix is block-diagonal, and every stripe reads the layer's full input; the
group LSTM of Kuchaiev and Ginsburg (arXiv:1703.10722) splits the input as well. A Layer has a
residual connection, as in GNMT (Wu et al., arXiv:1609.08144), so that deep models train.
"""

from functools import partial

import torch
from torch import nn

from bootcamp.costs.model_shapes import STRIPED_LSTM, VOCABULARY

SIZES = STRIPED_LSTM


class StripedLSTM(nn.Module):
    """Layers of num_stripes independent LSTMs, each with hidden_size // num_stripes units.

    Called as nn.LSTM is, batch second: `output, (h_n, c_n) = lstm(x)` or `lstm(x, (h_0, c_0))`.
    x: (time, batch, input_size); output: (time, batch, hidden_size); each state:
    (num_layers, batch, hidden_size), zeros if not given. Stripe k is the k-th part of hidden_size.
    With one stripe it is nn.LSTM.

    Raises ValueError for stripes that don't divide hidden_size, or a state of other layers.
    """

    def __init__(self, input_size: int, hidden_size: int, num_layers: int, num_stripes: int):
        super().__init__()
        if num_stripes < 1 or hidden_size % num_stripes:
            raise ValueError(
                f"hidden_size {hidden_size} does not divide into {num_stripes} stripes"
            )
        self.num_stripes = num_stripes
        inputs = [input_size] + [hidden_size] * (num_layers - 1)
        self.layers = nn.ModuleList(
            nn.ModuleList(nn.LSTM(width, hidden_size // num_stripes) for _ in range(num_stripes))
            for width in inputs
        )

    def keep(self, stripes: range) -> None:
        """Delete all stripes but these, without renaming parameters; other ranks keep the others.

        The output is then that of these stripes alone: the caller concatenates all ranks' outputs.
        """
        for layer in self.layers:
            for number in sorted(set(range(self.num_stripes)) - set(stripes)):
                delattr(layer, str(number))
        for parameter in self.parameters():
            parameter.only_here = True  # fingerprint() adds such parameters up over ranks
        self.num_stripes = len(stripes)

    def forward(self, x, state=None):
        h_n, c_n, initial = [], [], [None] * self.num_stripes
        if state and {len(part) for part in state} != {len(self.layers)}:
            counts = " and ".join(str(len(part)) for part in state)
            raise ValueError(
                f"the state has {counts} layers, this StripedLSTM has {len(self.layers)}"
            )
        for number, stripes in enumerate(self.layers):
            if state:
                own = (part[number : number + 1].chunk(self.num_stripes, dim=-1) for part in state)
                initial = list(zip(*own, strict=True))
            results = [stripe(x, given) for stripe, given in zip(stripes, initial, strict=True)]
            x = torch.cat([output for output, _ in results], dim=-1)
            h_n.append(torch.cat([h for _, (h, _) in results], dim=-1))
            c_n.append(torch.cat([c for _, (_, c) in results], dim=-1))
        return x, (torch.cat(h_n), torch.cat(c_n))


class Layer(nn.Module):
    """One layer as a stage, (batch, context, width) -> the same shape: x plus the LSTM's output."""

    def __init__(self, width: int, stripes: int):
        super().__init__()
        self.lstm = StripedLSTM(width, width, num_layers=1, num_stripes=stripes)

    def forward(self, x):
        output, _ = self.lstm(x.transpose(0, 1))
        return x + output.transpose(0, 1)


def stages(layers: int, width: int, stripes: int, context: int):
    """Yield (name, constructor) of each stage in order: embedding, the layers, head."""
    yield "embedding", partial(nn.Embedding, VOCABULARY, width)
    for layer in range(layers):
        yield f"layer{layer}", partial(Layer, width, stripes)
    yield "head", partial(nn.Linear, width, VOCABULARY)
