"""From a reconstruction and the truth to the record ``metrics.json``. Nothing goes back to the attack."""

from __future__ import annotations

import dataclasses
import math
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from typing import Any

import numpy as np
import torch

from fedpriv.attacks.observation import Reconstruction
from fedpriv.eval.floors import FLOORS, SHUFFLED, guess
from fedpriv.eval.identification import identification
from fedpriv.eval.intervals import Means, Values
from fedpriv.eval.metrics import (
    ScoredGuesses,
    cosine,
    lpips,
    lpips_backbone,
    lpips_unavailable,
    measure,
    over_pairs,
    own_guesses,
    relative_error,
    settle,
    ssim_unavailable,
)
from fedpriv.eval.records import (
    DECIBELS,
    ESTIMANDS,
    IDENTIFIED,
    LABELS,
    About,
    Advantage,
    Comparison,
    ControlResult,
    Fit,
    ImageMeasures,
    Metrics,
    Planted,
    Provenance,
    ReconstructionRecord,
    Summary,
    Target,
)
from fedpriv.sources.truth import Truth
from fedpriv.util.errors import UserError

NAMED = "optimal_class_image"
"""The baseline named in advance: the image of highest mean PSNR over auxiliary images of the class."""

BEYOND = 3.0
"""Decibels above the baseline from which on a target counts in ``share_3db``."""


def score(
    reconstruction: Reconstruction,
    truths: tuple[Truth, ...],
    shuffled: Reconstruction | None,
    *,
    seed: int,
    about: About,
) -> ReconstructionRecord:
    """Return the record of one attack: its reconstruction, and T truths in the order of its T targets.

    ``shuffled`` is the same attack on other clients' uploads, rows aligned with the targets, None where it was not run;
    ``seed`` that of baselines. Numbers of targets or shapes of images that do not match are a UserError.
    """
    reconstruction = reconstruction.to_cpu()
    _check("reconstruction", reconstruction, truths)
    targets = reconstruction.targets
    means = Means(about.units_of([target.client for target in targets]))
    attack, floors = _with_guesses(reconstruction, truths, seed)
    best_blind = best_floor(floors)
    if shuffled is not None:
        shuffled = shuffled.to_cpu()
        _check("shuffled", shuffled, truths)
        floors[SHUFFLED] = measure(own_guesses(settle(shuffled.images), truths), truths)
    best = best_floor(floors)
    advantage = attack.psnr - floors[best].psnr
    details = {name: _image_metrics(panel, truths, means) for name, panel in floors.items()}
    reidentified, rows, gains = identification(truths, attack, floors, means)
    strata = [ESTIMANDS[truth.n_c > 1] for truth in truths]
    if about.per_image and reconstruction.images.shape[1] > 1:  # an upload as a whole: its images are the units
        apart = {name: attack.each - panel.each for name, panel in floors.items()}
        comparisons = Means(tuple(range(len(attack.each)))).compare(apart, "images", DECIBELS, named=NAMED)
    else:
        comparisons = image_comparisons(attack, floors, strata, means)
    comparisons += means.keep(rows).compare(gains, "identified", IDENTIFIED, [strata[row] for row in rows])
    # LPIPS costs a network pass for every pair: of the attack and its baseline alone.
    current = _image_metrics(attack, truths, means) | {"lpips": _lpips(attack, truths, means)}
    current |= {"identification_top1": reidentified}
    current |= _vector_metrics(reconstruction, shuffled, truths, means)
    current |= _label_metrics(reconstruction, truths, means, given=about.knowledge.labels == "given")
    details[best]["lpips"] = _lpips(floors[best], truths, means)
    several, net = any(truth.n_c > 1 for truth in truths), lpips_backbone()
    return ReconstructionRecord(
        **{name: getattr(about, name) for name in Provenance.model_fields} | {"seed": seed},
        n_targets=len(targets),
        n_clients=len(set(means.units)),
        n_diverged=int((~reconstruction.images.isfinite().flatten(1).all(1)).sum()),
        headline="expected PSNR over the images that went into the target, by their weights"
        if several
        else "PSNR of the image itself",
        metrics=Metrics(**current),
        floors={name: ImageMeasures(**detail) for name, detail in details.items()},
        advantage_db=Advantage(
            **dict(means.finite(advantage)), best_floor=best, share_3db=float((advantage >= BEYOND).mean())
        ),
        comparisons=comparisons,
        targets=_targets(reconstruction, truths, attack, floors[best]),
        control=control_part(floors, best_blind, means),
        cost=reconstruction.cost,
        versions=versions() | ({} if net is None else {"lpips": net}),
    )


