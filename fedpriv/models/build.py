"""From a blueprint and a seed to a model, and what a model weighs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from inspect import signature
from typing import Any

import torch
from torch import nn

from fedpriv.models import MAPPINGS, MODELS
from fedpriv.models.bottleneck import VariationalBottleneck
from fedpriv.models.group_norm import batch_norms, with_group_norm
from fedpriv.models.lenet import start_uniform
from fedpriv.models.shapes import ImageShape, UnfitShape
from fedpriv.models.split import Blueprint, SplitModel
from fedpriv.models.weightless import weightless
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed, global_seed

SMALL = 64 * 2**20
"""Bytes of weights that are allocated without a second thought."""

SMALL_IMAGE = 3 * 256 * 256
"""Numbers of an image that even the widest layers take without a second thought."""


def build_model(blueprint: Blueprint, seed: int) -> SplitModel:
    """Return the model of a blueprint on the CPU, in train mode, its weights a pure function of blueprint and seed.

    Extractor, mapping, bottleneck and head each draw from a seed of their own. The head's depends on the run's seed, d
    and C only, so clients of different architectures start with the same head, as methods that exchange heads assume.
    ``lenet-sigmoid`` starts its head, too, from U(-0.5, 0.5), as DLG does.

    Networks with batch normalisation (ResNets, MobileNetV2, GoogLeNet) cannot train on a batch of one small image; see
    :mod:`fedpriv.models.stock`.
    """
    _check_sizes(blueprint)
    make_mapping = MAPPINGS.load(blueprint.mapping)
    with torch.device("cpu"):  # a default device set by the caller would bring another random stream
        with global_seed(derive_seed(seed, "extractor", blueprint.name, *blueprint.image_shape)):
            extractor, n_vector = _make_extractor(blueprint)
        with global_seed(derive_seed(seed, "mapping", n_vector, blueprint.width)):
            mapping = make_mapping(n_vector, blueprint.width)
        with global_seed(derive_seed(seed, "head", blueprint.width, blueprint.n_classes)):
            head = nn.Linear(blueprint.width, blueprint.n_classes)
            if blueprint.name == "lenet-sigmoid":
                start_uniform(head)
        bottleneck = None
        if blueprint.bottleneck:
            with global_seed(derive_seed(seed, "bottleneck", blueprint.width, blueprint.bottleneck)):
                bottleneck = VariationalBottleneck(blueprint.width, blueprint.bottleneck)
        return SplitModel(extractor, mapping, head, norm_bound=blueprint.norm_bound, bottleneck=bottleneck)


def count_parameters(module: nn.Module) -> int:
    """Return the number of trainable scalars; buffers such as batch-norm statistics are not counted."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


@lru_cache(maxsize=256)
def extractor_parameters(blueprint: Blueprint) -> int:
    """Return the extractor's number of parameters (mapping and head left out) without allocating its weights."""
    _check_sizes(blueprint)
    with weightless():
        extractor, _ = _make_extractor(blueprint)
    return count_parameters(extractor)


@lru_cache(maxsize=256)
def extractor_batch_norms(blueprint: Blueprint) -> int:
    """Return the number of layers of the extractor that normalise over the batch, without allocating its weights."""
    _check_sizes(blueprint)
    with weightless():
        return batch_norms(_make_extractor(blueprint)[0])


@lru_cache(maxsize=256)
def mapping_parameters(blueprint: Blueprint) -> int:
    """Return the mapping's number of parameters without allocating its weights."""
    if blueprint.mapping != "fc":  # the one mapping with parameters of its own
        return 0
    _check_sizes(blueprint)
    with weightless():
        _, n_vector = _make_extractor(blueprint)
        return count_parameters(MAPPINGS.load(blueprint.mapping)(n_vector, blueprint.width))


@dataclass(frozen=True)
class Footprint:
    """Memory that a model takes at the least, in bytes.

    Attributes:
        weights: parameters, and what the mapping is a matrix of.
        kept: of one image's way forward, what training keeps for the way back.
        widest: the largest input and output of one layer together, of one image.
    """

    weights: int
    kept: int
    widest: int


