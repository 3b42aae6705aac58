"""The door of uploads from elsewhere: everything that comes with them is checked, and put together as a source."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from fedpriv.attacks.observation import BatchFacts, Observation, Statistics
from fedpriv.datasets.types import Samples
from fedpriv.defenses import build_defenses, parse_choice
from fedpriv.federation.defense import DefensePipeline, defense_facts
from fedpriv.sources.external import ExternalSource, Raw
from fedpriv.sources.messages import (
    MOST_CLASSES,
    MOST_IMAGES,
    Gradient,
    Update,
    check_labels,
    exchange,
    is_one_upload,
    is_state,
    is_weights,
    numbers,
    plain_tensor,
    read_message,
    settled,
)
from fedpriv.sources.rehearsal import changes_rows, changes_uploads, changes_weights, rehearsed, sends_weights
from fedpriv.sources.run import batch_norms
from fedpriv.sources.truth import image_key
from fedpriv.util.compute import pick_device
from fedpriv.util.config import texts
from fedpriv.util.errors import UserError, shown
from fedpriv.wire.kinds import LAYERS, NETWORKS, TELLING, VECTORS, WHOLE, payload_kind
from fedpriv.wire.payload import Message, Payload, check_plain

MOST_CLIENTS: Final = 1_000_000
"""Clients that uploads may be of, and their numbers."""

MOST_TOGETHER: Final = 1 << 32
"""Values of everything that is handed in: 16 GiB of float32, of which attacks make copies."""

LONGEST_LABEL: Final = 200
"""Characters of a name that pages and tables show."""


def read_uploads(
    uploads: Any,
    target: str,
    images: Any,
    labels: Any,
    extractor: Any,
    auxiliary: Any,
    settings: Mapping[str, Any],
    *,
    numbers: Sequence[int] = (),
    summed: bool = False,
) -> ExternalSource:
    """Check everything at the door and return it as a source.

    Arguments are those of :func:`fedpriv.attack_uploads`; ``numbers`` are the rounds' own, ascending (default 1, 2, ...);
    ``summed`` says that every upload is the sum over a round's clients.
    """
    device = pick_device(settings.get("device", "auto"))
    rounds = _by_round(uploads, target)
    clients = sorted({k for given in rounds for k in given})
    classes: Mapping[int, Any] = dict.fromkeys(clients) if labels is None else _of_clients("labels", labels, clients)
    n_classes = settings.get("n_classes")
    if n_classes is not None and n_classes > MOST_CLASSES:
        raise UserError(f"n_classes={shown(n_classes)}: expected at most {MOST_CLASSES}")
    several = len(clients) > 1
    before = _broadcasts(settings.get("broadcasts"), rounds, target, n_classes)
    messages = [
        {k: read_message(u, target, classes[k], n_classes, sent[k], k if several else None) for k, u in given.items()}
        for given, sent in zip(rounds, before, strict=True)
    ]
    raw = {k: message for of_round in messages for k, message in of_round.items()}  # of each client the newest
    for name in {"method", "dataset"} & set(settings):
        _check_label(name, settings[name])
    current = _private_images(images, classes, raw)
    shape = next(iter(current.values())).images.shape[1:]
    model = None if settings.get("model") is None else _copied("model", settings["model"], device)
    if model is None and target in NETWORKS:
        raise UserError("model: missing; weights of a network are attacked through its architecture")
    batches = _facts(settings.get("batch"), {k: len(current[k]) for k in clients}, raw)
    seen: list[Observation] = []
    for number, of_round, sent in zip(numbers or range(1, len(rounds) + 1), messages, before, strict=True):
        for k, upload in of_round.items():
            broadcast, facts = sent[k], batches.get(k)
            if isinstance(upload, (Update, Gradient)):
                if len(messages) > 1:
                    raise UserError(f"uploads: weights of {len(messages)} rounds; expected those of one")
                upload, broadcast, facts = exchange(upload, target, model, facts)
            batches |= {} if facts is None else {k: facts}
            seen.append(Observation(number, k, upload, broadcast))
    public = _labelled("public", settings, shape)
    public = None if public is None else public.to(device)
    pipeline = DefensePipeline(
        build_defenses([parse_choice(t) for t in texts("defense", settings.get("defense") or ())])
    )
    facts_of_defenses = tuple(defense_facts(defense) for defense in pipeline.defenses)
    source = ExternalSource(
        kind=target,
        image_shape=(shape[0], shape[1], shape[2]),
        n_classes=_n_classes(n_classes, [payload for o in seen for payload in o.upload], current, model),
        device=device,
        uploads=tuple({payload.kind: None for o in seen for payload in o.upload}),
        pipeline=pipeline,
        total_rounds=len(rounds),
        model=model,
        summed=summed,
        seen=tuple(seen),
        images=current,
        auxiliary=_auxiliary(auxiliary, settings.get("auxiliary_labels"), current, shape),
        alike=settings.get("auxiliary_alike", False),
        shares={
            k: _check_shares(w, len(current[k])) for k, w in _given("weights", settings.get("weights"), clients).items()
        },
        extractors=_extractors(extractor, settings.get("earlier_extractors"), rounds, seen, device),
        heads=_heads(settings, clients),
        batches=batches,
        running=_running_statistics(model, messages[-1]),
        public=public,
        groups=_groups(settings.get("groups"), clients),
        raw=raw,
        held_out=_held_out(settings.get("held_out"), current, shape, public),
        command=f"fedpriv.attack_uploads(..., target={target!r})",
        defenses=facts_of_defenses,
        **{name: settings[name] for name in ("method", "dataset") if name in settings},
    )
    _check_together(source)
    return source


def _by_client(name: str, given: Any, target: str) -> dict[int, Any]:
    """Return one upload, a list or a mapping as a mapping from the client's number."""
    if is_one_upload(given, target):
        return {0: given}
    if isinstance(given, Mapping):
        result = dict(given)
        if not all(type(client) is int and 0 <= client < MOST_CLIENTS for client in result):
            got = shown([*result])
            raise UserError(f"{name}: expected client numbers 0..{MOST_CLIENTS - 1} as keys, got {got}")
    elif isinstance(given, (list, tuple)):
        result = dict(enumerate(given))
    else:
        raise UserError(
            f"{name}: expected an upload (a payload such as fedpriv.Prototypes, a tensor, fedpriv.Update or "
            f"fedpriv.Gradient), a list of them or a mapping by client, got {type(given).__name__}"
        )
    if not 1 <= len(result) <= MOST_CLIENTS:
        raise UserError(f"{name}: {len(result):,} clients; expected at least one, at most {MOST_CLIENTS:,}")
    return dict(sorted(result.items()))


