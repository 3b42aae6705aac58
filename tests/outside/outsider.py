"""One member of each sort for fedpriv, as another package would bring it."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.nn.functional import normalize

from fedpriv.attacks.contract import Attack
from fedpriv.attacks.inputs.targets import OwnExtractors, target_feature
from fedpriv.attacks.observation import Cost, Needs, Reconstruction
from fedpriv.datasets import SourceOptions
from fedpriv.datasets.types import Dataset, Samples
from fedpriv.defenses.signals import require, transform
from fedpriv.federation.defense import Defense
from fedpriv.methods import fedproto
from fedpriv.uploads.kinds import SIGNALS, VECTORS
from fedpriv.uploads.payloads import Payload, Prototypes, get_payload, tensor
from fedpriv.util.seeds import generator


@dataclass(frozen=True)
class Directions(
    Payload, kind="direction", computed_from="class", space="representation", aggregation="none", once=False
):
    """Class prototypes, each of length one."""

    features: Tensor = tensor("c d", private=True)
    classes: Tensor = tensor("c", private=True, integer=True, says="classes")


def client_step(setup, state, broadcast, rng):
    """Train as in FedProto, and upload the directions of the prototypes."""
    state, upload = fedproto.METHOD.client_step(setup, state, broadcast, rng)
    means = get_payload(upload, Prototypes)
    return state, (Directions(normalize(means.features), means.classes),)


FED_DIRECTION = replace(
    fedproto.METHOD,
    name="fed-direction",
    source="for tests",
    uploads=("direction",),
    client_step=client_step,
)


@dataclass(frozen=True)
class RandomSearch(Attack):
    """Of so many images of noise, the one whose representation is nearest to the target's."""

    tries: Annotated[int, Ge(1)] = 20

    name = "random-search"
    summary = "the nearest of some images of noise"
    targets = VECTORS
    unit = "upload"
    budget = "tries"
    needs = Needs(extractor=("white_box", "query"))

    def run(self, problem):
        """Return the nearest image for each target."""
        images, distances, vectors = [], [], []
        for target in problem.targets:
            rng = generator(problem.seed, "random-search", target.round, target.client, target.index)
            tried = torch.rand(self.tries, *problem.knowledge.image_shape, generator=rng)
            vector, owners = target_feature(problem.observations, target), torch.full((self.tries,), target.client)
            found = OwnExtractors(problem.knowledge)(tried.to(problem.device), owners).cpu()
            apart = (found - vector).square().sum(1)
            images.append(tried[apart.argmin()])
            distances.append(apart.min())
            vectors.append(vector)
        number = len(problem.targets)
        return Reconstruction(
            targets=problem.targets,
            images=torch.stack(images)[:, None],
            objective=torch.stack(distances)[:, None],
            labels=torch.tensor([[target.label] for target in problem.targets]),
            cost=Cost(0.0, self.tries, number, str(problem.device)),
            converged=torch.zeros(number, dtype=torch.bool),
            features=torch.stack(vectors),
        )


@dataclass(frozen=True)
class Jitter(Defense):
    """Multiply every entry of a signal by a random number near one."""

    spread: Annotated[float, Gt(0)] = 0.1

    name: ClassVar[str] = "jitter"
    source: ClassVar[str] = "for tests"

    def check(self, plan):
        """Refuse methods that upload nothing computed from images."""
        require(self.name, plan, SIGNALS)

    def upload(self, message, context):
        """Return the message with its signals multiplied."""

        def jittered(_, value):
            return value * (1 + self.spread * torch.randn(value.shape, generator=context.rng).to(value))

        return transform(message, context.broadcast, jittered)


def load_stripes(options: SourceOptions) -> Dataset:
    """Return 4 classes of 60 images of 8x8 each: bright stripes at a place of the class, under noise."""
    rng = torch.Generator().manual_seed(7)
    labels = torch.arange(4).repeat(60)
    images = 0.3 * torch.rand(len(labels), 1, 8, 8, generator=rng)
    for place, label in enumerate(labels.tolist()):
        images[place, 0, :, 2 * label : 2 * label + 2] += 0.6
    return Dataset("stripes", Samples(images, labels), ("a", "b", "c", "d"))


def one_layer(image_shape):
    """Return an extractor of one linear layer, and the length of its vectors."""
    channels, height, width = image_shape
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 32), nn.ReLU()), 32
