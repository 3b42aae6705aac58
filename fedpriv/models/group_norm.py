"""Group normalisation in place of batch normalisation: one image's output no longer depends on the others' in its batch.

Wu, He: Group Normalization, ECCV 2018. As many groups as opacus makes: the greatest common divisor of 32 and the channels.
"""

from __future__ import annotations

import math

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

MOST_GROUPS = 32


def batch_norms(module: nn.Module) -> int:
    """Return the number of layers of a module that normalise over the batch."""
    return sum(isinstance(layer, _BatchNorm) for layer in module.modules())


def with_group_norm(module: nn.Module) -> nn.Module:
    """Replace every batch normalisation inside a module, in place; slopes begin at one and shifts at zero."""
    for parent in list(module.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, _BatchNorm):
                channels = layer.num_features
                setattr(parent, name, nn.GroupNorm(math.gcd(MOST_GROUPS, channels), channels, layer.eps, layer.affine))
    return module
