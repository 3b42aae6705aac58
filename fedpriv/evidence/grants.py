"""The grants of a knowledge card, taken from a finished run: extractors, heads, architectures, labels, batch facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from fedpriv.attacks.inversion.surrogate import ShadowModel, ShadowTraining, shadow_extractor, shadow_model
from fedpriv.attacks.observation import BatchFacts, Knowledge, KnowledgeCard, Observation, Rehearsal, WeightRehearsal
from fedpriv.attacks.trained import Same, Trained
from fedpriv.datasets.types import Samples
from fedpriv.evidence.client_states import state_behind, step_sizes
from fedpriv.evidence.foreign import foreign_images, refuse_foreign
from fedpriv.evidence.local_gradients import guarded_gradients
from fedpriv.evidence.norm_statistics import batch_norms, running_statistics
from fedpriv.evidence.rehearsal import changes_rows, changes_weights, rehearsed, rehearsed_weights
from fedpriv.evidence.traces import Granted, granted
from fedpriv.federation.method import State
from fedpriv.federation.prepared import Federation
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.federation.states import put
from fedpriv.models.build import build_model
from fedpriv.models.split import SplitModel
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import BESIDE_A_HEAD, CLASS_OUTPUTS, LAYERS, NETWORKS
from fedpriv.wire.payloads import PublicLoss

T = TypeVar("T")


def build_knowledge(
    run: RunDirectory,
    federation: Federation,
    kind: str,
    card: KnowledgeCard,
    round_: int,
    clients: set[int],
    observations: Sequence[Observation] = (),
    seed: int = 0,
    trained: Trained | None = None,
    every_extractor: bool = False,
) -> Knowledge:
    """Hand over what a card grants about the attacked clients and round, and nothing else.

    With ``every_extractor``, extractors behind the earlier uploads among the observations too, as far as the run keeps them.
    """
    if card.attacker_data == "other_domain":
        refuse_foreign(card, run.config)
    if card.attacker_data == "same_domain" and federation.attacker is None:
        raise UserError(
            f"{argument('knowledge', {'attacker_data': 'same_domain'})}: {run.path} set no images aside; train it with "
            f"{argument('strangers')} 0.5 or {argument('public')} N, or grant attacker_data=none"
        )
    first = federation.clients[0]
    weighty, updates = kind in NETWORKS, kind in NETWORKS | LAYERS
    model = _architecture(federation) if weighty else None
    card = _about_batch_norm(card, model)
    own = granted(run, federation, card, round_, clients, model, observations) if updates else Granted()
    private = kind in BESIDE_A_HEAD  # uploads that a private head had a part in
    asked = _Grants(run, federation, kind, card, round_, observations, seed, trained or Trained())
    if kind in CLASS_OUTPUTS and card.extractor == "shadow":
        return asked.shadow_models(clients)
    return Knowledge(
        card=card,
        image_shape=first.blueprint.image_shape,
        n_classes=first.n_classes,
        extractors={k: asked.extractor(k) for k in sorted(clients)} if card.extractor != "none" and not weighty else {},
        earlier=asked.earlier_extractors(clients) if every_extractor else {},
        heads={k: asked.head(k) for k in sorted(clients)} if card.extractor == "white_box" and private else {},
        model=model,
        batch=_protocol(federation) if card.batch else None,
        batches=own.batches,
        loss=_public_loss(federation, round_),
        defended=asked.defended(),
        defended_weights=asked.defended_weights(),
        gradients=guarded_gradients(federation, clients) if card.batch and kind in NETWORKS else {},
        statistics={(round_, k): running_statistics(run, model, kind, k, round_) for k in sorted(clients)}
        if model is not None and card.batch_norm == "running" and batch_norms(model)
        else own.statistics,
        labels=own.labels,
        public_images=_own_images(federation, card, seed),
        public_labels=_own_labels(federation, card),
    )


def _about_batch_norm(card: KnowledgeCard, model: SplitModel | None) -> KnowledgeCard:
    """Return the card that results carry: without batch norm there is nothing to grant, and cards do not differ in it."""
    if model is None:
        if card.batch_norm == "exact":
            raise UserError("knowledge batch_norm=exact: runs store no batch statistics; use running or none")
        return card
    if batch_norms(model):
        return card
    if card.batch_norm == "exact":
        raise UserError(
            "knowledge batch_norm=exact: the uploaded network has no batch norm, and so no statistics; drop the grant"
        )
    return replace(card, batch_norm=KnowledgeCard().batch_norm)


@dataclass(frozen=True)
class _Grants:
    """Grants about single clients, loaded or trained once each."""

    run: RunDirectory
    federation: Federation
    kind: str
    card: KnowledgeCard
    round: int
    observations: Sequence[Observation]
    seed: int
    kept: Trained

    def extractor(self, client: int) -> Callable[[Tensor], Tensor]:
        """Return a client's own extractor, or a substitute for it."""
        if self.card.extractor == "shadow":
            return self._fitted("shadow extractor", shadow_extractor, client)
        key = ("extractor", self.kind, self.round, client, self.card.extractor, self.card.batch_norm)
        return self.kept.get(key, lambda: self._load(client))

    def earlier_extractors(self, clients: set[int]) -> dict[tuple[int, int], Callable[[Tensor], Tensor]]:
        """Return (round, client) -> extractor behind an upload before the attacked one, of the rounds that the run keeps.

        Raises:
            UserError: when it keeps none of the rounds seen before.
        """
        seen = sorted({(one.round, one.client) for one in self.observations if one.round < self.round})
        kept = self.run.checkpointed_rounds()
        if not any(round_ in kept for round_, _ in seen):
            rounds = sorted({round_ for round_, _ in seen}) or [max(self.round - 1, 1)]
            raise UserError(
                f"{self.run.path}: an attack on all rounds together needs the extractors behind earlier uploads, and the "
                f"run keeps none; train with {argument('keep', rounds[-1])}, once for each round that is to count"
            )
        return {
            (round_, k): replace(self, round=round_).extractor(k)
            for round_, k in seen
            if round_ in kept and k in clients
        }

    def defended(self) -> dict[tuple[int, int], Rehearsal]:
        """Return (round, client) -> the defenses of an upload, for rows of the attacker's own."""
        return self._rehearsed(rehearsed) if changes_rows(self.federation.pipeline, self.kind) else {}

    def defended_weights(self) -> dict[tuple[int, int], WeightRehearsal]:
        """Return (round, client) -> the defenses of an upload, for weights of the attacker's own."""
        return self._rehearsed(rehearsed_weights) if changes_weights(self.federation.pipeline, self.kind) else {}

    def _rehearsed(self, find: Callable[..., T | None]) -> dict[tuple[int, int], T]:
        pipeline, n_classes = self.federation.pipeline, self.federation.clients[0].n_classes
        found: dict[tuple[int, int], T] = {}
        for seen in self.observations:
            where = (seen.round, seen.client)
            make = partial(find, pipeline, seen, self.kind, n_classes, self.run.config.rounds)
            one = self.kept.get(("rehearsed", self.kind, *where), make)
            if one is not None:
                found[where] = one
        return found

    def head(self, client: int) -> tuple[Tensor, Tensor]:
        """Return weight ``(C, d)`` and bias ``(C,)`` of a client's own head."""
        state = self._state(client)
        return state["model.head.weight"].cpu(), state["model.head.bias"].cpu()

    def shadow_models(self, clients: set[int]) -> Knowledge:
        """Hand over whole substitutes, where nothing was seen that an extractor alone could be fitted to."""
        own, first = _own_samples(self.federation, self.card), self.federation.clients[0]
        models: dict[int, ShadowModel] = {k: self._fitted("shadow model", shadow_model, k) for k in sorted(clients)}
        return Knowledge(
            card=self.card,
            image_shape=first.blueprint.image_shape,
            n_classes=first.n_classes,
            extractors={k: extractor for k, (extractor, _) in models.items()},
            heads={k: head for k, (_, head) in models.items()},
            public_images=own.images,
            public_labels=own.labels,
        )

    def _fitted(self, what: str, fit: Callable[..., T], client: int) -> T:
        own, n_classes = _own_samples(self.federation, self.card), self.federation.clients[0].n_classes
        key = (what, self.round, client, self.seed, ShadowTraining(), Same(self.federation), Same(own.images))
        return self.kept.get(key, lambda: fit(self.observations, client, self.round, own, n_classes, self.seed))

    def _load(self, client: int) -> Callable[[Tensor], Tensor]:
        model = build_model(self.federation.clients[client].blueprint, 0)
        fresh = {name: value.clone() for name, value in model.named_buffers()}
        put(model, self._state(client), "model")
        if self.card.batch_norm == "none":  # weights only: the statistics stay at their initial values
            with torch.no_grad():
                for name, value in model.named_buffers():
                    value.copy_(fresh[name])
        model.to(self.federation.server.device).eval().requires_grad_(False)
        return torch.no_grad()(model.represent) if self.card.extractor == "query" else model.represent

    def _state(self, client: int) -> State:
        return state_behind(self.run, self.federation, self.kind, client, self.round)


