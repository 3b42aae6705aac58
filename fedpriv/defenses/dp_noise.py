"""Differentially private uploads: bound what one change can move, add Gaussian noise of that size, count the releases."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from fedpriv.defenses.clip import clip_rows
from fedpriv.defenses.count_floor import drop_small_classes
from fedpriv.defenses.noise import clipped_and_noisy, standard_noise
from fedpriv.defenses.shared.accounting import ACCOUNTANT, epsilon, noise_multiplier_for, refuse_two_targets
from fedpriv.defenses.shared.adapted import AVERAGED, CLASS_IDS, COMPARED, LIKENESS, MOST_LIKELY
from fedpriv.defenses.shared.signals import changed, in_clear, refuse_false_labels, require
from fedpriv.federation.answer import NO_OTHERS
from fedpriv.federation.defense import Defense, ProtectionPlan, UploadContext
from fedpriv.models.split import Blueprint
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import MIXTURES, OF_IMAGES, ROWS, UPDATES, VECTORS, payload_kind
from fedpriv.wire.payload import Message, Payload

UNIFORM_IN_CLASS = ("VAR", "RSP", "VAP", "RAP")
"""Entanglement mechanisms that spread a class's weight evenly over its images."""


@dataclass(frozen=True)
class DPNoise(Defense):
    """Clip, add Gaussian noise in proportion to the sensitivity, and account for all rounds.

    Two units of protection, both by replacement, both in the L2 norm:

    - ``client``: all images of a client are replaced by others of the same classes and numbers. The signals of an
      upload together (for networks: the difference from the broadcast) are clipped to ``bound`` = S; they move by at
      most 2 S. Holds whatever happened in training.
    - ``image``: one image of a client is replaced by another of its class. Clients' networks bound every
      representation to length S, in training too, so a row of representations moves by at most 2 S, a prototype by 2 S
      / n_c, an entangled representation by max_c w_c 2 S / n_c. **For the client's extractor as it is**: that the
      extractor was trained on the image, too, is not covered, and the record says so.

    Each release is a Gaussian mechanism of noise multiplier z = (standard deviation) / (sensitivity). Releases of all
    rounds are composed, as if the client took part in each. Classes, counts and label encodings travel in clear, which
    the record names. Noise comes from the run's seed: a simulation of the mechanism, not a deployment of it.

    Attributes:
        bound: S > 0, in units of the representation or of the weights.
        noise_multiplier: z > 0; or
        epsilon: the target over the whole run, from which z is computed; exactly one of the two.
        delta: in (0, 1).
        unit: ``client`` or ``image``.
        floor: with ``image``, classes of fewer images are left out of the upload; an entangled upload in which such a
            class has weight is not sent.
        counts: with ``image``, ``private``: n_c is taken to be ``floor`` everywhere, so that the noise tells nothing
            about counts; or ``public``: each class's own n_c, which is less noise and tells n_c.
    """

    bound: Annotated[float, Gt(0)] = 1.0
    noise_multiplier: Annotated[float, Gt(0)] | None = None
    epsilon: Annotated[float, Gt(0)] | None = None
    delta: Annotated[float, Gt(0), Lt(1)] = 1e-5
    unit: Literal["client", "image"] = "client"
    floor: Annotated[int, Ge(1)] = 1
    counts: Literal["private", "public"] = "private"

    name: ClassVar[str] = "dp-noise"
    source: ClassVar[str] = "Gaussian mechanism; Mironov, CSF 2017 (Renyi accounting)"
    guarantee: ClassVar[str] = (
        "(epsilon, delta)-DP over all rounds, L2, by replacement: of a client's images, or of one image given the extractor"
    )
    answers = (*AVERAGED, MOST_LIKELY, LIKENESS, CLASS_IDS, COMPARED)
    unanswered: ClassVar[str] = NO_OTHERS

    def __post_init__(self) -> None:
        refuse_two_targets(self.name, self.noise_multiplier, self.epsilon)

    def check(self, plan: ProtectionPlan) -> None:
        require(self.name, plan, VECTORS if self.unit == "image" else ROWS | UPDATES)
        if self.unit == "image":
            refuse_false_labels(self.name, plan)
            if plan.sensitivity_unknown_after:
                raise UserError(
                    f"defense 'dp-noise' with unit=image behind {plan.sensitivity_unknown_after[-1]!r}: how far one "
                    "image can move an upload is not known behind it; give dp-noise first, or unit=client"
                )
            mechanism = getattr(plan.options, "mechanism", "RAP")
            uneven = mechanism not in UNIFORM_IN_CLASS or getattr(plan.options, "normalisation", "") == "signed"
            if uneven and any(kind in MIXTURES for kind in plan.uploads):
                raise UserError(
                    f"defense 'dp-noise' with unit=image: mechanism {mechanism} can give one image more than its share of "
                    f"its class's weight; use one of {', '.join(UNIFORM_IN_CLASS)} with positive weights, or unit=client"
                )
        self.privacy(plan)  # says before training that opacus is missing

    def preserves_sensitivity(self) -> bool:
        return self.unit == "image"

    def blueprint(self, blueprint: Blueprint) -> Blueprint:
        if self.unit == "client":
            return blueprint
        bound = self.bound if blueprint.norm_bound is None else min(self.bound, blueprint.norm_bound)
        return replace(blueprint, norm_bound=bound)

    def upload(self, message: Message, context: UploadContext) -> Message:
        z = self.multiplier(context.rounds)
        if self.unit == "client":
            return clipped_and_noisy(message, context, self.bound, z * 2 * self.bound)
        kept = drop_small_classes(message, context.class_counts, self.floor)
        return tuple(self._of_images(payload, context, z) for payload in kept)

    def multiplier(self, rounds: int) -> float:
        """Return z for a run of so many rounds."""
        if self.epsilon is None:
            return self.noise_multiplier or 0.0
        return noise_multiplier_for(self.epsilon, self.delta, rounds)

    def _of_images(self, payload: Payload, context: UploadContext, z: float) -> Payload:
        moves = self.sensitivity(payload, context.class_counts)
        if moves is None:
            return payload

        def change(_: str, value: Tensor) -> Tensor:
            noise = standard_noise(value, "gaussian", context.rng)
            return clip_rows(value, self.bound) + z * moves.to(value) * noise

        return changed(payload, context.broadcast, change)

    def sensitivity(self, payload: Payload, class_counts: Tensor) -> Tensor | None:
        """Return each row's L2 sensitivity to replacing one image: ``(n, 1)``, ``(c, 1)`` or ``()``; None for counts.

        Args:
            payload: what is uploaded, with bounded representations behind it.
            class_counts: ``(C,)`` int64, images of each class.
        """
        if payload.kind not in VECTORS:
            return None
        numbers = class_counts if self.counts == "public" else torch.full_like(class_counts, self.floor)
        per_class = 2 * self.bound / numbers.clamp(min=1).double()
        classes, weights = payload.said("classes"), payload.said("weights")
        if weights is not None:
            return (weights.cpu().double().abs() * per_class).max()
        assert classes is not None
        if payload.computed_from == "image":
            return torch.full((len(classes), 1), 2 * self.bound, dtype=torch.float64)
        return per_class[classes.cpu()][:, None]

    def privacy(self, plan: ProtectionPlan) -> dict[str, Any]:
        z = self.multiplier(plan.rounds)
        clear, given = in_clear(plan), ""
        if self.unit == "client":
            neighbours = "all images of one client replaced by others of the same classes and numbers"
            sensitivity = "2 S of the whole upload"
        else:
            neighbours = "one image of a client replaced by another of its class"
            given = "the client's extractor, though it was trained on the same images"
            number = "n_c" if self.counts == "public" else f"{self.floor} (the floor on n_c)"
            sensitivity = {
                "image": "2 S of a row",
                "class": f"2 S / {number} of a row",
                "mixture": f"max_c w_c 2 S / {number}",
            }[next(payload_kind(kind).computed_from for kind in plan.uploads if kind in VECTORS)]
            if self.counts == "public" and not any(kind in OF_IMAGES for kind in plan.uploads):
                clear.append("n_c, through the size of the noise")
            if self.floor > 1:
                clear.append(f"which classes have at least {self.floor} images")
        return {
            "epsilon": epsilon(z, plan.rounds, self.delta),
            "delta": self.delta,
            "noise_multiplier": z,
            "bound": self.bound,
            "norm": "L2",
            "unit": self.unit,
            "neighbours": neighbours,
            "given": given,
            "sensitivity": sensitivity,
            "releases": plan.rounds,
            "accountant": ACCOUNTANT,
            "not_protected": clear,
        }
