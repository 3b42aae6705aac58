"""The door of uploads from elsewhere: everything that comes with them is checked, and put together as a source."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedpriv.attacks.observation import BatchFacts, Observation, Statistics
from fedpriv.datasets.types import Samples
from fedpriv.defenses import build_defenses, parse_choice
from fedpriv.federation.defense import DefensePipeline, defense_facts
from fedpriv.sources.external import ExternalSource
from fedpriv.sources.facts import Normalize, normalising
from fedpriv.sources.images import check_classes, is_array, labelled, normalisation, samples, unit_images
from fedpriv.sources.messages import (
    MOST_CLASSES,
    Gradient,
    Raw,
    Update,
    check_labels,
    exchange,
    is_one_upload,
    is_state,
    read_message,
    settled,
    weights,
)
from fedpriv.sources.networks import by_parameter, copied, width_of
from fedpriv.sources.rehearsal import changes_rows, changes_uploads, rehearsed, sends_weights
from fedpriv.sources.source import batch_norms
from fedpriv.sources.truth import image_key
from fedpriv.uploads.kinds import FACTORS, LAYERS, NETWORKS, TELLING, UPDATES, VECTORS, WHOLE
from fedpriv.uploads.payload import Message, Payload, as_tensor
from fedpriv.util.compute import pick_device
from fedpriv.util.config import parse, texts
from fedpriv.util.errors import UserError, shown

MOST_CLIENTS: Final = 1_000_000  # clients that uploads may be of, and their numbers
LONGEST_LABEL: Final = 200  # characters of a name that pages and tables show


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
    per_image: bool = False,
) -> ExternalSource:
    """Check everything that is handed in and return it as a source.

    Arguments are those of :func:`fedpriv.attack_uploads`; ``numbers`` are the rounds' own, ascending (default 1, 2, ...);
    ``summed`` says that every upload is the sum over a round's clients, ``per_image`` that there is one client, and
    its images are the units of intervals.
    """
    device = pick_device(settings.get("device", "auto"))
    rounds = _by_round(uploads, target)
    numbers = numbers or range(1, len(rounds) + 1)
    sent = _broadcasts(settings.get("broadcasts"), rounds)
    clients = sorted({k for given in rounds for k in given})
    pictures, classes = _images_and_labels(images, labels, clients)
    n_classes = settings.get("n_classes")
    if n_classes is not None and n_classes > MOST_CLASSES:
        raise UserError(f"n_classes={shown(n_classes)}: expected at most {MOST_CLASSES}")
    for name in {"method", "dataset"} & set(settings):
        _check_label(name, settings[name])
    messages: list[dict[int, Raw]] = []
    for of_round, before in zip(rounds, sent, strict=True):
        messages.append({})
        for k, given in of_round.items():
            started = None if before[k] is None or not is_state(given) else getattr(before[k], "state", before[k])
            upload = given if started is None else Update(started, given)
            where = "uploads" if len(clients) == 1 else f"uploads: client {k}"
            messages[-1][k] = read_message(where, upload, target, classes[k], n_classes)
    raw = {k: message for of_round in messages for k, message in of_round.items()}  # of each client the newest
    current = _private_images(pictures, classes, raw)
    shape = next(iter(current.values())).images.shape[1:]
    normalise = normalisation(settings.get("normalise"), shape[0])
    notices: list[str] = []
    model = None if settings.get("model") is None else copied("model", settings["model"], device, notices)
    if model is not None:
        normalising(model, normalise)
        messages = [by_parameter(model, of_round) for of_round in messages]
        raw = {k: message for of_round in messages for k, message in of_round.items()}
    if model is None and target in NETWORKS:
        raise UserError("model: missing; weights of a network are attacked through its architecture")
    batches = _batches(_shared("batch", settings, clients), {k: len(current[k]) for k in clients}, raw)
    seen: list[Observation] = []
    for number, of_round, before in zip(numbers, messages, sent, strict=True):
        for k, upload in of_round.items():
            if isinstance(upload, (Update, Gradient)):
                if len(messages) > 1:
                    raise UserError(f"uploads: weights of {len(messages)} rounds; expected those of one")
                upload, broadcast, facts = exchange(upload, target, model, batches.get(k))
                batches |= {} if facts is None else {k: facts}
            else:
                broadcast = _message(before[k], k, n_classes)
            seen.append(Observation(number, k, upload, broadcast))
    public = None
    if settings.get("public") is not None or settings.get("public_labels") is not None:
        own = samples("public", settings.get("public"), settings.get("public_labels"), shape, "public_labels")
        public = own.to(device)
    defenses = build_defenses([parse_choice(text) for text in texts("defense", settings.get("defense") or ())])
    owners = {image_key(image): f"one of client {k}'s" for k, own in current.items() for image in own.images}
    source = ExternalSource(
        kind=target,
        image_shape=(shape[0], shape[1], shape[2]),
        n_classes=_n_classes(n_classes, [payload for o in seen for payload in o.upload], current, model),
        device=device,
        uploads=tuple({payload.kind: None for o in seen for payload in o.upload}),
        pipeline=DefensePipeline(defenses),
        total_rounds=len(rounds),
        model=model,
        summed=summed,
        per_image=per_image,
        seen=tuple(seen),
        images=current,
        auxiliary=_auxiliary(auxiliary, settings.get("auxiliary_labels"), shape, owners),
        shares={k: _shares(given, len(current[k])) for k, given in _shared("weights", settings, clients).items()},
        extractors=_extractors(
            extractor, settings.get("earlier_extractors"), rounds, numbers, device, notices, normalise
        ),
        heads=_heads(_shared("head", settings, clients)),
        batches=batches,
        running=_running_statistics(model, raw),
        public=public,
        groups=_groups(settings.get("groups"), clients),
        raw=raw,
        held_out=_held_out(settings.get("held_out"), clients, shape, owners, public),
        notices=tuple(dict.fromkeys(notices)),
        command=f"fedpriv.attack_uploads(..., target={target!r})",
        defenses=tuple(defense_facts(defense) for defense in defenses),
        **{name: settings[name] for name in ("method", "dataset") if name in settings},
    )
    _check_together(source)
    return source


# ---------------------------------------------------------------- by round and client


def _by_round(given: Any, target: str) -> list[dict[int, Any]]:
    """Return uploads as one mapping from the client's number for each round, the oldest first.

    Several rounds are a list whose entries are lists, or mappings from client numbers; anything else is one round. A mapping
    from whole numbers to vectors is one client's upload where the target has a row a class, by client otherwise.
    """
    several = isinstance(given, list) and all(
        isinstance(entry, list) or (_is_numbered(entry) and not is_one_upload(entry, target)) for entry in given
    )
    rounds = []
    for item in given if several and given else [given]:
        if is_one_upload(item, target):
            clients: dict[Any, Any] = {0: item}
        elif isinstance(item, (Mapping, list, tuple)):
            clients = dict(item if isinstance(item, Mapping) else enumerate(item))
        else:
            one = "an upload (a payload such as fedpriv.Prototypes, a tensor, fedpriv.Update or fedpriv.Gradient)"
            raise UserError(
                f"uploads: expected {one}, a list or a mapping by client of them, got {type(item).__name__}"
            )
        if not all(type(client) is int and 0 <= client < MOST_CLIENTS for client in clients):
            raise UserError(f"uploads: expected client numbers 0..{MOST_CLIENTS - 1} as keys, got {shown([*clients])}")
        if not clients:
            raise UserError("uploads: no clients; expected at least one")
        rounds.append(dict(sorted(clients.items())))
    return rounds


def _is_numbered(given: Any) -> bool:
    return isinstance(given, Mapping) and all(isinstance(key, int) for key in given)


def _by_client(name: str, given: Any, clients: Sequence[int], *, shared: bool = False) -> dict[int, Any]:
    """Return an argument of which there is one a client (a list in their order, or a mapping); or ``shared`` by all."""
    if _is_numbered(given):
        missing = [client for client in clients if client not in given]
        if missing:
            raise UserError(f"{name}: nothing for client {missing[0]}; expected one for each upload")
        return {client: given[client] for client in clients}
    if len(clients) == 1 and not shared:
        only = given[0] if isinstance(given, (list, tuple)) and len(given) == 1 else None
        nested = is_array(only) and getattr(only, "ndim", 4) not in (0, 3)  # a list of one image is none of one client
        return {clients[0]: only if nested or isinstance(only, (list, tuple)) else given}
    if isinstance(given, (list, tuple)):
        if len(given) != len(clients):
            raise UserError(f"{name}: {len(given)} given for {len(clients)} uploads; expected one for each")
        return dict(zip(clients, given, strict=True))
    if is_array(given) and not shared:
        what = "tensor" if isinstance(given, Tensor) else "array" if isinstance(given, np.ndarray) else "data set"
        raise UserError(f"{name}: one {what} for {len(clients)} uploads; expected a list, one a client")
    return dict.fromkeys(clients, given)


def _shared(name: str, settings: Mapping[str, Any], clients: Sequence[int]) -> dict[int, Any]:
    """Return a setting that may be one for all clients, of those for whom there is any."""
    given = _by_client(name, settings.get(name), clients, shared=True)
    return {client: value for client, value in given.items() if value is not None}


def _broadcasts(given: Any, rounds: Sequence[Mapping[int, Any]]) -> list[dict[int, Any]]:
    """Return for each round what each client answered, a message or weights; None where it is not known."""
    several = len(rounds) > 1 and isinstance(given, list)
    if several and len(given) != len(rounds):
        raise UserError(f"broadcasts: {len(given)} given for {len(rounds)} rounds; expected one for each")
    return [
        dict.fromkeys(of_round, item)
        if isinstance(item, tuple)  # a message
        else _by_client("broadcasts", item, list(of_round), shared=True)
        for item, of_round in zip(given if several else [given] * len(rounds), rounds, strict=True)
    ]


def _message(given: Any, client: int, n_classes: int | None) -> Message:
    message = () if given is None else (given,) if isinstance(given, Payload) else given
    if not isinstance(message, tuple) or not all(isinstance(payload, Payload) for payload in message):
        raise UserError(f"broadcasts: expected payloads for client {client}, got {type(message).__name__}")
    return tuple(settled("broadcasts", payload, n_classes) for payload in message)


def _groups(given: Any, clients: Sequence[int]) -> dict[int, int]:
    """Return client -> number of its independent unit, in the order of their labels; empty where none are given."""
    if given is None:
        return {}
    if not isinstance(given, (list, tuple, Mapping)):
        raise UserError(f"groups={shown(given)}: expected one label a client, a list or a mapping by client")
    labels = _by_client("groups", given, clients, shared=True)
    for client, label in labels.items():
        if isinstance(label, bool) or not isinstance(label, (int, str)):
            raise UserError(f"groups: {shown(label)} of client {client}; expected a text or a whole number")
    order = list(dict.fromkeys(labels.values()))
    return {client: order.index(label) for client, label in labels.items()}


def _check_label(name: str, value: object) -> None:
    """Check a name that pages and tables show."""
    if not isinstance(value, str) or not value.strip() or len(value) > LONGEST_LABEL or not value.isprintable():
        raise UserError(f"{name}: expected a printable text of at most {LONGEST_LABEL} characters, got {shown(value)}")


# ---------------------------------------------------------------- images and facts


def _images_and_labels(images: Any, labels: Any, clients: Sequence[int]) -> tuple[dict[int, Any], dict[int, Any]]:
    """Return each client's images and labels as they were handed in; a data set brings its labels."""
    pictures, classes = _by_client("images", images, clients), _by_client("labels", labels, clients)
    for k, given in pictures.items():
        where = _of("labels", k, clients)
        pictures[k], classes[k] = labelled(_of("images", k, clients), given, classes[k], where)
    return pictures, classes


