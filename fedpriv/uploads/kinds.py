"""Sets of kinds of payload, each described by traits: what attacks, defenses and the evidence ask about a kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fedpriv.uploads import PAYLOADS
from fedpriv.uploads.payload import DECLARED, Message, Payload
from fedpriv.util.errors import UserError


def payload_kind(name: str) -> type[Payload]:
    """Return the kind of payload of a name, or of a reference ``package.module:NAME``."""
    result: type[Payload] = DECLARED[name] if name in DECLARED else PAYLOADS.load(name)
    return result


def refuse_no_payload(name: str, value: object) -> None:
    """Check what another package calls a kind of payload."""
    if not (isinstance(value, type) and issubclass(value, Payload) and value is not Payload):
        raise UserError(f"expected a subclass of fedpriv.uploads.payload.Payload, got {value!r}")
    if ":" not in name and value.kind != name:
        raise UserError(f"expected a kind of that name, got kind {value.kind!r}")


@dataclass(frozen=True)
class Kinds:
    """The kinds that pass a test of their traits, those of other packages too.

    ``kind in kinds`` takes a name and raises a UserError where there is no such kind; iterating gives names.
    """

    test: Callable[[type[Payload]], bool]

    def __contains__(self, kind: object) -> bool:
        return self.test(payload_kind(str(kind)))

    def __iter__(self) -> Iterator[str]:
        PAYLOADS.load_all()
        return (name for name, kind in DECLARED.items() if self.test(kind))

    def __or__(self, other: Kinds) -> Kinds:
        return Kinds(lambda kind: self.test(kind) or other.test(kind))

    def first(self, message: Message) -> Payload | None:
        """Return the first payload of a message whose kind is one of these, or None."""
        return next((payload for payload in message if self.test(type(payload))), None)


OF_IMAGES = Kinds(lambda k: k.space == "representation" and k.computed_from == "image")
CLASS_MEANS = Kinds(lambda k: k.space == "representation" and k.computed_from == "class")
MIXTURES = Kinds(lambda k: k.space == "representation" and k.computed_from == "mixture")

SEPARATE = OF_IMAGES | CLASS_MEANS
"""Representations of single images or means of classes, as they are."""

VECTORS = SEPARATE | MIXTURES
"""Vectors of the representation space that images can be sought for."""

CLASS_OUTPUTS = Kinds(lambda k: k.space == "outputs" and k.computed_from == "class")
PUBLIC_OUTPUTS = Kinds(lambda k: k.space == "outputs" and k.computed_from == "public")
KERNELS = Kinds(lambda k: k.space == "kernel")

ANSWERS = Kinds(lambda k: k.computed_from == "public")
"""What a client's network makes of public inputs, the same for everybody: clients differ only in what they answer."""

BY_CLASS = Kinds(lambda k: k.computed_from in ("image", "class", "mixture"))
"""Rows that are each of one class, or a mixture of classes."""

ROWS = Kinds(lambda k: k.space in ("representation", "outputs"))
"""Vectors of any origin: what a defense changes of them are the rows themselves."""

TRAINED = Kinds(lambda k: k.computed_from == "training")
"""Weights after local training, which have a loss before and after."""

UPDATES = Kinds(lambda k: k.computed_from == "training" and k.space == "weights")
"""Weights that are sent entry by entry: what a defense changes of them is the difference from the broadcast."""

STATES = Kinds(lambda k: UPDATES.test(k) and "state" in k.__dataclass_fields__)
"""Weights by parameter's name."""

FACTORS = Kinds(lambda k: k.computed_from == "training" and k.space == "factors")
"""Weights of which truncated factors are sent."""

PLAIN = Kinds(lambda k: k.values_field() is not None and not ROWS.test(k) and not UPDATES.test(k))
"""Whatever else was computed from images: every tensor as it is."""

SIGNALS = ROWS | UPDATES | PLAIN
"""Everything that was computed from images and is more than classes and counts."""

NETWORKS = Kinds(lambda k: TRAINED.test(k) and k.network in ("whole", "small", "extractor"))
"""Weights of a network that takes images: from their update a gradient is read."""

WHOLE = Kinds(lambda k: TRAINED.test(k) and k.network in ("whole", "small"))
"""Weights that hold all that an attacker differentiates through."""

EXTRACTORS = Kinds(lambda k: TRAINED.test(k) and k.network == "extractor")
HEADS = Kinds(lambda k: TRAINED.test(k) and k.network == "head")
MAPPINGS = Kinds(lambda k: TRAINED.test(k) and k.network == "mapping")

LAYERS = HEADS | MAPPINGS
"""Weights of one layer, from whose update representations are solved for."""

HEADED = WHOLE | HEADS
"""Weights that hold the head."""

BESIDE_A_HEAD = CLASS_OUTPUTS | EXTRACTORS | MAPPINGS
"""Kinds that a head which stays private had a part in."""

TELLING = Kinds(lambda k: any(k.field_that_says(what) for what in ("classes", "weights", "histogram")))
"""Kinds that name classes in clear."""

IN_CLEAR = Kinds(lambda k: k.values_field() is None and k.field_that_says("histogram") is not None)
"""Label histograms and nothing else: there is nothing left to infer from them."""
