"""FedRAL: share a square matrix that turns representations, trained with every client's private model.

Source: Yi, Yu, Wang, Liu, Li: Federated Representation Angle Learning, algorithm 1. With r = g(x) in R^d and the angle
matrix A, d x d, not constrained to be orthogonal:

    logits = head(r + r A)                                                          (equations 3, 4)
    model and A take SGD steps on cross-entropy together, A from the broadcast      (equation 5)
    client k uploads the m_k diagonal blocks of its A_k, zeros elsewhere            (equation 6)
    A = sum_k n_k / n A_k, element by element, over the round's clients             (equation 7)

An entry that some client left out therefore shrinks. The broadcast is the dense A; it also replaces the client's own.

The paper leaves open the distribution of the random start, here N(0, 1 / d), so that r A is about as long as r; and whether
client models predict with A: here they do, with the client's own A_k after training; ``without_matrix`` is recorded beside.
The ablations of table 7: case B, no sparsification, is ``blocks = [1]``; case C is ``aggregation = "naive"``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedpriv.algebra.matrices import check_divides, dense, diagonal_blocks, published_blocks
from fedpriv.federation.local_training import classify_by, represent_by, train
from fedpriv.federation.method import ClientSetup, Plan, ServerSetup, Uploads
from fedpriv.federation.states import Outcome, State, put, take, weighted_mean
from fedpriv.methods import weights
from fedpriv.models.build import build_model
from fedpriv.uploads.ledger import FederationSizes, Scalars
from fedpriv.uploads.payloads import AngleMatrix, Message, get_payload
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator

ANGLE = "angle"


@dataclass(frozen=True)
class Options:
    """Hyperparameters of FedRAL.

    Attributes:
        blocks: m, how many diagonal blocks a client uploads, each a divisor of the width d; client k takes entry
            k mod length. 1 is the dense matrix, d the diagonal. Empty for blocks of side 5 or the next smaller divisor
            of d, about what the paper's communication costs amount to.
        aggregation: ``weighted`` by sample counts with zeros for what was not sent (the paper, counts are uploaded), or
            ``naive``, the plain mean of each element over the clients that sent it.
        scale: the initial entries' standard deviation times sqrt(d); 0 starts from r alone.
    """

    blocks: tuple[Annotated[int, Ge(1)], ...] = ()
    aggregation: Literal["weighted", "naive"] = "weighted"
    scale: Annotated[float, Ge(0)] = 1.0


def blocks_of(client: int, width: int, options: Options) -> int:
    """Return m_k, the number of blocks that a client uploads."""
    return options.blocks[client % len(options.blocks)] if options.blocks else published_blocks(width)


def initial_angle(width: int, seed: int, scale: float) -> Tensor:
    """Return the initial matrix ``(d, d)`` with entries from N(0, scale^2 / d)."""
    entries = torch.randn(width, width, generator=generator(seed, "angle matrix"))
    return entries.mul_(scale / math.sqrt(width))


def init(setup: ClientSetup, rng: torch.Generator) -> State:
    """Return the initial private model and the matrix that the server will send first."""
    seed = weights.draw_seed(rng)
    angle = initial_angle(setup.width, seed, setup.options.scale)
    return take(build_model(setup.blueprint, seed), "model") | {ANGLE: angle}


def apply_broadcast(setup: ClientSetup, state: State, broadcast: Message) -> State:
    """Replace the client's matrix by the broadcast one."""
    return state | {ANGLE: dense(get_payload(broadcast, AngleMatrix).blocks)}


def turned(features: Tensor, angle: Tensor) -> Tensor:
    """Return r + r A for representations ``(n, d)`` and a matrix ``(d, d)``."""
    return features + features @ angle


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> Outcome:
    """Train model and matrix together; upload the matrix's diagonal blocks."""
    options: Options = setup.options
    state = apply_broadcast(setup, state, broadcast)
    model, angle = setup.model, nn.Parameter(state[ANGLE].clone())
    put(model, state, "model")

    def loss(images: Tensor, classes: Tensor) -> Tensor:
        return cross_entropy(model.head(turned(model.represent(images), angle)), classes)

    train(model, setup.train, setup.training, rng, loss, setup.trace, [*model.parameters(), angle])
    trained = angle.detach()
    upload: Message = (AngleMatrix(diagonal_blocks(trained, blocks_of(setup.client, setup.width, options))),)
    if options.aggregation == "weighted":
        upload += (weights.sample_count(setup),)
    return take(model, "model") | {ANGLE: trained}, upload


def start(setup: ServerSetup, rng: torch.Generator) -> Outcome:
    """Draw the initial matrix and broadcast it."""
    seed = weights.draw_seed(rng)
    return _announce(initial_angle(setup.blueprint.width, seed, setup.options.scale).to(setup.device))


def server_step(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> Outcome:
    """Average the matrices element by element and broadcast the dense result."""
    blocks = [get_payload(upload, AngleMatrix).blocks for _, upload in uploads]
    if setup.options.aggregation == "weighted":
        return _announce(weighted_mean([{ANGLE: dense(block)} for block in blocks], weights.counts(uploads))[ANGLE])
    total = torch.stack([dense(block).double() for block in blocks]).sum(0)
    senders = torch.stack([dense(torch.ones_like(block)) for block in blocks]).sum(0)
    return _announce((total / senders.clamp(min=1)).float())


def _announce(angle: Tensor) -> Outcome:
    return {ANGLE: angle}, (AngleMatrix(angle[None].clone()),)


@torch.no_grad()
def predict(setup: ClientSetup, state: State, images: Tensor) -> Tensor:
    """Return the logits ``(n, C)`` of the turned representations, head(r + r A_k)."""
    logits: Tensor = setup.model.head(turned(represent_by(setup, state, images), state[ANGLE]))
    return logits


def check(plan: Plan) -> None:
    """Refuse numbers of blocks that do not divide the representation width."""
    for n_blocks in plan.options.blocks:
        try:
            check_divides(n_blocks, plan.blueprints[0].width)
        except UserError as error:
            raise UserError(f"method 'fedral', option blocks: {error}; or change width") from None


def sizes(facts: FederationSizes) -> Scalars:
    """Return d^2 / m_k scalars up and the dense matrix down per client, and sample counts where the mean needs them.

    Where not all clients take part, the first ``facts.clients`` of them are counted.
    """
    options: Options = facts.options
    square = facts.width**2
    period = len(options.blocks) or 1
    sent = [square // blocks_of(k, facts.width, options) for k in range(period)]
    turns, left = divmod(facts.clients, period)
    return {
        ("upload", "angle-matrix.blocks"): turns * sum(sent) + sum(sent[:left]),
        ("upload", "sample-count.count"): facts.clients if options.aggregation == "weighted" else 0,
        ("broadcast", "angle-matrix.blocks"): facts.clients * square,
    }


METHOD = replace(
    weights.LOCAL,
    name="fedral",
    source="Yi et al., FedRAL",
    options=Options,
    uploads=("angle-matrix", "sample-count"),
    broadcasts=("angle-matrix",),
    start=start,
    init=init,
    apply_broadcast=apply_broadcast,
    client_step=client_step,
    server_step=server_step,
    predict=predict,
    check=check,
    sizes=sizes,
    extra_predictors={"without_matrix": classify_by},
    linear_aggregation=True,
)
