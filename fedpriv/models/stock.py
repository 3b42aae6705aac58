"""torchvision's networks without their last layer, untrained, made to take small images.

Stems are the stock ones, as in the published experiments, so ResNets see 1x1 final maps at 32x32, over which batch
normalisation refuses a batch of one image. Images with other than three channels get a first convolution of that many input
channels, started as torchvision starts it.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torchvision.models as zoo
from torch import nn
from torchvision.models.resnet import BasicBlock

from fedpriv.models import ImageShape, UnfitShape, require_sides


def _with_channels(stem: nn.Conv2d, channels: int, he: bool = False) -> nn.Conv2d:
    """Return the same convolution for ``channels`` input channels, itself where nothing changes."""
    if stem.in_channels == channels:
        return stem
    sizes: dict[str, Any] = {name: getattr(stem, name) for name in ("kernel_size", "stride", "padding")}
    adapted = nn.Conv2d(channels, stem.out_channels, **sizes, bias=stem.bias is not None)
    if he:
        nn.init.kaiming_normal_(adapted.weight, mode="fan_out")
    return adapted


def _without_head(net: Any, channels: int, width: int) -> tuple[nn.Module, int]:
    net.conv1 = _with_channels(net.conv1, channels, he=True)
    net.fc = nn.Identity()
    return net, width


def _resnet(image_shape: ImageShape, name: str, width: int) -> tuple[nn.Module, int]:
    """A ResNet (He et al., CVPR 2016); L = 512 for 18 and 34 layers, 2048 for 50, 101 and 152."""
    return _without_head(getattr(zoo, name)(weights=None, num_classes=1), image_shape[0], width)


def _short_resnet(image_shape: ImageShape, stages: int) -> tuple[nn.Module, int]:
    """HtFLlib's ResNet of 2 + 2 ``stages`` layers: one basic block in each of ResNet-18's first stages; L = 64 to 512."""
    net = zoo.ResNet(BasicBlock, [1, 1, 1, 1], num_classes=1)
    for left_out in range(stages + 1, 5):
        setattr(net, f"layer{left_out}", nn.Identity())
    return _without_head(net, image_shape[0], 32 * 2**stages)


resnet4 = partial(_short_resnet, stages=1)
resnet6 = partial(_short_resnet, stages=2)
resnet8 = partial(_short_resnet, stages=3)
resnet10 = partial(_short_resnet, stages=4)
resnet18 = partial(_resnet, name="resnet18", width=512)
resnet34 = partial(_resnet, name="resnet34", width=512)
resnet50 = partial(_resnet, name="resnet50", width=2048)
resnet101 = partial(_resnet, name="resnet101", width=2048)
resnet152 = partial(_resnet, name="resnet152", width=2048)


def mobilenet_v2(image_shape: ImageShape) -> tuple[nn.Module, int]:
    """MobileNetV2 (Sandler et al., CVPR 2018) without its classifier and the dropout inside that; L = 1280."""
    net = zoo.mobilenet_v2(weights=None, num_classes=1)
    net.features[0][0] = _with_channels(net.features[0][0], image_shape[0], he=True)
    net.classifier = nn.Identity()
    return net, 1280


def googlenet(image_shape: ImageShape) -> tuple[nn.Module, int]:
    """GoogLeNet (Szegedy et al., CVPR 2015) without auxiliary heads, with its last dropout; L = 1024; sides of 15 or more.

    Weights start as torch's layers start: torchvision's truncated normal for this network takes many seconds on a CPU.
    """
    require_sides(image_shape, 15)  # below it the third pooling layer has no window left
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
    return net, 768


vit_b16 = partial(_vit, name="vit_b_16", patch=16)
vit_b32 = partial(_vit, name="vit_b_32", patch=32)
