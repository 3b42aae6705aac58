"""Uploads from elsewhere are untrusted data: read as messages, checked against what was announced beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.attacks.observation import BatchFacts
from fedpriv.uploads.kinds import LAYERS, NETWORKS, STATES, payload_kind
from fedpriv.uploads.payload import Message, Payload, as_tensor, check_names, check_plain, from_array
from fedpriv.uploads.payloads import ClassLogits, Entangled, Prototypes, Representations
from fedpriv.util.errors import UserError, shown

MOST_CLASSES: Final = 100_000
"""Classes that an upload or labels may speak of: tables of baselines have one row a class. ImageNet in full has 21,841."""

MOST_IMAGES: Final = 1 << 40  # a client's number of images, where an upload tells one


@dataclass(frozen=True)
class Update:
    """Weights before and after a client's local steps.

    Attributes:
        before: parameter name -> tensor, as ``state_dict()`` gives it: what the client started from, known to the server.
        after: the same names and shapes: what the client uploaded. Entries that are no parameters may stand beside.
    """

    before: Mapping[str, Tensor]
    after: Mapping[str, Tensor]


@dataclass(frozen=True)
class Gradient:
    """The gradient that a client uploaded, of the mean loss over its batch; of several steps the sum.

    Attributes:
        values: parameter name -> tensor, or tensors in the order of ``model.named_parameters()``, as
            ``torch.autograd.grad`` returns them: of all parameters, or of those with ``requires_grad``, where the others
            were not trained. None stands for zeros.
    """

    values: Mapping[str, Tensor | None] | Sequence[Tensor | None]


Raw = Message | Update | Gradient  # an upload as it was handed in


# ---------------------------------------------------------------- forms of an upload


def is_one_upload(given: object, target: str) -> bool:
    """True for one upload, not one a client."""
    one = isinstance(given, (Payload, Tensor, np.ndarray, Update, Gradient)) or _is_message(given)
    return one or _is_class_vectors(given, target) or is_state(given)


def _is_message(given: object) -> bool:
    return isinstance(given, tuple) and bool(given) and all(isinstance(item, Payload) for item in given)


def is_state(given: object) -> bool:
    """True for tensors by name, as ``state_dict()`` returns them."""
    return isinstance(given, Mapping) and bool(given) and all(isinstance(key, str) for key in given)


def _is_class_vectors(given: object, target: str) -> bool:
    """True for ``{class: vector}`` where the target takes one row a class and nothing else; for others keys are clients."""
    kind = payload_kind(target)
    needed = {spec.name for spec in fields(kind) if not spec.metadata["optional"]}
    if kind.computed_from != "class" or needed != {kind.values_field(), kind.field_that_says("classes")}:
        return False
    values = given.values() if isinstance(given, Mapping) else ()
    lists = any(isinstance(v, (list, tuple)) and v and all(isinstance(n, (int, float)) for n in v) for v in values)
    return lists or any(isinstance(value, (Tensor, np.ndarray)) and value.ndim == 1 for value in values)


def read_message(where: str, given: Any, target: str, labels: Any, n_classes: int | None) -> Raw:
    """Return an upload as a message on the CPU; updates and gradients as they are, checked no further."""
    if isinstance(given, (Update, Gradient)):
        return given
    if _is_class_vectors(given, target):
        message: Message = (_class_vectors(where, given, target),)
    elif isinstance(given, Mapping):
        raise UserError(
            f"{where}: a mapping of names does not say whether it holds weights or gradients; pass "
            "fedpriv.Update(before, after), fedpriv.Gradient(values), or broadcasts= with the weights of the beginning"
        )
    elif isinstance(given, (Tensor, np.ndarray)):
        message = (_from_tensor(where, as_tensor(where, given), target, labels, n_classes),)
    elif isinstance(given, Payload) or _is_message(given):
        message = (given,) if isinstance(given, Payload) else given
    else:
        raise UserError(f"{where}: expected an upload of {target}, got {type(given).__name__}")
    message = tuple(settled(where, payload, n_classes) for payload in message)
    if target not in [payload.kind for payload in message]:
        there = ", ".join(payload.kind for payload in message)
        raise UserError(f"{where}: holds {there}, and no {target}, which target names")
    return message


def _from_tensor(where: str, given: Tensor, target: str, labels: Any, n_classes: int | None) -> Payload:
    if not given.is_floating_point():
        raise UserError(f"{where}: a tensor of {given.dtype}; expected floats")
    values = given.detach().cpu().float()
    classes = torch.empty(0) if labels is None else check_labels("labels", labels)
    if target == Representations.kind and values.dim() == 2 and len(classes) == len(values):
        return Representations(values, classes)
    if target in (Prototypes.kind, ClassLogits.kind) and values.dim() == 2 and len(classes):
        present, counts = classes.unique(return_counts=True)
        if len(present) != len(values):
            text = f"{where}: {len(values)} rows, but the labels name {len(present)} classes"
            raise UserError(f"{text}; pass a payload that says which class each row is of")
        return Prototypes(values, present, counts) if target == Prototypes.kind else ClassLogits(values, present)
    if target == Entangled.kind and values.dim() == 1 and len(classes):
        number = n_classes or int(classes.max()) + 1
        return Entangled(values, torch.bincount(classes, minlength=number).float() / len(classes))
    text = f"a tensor of shape {tuple(given.shape)} does not say what it is an upload of"
    raise UserError(f"{where}: {text}; pass a payload: {payload_kind(target).__name__}")


def _class_vectors(where: str, given: Mapping[Any, Any], target: str) -> Payload:
    """Return ``{class: vector}``, as FedProto's own code has it, as a payload that counts no images."""
    rows: dict[int, Tensor] = {}
    for key, value in given.items():
        whole = isinstance(key, (int, np.integer)) and not isinstance(key, bool)
        if not whole or not 0 <= key < MOST_CLASSES:
            expected = f"a whole number in 0..{MOST_CLASSES - 1} as the key of each vector"
            raise UserError(f"{where}: class {shown(key)}; expected {expected}")
        text = f"{where}: class {key}"
        vector = as_tensor(text, value).detach().cpu()
        if vector.dim() != 1 or vector.is_complex():
            raise UserError(f"{text}: expected a vector (d,), got {vector.dtype} {tuple(vector.shape)}")
        first, row = next(iter(rows.items()), (key, vector))
        if len(vector) != len(row):
            raise UserError(f"{text}: a vector of {len(vector)} values, but that of class {first} has {len(row)}")
        rows[int(key)] = vector.float()
    kind = payload_kind(target)
    values, classes = str(kind.values_field()), str(kind.field_that_says("classes"))
    return kind(**{values: torch.stack([*rows.values()]), classes: torch.tensor([*rows])})


