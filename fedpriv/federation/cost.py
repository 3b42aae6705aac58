"""Cost of a round for its clients: operations, counted on real client steps, and traffic, from sizes alone.

Counted are convolutions, matrix products and attention, forward and backward; a multiplication with its addition is two
operations. A client step of one architecture is run three times on a few random images, one local step each, with different
numbers of images and sizes of batches: these tell apart what grows with the images of local steps, with the steps, with the
images that the client holds, with the batches of a pass over them, and with nothing. A round of any length follows to the
operation where the step is linear in these. A round is played before, since a first broadcast may lack something (two with
two clients where more than gradients is computed from images: FedALA's first merge is unlike all later ones).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, fields, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from fedpriv.datasets.types import Samples
from fedpriv.federation.local_training import batch_sizes, has_batch_norm
from fedpriv.federation.method import ClientSetup, GuardedTraining, LocalTraining, Method, ServerSetup
from fedpriv.federation.prepared import ModelCache, check_plan
from fedpriv.federation.states import State
from fedpriv.federation.summary import Work
from fedpriv.federation.trace import Trace
from fedpriv.models import family
from fedpriv.models.build import extractor_parameters, mapping_parameters
from fedpriv.models.split import Blueprint, SplitModel
from fedpriv.util.config import parse
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator, global_seed
from fedpriv.wire.kinds import payload_kind
from fedpriv.wire.ledger import Direction, FederationSizes, Item, count
from fedpriv.wire.payload import Payload
from fedpriv.wire.payloads import Message


def _product(left: Any, right: Any, *rest: Any, **named: Any) -> int:
    return int(2 * left.shape.numel() * right.shape[-1])


def _convolution(maps: Any, weight: Any, *rest: Any, out_val: Any, **named: Any) -> int:
    positions = (maps if rest[4] else out_val).shape[2:].numel()  # rest[4]: transposed
    return int(2 * maps.shape[0] * positions * weight.numel())


def _convolution_backward(grad: Any, maps: Any, weight: Any, *rest: Any, **named: Any) -> int:
    positions = (maps if rest[4] else grad).shape[2:].numel()
    return int(2 * (rest[7][0] + rest[7][1]) * grad.shape[0] * positions * weight.numel())


def _attention(query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> int:
    return int(2 * query.shape[:-1].numel() * key.shape[-2] * (query.shape[-1] + value.shape[-1]))


def _attention_backward(grad: Any, query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> int:
    """Five products: scores again, their gradient, and the gradients of query, key and value."""
    return int(2 * query.shape[:-1].numel() * key.shape[-2] * (3 * query.shape[-1] + 2 * value.shape[-1]))


_ATTENTION = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
_FORMULAS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("mm", "bmm"), _product),
    **dict.fromkeys(("addmm", "baddbmm"), lambda summand, *factors, **named: _product(*factors)),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    **{f"_scaled_dot_product_{kind}": _attention for kind in _ATTENTION},
    **{f"_scaled_dot_product_{kind}_backward": _attention_backward for kind in _ATTENTION},
}
"""By the operation's name in torch's library ``aten``. Torch's own counter imports a compiler (two seconds of every process)
and takes the weights' gradient of a grouped convolution as if every group saw all channels; elsewhere a test holds these
formulas to it."""


class OperationCounter(TorchDispatchMode):
    """Counts convolutions, matrix products and attention, forward and backward, into ``total``."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total: int = 0

    def __enter__(self) -> OperationCounter:
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        named = kwargs or {}
        formula = _FORMULAS.get(func._opname) if func.namespace == "aten" else None
        if formula is None and func is not torch.ops.prim.device.default:
            with self:  # an operation made of others counts as these
                result = func.decompose(*args, **named)
            if result is not NotImplemented:
                return result
        result = func(*args, **named)
        self.total += formula(*args, **named, out_val=result) if formula else 0
        return result


_FEW = 4
_SHARED = 20
"""Images of a client whose method computes on a share of them: of so many the usual shares, 0.05 and 0.8, are whole."""
_RATE = 1e-3  # counted steps must not diverge, whatever the run's own rate does


