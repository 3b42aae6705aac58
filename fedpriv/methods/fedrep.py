"""FedRep: average the extractors, keep the heads.

Source: Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated
Learning, ICML 2021, algorithm 1. A client receives the global extractor and then

1. trains its head alone, by cross-entropy, for ``head_epochs`` passes over its data;
2. trains the extractor (with the representation mapping) alone, for the run's local epochs, the head fixed;

and uploads the extractor; the head never leaves. The server averages by numbers of samples, sum_k n_k w_k / sum_k
n_k. The paper's ten head epochs and one for the extractor are one and one in PFLlib, which is the default here. In
the first phase batch-norm layers normalise over the batch and go on updating their running statistics, as in
PFLlib, though no weight of the extractor moves. A limit on the number of steps holds for each phase.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from fedpriv.federation.local_training import train
from fedpriv.federation.method import ClientSetup, LocalTraining, Method, ServerSetup, State, Uploads
from fedpriv.federation.states import outer, parameters, put, take
from fedpriv.methods.fedavg import mean_by_samples, sample_count
from fedpriv.methods.shared import personal_model
from fedpriv.models.build import build_model
from fedpriv.models.split import SplitModel
from fedpriv.wire.payloads import Extractor, Message, get_payload


@dataclass(frozen=True)
class Options:
    """Hyperparameters of FedRep.

    Attributes:
        head_epochs: passes over the local data that train the head, before the extractor's.
    """

    head_epochs: Annotated[int, Ge(1)] = 1


def base_parameters(model: SplitModel) -> State:
    """Return copies of all learnable parameters but the head's."""
    return {name: value for name, value in parameters(model).items() if not name.startswith("head.")}


def start(setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
    """Build the initial global extractor and broadcast it."""
    model = build_model(setup.blueprint, personal_model.draw_seed(rng)).to(setup.device)
    base = base_parameters(model)
    return outer(base, "global"), (Extractor(base),)


def apply_broadcast(setup: ClientSetup, state: State, broadcast: Message) -> State:
    """Replace the client's extractor by the global one."""
    base = get_payload(broadcast, Extractor).state
    return state | outer({name: value.clone() for name, value in base.items()}, "model")


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train the head, then the extractor; upload the extractor with the number of samples."""
    model = setup.model
    put(model, apply_broadcast(setup, state, broadcast), "model")
    train_head(setup, personal_model.side_generator(rng))
    train_base(setup, rng)
    return take(model, "model"), (Extractor(base_parameters(model)), sample_count(setup))


def local_phases(options: Options, training: LocalTraining) -> tuple[LocalTraining, ...]:
    """Train the head for its own number of epochs, then the extractor."""
    return replace(training, epochs=options.head_epochs), training


def train_head(setup: ClientSetup, rng: torch.Generator) -> None:
    """Train the head of ``setup.model`` alone, in place."""
    model, options = setup.model, setup.options

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            features = model.represent(images)
        return cross_entropy(model.head(features), labels)

    training = local_phases(options, setup.training)[0]
    train(model, setup.train, training, rng, loss, setup.trace, trained=model.head.parameters())


def train_base(setup: ClientSetup, rng: torch.Generator) -> None:
    """Train everything of ``setup.model`` but the head, in place."""
    model = setup.model
    weight, bias = model.head.weight.detach(), model.head.bias.detach()

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(linear(model.represent(images), weight, bias), labels)

    moved = [value for name, value in model.named_parameters() if not name.startswith("head.")]
    train(model, setup.train, setup.training, rng, loss, setup.trace, trained=moved)


def server_step(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> tuple[State, Message]:
    """Average the extractors by numbers of samples."""
    base = mean_by_samples(uploads, Extractor)
    return outer(base, "global"), (Extractor(base),)


METHOD = Method(
    name="fedrep",
    source="Collins et al., ICML 2021",
    options=Options,
    uploads=("extractor", "sample-count"),
    broadcasts=("extractor",),
    start=start,
    init=personal_model.init,
    apply_broadcast=apply_broadcast,
    client_step=client_step,
    server_step=server_step,
    predict=personal_model.predict,
    homogeneous=True,
    linear_aggregation=True,
    local_phases=local_phases,
)
