"""The weight of every image in a mixture that a defense made: the same defenses again, on stand-ins for the images."""

from __future__ import annotations

import torch
from torch import Tensor

from fedpriv.defenses.count_floor import CountFloor, drop_small_classes
from fedpriv.defenses.dp_noise import DPNoise
from fedpriv.defenses.entangle import Entangle
from fedpriv.federation.defense import UploadContext, generators
from fedpriv.federation.local_training import class_means
from fedpriv.federation.rounds import Federation
from fedpriv.wire.kinds import CLASS_MEANS
from fedpriv.wire.payloads import Entangled, Message, Prototypes, Representations, part


def weights_of_defense(federation: Federation, round_: int, client: int, labels: Tensor) -> Tensor | None:
    """Return the weights ``(n,)`` float64 of a client's images in its entangled upload; None where no defense mixes.

    Rows of the unit matrix in place of representations come out of the mixture as the weights. Only defenses that
    choose or mix rows take part; what is done to values changes no weight.

    Args:
        federation: the run prepared again.
        round_: from 1.
        client: 0..K-1.
        labels: ``(n,)`` int64 classes of its training images.
    """
    config, defenses = federation.config, federation.shield.defenses
    if not any(isinstance(defense, Entangle) for defense in defenses):
        return None
    units = torch.eye(len(labels))
    message: Message
    if any(kind in CLASS_MEANS for kind in federation.method.uploads):
        means, classes, _ = class_means(units, labels)
        message = (Prototypes(means, classes),)
    else:
        message = (Representations(units, labels),)
    n_classes = federation.clients[client].n_classes
    counts = torch.bincount(labels, minlength=n_classes)
    for place, defense in enumerate(defenses):
        if isinstance(defense, DPNoise) and defense.unit == "image":
            message = drop_small_classes(message, counts, defense.floor)
        elif isinstance(defense, (CountFloor, Entangle)):
            rng, lasting = generators(config.seed, place, round_, client)
            context = UploadContext(round_, client, n_classes, counts, (), config.rounds, rng, lasting)
            message = defense.upload(message, context)
    return part(message, Entangled).feature.double()
