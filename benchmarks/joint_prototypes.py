"""Joint inversion of prototypes of few images, beside one-image inversion and the constant floor, on a trained CNN.

OMP_NUM_THREADS=1 python benchmarks/joint_prototypes.py --data DIR/cifar10-jpeg --count 2
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from cifar import Clock, load, psnr, trained_cnn
from torch import Tensor

from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.inversion.vector import DipInversion, JointInversion
from fedpriv.attacks.observation import Knowledge, Observation, Reconstruction, ThreatModel
from fedpriv.eval.metrics import assign, squared_errors
from fedpriv.uploads.payloads import Prototypes


def expected_psnr(guesses: Tensor, members: Tensor) -> float:
    """Return the mean PSNR over members ``(m, c, h, w)``, each with the guess assigned to it (T1)."""
    chosen = assign(squared_errors(guesses, members))
    return psnr(guesses[chosen], members).mean().item()


def main() -> None:
    """Train, attack, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with train/ and test/, one folder a class")
    parser.add_argument("--count", type=int, default=2, help="images a prototype, n_c")
    parser.add_argument("--per-class", type=int, default=1, help="prototypes a class")
    parser.add_argument("--train-per-class", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=1500)
    parser.add_argument("--restarts", type=int, default=1)
    parser.add_argument("--tolerance", type=float, default=JointInversion().tolerance)
    parser.add_argument("--only-joint", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hide-counts", action="store_true", help="let the attack infer n_c from 1..4")
    options = parser.parse_args()
    torch.set_num_threads(1)

    images, labels = load(options.data / "train", options.train_per_class)
    held_out, _ = load(options.data / "test", 50)
    model = trained_cnn(images, labels, options.epochs, options.seed)
    places = torch.stack(
        [
            (labels == label).nonzero().flatten()[options.count * again :][: options.count]
            for label in range(10)
            for again in range(options.per_class)
        ]
    )
    with torch.no_grad():
        vectors = torch.stack([model.represent(images[group]).mean(0) for group in places])
    counts = None if options.hide_counts else torch.full((len(places),), options.count)
    observations = (Observation(0, 0, (Prototypes(vectors, labels[places[:, 0]], counts),), ()),)
    knowledge = Knowledge(ThreatModel(), (3, 32, 32), 10, extractors={0: model.represent})
    targets = list_targets(observations, "prototype")
    most = 4 if options.hide_counts else options.count

    def report(name: str, found: Reconstruction, seconds: float) -> None:
        scores = [expected_psnr(found.images[t], images[group]) for t, group in enumerate(places)]
        print(
            f"{name}: mean {sum(scores) / len(scores):.2f} dB, lowest {min(scores):.2f}, highest {max(scores):.2f}; "
            f"relative distance median {found.objective.amin(1).median():.1e}; {seconds / len(places):.1f} CPU s a prototype"
        )

    floor = torch.stack([psnr(held_out.mean(0, keepdim=True).expand_as(images[g]), images[g]).mean() for g in places])
    print(f"{len(places)} prototypes of {options.count} images; mean-image floor {floor.mean():.2f} dB")
    joint = JointInversion(
        iterations=options.iterations, restarts=options.restarts, tolerance=options.tolerance, most=most
    )
    single = DipInversion(iterations=options.iterations, restarts=options.restarts)
    for attack in (joint,) if options.only_joint else (single, joint):
        clock = Clock()
        found = attack(observations, knowledge, targets, seed=options.seed, device=torch.device("cpu"))
        report(attack.name, found, clock.seconds())
        if isinstance(attack, JointInversion) and options.hide_counts:
            inferred = [len({tuple(image.flatten().tolist()) for image in images_}) for images_ in found.images]
            print(f"inferred counts: {inferred}")


if __name__ == "__main__":
    main()
