"""StripedLSTM over bytes: an LSTM whose hidden state is split into stripes that run side by side.

A layer's recurrent matrix is block-diagonal, and each stripe reads all of its input; the group LSTM
of Kuchaiev and Ginsburg (arXiv:1703.10722) splits that too. Layers add to their input, as in GNMT
(Wu et al., arXiv:1609.08144), so that many of them train.
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

    Raises ValueError if hidden_size doesn't divide into num_stripes, or at the call if the state
    is that of another number of layers.
    """

    def __init__(self, input_size: int, hidden_size: int, num_layers: int, num_stripes: int):
        super().__init__()
        if num_stripes < 1 or hidden_size % num_stripes:
            raise ValueError(
                f"hidden_size {hidden_size} does not divide into {num_stripes} stripes of equal "
                "width: give a num_stripes that divides it"
            )
        self.num_stripes = num_stripes
        inputs = [input_size] + [hidden_size] * (num_layers - 1)
        self.layers = nn.ModuleList(
            nn.ModuleList(nn.LSTM(width, hidden_size // num_stripes) for _ in range(num_stripes))
            for width in inputs
        )

    def keep(self, stripes: range) -> None:
        """Keep these stripes of each layer, under their names; the others are other ranks'.

        The output is then that of these alone, and whoever calls has to join it with the others'.
        """
        for layer in self.layers:
            for number in sorted(set(range(self.num_stripes)) - set(stripes)):
                delattr(layer, str(number))
        for parameter in self.parameters():
            parameter.only_here = True  # for the fingerprint
        self.num_stripes = len(stripes)

    def forward(self, x, state=None):
        h_n, c_n = [], []
        for stripes, start in zip(self.layers, self._starts(state), strict=True):
            results = [stripe(x, begin) for stripe, begin in zip(stripes, start, strict=True)]
            x = torch.cat([output for output, _ in results], dim=-1)
            h_n.append(torch.cat([h for _, (h, _) in results], dim=-1))
            c_n.append(torch.cat([c for _, (_, c) in results], dim=-1))
        return x, (torch.cat(h_n), torch.cat(c_n))

    def _starts(self, state) -> list[list]:
        """For each layer, for each of its stripes: (h, c) of shape (1, batch, its units), or None.

        nn.LSTM takes None for zeros.
        """
        if state is None:
            return [[None] * self.num_stripes for _ in self.layers]
        if {len(part) for part in state} != {len(self.layers)}:
            raise ValueError(
                f"the state has {' and '.join(str(len(part)) for part in state)} layers, this "
                f"StripedLSTM has {len(self.layers)}: give h_0 and c_0 of "
                "(num_layers, batch, hidden_size)"
            )
        layers = zip(*(part.split(1) for part in state), strict=True)
        return [
            list(zip(*(part.chunk(self.num_stripes, dim=-1) for part in layer), strict=True))
            for layer in layers
        ]


class Layer(nn.Module):
    """One layer as a stage, (batch, context, width) -> the same shape: x plus the LSTM's output.

    Between stages the batch comes first, so that a pipeline cuts micro-batches along dimension 0.
    """

    def __init__(self, width: int, stripes: int):
        super().__init__()
        self.lstm = StripedLSTM(width, width, num_layers=1, num_stripes=stripes)

    def forward(self, x):
        output, _ = self.lstm(x.transpose(0, 1))
        return x + output.transpose(0, 1)


def stages(layers: int, width: int, stripes: int, context: int):
    """(name, constructor) of each stage in order: embedding, the layers, head."""
    yield "embedding", partial(nn.Embedding, VOCABULARY, width)
    for layer in range(layers):
        yield f"layer{layer}", partial(Layer, width, stripes)
    yield "head", partial(nn.Linear, width, VOCABULARY)