def _of(name: str, client: int, clients: Collection[int]) -> str:
    """Return an argument's name, with the client's where there are several."""
    return name if len(clients) == 1 else f"{name}: client {client}"


def _private_images(
    pictures: Mapping[int, Any], classes: Mapping[int, Any], raw: Mapping[int, Raw]
) -> dict[int, Samples]:
    """Return each client's own images with their labels; where none are given, those that its upload names."""
    result: dict[int, Samples] = {}
    shape = None
    for client, current in pictures.items():
        labels, upload = classes[client], raw[client]
        if labels is None and isinstance(upload, tuple):
            sent = next((payload for payload in upload if payload.computed_from == "image"), None)
            labels = None if sent is None else sent.said("classes")
        where = _of("labels", client, classes)
        result[client] = samples(_of("images", client, classes), current, labels, shape, where, pictures.values())
        shape = result[client].images.shape[1:]
    return result


def _shares(given: Any, count: int) -> Tensor:
    shares = as_tensor("weights", given).detach().cpu()
    shares = shares.double().abs() if not shares.is_complex() else torch.empty(0)
    if shares.shape != (count,) or not bool(shares.isfinite().all()) or not float(shares.sum()) > 0:
        raise UserError(f"weights: expected {count} finite shares, not all zero, one an image")
    return shares


