"""FedRep: average the extractors, keep the heads.

Source: Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated Learning,
ICML 2021, algorithm 1. A client receives the global extractor, trains its head alone for ``head_epochs`` passes, then
the extractor (with the representation mapping) alone for the run's local epochs, and uploads the extractor. The paper's
ten head epochs and one for the extractor are one and one in PFLlib, which is the default here. In the first phase
batch-norm layers go on updating their running statistics, as in PFLlib. A limit on the number of steps holds for each
phase.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from fedpriv.federation.local_training import train
from fedpriv.federation.method import ClientSetup, LocalTraining
from fedpriv.federation.states import Outcome, State, put, take
from fedpriv.methods import fedavg, weights
from fedpriv.uploads.payloads import Extractor, Message


@dataclass(frozen=True)
class Options:
    """Hyperparameters of FedRep: ``head_epochs``, passes over the local data that train the head, before the extractor's."""

    head_epochs: Annotated[int, Ge(1)] = 1


def local_phases(options: Options, training: LocalTraining) -> tuple[LocalTraining, ...]:
    """Return the training of the head, for its own number of epochs, and of the extractor."""
    return replace(training, epochs=options.head_epochs), training


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> Outcome:
    """Train the head, then the extractor; upload the extractor with the number of samples."""
    model, phases = setup.model, local_phases(setup.options, setup.training)
    put(model, weights.receive(Extractor, setup, state, broadcast), "model")

    def loss_of_head(images: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            features = model.represent(images)
        return cross_entropy(model.head(features), labels)

    def loss_of_base(images: Tensor, labels: Tensor) -> Tensor:
        head = model.head.weight.detach(), model.head.bias.detach()
        return cross_entropy(linear(model.represent(images), *head), labels)

    side, head = weights.side_generator(rng), list(model.head.parameters())
    base = [value for name, value in model.named_parameters() if not name.startswith("head.")]
    train(model, setup.train, phases[0], side, loss_of_head, setup.trace, trained=head)
    train(model, setup.train, phases[1], rng, loss_of_base, setup.trace, trained=base)
    return take(model, "model"), weights.weighed(Extractor, setup)


METHOD = fedavg.averaging(
    Extractor,
    name="fedrep",
    source="Collins et al., ICML 2021",
    options=Options,
    client_step=client_step,
    homogeneous=True,
    local_phases=local_phases,
)