# ---------------------------------------------------------------- payloads against what was announced


def settled(where: str, payload: Payload, n_classes: int | None) -> Payload:
    """Return a payload on the CPU, without a graph, and in agreement with itself and with what was announced."""
    try:
        payload.check()  # its tensors may have been put there since it was made
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    values: dict[str, Any] = {}
    for spec in fields(payload):
        value = getattr(payload, spec.name)
        if isinstance(value, Mapping):
            values[spec.name] = {name: entry.detach().cpu() for name, entry in value.items()}
        elif value is not None:
            values[spec.name] = value.detach().cpu()
    made = replace(payload, **values)
    if (wrong := made.non_finite()) is not None:
        raise UserError(f"{where}: {made.kind}.{wrong} holds NaN or infinity; expected finite numbers")
    _check_disclosed(f"{where}: {made.kind}.", made, n_classes)
    return made


def _check_disclosed(where: str, payload: Payload, n_classes: int | None) -> None:
    """Check classes, counts and widths that a payload says in clear."""
    most = MOST_CLASSES if n_classes is None else n_classes
    source = "at most so many" if n_classes is None else f"n_classes={shown(n_classes)}"
    classes = payload.said("classes")
    if classes is not None and len(classes):
        name = f"{where}{payload.field_that_says('classes')}"
        wrong = classes[(classes < 0) | (classes >= most)]
        if len(wrong):
            raise UserError(f"{name}: class {int(wrong[0])}; expected 0..{most - 1} ({source})")
        present, counts = classes.unique(return_counts=True)
        if payload.computed_from == "class" and len(present) != len(classes):
            raise UserError(f"{name}: class {int(present[counts.argmax()])} is there twice; expected one row a class")
    for what in ("counts", "histogram", "size"):
        counts = payload.said(what)
        if counts is not None and len(counts) and not 0 <= int(counts.min()) <= int(counts.max()) <= MOST_IMAGES:
            name = f"{where}{payload.field_that_says(what)}"
            raise UserError(f"{name}: {int(counts.min())} to {int(counts.max())}; expected 0..{MOST_IMAGES} images")
    tables = [payload.field_that_says(what) for what in ("weights", "histogram")]
    widths = {table: len(getattr(payload, table)) for table in tables if table is not None}
    if payload.space == "outputs" and (values := payload.values_field()) is not None:
        widths[values] = getattr(payload, values).shape[-1]
    for field, width in widths.items():
        if width > most or (n_classes is not None and width != n_classes):
            raise UserError(f"{where}{field}: of {width} classes; expected {most} ({source})")


