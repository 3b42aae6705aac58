"""Evaluation: every client's accuracy on its test images, and the clients that no round has sampled.

A client that no round has sampled has trained on nothing: it is scored with received or first weights, and where its model
has batch normalisation with the running statistics of no image. ``left_out`` leaves such clients out of accuracies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from torch import Tensor

from fedpriv.datasets.types import Samples
from fedpriv.federation.local_training import has_batch_norm
from fedpriv.federation.method import ClientSetup, Method, ServerSetup
from fedpriv.federation.run_directory import RunConfig
from fedpriv.federation.states import State
from fedpriv.federation.summary import Counts, RoundAccuracy, Treatment, Unsampled
from fedpriv.wire.payloads import Message


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
    states: Iterable[State],
    broadcast: Message,
    known: Counts,
    changed: Collection[int],
    server: tuple[ServerSetup, State, State] | None = None,
) -> Counts:
    """Return ``[correct, total]`` of every client after training, and after the next broadcast.

    A count of ``known`` after training stands where the client has not ``changed``; nothing is evaluated twice where the
    broadcast changes nothing. ``server`` is its setup and its states before and after its step.
    """
    predictors = {"": method.predict} | {f"_{name}": predict for name, predict in method.extra_predictors.items()}
    counts: dict[str, list[Sequence[int]]] = {
        f"{when}{way}": [] for way in predictors for when in ("after_training", "after_broadcast")
    }
    for (current, test), state in zip(clients, states, strict=True):
        setup, k = replace(current, representation_cache={}), current.client
        updated = method.apply_broadcast(setup, state, broadcast)
        model_unchanged = all(updated[name] is state[name] for name in updated if name.startswith("model."))
        before = {
            way: known[f"after_training{way}"][k]
            if known and k not in changed
            else _correct(predict(setup, state, test.images), test.labels)
            for way, predict in predictors.items()
        }
        for way, predict in predictors.items():
            same = updated is state or (way and model_unchanged)
            after = before[way] if same else _correct(predict(setup, updated, test.images), test.labels)
            counts[f"after_training{way}"].append(before[way])
            counts[f"after_broadcast{way}"].append(after)
    if server is None or method.server_predict is None:
        return counts
    setup_, *server_states = server
    trained, received = "after_training_server_model", "after_broadcast_server_model"
    for name, state in zip((trained, received), server_states, strict=True):
        if name == trained and received in known:
            counts[name] = list(known[received])
        else:
            scores = [method.server_predict(setup_, state, test.images) for _, test in clients]
            counts[name] = [_correct(score, test.labels) for score, (_, test) in zip(scores, clients, strict=True)]
    return counts


def _correct(scores: Tensor, labels: Tensor) -> list[int]:
    return [int((scores.argmax(1) == labels).sum()), len(labels)]


def unsampled_facts(clients: Sequence[int], setups: Sequence[ClientSetup], treatment: Treatment) -> Unsampled | None:
    """Return the record of the clients that no round of a run sampled; None where there are none."""
    norms = tuple(k for k in clients if has_batch_norm(setups[k].model))
    return Unsampled(clients=tuple(clients), batch_norm=norms, treatment=treatment) if clients else None


def unsampled_words(unsampled: Unsampled, total: int) -> str:
    """Return one sentence on a run's clients that no round sampled.

    >>> print(unsampled_words(Unsampled(clients=(3,), batch_norm=(), treatment="left_out"), 10))
    1 of 10 clients (3) were sampled in no round and count in no accuracy
    """
    numbers = ", ".join(map(str, unsampled.clients[:8])) + (", ..." if len(unsampled.clients) > 8 else "")
    who = f"{len(unsampled.clients)} of {total} clients ({numbers}) were sampled in no round and count in"
    if unsampled.treatment == "left_out":
        return f"{who} no accuracy"
    norms = f", and {len(unsampled.batch_norm)} of them with batch-norm statistics of no image"
    return f"{who} every accuracy with received or first weights, never trained" + norms * bool(unsampled.batch_norm)


def unsampled_warning(unsampled: Unsampled, total: int) -> str:
    """Return the line that training warns with."""
    details = unsampled_words(unsampled, total).replace(" were sampled", " are sampled")
    return f"{details}; see unsampled='left_out'"
