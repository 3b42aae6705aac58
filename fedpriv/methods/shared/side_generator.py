"""Randomness for work that a client does before it trains."""

from __future__ import annotations

import torch

from fedpriv.methods.shared.personal_model import draw_seed


def side_generator(rng: torch.Generator) -> torch.Generator:
    """Return a generator that depends on ``rng`` but leaves it where it is.

    Whoever holds a client step's generator can tell the images of each step, because training draws its batches first.
    Work that comes before training draws from here, so that this stays true.
    """
    return torch.Generator().manual_seed(draw_seed(rng.clone_state()))
