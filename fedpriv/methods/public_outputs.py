"""Clients learn from one another by their outputs on public samples (FedMD, DS-FL).

Everybody holds the public set before the first round; on the wire a sample is its place in it. A round begins where the
server's broadcast arrives: it asks for the outputs on the round's samples and, from the second round on, carries the
consensus on those of the round before. A client distils that, trains on private data, and answers: R rounds hold R - 1
distillations.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedpriv.datasets.types import Samples
from fedpriv.federation.local_training import classification_loss, classify, train
from fedpriv.federation.method import ClientSetup, LocalTraining, ServerSetup, Uploads
from fedpriv.federation.states import State, Trace
from fedpriv.models.split import SplitModel
from fedpriv.uploads.ledger import FederationSizes, Scalars
from fedpriv.uploads.payloads import Message, PublicLogits, PublicSamples, get_payload
from fedpriv.util.errors import UserError

ASKED = "asked"
"""Entry of the server's state: the samples ``(n,)`` that the last broadcast asked about."""


def ask(setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
    """Draw a round's public samples without replacement, ascending; return them as state and as a message."""
    if setup.public is None or not len(setup.public):
        raise UserError("there are no public images to exchange outputs on; set some aside with public N")
    drawn = torch.randperm(len(setup.public), generator=rng)[: setup.options.samples].sort().values.to(setup.device)
    return {ASKED: drawn}, (PublicSamples(drawn),)


def train_and_answer(setup: ClientSetup, broadcast: Message, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Train on private data; return the logits ``(n, C)`` on the samples asked for, and these ``(n,)``."""
    train(setup.model, setup.train, setup.training, rng, classification_loss(setup.model), setup.trace)
    requested = get_payload(broadcast, PublicSamples).samples
    return classify(setup.model, images_of(setup)[requested]), requested


def images_of(setup: ClientSetup | ServerSetup) -> Tensor:
    """Return the public images ``(p, c, h, w)``, which everybody has in these methods."""
    assert setup.public is not None
    return setup.public


def mean_of(uploads: Uploads) -> Tensor:
    """Return the mean ``(n, C)`` of the clients' outputs on the same samples, every client counting once; in float64."""
    values = torch.stack([get_payload(upload, PublicLogits).values.double() for _, upload in uploads])
    return values.mean(0).float()


def distil(
    model: SplitModel,
    images: Tensor,
    wanted: Tensor,
    loss_of: Callable[[Tensor, Tensor], Tensor],
    training: LocalTraining,
    rng: torch.Generator,
) -> None:
    """Train a model towards given outputs ``(n, C)`` or classes ``(n,)`` on public images ``(n, c, h, w)``, in place.

    ``loss_of`` maps logits ``(b, C)`` and rows of ``wanted`` to their mean loss; ``training`` is of :func:`on_public`.
    """
    places = Samples(images, torch.arange(len(images), device=images.device))

    def loss(batch: Tensor, index: Tensor) -> Tensor:
        return loss_of(model(batch), wanted[index])

    # The trace is of private images: attacks are scored against it.
    train(model, places, training, rng, loss, Trace())


def on_public(training: LocalTraining, epochs: int, batch_size: int) -> LocalTraining:
    """Return the client's training on public images, without guards and limit of steps."""
    return LocalTraining(
        learning_rate=training.learning_rate,
        batch_size=batch_size,
        epochs=epochs,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
        shuffle=training.shuffle,
    )


def sizes(facts: FederationSizes) -> Scalars:
    """Return L x C outputs of every client up and down, and the L samples that they are of."""
    requested = facts.clients * min(facts.options.samples, int(facts.need("public")))
    values, samples = "public-logits.values", "public-logits.samples"
    return {
        ("upload", values): requested * facts.classes,
        ("upload", samples): requested,
        ("broadcast", values): requested * facts.classes,
        ("broadcast", samples): requested,
        ("broadcast", "public-samples.samples"): requested,
    }
