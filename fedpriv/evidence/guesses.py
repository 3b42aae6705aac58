"""Guesses at the vector behind a target: all that an attacker could say of it without its upload.

Strangers' images through the granted extractor, the classifier that was broadcast, and other clients' uploads. No truth
but a target's classes goes in, and those only where card or upload tell them; the target's own upload goes into one thing,
which strangers are nearest to it, and scores keep that apart from what is blind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedpriv.attacks.features.unmixing import prior_of_images, prior_of_others, start_of_others
from fedpriv.attacks.inputs.targets import target_feature
from fedpriv.attacks.observation import Observation, TargetId, Unit
from fedpriv.attacks.trained import Same, Trained
from fedpriv.evidence.gather import Evidence
from fedpriv.evidence.pool import Pool
from fedpriv.evidence.truth import Truth
from fedpriv.wire.kinds import HEADS, MIXTURES, SEPARATE, VECTORS

NEAREST = 64
"""Strangers that are kept by their distance to the uploaded vector, the nearest first."""

MOST_OTHERS = 60
"""Other clients' mixtures, of the newest rounds, that a class's vector is solved for from."""

_CHUNK = 256


def with_guesses(
    found: Sequence[Truth],
    evidence: Evidence,
    kind: str,
    unit: Unit,
    *,
    device: torch.device,
    kept: Trained | None = None,
) -> tuple[Truth, ...]:
    """Return truths with what could be guessed at them.

    Args:
        found: T truths, in the order of the targets.
        evidence: what the server saw, card and grants, targets.
        kind: of upload that is attacked.
        unit: what one target is.
        device: where the granted extractors compute.
        kept: representations of strangers that were computed already, for scorers alone; None begins anew.
    """
    knowledge, keep = evidence.knowledge, kept or Trained()
    tables: dict[int, dict[str, Tensor]] = {}
    made = []
    for target, truth in zip(evidence.targets, found, strict=True):
        told = target.label >= 0 or (target.round, target.client) in knowledge.labels
        features = _representations(knowledge.extractors.get(target.client), truth.pool, device, keep)
        nearest = None
        if features is not None and kind in VECTORS and unit != "class":
            nearest = _nearest(features, target_feature(evidence.observations, target))
        vectors: dict[str, Tensor] = {}
        if truth.feature is not None:
            if target.client not in tables:
                tables[target.client] = _tables(evidence, target, features, truth.pool)
            vectors = _guesses(tables[target.client], truth, features, told=told)
        made.append(replace(truth, told=told, nearest=nearest, vectors=vectors))
    return tuple(made)


def _guesses(tables: Mapping[str, Tensor], truth: Truth, features: Tensor | None, *, told: bool) -> dict[str, Tensor]:
    """Return the guesses ``(d,)`` at one target: rows of tables ``(C, d)`` by its classes, or what takes no class."""
    found = {}
    for name, table in tables.items():
        if len(table) == 1:
            found[name] = table[0]
        elif told:
            found[name] = torch.stack([share * table[label] for label, share in truth.label_weights().items()]).sum(0)
        elif name == "strangers" and features is not None:
            found[name] = features.mean(0)
    return found


def _tables(evidence: Evidence, target: TargetId, features: Tensor | None, pool: Pool) -> dict[str, Tensor]:
    """Return guesses at every class of a client ``(C, d)``, or at all classes together ``(1, d)``, by name."""
    n_classes = evidence.knowledge.n_classes
    own = next(o for o in evidence.observations if (o.round, o.client) == (target.round, target.client))
    # Where the server sees sums, everybody's upload is the one sum, and the target's own is in it.
    others = [o for o in evidence.observations if o.client != own.client and o.upload is not own.upload]
    seen = _seen(others, target.round, n_classes)
    found: dict[str, Tensor] = {}
    if features is not None:
        known = pool.guess_labels >= 0
        if bool(known.any()):
            found["strangers"] = prior_of_images(features[known], pool.guess_labels[known], n_classes)
    rows, mixing = _head_rows(own), torch.eye(n_classes) if seen.mixing is None else seen.mixing
    vectors = found.get("strangers") if seen.mixing is None else seen.vectors
    if rows is not None and vectors is not None and rows.shape == (n_classes, vectors.shape[1]):
        centred = (rows - rows.mean(0)).double()
        found["head_rows"] = start_of_others(vectors.double(), mixing.double(), centred).float()
    if seen.mixing is not None:
        found["other_uploads"] = seen.by_class
    if len(seen.vectors):
        found["mean_upload"] = seen.vectors.mean(0, keepdim=True)
    return found


@dataclass(frozen=True)
class _Seen:
    """Vectors in other clients' uploads.

    Attributes:
        vectors: ``(K, d)``.
        mixing: ``(K, C)`` their weights by class; None where the uploads say nothing of classes.
        by_class: ``(C, d)`` what they say of each class.
    """

    vectors: Tensor
    mixing: Tensor | None
    by_class: Tensor


def _seen(others: Sequence[Observation], round_: int, n_classes: int) -> _Seen:
    """Vectors that other clients sent: rows of the attacked round, or mixtures of the newest rounds up to it."""
    empty = torch.zeros(0, 0)
    rows = [p for o in others if o.round == round_ and (p := SEPARATE.first(o.upload)) is not None]
    if rows:
        vectors = torch.cat([payload.rows() for payload in rows]).float().cpu()
        classes = [payload.said("classes") for payload in rows]
        if any(said is None for said in classes):
            return _Seen(vectors, None, empty)
        labels = torch.cat([said for said in classes if said is not None]).cpu()
        by_class = prior_of_images(vectors, labels, n_classes)
        return _Seen(by_class[labels.unique()], torch.eye(n_classes)[labels.unique()], by_class)
    newest = sorted((o for o in others if o.round <= round_), key=lambda o: -o.round)
    mixed = [p for o in newest if (p := MIXTURES.first(o.upload)) is not None][:MOST_OTHERS]
    if not mixed:
        return _Seen(empty, None, empty)
    vectors = torch.cat([payload.rows() for payload in mixed]).float().cpu()
    weights = [payload.said("weights") for payload in mixed]
    if any(said is None for said in weights):
        return _Seen(vectors, None, empty)
    mixing = torch.stack([said for said in weights if said is not None]).float().cpu()
    return _Seen(vectors, mixing, prior_of_others(vectors, mixing, None))


def _head_rows(own: Observation) -> Tensor | None:
    """Return the rows ``(C, d)`` of the classifier that was broadcast, or None."""
    head = HEADS.first(own.broadcast)
    rows = None if head is None else head.tensors().get("state/weight")
    return None if rows is None or rows.dim() != 2 else rows.float().cpu()


def _representations(
    extractor: Callable[[Tensor], Tensor] | None, pool: Pool, device: torch.device, kept: Trained
) -> Tensor | None:
    """Return the representations ``(p, d)`` of a pool by the granted extractor, on the CPU; None where none is granted."""
    if extractor is None:
        return None

    @torch.no_grad()
    def compute() -> Tensor:
        return torch.cat([extractor(part.to(device)).float().cpu() for part in pool.guesses.split(_CHUNK)])

    return kept.get(("strangers' representations", Same(extractor), Same(pool)), compute)


def _nearest(features: Tensor, vector: Tensor) -> Tensor | None:
    """Return the positions of the strangers nearest to an uploaded vector, the nearest first."""
    if features.shape[1] != len(vector):
        return None
    distance = (features - vector.float().cpu()).square().sum(1)
    nearest: Tensor = distance.argsort()[:NEAREST]
    return nearest
