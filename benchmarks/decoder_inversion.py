"""``decoder`` beside ``pixels``: the same network, images, vectors and targets.

    OMP_NUM_THREADS=1 python benchmarks/decoder_inversion.py --data DIR/cifar10-jpeg/train --draw 1

A client's images, its 4-layer CNN of 512 numbers, and 1,000 images of the attacker of the same classes.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from cifar import Clock, load, psnr, trained_cnn
from torch import Tensor

from fedpriv.attacks.contract import Attack, Trained
from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.inversion.decoder import DecoderInversion
from fedpriv.attacks.inversion.vector import PixelInversion
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.defenses import build_defenses, parse_choice
from fedpriv.eval.intervals import clustered
from fedpriv.federation.defense import DefensePipeline, Sender
from fedpriv.sources.rehearsal import rehearsed
from fedpriv.uploads.payloads import Payload, Representations

OWN = 1000
"""Images of the attacker's own."""

ATTACKS: dict[str, Attack] = {
    "`decoder`": DecoderInversion(),
    "`decoder`, `refine_steps=300`": DecoderInversion(refine_steps=300),
    "`decoder`, `refine_steps=1200`": DecoderInversion(refine_steps=1200),
    "`pixels`": PixelInversion(),
    "`pixels`, `iterations=600`, `restarts=1`": PixelInversion(iterations=600, restarts=1),
}
FITS: dict[str, Attack] = {
    "decoded (`refine_steps=0`)": DecoderInversion(refine_steps=0),
    "`decoder`": DecoderInversion(),
}
"""What fits add to the decoded image."""

BEHIND: dict[str, Attack] = {
    "`decoder`": DecoderInversion(),
    "decoded (`refine_steps=0`)": DecoderInversion(refine_steps=0),
    "`pixels`": PixelInversion(),
    "`pixels`, `match=direction`": PixelInversion(match="direction"),
    "`pixels`, `match=nonzero`": PixelInversion(match="nonzero"),
    "`pixels`, `match=pruned`": PixelInversion(match="pruned"),
}
"""Beside each other where a defense stands before the upload."""


def main() -> None:
    """Train, attack by both versions, print."""
    options = _options()
    _show(*_found(options))


def _options() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with one folder of JPEG files a class")
    parser.add_argument("--draw", type=int, default=1, help="seed of the images attacked")
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--per-class", type=int, default=200, help="the client's training images of a class")
    parser.add_argument("--epochs", type=int, default=10, help="of the client's training; 0 for an untrained network")
    parser.add_argument("--network", type=int, default=0, help="seed of the client's network and its training")
    parser.add_argument("--skip", type=int, default=0, help="images of a class before those of the client's")
    parser.add_argument("--defense", help="of the client, known to the server")
    parser.add_argument("--fits", action="store_true", help="what fits of the decoded image give, each as it is")
    return parser.parse_args()


def _found(options: argparse.Namespace) -> tuple[dict[str, tuple[Tensor, float]], int]:
    """Return the PSNR of each target and the CPU seconds, by row, and the number of targets."""
    torch.set_num_threads(1)
    images, labels = load(options.data, options.per_class, options.skip, options.classes)
    own, own_labels = load(options.data, OWN // options.classes, options.skip + options.per_class, options.classes)
    model = trained_cnn(images, labels, options.epochs, options.network)
    places = torch.randperm(len(images), generator=torch.Generator().manual_seed(options.draw))[: options.images]
    truth = images[places]
    with torch.no_grad():
        right = torch.cat([model(part).argmax(1) for part in images.split(256)]) == labels
        vectors = model.represent(truth)
    floor = psnr(own.mean(0, keepdim=True).expand_as(truth), truth)
    print(f"right for {right.float().mean():.2f} of its images; {len(truth)} targets, mean image {floor.mean():.1f} dB")
    held: tuple[Payload, ...] = (Representations(vectors, labels[places]),)
    pipeline = DefensePipeline(build_defenses([parse_choice(options.defense)] if options.defense else []))
    upload = pipeline.upload(held, Sender(1, 0, options.classes, labels[places], (), 1), 0)
    seen = (Observation(1, 0, upload, ()),)
    defense = rehearsed(pipeline, seen[0], "representation", options.classes, 1) if options.defense else None
    known = Knowledge(
        ThreatModel(attacker_data="same_domain"),
        (3, *images.shape[2:]),
        options.classes,
        extractors={0: model.represent},
        public_images=own,
        public_labels=own_labels,
        defended={} if defense is None else {(1, 0): defense},
    )
    found: dict[str, tuple[Tensor, float]] = {}
    attacks = BEHIND if options.defense else FITS if options.fits else ATTACKS
    for name, attack in attacks.items():
        clock = Clock()
        done = attack(seen, known, list_targets(seen, "representation"), seed=0, trained=Trained())
        found[name] = psnr(done.images[:, 0], truth), clock.seconds()
        print(f"{name}: {found[name][0].mean():.2f} dB", flush=True)
    return found, len(truth)


def _show(found: dict[str, tuple[Tensor, float]], number: int) -> None:
    """Print each row's mean, and how far the default rows of today are ahead of it, with 95 % intervals."""
    ahead = ["`decoder`"] if "`decoder`" in found else []
    print("| attack | mean, median | CPU s a target | " + " | ".join(f"{name} ahead by" for name in ahead) + " |")
    print("| --- | ---: | ---: |" + " ---: |" * len(ahead))
    for name, (scores, seconds) in found.items():
        cells = []
        for best in ahead:
            apart = (found[best][0] - scores).tolist()
            low, high = clustered(apart, range(len(apart))).interval() or (-math.inf, math.inf)
            cells.append("" if name == best else f"{sum(apart) / len(apart):+.1f} [{low:+.1f}, {high:+.1f}] dB")
        spread = f"{scores.mean():.1f}, {scores.median():.1f} dB"
        print(f"| {name} | {spread} | {seconds / number:.1f} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
