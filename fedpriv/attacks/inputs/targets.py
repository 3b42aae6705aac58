"""Views of uploads: targets, what is said in clear, and representations by granted extractors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.attacks.contract import Same, Trained
from fedpriv.attacks.observation import Knowledge, Observation, TargetId
from fedpriv.uploads.kinds import VECTORS, Kinds
from fedpriv.uploads.payloads import Entangled, Message, Payload, find_payload
from fedpriv.util.errors import UserError, shown
from fedpriv.util.seeds import Last


def list_targets(observations: Sequence[Observation], kind: str) -> tuple[TargetId, ...]:
    """Return every target of a kind of payload, in the order of the observations.

    A payload of vectors or class outputs gives one a row, labelled as the upload says (an entangled vector by its heaviest
    class); any other gives one as a whole, labelled -1.
    """
    targets: list[TargetId] = []
    for seen in observations:
        for payload in seen.upload:
            if payload.kind == kind:
                classes = payload.row_classes()
                labels = [-1] if classes is None else classes.tolist()
                targets += [TargetId(seen.round, seen.client, index, label) for index, label in enumerate(labels)]
    return tuple(targets)


def observation_of(observations: Sequence[Observation], target: TargetId) -> Observation:
    """Return the observation that a target points into, or refuse where there is none."""
    for seen in observations:
        if (seen.round, seen.client) == (target.round, target.client):
            return seen
    raise UserError(f"no upload of client {target.client} in round {target.round} among the observations")


def kinds_in(message: Sequence[Payload]) -> str:
    """Return the kinds of payload in a message, for sentences."""
    return ", ".join(payload.kind for payload in message) or "nothing"


def upload_holds(seen: Observation) -> str:
    """Say whose upload holds which kinds of payload."""
    return f"upload of client {seen.client} in round {seen.round} holds {kinds_in(seen.upload)}"


def rounds_of(observations: Sequence[Observation], client: int) -> list[Observation]:
    """Return a client's observations in the order of rounds."""
    return sorted((seen for seen in observations if seen.client == client), key=lambda seen: seen.round)


def target_feature(observations: Sequence[Observation], target: TargetId, kinds: Kinds = VECTORS) -> Tensor:
    """Return the vector ``(d,)`` of a target, whose upload must hold just one of the kinds."""
    seen = observation_of(observations, target)
    where = f"upload of client {target.client} in round {target.round}"
    payloads = [payload for payload in seen.upload if payload.kind in kinds]
    if len(payloads) != 1:
        raise UserError(f"{where} holds {kinds_in(payloads or seen.upload)}; expected one of {', '.join(kinds)}")
    rows = payloads[0].rows()
    if not 0 <= target.index < len(rows):
        raise UserError(f"{where}: target index {target.index}, expected 0..{len(rows) - 1}")
    return rows[target.index]


@dataclass(frozen=True)
class Said:
    """Classes of a client's images, and how many there are of each, as its uploads say in clear."""

    classes: tuple[int, ...] | None  # ascending; None where no message names classes
    counts: Mapping[int, int] | None  # class -> number of training images; None where no message counts them


def said(messages: Iterable[Message]) -> Said:
    """Put together what a client's messages say, the oldest first.

    The newest message that counts images settles both; otherwise classes are those of the newest message that names some,
    and of mixtures all that ever had weight.
    """
    counts: Mapping[int, int] | None = None
    newest: tuple[int, ...] | None = None
    mixed: set[int] = set()
    for message in messages:
        counted, named = class_counts(message), held_classes(message)
        counts = counts if counted is None else counted
        newest = newest if named is None else named
        if named is not None and find_payload(message, Entangled) is not None:
            mixed |= set(named)
    if counts is not None:
        return Said(tuple(sorted(label for label, count in counts.items() if count > 0)), counts)
    return Said(tuple(sorted(mixed)) if mixed else newest, None)


def held_classes(upload: Message) -> tuple[int, ...] | None:
    """Return the classes that an upload says its client holds, ascending; None where it says nothing of classes."""
    for payload in upload:
        classes = payload.said("classes")
        if classes is not None:
            return tuple(classes.unique().tolist())
        for by_class in (payload.said("weights"), payload.said("histogram")):
            if by_class is not None:
                return tuple(by_class.nonzero().squeeze(1).tolist())
    return None


def class_counts(upload: Message) -> dict[int, int] | None:
    """Return the number of training images of each class that an upload says its client holds; None where it says none."""
    for payload in upload:
        classes, counts, histogram = payload.said("classes"), payload.said("counts"), payload.said("histogram")
        if histogram is not None:
            return {label: count for label, count in enumerate(histogram.tolist()) if count > 0}
        if classes is not None and payload.computed_from == "image":
            classes, counts = classes.unique(return_counts=True)
        if classes is not None and counts is not None:
            return dict(zip(classes.tolist(), counts.tolist(), strict=True))
    return None


# ---------------------------------------------------------------- representations by granted extractors


def require_extractors(knowledge: Knowledge, targets: Sequence[TargetId]) -> None:
    """Refuse where there is no extractor for an attacked client, naming the first."""
    for client in sorted({target.client for target in targets} - set(knowledge.extractors)):
        raise UserError(
            f"no extractor of client {client} was handed over, though the threat model assumes "
            f"extractor={knowledge.card.extractor}; expected one for each attacked client"
        )


def represent(knowledge: Knowledge, client: int, images: Tensor, kept: Trained | None = None) -> Tensor:
    """Return the representations ``(n, d)`` of images by a client's extractor, on the CPU; ``kept`` as below."""
    if client not in knowledge.extractors:
        raise UserError(
            f"no extractor of client {client} was handed over; pass knowledge={shown({'extractor': 'white_box'})}"
        )
    return represented(knowledge.extractors[client], images, images.device, kept).cpu()


@torch.no_grad()
def represented(
    extractor: Callable[[Tensor], Tensor], images: Tensor, device: torch.device, kept: Trained | None = None
) -> Tensor:
    """Return the representations ``(n, d)`` of images by an extractor, in passes of 256; ``kept`` looks them up."""

    def compute() -> Tensor:
        return torch.cat([extractor(part) for part in images.to(device).split(256)])

    return compute() if kept is None else kept.rows(("rows", Same(extractor), Same(images), device), compute)


class OwnExtractors:
    """The extractors of a card, as one map of images of several clients; who owns what is worked out once a tensor."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._extractors, self._device = knowledge.extractors, torch.device("cpu")
        self._calls = Last(self._plan)

    def __call__(self, images: Tensor, owners: Tensor) -> Tensor:
        """Return the representations ``(n, d)`` of images ``(n, c, h, w)`` of clients ``owners`` ``(n,)``, on the CPU."""
        self._device = images.device
        calls, back = self._calls(owners)
        if len(calls) == 1:
            return calls[0][0](images)
        return torch.cat([extractor(images[places]) for extractor, places in calls])[back]

    def _plan(self, owners: Tensor) -> tuple[list[tuple[Callable[[Tensor], Tensor], Tensor]], Tensor]:
        """Return the extractors with the places of their images, and the way back to the order of the images."""
        clients = owners.unique().tolist()
        places = [(owners == client).nonzero().flatten() for client in clients]
        calls = [(self._extractors[k], current.to(self._device)) for k, current in zip(clients, places, strict=True)]
        return calls, torch.cat(places).argsort().to(self._device)
