"""FedKD: a private mentor and a shared mentee distil into each other; the mentee travels as truncated factors.

Source: Wu, Wu, Lyu, Huang, Xie: Communication-efficient federated learning via knowledge distillation, Nature
Communications 2022. With the cross-entropies CE_m and CE_s of mentor and mentee, D = CE_m + CE_s, representations r_m
and r_s, and a private bridge W, d x d:

    loss_mentor = CE_m + [KL(p_s || p_m) + MSE(r_m, W r_s)] / D
    loss_mentee = CE_s + [KL(p_m || p_s) + MSE(r_m, W r_s)] / D

The teacher of each loss, and D, are constant, and W learns from the mentee's loss. The gradient of mentor, mentee and bridge
is clipped to a norm each, and D is kept above 0.001, because 1 / D grows without bound as a client comes to fit its data.

Up and down travel the mentee's parameters as truncated singular value decompositions (:mod:`fedpriv.algebra.low_rank`). The
share of energy kept in round i of 0..R-1 is T_start + i / R (T_end - T_start), announced with every broadcast. The server
takes the plain mean of the recovered mentees, and compresses it. The mentor predicts. The paper factorises updates; here,
as in HtFLlib, it is the parameters themselves, so that a client may miss a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import torch
from annotated_types import Gt, Le
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, mse_loss

from fedpriv.algebra.low_rank import compress, recover
from fedpriv.federation.local_training import train
from fedpriv.federation.method import ClientSetup, ServerSetup, Uploads
from fedpriv.federation.states import Outcome, State, outer, parameters, put, take, weighted_mean
from fedpriv.methods import fml, weights
from fedpriv.methods.fml import divergence
from fedpriv.uploads.payloads import Energy, LowRankModel, Message, PublicLoss, get_payload
from fedpriv.util.seeds import derive_seed, global_seed

LEAST_DIVISOR = 1e-3
DONE, ENERGY = "rounds-done", "energy"


@dataclass(frozen=True)
class Options:
    """Hyperparameters of FedKD.

    Attributes:
        small_model: architecture of the mentee; ``auto`` for cnn4, or small-cnn for tiny images.
        energy_start: T_start, share of the squared singular values kept in the first round.
        energy_end: T_end, share that the schedule reaches when the last round is done.
        clip_norm: largest norm of the gradient of mentor, mentee and bridge, each.
    """

    small_model: str = fml.AUTO
    energy_start: Annotated[float, Gt(0), Le(1)] = 0.95
    energy_end: Annotated[float, Gt(0), Le(1)] = 0.98
    clip_norm: Annotated[float, Gt(0)] = 10.0


def bridge(width: int, seed: int) -> nn.Linear:
    """Return W, from mentee to mentor representations, with initial weights from a seed."""
    with global_seed(seed):
        return nn.Linear(width, width, bias=False)


def init(setup: ClientSetup, rng: torch.Generator) -> State:
    """Return the initial mentor and bridge, and buffers for the mentee, which arrives with every broadcast."""
    seed, small = weights.draw_seed(rng), fml.shared_small(setup.blueprint, setup.options)
    between = bridge(setup.width, derive_seed(seed, "bridge"))
    return fml.init_both(setup, small, seed, received=True) | take(between, "bridge")


class _WithGradients(torch.autograd.Function):
    """A value whose gradients with respect to some parameters are given."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: Sequence[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Any, ...]:
        gradients, ctx.gradients = ctx.gradients, None  # torch copies a gradient that has another reference
        # Called on the loss itself the factor is 1, and a pass over all parameters is saved.
        return (None, None, *(gradients if float(outer) == 1 else [gradient * outer for gradient in gradients]))


def clip_each(loss: Tensor, modules: Sequence[nn.Module], norm: float) -> Tensor:
    """Return the scalar loss with a backward pass that clips each module's gradient to an L2 norm > 0."""
    groups = [list(module.parameters()) for module in modules]
    together = [parameter for group in groups for parameter in group]
    # The graph is kept: a defense may add a term to the loss that shares a part of it.
    slopes = torch.autograd.grad(loss, together, retain_graph=True, allow_unused=True, materialize_grads=True)
    clipped: list[Tensor] = []
    for group in groups:
        mine = slopes[len(clipped) : len(clipped) + len(group)]
        size = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(gradient) for gradient in mine]))
        clipped += [gradient * (norm / size) for gradient in mine] if float(size) > norm else mine
    result: Tensor = _WithGradients.apply(loss.detach(), clipped, *together)
    return result


