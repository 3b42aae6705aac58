"""Traffic of a round that is only planned, from sizes alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field, fields, replace
from typing import Any

from fedpriv.federation.method import Method, check_architectures
from fedpriv.models.build import extractor_parameters, mapping_parameters
from fedpriv.models.split import Blueprint
from fedpriv.uploads.kinds import payload_kind
from fedpriv.uploads.ledger import Direction, Entry, FederationSizes, count
from fedpriv.uploads.payload import Payload
from fedpriv.util.config import parse
from fedpriv.util.errors import UserError


def model_parameters(blueprint: Blueprint) -> int:
    """Return the number of learnable parameters of a whole model."""
    head = blueprint.width * blueprint.n_classes + blueprint.n_classes
    return extractor_parameters(blueprint) + mapping_parameters(blueprint) + head


def with_models(facts: FederationSizes, blueprints: Sequence[Blueprint]) -> FederationSizes:
    """Return facts with architectures, of which client k takes the k-th, as in a run."""
    sizes, first = [model_parameters(blueprint) for blueprint in blueprints], blueprints[0]
    turns, left = divmod(facts.clients, len(sizes))
    total = turns * sum(sizes) + sum(sizes[:left])
    return replace(facts, width=first.width, blueprint=first, model_scalars=sizes[0], all_model_scalars=total)


def message_sizes(method: Method, facts: FederationSizes) -> tuple[Entry, ...]:
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
                    size = 8 if meta["integer"] else 4
                    items.append(Entry(0, 0, direction, name, (scalars,), "", size, meta["paper"]))
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
    method: Method, facts: FederationSizes, options: Mapping[str, Any], blueprints: Sequence[Blueprint] = ()
) -> dict[str, dict[str, int]]:
    """Return a settled round's communication with these options of the method, under the names that a run's summary has."""
    check_architectures(method, blueprints)
    parsed: Any = parse(method.options, options, f"options of {method.name}")
    counts = count(message_sizes(method, replace(facts, options=parsed)))
    return {kind: {f"{key}_per_round": value for key, value in current.items()} for kind, current in counts.items()}
