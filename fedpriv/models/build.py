"""From a blueprint and a seed to a model, and the sizes of models that are not built."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from fedpriv.models import MAPPINGS, MODELS, ImageShape, UnfitShape
from fedpriv.models.split import Blueprint, SplitModel, VariationalBottleneck
from fedpriv.models.zoo import start_uniform
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed, global_seed

_DRAWS = (Tensor.normal_, Tensor.uniform_, Tensor.bernoulli_, Tensor.exponential_, Tensor.random_, Tensor.log_normal_)


def blueprint_of(name: str, image_shape: ImageShape, n_classes: int, width: int, mapping: str) -> Blueprint:
    """Return an architecture with representations of width d, or of its own vectors' width where ``mapping`` is ``none``."""
    own = Blueprint(name, image_shape, n_classes, width)  # whose mapping is the identity where widths agree
    return replace(own, width=_weightless_extractor(own)[1]) if mapping == "none" else replace(own, mapping=mapping)


def build_model(blueprint: Blueprint, seed: int) -> SplitModel:
    """Return the model of a blueprint on the CPU, in train mode, its weights a pure function of blueprint and seed.

    Extractor, mapping, bottleneck and head each draw from a seed of their own. The head's depends on the run's seed, d
    and C only, so clients of different architectures start with the same head, as methods that exchange heads assume.
    ``lenet-sigmoid`` starts its head, too, from U(-0.5, 0.5), as DLG does.
    """
    _check_sizes(blueprint)
    make_mapping = MAPPINGS.load(blueprint.mapping)
    with torch.device("cpu"):  # a default device set by the caller would bring another random stream
        with global_seed(derive_seed(seed, "extractor", blueprint.name, *blueprint.image_shape)):
            extractor, n_vector = _make_extractor(blueprint)
        with global_seed(derive_seed(seed, "mapping", n_vector, blueprint.width)):
            maps = n_vector != blueprint.width or blueprint.mapping not in ("ap", "mp")
            mapping = make_mapping(n_vector, blueprint.width) if maps else nn.Identity()
        with global_seed(derive_seed(seed, "head", blueprint.width, blueprint.n_classes)):
            head = nn.Linear(blueprint.width, blueprint.n_classes)
            if blueprint.name == "lenet-sigmoid":
                start_uniform(head)
        bottleneck = None
        if blueprint.bottleneck:
            with global_seed(derive_seed(seed, "bottleneck", blueprint.width, blueprint.bottleneck)):
                bottleneck = VariationalBottleneck(blueprint.width, blueprint.bottleneck)
        return SplitModel(extractor, mapping, head, bottleneck)


class _NoDraws(TorchFunctionMode):
    """Random draws into meta tensors are left out: torch's own import a compiler, a second of every process."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return args[0] if func in _DRAWS and args[0].is_meta else func(*args, **(kwargs or {}))


def count_parameters(module: nn.Module) -> int:
    """Return the number of trainable scalars."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def extractor_parameters(blueprint: Blueprint) -> int:
    """Return the extractor's number of parameters (mapping and head left out) without allocating its weights."""
    return count_parameters(_weightless_extractor(blueprint)[0])


def extractor_batch_norms(blueprint: Blueprint) -> int:
    """Return the number of the extractor's layers with batch normalisation, without allocating its weights."""
    return sum(isinstance(layer, _BatchNorm) for layer in _weightless_extractor(blueprint)[0].modules())


def mapping_parameters(blueprint: Blueprint) -> int:
    """Return the mapping's number of parameters without allocating its weights."""
    if blueprint.mapping != "fc":  # the one mapping with parameters of its own
        return 0
    return _weightless_extractor(blueprint)[1] * blueprint.width + blueprint.width


def narrowing_models() -> tuple[str, ...]:
    """Return the models whose last linear layer can have any number of units: their factories take ``last_hidden``."""
    return tuple(name for name in MODELS if "last_hidden" in signature(MODELS.load(name)).parameters)


@lru_cache(maxsize=256)
def _weightless_extractor(blueprint: Blueprint) -> tuple[nn.Module, int]:
    _check_sizes(blueprint)
    with torch.device("meta"), _NoDraws():
        return _make_extractor(blueprint)


def _make_extractor(blueprint: Blueprint) -> tuple[nn.Module, int]:
    factory = MODELS.load(blueprint.name)
    if blueprint.last_hidden:
        factory = partial(factory, last_hidden=blueprint.last_hidden)
    try:
        extractor, n_vector = factory(blueprint.image_shape)
    except UnfitShape as reason:
        shape = "x".join(map(str, blueprint.image_shape))
        raise UserError(f"model {blueprint.name} cannot take images of {shape}: {reason}") from None
    return _with_group_norm(extractor) if blueprint.group_norm else extractor, n_vector


def _with_group_norm(module: nn.Module) -> nn.Module:
    """Replace every batch normalisation inside a module by group normalisation (Wu, He, ECCV 2018), in place.

    As many groups as opacus makes: the greatest common divisor of 32 and the channels.
    """
    for parent in list(module.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, _BatchNorm):
                channels = layer.num_features
                setattr(parent, name, nn.GroupNorm(math.gcd(32, channels), channels, layer.eps, layer.affine))
    return module


def _check_sizes(blueprint: Blueprint) -> None:
    """Refuse sizes that no model can have."""
    if len(blueprint.image_shape) != 3 or min(blueprint.image_shape) < 1:
        raise UserError(
            f"model {blueprint.name}: image shape {blueprint.image_shape} must be (channels, height, width), each >= 1"
        )
    for what, value in (("representation width", blueprint.width), ("number of classes", blueprint.n_classes)):
        if value < 1:
            raise UserError(f"model {blueprint.name}: {what} is {value}, it must be at least 1")
