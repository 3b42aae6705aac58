"""FML and FedAPEN: a small model travels while every client keeps a private one, and the two teach each other.

They learn from the labels and from each other, on the same batches, the teacher of each loss constant; the server takes the
plain mean of the shared models. P are the private model's logits, S the shared model's. FedMRL and FedKD share a small
model in the same way.

- ``fml``: Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu, Wu: Federated Mutual Learning, arXiv 2006.16765, 2020. The
  private model predicts. alpha = beta = 0.5 are HtFLlib's tuned values; its command line's default of 1 switches mutual
  learning off.

    loss_private = alpha CE(P, y) + (1 - alpha) KL(p_S || p_P)
    loss_shared  = beta  CE(S, y) + (1 - beta)  KL(p_P || p_S)

- ``fedapen``: Qin, Deng, Zhao, Yan: FedAPEN: Personalized Cross-silo Federated Learning with Adaptability to Statistical
  Heterogeneity, KDD 2023. With a weight w,

    loss_private = CE(P, y) + KL(p_S || p_P) + CE(w P + (1 - w) S, y)
    loss_shared  = CE(S, y) + KL(p_P || p_S) + CE(w P + (1 - w) S, y)

  On receiving the mean, a client learns w in [0, 1] by gradient descent on the cross-entropy of the mixture over its
  adaptability set, a fixed 5 % of the training images, in stored order; this w mixes during the next training and predicts.
  Before a client's first training w is 0.5 and is not learned.

The option ``small_model`` names the shared architecture; ``auto`` is the 4-layer CNN of HtFLlib and FedRE's tables, or
``small-cnn`` for images too small for that (FedMRL's is ``cnn-5``). Initial weights of the small model and of a client's own
come from different seeds: two equal models would see the same batches, stay equal, and teach each other nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, one_hot

from fedpriv.federation.local_training import classify, classify_by, has_batch_norm, train
from fedpriv.federation.method import ClientSetup, Plan, ServerSetup, Uploads
from fedpriv.federation.states import Outcome, State, outer, parameters, put, take, weighted_mean
from fedpriv.methods import weights
from fedpriv.models.build import build_model, extractor_parameters
from fedpriv.models.split import Blueprint, SplitModel
from fedpriv.models.zoo import LEAST_SIDE
from fedpriv.uploads.payloads import Message, PublicLoss, SampleCount, SmallModel, find_payload, get_payload
from fedpriv.util.errors import UserError, shown
from fedpriv.util.seeds import derive_seed

AUTO = "auto"

Architecture = Callable[[Blueprint, Any], Blueprint]
"""(a client's architecture, the method's options) -> that of the small model."""


def small_blueprint(blueprint: Blueprint, name: str, width: int | None = None, usual: str = "cnn4") -> Blueprint:
    """Return the small model's architecture, from any client's; ``usual`` is what ``auto`` means for large images."""
    if name == AUTO:
        name = usual if min(blueprint.image_shape[1:]) >= LEAST_SIDE else "small-cnn"
    return replace(blueprint, name=name, width=width or blueprint.width, mapping="ap")


def shared_small(blueprint: Blueprint, options: Any) -> Blueprint:
    """Return the small model's architecture of the option ``small_model``, of the shared width."""
    return small_blueprint(blueprint, options.small_model)


def small_scratch(setup: ClientSetup, blueprint: Blueprint) -> SplitModel:
    """Return a scratch module of the small model that is another object than ``setup.model``."""
    module = setup.scratch(blueprint)
    return copy.deepcopy(module) if module is setup.model else module


def initial_small(blueprint: Blueprint, seed: int) -> SplitModel:
    """Return the initial small model, given the seed of the private models."""
    return build_model(blueprint, derive_seed(seed, "small model"))


def init_both(setup: ClientSetup, small: Blueprint, seed: int, *, received: bool = False) -> State:
    """Return the initial private and small model; of one that is ``received`` with every broadcast the buffers alone."""
    made = initial_small(small, seed)
    return take(build_model(setup.blueprint, seed), "model") | (buffers(made) if received else take(made, "small"))


def load(setup: ClientSetup, state: State) -> tuple[SplitModel, SplitModel]:
    """Return the private and the small model with the weights of a state."""
    small = small_scratch(setup, shared_small(setup.blueprint, setup.options))
    put(setup.model, state, "model")
    put(small, state, "small")
    return setup.model, small


def buffers(module: nn.Module) -> State:
    """Return copies of a small model's persistent buffers: all that a client keeps of a model that it gets every round."""
    learnable = {name for name, _ in module.named_parameters()}
    kept = {name: value for name, value in module.state_dict().items() if name not in learnable}
    return {f"small.{name}": value.detach().clone() for name, value in kept.items()}


