"""A model cut where federated methods cut it: extractor, representation mapping, head; and the order of its weights.

The mapping takes vectors of any width L to the shared width d (FedRE, section on heterogeneous models). AP and MP are
adaptive pooling along the feature axis: output j is the mean or the maximum of ``input[floor(j L / d) : ceil((j + 1) L
/ d)]``; where L < d the windows repeat values, and where L = d the vectors pass unchanged. FC is a trainable linear layer,
also where L = d, that belongs to the client and is never uploaded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, softplus


def windows(n_in: int, n_out: int) -> list[range]:
    """Return the input positions behind each of ``n_out`` outputs of adaptive pooling over ``n_in`` values."""
    return [range(j * n_in // n_out, -(-(j + 1) * n_in // n_out)) for j in range(n_out)]


def window_means(n_in: int, n_out: int) -> Tensor:
    """Return the matrix ``(n_in, n_out)`` by which row vectors become the means of their windows."""
    matrix = torch.zeros(n_in, n_out)
    for column, window in enumerate(windows(n_in, n_out)):
        matrix[window.start : window.stop, column] = 1 / len(window)
    return matrix


class AveragePooling(nn.Module):
    """``(n, L)`` to ``(n, d)`` by window means, as a matrix product.

    The backward pass of torch's adaptive pooling on a GPU does not add in a fixed order, which a resumed run needs.
    """

    matrix: Tensor

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.register_buffer("matrix", window_means(n_in, n_out), persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return vectors ``(n, d)``."""
        return vectors @ self.matrix