def distillation_loss(
    mentor: tuple[Tensor, Tensor], mentee: tuple[Tensor, Tensor], weight: Tensor, labels: Tensor
) -> Tensor:
    """Return the sum of both models' losses, of representations ``(b, d)`` and logits ``(b, C)`` each and W ``(d, d)``."""
    (mentor_features, mentor_logits), (mentee_features, mentee_logits) = mentor, mentee
    mentor_alone, mentee_alone = cross_entropy(mentor_logits, labels), cross_entropy(mentee_logits, labels)
    divisor = (mentor_alone + mentee_alone).clamp(min=LEAST_DIVISOR).detach()
    bridged = linear(mentee_features, weight)
    taught = divergence(mentor_logits, mentee_logits.detach()) + divergence(mentee_logits, mentor_logits.detach())
    hidden = mse_loss(mentor_features, bridged.detach()) + mse_loss(bridged, mentor_features.detach())
    return mentor_alone + mentee_alone + (taught + hidden) / divisor


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> Outcome:
    """Train mentor, mentee and bridge on the same batches; upload the compressed mentee."""
    between = bridge(setup.width, 0).to(setup.train.labels.device)
    put(between, state, "bridge")
    received = outer(recover(get_payload(broadcast, LowRankModel).factors), "small")
    mentor, mentee = fml.load(setup, state | received)
    modules = (mentor, mentee, between)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        features = [model.represent(images) for model in (mentor, mentee)]
        seen = [(row, model.head(row)) for row, model in zip(features, (mentor, mentee), strict=True)]
        value = distillation_loss(seen[0], seen[1], between.weight, labels)
        return clip_each(value, modules, setup.options.clip_norm)

    train(nn.ModuleList(modules), setup.train, setup.training, rng, loss, setup.trace)
    factors = compress(parameters(mentee), float(get_payload(broadcast, Energy).share))
    return take(mentor, "model") | take(between, "bridge") | fml.buffers(mentee), (LowRankModel(factors),)


def start(setup: ServerSetup, rng: torch.Generator) -> Outcome:
    """Build the initial mentee, compress and broadcast it."""
    blueprint = fml.shared_small(setup.blueprint, setup.options)
    mentee = fml.initial_small(blueprint, weights.draw_seed(rng)).to(setup.device)
    return _announce(setup, parameters(mentee), 0, setup.options.energy_start)


def server_step(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> Outcome:
    """Take the plain mean of the recovered mentees, compress and broadcast it with the next round's share."""
    mentees = [recover(get_payload(upload, LowRankModel).factors) for _, upload in uploads]
    mean = weighted_mean(mentees, [1] * len(mentees))
    return _announce(setup, mean, int(state[DONE]) + 1, float(state[ENERGY]))


def _announce(setup: ServerSetup, mentee: State, done: int, energy: float) -> Outcome:
    first, last = setup.options.energy_start, setup.options.energy_end
    share = torch.tensor([first + min(done / setup.rounds, 1.0) * (last - first)], device=setup.device)
    state = outer(mentee, "small") | {DONE: torch.tensor([done], device=setup.device), ENERGY: share}
    return state, (LowRankModel(compress(mentee, energy)), Energy(share.clone()))


METHOD = replace(
    weights.LOCAL,
    name="fedkd",
    source="Wu et al., Nature Communications 2022",
    options=Options,
    uploads=("low-rank-model",),
    broadcasts=("low-rank-model", "energy"),
    start=start,
    init=init,
    # The broadcast is taken up at the start of training; the mentor, which predicts, does not change.
    client_step=client_step,
    server_step=server_step,
    check=partial(fml.check_small, fml.shared_small),
    shared=fml.shared_small,
    # The mentor teaches the mentee through its logits, and through the bridge its representations.
    public_loss=lambda options, round_: PublicLoss(through="representation"),
)
