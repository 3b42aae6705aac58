"""The clients' holdings, to be looked at before training."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpriv.datasets.types import FederatedData


def class_counts(federated: FederatedData) -> np.ndarray:
    """Return the number of training images of every client and class, ``(clients, classes)`` int64."""
    labels = federated.dataset.samples.labels.numpy()
    n_classes = federated.dataset.n_classes
    return np.stack([np.bincount(labels[client.train_index], minlength=n_classes) for client in federated.clients])


def holdings_table(federated: FederatedData) -> list[dict[str, Any]]:
    """Return one row per client, of plain Python values.

    Each row has ``client``, ``train`` and ``test`` (images), ``classes`` (with at least one training image),
    ``largest_class`` (its name), ``largest_share`` (its share of the training images, 0..1) and ``counts`` (training
    images by class name, classes that the client lacks left out).
    """
    names = federated.dataset.class_names
    return [
        {
            "client": number,
            "train": len(client.train_index),
            "test": len(client.test_index),
            "classes": int((counts > 0).sum()),
            "largest_class": names[int(counts.argmax())],
            "largest_share": float(counts.max() / max(counts.sum(), 1)),
            "counts": {names[label]: int(counts[label]) for label in np.flatnonzero(counts)},
        }
        for number, (client, counts) in enumerate(zip(federated.clients, class_counts(federated), strict=True))
    ]