@dataclass(frozen=True)
class StepOperations:
    """Operations of one client step of an architecture.

    Attributes:
        phases: of each phase of local training, operations per image of a local step and per local step.
        per_stored_image: per image that the client holds, once a round.
        per_batch_of_a_pass: per batch of one pass over these images, once a round.
        per_round: whatever the client holds.
        prediction_per_image: of the method's own way to predict.
    """

    phases: tuple[tuple[Fraction, Fraction], ...]
    per_stored_image: Fraction
    per_batch_of_a_pass: Fraction
    per_round: Fraction
    prediction_per_image: int

    def of_round(self, method: Method, setup: ClientSetup) -> int:
        """Return the operations of one client's step in a settled round."""
        stored, planned = len(setup.train), method.local_phases(setup.options, setup.training)
        passes = Fraction(stored, min(setup.training.batch_size, max(1, stored)))
        total = self.per_round + self.per_stored_image * stored + self.per_batch_of_a_pass * passes
        for number, (per_image, per_step) in enumerate(self.phases):
            training = planned[min(number, len(planned) - 1)]
            sizes = batch_sizes(stored, training, join_single=has_batch_norm(setup.model))
            total += per_image * sum(sizes) + per_step * len(sizes)
        return round(total)


class _Meter(Trace):
    """Adds up the operations of each phase of local training."""

    def __init__(self, counter: OperationCounter) -> None:
        super().__init__()
        self._counter = counter
        self.phases: list[int] = []

    def local_steps(self, batches: Sequence[Tensor]) -> None:
        self.phases.append(-self._counter.total)

    def local_steps_done(self) -> None:
        self.phases[-1] += self._counter.total


