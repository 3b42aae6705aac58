"""Sizes of a round's messages, without training.

The same rule as the ledger's: *paper* leaves labels, class ids and counts out, *full* counts everything, and every
client's copy of a broadcast counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedpriv.models.split import Blueprint
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.wire.ledger import Direction

Scalars = Mapping[tuple[Direction, str], int]
"""(direction, ``kind.field``) -> number of scalars, all clients of a round together; 0 for what is not sent."""


@dataclass(frozen=True)
class FederationSizes:
    """Sizes of a federation in a settled round (not the first).

    Attributes:
        clients: clients that take part, K.
        classes: number of classes C.
        width: representation width d.
        pairs: (client, class) pairs in the training splits of the participants, P; None if unknown.
        known_classes: classes that at least one client holds; None for all C.
        samples: training images of the participants together; None if unknown.
        model_scalars: learnable parameters of one client's whole model; None if unknown.
        all_model_scalars: of all participants' models together, where they differ; None for K times ``model_scalars``.
        blueprint: one client's architecture, for methods that build others of the same image shape; None if unknown.
        options: the method's own options.
        clusters: cluster prototypes over all classes, Q (FPL); None if unknown.
        compressed_scalars: scalars of one compressed model (FedKD), which depends on trained weights; None if unknown.
        public: public images L that clients represent (FedHeNN); None if unknown.
    """

    clients: int
    classes: int
    width: int
    options: Any = None
    pairs: int | None = None
    known_classes: int | None = None
    samples: int | None = None
    model_scalars: int | None = None
    all_model_scalars: int | None = None
    blueprint: Blueprint | None = None
    clusters: int | None = None
    compressed_scalars: int | None = None
    public: int | None = None

    @property
    def head_scalars(self) -> int:
        """Parameters of the head: d C weights and C biases."""
        return self.width * self.classes + self.classes

    def all_models(self) -> int:
        """Return the parameters of all participants' models together."""
        if self.all_model_scalars is not None:
            return self.all_model_scalars
        return self.clients * int(self.need("model_scalars", "models", "model_scalars"))

    def need(self, name: str, *arguments: str) -> Any:
        """Return a fact that a method cannot do without."""
        value = getattr(self, name)
        if value is None:
            given = " or ".join(argument(one) for one in arguments or (name,))
            raise UserError(f"this method's communication depends on {name.replace('_', ' ')}: pass {given}")
        return value
