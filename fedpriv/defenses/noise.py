"""Noise on every entry of an upload: without a guarantee, with one that is accounted for, and as Flower's mod applies it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor

from fedpriv.defenses import accounting, signals
from fedpriv.defenses.signals import SignalDefense, in_clear, norm, signal, transform
from fedpriv.federation.answer import Answer
from fedpriv.federation.defense import ProtectionPlan, UploadContext
from fedpriv.models.build import build_model
from fedpriv.uploads.kinds import ROWS, STATES, UPDATES, payload_kind
from fedpriv.uploads.payload import Message
from fedpriv.util.errors import UserError

REPLACED = "all images of one client replaced by others of the same classes and numbers"
_OWN_SIZE = "every tensor has noise of its own size, and counts by it"
MOST_PASSES: Final = 1000  # over the entries of an update until enough are above a noisy threshold
Distribution = Literal["gaussian", "laplace"]


@dataclass(frozen=True)
class Noise(SignalDefense):
    """Add independent noise to every entry of a signal: a heuristic without a guarantee; nothing bounds the signal.

    Attributes:
        scale: standard deviation of the noise, of either distribution.
        kind: ``gaussian``, or ``laplace`` (of scale parameter scale / sqrt(2)).
        unit: ``rms`` for a multiple of each tensor's root mean square (of the update where a network is uploaded),
            ``absolute`` for the tensor's own units.
    """

    scale: Annotated[float, Gt(0)] = 0.1
    kind: Distribution = "gaussian"
    unit: Literal["rms", "absolute"] = "rms"

    name = "noise"
    source = "Zhu et al., NeurIPS 2019 (noisy gradients)"
    guarantee = "none (heuristic)"
    answers = (
        *signals.AVERAGED,
        Answer(signals.SEARCHES, signals.NETWORK_NAMES, {"match": "relative"}, {"unit": "rms"}, _OWN_SIZE),
        replace(signals.MOST_LIKELY, where={"unit": "absolute"}),
        *signals.UNCHANGED,
        Answer(("inverting-gradients", "membership"), ("low-rank-model",), note="as they are: go by direction"),
    )

    def change(self, value: Tensor, context: UploadContext) -> Tensor:
        rms = float(value.double().square().mean().sqrt()) if value.numel() else 0.0
        deviation = self.scale * (rms if self.unit == "rms" else 1.0)
        return value + deviation * standard_noise(value, self.kind, context.rng)


def standard_noise(like: Tensor, kind: Distribution, rng: torch.Generator) -> Tensor:
    """Return noise of zero mean and unit variance in the shape of a tensor, drawn on the CPU."""
    drawn = torch.randn(like.shape, generator=rng) if kind == "gaussian" else laplace(like.shape, rng) / math.sqrt(2)
    return drawn.to(like)


def laplace(shape: torch.Size, rng: torch.Generator) -> Tensor:
    """Return float32 draws of the Laplace distribution of scale 1 (variance 2)."""
    uniform = torch.rand(shape, generator=rng, dtype=torch.float64) - 0.5
    return (-uniform.sign() * torch.log1p(-2 * uniform.abs().clamp(max=0.5 - 1e-16))).float()


def clipped_and_noisy(message: Message, context: UploadContext, bound: float, deviation: float) -> Message:
    """Return a message whose signals together are no longer than ``bound``, with Gaussian noise on every entry."""
    parts = [signal(payload, context.broadcast) for payload in message]
    length = norm({f"{index}.{name}": value for index, values in enumerate(parts) for name, value in values.items()})
    share = min(1.0, bound / max(length, 1e-12))

    def change(_: str, value: Tensor) -> Tensor:
        return value * share + deviation * standard_noise(value, "gaussian", context.rng)

    return transform(message, context.broadcast, change)


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

    name = "dp-noise"
    source = "Gaussian mechanism; Mironov, CSF 2017 (Renyi accounting)"
    guarantee = "(epsilon, delta)-DP over all rounds, L2, by replacement of a client's images"
    answers = (*signals.AVERAGED, signals.MOST_LIKELY, *signals.UNCHANGED)
    fits = ROWS | UPDATES

    def __post_init__(self) -> None:
        accounting.refuse_two_targets(self.name, self.noise_multiplier, self.epsilon)

    def check(self, plan: ProtectionPlan) -> None:
        super().check(plan)
        self.privacy(plan)  # says before training that opacus is missing

    def upload(self, message: Message, context: UploadContext) -> Message:
        return clipped_and_noisy(message, context, self.bound, self.multiplier(context.rounds) * 2 * self.bound)

    def multiplier(self, rounds: int) -> float:
        """Return z for a run of so many rounds."""
        if self.epsilon is None:
            return self.noise_multiplier or 0.0
        return accounting.noise_multiplier_for(self.epsilon, self.delta, rounds)

    def privacy(self, plan: ProtectionPlan) -> dict[str, Any]:
        z = self.multiplier(plan.rounds)
        return {
            "epsilon": accounting.epsilon(z, plan.rounds, self.delta),
            "delta": self.delta,
            "noise_multiplier": z,
            "bound": self.bound,
            "norm": "L2",
            "unit": "client",
            "neighbours": REPLACED,
            "given": "",
            "sensitivity": "2 S of the whole upload",
            "releases": plan.rounds,
            "accountant": accounting.ACCOUNTANT,
            "not_protected": in_clear(plan),
        }


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

    name = "local-dp"
    source = "LocalDpMod of Flower 1.41; Dwork and Roth 2014, theorem A.1"
    guarantee = (
        "(epsilon, delta)-DP of a client's update, L2, by replacement of all its images: the epsilon that clip and noise "
        "imply, which need not be the one claimed"
    )
    answers = (signals.MOST_LIKELY, signals.LIKENESS)
    fits = UPDATES

    def upload(self, message: Message, context: UploadContext) -> Message:
        return clipped_and_noisy(message, context, self.clipping_norm, self.implied(1).deviation)

    def implied(self, releases: int) -> accounting.ImpliedEpsilon:
        """Return the epsilon claimed beside those that follow, for a client that sends in so many rounds."""
        return accounting.implied_epsilon(self.clipping_norm, self.sensitivity, self.epsilon, self.delta, releases)

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


@dataclass(frozen=True)
class SvtPrivacy(SignalDefense):
    """Send a share of an update's entries, chosen by the sparse vector technique, clipped and under Laplace noise.

    With N entries in the update, n local steps, u = update / n cut to [-gamma, gamma], and c = ceil(fraction N): an entry
    passes where |u| + Lap(2 gamma c / e2) is at least tau + Lap(gamma / e1), drawn once. Entries that fail are asked again
    until c have passed; c of those that passed are drawn, and n (u + Lap(2 gamma c / e3)) is sent of each. The others
    become zero; tensors without a dimension pass as they are. e1 + e2 = ``epsilon``, e2 / e1 = (2 c)^(2/3) and e3 = c
    ``noise_var``: an upload spends epsilon + c noise_var, as NVFlare's accountant has it. More than c may pass, which
    the proof of the technique, of c answers, does not cover.

    Attributes:
        fraction: in (0, 1], of the entries of the upload.
        epsilon: > 0, of choosing; not of what is sent.
        noise_var: > 0, epsilon of each entry that is sent.
        gamma: > 0, in units of the weights and per step.
        tau: threshold, in the same units.
        replace: c are drawn with replacement, so that fewer are sent.
        steps: n as the client states it; clients that state none count as 1.
    """

    fraction: Annotated[float, Gt(0), Le(1)] = 0.1
    epsilon: Annotated[float, Gt(0)] = 0.1
    noise_var: Annotated[float, Gt(0)] = 0.1
    gamma: Annotated[float, Gt(0)] = 1e-5
    tau: Annotated[float, Ge(0)] = 1e-6
    replace: bool = True
    steps: Annotated[int, Ge(1)] = 1

    name = "svt-privacy"
    source = "SVTPrivacy of NVFlare 2.9; Li et al., MLMI 2019; Lyu et al., VLDB 2017 (budgets)"
    guarantee = "epsilon-DP of a client's update, by replacement of all its images, with a large epsilon"
    answers = (
        Answer(signals.SEARCHES, signals.NETWORK_NAMES, {"match": "sent"}, note="leaves out what was not sent"),
        signals.LIKENESS,
    )
    fits = STATES

    def upload(self, message: Message, context: UploadContext) -> Message:
        flat = [value.flatten() for payload in message for value in signal(payload, context.broadcast).values()]
        entries = torch.cat(flat).double().cpu() / self.steps
        sent = iter((self.sent(entries, context.rng) * self.steps).split([len(part) for part in flat]))

        def change(_: str, value: Tensor) -> Tensor:
            new = next(sent).reshape(value.shape).to(value)
            return new if value.dim() else value

        return transform(message, context.broadcast, change)

    def sent(self, entries: Tensor, rng: torch.Generator) -> Tensor:
        """Return what is sent of the entries ``(N,)`` of one step."""
        count = self.count(len(entries))
        share = self.epsilon / (1 + (2 * count) ** (2 / 3))
        clipped = entries.clamp(-self.gamma, self.gamma)
        threshold = self.tau + float(laplace(torch.Size([1]), rng)) * self.gamma / share
        passed, spread = torch.zeros(len(entries), dtype=torch.bool), 2 * self.gamma * count / (self.epsilon - share)
        for _ in range(MOST_PASSES):
            passed |= clipped.abs() + spread * laplace(entries.shape, rng) >= threshold
            if int(passed.sum()) >= count:
                break
        else:
            advice = "take a smaller tau or fraction, or a larger gamma"
            raise UserError(f"defense {self.name!r}: too few entries come near the threshold {threshold:.3g}; {advice}")
        places = passed.nonzero().squeeze(1)
        if self.replace:
            places = places[torch.randint(len(places), (count,), generator=rng)].unique()
        else:
            places = places[torch.randperm(len(places), generator=rng)[:count]]
        noise = laplace(places.shape, rng).double() * 2 * self.gamma / self.noise_var
        return torch.zeros_like(clipped).index_copy_(0, places, clipped[places] + noise)

    def count(self, number: int) -> int:
        """Return c of an update of so many entries."""
        return min(number, math.ceil(number * self.fraction))

    def privacy(self, plan: ProtectionPlan) -> dict[str, Any]:
        count = self.count(_uploaded_entries(plan))
        return {
            "epsilon": plan.rounds * (self.epsilon + count * self.noise_var),
            "delta": 0.0,
            "bound": self.gamma * self.steps,
            "norm": "each entry",
            "unit": "client",
            "neighbours": REPLACED,
            "given": "the proof covers uploads of which no more entries pass than are sent",
            "sensitivity": f"2 gamma of each of {count:,} entries that are sent",
            "releases": plan.rounds,
            "accountant": "pure DP, summed (as SVTPrivacy has it)",
            "not_protected": in_clear(plan),
        }


def _uploaded_entries(plan: ProtectionPlan) -> int:
    """Return the number of weights that a client uploads."""
    model, parts = build_model((plan.trained or plan.blueprints)[0], 0), {"head": (True,), "extractor": (False,)}
    sent = [parts.get(str(payload_kind(kind).network), (True, False)) for kind in plan.uploads if kind in STATES]
    weights = [(name.startswith("head."), value.numel()) for name, value in model.named_parameters()]
    return sum(size for sides in sent for in_head, size in weights if in_head in sides)
