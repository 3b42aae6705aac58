"""FedMD: clients of any architecture train towards the mean of everybody's class scores on public samples.

Source: Li and Wang: FedMD: Heterogenous Federated Learning via Model Distillation, NeurIPS 2019 workshop on federated
learning (algorithm 1). *Transfer learning*: before it takes part for the first time, a client trains on the labelled public
set and then on its private data. In every round clients *communicate* their class scores f_k(x) on public samples, the
server *aggregates* them to the consensus 1/m sum_k f_k(x) and *distributes* it, and clients *digest* it (train f_k towards
it on these samples) and *revisit* their private data for a few epochs. The server draws public samples every round.

A round here begins where the server's broadcast arrives: the first is transfer learning and the first scores; every later
one is digest, revisit, and the next scores (:mod:`fedpriv.methods.shared.public_answers`). Class scores are logits, and the
distance to the consensus is the mean absolute difference, as in the authors' code, which trains on public data for at most
20 epochs and digests for one, by Adam; here all is SGD with the step size of local training. All clients weigh the same. In
the paper public and private classes differ; here the public images are of the clients' own data set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge
from torch.nn.functional import cross_entropy, l1_loss

from fedpriv.federation.local_training import classification_loss, train
from fedpriv.federation.method import ClientSetup, Method, ServerSetup, Uploads
from fedpriv.federation.states import State, put, take
from fedpriv.methods.shared import public_answers, weights
from fedpriv.methods.shared.public_answers import ASKED, ask, distil, images_of, logits_asked_for, mean_of, on_public
from fedpriv.wire.payloads import Message, PublicLogits, find_payload

READY = "ready"
"""Entry of a client's state: whether its transfer learning is done."""


@dataclass(frozen=True)
class Options:
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


def init(setup: ClientSetup, rng: torch.Generator) -> State:
    """Return the initial model, which knows no public image yet."""
    return weights.init(setup, rng) | {READY: torch.zeros(1, dtype=torch.bool)}


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Learn from public data the first time, later digest the consensus; train on private data, upload scores."""
    options: Options = setup.options
    model, images = setup.model, images_of(setup)
    put(model, state, "model")
    ready, consensus = bool(state[READY]), find_payload(broadcast, PublicLogits)
    if not ready and options.public_epochs:
        assert setup.public_labels is not None, "FedMD needs the classes of public images"
        longer = on_public(setup.training, options.public_epochs, options.public_batch)
        distil(model, images, setup.public_labels, cross_entropy, longer, rng)
    if ready and consensus is not None and options.digest_epochs:
        shorter = on_public(setup.training, options.digest_epochs, options.public_batch)
        distil(model, images[consensus.samples], consensus.values, l1_loss, shorter, rng)
    train(model, setup.train, setup.training, rng, classification_loss(model), setup.trace)
    values, requested = logits_asked_for(setup, broadcast)
    return take(model, "model") | {READY: torch.ones_like(state[READY])}, (PublicLogits(values, requested),)


def start(setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
    """Ask for the scores on the first public samples; there is no consensus yet."""
    state, requested = ask(setup, rng)
    return state, (requested,)


def server_step(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> tuple[State, Message]:
    """Average the scores; ask for those on new samples."""
    consensus = PublicLogits(mean_of(uploads), state[ASKED])
    state, requested = ask(setup, rng)
    return state, (requested, consensus)


METHOD = Method(
    name="fedmd",
    source="Li and Wang, NeurIPS 2019 workshop",
    options=Options,
    uploads=("public-logits",),
    broadcasts=("public-samples", "public-logits"),
    start=start,
    init=init,
    # The consensus is digested at the start of the next round: digesting is training.
    apply_broadcast=weights.receive_nothing,
    client_step=client_step,
    server_step=server_step,
    predict=weights.predict,
    needs_public=True,
    needs_public_labels=True,
    sizes=public_answers.sizes,
    linear_aggregation=True,
)
