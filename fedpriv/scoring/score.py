"""From a reconstruction and the truth to the record ``metrics.json``. Nothing goes back to the attack."""

from __future__ import annotations

import dataclasses
import platform
from collections import Counter
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import torch

from fedpriv.attacks.observation import KnowledgeCard, Reconstruction
from fedpriv.evidence.truth import Truth
from fedpriv.scoring.definitions import TEXTS, comparison
from fedpriv.scoring.floors import FLOORS, PERMUTED, guess
from fedpriv.scoring.identification import add_permuted, identification, identify_features
from fedpriv.scoring.judge import Judge, class_accuracy
from fedpriv.scoring.leakage import (
    cosine,
    lpips,
    lpips_backbone,
    lpips_unavailable,
    psnr_of_mse,
    relative_error,
    ssim_unavailable,
)
from fedpriv.scoring.panel import Panel, measure, over_pairs, own_guesses, settle
from fedpriv.scoring.sections import Means, Record, best_floor, control_part, definitions_part, strata_part, target_rows
from fedpriv.scoring.verdict import verdict
from fedpriv.util.errors import UserError

__all__ = ["SCHEMA", "score", "verdict"]

SCHEMA = 1
_ABOUT = ("target", "attack", "method", "dataset", "knowledge")


def score(
    reconstruction: Reconstruction,
    truths: tuple[Truth, ...],
    permuted: Reconstruction | None,
    *,
    seed: int,
    about: Mapping[str, Any],
    judge: Judge | None = None,
) -> Record:
    """Return the record of one attack, ready for JSON.

    Args:
        reconstruction: what the attack returned, T targets.
        truths: T truths in the same order.
        permuted: the same attack on other clients' uploads, rows aligned with the targets; None where it was not run.
        seed: seed of floors, decoys, comparison sets and resamples.
        about: ``target, attack, method, dataset`` (strings) and ``knowledge`` (a card or a dictionary); ``budget`` and
            ``stage`` where the attack is one of several that differ in these.
        judge: an independent classifier, for attacks that make class images; adds the metric ``class_accuracy``.

    Raises:
        UserError: when numbers of targets or image shapes do not match, or ``about`` lacks a key.
    """
    missing = [key for key in _ABOUT if key not in about]
    if missing:
        raise UserError(f"about: {missing[0]!r} is missing; expected {', '.join(_ABOUT)}")
    reconstruction = reconstruction.to_cpu()
    truths = tuple(truth.to_cpu() for truth in truths)
    _check("reconstruction", reconstruction, truths)
    targets = reconstruction.targets
    names = [(seed, "comparison", target.round, target.client, target.index) for target in targets]
    beside = [comparison(truth, *name) for truth, name in zip(truths, names, strict=True)]
    means = Means(tuple(target.client for target in targets), seed)
    clean, diverged = settle(reconstruction.images)
    attack = measure(own_guesses(clean, truths), truths, beside)
    numbers = [len(shots) for shots in attack.guesses]
    floors = {}
    for name in FLOORS:
        blind = [guess(name, *one, seed) for one in zip(truths, targets, numbers, strict=True)]
        floors[name] = measure(blind, truths, beside)
    best_blind = best_floor(floors, "T1")
    if permuted is not None:
        permuted = permuted.to_cpu()
        _check("permuted", permuted, truths)
        floors[PERMUTED] = measure(own_guesses(settle(permuted.images)[0], truths), truths, beside)
    best = best_floor(floors, "T1")
    advantage = attack.psnr - floors[best].psnr
    rows = target_rows(reconstruction, truths, attack, floors[best], diverged)
    details = {name: _floor_details(name, panel, means) for name, panel in floors.items()}
    metrics = _metrics(reconstruction, truths, attack, floors, means)
    knowledge = _as_dict(about["knowledge"])
    if knowledge.get("labels") == "given":  # what was handed over was not recovered
        metrics.pop("label_accuracy", None)
    if permuted is not None:
        _add_permuted_features(metrics, permuted, truths, means)
    if judge is not None:
        guesses = {"attack": attack.guesses} | {name: panel.guesses for name, panel in floors.items()}
        metrics["class_accuracy"] = class_accuracy(judge, targets, truths, guesses, means)
    _add_lpips(metrics, details, {"attack": attack, best: floors[best]}, truths, means)
    return {
        "schema": SCHEMA,
        **{key: about[key] for key in _ABOUT[:-1]},
        "knowledge": knowledge,
        "n_targets": len(targets),
        "n_clients": len(set(means.clients)),
        "n_guesses": max(numbers),
        "n_diverged": sum(diverged),
        "headline": f"T1: {TEXTS['T1']}" if any(truth.n_c > 1 for truth in truths) else "PSNR of the image itself",
        "metrics": metrics,
        "floors": {name: _floor_means(detail) for name, detail in details.items()},
        "floor_details": details,
        "advantage_db": {
            **means.summary(advantage, "advantage"),
            "best_floor": best,
            "share_3db": float((advantage >= 3).mean()),
        },
        "targets": rows,
        "strata": strata_part(truths, attack, floors[best], means),
        "definitions": definitions_part(attack, floors, beside, means),
        "control": control_part(floors, best_blind, means),
        "cost": dataclasses.asdict(reconstruction.cost),
        "budget": about.get("budget"),
        "stage": about.get("stage"),
        "caveat": about.get("caveat", ""),
        "seed": seed,
        "versions": _versions(),
    }