def _refuse_known(name: str, images: Tensor, known: Mapping[bytes, str], expected: str) -> None:
    for index, image in enumerate(images):
        if (whose := known.get(image_key(image))) is not None:
            raise UserError(f"{name}: image {index} is {whose}; expected images that {expected}")


def _auxiliary(given: Any, labels: Any, shape: Sequence[int], owners: Mapping[bytes, str]) -> Samples:
    """Return the images that no upload was computed from with their classes, -1 where these are not known."""
    given, labels = labelled("auxiliary", given, labels, "auxiliary_labels")
    images = unit_images("auxiliary", given, shape)
    if len(images) < 2:
        raise UserError(f"auxiliary: expected at least 2 images, got {len(images)}; a few hundred serve well")
    _refuse_known("auxiliary", images, owners, "no upload was computed from")  # else baselines have the truth
    unknown = torch.full((len(images),), -1)
    return Samples(images, unknown if labels is None else check_labels("auxiliary_labels", labels, len(images)))


def _held_out(
    given: Any, clients: Sequence[int], shape: Sequence[int], owners: Mapping[bytes, str], public: Samples | None
) -> dict[int, Samples]:
    """Return each client's held-out images with their classes; nothing where none are given."""
    if given is None:
        return {}
    pair = isinstance(given, Dataset) or (
        isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], (Tensor, np.ndarray))
    )
    if (pair and len(clients) > 1) or not isinstance(given, (list, tuple, Mapping)):
        got = f"one pair for {len(clients)} clients" if pair else type(given).__name__
        raise UserError(f"held_out: {got}; expected a list of (images, labels), one a client")
    attacker = () if public is None else map(image_key, public.images.cpu())
    known = dict.fromkeys(attacker, "one of the attacker's (public)") | {**owners}
    result = {}
    for client, each in _by_client("held_out", [given] if pair else given, clients, shared=True).items():
        both = (each, None) if isinstance(each, Dataset) else each
        if not isinstance(both, (list, tuple)) or len(both) != 2:
            raise UserError(f"held_out: expected (images, labels) for client {client}, got {type(each).__name__}")
        result[client] = samples(
            f"held_out: client {client}", both[0], both[1], shape, f"held_out: client {client}: labels"
        )
        _refuse_known(f"held_out: client {client}", result[client].images, known, "the client did not train on")
    return result


