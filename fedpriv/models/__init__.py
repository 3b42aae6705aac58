"""The model zoo: extractors, representation mappings, one linear head for all.

This module holds names only and imports no torch. ``MODELS`` maps a name to the dotted target of a factory
``(image_shape) -> (extractor, L)``: a module from images ``(n, c, h, w)`` to vectors ``(n, L)``, and L. One that also
takes ``last_hidden`` builds its last linear layer, and so L, of that many units.
"""

from __future__ import annotations

from fedpriv.util.errors import unknown_name
from fedpriv.util.registry import Registry

MODELS = Registry(
    "model",
    {
        "cnn4": "fedpriv.models.cnn:cnn4",
        "cnn-1": "fedpriv.models.cnn:cnn_1",
        "cnn-2": "fedpriv.models.cnn:cnn_2",
        "cnn-3": "fedpriv.models.cnn:cnn_3",
        "cnn-4": "fedpriv.models.cnn:cnn_4",
        "cnn-5": "fedpriv.models.cnn:cnn_5",
        "resnet18": "fedpriv.models.stock:resnet18",
        "resnet34": "fedpriv.models.stock:resnet34",
        "resnet50": "fedpriv.models.stock:resnet50",
        "resnet101": "fedpriv.models.stock:resnet101",
        "resnet152": "fedpriv.models.stock:resnet152",
        "mobilenet-v2": "fedpriv.models.stock:mobilenet_v2",
        "googlenet": "fedpriv.models.stock:googlenet",
        "vit-b16": "fedpriv.models.stock:vit_b16",
        "vit-b32": "fedpriv.models.stock:vit_b32",
        "lenet-sigmoid": "fedpriv.models.lenet:lenet_sigmoid",
        "small-cnn": "fedpriv.models.small:small_cnn",
        "small-cnn-wide": "fedpriv.models.small:small_cnn_wide",
        "small-cnn-deep": "fedpriv.models.small:small_cnn_deep",
        "small-mlp": "fedpriv.models.small:small_mlp",
        "plane-mlp": "fedpriv.models.plane:plane_mlp",
    },
    group="fedpriv.models",
    contract="fedpriv.util.registry:refuse_no_callable",
)

MAPPINGS = Registry(
    "representation mapping",
    {
        "ap": "fedpriv.models.mapping:average_pooling",
        "mp": "fedpriv.models.mapping:max_pooling",
        "fc": "fedpriv.models.mapping:fully_connected",
    },
)

FAMILIES: dict[str, tuple[str, ...]] = {
    "htfe-4": ("cnn4", "googlenet", "mobilenet-v2", "resnet18"),
    "fedre-10": (
        "cnn4",
        "googlenet",
        "mobilenet-v2",
        "resnet18",
        "resnet34",
        "resnet50",
        "resnet101",
        "resnet152",
        "vit-b16",
        "vit-b32",
    ),
    "fedmrl-5": ("cnn-1", "cnn-2", "cnn-3", "cnn-4", "cnn-5"),
    "small": ("small-cnn", "small-cnn-wide", "small-cnn-deep", "small-mlp"),
}
"""Families of architectures; client k gets entry k mod length.

``htfe-4`` and ``fedre-10`` are the HtFE-img-4 and HtM-img-10 lists of HtFLlib, in their order (the second is the ten
clients of FedRE); ``fedmrl-5`` is CNN-1..5 of FedMRL and FedRAL (``cnn-5`` alone is the fifth of them); ``small``
trains in seconds on one core.
"""

LENET_CHANNELS = 12
PLANE_WIDTH = 16


def family(name: str) -> tuple[str, ...]:
    """Return the architectures of a family, of a model, or of a list of both with commas, in which repeats count."""
    members: list[str] = []
    for part in (piece.strip() for piece in name.split(",")):
        if part in FAMILIES:
            members.extend(FAMILIES[part])
        elif part in MODELS:
            members.append(part)
        else:
            raise unknown_name("model or family", part, [*FAMILIES, *MODELS])
    return tuple(members)


def lenet_width(image_shape: tuple[int, int, int]) -> int:
    """Return the vector width L of ``lenet-sigmoid``: 12 maps, each side halved twice and rounded up.

    >>> lenet_width((3, 32, 32))
    768
    """
    _, height, width = image_shape
    return LENET_CHANNELS * -(-height // 4) * -(-width // 4)


def default_width(name: str, image_shape: tuple[int, int, int] = (3, 32, 32)) -> int:
    """Return the representation width d that a family, model or list of them uses unless told otherwise.

    The published widths: 512 for cnn4 and the large networks (FedRE), 500 for CNN-1..5, or 50 in their single-channel
    layout (FedMRL), 128 for the small family, 16 for ``plane-mlp``, and for ``lenet-sigmoid`` the width of its own
    vectors, so that nothing is pooled (DLG). A list takes the least width of its members, so that no member has to repeat
    values.
    """
    return min(_model_width(member, image_shape) for member in family(name))


def _model_width(model: str, image_shape: tuple[int, int, int]) -> int:
    if model == "lenet-sigmoid":
        return lenet_width(image_shape)
    if model == "plane-mlp":
        return PLANE_WIDTH
    if model in FAMILIES["fedmrl-5"]:
        return 50 if image_shape[0] == 1 else 500
    return 128 if model in FAMILIES["small"] else 512
