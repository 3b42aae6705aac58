"""Guesses without any upload, beside the values that a paper prints: their scores are said before anything is run."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch

from fedpriv.claims import Claim, Pixels
from fedpriv.datasets import SourceOptions, load_dataset
from fedpriv.datasets.partition import PartitionOptions, federate
from fedpriv.datasets.types import Dataset, Samples, as_unit
from fedpriv.sources.truth import psnr_optimal
from fedpriv.study.claim_plan import Asked, Place, measure_of, places, setting_at
from fedpriv.study.settings import run_config
from fedpriv.util.errors import UserError

PER_CLASS = 20  # images of a class that guesses at images are made of and scored on: half for either

OF_NOISE = 1 / 12
"""Variance of uniform noise in [0, 1]: by so much its squared error at any image is above that of mid-grey, on average."""

SHOWN = 3  # rows that are named where several lie below a guess

BALANCED = {"cifar10": (10, 6000), "cifar100": (100, 600), "tiny-imagenet": (200, 550), "fashion-mnist": (10, 7000)}
"""Classes of data sets, and images of each, training and test together: a division follows from these alone."""


Printed = list[tuple[Place, float]]  # cells with the values that the paper prints there


def guessed(claim: Claim, requested: Asked) -> tuple[str, ...]:
    """Return scores of constant guesses beside the values of a claim, in sentences; none where they say nothing."""
    what = "psnr_db" if claim.quantity == "inversion" else "accuracy"
    cells = [cell for cell in places(claim) if cell.method is not None and measure_of(claim, cell).what == what]
    printed = [(cell, cell.claimed) for cell in cells if cell.claimed is not None]
    if not printed:
        return ()
    return _of_images(claim, printed, requested) if what == "psnr_db" else _of_classes(claim, printed)


def _of_images(claim: Claim, printed: Printed, requested: Asked) -> tuple[str, ...]:
    """Return the scores of guesses at images, and for each value the worst guess that it lies below."""
    first = printed[0][0]
    scores, source = _measured(claim, first, requested) or _computed(claim.pixels, first.column.data)
    guesses = sorted((score, name) for name, score in scores.items())
    below: dict[str, list[str]] = {}
    for cell, value in printed:
        worst = next((f"{name}, {score:.2f} dB" for score, name in guesses if value < score), "")
        below.setdefault(worst, []).append(f"{cell.row.name} ({value:.{claim.digits}f})")
    lines = [f"Guesses that use no upload, {source}: {', '.join(f'{name} {score:.2f} dB' for score, name in guesses)}."]
    if len(below) == 1 and "" not in below:
        return (*lines, f"All printed values lie below {next(iter(below))}, which uses no upload at all.")
    for guess, names in below.items():
        lines.append(f"{f'Printed below {guess}' if guess else 'Printed above every guess'}: {', '.join(names)}.")
    return tuple(lines)


def _measured(claim: Claim, cell: Place, requested: Asked) -> tuple[Mapping[str, float], str] | None:
    """Return the mean PSNR of guesses made of one half of some images at the other half; None where none are at hand."""
    setting = setting_at(claim, cell)
    name, folder, data = setting.get("dataset", "fashion"), requested.data_dir, f"of {cell.column.data}"
    if cell.column.data in requested.images:
        name, folder, data = "folder", requested.images[cell.column.data], f"in place of {cell.column.data}"
    try:
        dataset = load_dataset(name, SourceOptions(folder, image_size=setting.get("image_size"), per_class=PER_CLASS))
    except UserError:
        return None
    images = as_unit(dataset.samples.images).double()
    known, hidden = images[::2], images[1::2]
    errors = {
        "mid-grey": (hidden - 0.5).square().mean((1, 2, 3)),
        "mean colour": (hidden - known.mean((0, 2, 3), keepdim=True)).square().mean((1, 2, 3)),
        "mean image": (hidden - known.mean(0)).square().mean((1, 2, 3)),
        "best constant image": (hidden - psnr_optimal(known)).square().mean((1, 2, 3)),
    }
    errors["uniform noise"] = errors["mid-grey"] + OF_NOISE
    scores = {guess: float((-10 * torch.log10(error.clamp_min(1e-12))).mean()) for guess, error in errors.items()}
    return scores, f"mean over {len(hidden)} images {data}"


def _computed(pixels: Pixels | None, data: str) -> tuple[Mapping[str, float], str]:
    """Return bounds of the PSNR of guesses from below: of their mean squared error, or of the worst image there is."""
    if pixels is None:
        errors, source = {"mid-grey": 0.25, "uniform noise": 0.25 + OF_NOISE}, "at least, on any image"
    else:
        spread, centre = np.square(pixels.deviation), np.square(np.array(pixels.mean) - 0.5)
        errors = {"mean colour": float(spread.mean()), "mid-grey": float((spread + centre).mean())}
        errors["uniform noise"] = errors["mid-grey"] + OF_NOISE
        source = f"at least, by mean and deviation of the pixels of {data}"
    return {guess: -10 * math.log10(error) for guess, error in errors.items()}, source


def _of_classes(claim: Claim, printed: Printed) -> tuple[str, ...]:
    """Return the score of each client's commonest class on its test images, and the rows that print less than that."""
    scores: dict[tuple[str, PartitionOptions, int], float] = {}
    beaten: dict[str, list[tuple[float, str]]] = {}
    for cell, value in printed:
        setting = setting_at(claim, cell)
        config = run_config("local", {name: setting[name] for name in setting.keys() - {"option", "public"}}, 0)
        if config.dataset in BALANCED:
            key = config.dataset, config.partition, config.clients
            if key not in scores:
                scores[key] = _commonest(*key) / measure_of(claim, cell).every
            if value < scores[key]:
                text = f"{value:.{claim.digits}f} beside {scores[key]:.1f} in {cell.column.name}"
                beaten.setdefault(cell.row.name, []).append((scores[key] - value, text))
    if not scores:
        return ()
    span = " to ".join(dict.fromkeys(f"{score:.1f}" for score in (min(scores.values()), max(scores.values()))))
    first = f"Naming each client's commonest class, with no training and no exchange, scores {span} {claim.unit}"
    if not beaten:
        return (f"{first}; every printed value is above it.",)
    widest = sorted(beaten, key=lambda row: -max(beaten[row])[0])
    rows = [f"{row} ({max(beaten[row])[1]})" for row in widest[:SHOWN]]
    number = sum(map(len, beaten.values()))
    return (
        f"{first}.",
        f"{number} of {len(printed)} printed values lie below it, if clients are divided and tested as here: "
        f"{', '.join(rows)}{' and others' if number > len(rows) else ''}.",
    )


def _commonest(name: str, partition: PartitionOptions, clients: int) -> float:
    classes, each = BALANCED[name]
    labels = torch.arange(classes).repeat(each)
    samples = Samples(torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8), labels)
    divided = federate(Dataset(name, samples, tuple(map(str, range(classes)))), partition, clients, 0)
    parts = [(labels[client.train_index], labels[client.test_index]) for client in divided.clients]
    return float(np.mean([(test == train.mode().values).double().mean() for train, test in parts]))
