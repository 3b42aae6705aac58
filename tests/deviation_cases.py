"""Representations of classes that scatter alike, for attacks that look at deviations of means."""

import torch

WIDTH, CLASSES = 36, 3


def drawn(number, seed):
    """Representations of classes in turn that scatter in few directions much and in many a little, and their classes."""
    draw = torch.Generator().manual_seed(seed)
    mixing = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    spread = torch.diag(2.0 ** -torch.arange(WIDTH, dtype=torch.float64).div(3))
    middles = 3 * torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    labels = torch.arange(number) % CLASSES
    return middles[labels] + torch.randn(number, WIDTH, generator=draw, dtype=torch.float64) @ spread @ mixing, labels


def means(features, labels):
    return torch.stack([features[labels == label].mean(0) for label in range(CLASSES)]), torch.arange(CLASSES)
