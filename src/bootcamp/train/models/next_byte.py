"""A model as it is served: bytes in, the scores of the one byte that comes next out."""

from torch import nn
from torch.nn import functional


class NextByte(nn.Module):
    """(batch, length) int64 -> (batch, 256): the scores behind the last byte alone.

    pad_to: compute with this length, whatever the input's. Bytes behind the last one can't change
    its scores, since the model never looks ahead. An LSTM needs it to be exported: torch.export
    unrolls its loop over time, which fixes the length.
    """

    def __init__(self, model: nn.Sequential, pad_to: int | None = None):
        super().__init__()
        self.body, self.head, self.pad_to = model[:-1], model[-1], pad_to

    def forward(self, ids):
        length = ids.shape[1]
        if self.pad_to:
            ids = functional.pad(ids, (0, self.pad_to - length))
        return self.head(self.body(ids)[:, length - 1])