def _by_round(given: Any, target: str) -> list[dict[int, Any]]:
    """Return uploads as one mapping from the client's number for each round, the oldest first.

    Several rounds are a list whose entries are lists, or mappings from client numbers; anything else is one round. A mapping
    from whole numbers to vectors is one client's upload where the target has a row a class, by client otherwise.
    """
    several = isinstance(given, list) and all(
        isinstance(entry, list)
        or (
            isinstance(entry, Mapping)
            and all(isinstance(key, int) for key in entry)
            and not is_one_upload(entry, target)
        )
        for entry in given
    )
    return [_by_client("uploads", item, target) for item in (given if several and given else [given])]


def _each(name: str, given: Any, clients: Sequence[int]) -> dict[int, Any]:
    """Return an argument that is one for all clients, or one a client (a list in their order, or a mapping)."""
    if isinstance(given, Mapping) and all(isinstance(key, int) for key in given):
        missing = [client for client in clients if client not in given]
        if missing:
            raise UserError(f"{name}: nothing for client {missing[0]}; expected one for each upload")
        return {client: given[client] for client in clients}
    if isinstance(given, (list, tuple)):
        if len(given) != len(clients):
            raise UserError(f"{name}: {len(given)} given for {len(clients)} uploads; expected one for each")
        return dict(zip(clients, given, strict=True))
    return dict.fromkeys(clients, given)


def _given(name: str, given: Any, clients: Sequence[int]) -> dict[int, Any]:
    """Return an argument by client, of those for whom there is any."""
    values = {} if given is None else _of_clients(name, given, clients)
    return {client: value for client, value in values.items() if value is not None}


def _of_clients(name: str, given: Any, clients: Sequence[int]) -> dict[int, Any]:
    """Return tensors by client: one, or a list of one, where there is one client."""
    if len(clients) == 1 and not isinstance(given, Mapping):
        nested = isinstance(given, (list, tuple)) and len(given) == 1 and isinstance(given[0], (Tensor, list, tuple))
        return {clients[0]: given[0] if nested else given}
    if isinstance(given, Tensor):
        raise UserError(f"{name}: one tensor for {len(clients)} uploads; expected a list, one a client")
    return _each(name, given, clients)


