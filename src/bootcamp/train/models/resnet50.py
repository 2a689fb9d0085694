"""ResNet-50 for images (He et al., arXiv:1512.03385), in its v1.5: the 3x3 convolution strides.

The original strides in the 1x1 convolution before it, which skips three of four positions; v1.5 is
what torchvision and most published numbers mean by ResNet-50. No convolution has a bias: BatchNorm
subtracts it with the mean, so that its gradient would be pure rounding noise.
"""

from functools import partial

from torch import nn
from torch.nn import functional

from bootcamp.costs.model_shapes import EXPANSION, RESNET50, bottlenecks

SIZES = RESNET50
# The initial scale of a block's last BatchNorm. Goyal et al. (arXiv:1706.02677) take
# 0, which gives the block's convolutions no gradient at all in the first step. At 1 the first steps
# are so wild that with SGD even float64 does not repeat a training whose batches are reordered: at
# size tiny the losses are up to 0.2 apart within ten steps. At 0.25 they stay 1e-11 apart.
INITIAL_SCALE = 0.25


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """Make a convolution without bias, padded so that stride 1 keeps the image's size."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


class Stem(nn.Sequential):
    """(batch, 3, size, size) -> (batch, width, size / 4, size / 4)."""

    def __init__(self, width: int):
        super().__init__(
            convolution(3, width, kernel=7, stride=2),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )


class Bottleneck(nn.Module):
    """(batch, inputs, size, size) -> (batch, 4 * width, size / stride, size / stride).

    1x1 to fewer channels, 3x3, 1x1 back to more, added to the input; where the shapes differ, the
    input goes through a 1x1 convolution of its own.
    """

    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        outputs = EXPANSION * width
        self.reduce = convolution(inputs, width, kernel=1)
        self.reduce_norm = nn.BatchNorm2d(width)
        self.middle = convolution(width, width, kernel=3, stride=stride)
        self.middle_norm = nn.BatchNorm2d(width)
        self.expand = convolution(width, outputs, kernel=1)
        self.expand_norm = nn.BatchNorm2d(outputs)
        nn.init.constant_(self.expand_norm.weight, INITIAL_SCALE)
        self.shortcut = nn.Identity()
        if inputs != outputs or stride != 1:
            self.shortcut = nn.Sequential(
                convolution(inputs, outputs, kernel=1, stride=stride), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        y = functional.relu(self.reduce_norm(self.reduce(x)))
        y = functional.relu(self.middle_norm(self.middle(y)))
        y = self.expand_norm(self.expand(y))
        return functional.relu(y + self.shortcut(x))


class Head(nn.Sequential):
    """(batch, channels, size, size) -> (batch, classes): the mean over the image, then scores."""

    def __init__(self, channels: int, classes: int):
        super().__init__(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def stages(width: int, image_size: int, classes: int):
    """Yield (name, constructor) of each stage in order: stem, the 16 blocks, head."""
    yield "stem", partial(Stem, width)
    for name, inputs, block_width, stride in bottlenecks(width):
        yield name, partial(Bottleneck, inputs, block_width, stride)
    yield "head", partial(Head, EXPANSION * block_width, classes)