def check_labels(name: str, labels: Any, count: int | None = None) -> Tensor:
    """Return labels on the CPU as int64 ``(n,)``, of any number where none is expected."""
    values = as_tensor(name, labels).detach().cpu()
    if values.is_floating_point() or values.dtype == torch.bool or values.is_complex():
        raise UserError(f"{name}: expected whole numbers, got {values.dtype}")
    if values.dim() != 1 or not len(values) or count not in (None, len(values)):
        expected = "as many as images" if count is None else count
        raise UserError(f"{name}: expected {expected}, one an image, got shape {tuple(values.shape)}")
    values = values.long()
    if not 0 <= int(values.min()) <= int(values.max()) < MOST_CLASSES:
        raise UserError(f"{name}: classes {int(values.min())} to {int(values.max())}; expected 0..{MOST_CLASSES - 1}")
    return values


# ---------------------------------------------------------------- updates and gradients


def exchange(
    given: Update | Gradient, target: str, model: nn.Module | None, facts: BatchFacts | None
) -> tuple[Message, Message, BatchFacts | None]:
    """Return upload and broadcast of a client's local steps, and what is known of them.

    A gradient becomes the weights after one step: an attack divides by the learning rate again. The rate of a single
    step is chosen so that rounding loses least.
    """
    if target not in NETWORKS | LAYERS or target not in STATES:
        raise UserError(f"uploads: weights were given, but {target} is no upload of weights by name")
    kind = payload_kind(target)
    if isinstance(given, Update):
        before, after = weights("uploads: before", given.before), weights("uploads: after", given.after)
        before = {name: value for name, value in before.items() if name in after or name not in given.after}
        if model is not None and target in NETWORKS:
            known = dict(model.named_parameters())
            _refuse_different(known, before, "model", "before")
            before = {name: before[name] for name in known}
        after = {name: after[name] for name in before if name in after}
        _refuse_different(before, after, "before", "after")
        if all(torch.equal(before[name], after[name]) for name in before):
            raise UserError("uploads: before and after are equal; nothing was trained")
    else:
        if model is None or facts is None:
            raise UserError("model: missing; a gradient is of a model's parameters")
        before = {name: value.detach().cpu().float() for name, value in model.named_parameters()}
        gradient = _named_gradient(given.values, list(before))
        _refuse_different(before, gradient, "model", "gradient")
        largest, greatest = (max(float(v.abs().max()) for v in each.values()) for each in (gradient, before))
        if not largest:
            raise UserError("uploads: the gradient is zero everywhere; nothing can be learned from it")
        if facts.steps == 1:
            facts = replace(facts, learning_rate=2.0 ** round(math.log2((greatest or 1.0) / largest)))
        after = {name: before[name] - facts.learning_rate * gradient[name] for name in before}
    return (kind(state=after),), (kind(state=before),), facts  # type: ignore[call-arg]


def weights(where: str, given: object) -> dict[str, Tensor]:
    """Return the floats among tensors by name as float32 on the CPU."""
    if not isinstance(given, Mapping):
        raise UserError(f"{where}: expected tensors by name, got {type(given).__name__}")
    check_names(where, [*given])
    result = {}
    for name, entry in given.items():
        text = f"{where}[{name!r}]"
        value = from_array(text, entry) if isinstance(entry, np.ndarray) else check_plain(text, entry)
        if value.is_complex():
            raise UserError(f"{text}: {value.dtype}; expected real floats")
        if value.is_floating_point():
            result[name] = value.detach().cpu().float()
            if not bool(result[name].isfinite().all()):
                raise UserError(f"{text} holds NaN or infinity")
    return result


def _named_gradient(values: object, names: Sequence[str]) -> dict[str, Tensor]:
    gradient = weights("uploads: gradient", values)
    for name in gradient:
        if name not in names:
            raise UserError(f"uploads: gradient[{name!r}]: the model has no such parameter; it has {', '.join(names)}")
    return gradient


def _refuse_different(values: Mapping[str, Tensor], other: Mapping[str, Tensor], first: str, second: str) -> None:
    for name, value in values.items():
        if name not in other or other[name].shape != value.shape:
            got: object = tuple(other[name].shape) if name in other else "nothing"
            if name not in other and second == "gradient":
                got = "nothing; where it is not trained, call requires_grad_(False) on it in the model"
            raise UserError(f"uploads: {second}[{name!r}]: expected {tuple(value.shape)} as in {first}, got {got}")
