"""Uploads as strangers hand them in: valid ones in which one to three parts are replaced by what no upload is made of."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import fedpriv

IMAGES, CLASSES = torch.rand(3, 1, 4, 4), torch.arange(3)
NETWORK = nn.Sequential(nn.Flatten(), nn.Linear(16, 6))
MODEL = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 3))
STATE = {name: value.detach().clone() for name, value in MODEL.state_dict().items()}
AFTER = {name: value + 0.1 if value.is_floating_point() else value for name, value in STATE.items()}


class Evil(Tensor):
    """Runs its own code wherever it is computed with."""

    @classmethod
    def __torch_function__(cls, function: Any, kinds: Any, given: Any = (), named: Any = None) -> Any:
        raise AssertionError(f"{function} ran a stranger's code")


class Unprintable:
    """Fails at whatever it is asked for."""

    def __repr__(self) -> str:
        raise RuntimeError("no")

    def __array__(self, *given: Any) -> Any:
        raise KeyError("no")


def valid(draw: random.Random) -> dict[str, Any]:
    """Return arguments that the door takes; a payload is left as a table ``{"payload": kind, field: tensor}``."""
    kind = draw.choice(("prototype", "representation", "entangled", "logits", "model", "gradient", "tensor", "rounds"))
    given: dict[str, Any] = {"target": kind, "images": IMAGES, "labels": CLASSES, "extractor": None, "settings": {}}
    vectors = torch.rand(3, 6)
    made: Any = {"payload": "prototype", "features": vectors, "classes": CLASSES, "counts": torch.ones(3).long()}
    if kind == "representation":
        made = {"payload": kind, "features": vectors, "labels": CLASSES}
    elif kind == "entangled":
        made = {"payload": kind, "feature": torch.rand(6), "label_encoding": torch.ones(3) / 3}
    elif kind == "logits":
        made = {"payload": kind, "values": torch.rand(3, 3), "classes": CLASSES}
    elif kind == "model":
        made = {"update": True, "before": dict(STATE), "after": dict(AFTER)}
        given["settings"] = {
            "model": MODEL,
            "batch": {"facts": True, "batch_size": 3, "learning_rate": 0.1, "steps": 1},
        }
    elif kind == "gradient":
        made = {"gradient": True, "values": {name: torch.rand_like(value) for name, value in MODEL.named_parameters()}}
        given |= {"target": "model", "settings": {"model": MODEL}}
    elif kind == "tensor":
        given["target"], made = "prototype", vectors
    elif kind == "rounds":
        given |= {"target": "prototype", "images": [IMAGES, IMAGES / 2], "labels": [CLASSES, CLASSES]}
        given["uploads"] = [[made, dict(made)], [dict(made), dict(made)]]
    given.setdefault("uploads", made)
    if kind in ("prototype", "representation", "entangled") and draw.random() < 0.5:
        given["extractor"] = NETWORK
    given["settings"] |= draw.choice(
        ({}, {}, {"n_classes": 3}, {"dataset": "mine"}, {"groups": ["a"]}, {"weights": torch.ones(3)})
    )
    given["strangers"], given["knowledge"] = torch.rand(5, 1, 4, 4), {}
    return given


def hostile(draw: random.Random) -> dict[str, Any]:
    """Return the arguments of one upload with one to three parts replaced, added, renamed or left out."""
    given = valid(draw)
    for _ in range(draw.choice((1, 1, 2, 3))):
        places: list[tuple[Any, Any]] = []
        _places(given, places)
        holder, key = draw.choice(places)
        here = holder[key]
        if isinstance(holder, dict) and draw.random() < 0.15 and key not in ("target", "settings", "uploads"):
            holder[draw.choice(NAMES)] = holder.pop(key) if draw.random() < 0.5 else here
        else:
            holder[key] = _odd(here, draw)
    return made(given)


def made(given: Any, depth: int = 6) -> Any:
    """Return tables as the payloads, updates and facts that they stand for."""
    if isinstance(given, (list, tuple)) and depth:
        return type(given)([made(one, depth - 1) for one in given])
    if not isinstance(given, dict) or not depth:
        return given
    found = {key: made(value, depth - 1) for key, value in given.items()}
    for mark, build in MADE.items():
        if mark in found:
            kind = found.pop(mark)
            return build(found, kind)
    return found


def _payload(fields: dict[Any, Any], kind: Any) -> Any:
    from fedpriv.wire.kinds import payload_kind

    if not isinstance(kind, str):
        return fields
    whole = valid_fields(kind)
    if whole is None:
        return fields
    payload = payload_kind(kind)(**whole)
    for name, value in fields.items():  # as a stranger may: past the checks of the constructor
        if isinstance(name, str):
            object.__setattr__(payload, name, value)
    return payload


def valid_fields(kind: str) -> dict[str, Tensor] | None:
    """Return the fields of a small payload of a kind, or None."""
    vectors = torch.rand(3, 6)
    return {
        "prototype": {"features": vectors, "classes": CLASSES},
        "representation": {"features": vectors, "labels": CLASSES},
        "entangled": {"feature": torch.rand(6), "label_encoding": torch.ones(3) / 3},
        "logits": {"values": torch.rand(3, 3), "classes": CLASSES},
    }.get(kind)


def _called(function: Callable[..., Any]) -> Callable[[dict[Any, Any], Any], Any]:
    def build(fields: dict[Any, Any], mark: Any) -> Any:
        try:
            return function(**fields)
        except TypeError:  # a field of another name
            return fields

    return build


MADE: dict[str, Callable[[dict[Any, Any], Any], Any]] = {
    "payload": _payload,
    "update": _called(fedpriv.Update),
    "gradient": _called(fedpriv.Gradient),
    "facts": _called(fedpriv.BatchFacts),
}


def _places(given: Any, found: list[tuple[Any, Any]], depth: int = 6) -> None:
    entries = given.items() if isinstance(given, dict) else enumerate(given)
    for key, value in list(entries):
        found.append((given, key))
        if isinstance(value, (dict, list)) and depth:
            _places(value, found, depth - 1)


def _odd(here: Any, draw: random.Random) -> Any:
    if type(here) is Tensor and here.numel() < 10_000 and draw.random() < 0.8:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return draw.choice(TENSORS)(here)
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, NotImplementedError):
            return torch.tensor(0)
    return draw.choice(VALUES)


def _nested_list(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


NAMES: tuple[Any, ...] = (
    "",
    "x" * 5000,
    "a\x1b[2J",
    "a\0",
    5,
    None,
    ("a",),
    -1,
    1 << 80,
    "features",
    "0.weight",
    "\ud800",
    True,
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3, 1 << 40, -(1 << 40), 1 << 9000, 0.5, -0.5, float("nan"), float("inf"), 1e300, 1j),
    *(
        "",
        "x",
        "x" * 10_000,
        "a\x1b[2J",
        "\0",
        "\ud800",
        b"\xff",
        (),
        [],
        {},
        [1, 2, 3],
        [0.5] * 3,
        ["a"] * 3,
        {"a": 1},
    ),
    *(
        {0: 1},
        {"0.weight": torch.ones(1)},
        [[]],
        _nested_list(2000),
        object,
        object(),
        Unprintable(),
        range(3),
        set(),
        iter(()),
    ),
    *(torch.ones(1), CLASSES, IMAGES, NETWORK, MODEL, nn.Linear(3, 3), nn.Identity(), nn.LazyLinear(3), torch.float32),
    *(
        "prototype",
        "entangled",
        "model",
        "cpu",
        "logits",
        "given",
        "inferred",
        [IMAGES],
        [CLASSES],
        {0: IMAGES},
        lambda: 0,
    ),
)
TENSORS: tuple[Callable[[Tensor], Any], ...] = (
    lambda t: t * torch.nan,
    lambda t: t / 0,
    lambda t: -t,
    lambda t: t * 1e30,
    lambda t: t.double() * 1e300,
    lambda t: t.long(),
    lambda t: t.float(),
    lambda t: t.bool(),
    lambda t: t.half(),
    lambda t: t.to(torch.bfloat16),
    lambda t: t.to(torch.uint8),
    lambda t: t.to(torch.uint64),
    lambda t: t.to(torch.complex64),
    lambda t: t.to(torch.float8_e5m2),
    lambda t: t.to_sparse(),
    lambda t: t.to("meta"),
    lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8),
    lambda t: torch.nested.nested_tensor([*t]),
    lambda t: Tensor._make_subclass(Evil, t),
    lambda t: torch.zeros(1).expand(1 << 20, 1 << 20),
    lambda t: torch.zeros(1).expand(1 << 40),
    lambda t: torch.zeros(1, dtype=t.dtype).expand(*t.shape[1:], 1 << 40),
    lambda t: t[:0],
    lambda t: t[:1],
    lambda t: torch.cat([t, t]),
    lambda t: t[None],
    lambda t: t[0],
    lambda t: t[..., :1],
    lambda t: t.flip(0),
    lambda t: t.flatten(),
    lambda t: t.t(),
    lambda t: t.clone().float().requires_grad_(),
    lambda t: t.clone().float().requires_grad_() * 2,
    lambda t: nn.Parameter(t.float()),
    lambda t: t + (1 << 40),
    lambda t: t + (1 << 62),
    lambda t: t * 0,
    lambda t: t * 0 + 1,
    lambda t: t.numpy(),
    lambda t: t.tolist(),
    lambda t: [*t],
)
