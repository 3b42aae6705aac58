"""FD: clients train towards the mean output of each class.

Jeong, Oh, Kim, Park, Bennis, Kim: Communication-Efficient On-Device Machine Learning: Federated Distillation and
Augmentation under Non-IID Private Data, NeurIPS 2018 workshop on machine learning on the phone. A client minimises
CE(z, y) + lambda CE(z, t_y), z its logits and t_y the global mean softmax output of the sample's class, or its own
detached output where there is none yet. (HtFLlib takes mean logits for t_y, with which the loss has no lower bound.)
The receiver counts in the mean, too; the paper leaves it out, HtFLlib does not.

Means are over all training samples, in evaluation mode after training. A class that no client sent in a round keeps
its last global mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedpriv.federation.local_training import class_means, classify, train
from fedpriv.federation.method import ClientSetup
from fedpriv.federation.states import State, put, take
from fedpriv.methods.local import METHOD as LOCAL
from fedpriv.methods.prototypes import ClassTable
from fedpriv.uploads.payloads import ClassLogits, Message

OUTPUTS = ClassTable(ClassLogits, "logits.values", "logits.known")


@dataclass(frozen=True)
class FdOptions:
    """Hyperparameters of METHOD.

    Attributes:
        weight: lambda, the weight of distillation; 0 gives local training.
    """

    weight: Annotated[float, Ge(0)] = 1.0


def train_towards_outputs(
    setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator
) -> tuple[State, Message]:
    """Train by cross-entropy and distillation; upload the mean output of each class."""
    state, model = OUTPUTS.receive(setup, state, broadcast), setup.model
    put(model, state, "model")
    values, known = state[OUTPUTS.values], state[OUTPUTS.known]
    distil = bool(known.any())

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        logits: Tensor = model(images)
        value = cross_entropy(logits, labels)
        if distil:
            wanted = torch.where(known[labels][:, None], values[labels], logits.detach().softmax(1))
            value = value + setup.options.weight * cross_entropy(logits, wanted)
        return value

    train(model, setup.train, setup.training, rng, loss, setup.trace)
    means, classes, _ = class_means(classify(model, setup.train.images).softmax(1), setup.train.labels)
    return state | take(model, "model"), (ClassLogits(means, classes),)


METHOD = replace(
    LOCAL,
    name="fd",
    about="METHOD (federated distillation, FedDistill): exchange the mean output of each class.",
    source="Jeong et al., NeurIPS 2018 workshop",
    options=FdOptions,
    uploads=("logits",),
    broadcasts=("logits",),
    start=OUTPUTS.start,
    init=OUTPUTS.init,
    apply_broadcast=OUTPUTS.receive,
    client_step=train_towards_outputs,
    server_step=OUTPUTS.average,
)
