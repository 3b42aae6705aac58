"""A run of fedpriv as a source: its stored messages, what its federation grants, and its private trace for scorers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpriv.attacks.contract import Same, Trained
from fedpriv.attacks.observation import BatchFacts, Observation, Statistics, TargetId, ThreatModel
from fedpriv.datasets.types import Samples, as_unit
from fedpriv.defenses import build_defenses
from fedpriv.federation import prepared
from fedpriv.federation.capture import load_trace, trace_path
from fedpriv.federation.local_training import batch_sizes, has_batch_norm, represent
from fedpriv.federation.method import GuardedTraining, Method, own_architecture
from fedpriv.federation.prepared import Federation
from fedpriv.federation.run_directory import RunConfig, RunDirectory, dataset_title
from fedpriv.federation.states import State, put
from fedpriv.methods import METHODS
from fedpriv.models import MODELS
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint, SplitModel
from fedpriv.sources.source import Source, batch_norms
from fedpriv.sources.truth import ENOUGH_DECOYS, MOST_VALUES, Holdings, Pool
from fedpriv.uploads.kinds import ANSWERS, BESIDE_A_HEAD, HEADS, LAYERS, NETWORKS, TRAINED, WHOLE, payload_kind
from fedpriv.uploads.payloads import Message, Model, PublicLoss, Representations, get_payload
from fedpriv.util.errors import UserError, shown
from fedpriv.util.seeds import generator

_FEW = 2**13
"""Numbers of a message that is kept in memory; larger ones are read each time."""


def prepare(config: RunConfig, device: torch.device, *, download: bool = False) -> Federation:
    """Look up a run's method and defenses, load data, choose models and check the plan."""
    method, defenses = METHODS.load(config.method), build_defenses(config.defenses)
    return prepared.prepare(config, method, device, download=download, defenses=defenses)


def _scratch(blueprint: Blueprint) -> SplitModel:
    """Return a model whose weights others replace: a copy, which is faster than to draw them, of one that can be copied."""
    return deepcopy(_template(blueprint)) if blueprint.name in MODELS.builtins else build_model(blueprint, 0)


@lru_cache(maxsize=16)
def _template(blueprint: Blueprint) -> SplitModel:
    return build_model(blueprint, 0)