def _check_images(name: str, images: Any, shape: Sequence[int] | None = None) -> Tensor:
    """Return images on the CPU as float32 ``(n, c, h, w)``."""
    where = name
    if not isinstance(images, Tensor):
        raise UserError(f"{where}: expected a tensor (n, c, h, w), got {type(images).__name__}")
    check_plain(where, images)
    if images.dim() != 4 or not images.numel():
        raise UserError(f"{where}: expected a tensor (n, c, h, w) of at least one image, got {tuple(images.shape)}")
    if not images.is_floating_point():
        raise UserError(f"{where}: expected floats in [0, 1], got {images.dtype}; divide by 255")
    result = images.detach().to("cpu", torch.float32)
    if not bool(result.isfinite().all()):
        raise UserError(f"{where}: holds NaN or infinity; expected values in [0, 1]")
    low, high = float(result.min()), float(result.max())
    if low < 0 or high > 1:
        raise UserError(f"{where}: values from {low:.3g} to {high:.3g}; expected [0, 1], before any normalisation")
    if shape is not None and result.shape[1:] != torch.Size(shape):
        raise UserError(
            f"{where}: images {tuple(result.shape[1:])}, expected {tuple(shape)} as the clients' images are"
        )
    return result


def _private_images(images: Any, classes: Mapping[int, Any], raw: Mapping[int, Raw]) -> dict[int, Samples]:
    """Return each client's own images with their labels; where none are given, those that its upload names."""
    clients = list(classes)
    checked = {k: _check_images("images", item) for k, item in _of_clients("images", images, clients).items()}
    shapes = {tuple(entry.shape[1:]) for entry in checked.values()}
    if len(shapes) > 1:
        raise UserError(f"images: shapes {sorted(shapes)}; expected one shape for all clients")
    result = {}
    for client, current in checked.items():
        labels, upload = classes[client], raw[client]
        if labels is None:
            payloads = upload if isinstance(upload, tuple) else ()
            sent = next((payload for payload in payloads if payload.computed_from == "image"), None)
            labels = None if sent is None else sent.said("classes")
            if labels is None:
                raise UserError("labels: missing; expected the class of each image, one tensor a client")
        result[client] = Samples(current, check_labels("labels", labels, len(current)))
    return result


def _check_shares(given: Any, count: int) -> Tensor:
    shares = numbers("weights", given, f"{count} finite shares, one an image")
    shares = shares.double().abs() if not shares.is_complex() else torch.empty(0)
    if shares.shape != (count,) or not bool(shares.isfinite().all()) or not float(shares.sum()) > 0:
        raise UserError(f"weights: expected {count} finite shares, not all zero, one an image")
    return shares


def _labelled(name: str, settings: Mapping[str, Any], shape: Sequence[int]) -> Samples | None:
    images, labels = settings.get(name), settings.get(f"{name}_labels")
    if images is None:
        if labels is not None:
            raise UserError(f"{name}_labels: given without {name}")
        return None
    checked = _check_images(name, images, shape)
    if labels is None:
        raise UserError(f"{name}_labels: missing; expected the classes of the {len(checked)} images")
    return Samples(checked, check_labels(f"{name}_labels", labels, len(checked)))


def _auxiliary(given: Any, labels: Any, samples: Mapping[int, Samples], shape: Sequence[int]) -> Samples:
    """Return the images that no upload was computed from with their classes, -1 where these are not known."""
    images = _check_images("auxiliary", given, shape)
    if len(images) < 2:
        raise UserError(f"auxiliary: expected at least 2 images, got {len(images)}; a few hundred serve well")
    known = {image_key(image): client for client, each in samples.items() for image in each.images}
    for index, image in enumerate(images):
        if (client := known.get(image_key(image))) is not None:  # baselines would be as good as the truth
            raise UserError(
                f"auxiliary: image {index} is one of client {client}'s; expected images that no upload was "
                "computed from"
            )
    unknown = torch.full((len(images),), -1)
    return Samples(images, unknown if labels is None else check_labels("auxiliary_labels", labels, len(images)))


