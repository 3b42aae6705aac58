"""A prior learned on the attacker's own images beside what does without: vectors, means of several, gradients of CIFAR-10.

OMP_NUM_THREADS=1 python benchmarks/learned_prior.py --data DIR/cifar10-jpeg --part means --count 2 --draw 70 --images 4
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from cifar import Clock, load, psnr, trained_cnn
from one_step import problem_of
from torch import Tensor

from fedpriv.attacks.contract import Attack, Trained
from fedpriv.attacks.gradients.inverting import GradientDip, InvertingGradients
from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.inversion.decoder import DecoderInversion
from fedpriv.attacks.inversion.learned import LearnedInversion
from fedpriv.attacks.inversion.vector import DipInversion, JointInversion, PixelInversion
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.eval.intervals import clustered
from fedpriv.eval.metrics import assign, squared_errors
from fedpriv.models.split import SplitModel
from fedpriv.uploads.payloads import Prototypes, Representations

CARD = ThreatModel(attacker_data="same_domain")


@dataclass(frozen=True)
class World:
    """A client's 2,000 training images, its trained network, and 1,000 images of the attacker's own."""

    images: Tensor
    labels: Tensor
    own: Tensor
    own_labels: Tensor

    @property
    def mean(self) -> Tensor:
        """The mean of the attacker's images ``(1, c, h, w)``."""
        return self.own.mean(0, keepdim=True)

    def drawn(self, seed: int, number: int) -> Tensor:
        """Return places of client's images."""
        return torch.randperm(len(self.images), generator=torch.Generator().manual_seed(seed))[:number]

    def knowledge(self, model: SplitModel) -> Knowledge:
        """Return what an attacker of representations is granted."""
        return Knowledge(
            CARD,
            (3, 32, 32),
            10,
            extractors={0: model.represent},
            public_images=self.own,
            public_labels=self.own_labels,
        )


def assigned(guesses: Tensor, members: Tensor) -> float:
    """Return the mean PSNR over members ``(m, c, h, w)``, each with the guess assigned to it."""
    return psnr(guesses[assign(squared_errors(guesses, members))], members).mean().item()


def measure(
    attacks: Sequence[Attack], seen: tuple[Observation, ...], known: Knowledge, kind: str, truth: Sequence[Tensor]
) -> list[Tensor]:
    """Print how near each attack comes to the images of each target, and what it costs, its training included."""
    each = []
    for attack in attacks:
        clock = Clock()
        found = attack(seen, known, list_targets(seen, kind), seed=0, trained=Trained())
        scores = torch.tensor([assigned(shown, own) for shown, own in zip(found.images.detach(), truth, strict=True)])
        spread = f"median {scores.median():.1f}, {scores.min():.1f} to {scores.max():.1f} dB"
        print(
            f"{attack.name}: mean {scores.mean():.1f}, {spread}; {clock.seconds() / len(truth):.1f} CPU s a target",
            flush=True,
        )
        each.append(scores)
    return each


def main() -> None:
    """Train, attack, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train/, one folder a class")
    parser.add_argument("--part", choices=("single", "means", "gradients"), default="single")
    parser.add_argument("--draw", type=int, default=1, help="seed of what is attacked")
    parser.add_argument("--images", type=int, default=8, help="images attacked, or means")
    parser.add_argument("--count", type=int, default=2, help="of means: images in each")
    parser.add_argument("--batch-size", type=int, default=4, help="of gradients")
    parser.add_argument("--net", default="cnn4", help="of gradients, untrained")
    parser.add_argument("--iterations", type=int, default=200, help="of gradients: evaluations a target")
    parser.add_argument("--plain", type=int, help="of gradients: evaluations of what has no trained prior; as many")
    options = parser.parse_args()
    torch.set_num_threads(1)
    world = World(*load(options.data / "train", 200), *load(options.data / "train", 100, skip=200))
    if options.part == "gradients":
        _gradients(world, options)
        return
    model = trained_cnn(world.images, world.labels, 10, 0)
    if options.part == "single":
        _single(world, model, options)
    else:
        _means(world, model, options)


def _single(world: World, model: SplitModel, options: argparse.Namespace) -> None:
    places = world.drawn(options.draw, options.images)
    truth = world.images[places]
    seen = (Observation(0, 0, (Representations(model.represent(truth), world.labels[places]),), ()),)
    print(f"mean image {psnr(world.mean.expand_as(truth), truth).mean():.1f} dB over {len(truth)} images")
    attacks = DecoderInversion(), LearnedInversion(), PixelInversion(), DipInversion()
    measure(attacks, seen, world.knowledge(model), "representation", truth.split(1))


def _means(world: World, model: SplitModel, options: argparse.Namespace) -> None:
    draw, groups, count = torch.Generator().manual_seed(options.draw + options.count), [], options.count
    for place in range(options.images):
        members = (world.labels == place % 10).nonzero().flatten()
        groups.append(members[torch.randperm(len(members), generator=draw)[:count]])
    classes = torch.stack([world.labels[group[0]] for group in groups])
    vectors = torch.stack([model.represent(world.images[group]).mean(0) for group in groups])
    seen = (Observation(0, 0, (Prototypes(vectors, classes, torch.full((len(groups),), count)),), ()),)
    truth = [world.images[group] for group in groups]
    guesses = {
        "mean image of the attacker's": lambda label: world.mean,
        "of the class": lambda label: world.own[world.own_labels == label].mean(0, keepdim=True),
        "images of the class, the nearest assigned": lambda label: world.own[world.own_labels == label][:count],
    }
    for name, guess in guesses.items():
        scores = [
            assigned(guess(label).repeat(count, 1, 1, 1)[:count], own)
            for label, own in zip(classes, truth, strict=True)
        ]
        print(f"{name}: {sum(scores) / len(scores):.1f} dB")
    told = [assigned(own.mean(0, keepdim=True).repeat(count, 1, 1, 1), own) for own in truth]
    print(f"their true mean image, which no guess has: {sum(told) / len(told):.1f} dB")
    attacks = LearnedInversion(), JointInversion(most=count, iterations=900)
    measure(attacks, seen, world.knowledge(model), "prototype", truth)


def _gradients(world: World, options: argparse.Namespace) -> None:
    places, size = world.drawn(options.draw, options.images), options.batch_size
    own = world.images[places], world.labels[places]
    problem = problem_of(options.net, *own, 10, options.draw, batch_size=size, steps=1)
    card = replace(problem.knowledge.card, attacker_data="same_domain")
    known = replace(problem.knowledge, card=card, public_images=world.own, public_labels=world.own_labels)
    truth = problem.images
    print(f"mean image {psnr(world.mean.expand_as(truth), truth).mean():.1f} dB over {len(truth)} images")
    plain = options.plain or options.iterations
    learned = InvertingGradients(iterations=options.iterations, prior="learned")
    attacks = learned, InvertingGradients(iterations=plain, prior="variation")
    attacks = *attacks, GradientDip(iterations=plain)
    first, *others = measure(attacks, problem.observations, known, "model", truth.split(size))
    for name, own in zip(("total variation alone", "gradient-dip"), others, strict=True):
        apart = (first - own).tolist()
        low, high = clustered(apart, range(len(apart))).interval() or (-math.inf, math.inf)
        print(f"ahead of {name} by {sum(apart) / len(apart):.1f} [{low:.1f}, {high:.1f}] dB")


if __name__ == "__main__":
    main()
