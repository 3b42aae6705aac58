"""Beside the app, for its audit: images as they are, for scoring alone; no attack is handed them."""

import torch
from torch import Tensor
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, Grayscale, ToTensor


def images(folder: str) -> tuple[Tensor, Tensor]:
    """Return the images ``(n, 1, 8, 8)`` in [0, 1] of a folder, before any normalisation, and their classes ``(n,)``."""
    found = ImageFolder(folder, Compose([Grayscale(), ToTensor()]), allow_empty=True)
    return torch.stack([image for image, _ in found]), torch.tensor(found.targets)


def data(partition: int) -> tuple[Tensor, Tensor]:
    """Return the images that a hospital trains on."""
    return images(f"data/hospital-{partition}/train")


def auxiliary() -> tuple[Tensor, Tensor]:
    """Return images that no hospital has: baselines are made of them."""
    return images("data/auxiliary")
