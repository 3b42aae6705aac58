"""Numbers of images by client and class."""

from __future__ import annotations

import numpy as np

from fedpriv.datasets.types import FederatedData


def class_counts(federated: FederatedData) -> np.ndarray:
    """Return the number of training images of every client and class, ``(clients, classes)`` int64."""
    labels = federated.dataset.samples.labels.numpy()
    n_classes = federated.dataset.n_classes
    return np.stack([np.bincount(labels[client.train_index], minlength=n_classes) for client in federated.clients])