def _as_dict(knowledge: KnowledgeCard | Mapping[str, Any]) -> Record:
    return dataclasses.asdict(knowledge) if isinstance(knowledge, KnowledgeCard) else dict(knowledge)


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


def _metrics(
    reconstruction: Reconstruction,
    truths: tuple[Truth, ...],
    attack: Panel,
    floors: Mapping[str, Panel],
    means: Means,
) -> dict[str, Record]:
    found = _image_metrics(attack, means, "attack", truths[0].image_shape)
    found["identification_top1"] = identification(reconstruction.targets, truths, attack, floors, means)
    features = [truth.feature for truth in truths]
    if reconstruction.features is not None and all(feature is not None for feature in features):
        true = torch.stack([feature for feature in features if feature is not None])
        for name, function in (("relative_error", relative_error), ("cosine", cosine)):
            found[name] = means.summary(function(reconstruction.features, true).numpy(), name)
        hits, chance = identify_features(reconstruction.features, true, [t.client for t in reconstruction.targets])
        found["feature_identification"] = {**means.summary(hits, "feature identification"), "chance": chance}
    if all(reconstruction.labels.shape[1] == truth.n_c for truth in truths) and bool(
        (reconstruction.labels >= 0).all()
    ):
        overlap = [
            sum((Counter(guessed) & Counter(truth.labels.tolist())).values()) / truth.n_c
            for guessed, truth in zip(reconstruction.labels.tolist(), truths, strict=True)
        ]
        found["label_accuracy"] = means.summary(overlap, "labels")
    return found


def _add_permuted_features(
    metrics: dict[str, Record], permuted: Reconstruction, truths: tuple[Truth, ...], means: Means
) -> None:
    """Put beside each measure of recovered features what the control scores: a prior alone can be near the truth."""
    features = [truth.feature for truth in truths if truth.feature is not None]
    if permuted.features is None or len(features) != len(truths):
        return
    true = torch.stack(features)
    hits, _ = identify_features(permuted.features, true, [target.client for target in permuted.targets])
    found = {
        "relative_error": relative_error(permuted.features, true).tolist(),
        "cosine": cosine(permuted.features, true).tolist(),
        "feature_identification": hits,
    }
    for name, values in found.items():
        if name in metrics:
            add_permuted(metrics[name], values, means, name)


def _image_metrics(panel: Panel, means: Means, who: str, image_shape: tuple[int, ...]) -> dict[str, Record]:
    error = means.summary(panel.mse, who, "mse")
    interval = error["ci95"]
    found = {
        "psnr_db": means.summary(panel.psnr, who, "psnr"),
        # The dB of a mean error falls as the error grows: the interval's ends change places.
        "psnr_of_mean_mse_db": {
            "mean": _db(error["mean"]),
            "median": None,
            "sd": None,
            "ci95": None if interval is None else [_db(interval[1]), _db(interval[0])],
            "per_target": None,
            "n": error["n"],
        },
        "mse_255": means.summary(panel.mse * 255**2, who, "mse"),
    }
    if panel.ssim is None:
        found["ssim"] = _not_measured(str(ssim_unavailable(image_shape)))
    else:
        found["ssim"] = means.summary(panel.ssim, who, "ssim")
    return found


def _floor_details(name: str, panel: Panel, means: Means) -> dict[str, Record]:
    return _image_metrics(panel, means, name, panel.guesses[0].shape)


def _floor_means(details: Mapping[str, Record]) -> dict[str, float | None]:
    return {metric: detail["mean"] for metric, detail in details.items()}


def _add_lpips(
    metrics: dict[str, Record],
    details: dict[str, dict[str, Record]],
    panels: Mapping[str, Panel],
    truths: tuple[Truth, ...],
    means: Means,
) -> None:
    """Measure LPIPS for the attack and its best floor only: it costs a network pass for every pair."""
    reason = lpips_unavailable()
    for name, panel in panels.items():
        home = metrics if name == "attack" else details[name]
        if reason is not None:
            home["lpips"] = _not_measured(reason)
            continue
        values = over_pairs(lpips, panel.guesses, panel.scores, truths)
        home["lpips"] = {**means.summary(values, name, "lpips"), "backbone": lpips_backbone()}


def _not_measured(reason: str) -> Record:
    return {**dict.fromkeys(("mean", "median", "sd", "ci95", "per_target")), "not_measured": reason}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("fedpriv", "torch", "torchmetrics", "numpy", "scipy"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "unknown"
    return found


def _db(error: float) -> float:
    return float(psnr_of_mse(torch.tensor(error, dtype=torch.float64)))
