"""Guesses at the vector behind a target: all that an attacker could say of it without its upload.

Auxiliary images through the granted extractor, the classifier that was broadcast, and other clients' uploads. No truth but a
target's classes goes in, and those only where threat model or upload give them; the target's own upload goes into one thing,
which images of the pool are nearest to it, and scores keep that apart from what is blind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedpriv.attacks.contract import Same, Trained
from fedpriv.attacks.features.posterior import prior_of_images
from fedpriv.attacks.inputs.targets import represented, target_feature
from fedpriv.attacks.observation import Observation, TargetId, Unit
from fedpriv.sources.case import Case
from fedpriv.sources.truth import Pool, Truth
from fedpriv.uploads.kinds import HEADS, MIXTURES, SEPARATE, VECTORS

NEAREST = 64  # images that are kept by their distance to the uploaded vector, the nearest first
MOST_OTHERS = 60  # other clients' mixtures, of the newest rounds, that a class's vector is solved for from
_RIDGES = (*(10.0**power for power in range(-6, 3)), math.inf)  # tried where mixtures are solved for classes


def with_guesses(
    truths: Sequence[Truth], case: Case, kind: str, unit: Unit, *, device: torch.device, kept: Trained | None = None
) -> tuple[Truth, ...]:
    """Return truths with what could be guessed at them."""
    knowledge, keep = case.knowledge, kept or Trained()
    tables: dict[int, dict[str, Tensor]] = {}
    result = []
    for target, truth in zip(case.targets, truths, strict=True):
        told = target.label >= 0 or (target.round, target.client) in knowledge.labels
        features = _representations(knowledge.extractors.get(target.client), truth.pool, device, keep)
        nearest, vectors = None, dict[str, Tensor]()
        if features is not None and kind in VECTORS and unit != "class":
            vector = target_feature(case.observations, target)
            if features.shape[1] == len(vector):
                nearest = (features - vector.float().cpu()).square().sum(1).argsort()[:NEAREST]
        if truth.feature is not None:
            if target.client not in tables:
                tables[target.client] = _tables(case, target, features, truth.pool)
            shares = truth.label_weights()
            for name, table in tables[target.client].items():
                if len(table) == 1:
                    vectors[name] = table[0]
                elif told:
                    vectors[name] = torch.stack([share * table[label] for label, share in shares.items()]).sum(0)
                elif name == "auxiliary" and features is not None:
                    vectors[name] = features.mean(0)
        result.append(replace(truth, nearest=nearest, vectors=vectors))
    return tuple(result)


def _tables(case: Case, target: TargetId, features: Tensor | None, pool: Pool) -> dict[str, Tensor]:
    """Return guesses at every class of a client ``(C, d)``, or at all classes together ``(1, d)``, by name."""
    n_classes, tables = case.knowledge.n_classes, dict[str, Tensor]()
    current = next(o for o in case.observations if (o.round, o.client) == (target.round, target.client))
    # Where the server sees sums, everybody's upload is the one sum, and the target's own is in it.
    others = [o for o in case.observations if o.client != current.client and o.upload is not current.upload]
    vectors, mixing, by_class = _seen(others, target.round, n_classes)
    known = pool.guess_labels >= 0
    if features is not None and bool(known.any()):
        tables["auxiliary"] = prior_of_images(features[known], pool.guess_labels[known], n_classes)
    head = HEADS.first(current.broadcast)
    rows = None if head is None else head.tensors().get("state/weight")
    centres = tables.get("auxiliary") if mixing is None else vectors
    if rows is not None and centres is not None and rows.shape == (n_classes, centres.shape[1]):
        rows = rows.float().cpu()
        weights = torch.eye(n_classes) if mixing is None else mixing
        tables["head_rows"] = _scaled_rows(centres.double(), weights.double(), (rows - rows.mean(0)).double()).float()
    if mixing is not None:
        tables["other_uploads"] = by_class
    if len(vectors):
        tables["mean_upload"] = vectors.mean(0, keepdim=True)
    return tables


def _scaled_rows(vectors: Tensor, mixing: Tensor, rows: Tensor) -> Tensor:
    """Return ``mean + scale * rows`` ``(C, d)`` fitted to vectors ``(K, d)`` with weights ``(K, C)``; rows sum to zero."""
    centre, shown = vectors.mean(0), mixing @ rows
    apart = shown - shown.mean(0)
    scale = float((apart * (vectors - centre)).sum() / apart.square().sum().clamp_min(1e-12))
    return centre - scale * shown.mean(0) + scale * rows


def _seen(others: Sequence[Observation], round_: int, n_classes: int) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return vectors that other clients sent: rows of the attacked round, or mixtures of the newest rounds up to it.

    They are ``(K, d)``, beside their weights by class ``(K, C)``, None where uploads say nothing of classes, and what they
    say of each class ``(C, d)``.
    """
    empty = torch.zeros(0, 0)
    rows = [p for o in others if o.round == round_ and (p := SEPARATE.first(o.upload)) is not None]
    newest = sorted((o for o in others if o.round <= round_), key=lambda o: -o.round)
    mixed = [p for o in newest if (p := MIXTURES.first(o.upload)) is not None][:MOST_OTHERS]
    if not rows and not mixed:
        return empty, None, empty
    vectors = torch.cat([payload.rows() for payload in rows or mixed]).float().cpu()
    disclosed = [payload.said("classes" if rows else "weights") for payload in rows or mixed]
    there = [each for each in disclosed if each is not None]
    if len(there) < len(disclosed):
        return vectors, None, empty
    if rows:
        labels = torch.cat(there).cpu()
        by_class, classes = prior_of_images(vectors, labels, n_classes), labels.unique()
        return by_class[classes], torch.eye(n_classes)[classes], by_class
    mixing = torch.stack(there).float().cpu()
    return vectors, mixing, prior_of_others(vectors, mixing)


def prior_of_others(features: Tensor, weights: Tensor) -> Tensor:
    """Return prototypes ``(C, d)`` that uploads ``(K, d)`` of other clients, with weights ``(K, C)``, have in common.

    Ridge regression towards the uploads' mean, with the ridge that predicts each upload best from the others.
    """
    uploads, mixing, total = features.double(), weights.double(), weights.double().sum(1, keepdim=True)
    number, eye = len(uploads), torch.eye(mixing.shape[1], dtype=torch.float64)
    mean = uploads.mean(0)
    others = 1 - torch.eye(number, dtype=torch.float64)
    means, grams = others @ uploads / max(1, number - 1), torch.einsum("nk,kc,ke->nce", others, mixing, mixing)

    def error(ridge: float) -> float:
        if math.isinf(ridge):
            return float((total * means - uploads).square().sum())
        shares = others * (torch.linalg.solve(grams + ridge * eye, mixing) @ mixing.T)
        return float((total * means + shares @ uploads - (shares @ total) * means - uploads).square().sum())

    ridge = min(_RIDGES, key=error) if number > 2 else math.inf
    if math.isinf(ridge):
        return mean.expand(len(eye), -1).float()
    beyond = torch.linalg.solve(mixing.T @ mixing + ridge * eye, mixing.T @ (uploads - total * mean))
    result: Tensor = (mean + beyond).float()
    return result


def _representations(
    extractor: Callable[[Tensor], Tensor] | None, pool: Pool, device: torch.device, kept: Trained
) -> Tensor | None:
    """Return the representations ``(p, d)`` of a pool by the granted extractor, on the CPU; None where none is granted."""
    if extractor is None:
        return None
    key = ("representations", Same(extractor), Same(pool))
    return kept.get(key, lambda: represented(extractor, pool.guesses, device).float().cpu())