@lru_cache(maxsize=256)
def footprint(blueprint: Blueprint) -> Footprint:
    """Return the memory of a model without allocating its weights; of a network that cannot be built so, nothing.

    Raises:
        UserError: for sizes that no model can have, and for images that this one cannot take.
    """
    _check_sizes(blueprint)
    layers: list[tuple[int, int]] = []

    def note(layer: nn.Module, given: Any, made: Any) -> None:
        sizes = [4 * one.numel() for one in (*given, made) if isinstance(one, torch.Tensor)]
        if not isinstance(
            layer, (nn.ReLU, nn.ReLU6, nn.Sigmoid, nn.Flatten, nn.Identity, nn.Dropout)
        ):  # often in place
            layers.append((sizes[-1] if sizes else 0, sum(sizes)))

    try:
        with weightless():
            extractor, n_vector = _make_extractor(blueprint)
        weights = 4 * count_parameters(extractor)
        for layer in extractor.modules():
            if not list(layer.children()):
                layer.register_forward_hook(note)
        # The meta device computes shapes by code that imports torch's compiler, so a small network is given memory.
        small = weights <= SMALL and math.prod(blueprint.image_shape) <= SMALL_IMAGE
        device = torch.device("cpu" if small else "meta")
        with torch.no_grad():
            extractor.to_empty(device=device).eval()(torch.zeros(1, *blueprint.image_shape, device=device))
    except UserError:
        raise
    except Exception:  # a network of another package may not know the meta device
        return Footprint(0, 0, 0)
    matrix = 0 if blueprint.mapping == "ap" and n_vector == blueprint.width else n_vector * blueprint.width
    taken = matrix if blueprint.mapping in ("ap", "fc") else max(n_vector, blueprint.width)
    weights += 4 * (taken + (blueprint.width + 1) * blueprint.n_classes)
    return Footprint(weights, sum(made for made, _ in layers), max((both for _, both in layers), default=0))


def fitting_models(image_shape: ImageShape) -> tuple[str, ...]:
    """Return the names of the models that take images of this shape (channels, height, width)."""
    return tuple(name for name in MODELS if _takes(name, image_shape))


def _takes(name: str, image_shape: ImageShape) -> bool:
    try:
        with weightless():
            MODELS.load(name)(image_shape)
    except UnfitShape:
        return False
    return True


def narrows(name: str) -> bool:
    """True if the units of a model's last hidden layer can be chosen: its factory takes ``last_hidden``."""
    return "last_hidden" in signature(MODELS.load(name)).parameters


def narrowing_models() -> tuple[str, ...]:
    """Return the names of the models that end in a linear layer whose units can be chosen."""
    return tuple(name for name in MODELS if narrows(name))


def _make_extractor(blueprint: Blueprint) -> tuple[nn.Module, int]:
    factory = MODELS.load(blueprint.name)
    if blueprint.last_hidden:
        factory = partial(factory, last_hidden=blueprint.last_hidden)
    try:
        extractor, n_vector = factory(blueprint.image_shape)
    except UnfitShape as reason:
        shape = "x".join(map(str, blueprint.image_shape))
        fitting = ", ".join(fitting_models(blueprint.image_shape))
        raise UserError(
            f"model {blueprint.name} cannot take images of {shape}: {reason}; models that fit: {fitting}"
        ) from None
    return with_group_norm(extractor) if blueprint.group_norm else extractor, n_vector


def _check_sizes(blueprint: Blueprint) -> None:
    """Refuse sizes that no model can have."""
    if len(blueprint.image_shape) != 3 or min(blueprint.image_shape) < 1:
        raise UserError(
            f"model {blueprint.name}: image shape {blueprint.image_shape} must be (channels, height, width), each >= 1"
        )
    for what, value in (("representation width", blueprint.width), ("number of classes", blueprint.n_classes)):
        if value < 1:
            raise UserError(f"model {blueprint.name}: {what} is {value}, it must be at least 1")