class RunSource(Source):
    """One kind of upload of a finished run, whose federation was prepared again from its configuration."""

    def __init__(self, run: RunDirectory, federation: Federation, kind: str) -> None:
        if kind not in federation.uploads:
            sent = ", ".join(federation.uploads) or "nothing"
            who = f"clients of {federation.method.name!r}"
            raise UserError(f"{run.path}: {who} upload no {kind!r}; they upload: {sent}")
        first = federation.clients[0]
        self.run, self.federation, self.kind = run, federation, kind
        self.image_shape, self.n_classes = first.blueprint.image_shape, first.n_classes
        self.device, self.uploads, self.pipeline = federation.server.device, federation.uploads, federation.pipeline
        self._small: dict[Path, Message] = {}  # messages that are read once and kept
        self.total_rounds, self.summed = run.config.rounds, federation.pipeline.server_view == "sum"

    @classmethod
    def open(cls, path: Path, kind: str, device: torch.device, *, download: bool = False) -> RunSource:
        """Open a run."""
        run = RunDirectory.open(path)
        run.require_complete()
        return cls(run, prepare(run.config, device, download=download), kind)

    def __str__(self) -> str:
        """The folder."""
        return str(self.run.path)

    # ------------------------------------------------------------ what the server saw

    def rounds(self) -> Mapping[int, Sequence[int]]:
        return self._rounds

    @cached_property
    def _rounds(self) -> Mapping[int, Sequence[int]]:
        return self.run.captured_rounds()

    def upload(self, round_: int, client: int) -> Message:
        return self._kept(self.run.upload_path(round_, client))

    def _kept(self, path: Path) -> Message:
        if path in self._small:
            return self._small[path]
        message = self.run.message(path)
        if sum(value.numel() for payload in message for value in payload.tensors().values()) <= _FEW:
            self._small[path] = message
        return message

    def observations(self, rounds: Sequence[int]) -> tuple[Observation, ...]:
        there = self.rounds()
        seen = tuple(
            Observation(number, client, self.upload(number, client), broadcast)
            for number in rounds
            for broadcast in (self._kept(self.run.broadcast_path(number)),)
            for client in there[number]
        )
        if self.kind not in NETWORKS:
            return seen
        refuse_mixed(self.federation.method, self.kind, [setup.blueprint.name for setup in self.federation.clients])
        return tuple(map(self._started, seen))

    def _started(self, seen: Observation) -> Observation:
        """Add the weights that a client started from, where the method broadcasts none, since clients go on from theirs.

        The server has what the client uploaded before; at first, the initial weights, which it drew itself.
        """
        sent = NETWORKS.first(seen.upload)
        if not isinstance(sent, Model) or NETWORKS.first(seen.broadcast) is not None:
            return seen
        lines = [line for line in self.run.rounds() if line.round < seen.round and seen.client in line.participants]
        if not lines:
            state = self.federation.initial_state(seen.client)
            first = Model({name: state[f"model.{name}"] for name in sent.state})
            return replace(seen, broadcast=(first, *seen.broadcast))
        before = lines[-1].round
        if seen.client not in self.rounds().get(before, ()):
            raise UserError(
                f"{self}: clients go on from their own weights, known from the upload before, and that of round {before} "
                f"is not stored: attack round 1, or train with capture='all'"
            )
        last = NETWORKS.first(self.upload(before, seen.client))
        return seen if last is None else replace(seen, broadcast=(last, *seen.broadcast), continued=True)

    def has_images(self, round_: int, client: int) -> bool:
        if self.kind not in NETWORKS | LAYERS:
            return True
        training = self.federation.clients[client].training
        if isinstance(training, GuardedTraining) and training.poisson:
            return len(self.used(round_, client)) > 0
        return bool(step_sizes(self.federation, client))

    def usable_rounds(self, card: ThreatModel) -> Sequence[int]:
        uploads_alone = self.kind in ANSWERS or (self.kind in HEADS and card.extractor == "none")
        return sorted(self.rounds()) if uploads_alone else rounds_with_networks(self.run, self.kind)

    # ------------------------------------------------------------ grants

    def settled(self, card: ThreatModel) -> ThreatModel:
        if card.attacker_data == "same_domain" and self.federation.attacker is None:
            where = f"knowledge={shown({'attacker_data': 'same_domain'})}: {self}"
            raise UserError(f"{where} set no images aside; train it with auxiliary 0.5, or set attacker_data=none")
        if self.model is None or batch_norms(self.model):
            return card
        # Without batch norm there is nothing to grant, and cards do not differ in it.
        return replace(card, batch_norm=ThreatModel().batch_norm)

    @cached_property
    def model(self) -> SplitModel | None:  # type: ignore[override]
        """The architecture whose weights travel, with weights of no meaning."""
        if self.kind not in NETWORKS:
            return None
        first = self.federation.clients[0]
        shared = self.federation.method.shared(first.blueprint, first.options)
        return build_model(shared, 0).to(self.device).eval()

    def extractor(self, round_: int, client: int, card: ThreatModel) -> Callable[[Tensor], Tensor]:
        model = _scratch(self.federation.clients[client].blueprint)
        fresh = {name: value.clone() for name, value in model.named_buffers()}
        put(model, self._state(round_, client), "model")
        if card.batch_norm == "none":  # weights only: the statistics stay at their initial values
            model.load_state_dict(fresh, strict=False)
        return model.to(self.device).eval().requires_grad_(False).represent

    def extractor_rounds(self) -> Collection[int]:
        return self.run.checkpointed_rounds()

    def head(self, round_: int, client: int) -> tuple[Tensor, Tensor] | None:
        if self.kind not in BESIDE_A_HEAD:
            return None
        state = self._state(round_, client)
        return state["model.head.weight"].cpu(), state["model.head.bias"].cpu()

    def _state(self, round_: int, client: int) -> State:
        """Return the client state that an upload was computed with: its extractor, and the head if that stayed private.

        That is the state at the end of the round; an extractor too: FedRep trains the head first, then the extractor through
        it. Of the update of a layer it is the state at the start of the round, after its broadcast, where the round was one
        step; otherwise the extractor moved, and the state at the end stands for it.
        """
        federation = self.federation
        group = federation.clients if self.kind in LAYERS else ()
        single = {len(step_sizes(federation, setup.client)) for setup in group} == {1}
        number, kept = round_ - single, self.run.checkpointed_rounds()
        if number and number not in kept:
            raise UserError(
                f"{self}: a white-box extractor of round {round_} needs the checkpoint of round {number}; kept: "
                f"{', '.join(map(str, kept)) or 'none'} (train with keep={shown([number])})"
            )
        state = self.run.client_state(number, client) if number else federation.initial_state(client)
        if not single:
            return state
        broadcast = self.run.message(self.run.broadcast_path(round_))
        return federation.method.apply_broadcast(federation.clients[client], state, broadcast)

    def protocol(self, clients: Collection[int]) -> BatchFacts | None:
        federation = self.federation
        each = [step_sizes(federation, setup.client) for setup in federation.clients]
        largest = max((size for sizes in each for size in sizes), default=federation.config.training.batch_size)
        return BatchFacts(largest, federation.config.training.learning_rate, max(map(len, each)) or 1)

    def batch(self, round_: int, client: int) -> BatchFacts | None:
        if self.kind not in NETWORKS | LAYERS:
            return None
        # Empty batches, which Poisson samples may be, are no steps.
        sizes = tuple(len(step) for step in local_steps(self.run, round_, client) if len(step))
        largest = max(sizes, default=self.federation.config.training.batch_size)
        return BatchFacts(largest, self.federation.config.training.learning_rate, len(sizes) or 1, sizes)

    def loss(self, round_: int) -> PublicLoss:
        federation, training = self.federation, self.federation.config.training
        loss = federation.method.public_loss(federation.clients[0].options, round_)
        # Attacks follow neither weight decay nor momentum. Weights that clients uploaded before are known as defended.
        start_unknown = federation.pipeline.defenses and not any(k in NETWORKS for k in federation.method.broadcasts)
        return replace(
            loss,
            disturbed=loss.disturbed or bool(training.weight_decay or start_unknown),
            disturbed_later=loss.disturbed_later or bool(training.momentum),
        )

    def statistics(self, card: ThreatModel, client: int, seen: Observation) -> Statistics | None:
        if self.model is None or card.batch_norm == "none" or not batch_norms(self.model):
            return None
        if seen.round not in self.run.checkpointed_rounds():
            raise UserError(
                f"{self}: knowledge={shown({'batch_norm': 'running'})}: the checkpoint of round {seen.round} was not kept; "
                f"pass knowledge={shown({'batch_norm': 'none'})}, or train with keep=[{seen.round}]"
            )
        state = self.run.client_state(seen.round, client)
        prefix = "small" if payload_kind(self.kind).network == "small" else "model"
        return {
            name: (state[f"{prefix}.{name}.running_mean"].cpu(), state[f"{prefix}.{name}.running_var"].cpu())
            for name in batch_norms(self.model)
        }

    def auxiliary_images(self, card: ThreatModel) -> tuple[Tensor | None, Tensor | None]:
        current = self.federation.attacker if card.attacker_data == "same_domain" else None
        return (None, None) if current is None else (current.images, current.labels.cpu())

    # ------------------------------------------------------------ the truth

    def private(self, client: int) -> Samples:
        return self.federation.clients[client].train.to(torch.device("cpu"))

    def used(self, round_: int, client: int) -> Tensor:
        return torch.cat([torch.empty(0, dtype=torch.int64), *local_steps(self.run, round_, client)])

    def rows(self, target: TargetId) -> Tensor:
        if not self.pipeline.defenses:
            return super().rows(target)
        sent = get_payload(self.upload(target.round, target.client), Representations).labels  # defenses drop classes
        return torch.isin(self.private(target.client).labels, sent).nonzero().squeeze(1)

    def mixture(self, target: TargetId) -> Tensor:
        weights = load_trace(self.run, target.round, target.client).weights
        if weights is None:
            path = trace_path(self.run, target.round, target.client)
            raise UserError(f"{path}: the mixture's weights were not recorded; call trace.mixture where they are drawn")
        return weights.double()

    def pool(self, client: int, seed: int, kept: Trained) -> Pool:
        return kept.get(("pool", client, seed, Same(self.federation)), lambda: self._pool(client, seed))

    def _pool(self, client: int, seed: int) -> Pool:
        """Draw from everything that is not in a client's training set, none of the attacker's own.

        All images that there are while :data:`MOST_VALUES` allows it, else as many of each class, first of those that no
        client trained on.
        """
        data = self.federation.data
        parts = [data.dataset.samples] + ([] if data.auxiliary is None else [data.auxiliary.others])
        images, labels = torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts])
        order = torch.randperm(len(images), generator=generator(seed, "strangers"))
        order[np.concatenate([each.train_index for each in data.clients])] += len(images)
        outside = torch.ones(len(images), dtype=torch.bool)
        outside[data.clients[client].train_index] = False
        classes = labels.unique().tolist()
        most = max(2 * ENOUGH_DECOYS, MOST_VALUES // (images[0].numel() * len(classes)))
        kept = []
        for label in classes:
            of_class = (outside & (labels == label)).nonzero().squeeze(1)
            kept.append(of_class[order[of_class].argsort()[:most]])
        index = torch.cat(kept).sort().values
        return Pool.divided(as_unit(images[index]), labels[index], seed, "strangers", client)

    def feature(self, target: TargetId, images: Tensor) -> Tensor | None:
        model = _scratch(self.federation.clients[target.client].blueprint)
        put(model, self._state(target.round, target.client), "model")
        return represent(model, images).mean(0)

    def holdings(self, rounds: Collection[int], clients: Collection[int]) -> Holdings:
        group, there = dict(enumerate(self.federation.data.clients)), self.rounds()
        train = {client: np.asarray(data.train_index) for client, data in group.items()}
        used = {}
        for k in clients if self.kind in TRAINED else ():  # of other kinds all images went into an upload
            steps = [self.used(number, k) for number in sorted(rounds) if k in there[number]]
            used[k] = train[k][torch.cat(steps).unique().numpy()]
        held_out = {client: np.asarray(data.test_index) for client, data in group.items()}
        return Holdings(self.federation.data.dataset.samples, train, used, held_out, self.device)

    def described(self, round_: int | None) -> dict[str, Any]:
        config, summary = self.run.config, self.run.summary
        # For a round that was not evaluated stands the newest before it that was, or the first.
        lines = [row for row in self.run.rounds() if row.accuracy]
        line = ([row for row in lines if round_ is None or row.round <= round_] or lines[:1])[-1]
        return {
            "method": config.method,
            "dataset": dataset_title(config),
            "run": config,
            "images": summary.images,
            "defenses": summary.defenses,
            "accuracy": line.accuracy["after_training"].pooled,
        }


# ---------------------------------------------------------------- local training and its trace


def step_sizes(federation: Federation, client: int) -> list[int]:
    """Return the sizes of the batches of a client's local steps in a round, as the protocol has them."""
    setup = federation.clients[client]
    trained = (setup.model, setup.scratch(federation.method.shared(setup.blueprint, setup.options)))
    return batch_sizes(len(setup.train), setup.training, join_single=any(map(has_batch_norm, trained)))


def local_steps(run: RunDirectory, round_: int, client: int) -> tuple[Tensor, ...]:
    """Return the batches of the local steps behind an upload, as indices into the client's training set."""
    steps = load_trace(run, round_, client).steps
    if steps is None:
        raise UserError(
            f"{trace_path(run, round_, client)}: method {run.config.method!r} noted no local steps, without which nothing "
            "can be scored; hand setup.trace to train, or call its local_steps"
        )
    return steps


def refuse_mixed(method: Method, kind: str, architectures: Collection[str]) -> None:
    """Refuse attacks on whole private models where clients' architectures differ: one is handed to attacks."""
    if kind in NETWORKS and method.shared is own_architecture and len(set(architectures)) > 1:
        raise UserError(
            f"target={shown(kind)}: clients upload models of different architectures, and attacks take one "
            f"({', '.join(sorted(set(architectures)))}); train with one of them: models={shown(min(architectures))}"
        )


def rounds_with_networks(run: RunDirectory, kind: str) -> tuple[int, ...]:
    """Return the stored rounds whose uploads of a kind can be attacked with the network behind them.

    No checkpoint is needed where the upload holds all that its attackers differentiate through. An extractor does not: its
    gradient is matched through a head that stays private, which the checkpoint has.
    """
    kept = {0, *run.checkpointed_rounds()}
    there = sorted(run.captured_rounds())
    return tuple(n for n in there if kind in WHOLE or n in kept or (kind in LAYERS and n - 1 in kept))
