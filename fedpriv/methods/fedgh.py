"""FedGH: class prototypes are uploaded, and train the head.

Yi, Wang, Liu, Shi, Yu: FedGH: Heterogeneous Federated Learning with Generalized Global Header, ACM MM 2023. They are
exact class means in evaluation mode after training (the official code averages per-batch means in training mode);
each is one training row for the head.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fedpriv.federation.method import ClientSetup
from fedpriv.federation.states import State
from fedpriv.methods.fedallrep import METHOD as FEDALLREP
from fedpriv.methods.prototypes import of_client
from fedpriv.methods.weights import train_locally
from fedpriv.uploads.payloads import Classifier, Message


def send_means(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train by cross-entropy; upload the mean representation of every class the client holds."""
    return train_locally(Classifier, setup, state, broadcast, rng), (of_client(setup),)


METHOD = replace(
    FEDALLREP,
    name="fedgh",
    about="FedGH: upload class prototypes; the server trains a global head on them.",
    source="Yi et al., ACM MM 2023",
    uploads=("prototype",),
    client_step=send_means,
)
