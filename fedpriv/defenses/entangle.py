"""FedRE's mechanism for other methods: one weighted mixture in place of many rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedpriv.algebra.entanglement import Distribution, Mechanism, Normalisation, entangle, sample_weights
from fedpriv.defenses.shared.signals import require
from fedpriv.federation.answer import NO_OTHERS, Answer
from fedpriv.federation.defense import Defense, ProtectionPlan, UploadContext
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import CLASS_MEANS, MIXTURES, SEPARATE
from fedpriv.wire.payloads import Entangled, Message, Payload

OF_SAMPLES = ("RSR", "RAR")
"""Mechanisms whose weights differ within a class."""


@dataclass(frozen=True)
class Entangle(Defense):
    """Upload one mixture of a client's representations or prototypes, and of their labels with the same weights.

    The six mechanisms of :mod:`fedpriv.algebra.entanglement`. Prototypes are class means already, so of them only the
    mechanisms that weigh all images of a class alike are possible, with the weights that those would give:
    VAR n_c / n, RSP one class, VAP 1 / m, RAP u_c / sum_j u_j. Made of the prototypes of all classes, RAP is FedRE's
    upload.

    No guarantee. The label encoding travels in clear, and says every mixing weight.

    Attributes:
        mechanism: RSR, VAR, RAR, RSP, VAP or RAP.
        distribution: of random weights.
        normalisation: how draws become weights.
        weights: ``resampled`` every round, or ``fixed``: the same draws in every round, so that a server that waits
            sees no new equation.
    """

    mechanism: Mechanism = "RAP"
    distribution: Distribution = "uniform"
    normalisation: Normalisation = "absolute"
    weights: Literal["resampled", "fixed"] = "resampled"

    name: ClassVar[str] = "entangle"
    mixes: ClassVar[bool] = True
    source: ClassVar[str] = "Yao et al., FedRE; fixed weights derived here"
    guarantee: ClassVar[str] = "none"
    answers: ClassVar[tuple[Answer, ...]] = (
        Answer(
            ("unmix",),
            ("entangled",),
            note="one posterior over rounds gives the prototypes back where weights are resampled",
        ),
    )
    unanswered: ClassVar[str] = NO_OTHERS

    def check(self, plan: ProtectionPlan) -> None:
        """Refuse uploads that cannot be mixed, and servers that do not learn from mixtures."""
        require(self.name, plan, SEPARATE)
        if not any(kind in MIXTURES for kind in plan.accepted_substitutes):
            raise UserError(
                f"defense 'entangle': the server of method {plan.method!r} needs its rows one by one and does not take "
                "an entangled representation; methods that train a head on uploads do: fedgh, fedallrep"
            )
        if any(kind in CLASS_MEANS for kind in plan.uploads) and self.mechanism in OF_SAMPLES:
            raise UserError(
                f"options of defense entangle: mechanism: {self.mechanism} weighs single images, but method "
                f"{plan.method!r} uploads prototypes; use VAR, RSP, VAP or RAP"
            )

    def preserves_sensitivity(self) -> bool:
        """True: an image keeps its share of its class, and the label encoding says the class's share of the mixture."""
        return True

    def after(self, plan: ProtectionPlan) -> ProtectionPlan:
        """Return the plan with entangled uploads."""
        uploads = tuple(Entangled.kind if kind in SEPARATE else kind for kind in plan.uploads)
        return replace(plan, uploads=uploads, options=self)

    def upload(self, message: Message, context: UploadContext) -> Message:
        """Return the message with its rows mixed into one."""
        return tuple(self._mixed(payload, context) for payload in message)

    def _mixed(self, payload: Payload, context: UploadContext) -> Payload:
        rng = context.client_rng if self.weights == "fixed" else context.rng
        labels = payload.said("classes")
        if payload.kind not in SEPARATE or labels is None:
            return payload
        if payload.kind in CLASS_MEANS:
            weights = self._class_weights(labels.cpu(), context.class_counts, rng)
        else:
            weights = sample_weights(labels, self.mechanism, rng, self.distribution, self.normalisation)
        context.trace.mixture(self._of_images(payload, labels.cpu(), weights, context))
        return Entangled(*entangle(payload.rows(), labels, weights, context.n_classes))

    def _of_images(self, payload: Payload, classes: Tensor, weights: Tensor, context: UploadContext) -> Tensor:
        """Return the weight ``(n,)`` of every training image, given those of the rows."""
        if payload.kind in CLASS_MEANS:
            shares = torch.zeros(context.n_classes).index_copy_(0, classes, weights)
            return (shares * (1 / context.class_counts))[context.labels]
        found = torch.zeros(len(context.labels))
        found[torch.isin(context.labels, classes)] = weights  # rows are the images in order, but for whole classes
        return found

    def _class_weights(self, classes: Tensor, class_counts: Tensor, rng: torch.Generator) -> Tensor:
        if self.mechanism == "VAR":
            counts = class_counts[classes].float()
            return counts / counts.sum()
        # One row a class: weights by sample and weights by class are the same.
        return sample_weights(classes, self.mechanism, rng, self.distribution, self.normalisation)
