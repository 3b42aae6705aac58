"""Searches in coordinates of images' spectrum beside pixels: gradients, and representations, on images drawn by a seed.

OMP_NUM_THREADS=1 python benchmarks/spectra.py --data DIR/cifar10-jpeg --part gradients --seed 801

Weights, steps and the general spectrum were chosen on images of the seeds 3 to 7 and 21. One spectrum is of images in
general, around grey; the other of 700 images of the attacker's own, around their class means.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from cifar import Clock, load, psnr, trained_cnn
from one_step import problem_of
from torch import Tensor

from fedpriv.attacks.contract import Attack
from fedpriv.attacks.gradients.dlg import DeepLeakage
from fedpriv.attacks.gradients.inverting import InvertingGradients
from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.inversion.decoder import DecoderInversion
from fedpriv.attacks.inversion.vector import DipInversion, PixelInversion
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.attacks.priors.spectral import centres_of
from fedpriv.datasets import SourceOptions, load_dataset
from fedpriv.datasets.types import as_unit
from fedpriv.eval.intervals import clustered
from fedpriv.eval.metrics import assign, squared_errors
from fedpriv.uploads.payloads import Representations


@dataclass(frozen=True)
class Case:
    """Targets of one size behind one network: images, network, images of a target, targets, evaluations of each."""

    images: str
    network: str
    size: int
    targets: int
    iterations: int


CASES = (
    Case("CIFAR-10", "lenet-sigmoid", 1, 12, 100),
    Case("CIFAR-10", "lenet-sigmoid", 4, 9, 100),
    Case("CIFAR-10", "lenet-sigmoid", 4, 9, 400),
    Case("CIFAR-10", "lenet-sigmoid", 16, 4, 125),
    Case("CIFAR-10", "cnn4", 1, 12, 100),
    Case("CIFAR-10", "cnn4", 4, 9, 100),
    Case("CIFAR-10", "cnn4", 4, 9, 400),
    Case("CIFAR-10", "cnn4", 16, 4, 100),
    Case("fashion", "lenet-sigmoid", 4, 9, 500),
    Case("fashion", "lenet-sigmoid", 16, 4, 125),
    Case("fashion", "small-cnn", 16, 4, 125),
    Case("fashion", "cnn4", 16, 4, 125),
)

NORMED = (
    Case("CIFAR-10", "resnet4", 1, 12, 100),
    Case("CIFAR-10", "resnet4", 1, 12, 400),
    Case("CIFAR-10", "resnet4", 4, 12, 100),
    Case("CIFAR-10", "resnet4", 4, 9, 400),
    Case("CIFAR-10", "resnet4", 8, 6, 100),
    Case("CIFAR-10", "resnet8", 4, 9, 100),
    Case("fashion", "resnet4", 4, 9, 100),
)
"""Behind batch norms."""

OWN = 700
"""Images of the attacker's own."""

Pool = tuple[Tensor, Tensor]


def drawn(pool: Pool, count: int, seed: int) -> tuple[Pool, Pool]:
    """Return targets, and images of the attacker's own, none of them a target."""
    places = torch.randperm(len(pool[0]), generator=torch.Generator().manual_seed(seed))
    return tuple((pool[0][own], pool[1][own].long()) for own in (places[:count], places[-OWN:]))  # type: ignore[return-value]


def apart(ours: Tensor, theirs: Tensor) -> str:
    """Return the mean of paired differences with its interval."""
    low, high = clustered((ours - theirs).tolist(), range(len(ours))).interval() or (-math.inf, math.inf)
    return f"{(ours - theirs).mean():+.1f} [{low:+.1f}, {high:+.1f}]"


def nearest(found: Tensor, truth: Tensor) -> Tensor:
    """Return the mean PSNR of images ``(n, c, h, w)``, each with the guess assigned to it."""
    return psnr(found[assign(squared_errors(found, truth))], truth).mean()


