"""FedRE, FedGH and FedAllRep: the server trains a head on uploaded rows, and it replaces every client's head.

Clients train by cross-entropy. The head starts as a copy of the clients' common initial head.

- ``fedre``, one entangled representation and its label encoding a client: Yao et al.: FedRE: A Representation Entanglement
  Framework for Model-Heterogeneous Federated Learning, algorithm 1 and equations 3, 7-12. The server's loss is the plain
  sum over the uploads of a batch (equation 3), which is cross-entropy with soft targets, as each label encoding sums to
  one. The authors' code has several versions: in an older one (commit b9b1e9c) ``flcore/servers/serverre.py`` on HtFLlib
  leaves the broadcast out, and that on PFLlib sends the head before clients train; neither scores any model. Here the head
  is broadcast every round, as the paper says, and accuracy is taken both after training and after the broadcast.
- ``fedallrep``, every representation with its label: the baseline of FedRE (table 4).
- ``fedgh``, class prototypes, each one training row: Yi, Wang, Liu, Shi, Yu: FedGH: Heterogeneous Federated Learning with
  Generalized Global Header, ACM MM 2023. They are exact class means in evaluation mode after training (the official code
  averages per-batch means in training mode).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, one_hot

from fedpriv.algebra.entanglement import Distribution, Mechanism, Normalisation, entangle, sample_weights
from fedpriv.federation.local_training import represent
from fedpriv.federation.method import ClientSetup, ServerSetup, Uploads
from fedpriv.federation.states import Outcome, State, inner
from fedpriv.methods import weights
from fedpriv.methods.weights import ServerTraining, descend, prototypes, train_locally
from fedpriv.uploads.payloads import (
    Classifier,
    Entangled,
    Message,
    Prototypes,
    Representations,
    find_payload,
    get_payload,
)

WEIGHTS = "entanglement.weights"
"""Where a client of FedRE keeps fixed weights of its training images ``(n,)`` in its state."""


@dataclass(frozen=True)
class HeadOptions:
    """Hyperparameters of FedAllRep and FedGH: how the ``server`` trains the head."""

    server: ServerTraining = field(default_factory=ServerTraining)


@dataclass(frozen=True)
class FedReOptions:
    """Hyperparameters of FedRE.

    Attributes:
        mechanism: which of the six entanglement mechanisms.
        distribution: of the random weights (table 8 of the paper).
        normalisation: how draws become weights that sum to one.
        sampling: ``resampled`` draws new weights every round, ``fixed`` draws them once per client.
        server: how the server trains the head.
    """

    mechanism: Mechanism = "RAP"
    distribution: Distribution = "uniform"
    normalisation: Normalisation = "absolute"
    sampling: Literal["resampled", "fixed"] = "resampled"
    server: ServerTraining = field(default_factory=ServerTraining)


def send_rows(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> Outcome:
    """Train by cross-entropy; upload the representation and label of every training image."""
    trained = train_locally(Classifier, setup, state, broadcast, rng)
    return trained, (Representations(represent(setup.model, setup.train.images), setup.train.labels),)


def send_means(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> Outcome:
    """Train by cross-entropy; upload the mean representation of every class the client holds."""
    return train_locally(Classifier, setup, state, broadcast, rng), (prototypes(setup),)


def send_mixture(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> Outcome:
    """Train by cross-entropy; upload the entangled representation of the whole training set."""
    options: FedReOptions = setup.options
    trained = train_locally(Classifier, setup, state, broadcast, rng)
    features, labels, shares = represent(setup.model, setup.train.images), setup.train.labels, state.get(WEIGHTS)
    if shares is None:
        shares = sample_weights(labels, options.mechanism, rng, options.distribution, options.normalisation)
    if options.sampling == "fixed":
        trained[WEIGHTS] = shares
    setup.trace.mixture(shares)
    return trained, (Entangled(*entangle(features, labels, shares, setup.n_classes)),)


def uploaded_rows(uploads: Uploads, n_classes: int) -> tuple[Tensor, Tensor]:
    """Return a round's rows ``(n, d)`` with classes ``(n,)``, or soft labels ``(n, C)`` where any upload is entangled."""
    rows: list[tuple[Tensor, Tensor]] = []
    for _, upload in uploads:
        mixed, means = find_payload(upload, Entangled), find_payload(upload, Prototypes)
        if mixed is not None:
            rows.append((mixed.feature[None], mixed.label_encoding[None]))
        elif means is not None:
            rows.append((means.features, means.classes))
        else:
            single = get_payload(upload, Representations)
            rows.append((single.features, single.labels))
    targets = [target for _, target in rows]
    if any(target.dim() == 2 for target in targets):
        targets = [target if target.dim() == 2 else one_hot(target, n_classes).float() for target in targets]
    return torch.cat([features for features, _ in rows]), torch.cat(targets)


def train_head(
    reduction: Literal["mean", "sum"], setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator
) -> Outcome:
    """Train the head on a round's rows, or on what a defense made of them; ``reduction`` is of the loss of a batch."""
    features, targets = uploaded_rows(uploads, setup.blueprint.n_classes)

    def loss(head: State, index: Tensor) -> Tensor:
        logits = linear(features[index], head["global.weight"], head["global.bias"])
        return cross_entropy(logits, targets[index], reduction=reduction)

    trained = descend(state, features, loss, setup.options.server, rng)
    return trained, (Classifier(inner(trained, "global")),)


FEDALLREP = replace(
    weights.LOCAL,
    name="fedallrep",
    about="FedAllRep: upload every representation with its label; the server trains the head on all of them.",
    source="baseline of FedRE (Yao et al.)",
    options=HeadOptions,
    uploads=("representation",),
    broadcasts=("classifier",),
    start=partial(weights.start, Classifier),
    apply_broadcast=partial(weights.receive, Classifier),
    client_step=send_rows,
    server_step=partial(train_head, "mean"),
    accepted_substitutes=("entangled",),
)
FEDGH = replace(
    FEDALLREP,
    name="fedgh",
    about="FedGH: upload class prototypes; the server trains a global head on them.",
    source="Yi et al., ACM MM 2023",
    uploads=("prototype",),
    client_step=send_means,
)
METHOD = replace(
    FEDALLREP,
    name="fedre",
    about="FedRE: upload one entangled representation and its entangled label encoding.",
    source="Yao et al., FedRE",
    options=FedReOptions,
    uploads=("entangled",),
    client_step=send_mixture,
    server_step=partial(train_head, "sum"),
    accepted_substitutes=(),
)
