"""Everything that is handed in with uploads, checked at the door and put together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.attacks.observation import BatchFacts, Observation
from fedpriv.datasets.types import Samples
from fedpriv.evidence.norm_statistics import batch_norms
from fedpriv.evidence.pool import MOST_VALUES, Pool
from fedpriv.experiment.uploads.announced import (
    LONGEST_LABEL,
    MOST_CLASSES,
    MOST_IMAGES,
    check_label,
    plain_tensor,
    refuse_too_much,
    settled,
    tried,
)
from fedpriv.experiment.uploads.evidence import Handed, check_extractor, own_copy
from fedpriv.experiment.uploads.given import (
    Gradient,
    Update,
    by_round,
    check_images,
    check_labels,
    declared_groups,
    each,
    is_state,
    private_images,
)
from fedpriv.experiment.uploads.held_out import read_held_out
from fedpriv.experiment.uploads.messages import exchange, is_weights, read_message
from fedpriv.experiment.uploads.premise import upload_rounding
from fedpriv.experiment.uploads.protection import read_defense
from fedpriv.experiment.uploads.truth import refuse_known
from fedpriv.util.arguments import argument
from fedpriv.util.device import pick_device
from fedpriv.util.errors import UserError, shown
from fedpriv.util.seeds import generator
from fedpriv.wire.kinds import LAYERS, NETWORKS, TELLING, WHOLE, payload_kind
from fedpriv.wire.payload import Message, Payload


def read_handed(
    uploads: Any,
    target: str,
    images: Any,
    labels: Any,
    extractor: Any,
    settings: Mapping[str, Any],
    *,
    numbers: Sequence[int] = (),
) -> Handed:
    """Check everything at the door and return it.

    Arguments are those of :func:`fedpriv.attack_uploads`; ``numbers`` are the rounds' own, ascending (default 1, 2, ...).
    """
    device = pick_device(settings.get("device", "auto"))
    rounds = by_round(uploads, target)
    clients = sorted({k for given in rounds for k in given})
    told = dict.fromkeys(clients) if labels is None else _labels_by_client(labels, clients)
    number = settings.get("n_classes")
    if number is not None and number > MOST_CLASSES:
        raise UserError(f"{argument('n_classes', number)}: expected at most {MOST_CLASSES}")
    before = _broadcasts(settings.get("broadcasts"), rounds, target, number)
    several = len(clients) > 1
    messages = [
        {k: read_message(one, target, told[k], number, sent[k], k if several else None) for k, one in given.items()}
        for given, sent in zip(rounds, before, strict=True)
    ]
    read = {k: message for of_round in messages for k, message in of_round.items()}  # of each client the newest
    for name in ("method", "dataset"):
        if name in settings:
            check_label(name, settings[name])
    own = private_images(
        images, labels, settings.get("weights"), {k: m if isinstance(m, tuple) else () for k, m in read.items()}
    )
    shape = next(iter(own.values())).images.shape[1:]
    model = None if settings.get("model") is None else own_copy("model", settings["model"], device)
    if model is None and target in NETWORKS:
        raise UserError(f"{argument('model')}: missing; weights of a network are attacked through its architecture")
    facts = _facts(settings.get("batch"), {k: len(own[k].images) for k in clients}, read)
    observations, batches = _observed(messages, before, target, model, facts, numbers or range(1, len(rounds) + 1))
    n_classes = _n_classes(number, [payload for o in observations for payload in o.upload], own, model)
    public = _public(settings, shape, device)
    told_of = read_defense(settings.get("defense"), target, observations, n_classes)
    handed = Handed(
        target=target,
        observations=tuple(observations),
        own=own,
        image_shape=(shape[0], shape[1], shape[2]),
        n_classes=n_classes,
        extractors=_networks("extractor", extractor, clients, device),
        heads={
            k: (head.weight.detach().cpu(), head.bias.detach().cpu()) for k, head in _heads(settings, clients).items()
        },
        model=model,
        batches=batches,
        statistics=_statistics(model, messages[-1]),
        earlier=_earlier(settings.get("earlier_extractors"), rounds, observations, device),
        defended=told_of.rows,
        defended_weights=told_of.weights,
        groups=declared_groups(settings.get("groups"), clients),
        public=public,
        rounding={client: upload_rounding(upload) for client, upload in read.items()},
        held_out=read_held_out(settings.get("held_out"), own, shape, public),
        device=device,
    )
    _check_together(handed)
    return handed


def _observed(
    messages: Sequence[Mapping[int, Message | Update | Gradient]],
    before: Sequence[Mapping[int, Message]],
    target: str,
    model: nn.Module | None,
    facts: Mapping[int, BatchFacts],
    numbers: Sequence[int],
) -> tuple[list[Observation], dict[int, BatchFacts]]:
    """Return the server's sight of each client in each round, and client -> facts of its local steps."""
    observations, batches = [], {}
    for number, of_round, sent in zip(numbers, messages, before, strict=True):
        for k, one in of_round.items():
            broadcast, known = sent[k], facts.get(k)
            if isinstance(one, (Update, Gradient)):
                if len(messages) > 1:
                    raise UserError(
                        f"{argument('uploads')}: weights of {len(messages)} rounds; expected those of one round"
                    )
                one, broadcast, known = exchange(one, target, model, known)
            if known is not None:
                batches[k] = known
            observations.append(Observation(number, k, one, broadcast))
    return observations, batches


