"""Clients that no round has sampled yet: what their accuracy is of, and two remedies.

Such a client has trained on nothing. After the broadcast it is scored with received weights where the method sends any,
else with its first ones; and where its model has batch normalisation, with running statistics that no image went into
(mean 0, variance 1), under which a trained network answers next to nothing right. Published accuracies over all clients
under partial participation may have such clients in them, and do not say so.

``counted`` scores them as they are. ``left_out`` leaves them out of the accuracy until a round samples them.
``own_statistics`` scores them with statistics of their own training images under the very weights that are scored, in
all other respects as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch

from fedpriv.federation.local_training import BATCH_NORMS, EVALUATION_BATCH, has_batch_norm
from fedpriv.federation.method import ClientSetup, State
from fedpriv.federation.states import put, take
from fedpriv.federation.summary import Unsampled
from fedpriv.util.arguments import argument

Treatment = Literal["counted", "left_out", "own_statistics"]
TREATMENTS: tuple[Treatment, ...] = get_args(Treatment)


@torch.no_grad()
def with_own_statistics(setup: ClientSetup, state: State) -> State:
    """Return a client's state with the running statistics of its private model taken from its own training images.

    Weights stay. Each layer's mean and variance are the means over chunks of at most 256 images of what the layer sees
    while all layers normalise over the chunk; nothing is drawn at random. The state itself where there is no batch
    normalisation, or no private model.
    """
    model: Any = setup.model
    norms = [layer for layer in model.modules() if isinstance(layer, BATCH_NORMS) and layer.track_running_stats]
    if not norms or not any(name.startswith("model.") for name in state):
        return state
    put(model, state, "model")
    model.eval()
    momenta = [layer.momentum for layer in norms]
    for layer in norms:
        layer.reset_running_stats()
        layer.momentum = None  # the mean over chunks, each counting the same
        layer.train()
    for images in setup.train.images.chunk(-(-len(setup.train) // EVALUATION_BATCH)):
        model.represent(images)
    for layer, momentum in zip(norms, momenta, strict=True):
        layer.momentum = momentum
    return state | take(model, "model")


def unsampled_facts(clients: Sequence[int], setups: Sequence[ClientSetup], treatment: Treatment) -> Unsampled | None:
    """Return the record of the clients that no round of a run sampled; None where there are none."""
    if not clients:
        return None
    norms = tuple(k for k in clients if has_batch_norm(setups[k].model))
    return Unsampled(clients=tuple(clients), batch_norm=norms, treatment=treatment)


def unsampled_words(found: Unsampled, total: int) -> str:
    """Return one sentence on a run's clients that no round sampled, for a reader.

    >>> print(unsampled_words(Unsampled(clients=(3,), batch_norm=(), treatment="left_out"), 10))
    1 of 10 clients (3) were sampled in no round and count in no accuracy
    """
    numbers = ", ".join(map(str, found.clients[:8])) + (", ..." if len(found.clients) > 8 else "")
    who = f"{len(found.clients)} of {total} clients ({numbers}) were sampled in no round and count in"
    if found.treatment == "left_out":
        return f"{who} no accuracy"
    trained = "received or first weights, never trained"
    if not found.batch_norm:
        return f"{who} every accuracy with {trained}"
    norms = (
        "statistics of their own images" if found.treatment == "own_statistics" else "batch-norm statistics of no image"
    )
    return f"{who} every accuracy with {trained}, and {len(found.batch_norm)} of them with {norms}"


def warning(found: Unsampled, total: int) -> str:
    """Return the line that training warns with, which says what else can be done."""
    remedies = [argument("unsampled", "left_out")]
    if found.batch_norm:
        remedies.append(argument("unsampled", "own_statistics"))
    told = unsampled_words(found, total).replace(" were sampled", " are sampled")
    return f"{told}; see {' or '.join(remedies)}"
