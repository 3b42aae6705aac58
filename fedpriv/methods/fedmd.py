"""FedMD: clients learn from the mean of their logits on public samples.

Li and Wang: FedMD: Heterogenous Federated Learning via Model Distillation, NeurIPS 2019 workshop on federated
learning, algorithm 1. *Transfer learning*: before it takes part for the first time, a client trains on the labelled
public set. The consensus is the mean of the clients' logits, the distance to it the mean absolute difference, as in
the authors' code, which trains on public data for at most 20 epochs and digests for one, by Adam; here all is SGD
with the step size of local training. In the paper public and private classes differ; here public images are of the
clients' own data set.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge
from torch.nn.functional import cross_entropy, l1_loss

from fedpriv.federation.method import ClientSetup, ServerSetup, Uploads
from fedpriv.federation.states import State, put, take
from fedpriv.methods import weights
from fedpriv.methods.local import METHOD as LOCAL
from fedpriv.methods.public_outputs import ASKED, ask, distil, images_of, mean_of, on_public, sizes, train_and_answer
from fedpriv.uploads.payloads import Message, PublicLogits, find_payload

READY = "ready"
"""Entry of a client's state: whether its transfer learning is done."""


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


def digest_and_revisit(
    setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator
) -> tuple[State, Message]:
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


def average_scores(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> tuple[State, Message]:
    """Average the scores; ask for those on new samples."""
    consensus = PublicLogits(mean_of(uploads), state[ASKED])
    state, requested = ask(setup, rng)
    return state, (*requested, consensus)


METHOD = replace(
    LOCAL,
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
