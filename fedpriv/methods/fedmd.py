"""FedMD: clients of any architecture train towards the mean of everybody's class scores on public samples.

Source: Li and Wang: FedMD: Heterogenous Federated Learning via Model Distillation, NeurIPS 2019 workshop on federated
learning (algorithm 1). *Transfer learning*: before it takes part for the first time, a client trains on the labelled public
set and then on its private data. In every round clients *communicate* their class scores f_k(x) on public samples, the
server *aggregates* them to the consensus 1/m sum_k f_k(x) and *distributes* it, and clients *digest* it (train f_k towards
it on these samples) and *revisit* their private data for a few epochs. In practice the server draws a smaller part of the
public set anew every round.

A round here begins where the server's broadcast arrives: the first is transfer learning and the first scores; every later
one is digest, revisit, and the next scores (:mod:`fedpriv.methods.shared.public_answers`). Accuracy after training is thus
after revisit, which the paper reports.

Left unsaid by the paper, and here:

- whether class scores are taken before the softmax or after: before, as in the authors' code;
- the distance to the consensus: ``digest_loss``, the mean absolute difference as in the authors' code, its square, or KL
  of softmax vectors;
- how long all of it takes ("to convergence", "a few epochs"): options; the authors' code trains on public data for at most
  20 epochs in batches of 128 and digests for one in batches of 256, by Adam. Here all is SGD with the step size of local
  training, and what is trained on private data, in transfer learning and in revisit, is one local training;
- who takes part first in a later round: it learns by transfer then, and digests from its next round on;
- the consensus may weigh clients; all weigh the same here, as in the experiments but two.

In the paper public and private classes differ (MNIST and FEMNIST letters, CIFAR-10 and classes of CIFAR-100), and outputs
range over both. Here the public images are some of the clients' own data set, whose classes are the private ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import cross_entropy, l1_loss, mse_loss

from fedpriv.federation.local_training import classification_loss, train
from fedpriv.federation.method import ClientSetup, Method, ServerSetup, State, Uploads
from fedpriv.federation.states import put, take
from fedpriv.methods.shared import personal_model, public_answers
from fedpriv.methods.shared.mutual import divergence
from fedpriv.methods.shared.public_answers import ASKED, ask, distil, images_of, logits_asked_for, mean_of, on_public
from fedpriv.wire.payloads import Message, PublicLogits, find_payload

READY = "ready"
"""Entry of a client's state: whether its transfer learning is done."""

DigestLoss = Literal["l1", "mse", "kl"]


@dataclass(frozen=True)
class Options:
    """Hyperparameters of FedMD.

    Attributes:
        samples: public samples asked about in a round; all where there are fewer. The authors' code takes 5000.
        public_epochs: passes over the labelled public set in transfer learning; 0 leaves it out.
        digest_epochs: passes over the round's public samples towards the consensus; 0 for none.
        public_batch: public samples a step of either.
        digest_loss: distance from the consensus: mean absolute or squared difference of logits (``l1``, ``mse``), or
            Kullback-Leibler divergence of softmax vectors (``kl``).
    """

    samples: Annotated[int, Ge(1)] = 5000
    public_epochs: Annotated[int, Ge(0)] = 20
    digest_epochs: Annotated[int, Ge(0)] = 1
    public_batch: Annotated[int, Ge(1)] = 32
    digest_loss: DigestLoss = "l1"


def init(setup: ClientSetup, rng: torch.Generator) -> State:
    """Return the initial model, which knows no public image yet."""
    return personal_model.init(setup, rng) | {READY: torch.zeros(1, dtype=torch.bool)}


def digest_distance(logits: Tensor, consensus: Tensor, how: DigestLoss) -> Tensor:
    """Return the mean distance of logits ``(b, C)`` from the consensus ``(b, C)``."""
    if how == "kl":
        return divergence(logits, consensus)
    return l1_loss(logits, consensus) if how == "l1" else mse_loss(logits, consensus)


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

        def distance(logits: Tensor, wanted: Tensor) -> Tensor:
            return digest_distance(logits, wanted, options.digest_loss)

        distil(model, images[consensus.samples], consensus.values, distance, shorter, rng)
    train(model, setup.train, setup.training, rng, classification_loss(model), setup.trace)
    values, asked = logits_asked_for(setup, broadcast)
    return take(model, "model") | {READY: torch.ones_like(state[READY])}, (PublicLogits(values, asked),)


def start(setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
    """Ask for the scores on the first public samples; there is no consensus yet."""
    state, asked = ask(setup, rng)
    return state, (asked,)


def server_step(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> tuple[State, Message]:
    """Average the scores; ask for those on new samples."""
    consensus = PublicLogits(mean_of(uploads), state[ASKED])
    state, asked = ask(setup, rng)
    return state, (asked, consensus)


METHOD = Method(
    name="fedmd",
    source="Li and Wang, NeurIPS 2019 workshop",
    options=Options,
    uploads=("public-logits",),
    broadcasts=("public-samples", "public-logits"),
    start=start,
    init=init,
    # The consensus is digested at the start of the next round: digesting is training.
    apply_broadcast=personal_model.receive_nothing,
    client_step=client_step,
    server_step=server_step,
    predict=personal_model.predict,
    needs_public=True,
    needs_public_labels=True,
    sizes=public_answers.sizes,
    linear_aggregation=True,
)
