"""FedAllRep: every representation is uploaded with its label; the baseline of FedRE (table 4)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from fedpriv.federation.local_training import represent
from fedpriv.federation.method import ClientSetup
from fedpriv.federation.states import State
from fedpriv.methods.local import METHOD as LOCAL
from fedpriv.methods.server_head import HeadOptions, train_head
from fedpriv.methods.weights import receive, start, train_locally
from fedpriv.uploads.payloads import Classifier, Message, Representations


def send_rows(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train by cross-entropy; upload the representation and label of every training image."""
    trained = train_locally(Classifier, setup, state, broadcast, rng)
    return trained, (Representations(represent(setup.model, setup.train.images), setup.train.labels),)


METHOD = replace(
    LOCAL,
    name="fedallrep",
    about="FedAllRep: upload every representation with its label; the server trains the head on all of them.",
    source="baseline of FedRE (Yao et al.)",
    options=HeadOptions,
    uploads=("representation",),
    broadcasts=("classifier",),
    start=partial(start, Classifier),
    apply_broadcast=partial(receive, Classifier),
    client_step=send_rows,
    server_step=partial(train_head, "mean"),
    accepted_substitutes=("entangled",),
)