def _held_out(
    given: Any, samples: Mapping[int, Samples], shape: Sequence[int], public: Samples | None
) -> dict[int, Samples]:
    """Return each client's held-out images with their classes; nothing where none are given."""
    if given is None:
        return {}
    where, clients = "held_out", list(samples)
    alone = isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], Tensor)
    if alone and len(clients) > 1:
        raise UserError(
            f"{where}: one pair for {len(clients)} clients; expected a list of (images, labels), one a client"
        )
    if not isinstance(given, (list, tuple, Mapping)):
        raise UserError(f"{where}: expected (images, labels) for each client, got {type(given).__name__}")
    known = {} if public is None else dict.fromkeys(map(image_key, public.images.cpu()), "the attacker's (public)")
    for client, private in samples.items():
        known |= dict.fromkeys(map(image_key, private.images), f"behind the upload of client {client}")
    result = {}
    for client, pair in _each("held_out", [given] if alone else given, clients).items():
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise UserError(f"{where}: expected (images, labels) for client {client}, got {type(pair).__name__}")
        images = _check_images("held_out", pair[0], shape)
        result[client] = Samples(images, check_labels("held_out", pair[1], len(images)))
        for index, image in enumerate(images):
            if (whose := known.get(image_key(image))) is not None:
                raise UserError(
                    f"{where}: image {index} of client {client} is one {whose}; expected images that the client holds and "
                    "did not train on"
                )
    return result


def _groups(given: Any, clients: Sequence[int]) -> dict[int, int]:
    """Return client -> number of its independent unit, in the order of their labels; empty where none are given."""
    if given is None:
        return {}
    if not isinstance(given, (list, tuple, Mapping)):
        raise UserError(f"groups={shown(given)}: expected one label a client, a list or a mapping by client")
    labels = _each("groups", given, clients)
    for client, label in labels.items():
        if isinstance(label, bool) or not isinstance(label, (int, str)):
            raise UserError(f"groups: {shown(label)} of client {client}; expected a text or a whole number")
    order = list(dict.fromkeys(labels.values()))
    return {client: order.index(label) for client, label in labels.items()}


def _check_label(name: str, value: object) -> None:
    """Check a name that pages and tables show."""
    if not isinstance(value, str) or not value.strip() or len(value) > LONGEST_LABEL or not value.isprintable():
        raise UserError(f"{name}: expected a printable text of at most {LONGEST_LABEL} characters, got {shown(value)}")


def _broadcasts(
    given: Any, rounds: Sequence[Mapping[int, Any]], target: str, n_classes: int | None
) -> list[dict[int, Message]]:
    """Return the message that each client answered in each round; an empty one where none is known."""
    several = len(rounds) > 1 and isinstance(given, list)
    if several and len(given) != len(rounds):
        raise UserError(f"broadcasts: {len(given)} given for {len(rounds)} rounds; expected one for each")
    each = given if several else [given] * len(rounds)
    return [_answered(item, list(clients), target, n_classes) for item, clients in zip(each, rounds, strict=True)]


def _answered(given: Any, clients: Sequence[int], target: str, n_classes: int | None) -> dict[int, Message]:
    where, result = "broadcasts", {}
    same = given is None or isinstance(given, (Payload, tuple)) or is_state(given)
    for k, current in (dict.fromkeys(clients, given) if same else _each("broadcasts", given, clients)).items():
        if is_weights(target) and is_state(current):
            current = payload_kind(target)(state=current)  # type: ignore[call-arg]
        message = () if current is None else (current,) if isinstance(current, Payload) else current
        if not isinstance(message, tuple) or not all(isinstance(payload, Payload) for payload in message):
            raise UserError(f"{where}: expected payloads for client {k}, got {type(message).__name__}")
        result[k] = tuple(settled(where, payload, n_classes) for payload in message)
    return result


def _facts(batch: Any, counts: Mapping[int, int], raw: Mapping[int, Raw]) -> dict[int, BatchFacts]:
    facts = {k: item for k, item in _each("batch", batch, list(counts)).items() if item is not None}
    for fact in facts.values():
        _check_facts(fact)
    for k, upload in raw.items():
        if k not in facts and isinstance(upload, Gradient):
            facts[k] = BatchFacts(counts[k], 1.0, 1)
        if k in facts and facts[k].images != counts[k]:
            raise UserError(
                f"batch: {facts[k].images} images in {facts[k].steps} step(s), but client {k} has "
                f"{counts[k]} images; expected the images of the steps, in order"
            )
    return facts


def _check_facts(facts: Any) -> None:
    if not isinstance(facts, BatchFacts) or not isinstance(facts.sizes, tuple):
        raise UserError(f"batch: expected fedpriv.BatchFacts with a tuple of sizes, got {shown(facts)}")
    for count in (facts.batch_size, facts.steps, *facts.sizes):
        if type(count) is not int or not 1 <= count <= MOST_IMAGES:
            raise UserError(f"batch: {shown(count)} images or steps; expected whole numbers of at least 1")
    rate = facts.learning_rate
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < math.inf:
        raise UserError(f"batch: learning rate {shown(rate)}; expected a finite number, more than 0")
    _check_label("batch: optimiser", facts.optimiser)
    if facts.sizes and (len(facts.sizes) != facts.steps or max(facts.sizes) > facts.batch_size):
        text = f"sizes {shown(facts.sizes)} of {facts.steps} step(s) of at most {facts.batch_size} images"
        raise UserError(f"batch: {text}")


