"""Local differential privacy as Flower's mod applies it: clip, then Gaussian noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Lt

from fedpriv.defenses.accounting import (
    ImpliedEpsilon,
    implied_epsilon,
)
from fedpriv.defenses.dp_noise import REPLACED
from fedpriv.defenses.noise import clipped_and_noisy
from fedpriv.defenses.signals import (
    LIKENESS,
    MOST_LIKELY,
    SignalDefense,
    in_clear,
)
from fedpriv.federation.defense import ProtectionPlan, UploadContext
from fedpriv.uploads.kinds import UPDATES
from fedpriv.uploads.payload import Message


@dataclass(frozen=True)
class LocalDp(SignalDefense):
    """Clip the update to norm C, add noise of s = D sqrt(2 ln(1.25 / delta)) / epsilon to every entry (Flower's mod).

    D, ``sensitivity``, is whatever the user writes, and has nothing to do with C. An update clipped to C moves by up to
    2 C if the client's images are replaced, so the claimed epsilon follows for D = 2 C and epsilon <= 1, and need not
    follow otherwise. Records state what is claimed of each upload, and what clip and noise imply for one and for all
    rounds (:mod:`fedpriv.defenses.accounting`). See ``dp-noise`` for noise that is computed from the clip.

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
    answers = (MOST_LIKELY, LIKENESS)
    fits = UPDATES

    def upload(self, message: Message, context: UploadContext) -> Message:
        return clipped_and_noisy(message, context, self.clipping_norm, self.implied(1).deviation)

    def implied(self, releases: int) -> ImpliedEpsilon:
        """Return the epsilon claimed beside those that follow, for a client that sends in so many rounds."""
        return implied_epsilon(self.clipping_norm, self.sensitivity, self.epsilon, self.delta, releases)

    def privacy(self, plan: ProtectionPlan) -> dict[str, Any]:
        implied = self.implied(plan.rounds)
        return {
            "epsilon": implied.overall if math.isfinite(implied.overall) else None,
            "delta": self.delta,
            "epsilon_claimed_of_each_upload": implied.claimed,
            "epsilon_implied_of_each_upload": implied.once if math.isfinite(implied.once) else None,
            "claim": "follows" if implied.follows else f"does not follow: {implied.words}",
            "noise_multiplier": implied.deviation / implied.sensitivity,
            "bound": self.clipping_norm,
            "norm": "L2",
            "unit": "client",
            "neighbours": REPLACED,
            "sensitivity": f"2 C of the whole update; the noise was computed for {self.sensitivity:g}",
            "releases": plan.rounds,
            "accountant": "exact, of composed Gaussian mechanisms (Balle and Wang 2018; Dong et al. 2019)",
            "not_protected": in_clear(plan),
        }
