"""Signals: the part of an upload that was computed from images, as tensors that a defense can change and put back.

- *Rows*: representations, prototypes, entangled representations, class outputs. The signal is the tensor itself.
- *Updates*: heads, extractors, models, small models, angle matrices. The signal is the difference from what the
  server broadcast, entry by entry; the server knows the rest.
- *Plain*: kernels and factored models. The signal is every floating-point tensor.

Labels, class ids, label encodings and counts are no signal: no defense of a signal touches them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedpriv.federation.answer import NO_OTHERS, Answer
from fedpriv.federation.defense import Defense, ProtectionPlan, UploadContext
from fedpriv.uploads.kinds import SIGNALS, UPDATES, Kinds, payload_kind
from fedpriv.uploads.ledger import Entry
from fedpriv.uploads.payload import Message, Payload, Says
from fedpriv.util.errors import UserError

Change = Callable[[str, Tensor], Tensor]
"""(name within the payload, signal) -> signal of the same shape."""


class SignalDefense(Defense):
    """A defense that changes uploads one by one, tensor by tensor of their signals unless ``protected`` is overridden.

    Attributes:
        fits: kinds of payload; counts pass unchanged.
        behind: encoders that it may follow, because what they make of the upload is still what they send.
    """

    fits: ClassVar[Kinds] = SIGNALS
    behind: ClassVar[tuple[str, ...]] = ()
    unanswered = NO_OTHERS

    def check(self, plan: ProtectionPlan) -> None:
        """Refuse methods whose uploads it does not fit."""
        require(self.name, plan, self.fits, self.behind)

    def change(self, value: Tensor, context: UploadContext) -> Tensor:
        """Return a tensor of the signal as it is sent."""
        return value

    def protected(self, payload: Payload, context: UploadContext) -> Payload:
        """Return a payload as it is sent."""
        return changed(payload, context.broadcast, lambda _, value: self.change(value, context))

    def upload(self, message: Message, context: UploadContext) -> Message:
        """Return the message with every payload changed."""
        return tuple(self.protected(payload, context) for payload in message)


def require(defense: str, plan: ProtectionPlan, kinds: Kinds, behind: tuple[str, ...] = ()) -> None:
    """Refuse a method whose uploads a defense does not fit; arguments as in :class:`SignalDefense`."""
    for encoder in plan.encoded:
        if encoder not in behind:
            raise UserError(
                f"defense {defense!r} behind {encoder!r}: would change what {encoder} put on the wire; give {defense} "
                "first, or only one of the two"
            )
    carried = [kind for kind in plan.uploads if kind in SIGNALS]
    fits = f"it fits uploads of: {', '.join(kinds)}"
    if not carried:
        raise UserError(f"defense {defense!r}: clients of method {plan.method!r} upload nothing to protect; {fits}")
    for kind in carried:
        if kind not in kinds:
            raise UserError(f"defense {defense!r} does not fit method {plan.method!r}, which uploads {kind}; {fits}")
        if kind in UPDATES and kind not in plan.broadcasts:
            raise UserError(
                f"defense {defense!r} changes the difference from the broadcast, but method {plan.method!r} broadcasts "
                f"no {kind}; take a method that does"
            )


def signal(payload: Payload, broadcast: Message) -> dict[str, Tensor]:
    """Return the tensors that were computed from images, by name; empty for counts.

    Raises:
        KeyError: for an update without a broadcast that it could be a difference from.
    """
    field = payload.values_field()
    values = {
        name: value
        for name, value in payload.tensors().items()
        if name.partition("/")[0] == field and value.is_floating_point()
    }
    before = _reference(payload, broadcast)
    return {name: value - before[name] if before else value for name, value in values.items()}


def changed(payload: Payload, broadcast: Message, change: Change) -> Payload:
    """Return the payload with its signal changed; the payload handed in is left alone."""
    values = {name: change(name, value) for name, value in signal(payload, broadcast).items()}
    before = _reference(payload, broadcast)
    values = {name: before[name] + value if before else value for name, value in values.items()}
    new: dict[str, Any] = {}
    for spec in fields(payload):
        current = getattr(payload, spec.name)
        if isinstance(current, Mapping):
            new[spec.name] = {key: values.get(f"{spec.name}/{key}", entry) for key, entry in current.items()}
        elif spec.name in values:
            new[spec.name] = values[spec.name]
    return replace(payload, **new) if values else payload


def transform(message: Message, broadcast: Message, change: Change) -> Message:
    """Return a message with the signal of every payload changed."""
    return tuple(changed(payload, broadcast, change) for payload in message)


def is_signal(entry: Entry) -> bool:
    """True if a ledger's entry is (still) a floating-point tensor of a signal."""
    kind, _, name = entry.name.partition(".")
    field = name.partition("/")[0]
    return entry.dtype == "float32" and "#" not in entry.name and field == payload_kind(kind).values_field()


