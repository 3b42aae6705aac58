"""Auxiliary images of another domain: any data set but the clients', in the form of their images, without classes."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from fedpriv.attacks.observation import ThreatModel
from fedpriv.datasets import DATASETS, SourceOptions, load_dataset
from fedpriv.federation.run_directory import RunConfig
from fedpriv.util.errors import UserError, shown, unknown_name
from fedpriv.util.registry import split_reference
from fedpriv.util.seeds import generator

MOST_IMAGES = 1000
"""Foreign images that an attacker takes, drawn by seed; all where there are fewer."""

MOST_PER_CLASS = 200
"""Images of one class among which they are drawn, the first ones, so that no large data set is read whole."""


def parse_foreign(text: str) -> tuple[str, Path | None]:
    """Return the data set and the folder of ``NAME`` or ``NAME:FOLDER``."""
    name, folder = split_reference(text, DATASETS)
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    return name, Path(folder).expanduser() if folder else None


def refuse_foreign(card: ThreatModel, config: RunConfig) -> None:
    """Check that a card's foreign images can be had, and are foreign to the clients of a run."""
    name, folder = parse_foreign(card.foreign)
    clients = None if config.data_dir is None else Path(config.data_dir)
    same_folder = folder is not None and clients is not None and folder.resolve() == clients.resolve()
    if name == config.dataset and (name != "folder" or same_folder):
        where = f"knowledge={shown({'foreign': card.foreign})}"
        raise UserError(
            f"{where}: the clients hold images of that data set; name another, or set some of "
            f"these aside with public N and grant attacker_data=same_domain"
        )
    foreign_images(card.foreign, (1, 8, 8), 0)


@lru_cache(maxsize=2)
def foreign_images(foreign: str, image_shape: tuple[int, int, int], seed: int) -> Tensor:
    """Draw the attacker's foreign images ``(p, c, h, w)`` in [0, 1], p at most :data:`MOST_IMAGES`.

    Args:
        foreign: ``NAME`` or ``NAME:FOLDER`` of a data set.
        image_shape: (channels, height, width) of the clients' images. A foreign image's centred square is scaled to it, grey
            ones are repeated to three channels, colours weighted to one.
        seed: of the drawing.
    """
    name, folder = parse_foreign(foreign)
    channels, height, width = image_shape
    try:
        options = SourceOptions(folder, image_size=max(height, width), per_class=MOST_PER_CLASS, channels=channels)
        dataset = load_dataset(name, options)
    except UserError as error:
        hint = "" if folder else f"; the folder stands behind a colon: foreign={name}:FOLDER"
        where = f"knowledge={shown({'foreign': foreign})}"
        raise UserError(f"{where}: {error}{hint}; download is for the clients' data set only") from error
    order = torch.randperm(len(dataset.samples), generator=generator(seed, "foreign images"))
    images, _ = dataset.samples.batch(order[:MOST_IMAGES].sort().values)
    if (height, width) != tuple(images.shape[2:]):
        images = functional.interpolate(images, size=(height, width), mode="bilinear", antialias=True).clamp_(0, 1)
    return images
