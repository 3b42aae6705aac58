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


# Representations of single images, means of classes, and mixtures; all that are as they are, and all that images can be
# sought for.
OF_IMAGES = Kinds(lambda k: k.space == "representation" and k.computed_from == "image")
CLASS_MEANS = Kinds(lambda k: k.space == "representation" and k.computed_from == "class")
MIXTURES = Kinds(lambda k: k.space == "representation" and k.computed_from == "mixture")
SEPARATE = OF_IMAGES | CLASS_MEANS
VECTORS = SEPARATE | MIXTURES

CLASS_OUTPUTS = Kinds(lambda k: k.space == "outputs" and k.computed_from == "class")
PUBLIC_OUTPUTS = Kinds(lambda k: k.space == "outputs" and k.computed_from == "public")
KERNELS = Kinds(lambda k: k.space == "kernel")
# What a client's network makes of public inputs, the same for everybody: clients differ only in what they answer.
ANSWERS = Kinds(lambda k: k.computed_from == "public")
# Rows that are each of one class, or a mixture of classes.
BY_CLASS = Kinds(lambda k: k.computed_from in ("image", "class", "mixture"))

# Weights after local training, which have a loss before and after; those that are sent entry by entry, where defenses change
# the difference from the broadcast; of these the ones by parameter's name; those of which truncated factors are sent.
TRAINED = Kinds(lambda k: k.computed_from == "training")
UPDATES = Kinds(lambda k: k.computed_from == "training" and k.space == "weights")
STATES = Kinds(lambda k: UPDATES.test(k) and "state" in k.__dataclass_fields__)
FACTORS = Kinds(lambda k: k.computed_from == "training" and k.space == "factors")

# Everything that was computed from images and is more than classes and counts: vectors of any origin, of which a defense
# changes the rows themselves; updates; and whatever else, every tensor as it is.
ROWS = Kinds(lambda k: k.space in ("representation", "outputs"))
PLAIN = Kinds(lambda k: k.values_field() is not None and not ROWS.test(k) and not UPDATES.test(k))
SIGNALS = ROWS | UPDATES | PLAIN

# Weights of a network that takes images (from their update a gradient is read), and those that hold all that an attacker
# differentiates through.
NETWORKS = Kinds(lambda k: TRAINED.test(k) and k.network in ("whole", "small", "extractor"))
WHOLE = Kinds(lambda k: TRAINED.test(k) and k.network in ("whole", "small"))
EXTRACTORS = Kinds(lambda k: TRAINED.test(k) and k.network == "extractor")
HEADS = Kinds(lambda k: TRAINED.test(k) and k.network == "head")
MAPPINGS = Kinds(lambda k: TRAINED.test(k) and k.network == "mapping")
LAYERS = HEADS | MAPPINGS  # of one layer, from whose update representations are solved for
HEADED = WHOLE | HEADS  # that hold the head
BESIDE_A_HEAD = CLASS_OUTPUTS | EXTRACTORS | MAPPINGS  # that a head which stays private had a part in

# Kinds that name classes in clear, and label histograms with nothing else, of which nothing is left to infer.
TELLING = Kinds(lambda k: any(k.field_that_says(what) for what in ("classes", "weights", "histogram")))
IN_CLEAR = Kinds(lambda k: k.values_field() is None and k.field_that_says("histogram") is not None)
