"""An audit of a federation's claim by canaries: uploads that pass the defenses of a client, or images of its training.

The strongest canaries of DP-SGD (Nasr et al. 2023; Steinke et al. 2023, white-box setting): the gradient of a canary is one
entry, far beyond the clip. Each is in with probability 1/2, as one of the client's images: it is drawn into batches, clipped
and put under noise as they are. Coins are told from what the client uploaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.datasets.types import Samples
from fedpriv.defenses.signals import changed, norm, signal
from fedpriv.dp.verdict import Claim, Design, StatedClaim, audit_scores, chosen_claim, sentence, word
from fedpriv.eval.records import EpsilonBound, PrivacyAuditRecord
from fedpriv.federation.defense import GradientTransform, ProtectionPlan, Sender, Step, Work, defense_facts
from fedpriv.federation.method import GuardedTraining, LocalTraining
from fedpriv.federation.prepared import Federation, init_rng, protection_plan
from fedpriv.federation.rounds import ClientJob, client_part
from fedpriv.uploads.payload import Message, Payload
from fedpriv.util.errors import UserError
from fedpriv.util.parallel import Listener, Report
from fedpriv.util.seeds import derive_seed, generator

LEAST_CANARIES: Final = 16  # fewer show nothing
GIVEN: Final = {"Gaussian": "the mechanism is a Gaussian one, as the defense says"}
"""Name of a bound -> what it holds under."""

FAR: Final = 1000.0  # length of a client's canary in lengths of what it would have sent: beyond any clip
Signals = Mapping[str, Tensor]


class CanaryPair(NamedTuple):
    """Uploads with and without a canary as they reach the defenses, the canary's direction, and its sender."""

    present: Message
    absent: Message
    ray: Signals
    sender: Sender


def upload_scores(
    federation: Federation, pair: CanaryPair, rounds: int, coins: NDArray[np.bool_], seed: int, report: Report
) -> NDArray[np.float64]:
    """Return the score ``(m,)`` of each canary: what was sent in its ``rounds``, summed along its direction."""
    ray, sender = pair.ray, pair.sender
    scores = np.zeros(len(coins))
    for canary, included in enumerate(coins.tolist()):
        noise = derive_seed(seed, "privacy-audit", canary)
        for round_ in range(1, rounds + 1):
            message = pair.present if included else pair.absent
            message = federation.pipeline.upload(message, replace(sender, round=round_), noise)
            sent = _signals(message, sender.broadcast)
            if any(name not in ray or value.shape != ray[name].shape for name, value in sent.items()):
                raise UserError("a defense gives uploads another shape; no canary can be followed through it")
            scores[canary] += sum(float((value.double() * ray[name].double()).sum()) for name, value in sent.items())
        report(canary + 1, len(coins), f"{canary + 1:,} of {len(coins):,}")
    return scores


def canary_pair(federation: Federation, claim: Claim, seed: int) -> CanaryPair:
    """Return the canary of client 0, made from what it really uploads after one round.

    Present: an upload along one random direction, far longer than any clip. Absent: its opposite, or none of it where
    neighbours differ by being there.
    """
    setup = federation.clients[0]
    _, broadcast = federation.method.start(federation.server, init_rng(federation.config))
    state, rng = federation.initial_state(0), federation.client_rng(1, 0)
    _, message = federation.method.client_step(setup, state, broadcast, rng)
    sender = Sender(1, 0, setup.n_classes, setup.train.labels.cpu(), broadcast, federation.config.rounds)
    real = _signals(message, broadcast)
    if not real:
        raise UserError(f"clients of method {federation.method.name!r} upload nothing that a canary could be put into")
    rng = generator(seed, "privacy-audit", "direction")
    ray = {name: torch.randn(value.shape, generator=rng).to(value) for name, value in real.items()}
    length = FAR * max(1.0, claim.bound or 0.0, norm(real))
    ray = {name: value * (length / norm(ray)) for name, value in ray.items()}

    def times(side: float) -> Message:
        def scaled(number: int, payload: Payload) -> Payload:
            return changed(payload, broadcast, lambda name, _: side * ray[f"{number}.{payload.kind}.{name}"])

        return tuple(scaled(index, payload) for index, payload in enumerate(message))

    return CanaryPair(times(1.0), times(-1.0 if claim.replaced else 0.0), ray, sender)