def _own_images(federation: Federation, card: KnowledgeCard, seed: int) -> Tensor | None:
    if card.attacker_data == "other_domain":
        return foreign_images(card.foreign, federation.clients[0].blueprint.image_shape, seed)
    own = federation.attacker if card.attacker_data == "same_domain" else None
    return None if own is None else own.images


def _own_labels(federation: Federation, card: KnowledgeCard) -> Tensor | None:
    own = federation.attacker if card.attacker_data == "same_domain" else None
    return None if own is None else own.labels.cpu()


def _own_samples(federation: Federation, card: KnowledgeCard) -> Samples:
    """Return the attacker's own images with labels, which a shadow is trained on."""
    if card.attacker_data != "same_domain" or federation.attacker is None:
        raise UserError(
            "knowledge extractor=shadow: a shadow extractor is trained on the attacker's own images; grant "
            "attacker_data=same_domain too"
        )
    return federation.attacker


def _architecture(federation: Federation) -> SplitModel:
    """Return the architecture whose weights travel, with weights of no meaning."""
    first = federation.clients[0]
    shared = federation.method.shared(first.blueprint, first.options)
    return build_model(shared, 0).to(federation.server.device).eval()


def _public_loss(federation: Federation, round_: int) -> PublicLoss:
    """Return the loss as method and training tell of it; momentum and weight decay are not followed by attacks."""
    training, own = federation.config.training, federation.clients[0].options
    loss = federation.method.public_loss(own, round_)
    besides, later = [loss.besides], [loss.later]
    if training.weight_decay:
        besides.append("weight decay moves the weights as well")
    if federation.pipeline.defenses and not any(kind in NETWORKS for kind in federation.method.broadcasts):
        besides.append("the weights that clients began with are known only as they were sent, after their defenses")
    if training.momentum:
        later.append("momentum carries gradients on")
    return replace(loss, besides="; ".join(filter(None, besides)), later="; ".join(filter(None, later)))


def _protocol(federation: Federation) -> BatchFacts:
    """Return the batch facts of every client: the largest batch and the largest number of steps."""
    training, each = federation.config.training, [step_sizes(federation, setup.client) for setup in federation.clients]
    return BatchFacts(
        batch_size=max((size for sizes in each for size in sizes), default=training.batch_size),
        learning_rate=federation.uploaded_rate,
        steps=max(map(len, each)) or 1,
    )
