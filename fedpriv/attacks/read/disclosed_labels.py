"""Classes of a client's images, and how many there are of each, as its uploads say in clear.

A protocol may say it once: a label histogram travels with a client's first upload only, and a mixture of one class a round
names another class in every round. So all messages of a client are asked, not its newest alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedpriv.wire.payloads import Entangled, Message, find_payload


@dataclass(frozen=True)
class Said:
    """A client's own words.

    Attributes:
        classes: that it holds, ascending; None where no message names classes.
        counts: class -> number of training images; None where no message counts them.
    """

    classes: tuple[int, ...] | None
    counts: Mapping[int, int] | None


def said(messages: Iterable[Message]) -> Said:
    """Put together the words of a client's messages, the oldest first.

    The newest message that counts images settles both. Otherwise classes are those of the newest message that names some,
    and of mixtures, which need not hold every class, all that ever had weight.
    """
    counts: Mapping[int, int] | None = None
    newest: tuple[int, ...] | None = None
    mixed: set[int] = set()
    for message in messages:
        found, named = class_counts(message), held_classes(message)
        counts = counts if found is None else found
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
    """Return the number of training images of each class that an upload says its client holds, or None where it does not."""
    for payload in upload:
        classes, counts, histogram = payload.said("classes"), payload.said("counts"), payload.said("histogram")
        if histogram is not None:
            return {label: count for label, count in enumerate(histogram.tolist()) if count > 0}
        if classes is not None and payload.computed_from == "image":
            classes, counts = classes.unique(return_counts=True)
        if classes is not None and counts is not None:
            return dict(zip(classes.tolist(), counts.tolist(), strict=True))
    return None