def _batches(facts: dict[int, Any], counts: Mapping[int, int], raw: Mapping[int, Raw]) -> dict[int, BatchFacts]:
    """Return facts of local steps that agree with the clients' numbers of images; a gradient's without any are one step."""
    result = {k: BatchFacts(counts[k], 1.0, 1) for k, upload in raw.items() if isinstance(upload, Gradient)}
    for k, given in facts.items():
        if not isinstance(given, BatchFacts):
            raise UserError(f"batch: expected fedpriv.BatchFacts, got {shown(given)}")
        fact = result[k] = parse(BatchFacts, vars(given), "batch")
        _check_label("batch: optimiser", fact.optimiser)
        if fact.sizes and (len(fact.sizes) != fact.steps or max(fact.sizes) > fact.batch_size):
            most = f"{fact.steps} step(s) of at most {fact.batch_size} images"
            raise UserError(f"batch: sizes {shown(fact.sizes)} of {most}")
        if fact.images != counts[k]:
            text = f"{fact.images} images in {fact.steps} step(s), but client {k} has {counts[k]}"
            raise UserError(f"batch: {text}; expected the images of the steps, in order")
    return result


def _n_classes(
    given: int | None, payloads: Sequence[Payload], samples: Mapping[int, Samples], model: nn.Module | None
) -> int:
    """Return C: as it was given, or the largest that anything says."""
    largest = max(int(each.labels.max()) for each in samples.values()) + 1
    if given is not None and largest > given:
        raise UserError(f"labels: class {largest - 1}, but n_classes={shown(given)}; expected 0..{given - 1}")
    stated = [largest]
    for payload in (item for item in payloads if item.kind in TELLING):
        tables, classes = (payload.said("weights"), payload.said("histogram")), payload.said("classes")
        stated += [len(table) for table in tables if table is not None]
        stated += [] if classes is None else [int(classes.max()) + 1]
    if model is not None:
        stated.append(width_of("model", model, next(iter(samples.values())).images[:2], "logits (n, C)"))
    return given or max(stated)


# ---------------------------------------------------------------- networks


