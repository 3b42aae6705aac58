"""Extractors of one architecture as one: their weights side by side, their clients' images in one call.

A client's network sees its own images only; what comes out is what the networks give one after the other, but for the
last digits. On a GPU small batches leave most of the card idle, and one call of six networks takes little longer than one
of one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

Extractor = Callable[[Tensor], Tensor]

_MANY = 4
"""Clients from which one call is worth its preparation on a CPU."""

_SAME = 1e-4
"""Relative difference up to which stacked networks count as the networks themselves."""


class StackedExtractors:
    """Extractors of K clients whose networks differ in their weights only.

    Args:
        extractors: K networks, or bound methods of networks, of one :func:`architecture`.
    """

    def __init__(self, extractors: Sequence[Extractor]) -> None:
        called = [_Called(*network_of(one)) for one in extractors]
        state = stack_module_state(called)
        self._state = {name: v.detach() for name, v in state[0].items()}, state[1]
        self._one = called[0]

    def __call__(self, images: Tensor) -> Tensor:
        """Return ``(K, n, d)`` for images ``(K, n, c, h, w)``, those of client k by its own network."""

        def single(parameters: dict[str, Tensor], buffers: dict[str, Tensor], own: Tensor) -> Any:
            return functional_call(self._one, (parameters, buffers), (own,))

        parameters, buffers = self._state
        found: Tensor = vmap(single)(parameters, buffers, images)
        return found


class _Called(nn.Module):
    """A network of which a method is called."""

    def __init__(self, network: nn.Module, method: str) -> None:
        super().__init__()
        self.network, self._method = network, method

    def forward(self, images: Tensor) -> Tensor:
        """Call the method."""
        found: Tensor = getattr(self.network, self._method)(images)
        return found


def network_of(extractor: Extractor) -> tuple[nn.Module, str]:
    """Return the network that an extractor is or belongs to, and the name of the method.

    Raises:
        TypeError: where there is none.
    """
    owner = extractor if isinstance(extractor, nn.Module) else getattr(extractor, "__self__", None)
    if not isinstance(owner, nn.Module):
        raise TypeError("no network, and no method of one")
    return owner, "forward" if owner is extractor else extractor.__name__


def architecture(extractor: Extractor) -> Hashable | None:
    """Return a key that two extractors share where their weights alone may differ; None for one that is no network.

    Networks in training mode have none: they may change as they are called.
    """
    try:
        network, method = network_of(extractor)
    except TypeError:
        return None
    if any(module.training for module in network.modules() if not isinstance(module, nn.Identity)):
        return None
    tensors = tuple((name, value.shape, value.dtype, value.device) for name, value in network.state_dict().items())
    plain = tuple(
        (name, value) for name, value in sorted(vars(network).items()) if isinstance(value, (bool, float, int, str))
    )
    return type(network), method, str(network), plain, tensors


def worth_stacking(extractor: Extractor, sizes: Sequence[int], device: torch.device) -> bool:
    """Say if K clients with networks like this one are called together for so many images each.

    On a GPU always. On a CPU where that was measured to be no slower: several networks with convolutions, and as many images
    of each client, two at least. It depends on nothing that a clock says, so that a result does not either.
    """
    if len(sizes) < 2:
        return False
    if device.type == "cuda":
        return True
    convolves = any(isinstance(module, nn.Conv2d) for module in network_of(extractor)[0].modules())
    return convolves and len(sizes) >= _MANY and min(sizes) == max(sizes) >= 2


@torch.no_grad()
def stack(extractors: Sequence[Extractor], images: Tensor) -> StackedExtractors | None:
    """Return networks stacked, or None where that does not work or changes what they give.

    Args:
        extractors: K networks of one :func:`architecture`.
        images: ``(n, c, h, w)`` to try them with.
    """
    few = images[:2]
    expected = torch.stack([extractor(few) for extractor in extractors])
    try:
        stacked = StackedExtractors(extractors)
        found = stacked(few.expand(len(extractors), *few.shape))
    except (RuntimeError, ValueError, TypeError):
        return None  # an operation that cannot be done for several networks at once
    scale = expected.abs().amax().clamp_min(1e-12)
    return stacked if bool((found - expected).abs().amax() <= _SAME * scale) else None
