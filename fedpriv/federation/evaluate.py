"""Evaluation: every client's accuracy on test and on validation images.

*Validation* images, which nobody trains on and no test image is among, are what hyperparameters are chosen by. FedHeNN tunes
on "a global validation dataset which is not shared with any of the clients". It leaves unsaid how large that is, and on
which of its images a personalised model is judged: here on those of the classes that the client trains on, as its test
images are. A client of whose classes there is none does not count.

A client that no round has *sampled* yet has trained on nothing. After the broadcast it is scored with received weights where
the method sends any, else with its first ones; and where its model has batch normalisation, with running statistics that no
image went into (mean 0, variance 1), under which a trained network answers next to nothing right. Published accuracies over
all clients under partial participation may have such clients in them, and do not say so.

``counted`` scores them as they are. ``left_out`` leaves them out of the accuracy until a round samples them.
``own_statistics`` scores them with statistics of their own training images under the very weights that are scored, in
all other respects as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedpriv.datasets.types import Samples
from fedpriv.federation.local_training import BATCH_NORMS, EVALUATION_BATCH, has_batch_norm
from fedpriv.federation.method import ClientSetup, Method, ServerSetup, State
from fedpriv.federation.prepared import places
from fedpriv.federation.run_directory import RunConfig
from fedpriv.federation.states import put, take
from fedpriv.federation.summary import Counts, RoundAccuracy, Treatment, Unsampled
from fedpriv.util.arguments import argument
from fedpriv.wire.payloads import Message

_Pairs = dict[str, Sequence[int]]
"""``[correct, total]`` of one client by the way to predict: the end of a key of ``Counts``."""


def accuracy(clients: Sequence[Sequence[int]], left_out: Collection[int] = ()) -> RoundAccuracy:
    """Return the pooled accuracy and the mean over clients of ``[correct, total]`` pairs, some clients left out."""
    counts = [pair for client, pair in enumerate(clients) if client not in left_out]
    return RoundAccuracy(
        pooled=sum(right for right, _ in counts) / sum(total for _, total in counts),
        mean_over_clients=sum(right / total for right, total in counts) / len(counts),
    )


def is_evaluated(config: RunConfig, round_: int) -> bool:
    """True for a round in which every client's accuracy is taken; in others nobody's is."""
    return round_ % config.evaluate_every == 0 or round_ == config.rounds or round_ in config.keep


def evaluate(
    method: Method,
    clients: Sequence[tuple[ClientSetup, Samples]],
    states: Sequence[State],
    broadcast: Message,
    known: Counts,
    changed: set[int],
    server: tuple[ServerSetup, State, State] | None = None,
    adapted: Collection[int] = (),
) -> Counts:
    """Return ``[correct, total]`` of every client by when it was counted: after training, and after the next broadcast.

    A client whose state did not change keeps its count after training; one for which the broadcast changes nothing
    is not evaluated twice, and images are represented once while its extractor stands. Of the ``server``, given by its
    setup and its states before and after its step, the model is counted on every client's test images, where the method
    says that it has one. The clients in ``adapted`` are scored with batch-norm statistics of their own training images.
    """
    predictors = {"": method.predict} | {
        f"_{name}": predict
        for name, predict in {**method.extra_predictors, **method.further_predictors(clients[0][0].options)}.items()
    }
    of_model = {f"_{name}" for name in method.extra_predictors}
    found: dict[str, list[Sequence[int]]] = {
        f"{when}{suffix}": [] for suffix in predictors for when in ("after_training", "after_broadcast")
    }
    for (own, test), state in zip(clients, states, strict=True):
        setup, k = replace(own, representation_cache={}), own.client

        def counted(state: State, ways: Collection[str], setup: ClientSetup = setup, test: Samples = test) -> _Pairs:
            scored = with_own_statistics(setup, state) if ways and setup.client in adapted else state
            return {way: _correct(predictors[way](setup, scored, test.images), test.labels) for way in ways}

        kept: _Pairs = {way: known[f"after_training{way}"][k] for way in predictors if k not in changed and known}
        before = kept | counted(state, [way for way in predictors if way not in kept])
        updated = method.apply_broadcast(setup, state, broadcast)
        model_stands = all(updated[name] is state[name] for name in updated if name.startswith("model."))
        stands = predictors if updated is state else of_model if model_stands else ()
        after = before | counted(updated, [way for way in predictors if way not in stands])
        for way in predictors:
            found[f"after_training{way}"].append(before[way])
            found[f"after_broadcast{way}"].append(after[way])
    return found if server is None else found | _of_server(method, server, [test for _, test in clients], known)


def _of_server(
    method: Method, server: tuple[ServerSetup, State, State], tests: Sequence[Samples], known: Counts
) -> dict[str, list[Sequence[int]]]:
    """Return the server's own counts on every client's test images; ``known`` are those of before its step, if any."""
    (setup, *states), predict = server, method.server_predict
    if predict is None:
        return {}
    trained, received = "after_training_server_model", "after_broadcast_server_model"

    def counts(state: State) -> list[Sequence[int]]:
        return [_correct(predict(setup, state, test.images), test.labels) for test in tests]

    return {trained: list(known[received]) if received in known else counts(states[0]), received: counts(states[1])}


def _correct(scores: Tensor, labels: Tensor) -> list[int]:
    return [int((scores.argmax(1) == labels).sum()), len(labels)]


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


def unsampled_warning(found: Unsampled, total: int) -> str:
    """Return the line that training warns with, which says what else can be done."""
    remedies = [argument("unsampled", "left_out")]
    if found.batch_norm:
        remedies.append(argument("unsampled", "own_statistics"))
    told = unsampled_words(found, total).replace(" were sampled", " are sampled")
    return f"{told}; see {' or '.join(remedies)}"
