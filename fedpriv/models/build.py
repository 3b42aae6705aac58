"""From a blueprint and a seed to a model, and what a model weighs."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import nn

from fedpriv.models import MAPPINGS, MODELS
from fedpriv.models.bottleneck import VariationalBottleneck
from fedpriv.models.group_norm import batch_norms, with_group_norm
from fedpriv.models.lenet import start_uniform
from fedpriv.models.shapes import ImageShape, UnfitShape
from fedpriv.models.split import Blueprint, SplitModel
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed, global_seed


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
    with torch.device("meta"):
        extractor, _ = _make_extractor(blueprint)
    return count_parameters(extractor)


@lru_cache(maxsize=256)
def extractor_batch_norms(blueprint: Blueprint) -> int:
    """Return the number of layers of the extractor that normalise over the batch, without allocating its weights."""
    _check_sizes(blueprint)
    with torch.device("meta"):
        return batch_norms(_make_extractor(blueprint)[0])


def fitting_models(image_shape: ImageShape) -> tuple[str, ...]:
    """Return the names of the models that take images of this shape (channels, height, width)."""
    return tuple(name for name in MODELS if _takes(name, image_shape))


def _takes(name: str, image_shape: ImageShape) -> bool:
    try:
        with torch.device("meta"):
            MODELS.load(name)(image_shape)
    except UnfitShape:
        return False
    return True


def _make_extractor(blueprint: Blueprint) -> tuple[nn.Module, int]:
    factory = MODELS.load(blueprint.name)
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
