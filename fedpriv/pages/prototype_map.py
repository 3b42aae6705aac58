"""The prototypes of one round on a plane, by t-SNE."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpriv.federation.run_directory import RunDirectory
from fedpriv.util.arguments import argument
from fedpriv.wire.payloads import Prototypes, find_payload

MOST_POINTS = 2000  # the plane is full before that
_EXACT = 400  # beyond so many points the exact gradient, which grows with the square, takes minutes
_PERPLEXITY = 30.0


@dataclass(frozen=True)
class PrototypeMap:
    """Prototypes on a plane.

    Attributes:
        points: ``(p, 2)`` positions; only who is whose neighbour means something.
        classes: ``(p,)``.
        clients: ``(p,)``.
        round: when they were uploaded.
        uploaded: prototypes uploaded in that round; more than p where only some are shown.
        perplexity: of t-SNE.
    """

    points: np.ndarray
    classes: np.ndarray
    clients: np.ndarray
    round: int
    uploaded: int
    perplexity: float


def stored_prototypes(run: RunDirectory) -> tuple[int, list[tuple[int, Prototypes]]] | str:
    """Return the last round whose uploads were stored, and its prototypes by client; or a line that says why there are none.

    Raises:
        UserError: when a stored upload is damaged.
    """
    if f"{Prototypes.kind}.features" not in {row.name for row in run.ledger() if row.direction == "upload"}:
        return "no prototypes were uploaded"
    stored = run.captured_rounds()
    round_ = max(stored, default=0)
    found: list[tuple[int, Prototypes]] = []
    for client in stored.get(round_, ()):
        payload = find_payload(run.message(run.upload_path(round_, client)), Prototypes)
        if payload is not None:
            found.append((client, payload))
    if not found:
        return f"prototypes were uploaded, but no round's uploads were stored ({argument('capture', 'none')})"
    return round_, found


def prototype_map(run: RunDirectory) -> PrototypeMap | str:
    """Embed the prototypes of the last round whose uploads were stored.

    With more than ``MOST_POINTS`` prototypes only evenly spaced ones are taken.

    Returns:
        The map, or a line that says why there is none.

    Raises:
        UserError: when a stored upload is damaged.
    """
    stored = stored_prototypes(run)
    if isinstance(stored, str):
        return stored
    round_, found = stored
    widths = sorted({int(payload.features.shape[1]) for _, payload in found})
    if len(widths) > 1:
        return f"the clients' prototypes differ in width ({', '.join(map(str, widths))}) and share no plane"
    features = np.concatenate([payload.features.numpy() for _, payload in found]).astype(np.float64)
    classes = np.concatenate([payload.classes.numpy() for _, payload in found])
    clients = np.concatenate([np.full(len(payload.classes), client) for client, payload in found])
    return on_plane(features, classes, clients, round_, "prototypes")


def on_plane(
    features: np.ndarray, classes: np.ndarray, clients: np.ndarray, round_: int, what: str
) -> PrototypeMap | str:
    """Embed vectors, of more than ``MOST_POINTS`` evenly spaced ones; or say why not.

    Args:
        features: ``(p, d)`` float64.
        classes: ``(p,)``.
        clients: ``(p,)``.
        round_: they are of.
        what: they are, in words.
    """
    uploaded = len(features)
    if uploaded > MOST_POINTS:
        kept = np.linspace(0, uploaded - 1, MOST_POINTS).round().astype(np.int64)
        features, classes, clients = features[kept], classes[kept], clients[kept]
    if len(np.unique(features, axis=0)) < 4:
        return f"too few different {what} for a map ({len(np.unique(features, axis=0))} in round {round_})"
    perplexity = min(_PERPLEXITY, (len(features) - 1) / 3)
    return PrototypeMap(embed(features, perplexity), classes, clients, round_, uploaded, perplexity)


def embed(features: np.ndarray, perplexity: float) -> np.ndarray:
    """Return ``(p, 2)`` positions of ``(p, d)`` features by t-SNE (van der Maaten and Hinton, 2008).

    Starts from the two principal components and runs on one thread, so that equal features give equal positions. Large
    sets take the Barnes-Hut approximation of the gradient.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # comes with scikit-learn

    if features.shape[1] == 1:  # two components are needed to start from
        features = np.concatenate([features, np.zeros_like(features)], axis=1)
    method = "exact" if len(features) <= _EXACT else "barnes_hut"
    with threadpool_limits(limits=1):  # sums over threads have no fixed order
        plane = TSNE(2, perplexity=perplexity, init="pca", method=method, random_state=0).fit_transform(features)
    return np.asarray(plane, dtype=np.float64)