def _signals(message: Message, broadcast: Message) -> dict[str, Tensor]:
    """Return the signals of all payloads of a message by ``place.kind.name``."""
    return {
        f"{index}.{payload.kind}.{name}": value
        for index, payload in enumerate(message)
        for name, value in signal(payload, broadcast).items()
    }


FAR_GRADIENT: Final = 1e4  # length of a canary's gradient: beyond any clip
MARK: Final = 2.0  # brightness from which on an image is a canary; true images end at 1
Places = list[tuple[str, int]]  # of each canary: the name of an uploaded tensor, and the entry that its gradient is


def audited_client(federation: Federation, coins: NDArray[np.bool_], seed: int) -> tuple[Federation, ProtectionPlan]:
    """Return a federation of client 0 alone, the canaries that are in (``coins``) among its images, and its plan."""
    setup = federation.clients[0]
    places, real = _coordinates(federation, len(coins), seed), setup.train
    numbers = np.flatnonzero(coins)
    marks = MARK + torch.as_tensor(numbers, dtype=torch.float32, device=real.images.device)
    images = marks[:, None, None, None].expand(-1, *real.images.shape[1:])
    labels = real.labels[torch.arange(len(numbers), device=real.labels.device) % len(real.labels)]
    joined = Samples(torch.cat([real.images, images]), torch.cat([real.labels, labels]))
    config = replace(federation.config, clients=1, participation=1.0)
    plain = {name: getattr(setup.training, name) for name in LocalTraining.__dataclass_fields__}
    extended = replace(setup, train=joined, training=LocalTraining(**plain))
    server = replace(federation.server, n_clients=1, blueprints=federation.server.blueprints[:1])
    plan = protection_plan(config, federation.method, (extended,))
    canaries: GradientTransform = lambda step: canary_step(step, places.__getitem__)  # noqa: E731
    guards = (canaries, *federation.pipeline.guards(plan))
    training = GuardedTraining(**plain, guards=guards, poisson=federation.pipeline.poisson())
    return replace(federation, config=config, clients=(replace(extended, training=training),), server=server), plan


def training_scores(federation: Federation, canaries: int, seed: int, report: Report) -> NDArray[np.float64]:
    """Return the scores ``(m,)`` of all canaries after one run: how far the uploads moved against their gradients."""
    places = _coordinates(federation, canaries, seed)
    method, config = federation.method, federation.config
    server, broadcast = method.start(federation.server, init_rng(config))
    state, total = federation.initial_state(0), np.zeros(canaries)
    for round_ in range(1, config.rounds + 1):
        result = client_part(federation, ClientJob(round_, 0, state, broadcast))
        state = result.state
        if result.upload:
            moved = {
                name.partition("/")[2]: value.flatten().cpu().double()
                for payload in result.upload
                for name, value in signal(payload, broadcast).items()
            }
            total -= [float(moved[name][entry]) for name, entry in places]
            rng = generator(config.seed, "server-step", round_)
            server, broadcast = method.server_step(federation.server, server, [(0, result.upload)], rng)
        report(round_, config.rounds, f"round {round_}")
    return total


def canary_step(step: Step, of: Callable[[int], tuple[str, int]]) -> Step:
    """Return the step whose canaries have a gradient of one entry each; other images are left to ``step``."""

    def stepped(work: Work, images: Tensor, labels: Tensor) -> Tensor:
        marks = images.flatten(1)[:, 0] if len(images) else images.new_zeros(0)
        canaries = marks >= MARK
        if not bool(canaries.any()):
            return step(work, images, labels)
        real, loss = int((~canaries).sum()), torch.zeros((), device=images.device)
        if real:
            loss = step(work, images[~canaries], labels[~canaries]) * real / len(images)
            for parameter in work.parameters:
                if parameter.grad is not None:
                    parameter.grad *= real / len(images)
        moved = set(map(id, work.parameters))
        for mark in marks[canaries].tolist():
            name, entry = of(round(mark - MARK))
            for whole, parameter in work.module.named_parameters():  # of that name, behind any prefix
                if id(parameter) not in moved or not f".{whole}".endswith(f".{name}"):
                    continue
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad[np.unravel_index(entry, parameter.shape)] += FAR_GRADIENT / len(images)
        return loss

    return stepped