def _with_guesses(
    reconstruction: Reconstruction, truths: tuple[Truth, ...], seed: int
) -> tuple[ScoredGuesses, dict[str, ScoredGuesses]]:
    """Return the scores of an attack, and of as many guesses at each target by name."""
    attack = measure(own_guesses(settle(reconstruction.images), truths), truths)
    pairs = list(zip(truths, reconstruction.targets, attack.guesses, strict=True))
    return attack, {
        name: measure([guess(name, truth, target, len(shots), seed) for truth, target, shots in pairs], truths)
        for name in FLOORS
    }


def beyond_guesses(reconstruction: Reconstruction, truths: tuple[Truth, ...], seed: int) -> Values:
    """Return the PSNR of each image of each target ``(n,)`` above the strongest guess at that very image, dB."""
    attack, floors = _with_guesses(reconstruction, truths, seed)
    strongest: Values = np.max([panel.each for panel in floors.values()], axis=0)
    return attack.each - strongest


def planted_advantage(reconstruction: Reconstruction, truths: tuple[Truth, ...], about: Provenance) -> Planted:
    """Return the advantage of an attack on uploads in which images were planted over the strongest guess at these.

    The T truths are of one image each, in the order of the targets.
    """
    attack, floors = _with_guesses(reconstruction.to_cpu(), truths, about.seed)
    units = about.units_of([target.client for target in reconstruction.targets])
    gains = {"planted": attack.psnr - floors[best_floor(floors)].psnr}
    item = Means(units).compare(gains, "images", DECIBELS)[0]
    return Planted(mean=item.mean, ci95=item.ci95, n=item.n, n_clients=item.n_clients, least=item.least)


def _check(name: str, reconstruction: Reconstruction, truths: tuple[Truth, ...]) -> None:
    images, n_targets = reconstruction.images, len(reconstruction.targets)
    if n_targets == 0:
        raise UserError(f"{name}: holds no targets; expected at least one")
    if len(truths) != n_targets or len(images) != n_targets:
        raise UserError(f"{name}: {n_targets} targets, {len(images)} rows of images, but {len(truths)} truths")
    for position, truth in enumerate(truths):
        if images.dim() != 5 or tuple(images.shape[2:]) != truth.image_shape:
            raise UserError(
                f"{name}: images {tuple(images.shape)} do not fit target {position}, expected (T, M, c, h, w) with "
                f"{truth.image_shape}"
            )


def _vector_metrics(
    reconstruction: Reconstruction, shuffled: Reconstruction | None, truths: tuple[Truth, ...], means: Means
) -> dict[str, Summary]:
    """Return the measures of recovered vectors, and the control's mean; nothing where one of the true ones is not known."""
    known = [truth.feature for truth in truths if truth.feature is not None]
    if reconstruction.features is None or len(known) != len(truths):
        return {}
    true, control = torch.stack(known), None if shuffled is None else shuffled.features
    results: dict[str, Summary] = {}
    for name, function in (("relative_error", relative_error), ("cosine", cosine)):
        results[name] = means.summary(function(reconstruction.features, true).numpy())
        if control is not None:
            beside = {SHUFFLED: _finite(float(function(control, true).mean()))}
            results[name] = results[name].model_copy(update={"guesses": beside})
    return results


