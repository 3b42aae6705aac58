"""FedMD and DS-FL: clients learn from one another by their outputs on public samples.

Everybody holds the public set before the first round; on the wire a sample is its place in it. A round begins where the
server's broadcast arrives: it asks for the outputs on the round's samples and, from the second round on, carries the
consensus on those of the round before. A client distils that, trains on private data, and answers: R rounds hold R - 1
distillations.

- ``fedmd``: Li and Wang: FedMD: Heterogenous Federated Learning via Model Distillation, NeurIPS 2019 workshop on federated
  learning, algorithm 1. *Transfer learning*: before it takes part for the first time, a client trains on the labelled
  public set. The consensus is the mean of the clients' logits, the distance to it the mean absolute difference, as in
  the authors' code, which trains on public data for at most 20 epochs and digests for one, by Adam; here all is SGD
  with the step size of local training. In the paper public and private classes differ; here public images are of the
  clients' own data set.
- ``ds-fl``: Itahara, Nishio, Koda, Morikura, Yamamoto: Distillation-Based Semi-Supervised Federated Learning for
  Communication-Efficient Collaborative Training with Non-IID Private Data, IEEE Transactions on Mobile Computing 2021.
  Of the clients' mean softmax outputs p, ``era`` (entropy reduction aggregation) makes softmax(p / T), T = 0.1, and
  ``sa`` (simple aggregation) p, brought back to a distribution, since a defense may have made it negative. Clients, and
  a model of the server's with client 0's architecture, minimise the cross-entropy of their outputs with it. Clients'
  accuracy after training is after the update; the paper's headline is the server's model, recorded as predictor
  ``server_model``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn.functional import cross_entropy, l1_loss

from fedpriv.datasets.types import Samples
from fedpriv.federation.local_training import classification_loss, classify, train
from fedpriv.federation.method import ClientSetup, LocalTraining, ServerSetup, Uploads
from fedpriv.federation.states import Outcome, State, Trace, put, take
from fedpriv.methods import weights
from fedpriv.models.build import build_model
from fedpriv.models.split import SplitModel
from fedpriv.uploads.ledger import FederationSizes, Scalars
from fedpriv.uploads.payloads import Message, PublicLogits, PublicSamples, find_payload, get_payload
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed

ASKED = "asked"  # entry of the server's state: the samples ``(n,)`` that the last broadcast asked about


def ask(setup: ServerSetup, rng: torch.Generator) -> Outcome:
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


READY = "ready"  # entry of a client's state: whether its transfer learning is done


@dataclass(frozen=True)
class FedMdOptions:
    """Hyperparameters of FedMD.

    Attributes:
        samples: public samples asked about in a round; all where there are fewer. The authors' code takes 5000.
        public_epochs: passes over the labelled public set in transfer learning; 0 leaves it out.
        digest_epochs: passes over the round's public samples towards the consensus; 0 for none.
        public_batch: public samples a step of either.
    """

    samples: Annotated[int, Ge(1)] = 5000
    public_epochs: Annotated[int, Ge(0)] = 20
    digest_epochs: Annotated[int, Ge(0)] = 1
    public_batch: Annotated[int, Ge(1)] = 32


def digest_and_revisit(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> Outcome:
    """Learn from public data the first time, later digest the consensus; train on private data, upload scores."""
    options: FedMdOptions = setup.options
    model, images = setup.model, images_of(setup)
    put(model, state, "model")
    ready, consensus = bool(state[READY]), find_payload(broadcast, PublicLogits)
    if not ready and options.public_epochs:
        assert setup.public_labels is not None
        longer = on_public(setup.training, options.public_epochs, options.public_batch)
        distil(model, images, setup.public_labels, cross_entropy, longer, rng)
    if ready and consensus is not None and options.digest_epochs:
        shorter = on_public(setup.training, options.digest_epochs, options.public_batch)
        distil(model, images[consensus.samples], consensus.values, l1_loss, shorter, rng)
    values, requested = train_and_answer(setup, broadcast, rng)
    return take(model, "model") | {READY: torch.ones_like(state[READY])}, (PublicLogits(values, requested),)


def average_scores(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> Outcome:
    """Average the scores; ask for those on new samples."""
    consensus = PublicLogits(mean_of(uploads), state[ASKED])
    state, requested = ask(setup, rng)
    return state, (*requested, consensus)


SERVER = "server"  # prefix of the server's model in its state


@dataclass(frozen=True)
class ServerDistillation(weights.ServerTraining):
    """The training of the server's model on the round's samples, by SGD."""

    learning_rate: Annotated[float, Gt(0)] = 0.1
    epochs: Annotated[int, Ge(1)] = 5


@dataclass(frozen=True)
class DsFlOptions:
    """Hyperparameters of DS-FL.

    Attributes:
        samples: public samples asked about in a round; all where there are fewer.
        aggregation: ``era`` or ``sa``.
        temperature: T of ``era``; 0.1 in the paper.
        distill_epochs: passes of clients over the round's public samples; 0 gives local training.
        distill_batch: public samples a step of it.
        server: training of the server's model.
    """

    samples: Annotated[int, Ge(1)] = 1000
    aggregation: Literal["era", "sa"] = "era"
    temperature: Annotated[float, Gt(0)] = 0.1
    distill_epochs: Annotated[int, Ge(0)] = 1
    distill_batch: Annotated[int, Ge(1)] = 32
    server: ServerDistillation = ServerDistillation()


def aggregated(mean: Tensor, options: DsFlOptions) -> Tensor:
    """Return the aggregate ``(n, C)`` of the clients' mean outputs ``(n, C)``: rows of shares that sum to one."""
    if options.aggregation == "era":
        return (mean / options.temperature).softmax(1)
    shares = mean.clamp_min(0)
    return shares / shares.sum(1, keepdim=True).clamp_min(1e-12)


