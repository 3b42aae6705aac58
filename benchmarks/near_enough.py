"""Distances of representations of images that are so many dB of PSNR apart: how near a search must come to have found one.

fedpriv train --method fedallrep --rounds 10 --lr 0.1 --strangers 0.5 --out RUN
python benchmarks/near_enough.py RUN
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from fedpriv.attacks.observation import KnowledgeCard
from fedpriv.evidence.gather import gather
from fedpriv.experiment.federation import prepare
from fedpriv.federation.run_directory import RunDirectory

HALVINGS = 30


def noise_like(images: Tensor, kind: str, rng: torch.Generator) -> Tensor:
    """Return white Gaussian noise, or the same of 7 x 7 positions scaled up."""
    if kind == "white":
        return torch.randn(images.shape, generator=rng)
    coarse = torch.randn(*images.shape[:2], 7, 7, generator=rng)
    return functional.interpolate(coarse, size=images.shape[-2:], mode="bilinear")


def shaken(images: Tensor, noise: Tensor, psnr_db: float) -> Tensor:
    """Return images ``(n, c, h, w)`` in [0, 1] with as much noise as leaves each at a PSNR, after clamping."""
    wanted = 10 ** (-psnr_db / 20)
    low = torch.zeros(len(images), 1, 1, 1)
    high = torch.full_like(low, 5.0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        error = ((images + middle * noise).clamp(0, 1) - images).square().mean((1, 2, 3), keepdim=True).sqrt()
        low, high = torch.where(error < wanted, middle, low), torch.where(error < wanted, high, middle)
    return (images + low * noise).clamp(0, 1)


def main() -> None:
    """Print one line a kind of noise and PSNR."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("run", type=Path)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    run = RunDirectory.open(arguments.run)
    federation = prepare(run.config, torch.device("cpu"))
    card = KnowledgeCard(attacker_data="same_domain")
    evidence = gather(run, federation, "representation", card, n_targets=run.config.clients, seed=arguments.seed)
    images = evidence.knowledge.public_images
    if images is None:
        raise SystemExit("the run set no images aside for the attacker; train it with --strangers")
    images, rng = images[: arguments.images], torch.Generator().manual_seed(arguments.seed)
    extractors = [extractor for _, extractor in sorted(evidence.knowledge.extractors.items())]
    print(
        f"{len(images)} images through {len(extractors)} extractors: relative squared distance, median and lowest tenth"
    )
    for kind in ("smooth", "white"):
        for psnr_db in (12, 15, 20, 25, 30):
            near = shaken(images, noise_like(images, kind, rng), psnr_db)
            with torch.no_grad():
                pairs = [(extractor(images), extractor(near)) for extractor in extractors]
            apart = torch.stack([(one - two).square().sum(1) / one.square().sum(1) for one, two in pairs])
            print(f"{kind} {psnr_db} dB: {apart.median():.1e} {apart.flatten().quantile(0.1):.1e}")


if __name__ == "__main__":
    main()