def _n_classes(
    given: int | None, payloads: Sequence[Payload], samples: Mapping[int, Samples], model: nn.Module | None
) -> int:
    """Return C: as it was given, or the largest that anything says."""
    largest = max(int(each.labels.max()) for each in samples.values()) + 1
    if given is not None and largest > given:
        raise UserError(f"labels: class {largest - 1}, but n_classes={shown(given)}; expected 0..{given - 1}")
    stated = [largest]
    for payload in (item for item in payloads if item.kind in TELLING):
        for table in (payload.said("weights"), payload.said("histogram")):
            stated += [] if table is None else [len(table)]
        classes = payload.said("classes")
        stated += [] if classes is None else [int(classes.max()) + 1]
    if model is not None:
        stated += [len(value) for value in model.state_dict().values() if value.dim() == 2][-1:]
    return given or max(stated)


# ---------------------------------------------------------------- networks


def _copied(name: str, network: Any, device: torch.device) -> nn.Module:
    """Return a network in evaluation mode that is not the user's: attacks change nothing of what was handed in."""
    if not isinstance(network, nn.Module):
        raise UserError(f"{name}: expected a torch.nn.Module, got {type(network).__name__}")
    for key, value in network.state_dict().items():
        if isinstance(value, Tensor) and not bool(check_plain(f"{name}: {key}", value).isfinite().all()):
            raise UserError(f"{name}: {key} holds NaN or infinity; expected finite numbers")
    try:
        return copy.deepcopy(network).to(device).eval().requires_grad_(False)
    except Exception as error:  # a network of somebody else raises anything
        raise UserError(f"{name}: {type(network).__name__} cannot be copied to {device}: {error}") from error


def _extractors(
    given: Any, earlier: Any, rounds: Sequence[Mapping[int, Any]], seen: Sequence[Observation], device: torch.device
) -> dict[tuple[int, int], nn.Module]:
    """Return (round, client) -> a copy of the network behind its upload; of one network for several, one copy."""
    if earlier is None:
        earlier = [None] * (len(rounds) - 1)
    elif not isinstance(earlier, (list, tuple)) or len(earlier) != len(rounds) - 1 or not earlier:
        got = f"{len(earlier)}" if isinstance(earlier, (list, tuple)) else type(earlier).__name__
        raise UserError(
            f"earlier_extractors: {got} for {len(rounds)} round(s); expected a list with one entry a round "
            "before the last"
        )
    copies: dict[int, nn.Module] = {}
    result = {}
    stated = sorted({item.round for item in seen})
    for number, of_round, current in zip(stated, rounds, [*earlier, given], strict=True):
        name = "extractor" if number == stated[-1] else "earlier_extractors"
        # The last entry is one for every client of any round.
        clients = sorted({k for each in rounds for k in each} if number == stated[-1] else of_round)
        for k, network in _each(name, current, clients).items():
            if network is not None:
                copies.setdefault(id(network), _copied(name, network, device))
                result[number, k] = copies[id(network)]
    return result


def _heads(settings: Mapping[str, Any], clients: Sequence[int]) -> dict[int, tuple[Tensor, Tensor]]:
    heads = {k: head for k, head in _each("head", settings.get("head"), clients).items() if head is not None}
    for head in heads.values():
        if not isinstance(head, nn.Linear) or head.bias is None:
            raise UserError(f"head: expected a torch.nn.Linear with a bias, got {type(head).__name__}")
        _copied("head", head, torch.device("cpu"))
    return {k: (head.weight.detach().cpu(), head.bias.detach().cpu()) for k, head in heads.items()}


def _running_statistics(model: nn.Module | None, given: Mapping[int, Raw]) -> dict[int, Statistics]:
    """Return the running statistics that uploaded state dicts hold of every batch norm of the model."""
    norms = {} if model is None else batch_norms(model)
    result: dict[int, Statistics] = {}
    for k, item in given.items():
        after = item.after if isinstance(item, Update) else None
        if norms and isinstance(after, Mapping) and all(f"{name}.running_mean" in after for name in norms):
            result[k] = {name: _running(after, name, norm) for name, norm in norms.items()}
    return result if len(result) == len(given) else {}


