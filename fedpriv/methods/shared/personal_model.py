"""Pieces of a method in which every client keeps a model of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from fedpriv.federation.local_training import classify_by
from fedpriv.federation.method import ClientSetup, ServerSetup, State, Uploads
from fedpriv.federation.states import take
from fedpriv.models.build import build_model
from fedpriv.wire.payloads import Message


def init(setup: ClientSetup, rng: torch.Generator) -> State:
    """Return the initial weights of the client's model under the prefix ``model``."""
    return take(build_model(setup.blueprint, draw_seed(rng)), "model")


def draw_seed(rng: torch.Generator) -> int:
    """Draw a seed for building a model."""
    return int(torch.randint(2**62, (1,), generator=rng))


def side_generator(rng: torch.Generator) -> torch.Generator:
    """Return a generator that depends on ``rng`` but leaves it where it is, for work beside the local training."""
    return torch.Generator().manual_seed(draw_seed(rng.clone_state()))


def receive_nothing(setup: ClientSetup, state: State, broadcast: Message) -> State:
    """Ignore the broadcast."""
    return state


def start_empty(setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
    """Start a server that holds and sends nothing."""
    return {}, ()


def idle_server(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> tuple[State, Message]:
    """Do nothing on the server."""
    return state, ()


def predict(setup: ClientSetup, state: State, images: Tensor) -> Tensor:
    """Return the logits ``(n, C)`` of the client's own model."""
    return classify_by(setup, state, images)
