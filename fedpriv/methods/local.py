"""Local training without any exchange: the baseline that federation must beat."""

from __future__ import annotations

import torch

from fedpriv.federation.local_training import classification_loss, train
from fedpriv.federation.method import ClientSetup, Method, NoOptions, State
from fedpriv.federation.states import put, take
from fedpriv.methods.shared import personal_model
from fedpriv.wire.payloads import Message


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train by cross-entropy; upload nothing."""
    put(setup.model, state, "model")
    train(setup.model, setup.train, setup.training, rng, classification_loss(setup.model), setup.trace)
    return take(setup.model, "model"), ()


METHOD = Method(
    name="local",
    source="no federation",
    options=NoOptions,
    uploads=(),
    broadcasts=(),
    start=personal_model.start_empty,
    init=personal_model.init,
    apply_broadcast=personal_model.receive_nothing,
    client_step=client_step,
    server_step=personal_model.idle_server,
    predict=personal_model.predict,
)
