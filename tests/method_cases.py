"""A federation of a few clients with random images for tests of methods, and comparisons of what they return."""

import torch
from compare import expect_close

from fedpriv.datasets.types import Samples
from fedpriv.federation.method import ClientSetup, LocalTraining, Method, ServerSetup
from fedpriv.methods import METHODS
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint
from fedpriv.util.config import parse
from fedpriv.util.seeds import generator

CLASSES, WIDTH, SHAPE = 4, 16, (1, 8, 8)
FAMILY = ("small-cnn", "small-mlp")
SIZES = (11, 7, 5)


class World:
    """A federation of three clients with random images, small enough to run in milliseconds."""

    def __init__(self, name: str, options: dict | None = None, **training) -> None:
        self.method: Method = METHODS.load(name)
        self.options = parse(self.method.options, options or {}, name)
        models = FAMILY[:1] if self.method.homogeneous else FAMILY
        scratch: dict[Blueprint, torch.nn.Module] = {}
        self.scratch = lambda blueprint: scratch.setdefault(blueprint, build_model(blueprint, 0))
        rng = generator(0, "images")
        self.setups = []
        drawn = torch.rand(12, *SHAPE, generator=generator(0, "public")), torch.arange(12) % CLASSES
        public, classes = drawn if self.method.needs_public else (None, None)
        for k, size in enumerate(SIZES):
            blueprint = Blueprint(models[k % len(models)], SHAPE, CLASSES, WIDTH)
            labels = torch.randint(CLASSES, (size,), generator=rng)
            train = Samples(torch.rand(size, *SHAPE, generator=rng), labels)
            self.setups.append(
                ClientSetup(
                    *(
                        k,
                        blueprint,
                        self.scratch(blueprint),
                        train,
                        LocalTraining(**training),
                        self.options,
                        self.scratch,
                    ),
                    public=public,
                    public_labels=classes if self.method.needs_public_labels else None,
                )
            )
        self.server = ServerSetup(
            n_clients=3,
            blueprint=self.setups[0].blueprint,
            options=self.options,
            scratch=self.scratch,
            device=torch.device("cpu"),
            public=public,
            rounds=5,
            blueprints=tuple(setup.blueprint for setup in self.setups),
        )

    def rng(self, k: int):
        return generator(0, "init")

    def start(self):
        state, broadcast = self.method.start(self.server, self.rng(0))
        return state, broadcast, [self.method.init(setup, self.rng(k)) for k, setup in enumerate(self.setups)]

    def round(self, number, server, broadcast, states, chosen=(0, 1, 2)):
        uploads, states = [], list(states)
        for k in chosen:
            states[k], upload = self.method.client_step(
                self.setups[k], states[k], broadcast, generator(0, "step", number, k)
            )
            uploads.append((k, upload))
        server, broadcast = self.method.server_step(self.server, server, uploads, generator(0, "server", number))
        return server, broadcast, states, uploads


def expect_step(model, state, loss, rate, atol=1e-5):
    """The weights of a state are those of a model after one step down a loss."""
    slopes = torch.autograd.grad(loss, list(model.parameters()))
    for (name, weight), slope in zip(model.named_parameters(), slopes, strict=True):
        expect_close(state[f"model.{name}"], weight - rate * slope, atol=atol, what=name)


def copies(state):
    return {name: value.clone() for name, value in state.items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def same_message(one, other):
    return len(one) == len(other) and all(
        type(a) is type(b) and same(a.tensors(), b.tensors()) for a, b in zip(one, other, strict=True)
    )


SMALL = {"noise": 5, "hidden": 7, "learning_rate": 0.01, "steps": 5}
"""A generator for FedGen that trains in no time."""


def played(world, rounds=2):
    """Run a few rounds; return the server's state, the last broadcast, states and the last uploads."""
    server, broadcast, states = world.start()
    uploads = []
    for number in range(1, rounds + 1):
        server, broadcast, states, uploads = world.round(number, server, broadcast, states)
    return server, broadcast, states, uploads


def trained(name, options=None, rounds=3, **training):
    """Run a few rounds; return the world, the server's state, the last broadcast, states and the last uploads."""
    world = World(name, options, **({"batch_size": 4, "learning_rate": 0.1} | training))
    return world, *played(world, rounds)
