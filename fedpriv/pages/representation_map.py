"""Representations of test images, or class means of training images, on a plane: methods side by side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpriv.federation.evaluate import Representations
from fedpriv.pages import curves
from fedpriv.pages.prototype_map import PrototypeMap, on_plane


@dataclass(frozen=True)
class RepresentationMap:
    """Representations on a plane, and how they lie in their own space.

    Attributes:
        map: positions.
        of: ``images`` or ``prototypes``.
        by_class: mean silhouette, in [-1, 1], with classes as clusters: near 1 where vectors of a class, whosever they are,
            lie closer to one another than to the nearest other class; None where it is not defined.
        by_client: the same with clients as clusters: near 1 where every client has a region of its own.
    """

    map: PrototypeMap
    of: str
    by_class: float | None
    by_client: float | None


def representation_map(found: Representations) -> RepresentationMap | str:
    """Embed representations by t-SNE, or say why not."""
    features = found.features.numpy().astype(np.float64)
    classes, clients = found.classes.numpy(), found.clients.numpy()
    if not np.isfinite(features).all():
        return "some are not finite"
    plane = on_plane(features, classes, clients, found.round, "representations")
    if isinstance(plane, str):
        return plane
    return RepresentationMap(plane, found.of, silhouette(features, classes), silhouette(features, clients))


def silhouette(features: np.ndarray, clusters: np.ndarray) -> float | None:
    """Return the mean silhouette (Rousseeuw, 1987) of vectors ``(n, d)`` by Euclidean distance.

    >>> silhouette(np.array([[0.0], [1.0], [10.0], [11.0]]), np.array([0, 0, 1, 1])).__round__(3)
    0.9
    """
    from sklearn.metrics import silhouette_score

    if not 2 <= len(np.unique(clusters)) <= len(features) - 1:
        return None
    return float(silhouette_score(features, clusters))


def draw(found: RepresentationMap, title: str) -> str:
    """Return the picture: colours are classes; the number of a prototype is its client."""
    return curves.points(found.map, title) if found.of == "images" else curves.prototypes(found.map, title)


def words(found: RepresentationMap, label: str) -> tuple[str, str]:
    """Return the picture in words, and its caption."""
    plane = found.map
    classes, clients = len(set(plane.classes.tolist())), len(set(plane.clients.tolist()))
    what = "test images" if found.of == "images" else "class means of training images"
    clusters = (("classes", found.by_class), ("clients", found.by_client))
    told = ", ".join(f"of {name} {value:.2f}" for name, value in clusters if value is not None)
    alt = (
        f"Map of the representations of {len(plane.points)} {what} of {clients} clients of {label} after round "
        f"{plane.round}, of {classes} classes: the colour is the class"
    )
    caption = (
        f"t-SNE of {len(plane.points)} {what}, each by its own client's model after local training; the colour is the class"
        + ("" if found.of == "images" else ", the number the client")
        + ". Neighbours mean something, distances and axes do not"
        + (f". Mean silhouette in the space of the representations, from -1 to 1: {told}." if told else ".")
    )
    return alt, caption
