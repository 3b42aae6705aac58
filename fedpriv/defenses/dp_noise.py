"""Gaussian noise that makes an upload differentially private."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Gt, Lt

from fedpriv.defenses.accounting import (
    ACCOUNTANT,
    epsilon,
    noise_multiplier_for,
    refuse_two_targets,
)
from fedpriv.defenses.noise import clipped_and_noisy
from fedpriv.defenses.signals import (
    AVERAGED,
    CLASS_IDS,
    COMPARED,
    LIKENESS,
    MOST_LIKELY,
    SignalDefense,
    in_clear,
)
from fedpriv.federation.defense import ProtectionPlan, UploadContext
from fedpriv.uploads.kinds import ROWS, UPDATES
from fedpriv.uploads.payload import Message

REPLACED = "all images of one client replaced by others of the same classes and numbers"


@dataclass(frozen=True)
class DPNoise(SignalDefense):
    """Clip, add Gaussian noise in proportion to the sensitivity, and account for all rounds.

    All images of a client are replaced by others of the same classes and numbers: the signals of an upload together (for
    networks: the difference from the broadcast), clipped to ``bound`` = S, move by at most 2 S in the L2 norm, whatever
    happened in training. Each release is a Gaussian mechanism of noise multiplier z = (standard deviation) / (2 S); all
    rounds are composed, as if the client took part in each. Classes, counts and label encodings travel in clear, which
    the record names. Noise comes from the run's seed: a simulation of the mechanism, not a deployment of it. For single
    images see ``dp-sgd``.

    Attributes:
        bound: S > 0, in units of the representation or of the weights.
        noise_multiplier: z > 0; or
        epsilon: the target over the whole run, from which z is computed; exactly one of the two.
        delta: in (0, 1).
    """

    bound: Annotated[float, Gt(0)] = 1.0
    noise_multiplier: Annotated[float, Gt(0)] | None = None
    epsilon: Annotated[float, Gt(0)] | None = None
    delta: Annotated[float, Gt(0), Lt(1)] = 1e-5

    name: ClassVar[str] = "dp-noise"
    source: ClassVar[str] = "Gaussian mechanism; Mironov, CSF 2017 (Renyi accounting)"
    guarantee: ClassVar[str] = "(epsilon, delta)-DP over all rounds, L2, by replacement of a client's images"
    answers = (*AVERAGED, MOST_LIKELY, LIKENESS, CLASS_IDS, COMPARED)
    fits = ROWS | UPDATES

    def __post_init__(self) -> None:
        refuse_two_targets(self.name, self.noise_multiplier, self.epsilon)

    def check(self, plan: ProtectionPlan) -> None:
        super().check(plan)
        self.privacy(plan)  # says before training that opacus is missing

    def upload(self, message: Message, context: UploadContext) -> Message:
        return clipped_and_noisy(message, context, self.bound, self.multiplier(context.rounds) * 2 * self.bound)

    def multiplier(self, rounds: int) -> float:
        """Return z for a run of so many rounds."""
        if self.epsilon is None:
            return self.noise_multiplier or 0.0
        return noise_multiplier_for(self.epsilon, self.delta, rounds)

    def privacy(self, plan: ProtectionPlan) -> dict[str, Any]:
        z = self.multiplier(plan.rounds)
        return {
            "epsilon": epsilon(z, plan.rounds, self.delta),
            "delta": self.delta,
            "noise_multiplier": z,
            "bound": self.bound,
            "norm": "L2",
            "unit": "client",
            "neighbours": REPLACED,
            "given": "",
            "sensitivity": "2 S of the whole upload",
            "releases": plan.rounds,
            "accountant": ACCOUNTANT,
            "not_protected": in_clear(plan),
        }
