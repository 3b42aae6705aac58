"""A tiny generator, as a user of the plug-in has one: a network, functions that make one, and what is none."""

import torch
from torch import nn

from fedpriv.util.seeds import global_seed

CODE, SHAPE = 4, (1, 8, 8)


def tiny():
    """Return a network from codes of four numbers to images of 8 x 8."""
    with global_seed(3):
        network = nn.Sequential(nn.Linear(CODE, 16), nn.Tanh(), nn.Linear(16, 64), nn.Sigmoid(), nn.Unflatten(1, SHAPE))
    with torch.no_grad():
        for value in network[2].parameters():
            value.mul_(4)
    return network


NETWORK = tiny()
NUMBER = 5


def broken():
    raise RuntimeError("no weights\nhere")