def _labels_by_client(labels: Any, clients: Sequence[int]) -> dict[int, Any]:
    if isinstance(labels, Mapping):
        return each("labels", labels, clients)
    if len(clients) == 1:
        alone = isinstance(labels, (list, tuple)) and len(labels) == 1 and isinstance(labels[0], (Tensor, list, tuple))
        return {clients[0]: labels[0] if alone else labels}
    return each("labels", labels, clients)


def _broadcasts(
    given: Any, rounds: Sequence[Mapping[int, Any]], target: str, n_classes: int | None
) -> list[dict[int, Message]]:
    """Return the message that each client answered in each round; an empty one where none is known."""
    if len(rounds) == 1 or not isinstance(given, list):
        return [_answered(given, list(clients), target, n_classes) for clients in rounds]
    if len(given) != len(rounds):
        raise UserError(f"{argument('broadcasts')}: {len(given)} given for {len(rounds)} rounds; expected one for each")
    return [_answered(one, list(clients), target, n_classes) for one, clients in zip(given, rounds, strict=True)]


def _answered(given: Any, clients: Sequence[int], target: str, n_classes: int | None) -> dict[int, Message]:
    one = given is None or isinstance(given, (Payload, tuple)) or is_state(given)
    found = dict.fromkeys(clients, given) if one else each("broadcasts", given, clients)
    if is_weights(target):
        found = {k: payload_kind(target)(state=own) if is_state(own) else own for k, own in found.items()}  # type: ignore[call-arg]
    messages = {k: () if own is None else (own,) if isinstance(own, Payload) else own for k, own in found.items()}
    for k, message in messages.items():
        if not isinstance(message, tuple) or not all(isinstance(payload, Payload) for payload in message):
            raise UserError(f"{argument('broadcasts')}: expected payloads for client {k}, got {type(message).__name__}")
    where = argument("broadcasts")
    return {k: tuple(settled(where, payload, n_classes) for payload in message) for k, message in messages.items()}


def _facts(
    batch: Any, counts: Mapping[int, int], read: Mapping[int, Message | Update | Gradient]
) -> dict[int, BatchFacts]:
    facts = {k: one for k, one in each("batch", batch, list(counts)).items() if one is not None}
    for one in facts.values():
        _check_facts(one)
    for k, upload in read.items():
        if k not in facts and isinstance(upload, Gradient):
            facts[k] = BatchFacts(counts[k], 1.0, 1)
        if k in facts and facts[k].images != counts[k]:
            raise UserError(
                f"{argument('batch')}: {facts[k].images} images in {facts[k].steps} step(s), but client {k} has "
                f"{counts[k]} images; expected the images of the steps, in order"
            )
    return facts


