"""Names of models, mappings and families, without importing torch.

A model is a factory ``(image_shape) -> (extractor, L)``: a module from images ``(n, c, h, w)`` to vectors ``(n, L)``,
and L. One that also takes ``last_hidden`` builds its last linear layer, and so L, of that many units.
"""

from __future__ import annotations

from fedpriv.util.errors import unknown_name
from fedpriv.util.registry import Registry

ImageShape = tuple[int, int, int]
"""(channels, height, width)."""

_LONG_RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
_SHORT_RESNETS = ("resnet4", "resnet6", "resnet8", "resnet10")
_TRANSFORMERS = ("vit-b16", "vit-b32")
_STOCK = (*_SHORT_RESNETS, *_LONG_RESNETS, "mobilenet-v2", "googlenet", *_TRANSFORMERS)
_CNNS = tuple(f"cnn-{i}" for i in range(1, 6))
_FEDHENN_CNNS = tuple(f"fedhenn-cnn-{i}" for i in range(1, 6))
_SMALL = ("small-cnn", "small-cnn-wide", "small-cnn-deep", "small-mlp")

MODELS = Registry(
    "model",
    {
        name: f"fedpriv.models.{file}:{name.replace('-', '_')}"
        for file, names in (
            ("zoo", ("cnn4", *_CNNS, *_FEDHENN_CNNS)),
            ("stock", _STOCK),
            ("zoo", ("lenet-sigmoid", *_SMALL, "plane-mlp")),
        )
        for name in names
    },
    group="fedpriv.models",
    contract="fedpriv.util.registry:refuse_no_callable",
)

MAPPINGS = Registry(
    "representation mapping",
    {
        "ap": "fedpriv.models.split:AveragePooling",
        "mp": "fedpriv.models.split:MaxPooling",
        "fc": "torch.nn:Linear",
    },
)

FAMILIES: dict[str, tuple[str, ...]] = {
    "htfe-4": ("cnn4", "googlenet", "mobilenet-v2", "resnet18"),
    "fedre-10": ("cnn4", "googlenet", "mobilenet-v2", *_LONG_RESNETS, *_TRANSFORMERS),
    "htfe-9": (*_SHORT_RESNETS, *_LONG_RESNETS),
    "fedmrl-5": _CNNS,
    "fedral-5": _LONG_RESNETS,
    "fedral-11": (*_SHORT_RESNETS, *_LONG_RESNETS, "cnn4", "vit-b16"),
    "fedhenn-5": _FEDHENN_CNNS,
    "small": _SMALL,
}
"""Families of architectures; client k gets entry k mod length.

``htfe-4``, ``htfe-9`` and ``fedre-10`` are HtFLlib's HtFE-img-4, HtFE-img-9 and HtM-img-10, the last FedRE's ten clients;
``fedmrl-5`` is CNN-1..5 of FedMRL and FedRAL; ``fedral-5`` FedRAL's ResNets for TinyImageNet; ``fedral-11`` the ResNets, CNN
and ViT of its table 6, which it leaves open; ``fedhenn-5`` FedHeNN's CNNs; ``small`` trains in seconds on one core.
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

    The published widths: 512 for cnn4 and the large networks (FedRE), 500 for CNN-1..5, or 50 for one channel (FedMRL,
    FedRAL), for ``lenet-sigmoid`` the width of its own vectors (DLG). A list takes the least width of its members, so that
    no member has to repeat values.
    """
    return min(_model_width(member, image_shape) for member in family(name))


def _model_width(model: str, image_shape: tuple[int, int, int]) -> int:
    if model == "lenet-sigmoid":
        return lenet_width(image_shape)
    if model == "plane-mlp":
        return PLANE_WIDTH
    if model in _CNNS:
        return 50 if image_shape[0] == 1 else 500
    if model in _SHORT_RESNETS:
        return int(64 * 2 ** _SHORT_RESNETS.index(model))
    return 128 if model in (*_SMALL, *_FEDHENN_CNNS) else 512


class UnfitShape(ValueError):
    """An architecture cannot take images of this shape; the message says what it needs."""


def require_sides(image_shape: ImageShape, least: int) -> None:
    """Refuse images with a side below ``least`` pixels."""
    if min(image_shape[1:]) < least:
        raise UnfitShape(f"it needs sides of at least {least} pixels")