def gradients(pools: dict[str, Pool], seed: int, cases: tuple[Case, ...] = CASES) -> None:
    """Attack gradients in pixels, in a general spectrum, and in that of own images."""
    print(
        "| images | network | targets | evaluations | class means | pixels | general spectrum | own images' | ahead by |"
    )
    print("| --- | --- | --- | ---: | ---: | ---: | --- | --- | --- |")
    for case in cases:
        (images, labels), (own, own_labels) = drawn(pools[case.images], case.targets * case.size, seed + case.size)
        problem = problem_of(case.network, images, labels, 10, seed, batch_size=case.size, steps=1)
        blind, targets = problem.knowledge, list_targets(problem.observations, "model")
        card = replace(blind.card, attacker_data="same_domain")
        granting = replace(blind, card=card, public_images=own, public_labels=own_labels)

        def scores(attack: Attack, known: Knowledge, problem=problem, targets=targets, size=case.size) -> Tensor:  # type: ignore[no-untyped-def]
            found = attack(problem.observations, known, targets, seed=0).images.detach()
            pairs = zip(found, problem.images.split(size), strict=True)
            return torch.stack([nearest(guesses, truth) for guesses, truth in pairs])

        pixels = scores(InvertingGradients(iterations=case.iterations, prior="variation"), blind)
        general, learned = (scores(InvertingGradients(iterations=case.iterations), one) for one in (blind, granting))
        means = psnr(centres_of(own, own_labels, labels), images).mean()
        of = "single images" if case.size == 1 else f"batches of {case.size}"
        told = f"| {case.images} | `{case.network}` | {case.targets} {of} | {case.iterations} | {means:.1f} dB"
        ahead = f"{apart(general, pixels)} | {learned.mean():.1f} dB | {apart(learned, pixels)}"
        print(f"{told} | {pixels.mean():.1f} dB | {general.mean():.1f} dB, {ahead} |", flush=True)
        if case.network == "lenet-sigmoid":
            plain, framed = (
                scores(DeepLeakage(outer_steps=case.iterations // 20, coordinates=name), blind)
                for name in ("pixels", "spectrum")
            )
            ahead = f"{plain.mean():.1f} dB, {framed.mean():.1f} dB, {apart(framed, plain)}"
            print(f"dlg, {case.iterations // 20} calls, pixels and general spectrum: {ahead}", flush=True)


def representations(pools: dict[str, Pool], seed: int) -> None:
    """Attack representations of a trained network's training images."""
    images, labels = pools["CIFAR-10"]
    model = trained_cnn(images[:-OWN], labels[:-OWN].long(), 10, 0)
    (shown, classes), _ = drawn((images[:-OWN], labels[:-OWN]), 24, seed)
    own, own_labels = images[-OWN:], labels[-OWN:].long()
    seen = (Observation(0, 0, (Representations(model.represent(shown), classes),), ()),)
    card, extractors = ThreatModel(attacker_data="same_domain"), {0: model.represent}
    granting = Knowledge(card, (3, 32, 32), 10, extractors=extractors, public_images=own, public_labels=own_labels)
    blind = Knowledge(ThreatModel(), (3, 32, 32), 10, extractors=extractors)
    sides: list[tuple[str, Attack, Knowledge]] = []
    for number in (400, 3000):
        sides += [
            (f"`pixels`, {number}, own images", PixelInversion(iterations=number), granting),
            (f"`pixels`, {number}, none", PixelInversion(iterations=number), blind),
            (
                f"`pixels`, {number}, `coordinates=pixels`",
                PixelInversion(iterations=number, coordinates="pixels"),
                blind,
            ),
        ]
    sides += [("`decoder`", DecoderInversion(), granting), ("`dip`", DipInversion(), blind)]
    print(f"class means {psnr(centres_of(own, own_labels, classes), shown).mean():.1f} dB")
    best = None
    for name, attack, known in reversed(sides):
        clock = Clock()
        found = attack(seen, known, list_targets(seen, "representation"), seed=0).images[:, 0].detach()
        scores, took = psnr(found, shown), clock.seconds() / len(shown)
        best = scores if name == "`decoder`" else best
        ahead = "" if best is None else f" | ahead of `decoder` {apart(scores, best)}"
        print(f"| {name} | {scores.mean():.1f} dB | {took:.1f}{ahead} |", flush=True)


def main() -> None:
    """Attack, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train/, one folder a class")
    parser.add_argument("--part", choices=("gradients", "norms", "representations"), required=True)
    parser.add_argument("--seed", type=int, required=True, help="draws images and weights")
    options = parser.parse_args()
    torch.set_num_threads(1)
    clothes = load_dataset("fashion", SourceOptions(None)).samples
    images, labels = load(options.data / "train", 300)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(options.seed))
    pools = {"CIFAR-10": (images[order], labels[order]), "fashion": (as_unit(clothes.images), clothes.labels)}
    if options.part == "representations":
        representations(pools, options.seed)
    else:
        gradients(pools, options.seed, CASES if options.part == "gradients" else NORMED)


if __name__ == "__main__":
    main()
