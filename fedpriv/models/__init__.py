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
        **{f"fedhenn-cnn-{i}": f"fedpriv.models.fedhenn_cnn:fedhenn_cnn_{i}" for i in range(1, 6)},
        "resnet4": "fedpriv.models.stock:resnet4",
        "resnet6": "fedpriv.models.stock:resnet6",
        "resnet8": "fedpriv.models.stock:resnet8",
        "resnet10": "fedpriv.models.stock:resnet10",
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

_RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
_SHORT_RESNETS = ("resnet4", "resnet6", "resnet8", "resnet10")

FAMILIES: dict[str, tuple[str, ...]] = {
    "htfe-4": ("cnn4", "googlenet", "mobilenet-v2", "resnet18"),
    "fedre-10": (
        "cnn4",
        "googlenet",
        "mobilenet-v2",
        *_RESNETS,
        "vit-b16",
        "vit-b32",
    ),
    "htfe-9": (*_SHORT_RESNETS, *_RESNETS),
    "fedmrl-5": ("cnn-1", "cnn-2", "cnn-3", "cnn-4", "cnn-5"),
    "fedral-5": _RESNETS,
    "fedral-11": (*_SHORT_RESNETS, *_RESNETS, "cnn4", "vit-b16"),
    "fedhenn-5": tuple(f"fedhenn-cnn-{i}" for i in range(1, 6)),
    "small": ("small-cnn", "small-cnn-wide", "small-cnn-deep", "small-mlp"),
}
"""Families of architectures; client k gets entry k mod length.

``htfe-4``, ``htfe-9`` and ``fedre-10`` are the HtFE-img-4, HtFE-img-9 and HtM-img-10 lists of HtFLlib, in their order
(the last is the ten clients of FedRE); ``fedmrl-5`` is CNN-1..5 of FedMRL and FedRAL (``cnn-5`` alone is the fifth of
them); ``fedral-5`` FedRAL's five ResNets for TinyImageNet; ``fedral-11`` the ResNets, CNN and ViT of its table 6, which
does not say what CNN and ViT: here the 4-layer CNN and ViT-B/16; ``fedhenn-5`` stands for the five CNNs of FedHeNN
(:mod:`fedpriv.models.fedhenn_cnn`), which draws one for each client; ``small`` trains in seconds on one core.
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
    layout (FedMRL, FedRAL), 128 for the small family and FedHeNN's CNNs, 16 for ``plane-mlp``, and for ``lenet-sigmoid``
    the width of its own vectors, so that nothing is pooled (DLG). ResNets of 4, 6 and 8 layers have 64, 128 and 256
    numbers. A list takes the least width of its members, so that no member has to repeat values (HtFLlib takes 512).
    """
    return min(_model_width(member, image_shape) for member in family(name))


def _model_width(model: str, image_shape: tuple[int, int, int]) -> int:
    if model == "lenet-sigmoid":
        return lenet_width(image_shape)
    if model == "plane-mlp":
        return PLANE_WIDTH
    if model in FAMILIES["fedmrl-5"]:
        return 50 if image_shape[0] == 1 else 500
    if model in _SHORT_RESNETS:
        return int(64 * 2 ** _SHORT_RESNETS.index(model))
    return 128 if model in (*FAMILIES["small"], *FAMILIES["fedhenn-5"]) else 512