def _coordinates(federation: Federation, canaries: int, seed: int) -> Places:
    """Draw an entry for each canary among the uploaded parameters; a UserError where there are fewer."""
    _, broadcast = federation.method.start(federation.server, init_rng(federation.config))
    known = [f".{name}" for name, _ in federation.clients[0].model.named_parameters()]
    sizes: dict[str, int] = {}
    for payload in broadcast:
        if payload.kind in federation.method.uploads:
            for name, value in payload.tensors().items():
                short = name.partition("/")[2]
                if any(parameter.endswith(f".{short}") for parameter in known):
                    sizes[short] = value.numel()
    number = sum(sizes.values())
    if number < canaries:
        raise UserError(
            f"{canaries:,} canaries need an uploaded weight each, and clients of method {federation.method.name!r} upload "
            f"{number:,}; take fewer canaries, or a larger model"
        )
    drawn = torch.randperm(number, generator=generator(seed, "privacy-audit", "coordinates"))[:canaries].numpy()
    ends, names = np.cumsum(list(sizes.values())), list(sizes)
    tensors = np.searchsorted(ends, drawn, side="right")
    return [(names[k], int(position - ends[k] + sizes[names[k]])) for position, k in zip(drawn, tensors, strict=True)]


@dataclass(frozen=True)
class PlannedAudit:
    """An audit in which nothing can be wrong any more but the mechanism."""

    federation: Federation  # its client 0 has the canaries that are in, where they are in training
    claim: Claim  # that the canaries are held against
    pair: CanaryPair | None  # behind the defenses of an upload; None where they are in local training, in one run
    coins: NDArray[np.bool_]  # a fair one for each canary: True where it is in
    confidence: float
    seed: int

    def run(self, listener: Listener, command: str) -> PrivacyAuditRecord:
        """Score the canaries and return the record; ``command`` does it again."""
        claim, coins, training = self.claim, self.coins, self.pair is None
        with listener.progress("training with canaries" if training else "canaries behind the defenses") as report:
            if self.pair is None:
                scores = training_scores(self.federation, len(coins), self.seed, report)
            else:
                with torch.no_grad():
                    scores = upload_scores(self.federation, self.pair, claim.rounds, coins, self.seed, report)
        if not bool(np.isfinite(scores).all()):
            raise UserError("a canary's score is NaN or infinite: training diverged, or a defense makes such uploads")
        design = Design(self.confidence, claim.delta, claim.gaussian and not training)
        audited = audit_scores(scores, coins, design)

        def finite(epsilon: float) -> float | None:  # None for more than any number
            return epsilon if np.isfinite(epsilon) else None

        verdict = word(claim.stated, audited.most, audited.control)
        return PrivacyAuditRecord(
            method=self.federation.method.name,
            dataset=self.federation.data.dataset.name,
            defense=" + ".join(defense_facts(item).label for item in self.federation.pipeline.defenses) or "none",
            claimant=claim.claimant,
            seed=self.seed,
            command=command,
            claim=claim.stated,
            way="training" if training else "uploads",
            canaries=len(scores),
            included=int(coins.sum()),
            confidence=self.confidence,
            delta=claim.delta,
            bounds=tuple(
                EpsilonBound.model_validate({"name": name, "epsilon": finite(bound), "given": GIVEN.get(name, "")})
                for name, bound in audited.bounds.items()
            ),
            attainable=finite(audited.attainable),
            control=finite(audited.control),
            verdict=verdict,
            sentence=sentence(claim.claimant, claim.stated, audited, verdict, len(scores), design),
        )


def plan_audit(
    federation: Federation, canaries: int, confidence: float, stated: StatedClaim | None, seed: int
) -> PlannedAudit:
    """Choose the claim of a prepared federation that is audited, and make its canaries.

    Claims about images that rest on guards of gradients are audited within local training; all others behind the defenses
    of an upload. A ``stated`` claim goes before those of defenses.
    """
    plan = protection_plan(federation.config, federation.method, federation.clients)
    coins = np.asarray(np.random.default_rng(derive_seed(seed, "privacy-audit", "coins")).random(canaries) < 0.5)
    rounds = federation.config.rounds
    claim = chosen_claim(federation.pipeline.privacy(plan), stated, rounds)
    if claim.unit == "client":
        return PlannedAudit(federation, claim, canary_pair(federation, claim, seed), coins, confidence, seed)
    if not federation.pipeline.guards(plan):
        raise UserError(
            "a claim about single images is audited within local training, behind dp-sgd; state unit=client"
        )
    alone, plan = audited_client(federation, coins, seed)
    return PlannedAudit(
        alone, chosen_claim(alone.pipeline.privacy(plan), stated, rounds), None, coins, confidence, seed
    )
