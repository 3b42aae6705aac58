"""FedGH: upload class prototypes; the server trains a global head on them.

Source: Yi, Wang, Liu, Shi, Yu: FedGH: Heterogeneous Federated Learning with Generalized Global Header, ACM MM 2023.
All but the upload is as in :mod:`fedpriv.methods.fedallrep`. Prototypes are exact class means taken in evaluation mode after
training (the official code averages per-batch means of a network in training mode). Each prototype is one training row for
the head.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fedpriv.federation.local_training import class_means, represent
from fedpriv.federation.method import ClientSetup, State
from fedpriv.methods import fedallrep
from fedpriv.methods.shared import global_head
from fedpriv.wire.payloads import Message, Prototypes


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train by cross-entropy; upload the mean representation of every class the client holds."""
    trained = global_head.train_locally(setup, state, broadcast, rng)
    means, classes, _ = class_means(represent(setup.model, setup.train.images), setup.train.labels)
    return trained, (Prototypes(means, classes),)


METHOD = replace(
    fedallrep.METHOD, name="fedgh", source="Yi et al., ACM MM 2023", uploads=("prototype",), client_step=client_step
)
