"""Entangle: FedRE's mixture, for the uploads of other methods."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from fedpriv.algebra.entanglement import Distribution, Mechanism, Normalisation, entangle, sample_weights
from fedpriv.defenses.signals import SignalDefense
from fedpriv.federation.answer import Answer
from fedpriv.federation.defense import ProtectionPlan, UploadContext
from fedpriv.uploads.kinds import CLASS_MEANS, MIXTURES, SEPARATE
from fedpriv.uploads.payloads import Entangled, Message, Payload
from fedpriv.util.errors import UserError

_POSTERIOR = "one posterior over rounds gives the prototypes back where weights are resampled"


@dataclass(frozen=True)
class Entangle(SignalDefense):
    """Upload one mixture of a client's representations or prototypes, and of their labels with the same weights.

    The six mechanisms of :mod:`fedpriv.algebra.entanglement`. Prototypes are class means already, so of them only the
    mechanisms that weigh all images of a class alike are possible: VAR n_c / n, RSP one class, VAP 1 / m, RAP u_c /
    sum_j u_j. No guarantee. The label encoding travels in clear, and says every mixing weight.

    Attributes:
        mechanism: RSR, VAR, RAR, RSP, VAP or RAP.
        distribution: of random weights.
        normalisation: how draws become weights.
        weights: ``resampled`` every round, or ``fixed``: a server that waits sees no new equation.
    """

    mechanism: Mechanism = "RAP"
    distribution: Distribution = "uniform"
    normalisation: Normalisation = "absolute"
    weights: Literal["resampled", "fixed"] = "resampled"

    name: ClassVar[str] = "entangle"
    mixes: ClassVar[bool] = True
    source: ClassVar[str] = "Yao et al., FedRE; fixed weights derived here"
    answers = (Answer(("unmix",), ("entangled",), note=_POSTERIOR),)
    fits = SEPARATE

    def check(self, plan: ProtectionPlan) -> None:
        super().check(plan)
        if not any(kind in MIXTURES for kind in plan.accepted_substitutes):
            raise UserError(
                f"defense 'entangle': the server of method {plan.method!r} needs its rows one by one and does not take "
                "an entangled representation; methods that train a head on uploads do: fedgh, fedallrep"
            )
        if any(kind in CLASS_MEANS for kind in plan.uploads) and self.mechanism in ("RSR", "RAR"):
            raise UserError(
                f"options of defense entangle: mechanism: {self.mechanism} weighs single images, but method "
                f"{plan.method!r} uploads prototypes; use VAR, RSP, VAP or RAP"
            )

    def after(self, plan: ProtectionPlan) -> ProtectionPlan:
        uploads = tuple(Entangled.kind if kind in SEPARATE else kind for kind in plan.uploads)
        return replace(plan, uploads=uploads, options=self)

    def upload(self, message: Message, context: UploadContext) -> Message:
        return tuple(self._mixed(payload, context) for payload in message)

    def _mixed(self, payload: Payload, context: UploadContext) -> Payload:
        rng = context.client_rng if self.weights == "fixed" else context.rng
        labels = payload.said("classes")
        if payload.kind not in SEPARATE or labels is None:
            return payload
        classes, means = labels.cpu(), payload.kind in CLASS_MEANS
        if means and self.mechanism == "VAR":
            counts = context.class_counts[classes].float()
            weights = counts / counts.sum()
        else:  # of one row a class, weights by sample and weights by class are the same
            weights = sample_weights(
                classes if means else labels, self.mechanism, rng, self.distribution, self.normalisation
            )
        if means:
            shares = torch.zeros(context.n_classes).index_copy_(0, classes, weights)
            of_images = (shares * (1 / context.class_counts))[context.labels]
        else:
            of_images = torch.zeros(len(context.labels))
            # Rows are the images in order, but for whole classes.
            of_images[torch.isin(context.labels, classes)] = weights
        context.trace.mixture(of_images)
        return Entangled(*entangle(payload.rows(), labels, weights, context.n_classes))