def _check_facts(facts: Any) -> None:
    where = argument("batch")
    if not isinstance(facts, BatchFacts):
        raise UserError(f"{where}: expected fedpriv.BatchFacts, got {type(facts).__name__}")
    if not isinstance(facts.sizes, tuple):
        raise UserError(f"{where}: sizes {shown(facts.sizes)}; expected a tuple of whole numbers")
    sizes = [("sizes", one) for one in facts.sizes]
    for name, count in [("batch_size", facts.batch_size), ("steps", facts.steps), *sizes]:
        if type(count) is not int or not 1 <= count <= MOST_IMAGES:
            raise UserError(f"{where}: {name} {shown(count)}; expected a whole number of at least 1")
    rate = facts.learning_rate
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < math.inf:
        raise UserError(f"{where}: learning rate {shown(rate)}; expected a finite number, more than 0")
    name = facts.optimiser
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > LONGEST_LABEL:
        raise UserError(f"{where}: optimiser {shown(name)}; expected a name: sgd, adam, other")
    if facts.sizes and (len(facts.sizes) != facts.steps or max(facts.sizes) > facts.batch_size):
        raise UserError(
            f"{where}: sizes {shown(facts.sizes)} of {facts.steps} step(s) of at most {facts.batch_size} images"
        )


def _n_classes(given: int | None, payloads: Sequence[Payload], own: Mapping[int, Any], model: nn.Module | None) -> int:
    """Return C: as it was given, or the largest that anything says.

    Raises:
        UserError: naming the label that is out of range.
    """
    largest = max(int(each.labels.max()) for each in own.values()) + 1
    said = [largest]
    for payload in payloads:
        if payload.kind in TELLING:
            for what in ("weights", "histogram"):
                name = payload.field_that_says(what)
                said += [] if name is None else [len(getattr(payload, name))]
            name = payload.field_that_says("classes")
            said += [] if name is None else [int(getattr(payload, name).max()) + 1]
    if model is not None:
        outputs = [len(value) for value in model.state_dict().values() if value.dim() == 2]
        said += outputs[-1:]
    if given is not None and max(said[:1]) > given:
        raise UserError(
            f"{argument('labels')}: class {largest - 1}, but {argument('n_classes', given)}; expected 0..{given - 1}"
        )
    return given or max(said)


def _networks(name: str, given: Any, clients: Sequence[int], device: torch.device) -> dict[int, nn.Module]:
    """Return a copy of each client's network; of one network for all, one copy."""
    copies: dict[int, nn.Module] = {}
    found = {}
    for k, network in each(name, given, clients).items():
        if network is not None:
            if id(network) not in copies:
                copies[id(network)] = own_copy(name, network, device)
            found[k] = copies[id(network)]
    return found


def _earlier(
    given: Any, rounds: Sequence[Mapping[int, Any]], observations: Sequence[Observation], device: torch.device
) -> dict[tuple[int, int], nn.Module]:
    """Return (round, client) -> a copy of the network behind an upload of a round before the last."""
    if given is None:
        return {}
    where = argument("earlier_extractors")
    if not isinstance(given, (list, tuple)) or len(given) != len(rounds) - 1 or not given:
        got = f"{len(given)}" if isinstance(given, (list, tuple)) else type(given).__name__
        raise UserError(
            f"{where}: {got} for {len(rounds)} round(s); expected a list with one entry a round before the last"
        )
    found: dict[tuple[int, int], nn.Module] = {}
    numbers = sorted({seen.round for seen in observations})
    for number, of_round, own in zip(numbers, rounds, given, strict=False):
        networks = _networks("earlier_extractors", own, sorted(of_round), device)
        found |= {(number, client): network for client, network in networks.items()}
    return found


def _heads(settings: Mapping[str, Any], clients: Sequence[int]) -> dict[int, nn.Linear]:
    found = {k: head for k, head in each("head", settings.get("head"), clients).items() if head is not None}
    for head in found.values():
        if not isinstance(head, nn.Linear) or head.bias is None:
            raise UserError(f"{argument('head')}: expected a torch.nn.Linear with a bias, got {type(head).__name__}")
        own_copy("head", head, torch.device("cpu"))
    return found


def _statistics(model: nn.Module | None, given: Mapping[int, Any]) -> dict[int, Any]:
    """Return the running statistics that uploaded state dicts hold of every batch norm of the model."""
    norms = {} if model is None else batch_norms(model)
    names = list(norms)
    found = {}
    for k, one in given.items():
        after = one.after if isinstance(one, Update) else None
        if names and isinstance(after, Mapping) and all(f"{name}.running_mean" in after for name in names):
            found[k] = {name: _running(after, name, norms[name]) for name in names}
    return found if len(found) == len(given) else {}


