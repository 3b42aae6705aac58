"""Accuracy on validation images, which nobody trains on and no test image is among: what hyperparameters are chosen by.

FedHeNN tunes on "a global validation dataset which is not shared with any of the clients". It leaves unsaid how large that
is, and on which of its images a personalised model is judged: here on those of the classes that the client trains on, as
its test images are. A client of whose classes there is none does not count.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedpriv.datasets.types import Samples
from fedpriv.federation.accuracy import accuracy, evaluate
from fedpriv.federation.method import ClientSetup, Method, State
from fedpriv.federation.summary import RoundAccuracy
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.wire.payloads import Message


def places(validation: Samples, setup: ClientSetup) -> torch.Tensor:
    """Return the places, ascending, of the validation images whose class a client trains on."""
    return torch.isin(validation.labels, setup.train.labels.to(validation.labels.device)).nonzero().squeeze(1)


def refuse_useless(validation: Samples, setups: Sequence[ClientSetup]) -> None:
    """Check that some client has a validation image of its classes.

    Raises:
        UserError: where none has.
    """
    if not any(len(places(validation, setup)) for setup in setups):
        raise UserError(
            f"{argument('validation', len(validation))}: none of these images is of a class that a client trains on; set "
            "more aside",
            keys=("validation",),
        )


def validate(
    method: Method,
    setups: Sequence[ClientSetup],
    validation: Samples | None,
    states: Sequence[State],
    broadcast: Message,
) -> dict[str, RoundAccuracy]:
    """Return the accuracy on validation images at the moments, and by the ways to predict, of the accuracy on test images.

    Args:
        method: predicts.
        setups: of all clients.
        validation: all images, of which each client is judged on those of its classes; None for none, and no accuracy.
        states: theirs, after a round.
        broadcast: that the round ended with.
    """
    counts: dict[str, list[Sequence[int]]] = {}
    if validation is None:
        return {}
    for setup, state in zip(setups, states, strict=True):
        own = places(validation, setup)
        if len(own):
            found = evaluate(method, [(setup, validation.subset(own))], [state], broadcast, {}, set())
            for when, pairs in found.items():
                counts.setdefault(when, []).extend(pairs)
    return {when: accuracy(pairs) for when, pairs in counts.items()}