def norm(values: Mapping[str, Tensor]) -> float:
    """Return the L2 norm of all entries of several tensors together."""
    return float(sum((value.double().square().sum() for value in values.values()), torch.zeros(()).double()).sqrt())


def _reference(payload: Payload, broadcast: Message) -> dict[str, Tensor]:
    if payload.kind not in UPDATES:
        return {}
    sent = next((other for other in broadcast if other.kind == payload.kind), None)
    if sent is None:
        raise KeyError(f"no {payload.kind} in the broadcast")
    return payload.before(sent)


def in_clear(plan: ProtectionPlan) -> list[str]:
    """Return the facts that a method's uploads tell beside their signals, in words, each once."""
    return list(dict.fromkeys(fact for kind in plan.uploads for fact in facts_in_clear(kind)))


def facts_in_clear(kind: str) -> tuple[str, ...]:
    """Return the facts that a kind of payload tells beside its signal, in words."""
    payload = payload_kind(kind)
    facts: dict[Says, tuple[str, ...]] = {
        "classes": ("the class of every row", "how many images the client holds")
        if payload.computed_from == "image"
        else ("which classes the client holds",),
        "counts": ("numbers of images, where the method uploads them",),
        "weights": ("the label encoding: the mixing weights by class", "which classes have weight"),
        "size": ("how many images the client holds",),
        "histogram": ("how many images of each class the client holds",),
    }
    return tuple(line for says, lines in facts.items() if payload.field_that_says(says) for line in lines)


VECTOR_NAMES = ("representation", "prototype", "entangled")
"""Kinds of upload that hold vectors of the representation's space."""

SINGLE_NAMES = ("representation", "prototype")
"""Those of one image, or one class, each."""

LAYER_NAMES = ("classifier", "angle-matrix")
"""Kinds of upload that hold the update of a single layer."""

NETWORK_NAMES = ("model", "small-model", "extractor")
"""Kinds of upload whose difference from the broadcast is an update of a network."""

WHOLE_NAMES = ("model", "small-model", "low-rank-model")
"""Kinds of upload that hold a whole network."""

SEARCHES = ("dlg", "inverting-gradients")
"""Attacks that match gradients."""

_COSINE = "the cosine between update and a candidate's gradient, which no length moves and noise or gaps blur only"
LIKENESS = Answer(("membership",), LAYER_NAMES, note=f"as it is: {_COSINE}")
"""Membership by the direction of the update."""

CLASS_IDS = Answer(
    ("class-inversion",), ("logits",), {"match": "class"}, note="goes by the class ids, which are sent as they are"
)

UNTOUCHED = Answer(note="what is sent is as it was")
"""Of defenses that leave out some uploads, or some rows, and change no other."""

COMPARED = Answer(
    ("property", "membership"),
    ("kernel", "public-logits"),
    note="as they are: compare clients with one another, by all entries together",
)

UNCHANGED = (LIKENESS, CLASS_IDS, COMPARED)
"""Attacks that work as they are on what noise, clips and pruning leave."""

LEARNED = (
    Answer(("decoder",), SINGLE_NAMES, note="learns on images of its own behind the same defense"),
    Answer(("all-rounds",), SINGLE_NAMES, note="the same, from all rounds together"),
)
"""Decoders that are trained through the defense."""

AVERAGED = (Answer(("unmix",), ("entangled",), note="one posterior over rounds"), *LEARNED)
"""Attacks that take noise away which is drawn anew every round."""

MOST_LIKELY = Answer(
    ("inverting-gradients",),
    NETWORK_NAMES,
    note="under noise of one size on every entry, behind a clip, the gradient nearest by direction is the likeliest one",
)
"""Attacks that are adapted as they are to an update clipped as a whole under Gaussian noise: of y = s g + e with unknown
s > 0, the likelihood, at its best s, grows with the cosine of y and g; the prior of the attack does the rest."""