def _running(after: Mapping[str, Any], name: str, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Return the running mean and variance ``(c,)`` of a batch norm as an uploaded state dict has them."""
    found = []
    for what in ("running_mean", "running_var"):
        where, own = f"{argument('uploads')}: after[{name + '.' + what!r}]", getattr(norm, what)
        value = plain_tensor(where, after.get(f"{name}.{what}"))
        if value.shape != own.shape or not value.is_floating_point():
            raise UserError(f"{where}: {value.dtype} {tuple(value.shape)}; expected floats {tuple(own.shape)}")
        value = value.detach().cpu().float()
        if not bool(value.isfinite().all()) or (what == "running_var" and bool((value < 0).any())):
            raise UserError(f"{where}: holds NaN, infinity or a negative variance")
        found.append(value)
    return found[0], found[1]


def _public(settings: Mapping[str, Any], shape: Sequence[int], device: torch.device) -> Samples | None:
    images, labels = settings.get("public"), settings.get("public_labels")
    if images is None:
        if labels is not None:
            raise UserError(f"{argument('public_labels')}: given without {argument('public')}")
        return None
    checked = check_images("public", images, shape)
    if labels is None:
        raise UserError(f"{argument('public_labels')}: missing; expected the classes of the {len(checked)} images")
    return Samples(checked.to(device), check_labels("public_labels", labels, len(checked)).to(device))


def _check_together(handed: Handed) -> None:
    """Check that uploads, networks and images belong together."""
    sent = (tensor for seen in handed.observations for payload in seen.upload for tensor in payload.tensors().values())
    refuse_too_much([*sent, *(own.images for own in handed.own.values())])
    if handed.model is not None and handed.target in WHOLE:
        first = next(iter(handed.own.values()))
        tried(argument("model"), handed.model, first.images[:2], "logits (n, C)")
    for seen in handed.newest:
        own = handed.own[seen.client]
        if seen.client in handed.extractors:
            check_extractor(handed.extractors[seen.client], own.images, seen, handed.target)
        for one in handed.observations:
            if one.client == seen.client and (one.round, one.client) in handed.earlier:
                network = handed.earlier[one.round, one.client]
                check_extractor(network, own.images, one, handed.target, "earlier_extractors")
        for payload in seen.upload:
            if payload.kind == handed.target and payload.computed_from == "image":
                name = payload.values_field()
                rows = len(getattr(payload, str(name)))
                if rows != len(own.images):
                    raise UserError(
                        f"{argument('images')}: {len(own.images)} of client {seen.client}, but its upload has {rows} rows; "
                        "expected one image a row, in order"
                    )
    if handed.target in LAYERS and not handed.batches:
        raise UserError(f"{argument('batch')}: missing; the update of a layer is read with fedpriv.BatchFacts")


def read_strangers(strangers: Any, labels: Any, handed: Handed) -> Samples:
    """Return the images that no upload was computed from with their classes, -1 where these are not known."""
    found = check_images("strangers", strangers, handed.image_shape)
    if len(found) < 2:
        raise UserError(
            f"{argument('strangers')}: expected at least 2 images, got {len(found)}; a few hundred serve well"
        )
    refuse_known(found, handed.own)
    known = torch.full((len(found),), -1) if labels is None else check_labels("stranger_labels", labels, len(found))
    return Samples(found, known)


def drawn(strangers: Samples, seed: int, *, alike: bool = False) -> Pool:
    """Return the strangers that floors are made of, and those that are decoys: as many as memory allows.

    Args:
        strangers: images that no upload was computed from.
        seed: of the drawing.
        alike: whether chance alone decided which images of a class are strangers.

    Raises:
        UserError: where that is said of strangers without classes.
    """
    if alike and bool((strangers.labels < 0).all()):
        raise UserError(
            f"{argument('strangers_alike')}: needs {argument('stranger_labels')}: decoys are strangers of an image's class"
        )
    images = strangers.images
    order = torch.randperm(len(images), generator=generator(seed, "strangers"))[: MOST_VALUES // images[0].numel()]
    return Pool.divided(images[order], strangers.labels[order], seed, "strangers", alike=alike)
