"""FedGH: upload class prototypes; the server trains a global head on them.

Source: Yi, Wang, Liu, Shi, Yu: FedGH: Heterogeneous Federated Learning with Generalized Global Header, ACM MM 2023.
All but the upload is as in :mod:`fedpriv.methods.fedallrep`. Prototypes are exact class means taken in evaluation mode after
training (the official code averages per-batch means in training mode); each is one training row for the head.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fedpriv.federation.method import ClientSetup
from fedpriv.federation.states import State
from fedpriv.methods import fedallrep
from fedpriv.methods.shared import prototypes, weights
from fedpriv.wire.payloads import Classifier, Message


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train by cross-entropy; upload the mean representation of every class the client holds."""
    trained = weights.train_locally(Classifier, setup, state, broadcast, rng)
    return trained, (prototypes.of_client(setup),)


METHOD = replace(
    fedallrep.METHOD, name="fedgh", source="Yi et al., ACM MM 2023", uploads=("prototype",), client_step=client_step
)