def step_operations(method: Method, setup: ClientSetup, server: ServerSetup) -> StepOperations:
    """Count a client step of one architecture on random images and weights.

    Args:
        method: that makes the step.
        setup: of a client of the architecture; its images are not used.
        server: of the federation.
    """
    shares = bool(method.non_sgd_computation(setup.options))
    few, rounds = (_SHARED, 2) if shares else (_FEW, 1)
    current = replace(
        server, n_clients=rounds, blueprint=setup.blueprint, blueprints=(setup.blueprint,) * rounds, rounds=1
    )
    less, more = (_warmed_up(method, _with_noise(setup, n), current, rounds) for n in (few, 2 * few))
    # stored images and batches of a pass: (f, f/2), (2f, f/2), (2f, f)
    _, small = _count(method, *less, 2)
    (wide_phases, wide), (long_phases, long) = _count(method, *more, 4), _count(method, *more, 2)
    per_image = [Fraction(w - n, 2) for w, n in zip(wide_phases, long_phases, strict=True)]  # 4 images against 2
    per_step = [n - 2 * image for n, image in zip(long_phases, per_image, strict=True)]
    per_pass, per_stored = Fraction(2 * (long - wide), few), Fraction(wide - small, few)
    once = small - per_stored * few - per_pass * Fraction(few, 2)
    client, state, _ = more
    with OperationCounter() as counter:
        method.predict(client, state, client.train.images[:2])
    phases = tuple(zip(per_image, per_step, strict=True))
    return StepOperations(phases, per_stored, per_pass, once, counter.total // 2)


def client_operations(method: Method, setups: Sequence[ClientSetup], server: ServerSetup) -> Work:
    """Return the operations of every client in a settled round, counting one client of every distinct architecture."""
    each: dict[Blueprint, StepOperations] = {}
    alone: dict[Blueprint, int] = {}
    reason = ""
    for setup in setups:
        if setup.blueprint in alone:
            continue
        alone[setup.blueprint] = training_flops_per_image(setup.model, setup.blueprint)
        try:
            each[setup.blueprint] = step_operations(method, setup, server)
        except Exception as error:  # a method of another package may not stand so few images; a run is worth more
            reason = reason or f"{type(error).__name__}: {error}".splitlines()[0]
    local = tuple(alone[setup.blueprint] * images_per_round(setup) for setup in setups)
    counted = [] if reason else [(setup, each[setup.blueprint]) for setup in setups]
    group = tuple(step.of_round(method, setup) for setup, step in counted)
    return Work(
        per_client_round=group,
        mean_per_client_round=sum(group) / len(group) if group else None,
        local_training_per_client_round=local,
        mean_local_training_per_client_round=sum(local) / len(local),
        prediction_per_image=tuple(step.prediction_per_image for _, step in counted),
        not_counted=reason,
    )


def training_flops_per_image(model: SplitModel, blueprint: Blueprint) -> int:
    """Return the operations of one image's forward and backward pass of cross-entropy training.

    Runs two black images without an optimiser: weights stay, running statistics do not.
    """
    device = model.head.weight.device
    images = torch.zeros(2, *blueprint.image_shape, device=device)
    labels = torch.zeros(2, dtype=torch.int64, device=device)
    model.train()
    with global_seed(0), OperationCounter() as counter:
        torch.autograd.grad(cross_entropy(model(images), labels), list(model.parameters()), allow_unused=True)
    return counter.total // 2


def images_per_round(setup: ClientSetup) -> int:
    """Return the number of images that a client trains on in a round, every epoch counted."""
    return sum(batch_sizes(len(setup.train), setup.training, join_single=has_batch_norm(setup.model)))


def _noise(number: int, blueprint: Blueprint, device: torch.device) -> Samples:
    images = torch.rand(number, *blueprint.image_shape, generator=generator(0, "counted images", number))
    return Samples(images, torch.arange(number) % blueprint.n_classes).to(device)


def _with_noise(setup: ClientSetup, stored: int) -> ClientSetup:
    """Return the client with so many images of noise, and one small local step a phase."""
    images = _noise(stored, setup.blueprint, setup.train.labels.device)
    return replace(setup, client=0, train=images, training=_one_step(setup.training, 2), trace=Trace())


def _one_step(training: LocalTraining, batch: int) -> LocalTraining:
    changed = replace(
        training, batch_size=batch, epochs=1, max_steps=1, drop_last=False, learning_rate=_RATE, shuffle=False
    )
    # a Poisson sample has no size to count by
    return replace(changed, poisson=False) if isinstance(changed, GuardedTraining) else changed


def _warmed_up(
    method: Method, setup: ClientSetup, server: ServerSetup, rounds: int
) -> tuple[ClientSetup, State, Message]:
    """Return the client, its state and the broadcast after a round, or after two with another client."""
    pair = (setup, replace(setup, client=1, train=setup.train.subset(torch.arange(1, len(setup.train)))))[:rounds]
    state, broadcast = method.start(server, generator(0, "counted start"))
    states = [method.init(item, generator(0, "counted start")) for item in pair]
    device = setup.train.labels.device
    states = [{name: value.to(device) for name, value in one.items()} for one in states]
    for round_ in range(rounds):
        uploads: list[tuple[int, Message]] = []
        for k, entry in enumerate(pair):
            rng = generator(0, "counted step", round_, k)
            states[k], sent = method.client_step(replace(entry, trace=Trace()), states[k], broadcast, rng)
            uploads.append((k, sent))
        state, broadcast = method.server_step(server, state, uploads, generator(0, "counted server", round_))
    return setup, states[0], broadcast


def _count(method: Method, setup: ClientSetup, state: State, broadcast: Message, batch: int) -> tuple[list[int], int]:
    """Return the operations of a client step: of each phase of local training, and of the rest."""
    with OperationCounter() as counter:
        meter = _Meter(counter)
        current = replace(setup, training=_one_step(setup.training, batch), trace=meter)
        method.client_step(current, state, broadcast, generator(0, "counted step", "last"))
        total = counter.total
    return meter.phases, total - sum(meter.phases)


@dataclass(frozen=True)
class PlannedClients:
    """The clients of a federation that is not trained.

    Attributes:
        blueprints, train_sizes: architecture and number of training images of each.
        training: local training.
        public: public images of the server, 0 for none.
    """

    blueprints: tuple[Blueprint, ...]
    train_sizes: tuple[int, ...]
    training: LocalTraining
    public: int = 0


def planned_operations(method: Method, clients: PlannedClients, options: Mapping[str, Any]) -> dict[str, float]:
    """Return operations of a client in a settled round, mean over clients, as ``summary.json`` counts them.

    Raises:
        UserError: where the method cannot run on these clients, or its client step cannot be counted.
    """
    parsed: Any = parse(method.options, options, f"options of {method.name}")
    device, pixel = torch.device("cpu"), torch.zeros(())
    cache = ModelCache(device)
    public = _noise(clients.public, clients.blueprints[0], device) if clients.public else None
    given = public if method.needs_public else None
    setups = tuple(
        ClientSetup(
            client=k,
            blueprint=current,
            model=cache(current),
            train=Samples(
                pixel.expand(size, *current.image_shape), torch.zeros(size, dtype=torch.int64)
            ),  # for its length
            training=clients.training,
            options=parsed,
            scratch=cache,
            public=None if given is None else given.images,
            public_labels=None if given is None else given.labels,
        )
        for k, (current, size) in enumerate(zip(clients.blueprints, clients.train_sizes, strict=True))
    )
    check_plan(method, setups, parsed, has_public=clients.public > 0)
    server = ServerSetup(
        n_clients=len(setups),
        blueprint=setups[0].blueprint,
        options=parsed,
        scratch=cache,
        device=device,
        public=None if public is None else public.images,
        blueprints=clients.blueprints,
    )
    work = client_operations(method, setups, server)
    if work.mean_per_client_round is None or work.ratio_to_local is None:
        raise UserError(
            f"operations of method {method.name!r} cannot be counted: {work.not_counted or 'nobody trains'}"
        )
    return {
        "per_client_round": work.mean_per_client_round,
        "local_training_per_client_round": work.mean_local_training_per_client_round,
        "ratio_to_local": work.ratio_to_local,
        "prediction_per_image": sum(work.prediction_per_image) / len(work.prediction_per_image),
    }


def model_parameters(blueprint: Blueprint) -> int:
    """Return the number of learnable parameters of a whole model."""
    head = blueprint.width * blueprint.n_classes + blueprint.n_classes
    return extractor_parameters(blueprint) + mapping_parameters(blueprint) + head


def with_models(
    facts: FederationSizes, models: str, image_shape: tuple[int, int, int], mapping: str = "ap"
) -> FederationSizes:
    """Return facts with the architectures of a family; client k takes the k-th, as in a run."""
    names = family(models)[: facts.clients]
    blueprints = [Blueprint(name, image_shape, facts.classes, facts.width, mapping) for name in names]
    sizes = [model_parameters(blueprint) for blueprint in blueprints]
    turns, left = divmod(facts.clients, len(names))
    return replace(
        facts,
        blueprint=blueprints[0],
        model_scalars=sizes[0],
        all_model_scalars=turns * sum(sizes) + sum(sizes[:left]),
    )


def message_sizes(method: Method, facts: FederationSizes) -> tuple[Item, ...]:
    """Return the tensors of a settled round, from sizes alone; the ledger of a real run agrees with it.

    An axis of a payload's declared shape is C, d or 1, and its first may be n, the images of a client, or c, its
    classes, in a broadcast the classes that anybody holds. Parameters by name are those of the kind's network. What is
    optional, or sent once, is left out. What ``method.sizes`` says comes before all this.
    """
    facts = facts if facts.options is not None else replace(facts, options=method.options())
    details = method.sizes(facts)
    items = []
    sent: tuple[tuple[Direction, tuple[str, ...]], ...] = ("upload", method.uploads), ("broadcast", method.broadcasts)
    for direction, names in sent:
        for kind in map(payload_kind, names):
            for spec in fields(kind):
                name, meta = f"{kind.kind}.{spec.name}", spec.metadata
                scalars = details.get((direction, name))
                if scalars is None and not (meta["optional"] or (kind.once and direction == "upload")):
                    scalars = _scalars(method, facts, direction, kind, spec)
                if scalars:
                    items.append(Item(direction, name, scalars, meta["paper"], 8 if meta["integer"] else 4))
    return tuple(items)


def _scalars(
    method: Method, facts: FederationSizes, direction: Direction, kind: type[Payload], spec: Field[Any]
) -> int:
    if spec.metadata["shape"] == "*":
        return _of_network(method, facts, kind)
    first, *others = spec.metadata["shape"].split()
    lengths = {"1": 1, "d": facts.width, "C": facts.classes}
    if first == "n":
        number = int(facts.need("samples"))
    elif first == "c" and direction == "upload":
        number = int(facts.need("pairs"))
    else:
        lengths["c"] = facts.known_classes or facts.classes
        number, others = facts.clients, [first, *others]
    for axis in others:
        if axis not in lengths:
            raise UserError(
                f"method {method.name!r} does not say how long axis {axis} of {kind.kind}.{spec.name} is; its sizes should"
            )
        number *= lengths[axis]
    return number


def _of_network(method: Method, facts: FederationSizes, kind: type[Payload]) -> int:
    if kind.space == "factors":
        return facts.clients * int(facts.need("compressed_scalars"))
    if kind.network == "head":
        return facts.clients * facts.head_scalars
    if kind.network == "small":
        return facts.clients * model_parameters(method.shared(facts.need("blueprint", "models"), facts.options))
    return facts.all_models() - (facts.clients * facts.head_scalars if kind.network == "extractor" else 0)


def communication(
    method: Method, facts: FederationSizes, options: Mapping[str, Any], *, mixed: bool = False
) -> dict[str, dict[str, int]]:
    """Return a settled round's communication with these options of the method, under the names that a run's summary has."""
    if mixed and method.homogeneous:
        raise UserError(f"method {method.name!r} needs one architecture for all clients: pass one in models")
    parsed: Any = parse(method.options, options, f"options of {method.name}")
    counts = count(message_sizes(method, replace(facts, options=parsed)))
    return {
        kind: {f"{key}_per_round": value for key, value in asdict(current).items()} for kind, current in counts.items()
    }
