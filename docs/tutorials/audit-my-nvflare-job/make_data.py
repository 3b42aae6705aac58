"""Stands for your hospitals' disks: a folder of images for each site, and one of images that no site has."""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

SITES, IMAGES = 5, 8


def main() -> None:
    """Write ``data/site-1.npz`` to ``data/site-5.npz`` and ``data/auxiliary.npz``."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.images))
    images = (digits.images[order] / 16).astype(np.float32)[:, None]
    labels = digits.target[order]
    Path("data").mkdir(exist_ok=True)
    for site in range(SITES):
        own = slice(site * IMAGES, (site + 1) * IMAGES)
        np.savez(f"data/site-{site + 1}.npz", images=images[own], labels=labels[own])
    rest = slice(SITES * IMAGES, 500)
    np.savez("data/auxiliary.npz", images=images[rest], labels=labels[rest])


if __name__ == "__main__":
    main()
