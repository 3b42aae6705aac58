"""From what was handed in to messages: payloads as they are, tensors whose kind is obvious, updates and gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.attacks.observation import BatchFacts
from fedpriv.experiment.uploads.announced import named_tensors, plain_tensor, settled
from fedpriv.experiment.uploads.class_vectors import is_class_vectors, read_class_vectors
from fedpriv.experiment.uploads.given import Gradient, Update, check_labels, is_pair
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import LAYERS, NETWORKS, payload_kind
from fedpriv.wire.payload import Message, Payload
from fedpriv.wire.payloads import ClassLogits, Entangled, Prototypes, Representations


def read_message(
    given: Any, target: str, labels: Any, n_classes: int | None, answered: Message = (), client: int | None = None
) -> Message | Update | Gradient:
    """Return an upload as a message on the CPU; updates and gradients as they are, checked no further.

    Args:
        given: one upload.
        target: kind of payload that is attacked.
        labels: of the client's images, for tensors that do not name classes themselves.
        n_classes: C, where it was given.
        answered: the broadcast that it answers, where one was given.
        client: whose upload it is, where there are several.

    Raises:
        UserError: when it is no upload of that kind.
    """
    where = argument("uploads") if client is None else f"{argument('uploads')}: client {client}"
    if isinstance(given, (Update, Gradient)):
        return given
    if is_pair(given):
        return Update(*given)
    if is_class_vectors(given, target):
        message: Message = (read_class_vectors(where, given, target),)
    elif isinstance(given, Mapping):
        return _update_of(where, given, target, answered)
    elif isinstance(given, (Tensor, np.ndarray)):
        message = (_from_tensor(where, plain_tensor(where, given), target, labels, n_classes),)
    elif isinstance(given, Payload):
        message = (given,)
    elif isinstance(given, tuple) and given and all(isinstance(one, Payload) for one in given):
        message = given
    else:
        raise UserError(f"{where}: expected an upload of {target}, got {type(given).__name__}")
    message = tuple(settled(where, payload, n_classes) for payload in message)
    if target not in [payload.kind for payload in message]:
        held = ", ".join(payload.kind for payload in message)
        raise UserError(f"{where}: holds {held}, and no {target}, which {argument('target')} names")
    return message


def _update_of(where: str, after: Mapping[str, Tensor], target: str, answered: Message) -> Update:
    """Return weights without a word beside them as what clients made of the broadcast.

    Raises:
        UserError: where no broadcast was given: the same mapping could hold weights, gradients or differences.
    """
    if not is_weights(target):
        name = payload_kind(target).__name__
        raise UserError(
            f"{where}: tensors by name, but {target} is no upload of weights by name; pass a payload: {name}"
        )
    sent = next((payload for payload in answered if payload.kind == target), None)
    if sent is None:
        raise UserError(
            f"{where}: a mapping of names does not say whether it holds weights or gradients; pass "
            f"fedpriv.Update(before, after), fedpriv.Gradient(values), or {argument('broadcasts')}= with the weights that "
            "clients started from"
        )
    return Update(sent.parameters(), after)


def _from_tensor(where: str, given: Tensor, target: str, labels: Any, n_classes: int | None) -> Payload:
    if not given.is_floating_point():
        raise UserError(f"{where}: a tensor of {given.dtype}; expected floats")
    values = given.detach().cpu().float()
    classes = None if labels is None else check_labels("labels", labels)
    if target == Representations.kind and values.dim() == 2 and classes is not None and len(classes) == len(values):
        return Representations(values, classes)
    if target in (Prototypes.kind, ClassLogits.kind) and values.dim() == 2 and classes is not None:
        held, counts = classes.unique(return_counts=True)
        if len(held) != len(values):
            raise UserError(
                f"{where}: {len(values)} rows, but the labels name {len(held)} classes; pass a payload that says which "
                "class each row is of"
            )
        return Prototypes(values, held, counts) if target == Prototypes.kind else ClassLogits(values, held)
    if target == Entangled.kind and values.dim() == 1 and classes is not None:
        number = n_classes or int(classes.max()) + 1
        return Entangled(values, torch.bincount(classes, minlength=number).float() / len(classes))
    name = payload_kind(target).__name__
    raise UserError(
        f"{where}: a tensor of shape {tuple(given.shape)} does not say what it is an upload of; pass a payload: {name}"
    )


# ---------------------------------------------------------------- updates and gradients


def is_weights(target: str) -> bool:
    """True for kinds of payload that are weights by name."""
    kind = payload_kind(target)
    return target in NETWORKS | LAYERS and kind.space == "weights" and "state" in [spec.name for spec in fields(kind)]


def exchange(
    given: Update | Gradient, target: str, model: nn.Module | None, facts: BatchFacts | None
) -> tuple[Message, Message, BatchFacts | None]:
    """Return upload and broadcast of a client's local steps, and what is known of them.

    A gradient becomes the weights after one step: an attack divides by the learning rate again. The rate of a single
    step is chosen so that rounding loses least.

    Raises:
        UserError: naming what is missing or shaped otherwise.
    """
    kind = payload_kind(target)
    if not is_weights(target):
        raise UserError(f"{argument('uploads')}: weights were given, but {target} is no upload of weights by name")
    if isinstance(given, Update):
        before, after = _weights("before", given.before), _weights("after", given.after)
        if model is not None and target in NETWORKS:
            known = dict(model.named_parameters())
            _refuse_different(known, before, "model", "before")
            before = {name: before[name] for name in known}
        after = {name: after[name] for name in before if name in after}
        _refuse_different(before, after, "before", "after")
        if all(torch.equal(before[name], after[name]) for name in before):
            raise UserError(f"{argument('uploads')}: before and after are equal; nothing was trained")
    else:
        if model is None:
            raise UserError(f"{argument('model')}: missing; a gradient is of a model's parameters")
        before = {name: value.detach().cpu().float() for name, value in model.named_parameters()}
        gradient = _named_gradient(given.values, list(before))
        _refuse_different(before, gradient, "model", "gradient")
        facts = _scaled(facts, before, gradient)
        after = {name: before[name] - facts.learning_rate * gradient[name] for name in before}
    return (kind(state=after),), (kind(state=before),), facts  # type: ignore[call-arg]


def _weights(side: str, given: object) -> dict[str, Tensor]:
    where, found = argument("uploads"), {}
    for name, value in named_tensors(f"{where}: {side}", given).items():
        if value.is_complex():
            raise UserError(f"{where}: {side}[{name!r}]: {value.dtype}; expected real floats")
        if value.is_floating_point():
            found[name] = value.detach().cpu().float()
            if not bool(found[name].isfinite().all()):
                raise UserError(f"{where}: {side}[{name!r}] holds NaN or infinity")
    return found


def _named_gradient(values: object, names: Sequence[str]) -> dict[str, Tensor]:
    where = argument("uploads")
    if not isinstance(values, Mapping):
        if not isinstance(values, (list, tuple)):
            raise UserError(
                f"{where}: a gradient of type {type(values).__name__}; expected tensors by name, or in the model's order"
            )
        if len(values) != len(names):
            raise UserError(f"{where}: a gradient of {len(values)} tensors, but the model has {len(names)} parameters")
        values = dict(zip(names, values, strict=True))
    found = _weights("gradient", values)
    unknown = [name for name in found if name not in names]
    if unknown:
        raise UserError(
            f"{where}: gradient[{unknown[0]!r}]: the model has no such parameter; it has {', '.join(names)}"
        )
    return found


def _refuse_different(one: Mapping[str, Tensor], other: Mapping[str, Tensor], first: str, second: str) -> None:
    for name, value in one.items():
        if name not in other or other[name].shape != value.shape:
            got = tuple(other[name].shape) if name in other else "nothing"
            raise UserError(
                f"{argument('uploads')}: {second}[{name!r}]: expected {tuple(value.shape)} as in {first}, got {got}"
            )


def _scaled(facts: BatchFacts | None, before: Mapping[str, Tensor], gradient: Mapping[str, Tensor]) -> BatchFacts:
    if facts is None:
        raise UserError(f"{argument('batch')}: missing; a gradient is that of a batch of so many images")
    largest = max(float(value.abs().max()) for value in gradient.values())
    if not largest:
        raise UserError(f"{argument('uploads')}: the gradient is zero everywhere; nothing can be learned from it")
    if facts.steps > 1:
        return facts
    weights = max(float(value.abs().max()) for value in before.values()) or 1.0
    return replace(facts, learning_rate=2.0 ** round(math.log2(weights / largest)))
