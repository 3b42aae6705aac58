"""Inversion of single representations of a trained CNN, beside the mean-image floor.

OMP_NUM_THREADS=1 python benchmarks/dip_cifar.py --data DIR/cifar10-jpeg
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from cifar import Clock, load, psnr, trained_cnn

from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.inversion.decoder import DecoderInversion
from fedpriv.attacks.inversion.vector import DipInversion, PixelInversion
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.uploads.payloads import Representations

KINDS: dict[str, type[DipInversion] | type[PixelInversion] | type[DecoderInversion]] = {
    "dip": DipInversion,
    "pixels": PixelInversion,
    "decoder": DecoderInversion,
}


def main() -> None:
    """Train, attack, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with train/ and test/, one folder a class")
    parser.add_argument("--images", type=int, default=2, help="attacked training images a class")
    parser.add_argument("--train-per-class", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--iterations", type=int, help="default: the attack's own")
    parser.add_argument("--attack", choices=tuple(KINDS), default="dip")
    parser.add_argument("--coordinates", choices=("spectrum", "pixels"), help="of pixels")
    parser.add_argument("--refine-steps", type=int, help="of decoder")
    parser.add_argument("--public", type=int, default=100, help="of decoder: images of the attacker's own a class")
    parser.add_argument("--draw", type=int, help="attack images that this seed draws; default: the first of each class")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chunk-rows", type=int, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)

    images, labels = load(options.data / "train", options.train_per_class)
    held_out, _ = load(options.data / "test", 50)
    model = trained_cnn(images, labels, options.epochs, options.seed)
    with torch.no_grad():
        accuracy = (model(images).argmax(1) == labels).float().mean().item()
        order = torch.arange(len(labels))
        if options.draw is not None:
            order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(options.draw))
        chosen = torch.cat([order[labels[order] == label][: options.images] for label in range(10)])
        upload = Representations(model.represent(images[chosen]), labels[chosen])
    observations = (Observation(0, 0, (upload,), ()),)
    public, _ = load(options.data / "train", options.public, skip=options.train_per_class)
    card = ThreatModel(attacker_data="same_domain" if options.attack == "decoder" else "none")
    knowledge = Knowledge(card, (3, 32, 32), 10, extractors={0: model.represent}, public_images=public)
    given = {"iterations": options.iterations, "refine_steps": options.refine_steps, "coordinates": options.coordinates}
    attack = KINDS[options.attack](**{name: value for name, value in given.items() if value is not None})
    clock = Clock()
    found = attack(
        observations,
        knowledge,
        list_targets(observations, "representation"),
        seed=options.seed,
        device=torch.device("cpu"),
        chunk_rows=options.chunk_rows,
    )
    seconds = clock.seconds()
    scores = psnr(found.images[:, 0], images[chosen])
    # The floor is a guess without the upload: the mean of images that are not attacked and were not trained on.
    floor = psnr(held_out.mean(0, keepdim=True).expand_as(images[chosen]), images[chosen])
    print(f"{attack.name}: {len(chosen)} images, training accuracy {accuracy:.3f}, {found.cost.iterations} iterations")
    print(
        f"PSNR mean {scores.mean():.2f} median {scores.median():.2f} min {scores.min():.2f} max {scores.max():.2f} dB"
    )
    print(f"mean-image floor {floor.mean():.2f} dB; relative distance median {found.objective.median():.2e}")
    print(f"converged {int(found.converged.sum())} of {len(chosen)}; {seconds / len(chosen):.2f} CPU s an image")


if __name__ == "__main__":
    main()
