"""Flower's ``LocalDpMod``: clip the update, add Gaussian noise for a sensitivity that is given apart from the clip."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Lt

from fedpriv.algebra.gaussian_mechanism import ImpliedEpsilon, implied_epsilon
from fedpriv.defenses.shared.adapted import LIKENESS, MOST_LIKELY
from fedpriv.defenses.shared.gaussian import clipped_and_noisy
from fedpriv.defenses.shared.signals import in_clear, require
from fedpriv.federation.answer import NO_OTHERS, Answer
from fedpriv.federation.defense import Defense, ProtectionPlan, UploadContext
from fedpriv.wire.kinds import UPDATES
from fedpriv.wire.payloads import Message


@dataclass(frozen=True)
class LocalDp(Defense):
    """Clip the update of a client to norm C and add noise of s = D sqrt(2 ln(1.25 / delta)) / epsilon to every entry.

    As Flower's client mod does it: D, ``sensitivity``, is whatever the user writes, and has nothing to do with C. An update
    clipped to C moves by up to 2 C if the client's images are replaced, so the claimed epsilon follows for D = 2 C and
    epsilon <= 1, and need not follow otherwise. Records state both: what is claimed of each upload, and what clip and noise
    imply for one upload and for all rounds (:mod:`fedpriv.algebra.gaussian_mechanism`).

    Use ``dp-noise`` for noise that is computed from the clip and accounted for over the run.

    Attributes:
        clipping_norm: C > 0, the largest L2 norm of the whole update.
        sensitivity: D >= 0 from which the noise is computed; 0 is no noise.
        epsilon: claimed for each upload, > 0.
        delta: in (0, 1).
    """

    clipping_norm: Annotated[float, Gt(0)] = 1.0
    sensitivity: Annotated[float, Ge(0)] = 1.0
    epsilon: Annotated[float, Gt(0)] = 1.0
    delta: Annotated[float, Gt(0), Lt(1)] = 1e-5

    name: ClassVar[str] = "local-dp"
    source: ClassVar[str] = "LocalDpMod of Flower 1.41; Dwork and Roth 2014, theorem A.1"
    guarantee: ClassVar[str] = (
        "(epsilon, delta)-DP of a client's update, L2, by replacement of all its images: the epsilon that clip and noise "
        "imply, which need not be the one claimed"
    )
    answers: ClassVar[tuple[Answer, ...]] = (MOST_LIKELY, LIKENESS)
    unanswered: ClassVar[str] = NO_OTHERS

    def check(self, plan: ProtectionPlan) -> None:
        """Refuse methods that upload no updates."""
        require(self.name, plan, UPDATES)

    def upload(self, message: Message, context: UploadContext) -> Message:
        """Return the message with its clipped and noisy update."""
        return clipped_and_noisy(message, context, self.clipping_norm, self.implied(1).deviation)

    def implied(self, releases: int) -> ImpliedEpsilon:
        """Return the epsilon claimed beside those that follow, for a client that sends in so many rounds."""
        return implied_epsilon(self.clipping_norm, self.sensitivity, self.epsilon, self.delta, releases)

    def privacy(self, plan: ProtectionPlan) -> dict[str, Any]:
        """Return epsilon over all rounds as it follows, beside what is claimed."""
        found = self.implied(plan.rounds)
        return {
            "epsilon": _written(found.overall),
            "delta": self.delta,
            "epsilon_claimed_of_each_upload": found.claimed,
            "epsilon_implied_of_each_upload": _written(found.once),
            "claim": "follows" if found.follows else f"does not follow: {found.words}",
            "noise_multiplier": found.deviation / found.sensitivity,
            "bound": self.clipping_norm,
            "norm": "L2",
            "unit": "client",
            "neighbours": "all images of one client replaced by others of the same classes and numbers",
            "sensitivity": f"2 C of the whole update; the noise was computed for {self.sensitivity:g}",
            "releases": plan.rounds,
            "accountant": "exact, of composed Gaussian mechanisms (Balle and Wang 2018; Dong et al. 2019)",
            "not_protected": list(dict.fromkeys(what for kind in plan.uploads for what in in_clear(kind))),
        }


def _written(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None