def receive_small(setup: ClientSetup, state: State, broadcast: Message) -> State:
    """Replace the small model's parameters by the broadcast ones; its buffers stay."""
    received = get_payload(broadcast, SmallModel).state
    return state | outer({name: value.clone() for name, value in received.items()}, "small")


def start_small(shared: Architecture, setup: ServerSetup, rng: torch.Generator) -> Outcome:
    """Build the initial small model and broadcast it."""
    made = parameters(initial_small(shared(setup.blueprint, setup.options), weights.draw_seed(rng)).to(setup.device))
    return outer(made, "small"), (SmallModel(made),)


def average_small(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> Outcome:
    """Average a round's small models, by numbers of samples where these are uploaded, and broadcast the mean."""
    counted = find_payload(uploads[0][1], SampleCount) is not None
    shares = weights.counts(uploads) if counted else [1] * len(uploads)
    mean = weighted_mean([get_payload(upload, SmallModel).state for _, upload in uploads], shares)
    return outer(mean, "small"), (SmallModel(mean),)


def check_small(shared: Architecture, plan: Plan) -> None:
    """Refuse a small model that does not exist, cannot take the images, or cannot train on a client's few images."""
    blueprint = shared(plan.blueprints[0], plan.options)
    extractor_parameters(blueprint)
    if min(plan.train_sizes) < 2 and has_batch_norm(build_model(blueprint, 0)):
        raise UserError(
            f"client {plan.train_sizes.index(min(plan.train_sizes))} holds one training image, but the small model "
            f"{blueprint.name} has batch normalisation, which needs two; pass "
            f"option={shown({'small_model': 'small-cnn'})}, fewer clients or more data"
        )


def divergence(student: Tensor, teacher: Tensor) -> Tensor:
    """Return KL(teacher || student) of logits ``(b, C)``, mean over the batch."""
    total = kl_div(student.log_softmax(1), teacher.log_softmax(1), reduction="sum", log_target=True)
    return total / len(student)


@dataclass(frozen=True)
class FmlOptions:
    """Hyperparameters of FML.

    Attributes:
        small_model: architecture of the shared small model; ``auto`` for cnn4, or small-cnn for tiny images.
        alpha: share of the labels in the private model's loss; 1 is local training.
        beta: share of the labels in the shared model's loss.
    """

    small_model: str = AUTO
    alpha: Annotated[float, Ge(0), Le(1)] = 0.5
    beta: Annotated[float, Ge(0), Le(1)] = 0.5


def fml_loss(private: Tensor, shared: Tensor, labels: Tensor, options: FmlOptions) -> Tensor:
    """Return the sum of both models' losses, of logits ``(b, C)``."""
    return (
        options.alpha * cross_entropy(private, labels)
        + (1 - options.alpha) * divergence(private, shared.detach())
        + options.beta * cross_entropy(shared, labels)
        + (1 - options.beta) * divergence(shared, private.detach())
    )


def fml_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> Outcome:
    """Train both models on the same batches; upload the shared one."""
    model, small = load(setup, receive_small(setup, state, broadcast))

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return fml_loss(model(images), small(images), labels, setup.options)

    train(nn.ModuleList([model, small]), setup.train, setup.training, rng, loss, setup.trace)
    return take(model, "model") | buffers(small), (SmallModel(parameters(small)),)


WEIGHT, SET, TRAINED = "ensemble.weight", "ensemble.set", "ensemble.trained"


@dataclass(frozen=True)
class FedApenOptions:
    """Hyperparameters of FedAPEN.

    Attributes:
        small_model: architecture of the shared model; ``auto`` for cnn4, or small-cnn for tiny images.
        set_share: share of the training images in the adaptability set.
        set_learning_rate: step size of w; 0 keeps w at 0.5 (FedEN, the paper's variant).
        set_epochs: passes over the adaptability set, in batches of the local batch size.
    """

    small_model: str = AUTO
    set_share: Annotated[float, Gt(0), Le(1)] = 0.05
    set_learning_rate: Annotated[float, Ge(0)] = 0.001
    set_epochs: Annotated[int, Ge(1)] = 10


def init_ensemble(setup: ClientSetup, rng: torch.Generator) -> State:
    """Return both initial models, w = 0.5 and the drawn adaptability set."""
    n_set = max(1, round(setup.options.set_share * len(setup.train)))
    small = shared_small(setup.blueprint, setup.options)
    return init_both(setup, small, weights.draw_seed(rng)) | {
        WEIGHT: torch.tensor([0.5]),
        SET: torch.randperm(len(setup.train), generator=rng)[:n_set].sort().values,
        TRAINED: torch.tensor([False]),
    }


def mix(private: Tensor, shared: Tensor, weight: Tensor) -> Tensor:
    """Return w P + (1 - w) S for logits ``(n, C)`` and w ``(1,)``."""
    return weight * private + (1 - weight) * shared


def learn_weight(
    weight: Tensor, private: Tensor, shared: Tensor, labels: Tensor, options: FedApenOptions, batch_size: int
) -> Tensor:
    """Return w ``(1,)`` after gradient descent on the mixture's mean cross-entropy over logits ``(n, C)``, kept in [0, 1].

    The slope is d CE / d w = mean_i (softmax(mixture_i) - onehot(y_i)) . (P_i - S_i).
    """
    targets = one_hot(labels, private.shape[1])
    for _ in range(options.set_epochs):
        for begin in range(0, len(labels), batch_size):
            rows = slice(begin, begin + batch_size)
            error = mix(private[rows], shared[rows], weight).softmax(1) - targets[rows]
            slope = (error * (private[rows] - shared[rows])).sum(1).mean()
            weight = (weight - options.set_learning_rate * slope).clamp(0, 1)
    return weight


def receive_and_weigh(setup: ClientSetup, state: State, broadcast: Message) -> State:
    """Replace the shared model by the mean, then learn how to mix it with the private one."""
    updated = receive_small(setup, state, broadcast)
    if not state[TRAINED]:
        return updated
    images, labels = setup.train.batch(state[SET])
    private, shared = (classify(model, images) for model in load(setup, updated))
    updated[WEIGHT] = learn_weight(state[WEIGHT], private, shared, labels, setup.options, setup.training.batch_size)
    return updated


def ensemble_loss(private: Tensor, shared: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Return the sum of both models' losses, of logits ``(b, C)`` and w ``(1,)``."""
    return (
        cross_entropy(private, labels)
        + divergence(private, shared.detach())
        + cross_entropy(mix(private, shared.detach(), weight), labels)
        + cross_entropy(shared, labels)
        + divergence(shared, private.detach())
        + cross_entropy(mix(private.detach(), shared, weight), labels)
    )


def ensemble_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> Outcome:
    """Train both models on the same batches; upload the shared one."""
    state = receive_and_weigh(setup, state, broadcast)
    model, small = load(setup, state)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return ensemble_loss(model(images), small(images), labels, state[WEIGHT])

    train(nn.ModuleList([model, small]), setup.train, setup.training, rng, loss, setup.trace)
    trained = {TRAINED: torch.ones_like(state[TRAINED])}
    return state | take(model, "model") | take(small, "small") | trained, (SmallModel(parameters(small)),)


def predict_mixed(setup: ClientSetup, state: State, images: Tensor) -> Tensor:
    """Return the mixed logits ``(n, C)``, w P + (1 - w) S."""
    private, shared = (classify(model, images) for model in load(setup, state))
    return mix(private, shared, state[WEIGHT])


METHOD = replace(
    weights.LOCAL,
    name="fml",
    about='FML: a private model and a shared "meme" model learn from the labels and from each other.',
    source="Shen et al., arXiv 2020",
    options=FmlOptions,
    uploads=("small-model",),
    broadcasts=("small-model",),
    start=partial(start_small, shared_small),
    init=lambda setup, rng: init_both(
        setup, shared_small(setup.blueprint, setup.options), weights.draw_seed(rng), received=True
    ),
    # The broadcast is taken up at the start of training; the private model, which predicts, does not change.
    client_step=fml_step,
    server_step=average_small,
    check=partial(check_small, shared_small),
    shared=shared_small,
    linear_aggregation=True,
    # The private model teaches the shared one through its logits.
    public_loss=lambda options, round_: PublicLoss() if options.beta == 1 else PublicLoss(through="logits"),
)
FEDAPEN = replace(
    METHOD,
    name="fedapen",
    about="FedAPEN: a private and a shared model learn from each other, and a learned weight mixes their logits.",
    source="Qin et al., KDD 2023",
    options=FedApenOptions,
    init=init_ensemble,
    apply_broadcast=receive_and_weigh,
    client_step=ensemble_step,
    predict=predict_mixed,
    extra_predictors={"private": classify_by},
    non_sgd_computation=lambda options: "the mixing weight, learned on the adaptability set",
    public_loss=lambda options, round_: PublicLoss(through="logits"),
)
