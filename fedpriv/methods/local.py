"""Local training without any exchange: the baseline that federation must beat."""

from __future__ import annotations

import torch

from fedpriv.federation.local_training import classification_loss, train
from fedpriv.federation.method import ClientSetup, Method, NoOptions, ServerSetup, Uploads
from fedpriv.federation.states import State, put, take
from fedpriv.methods.shared import weights
from fedpriv.wire.payloads import Message


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train by cross-entropy; upload nothing."""
    put(setup.model, state, "model")
    train(setup.model, setup.train, setup.training, rng, classification_loss(setup.model), setup.trace)
    return take(setup.model, "model"), ()


def server_step(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> tuple[State, Message]:
    """Do nothing."""
    return state, ()


METHOD = Method(
    name="local",
    source="no federation",
    options=NoOptions,
    uploads=(),
    broadcasts=(),
    start=weights.start_empty,
    init=weights.init,
    apply_broadcast=weights.receive_nothing,
    client_step=client_step,
    server_step=server_step,
    predict=weights.predict,
)
