"""Class means that clients upload, and the table of them that the server broadcasts (FedProto, FedTGP, FPL, FD)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedpriv.federation.local_training import class_means, represent
from fedpriv.federation.method import ClientSetup, ServerSetup, Uploads
from fedpriv.federation.states import State
from fedpriv.methods import weights
from fedpriv.models.split import Blueprint
from fedpriv.uploads.payloads import ClassLogits, Message, Prototypes, find_payload, get_payload


def of_client(setup: ClientSetup, counted: bool = False) -> Prototypes:
    """Return the mean representation of every class that the client holds, by ``setup.model`` as it is."""
    means, classes, counts = class_means(represent(setup.model, setup.train.images), setup.train.labels)
    return Prototypes(means, classes, counts if counted else None)


@dataclass(frozen=True)
class ClassTable:
    """Names in a state of the global rows ``(C, d)`` of classes, and of which are known ``(C,)``."""

    kind: type[Prototypes] | type[ClassLogits]
    values: str
    known: str

    def _empty(self, blueprint: Blueprint, device: torch.device) -> State:
        width = blueprint.width if self.kind is Prototypes else blueprint.n_classes
        return {
            self.values: torch.zeros(blueprint.n_classes, width, device=device),
            self.known: torch.zeros(blueprint.n_classes, dtype=torch.bool, device=device),
        }

    def init(self, setup: ClientSetup, rng: torch.Generator) -> State:
        """Return a client's initial model; no row is known yet."""
        return weights.init(setup, rng) | self._empty(setup.blueprint, setup.train.labels.device)

    def start(self, setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
        """Start the server without rows; the first broadcast is empty."""
        return self._empty(setup.blueprint, setup.device), ()

    def receive(self, setup: ClientSetup, state: State, broadcast: Message) -> State:
        """Take over the broadcast rows."""
        received = find_payload(broadcast, self.kind)
        if received is None:
            return state
        values, known = state[self.values].clone(), state[self.known].clone()
        values[received.classes], known[received.classes] = received.rows(), True
        return state | {self.values: values, self.known: known}

    def average(
        self, setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator
    ) -> tuple[State, Message]:
        """Average each class's rows over the clients that sent it, by the uploaded counts where there are any."""
        sums = torch.zeros_like(state[self.values], dtype=torch.float64)
        totals = torch.zeros(len(sums), dtype=torch.float64, device=sums.device)
        for _, upload in uploads:
            sent = get_payload(upload, self.kind)
            counts = sent.said("counts")
            share = torch.ones_like(sent.classes, dtype=torch.float64) if counts is None else counts.double()
            sums.index_add_(0, sent.classes, sent.rows().double() * share[:, None])
            totals.index_add_(0, sent.classes, share)
        fresh = totals > 0
        means = (sums / totals.clamp(min=1e-12)[:, None]).float()
        values, known = torch.where(fresh[:, None], means, state[self.values]), fresh | state[self.known]
        classes = known.nonzero().squeeze(1)
        return {self.values: values, self.known: known}, (self.kind(values[classes], classes),)


FEATURES, KNOWN = "prototypes.features", "prototypes.known"


PROTOTYPES = ClassTable(Prototypes, FEATURES, KNOWN)
