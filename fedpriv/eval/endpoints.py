"""Endpoints, threat models and primary attacks, as data that is fixed before any result is seen.

An endpoint is one kind of leak: reconstruction, membership, property (distribution of labels), label disclosure. Each has
one primary attack for a kind of upload and a threat model; only primaries are tested on a page. What else was run is
exploratory: shown with its own interval, claimed of nothing, and no reason to weaken a primary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, Literal, get_args

from fedpriv.attacks.observation import LabelAccess, ThreatModel
from fedpriv.eval.records import InferenceResult as InferenceResult
from fedpriv.eval.records import Measure, PropertyRecord, ReconstructionRecord
from fedpriv.uploads.kinds import (
    CLASS_MEANS,
    CLASS_OUTPUTS,
    EXTRACTORS,
    HEADS,
    IN_CLEAR,
    KERNELS,
    LAYERS,
    MAPPINGS,
    MIXTURES,
    NETWORKS,
    OF_IMAGES,
    PUBLIC_OUTPUTS,
    VECTORS,
    WHOLE,
    Kinds,
)
from fedpriv.util.errors import UserError

Endpoint = Literal["label disclosure", "property", "membership", "reconstruction"]
Threat = Literal["protocol", "white-box"]
Estimand = Literal["", "one image", "several images"]
Record = ReconstructionRecord | InferenceResult

ENDPOINTS: Final[tuple[Endpoint, ...]] = get_args(Endpoint)
THREATS: Final[tuple[Threat, ...]] = get_args(Threat)
"""``protocol``: only what crosses the wire, and auxiliary images; ``white-box``: the client's extractor too, or of trained
weights the labels of the batch, as papers assume."""

MEASURES: Final[dict[Endpoint, Measure]] = {
    "label disclosure": "property",
    "property": "property",
    "membership": "membership",
    "reconstruction": "images",
}
"""The measure by which a primary is judged: an area under the ROC curve, or PSNR."""

RECONSTRUCTION: Final[tuple[tuple[Kinds, Threat, tuple[str, ...]], ...]] = (
    (OF_IMAGES | CLASS_MEANS, "protocol", ("decoder", "pixels", "dip")),
    (OF_IMAGES | CLASS_MEANS, "white-box", ("decoder", "dip", "pixels")),
    (MIXTURES, "protocol", ("unmix", "pixels", "dip")),
    (MIXTURES, "white-box", ("unmix", "dip", "pixels")),
    (CLASS_OUTPUTS, "protocol", ("class-inversion",)),
    (CLASS_OUTPUTS, "white-box", ("class-inversion",)),
    (PUBLIC_OUTPUTS, "protocol", ("paired-logits",)),
    (WHOLE, "protocol", ("inverting-gradients", "linear-layer")),
    (WHOLE | EXTRACTORS, "white-box", ("inverting-gradients", "linear-layer")),
    (HEADS, "white-box", ("head-update",)),
    (MAPPINGS, "white-box", ("angle-update",)),
)
"""Kinds, threat model, and the attack that is primary; where it was not run, the next one is. Named attacks come first."""

INFERENCES: Final[dict[Endpoint, tuple[str, ...]]] = {
    "label disclosure": ("labels", "property"),
    "property": ("property",),
    "membership": ("membership",),
}
"""Primary attacks of the other endpoints, on all kinds of upload."""

NO_EXTRACTOR: Final = WHOLE | PUBLIC_OUTPUTS | KERNELS | IN_CLEAR
"""Kinds whose attacks never use the client's extractor; on all others they do where they have it."""


def among(kind: str, kinds: Kinds) -> bool:
    """True of a kind that is one of these; False of a kind of another package that is not installed here."""
    try:
        return kind in kinds
    except UserError:
        return False


def has_batches(kind: str) -> bool:
    """True where labels of a batch are behind an upload, which papers assume to be known."""
    return kind in NETWORKS


def threat_for(kind: str, card: ThreatModel, *, images: bool) -> Threat:
    """Return the threat model that an attack assumes, by what it is granted (``card``) and can use on a kind of upload.

    Who makes no ``images`` but scores classes or candidates reads no labels of a batch.
    """
    if not among(kind, NO_EXTRACTOR) and card.extractor in ("white_box", "query"):
        return "white-box"
    return "white-box" if images and among(kind, NETWORKS | LAYERS) and card.labels == "given" else "protocol"


def threat_of(record: Record) -> Threat:
    """Return the threat model that the attack behind a record assumed."""
    return threat_for(record.target, record.knowledge, images=isinstance(record, ReconstructionRecord))


def protocol_card(kind: str, card: ThreatModel) -> ThreatModel:
    """Return the rest of a threat model without the client's extractor, and without labels of batches."""
    shadow = card.attacker_data == "same_domain" and kind in VECTORS | CLASS_OUTPUTS
    labels: LabelAccess = "inferred" if kind in NETWORKS | LAYERS else card.labels
    return replace(card, extractor="shadow" if shadow else "none", labels=labels)


def endpoint_of(record: Record) -> Endpoint:
    """Return the endpoint that an attack answers."""
    if isinstance(record, PropertyRecord):
        return "label disclosure" if record.question == "holds" else "property"  # any image of the class?
    return "reconstruction" if isinstance(record, ReconstructionRecord) else "membership"


def primary(kind: str, endpoint: Endpoint, threat: Threat, attacks: Iterable[str]) -> str | None:
    """Return which of the attacks that were run is primary: the first of the order above, else the first by name."""
    order = INFERENCES.get(endpoint, ())
    for kinds, assumed, names in RECONSTRUCTION if endpoint == "reconstruction" else ():
        if assumed == threat and among(kind, kinds):
            order = names
    there = set(attacks)
    return next((name for name in (*order, *sorted(there)) if name in there), None)


def primaries(kind: str, threat: Threat) -> tuple[str, ...]:
    """Return the names of the primary attacks on a kind of upload under a threat model."""
    first = [order[0] for kinds, assumed, order in RECONSTRUCTION if assumed == threat and kind in kinds]
    return tuple(first) if kind in IN_CLEAR else (*(names[0] for names in INFERENCES.values()), *first)


def why_not(kind: str, endpoint: Endpoint, threat: Threat) -> str:
    """Return why nothing answers an endpoint under a threat model."""
    if among(kind, IN_CLEAR):
        return "sent in clear" if endpoint in ("label disclosure", "property") else "counts hold no image"
    if endpoint == "reconstruction" and among(kind, KERNELS):
        return "no attack is known"
    if threat == "protocol" and not among(kind, NO_EXTRACTOR) and endpoint in ("membership", "reconstruction"):
        return f"needs the client's {'head' if among(kind, EXTRACTORS) else 'extractor'}"
    return "not run"