def distil_and_update(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> Outcome:
    """Distil the aggregate, where there is one; train on private data; upload softmax outputs."""
    options: DsFlOptions = setup.options
    model, aggregate = setup.model, find_payload(broadcast, PublicLogits)
    put(model, state, "model")
    if aggregate is not None and options.distill_epochs:
        training = on_public(setup.training, options.distill_epochs, options.distill_batch)
        distil(model, images_of(setup)[aggregate.samples], aggregate.values, cross_entropy, training, rng)
    logits, requested = train_and_answer(setup, broadcast, rng)
    return take(model, "model"), (PublicLogits(logits.softmax(1), requested),)


def server_scratch(setup: ServerSetup) -> SplitModel:
    """Return a module for the server's model that shares nothing with a client's."""
    return copy.deepcopy(setup.scratch(setup.blueprint))


def start_server(setup: ServerSetup, rng: torch.Generator) -> Outcome:
    """Build the server's model; ask for the outputs on the first samples."""
    seed = derive_seed(weights.draw_seed(rng), "server model")
    model = build_model(setup.blueprint, seed).to(setup.device)
    state, requested = ask(setup, rng)
    return state | take(model, SERVER), requested


def aggregate_and_distil(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> Outcome:
    """Aggregate, distil into the server's model; broadcast the aggregate and ask for outputs on new samples."""
    options: DsFlOptions = setup.options
    samples, aggregate = state[ASKED], aggregated(mean_of(uploads), options)
    drawn, requested = ask(setup, rng)
    model, how = server_scratch(setup), options.server
    put(model, state, SERVER)
    training = LocalTraining(learning_rate=how.learning_rate, batch_size=how.batch_size, epochs=how.epochs)
    distil(model, images_of(setup)[samples], aggregate, cross_entropy, training, rng)
    return drawn | take(model, SERVER), (*requested, PublicLogits(aggregate, samples))


def server_predict(setup: ServerSetup, state: State, images: Tensor) -> Tensor:
    """Return the logits ``(n, C)`` of the server's model."""
    model = server_scratch(setup)
    put(model, state, SERVER)
    return classify(model, images)


METHOD = replace(
    weights.LOCAL,
    name="fedmd",
    about="FedMD: clients of any architecture train towards the mean of everybody's class scores on public samples.",
    source="Li and Wang, NeurIPS 2019 workshop",
    options=FedMdOptions,
    uploads=("public-logits",),
    broadcasts=("public-samples", "public-logits"),
    start=ask,
    init=lambda setup, rng: weights.init(setup, rng) | {READY: torch.zeros(1, dtype=torch.bool)},
    # The broadcast changes no model by itself: the consensus is distilled at the start of the next round.
    client_step=digest_and_revisit,
    server_step=average_scores,
    needs_public=True,
    needs_public_labels=True,
    sizes=sizes,
    linear_aggregation=True,
)
DS_FL = replace(
    METHOD,
    name="ds-fl",
    about="DS-FL: clients and a server's model learn from the sharpened mean of all softmax outputs on unlabelled samples.",
    source="Itahara et al., IEEE TMC 2021",
    options=DsFlOptions,
    start=start_server,
    init=weights.init,
    client_step=distil_and_update,
    server_step=aggregate_and_distil,
    server_predict=server_predict,
    needs_public_labels=False,
)