def _label_metrics(
    reconstruction: Reconstruction, truths: tuple[Truth, ...], means: Means, *, given: bool
) -> dict[str, Any]:
    labels = reconstruction.labels
    if given or not all(labels.shape[1] == truth.n_c for truth in truths) or bool((labels < 0).any()):
        return {}
    overlap = [
        sum((Counter(guessed) & Counter(truth.labels.tolist())).values()) / truth.n_c
        for guessed, truth in zip(labels.tolist(), truths, strict=True)
    ]
    return {"label_accuracy": means.finite(overlap, "share")}


def _image_metrics(panel: ScoredGuesses, truths: tuple[Truth, ...], means: Means) -> dict[str, Any]:
    small = ssim_unavailable(truths[0].image_shape)
    return {
        "psnr_db": means.finite(panel.psnr),
        "mse_255": means.finite(panel.mse * 255**2),
        "ssim": Summary.nothing(str(small)) if panel.ssim is None else means.summary(panel.ssim),
    }


def _lpips(panel: ScoredGuesses, truths: tuple[Truth, ...], means: Means) -> Summary:
    reason = lpips_unavailable()
    if reason is not None:
        return Summary.nothing(reason)
    return means.summary(over_pairs(lpips, panel.guesses, panel.scores, truths))


@cache
def versions() -> dict[str, str]:
    """Return the versions of the packages that score."""
    results = {"python": platform.python_version()}
    for package in ("fedpriv", "torch", "torchmetrics", "numpy", "scipy"):
        try:
            results[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            results[package] = "unknown"
    return results


def image_comparisons(
    attack: ScoredGuesses, floors: Mapping[str, ScoredGuesses], strata: Sequence[str], means: Means
) -> tuple[Comparison, ...]:
    """Compare the PSNR of images with that of floors."""
    gains = {name: attack.psnr - panel.psnr for name, panel in floors.items()}
    return means.compare(gains, "images", DECIBELS, strata, named=NAMED)


def best_floor(floors: Mapping[str, ScoredGuesses]) -> str:
    """Return the baseline: the guess with the highest mean PSNR, a blind one or the control."""
    return max(floors, key=lambda name: float(floors[name].psnr.mean()))


def _targets(
    reconstruction: Reconstruction, truths: tuple[Truth, ...], attack: ScoredGuesses, floor: ScoredGuesses
) -> tuple[Target, ...]:
    fits = None if reconstruction.fits is None else [list(map(_finite, pair)) for pair in reconstruction.fits.tolist()]
    return tuple(
        Target(
            **dataclasses.asdict(target),
            n_c=truths[row].n_c,
            psnr_db=float(attack.psnr[row]),
            floor_psnr_db=float(floor.psnr[row]),
            converged=bool(reconstruction.converged[row]),
            fit=None if fits is None else Fit(attack=fits[row][0], truth=fits[row][1]),
        )
        for row, target in enumerate(reconstruction.targets)
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def control_part(floors: Mapping[str, ScoredGuesses], best_blind: str, means: Means) -> ControlResult:
    """Return ``control``: whether the attack on other clients' uploads stays at the baseline."""
    name = "Shuffled uploads (negative control)"
    if SHUFFLED not in floors:
        return ControlResult(difference_db=None, passes=None, verdict=f"{name}: not run.")
    difference = means.of(floors[SHUFFLED].psnr - floors[best_blind].psnr)
    passes, mean = None if difference.ci95 is None else difference.ci95[0] <= 0, difference.mean or 0.0
    side, label = "above" if mean >= 0 else "below", LABELS.get(best_blind, best_blind)
    text = f"{name}{', one client' if passes is None else ''}: the attack scores {abs(mean):.1f} dB {side} the baseline"
    end = {
        None: ".",
        True: ": no leak, as it should be.",
        False: ": part of what it reaches comes from what uploads share or from its own prior, not from the target.",
    }[passes]
    return ControlResult(difference_db=difference, passes=passes, verdict=f"{text} ({label}){end}")