def _running(after: Mapping[str, Any], name: str, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Return the running mean and variance ``(c,)`` of a batch norm as an uploaded state dict has them."""
    result = []
    for what in ("running_mean", "running_var"):
        where, current = f"uploads: after[{name + '.' + what!r}]", getattr(norm, what)
        value = plain_tensor(where, after.get(f"{name}.{what}"))
        if value.shape != current.shape or not value.is_floating_point():
            raise UserError(f"{where}: {value.dtype} {tuple(value.shape)}; expected floats {tuple(current.shape)}")
        value = value.detach().cpu().float()
        if not bool(value.isfinite().all()) or (what == "running_var" and bool((value < 0).any())):
            raise UserError(f"{where}: holds NaN, infinity or a negative variance")
        result.append(value)
    return result[0], result[1]


# ---------------------------------------------------------------- together


def _check_together(source: ExternalSource) -> None:
    """Check that uploads, networks, defenses and images belong together."""
    sent = [tensor for seen in source.seen for payload in seen.upload for tensor in payload.tensors().values()]
    together = sum(tensor.numel() for tensor in [*sent, *(image.images for image in source.images.values())])
    if together > MOST_TOGETHER:
        raise UserError(f"uploads: {together:,} values together with images; at most {MOST_TOGETHER:,}")
    if source.alike and bool((source.auxiliary.labels < 0).all()):
        raise UserError("auxiliary_alike: needs auxiliary_labels: decoys are those of an image's class")
    if source.model is not None and source.kind in WHOLE:
        first = next(iter(source.images.values()))
        _tried("model", source.model, first.images[:2], "logits (n, C)")
    for seen in source.seen:
        images, network = source.images[seen.client].images, source.extractors.get((seen.round, seen.client))
        if network is not None:
            where = "extractor" if seen.round == source.last else "earlier_extractors"
            made, payload = _tried(where, network, images[:2], "representations (n, d)"), VECTORS.first(seen.upload)
            width = payload.rows().shape[1] if payload is not None and payload.kind == source.kind else made.shape[1]
            if made.shape[1] != width:
                raise UserError(
                    f"{where}: returns vectors of width {made.shape[1]}, but those of client {seen.client}'s upload have "
                    f"{width}"
                )
        for payload in seen.upload if seen.round == source.last else ():
            rows = (
                len(getattr(payload, str(payload.values_field()))) if payload.computed_from == "image" else len(images)
            )
            if payload.kind == source.kind and rows != len(images):
                raise UserError(
                    f"images: {len(images)} of client {seen.client}, but its upload has {rows} rows; "
                    "expected one image a row, in order"
                )
    if source.kind in LAYERS and not source.batches:
        raise UserError("batch: missing; the update of a layer is read with fedpriv.BatchFacts")
    if source.pipeline.defenses:
        _check_defenses(source)


def _check_defenses(source: ExternalSource) -> None:
    """Check that the defenses could have made the uploads that they are said to have made."""
    kind, pipeline, where = source.kind, source.pipeline, "defense"
    rows = changes_rows(pipeline, kind)
    if source.summed or pipeline.server_view == "sum":
        return
    if not (changes_uploads(pipeline) and (rows or changes_weights(pipeline, kind))):
        raise UserError(f"{where}: changes nothing of {kind} uploads")
    sends = rehearsed if rows else sends_weights
    for seen in source.seen:
        if not sends(pipeline, seen, kind, source.n_classes, source.total_rounds):
            raise UserError(f"{where}: would not have sent what client {seen.client} sent in round {seen.round}")


@torch.no_grad()
def _tried(where: str, network: nn.Module, images: Tensor, given: str) -> Tensor:
    """Return ``(n, d)`` that a network in evaluation mode makes of images ``(n, c, h, w)``; ``given`` names the rows."""
    device = next(network.parameters(), images).device
    try:
        made = network(images.to(device))
    except Exception as error:  # a network of somebody else raises anything
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{where}: fails on images {tuple(images.shape[1:])}: {why}") from error
    if not isinstance(made, Tensor) or made.dim() != 2 or len(made) != len(images):
        got = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
        raise UserError(f"{where}: expected {given} of images (n, c, h, w), got {got}")
    if not made.is_floating_point() or not bool(check_plain(where, made).isfinite().all()):
        raise UserError(
            f"{where}: returns NaN, infinity or {made.dtype} on the client's images; expected finite floats"
        )
    return made
