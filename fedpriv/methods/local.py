"""Local training without any exchange: the baseline that federation must beat."""

from __future__ import annotations

import torch

from fedpriv.federation.local_training import classification_loss, classify_by, train
from fedpriv.federation.method import ClientSetup, Method, NoOptions
from fedpriv.federation.states import Outcome, State, put, take
from fedpriv.methods.weights import init
from fedpriv.uploads.payloads import Message


def train_alone(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> Outcome:
    """Train by cross-entropy; upload nothing."""
    put(setup.model, state, "model")
    train(setup.model, setup.train, setup.training, rng, classification_loss(setup.model), setup.trace)
    return take(setup.model, "model"), ()


METHOD = Method(
    name="local",
    about="Local training without any exchange: the baseline that federation must beat.",
    source="no federation",
    options=NoOptions,
    uploads=(),
    broadcasts=(),
    start=lambda setup, rng: ({}, ()),
    init=init,
    apply_broadcast=lambda setup, state, broadcast: state,
    client_step=train_alone,
    server_step=lambda setup, state, uploads, rng: (state, ()),
    predict=classify_by,
)
"""A model for each client that predicts by itself: what other methods change."""
