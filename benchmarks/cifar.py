"""What the attack benchmarks share: folders of JPEG files by class, a client's network trained on them, and PSNR."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint, SplitModel
from fedpriv.util.seeds import derive_seed


def load(folder: Path, per_class: int, skip: int = 0, classes: int | None = None) -> tuple[Tensor, Tensor]:
    """Return ``per_class`` images of each class folder in file-name order, after the first ``skip``.

    Args:
        folder: holds one folder of JPEG files a class, for example ``cifar10-jpeg/train`` or ``tiny-imagenet-200/train``.
        per_class: images a class.
        skip: files to leave out at the front.
        classes: the first so many; None for all.

    Returns:
        Images ``(n, 3, h, w)`` float32 in [0, 1] and labels ``(n,)``.
    """
    images, labels = [], []
    for label, name in enumerate(sorted(entry for entry in folder.iterdir() if entry.is_dir())[:classes]):
        files = sorted(file for file in name.rglob("*") if file.suffix.lower() in (".jpg", ".jpeg"))
        for file in files[skip : skip + per_class]:
            pixels = np.asarray(Image.open(file).convert("RGB"))
            images.append(torch.from_numpy(pixels.copy()).permute(2, 0, 1))
            labels.append(label)
    return torch.stack(images).float() / 255, torch.tensor(labels)


def trained_cnn(images: Tensor, labels: Tensor, epochs: int, seed: int) -> SplitModel:
    """Return the 4-layer CNN (512-d representations) after plain SGD on the images, in evaluation mode."""
    model = build_model(Blueprint("cnn4", (3, *images.shape[2:]), int(labels.max()) + 1, 512), seed)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    order = torch.Generator().manual_seed(derive_seed(seed, "order"))
    for _ in range(epochs):
        for batch in torch.randperm(len(labels), generator=order).split(32):
            loss = functional.cross_entropy(model(images[batch]), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return model.eval().requires_grad_(False)


def psnr(guess: Tensor, truth: Tensor) -> Tensor:
    """Return the PSNR in dB of each image ``(n, c, h, w)`` in [0, 1], capped at 100."""
    return -10 * (guess.clamp(0, 1) - truth).square().flatten(1).mean(1).clamp_min(1e-10).log10()


class Clock:
    """CPU seconds of this process since the clock was made."""

    def __init__(self) -> None:
        self._start = time.process_time()

    def seconds(self) -> float:
        """Return them."""
        return time.process_time() - self._start
