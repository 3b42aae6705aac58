"""torchvision's networks without their last layer, untrained, made to take small images.

Stems are the stock ones (7x7 stride 2 and max pooling for ResNets), as in the published experiments, so ResNets see
1x1 final maps at 32x32. In train mode batch normalisation over 1x1 maps refuses a batch of one image ("Expected more
than 1 value per channel"): callers leave out, or merge, a tail batch of one.

Images with other than three channels get a first convolution of that many input channels, started as torchvision
starts it. Repeating a gray image three times instead would put three redundant copies of each first-layer weight into
every upload: more numbers on the wire, and every gradient component written three times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torchvision.models as zoo
from torch import nn
from torchvision.models.resnet import BasicBlock

from fedpriv.models.shapes import ImageShape, UnfitShape, require_sides

RESNET_WIDTHS = {"resnet18": 512, "resnet34": 512, "resnet50": 2048, "resnet101": 2048, "resnet152": 2048}
VIT_WIDTH = 768
GOOGLENET_LEAST_SIDE = 15  # below it the third pooling layer has no window left


def _with_channels(convolution: nn.Conv2d, channels: int) -> nn.Conv2d:
    """Return the same convolution for ``channels`` input channels, itself where nothing changes."""
    if convolution.in_channels == channels:
        return convolution
    return nn.Conv2d(
        channels,
        convolution.out_channels,
        _pair(convolution.kernel_size),
        stride=_pair(convolution.stride),
        padding=_pair(convolution.padding),
        bias=convolution.bias is not None,
    )


def _pair(sizes: Sequence[int] | str) -> tuple[int, int]:
    return int(sizes[0]), int(sizes[1])


def _he_stem(convolution: nn.Conv2d, channels: int) -> nn.Conv2d:
    """As :func:`_with_channels`, a new convolution started as torchvision's ResNet and MobileNetV2 start theirs."""
    adapted = _with_channels(convolution, channels)
    if adapted is not convolution:
        nn.init.kaiming_normal_(adapted.weight, mode="fan_out")
    return adapted


def _resnet(image_shape: ImageShape, name: str) -> tuple[nn.Module, int]:
    """A ResNet (He et al., CVPR 2016); L = 512 for 18 and 34 layers, 2048 for 50, 101 and 152."""
    net = getattr(zoo, name)(weights=None, num_classes=1)
    net.conv1 = _he_stem(net.conv1, image_shape[0])
    net.fc = nn.Identity()
    return net, RESNET_WIDTHS[name]


def _short_resnet(image_shape: ImageShape, stages: int) -> tuple[nn.Module, int]:
    """A ResNet of 2 + 2 ``stages`` layers: one basic block in each of its first stages; L = 64, 128, 256 or 512.

    As HtFLlib has them: stem, blocks and widths are those of ResNet-18, which has two blocks in each of four stages.
    """
    net = zoo.ResNet(BasicBlock, [1, 1, 1, 1], num_classes=1)
    for left_out in range(stages + 1, 5):
        setattr(net, f"layer{left_out}", nn.Identity())
    net.conv1 = _he_stem(net.conv1, image_shape[0])
    net.fc = nn.Identity()
    return net, 32 * 2**stages


resnet4 = partial(_short_resnet, stages=1)
resnet6 = partial(_short_resnet, stages=2)
resnet8 = partial(_short_resnet, stages=3)
resnet10 = partial(_short_resnet, stages=4)
resnet18 = partial(_resnet, name="resnet18")
resnet34 = partial(_resnet, name="resnet34")
resnet50 = partial(_resnet, name="resnet50")
resnet101 = partial(_resnet, name="resnet101")
resnet152 = partial(_resnet, name="resnet152")


def mobilenet_v2(image_shape: ImageShape) -> tuple[nn.Module, int]:
    """MobileNetV2 (Sandler et al., CVPR 2018) without its classifier and the dropout inside that; L = 1280."""
    net = zoo.mobilenet_v2(weights=None, num_classes=1)
    net.features[0][0] = _he_stem(net.features[0][0], image_shape[0])
    net.classifier = nn.Identity()
    return net, 1280


def googlenet(image_shape: ImageShape) -> tuple[nn.Module, int]:
    """GoogLeNet (Szegedy et al., CVPR 2015) without auxiliary heads; L = 1024.

    Its dropout of 0.2 stands before the last layer and stays. Weights start as torch's layers start: torchvision's own
    truncated normal for this network takes many seconds on a CPU. Sides of 15 or more.
    """
    require_sides(image_shape, GOOGLENET_LEAST_SIDE)
    net = zoo.googlenet(weights=None, aux_logits=False, init_weights=False, num_classes=1)
    net.conv1.conv = _with_channels(net.conv1.conv, image_shape[0])
    net.fc = nn.Identity()
    return net, 1024


def _vit(image_shape: ImageShape, name: str, patch: int) -> tuple[nn.Module, int]:
    """A vision transformer (Dosovitskiy et al., ICLR 2021), its class token as vector; L = 768."""
    channels, height, width = image_shape
    if height != width or height % patch:
        raise UnfitShape(f"it needs square images with a side that is a multiple of {patch} pixels")
    net = getattr(zoo, name)(weights=None, image_size=height, num_classes=1)
    stem = _with_channels(net.conv_proj, channels)
    if stem is not net.conv_proj:
        nn.init.trunc_normal_(stem.weight, std=math.sqrt(1 / (channels * patch * patch)))
        if stem.bias is not None:
            nn.init.zeros_(stem.bias)
        net.conv_proj = stem
    net.heads = nn.Identity()
    return net, VIT_WIDTH


vit_b16 = partial(_vit, name="vit_b_16", patch=16)
vit_b32 = partial(_vit, name="vit_b_32", patch=32)