class MaxPooling(nn.Module):
    """``(n, L)`` to ``(n, d)`` by window maxima."""

    positions: Tensor

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        result = windows(n_in, n_out)
        longest = max(len(window) for window in result)
        # Shorter windows repeat their last position, which leaves the maximum as it is.
        padded = [[min(window.start + step, window.stop - 1) for step in range(longest)] for window in result]
        self.register_buffer("positions", torch.tensor(padded), persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return vectors ``(n, d)``."""
        return vectors[..., self.positions].max(dim=-1).values


@functools.lru_cache(maxsize=64)
def _means(length: int, side: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return window_means(length, side).to(device, dtype)  # kept there: a GPU is waited for with each transfer


class AveragePool(nn.Module):
    """Adaptive average pooling of maps to ``(side, side)``, on a GPU as two matrix products, which repeat themselves."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, maps: Tensor) -> Tensor:
        """Return the new maps."""
        if not maps.is_cuda:
            return adaptive_avg_pool2d(maps, self.side)
        rows, columns = (_means(length, self.side, maps.device, maps.dtype) for length in maps.shape[-2:])
        return rows.T @ maps @ columns


@dataclass(frozen=True)
class Blueprint:
    """An architecture with its sizes.

    Attributes:
        name: of ``fedpriv.models.MODELS``.
        image_shape: (channels, height, width) of the input.
        n_classes: number of logits C.
        width: representation width d after the mapping.
        mapping: ``ap``, ``mp`` or ``fc``.
        bottleneck: entries of the code of a variational bottleneck behind the mapping; 0 for none.
        group_norm: whether group normalisation stands in place of batch normalisation.
        last_hidden: units of the extractor's last linear layer; 0 for the architecture's own number.
    """

    name: str
    image_shape: tuple[int, int, int]
    n_classes: int
    width: int
    mapping: str = "ap"
    bottleneck: int = 0
    group_norm: bool = False
    last_hidden: int = 0


LEAST_DEVIATION = 1e-6
"""Softplus underflows to zero far below zero, where the logarithm in the divergence would be infinite."""


class VariationalBottleneck(nn.Module):
    """``(n, d)`` to ``(n, d)`` through a code ``z ~ N(mean, deviation^2)`` of K entries, so that gradients are random.

    PRECODE (Scheliga, Maeder, Seeland, WACV 2022, section 3), by the bottleneck of Alemi et al. (ICLR 2017). In
    training the code is drawn from torch's global generator; in evaluation it is the mean. ``divergence`` is that of
    the newest training batch.
    """

    def __init__(self, width: int, code: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(width, 2 * code)
        self.decoder = nn.Linear(code, width)
        self.divergence: Tensor | None = None

    def forward(self, vectors: Tensor) -> Tensor:
        """Return vectors ``(n, d)``."""
        mean, raw = self.encoder(vectors).chunk(2, 1)
        code = mean
        if self.training:
            deviation = softplus(raw).clamp(min=LEAST_DEVIATION)
            # KL(N(mean, deviation^2) || N(0, 1)) in nats, summed over the code, averaged over rows
            self.divergence = (mean.square() + deviation.square() - 2 * deviation.log() - 1).sum(1).mean() / 2
            code = mean + deviation * torch.randn_like(mean)
        decoded: Tensor = self.decoder(code)
        return decoded

    def __getstate__(self) -> dict[str, Any]:
        """Leave the divergence behind: it hangs in a graph, which cannot be copied."""
        return self.__dict__ | {"divergence": None}


class SplitModel(nn.Module):
    """``logits = head(bottleneck(mapping(extractor((x - 0.5) / 0.5))))``.

    Attributes:
        extractor: images ``(n, c, h, w)`` to vectors ``(n, L)``.
        mapping: ``(n, L)`` to representations ``(n, d)``.
        head: one linear layer d -> C with bias.
        bottleneck: as of :class:`Blueprint`.
    """

    def __init__(
        self,
        extractor: nn.Module,
        mapping: nn.Module,
        head: nn.Linear,
        bottleneck: VariationalBottleneck | None = None,
    ) -> None:
        super().__init__()
        self.extractor = extractor
        self.mapping = mapping
        self.bottleneck = bottleneck  # before the head: parameters are listed in the order in which they are passed
        self.head = head

    def represent(self, images: Tensor) -> Tensor:
        """Return representations ``(n, d)`` of images ``(n, c, h, w)`` in [0, 1]."""
        vectors: Tensor = self.mapping(self.extractor((images - 0.5) / 0.5))
        return vectors if self.bottleneck is None else self.bottleneck(vectors)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits ``(n, C)`` of images ``(n, c, h, w)`` in [0, 1]."""
        logits: Tensor = self.head(self.represent(images))
        return logits


_LARGEST = 1_000_000
"""Weights of a convolution from which their gradient is slower in this order (the later stages of ResNets)."""

_KNOWN = ("torch.", "torchvision.", "fedpriv.")
"""Modules whose code does not view maps as vectors without a copy, which is an error in this order."""


def takes_channels_last(module: nn.Module, loss: Callable[..., Tensor]) -> bool:
    """True where a network on the CPU is no slower in this order, and its code and that of the loss cannot mind."""
    convolutions = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    return (
        bool(convolutions)
        and all(layer.weight.device.type == "cpu" and layer.weight.numel() < _LARGEST for layer in convolutions)
        and all(
            f"{getattr(code, '__module__', '')}.".startswith(_KNOWN)
            for code in (getattr(loss, "func", loss), *map(type, module.modules()))
        )
    )


def channels_last(images: Tensor) -> Tensor:
    """Return images ``(n, c, h, w)`` as a channels-last copy, also where there is one channel."""
    _, channels, height, width = images.shape
    strides = (channels * height * width, 1, channels * width, channels)
    return images.new_empty_strided(images.shape, strides).copy_(images)


@contextmanager
def fastest_order(module: nn.Module, loss: Callable[..., Tensor]) -> Iterator[Callable[[Tensor], Tensor]]:
    """Have a network's weights channels last for a while where that is no slower; give what puts images in their order.

    The parameters stay the same objects.
    """
    if not takes_channels_last(module, loss):
        yield lambda images: images
        return
    weights = [layer.weight for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    for weight in weights:
        weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    try:
        yield channels_last
    finally:
        for weight in weights:
            weight.data = weight.data.contiguous()