def _extractors(
    given: Any,
    earlier: Any,
    rounds: Sequence[Mapping[int, Any]],
    numbers: Sequence[int],
    device: torch.device,
    notices: list[str],
    normalise: Normalize | None,
) -> dict[tuple[int, int], nn.Module]:
    """Return (round, client) -> a copy of the network behind its upload; of one network for several, one copy."""
    before = [None] * (len(rounds) - 1) if earlier is None else earlier
    if not isinstance(before, (list, tuple)) or len(before) != len(rounds) - 1:
        got = f"{len(before)}" if isinstance(before, (list, tuple)) else type(before).__name__
        raise UserError(
            f"earlier_extractors: {got} for {len(rounds)} round(s); expected a list, one a round but the last"
        )
    copies: dict[int, nn.Module] = {}
    result = {}
    for number, of_round, current in zip(numbers, rounds, [*before, given], strict=True):
        last = number == numbers[-1]
        name = "extractor" if last else "earlier_extractors"
        clients = sorted({k for each in rounds for k in each} if last else of_round)  # the last: of any round
        for k, network in _by_client(name, current, clients, shared=True).items():
            if network is not None:
                network_copy = copied(name, network, device, notices).requires_grad_(False)
                copies.setdefault(id(network), normalising(network_copy, normalise))
                result[number, k] = copies[id(network)]
    return result


def _heads(heads: Mapping[int, Any]) -> dict[int, tuple[Tensor, Tensor]]:
    for head in heads.values():
        if not isinstance(head, nn.Linear) or head.bias is None:
            raise UserError(f"head: expected a torch.nn.Linear with a bias, got {type(head).__name__}")
        copied("head", head, torch.device("cpu"), [])
    return {k: (head.weight.detach().cpu(), head.bias.detach().cpu()) for k, head in heads.items()}


def _running_statistics(model: nn.Module | None, raw: Mapping[int, Raw]) -> dict[int, Statistics]:
    """Return the running statistics of every batch norm of the model, where all uploaded state dicts hold them."""
    norms = {} if model is None else batch_norms(model)
    result: dict[int, Statistics] = {}
    for k, item in raw.items():
        if not norms or not isinstance(item, Update) or any(f"{name}.running_mean" not in item.after for name in norms):
            return {}
        after, entries = weights("uploads: after", item.after), {}
        for name, norm in norms.items():
            mean, var = after.get(f"{name}.running_mean"), after.get(f"{name}.running_var")
            shape = (norm.num_features,)
            if mean is None or var is None or not mean.shape == var.shape == shape or bool((var < 0).any()):
                raise UserError(f"uploads: running statistics of {name!r}: expected floats {shape}, no variance < 0")
            entries[name] = mean, var
        result[k] = entries
    return result


# ---------------------------------------------------------------- together


def _check_together(source: ExternalSource) -> None:
    """Check that uploads, networks, defenses and images belong together."""
    kind, pipeline = source.kind, source.pipeline
    if source.model is not None and kind in WHOLE:
        width = width_of("model", source.model, next(iter(source.images.values())).images[:2], "logits (n, C)")
        if width == 1:
            raise UserError(
                "model: gives one logit, and attacks take the loss for the cross-entropy of two or more; a model trained by "
                "binary cross-entropy of its logit z (n, 1) shall return torch.cat([torch.zeros_like(z), z], 1), whose "
                "cross-entropy is the same"
            )
        for name, group in (("labels", source.images), ("held_out", source.held_out)):
            for k, own in group.items():
                check_classes(f"{name}: client {k}", own.labels, width)
        if source.public is not None:
            check_classes("public_labels:", source.public.labels, width)
    for seen in source.seen:
        last = seen.round == source.last
        images, network = source.images[seen.client].images, source.extractors.get((seen.round, seen.client))
        payload = next((payload for payload in seen.upload if payload.kind == kind), None)
        if network is not None:
            where = "extractor" if last else "earlier_extractors"
            width = width_of(where, network, images[:2], "representations (n, d)")
            if payload is not None and kind in VECTORS and payload.rows().shape[1] != width:
                text = f"vectors of width {width}, but those of client {seen.client}'s upload have"
                raise UserError(f"{where}: returns {text} {payload.rows().shape[1]}")
        if last and payload is not None and payload.computed_from == "image" and len(payload.rows()) != len(images):
            text = f"images: {len(images)} of client {seen.client}, but its upload has {len(payload.rows())} rows"
            raise UserError(f"{text}; expected one image a row, in order")
    if kind in LAYERS and not source.batches:
        raise UserError("batch: missing; the update of a layer is read with fedpriv.BatchFacts")
    if not pipeline.defenses or source.summed or pipeline.server_view == "sum":
        return
    by_rows = changes_rows(pipeline, kind)
    if not by_rows and not (kind in FACTORS | UPDATES and changes_uploads(pipeline)):
        raise UserError(f"defense: changes nothing of {kind} uploads")
    sends = rehearsed if by_rows else sends_weights
    for seen in source.seen:
        if not sends(pipeline, seen, kind, source.n_classes, source.total_rounds):
            raise UserError(f"defense: would not have sent what client {seen.client} sent in round {seen.round}")
