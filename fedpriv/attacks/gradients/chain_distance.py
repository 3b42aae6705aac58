"""Distances of rows' gradients from wanted ones, with their derivative in the images, for networks that are chains.

The derivative of a distance D(g(x)) is that of <g(x), V> with V = dD/dg held fixed, and <g(x), V> is how the loss changes
when the weights move along V. So its derivative in the images is how the images' gradient of the loss changes when the
weights move along V: one pass forward and one backward, each beside the ordinary one (Pearlmutter, "Fast exact
multiplication by the Hessian", Neural Computation 1994, with V in place of a given vector). Nothing is recorded, and
patches of the images are taken once for all four passes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.attacks.gradients.chain import Chain, Convolution, FullyConnected, Layer, Link, chain_of, convolved, pulled
from fedpriv.attacks.gradients.chain_aims import Aim, Direction, Factors
from fedpriv.attacks.gradients.row_gradients import prepared
from fedpriv.attacks.gradients.update import RANDOM
from fedpriv.attacks.inputs.updates import Weights


@dataclass(frozen=True)
class InputsAim:
    """Known inputs of R rows' n images to the layer that is the readout, the distance from which is added.

    Attributes:
        inputs: ``(R, n, k)``.
        shares: ``(R, n)`` weights of each image's squared distance.
    """

    inputs: Tensor
    shares: Tensor


class ChainGradients:
    """The client's loss of a chain, as a function of images.

    Evaluated as :class:`fedpriv.attacks.gradients.row_gradients.RowGradients` evaluates it.

    Attributes:
        supported: whether the model is a chain of known links.
        linear: names of linear layers' weights.
    """

    def __init__(self, model: nn.Module, image_shape: tuple[int, int, int], device: torch.device) -> None:
        copied = prepared(model).to(device).train()
        for module in copied.modules():
            if isinstance(module, RANDOM):
                module.eval()
        self._chain = chain_of(copied)
        self.supported = self._chain is not None and self._computes(copied, image_shape, device)
        # Products of patches are faster on a CPU where there is one image in all, whatever the number of channels.
        self._of_one = self._chain if device.type != "cpu" else tuple(map(_by_patches, self._chain or ()))
        self.linear = frozenset(link.weight for link in self._chain or () if isinstance(link, FullyConnected))

    def _computes(self, model: nn.Module, image_shape: tuple[int, int, int], device: torch.device) -> bool:
        """True where the chain's output is the model's and linear layers act on vectors."""
        assert self._chain is not None
        weights: Weights = dict(model.named_parameters())
        kind = next((value.dtype for value in weights.values()), torch.float32)
        images = torch.linspace(0, 1, 2 * image_shape[0] * image_shape[1] * image_shape[2], device=device, dtype=kind)
        images = images.view(2, *image_shape)
        with torch.no_grad():
            expected = model(images)
            found = _Pass(self._chain, weights, 2).forward(images)
        return found is not None and found.shape == expected.shape and torch.allclose(found, expected, 1e-4, 1e-5)

    def distance(
        self,
        weights: Weights,
        images: Tensor,
        labels: Tensor,
        readout: str,
        aim: Aim,
        beside: InputsAim | None = None,
    ) -> Tensor:
        """Return the distances ``(R,)``, differentiable once in images ``(R, n, c, h, w)`` and labels ``(R, n, C)``.

        All rows have the same weights, but for linear layers whose weights ``(R, O, I)`` and biases ``(R, O)`` have a
        leading axis. Labels and readout are as of :meth:`fedpriv.attacks.gradients.update.StepModel.gradient`. What goes
        into the readout is there already, so asking for it besides costs next to nothing.
        """
        assert self._chain is not None
        assert self._of_one is not None
        chain = self._of_one if images.shape[:2].numel() == 1 else self._chain
        if readout:
            place = next(place for place, link in enumerate(chain) if isinstance(link, Layer) and link.name == readout)
            chain = chain[: place + 1]
        differentiate = torch.is_grad_enabled() and (images.requires_grad or labels.requires_grad)
        found: Tensor = _Distance.apply(images, labels, chain, weights, readout, (aim, beside), differentiate)
        return found


def _by_patches(link: Link | Layer) -> Link | Layer:
    """Return a link that convolves by products of patches, if it convolves."""
    return replace(link, direct=False) if isinstance(link, Convolution) else link


class _Distance(torch.autograd.Function):
    """The distance, whose derivative is computed together with it."""

    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        labels: Tensor,
        chain: Chain,
        weights: Weights,
        readout: str,
        aims: tuple[Aim, InputsAim | None],
        differentiate: bool,
    ) -> Tensor:
        """Return the distances; see :meth:`ChainGradients.distance`."""
        aim, beside = aims
        rows, count = images.shape[:2]
        one = _Pass(chain, weights, rows)
        output = one.forward(images.flatten(0, 1))
        assert output is not None
        given = labels.flatten(0, 1)
        own = given[:, : output.shape[1]]
        own = own if count == 1 else own / count
        # The derivative of a cross-entropy at the logits; of a loss linear in the output it is the labels themselves.
        shares = None if readout else functional.softmax(output, 1)
        weighted = None if shares is None else own.sum(1, keepdim=True) * shares
        one.backward(own if weighted is None else weighted - own)
        value, direction = aim.compare(one.factors)
        grown = None
        if beside is not None:
            apart = one.factors[-1].inputs - beside.inputs
            grown = apart * beside.shares.unsqueeze(2)
            value = value + torch.linalg.vecdot(grown.flatten(1), apart.flatten(1))
        if not differentiate:
            return value
        if grown is not None:
            scale = direction.scale
            grown.mul_(2 / scale.view(-1, 1, 1) if isinstance(scale, Tensor) else 2 / scale)
        moved = one.push(direction)
        moved = torch.zeros_like(output) if moved is None else moved
        change = None
        if shares is not None and weighted is not None:
            moved = moved - (shares * moved).sum(1, keepdim=True)
            change = weighted * moved
        ctx.by_images, ctx.scale = one.push_back(change, direction, grown).view_as(images), direction.scale
        ctx.by_labels = None
        if labels.requires_grad:
            by_labels = moved / (count if readout else -count)
            padded = functional.pad(by_labels, (0, given.shape[1] - output.shape[1]))
            ctx.by_labels = padded.view_as(labels)
        return value

    @staticmethod
    def backward(ctx: Any, *weights: Tensor) -> tuple[Tensor | None, ...]:
        """Return the derivatives, weighted ``(R,)``."""
        weight = weights[0] * ctx.scale
        by_images = ctx.by_images * weight.view(-1, 1, 1, 1, 1)
        by_labels = None if ctx.by_labels is None else ctx.by_labels * weight.view(-1, 1, 1)
        return by_images, by_labels, None, None, None, None, None


@dataclass
class _Pass:
    """One evaluation of a chain at R rows' images, with the rows' images side by side in the first axis.

    Attributes:
        factors: what the gradients of layers are products of, in the order of the chain.
    """

    chain: Chain
    weights: Weights
    rows: int
    factors: list[Factors] = field(default_factory=list)
    _matrices: Weights = field(default_factory=dict)
    _kept: list[Any] = field(default_factory=list)
    _deltas: list[Tensor | None] = field(default_factory=list)
    _tangents: list[Tensor | None] = field(default_factory=list)

    def forward(self, images: Tensor) -> Tensor | None:
        """Return the output for ``(R n, c, h, w)``; None where a linear layer was given more than vectors."""
        values = images
        for link in self.chain:
            if isinstance(link, Convolution):
                kept, values = values if link.direct else values.shape, self._convolved(link, values)
            elif isinstance(link, FullyConnected):
                if values.dim() != 2:
                    return None
                self.factors.append(Factors(link, _by_row(values, self.rows)))
                kept, values = None, self._transformed(link, values)
            else:
                values, kept = link.forward(values)
            self._kept.append(kept)
        return values

    def _bias(self, layer: Layer) -> Tensor | None:
        return None if layer.bias is None else self.weights[layer.bias]

    def _transformed(self, layer: FullyConnected, values: Tensor) -> Tensor:
        weight, bias = self.weights[layer.weight], self._bias(layer)
        if weight.dim() == 2:
            return functional.linear(values, weight, bias)
        return self._times(values, weight.mT, None if bias is None else bias.unsqueeze(1))

    def _times(self, values: Tensor, matrices: Tensor, besides: Tensor | None) -> Tensor:
        """Return the products of rows' vectors ``(R n, I)`` with matrices ``(R, I, O)`` of each row's own, and a summand."""
        by_row = _by_row(values, self.rows)
        found = torch.bmm(by_row, matrices) if besides is None else torch.baddbmm(besides, by_row, matrices)
        return found.flatten(0, 1)

    def _convolved(self, layer: Convolution, values: Tensor) -> Tensor:
        if layer.direct:
            self.factors.append(Factors(layer, _by_row(values, self.rows)))
            return convolved(layer, values, self.weights[layer.weight], self._bias(layer))
        patches = layer.patches(values)
        self.factors.append(Factors(layer, _by_row(patches, self.rows)))
        matrix, bias = self._matrix(layer, len(patches)), self._bias(layer)
        found = torch.bmm(matrix, patches) if bias is None else torch.baddbmm(bias.view(1, -1, 1), matrix, patches)
        return _as_maps(found, layer, values.shape)

    def _matrix(self, layer: Convolution, count: int) -> Tensor:
        """Return the weights ``(count, O, C k k)``, the same again and again."""
        if layer.weight not in self._matrices:
            self._matrices[layer.weight] = self.weights[layer.weight].flatten(1).expand(count, -1, -1)
        return self._matrices[layer.weight]

    def backward(self, delta: Tensor) -> None:
        """Tell the factors the loss's derivatives at what came out of each layer; ``delta`` is that at the end."""
        self._deltas = [None] * len(self.chain)
        left = len(self.factors)
        for place in reversed(range(len(self.chain))):
            link, kept = self.chain[place], self._kept[place]
            self._deltas[place] = delta
            if not isinstance(link, Layer):
                delta = link.pull(delta, kept)
                continue
            left -= 1
            own = delta.flatten(2) if isinstance(link, Convolution) and not link.direct else delta
            self.factors[left].delta = _by_row(own, self.rows)
            if not left:
                break  # what comes before is needed of the change alone
            delta = self._pulled(link, delta, kept, None)

    def _pulled(self, layer: Layer, delta: Tensor, kept: Any, besides: Tensor | None) -> Tensor:
        """Return the derivative at what went into a layer; ``besides``, of vectors, maps or patches, is added to it."""
        if isinstance(layer, FullyConnected):
            weight = self.weights[layer.weight]
            if weight.dim() == 3:
                return self._times(delta, weight, None if besides is None else _by_row(besides, self.rows))
            return _plus(functional.linear(delta, weight.T), besides)
        if layer.direct:
            found = pulled(layer, delta, self.weights[layer.weight], kept)
            return found if besides is None else found + besides
        matrix, flat = self._matrix(layer, len(delta)).mT, delta.flatten(2)
        patches = torch.bmm(matrix, flat) if besides is None else torch.baddbmm(besides, matrix, flat)
        return layer.folded(patches, kept)

    def push(self, direction: Direction) -> Tensor | None:
        """Return the change of the output when each row's weights move along a direction; None for not at all."""
        tangent: Tensor | None = None
        number = -1
        for link, kept in zip(self.chain, self._kept, strict=True):
            self._tangents.append(tangent)
            if not isinstance(link, Layer):
                tangent = None if tangent is None else link.push(tangent, kept)
                continue
            number += 1
            own = direction.applied(number)
            if isinstance(link, FullyConnected):
                weight = self.weights[link.weight].mT
                if tangent is not None and weight.dim() == 3:
                    own = self._times(tangent, weight, None if own is None else _by_row(own, self.rows))
                elif tangent is not None:
                    own = _plus(functional.linear(tangent, weight.T), own)
                tangent = own
                continue
            if link.direct:
                passed = None if tangent is None else convolved(link, tangent, self.weights[link.weight], None)
                tangent = passed if own is None else own if passed is None else own + passed
                continue
            if tangent is not None:
                matrix, patches = self._matrix(link, len(tangent)), link.patches(tangent)
                own = torch.bmm(matrix, patches) if own is None else torch.baddbmm(own, matrix, patches)
            tangent = None if own is None else _as_maps(own.contiguous(), link, kept)
        return tangent

    def push_back(self, change: Tensor | None, direction: Direction, grown: Tensor | None = None) -> Tensor:
        """Return the change of the loss's derivative at the images, where that at the output changes by ``change``.

        ``grown`` ``(R, n, k)`` is added to the change at what went into the last layer.
        """
        number = len(self.factors)
        moved = change
        for place in reversed(range(len(self.chain))):
            link, kept, delta = self.chain[place], self._kept[place], self._deltas[place]
            if not isinstance(link, Layer):
                if delta is None:  # before the first layer, where only constants can stand that scale
                    moved = None if moved is None else link.pull(moved, kept)
                    continue
                moved = torch.zeros_like(delta) if moved is None else moved
                moved = link.pull_tangent(moved, delta, self._tangents[place], kept)
                continue
            number -= 1
            besides = direction.transposed(number)
            if grown is not None:
                besides = grown.flatten(0, 1) if besides is None else besides + grown.flatten(0, 1)
                grown = None
            if moved is not None:
                moved = self._pulled(link, moved, kept, besides)
            elif besides is not None:
                moved = besides
                if isinstance(link, Convolution) and not link.direct:
                    moved = link.folded(besides, kept)
        assert moved is not None
        return moved


def _by_row(values: Tensor, rows: int) -> Tensor:
    """Return ``(R n, ...)`` as ``(R, n, ...)``."""
    return values.view(rows, len(values) // rows, *values.shape[1:])


def _plus(values: Tensor, besides: Tensor | None) -> Tensor:
    """Return the sum, in place of the first."""
    return values if besides is None else values.add_(besides)


def _as_maps(values: Tensor, layer: Convolution, size: torch.Size) -> Tensor:
    """Return ``(n, O, L)`` as the maps that come out of a layer that was given maps of a size."""
    return values.view(*values.shape[:2], *layer.sides(size))
