"""Recorded runs of other frameworks: their messages become uploads from elsewhere, beside their owner's facts."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from fedpriv.defenses import build_defenses, parse_choice
from fedpriv.defenses.local_dp import LocalDp
from fedpriv.federation.defense import Defense, DefensePipeline, defense_facts
from fedpriv.federation.summary import DefenseFacts
from fedpriv.integrations.run import Partition, RecordedRun, Seen, default_folder, read_partitions
from fedpriv.sources.door import read_uploads
from fedpriv.sources.external import ExternalSource
from fedpriv.sources.facts import OwnerFacts, normalized
from fedpriv.sources.messages import Update
from fedpriv.util.errors import UserError, shown
from fedpriv.wire.kinds import LAYERS, NETWORKS, payload_kind
from fedpriv.wire.payload import Payload

Arrays = Mapping[str, Tensor]

DIFFERENCE: Final = "difference"
"""Fact of an answer by which its adapter says that the arrays are differences from the broadcast."""

SUMMING: Final = "secure-aggregation"


@dataclass(frozen=True)
class Gathered:
    """Uploads of a recorded run, by the framework's names of clients.

    Attributes:
        numbers: of the rounds, ascending; the last is attacked.
        uploads: for each round, client -> upload.
        broadcasts: for each round, client -> the payload that it answered, where there was one of the kind.
        summed: the server sees the sum alone, which stands in every upload's place.
        notices: what was left out, and why.
    """

    numbers: tuple[int, ...]
    uploads: tuple[Mapping[str, Any], ...]
    broadcasts: tuple[Mapping[str, Payload | None], ...]
    summed: bool
    notices: tuple[str, ...]


def read_recording(
    run: RecordedRun, facts: OwnerFacts, target: str, round_: int | None, settings: Mapping[str, Any]
) -> ExternalSource:
    """Return the uploads of a kind in a round of a recorded run, checked at the same door as uploads from elsewhere."""
    defenses = build_defenses([parse_choice(text) for text in facts.facts.defense])
    model = _model(facts) if target in NETWORKS | LAYERS else None
    summed = DefensePipeline(defenses).server_view == "sum"
    gathered = gather_uploads(run, facts, target, round_, model, summed=summed)
    if gathered.summed and not summed:
        defenses = (*defenses, *build_defenses([parse_choice(SUMMING)]))
    clients, unknown = _clients(run, facts, gathered)
    source = _source(facts, target, gathered, clients, model, settings)
    lines, stated = _accounts(defenses, len(run.rounds()))
    wrong = [f"recorded: {note.told}" for note in run.notes() if note.code == "stopped"]
    return replace(
        source,
        method=facts.facts.method or f"recorded ({run.framework})",
        dataset=facts.facts.dataset or ExternalSource.dataset,
        command=f"fedpriv.attack({str(run.path)!r}, target={target!r}, round={source.last})",
        defenses=stated,
        notices=(*wrong, *lines, *gathered.notices, *unknown),
    )


# ---------------------------------------------------------------- clients and their data


def _model(facts: OwnerFacts) -> nn.Module:
    if facts.facts.model is None:
        raise UserError(
            f"{facts.where}: no model (a function of no argument, package.module:NAME); attacks on weights need its "
            "architecture"
        )
    made = facts.call("model")
    if not isinstance(made, nn.Module):
        raise UserError(f"{facts.where}: model: returned {type(made).__name__}; expected a torch.nn.Module")
    model: nn.Module = normalized(made, facts.facts.normalize)
    return model


def _clients(
    run: RecordedRun, facts: OwnerFacts, gathered: Gathered
) -> tuple[dict[str, tuple[int, Partition]], tuple[str, ...]]:
    """Return client -> its number and its partition, of those whose data is known, and a line for the others.

    Clients are numbered by their partitions where these are whole numbers, else in the order of the partitions' names.
    """
    seen = list(dict.fromkeys(client for sent in gathered.uploads for client in sent))
    folder = default_folder() if facts.facts.truth is None else facts.folder / facts.facts.truth
    truth = read_partitions(folder)
    known = {**({entry: entry for entry in seen} if run.named_by_data else {}), **truth, **facts.facts.partitions}
    partitions = {client: known[client] for client in seen if client in known}
    if not any(client in partitions for client in gathered.uploads[-1]):
        others = f"{folder} names {len(truth)} other client(s)" if truth else f"{folder} has no truth of any client"
        raise UserError(
            f"{run.path}: nothing says which data client {next(iter(gathered.uploads[-1]))} holds: {others}; for an audit, "
            f"run clients with mods=[fedpriv.flower.truth], or say so in partitions of {facts.where}"
        )
    owners: dict[Partition, str] = {}
    for client, partition in partitions.items():
        if partition in owners:
            raise UserError(
                f"{facts.where}: clients {owners[partition]} and {client} are both said to hold {partition!r}"
            )
        owners[partition] = client
    whole = all(isinstance(owner, int) and owner >= 0 for owner in owners)
    order = sorted(owners, key=lambda one: (0, one, "") if isinstance(one, int) else (1, 0, one))
    numbers = {one: int(one) if whole else index for index, one in enumerate(order)}
    lines = [f"left out: nothing says which data client {client} holds" for client in seen if client not in partitions]
    return {client: (numbers[item], item) for client, item in partitions.items()}, tuple(lines)


def _source(
    facts: OwnerFacts,
    target: str,
    gathered: Gathered,
    clients: dict[str, tuple[int, Partition]],
    model: nn.Module | None,
    settings: Mapping[str, Any],
) -> ExternalSource:
    stated, numbers = facts.facts, {client: number for client, (number, _) in clients.items()}
    uploads = [{numbers[c]: item for c, item in sent.items() if c in numbers} for sent in gathered.uploads]
    kept = [index for index, sent in enumerate(uploads) if sent]
    there = {number for sent in uploads for number in sent}
    partitions = {number: partition for number, partition in clients.values() if number in there}
    images, labels, batches = _data(facts, partitions, gathered.numbers[-1], trained=model is not None)
    group: dict[str, Any] = {name: settings[name] for name in ("device",) if name in settings}
    group |= {"model": model, "n_classes": stated.n_classes, "auxiliary_alike": stated.auxiliary_alike}
    group |= {"batch": {k: batches.get(k) for k in images}} if batches else {}
    if stated.public is not None:
        group["public"], group["public_labels"] = facts.images("public")
    if stated.held_out is not None:
        group["held_out"] = {k: facts.images("held_out", partition) for k, partition in partitions.items()}
    answered = [
        {
            numbers[c]: () if broadcast is None else broadcast
            for c, broadcast in gathered.broadcasts[place].items()
            if c in numbers
        }
        for place in kept
    ]
    group["broadcasts"] = answered if len(answered) > 1 else answered[0]
    extractors = None
    if stated.extractor is not None:
        extractors = _extractors(facts, clients, gathered.numbers[-1])
        if len(kept) > 1 and facts.takes_a_round("extractor"):
            of_round = [{c: clients[c] for c in gathered.uploads[positions] if c in clients} for positions in kept]
            earlier = zip(of_round[:-1], kept[:-1], strict=True)
            group["earlier_extractors"] = [_extractors(facts, part, gathered.numbers[place]) for part, place in earlier]
    if stated.auxiliary is None:
        raise UserError(
            f"{facts.where}: no auxiliary images (a function without arguments: images that no client has, and their "
            "labels, package.module:NAME); no attack can be told from a guess without"
        )
    auxiliary, group["auxiliary_labels"] = facts.images("auxiliary", labelled=False)
    sent = [uploads[place] for place in kept]
    rounds = [gathered.numbers[position] for position in kept]
    return read_uploads(
        sent, target, images, labels, extractors, auxiliary, group, numbers=rounds, summed=gathered.summed
    )


def _data(
    facts: OwnerFacts, partitions: Mapping[int, Partition], round_: int, *, trained: bool
) -> tuple[dict[int, Any], dict[int, Any], dict[int, Any]]:
    """Return images, labels and batch facts by client's number, as the owner's function returns them."""
    if facts.facts.data is None:
        raise UserError(
            f"{facts.where}: no data (a function of a partition that returns images and labels, package.module:NAME); "
            "nothing can be scored without"
        )
    steps = facts.facts.batch if trained else None
    images, labels, batches = {}, {}, {}
    for number, partition in partitions.items():
        current, classes = facts.images("data", partition, round_)
        if steps is not None and isinstance(current, Tensor) and len(current):
            times = steps.epochs if steps.steps is None else 1  # an image that two epochs used counts twice
            batches[number] = steps.of(len(current))
            current, classes = torch.cat([current] * times), torch.cat([classes] * times)
        images[number], labels[number] = current, classes
    return images, labels, batches


def _extractors(facts: OwnerFacts, clients: Mapping[str, tuple[int, Partition]], round_: int) -> dict[int, Any]:
    """Return client number -> its extractor after a round; copied, for a function may load all into one module."""
    return {
        number: normalized(copy.deepcopy(facts.call("extractor", partition, round_)), facts.facts.normalize)
        for number, partition in clients.values()
    }


def _accounts(defenses: tuple[Defense, ...], rounds: int) -> tuple[list[str], tuple[DefenseFacts, ...]]:
    """Return a line for each epsilon that is claimed, with the one that follows, and what records say of the defenses."""
    lines, facts = [], []
    for defense in defenses:
        stated = defense_facts(defense)
        if isinstance(defense, LocalDp):
            implied = defense.implied(rounds)
            verdict = "the claim follows" if implied.follows else "the claim does not follow"
            lines.append(f"{defense.name}: {verdict}: {implied.words}")
            stated = stated.model_copy(update={"guarantee": f"{stated.guarantee}. Here {verdict}: {implied.words}"})
        facts.append(stated)
    return lines, tuple(facts)


# ---------------------------------------------------------------- messages


def gather_uploads(
    run: RecordedRun, facts: OwnerFacts, target: str, round_: int | None, model: nn.Module | None, *, summed: bool
) -> Gathered:
    """Return the uploads of a kind, up to a round."""
    reader = _Reader(run, facts, target, model)
    by_round = {number: run.messages(number) for number in run.rounds()}
    summed = summed or _masked(by_round)
    usable = _usable(by_round, facts, summed=summed)
    if not usable:
        why = "with a round behind it whose broadcast shows the sum" if summed else "in which clients uploaded anything"
        raise UserError(f"{run.path}: no round of phase {facts.facts.phase!r} {why} is recorded")
    if round_ is not None and round_ not in usable:
        raise UserError(
            f"round={shown(round_)}: not recorded, or nobody uploaded in it; there are: {', '.join(map(str, usable))}"
        )
    last = usable[-1] if round_ is None else round_
    alone = summed or target in NETWORKS | LAYERS
    numbers = [last] if alone else [number for number in usable if number <= last]
    read = [reader.round(by_round[n], by_round.get(n + 1, ()) if summed else (), summed=summed) for n in numbers]
    if not read[-1][0]:
        raise UserError(
            f"{run.path}: round {last}: {reader.notices[-1] if reader.notices else 'no upload can be attacked'}"
        )
    if summed:
        reader.notices.insert(
            0,
            f"only the sum is seen: in every upload's place of round {last} stands what the server made of it, the "
            f"broadcast of round {last + 1}",
        )
    uploads, broadcasts = zip(*read, strict=True)
    return Gathered(tuple(numbers), uploads, broadcasts, summed, tuple(reader.notices))


def _masked(by_round: Mapping[int, Sequence[Seen]]) -> bool:
    return any(seen.facts.get("masked") is True for rows in by_round.values() for seen in rows)


def _usable(by_round: Mapping[int, Sequence[Seen]], facts: OwnerFacts, *, summed: bool) -> list[int]:
    return [n for n, rows in by_round.items() if _answers(rows, facts) and (not summed or n + 1 in by_round)]


def _answers(rows: Sequence[Seen], facts: OwnerFacts) -> list[Seen]:
    """Return the answers of a round that are uploads, masked or not."""
    group = [seen for seen in rows if seen.direction == "up" and seen.phase == facts.facts.phase]
    return [seen for seen in group if not seen.error and (seen.file or seen.facts.get("masked") is True)]


class _LeftOut(Exception):
    """An upload that cannot be attacked, with the reason; the others can."""


class _Reader:
    """Reads messages as payloads of one kind, and keeps a line for each that is left out."""

    def __init__(self, run: RecordedRun, facts: OwnerFacts, target: str, model: nn.Module | None) -> None:
        self.run, self.facts, self.target, self.model = run, facts, target, model
        self.kind = payload_kind(target)
        self.by_name = "state" in [spec.name for spec in fields(self.kind)] and self.kind.space == "weights"
        self.notices: list[str] = []
        self._broadcast: tuple[str, dict[str, dict[str, Tensor]]] = ("", {})

    def round(
        self, rows: Sequence[Seen], following: Sequence[Seen], *, summed: bool
    ) -> tuple[dict[str, Any], dict[str, Payload | None]]:
        """Return client -> upload, and client -> payload that it answered."""
        sent = {client: seen for seen in reversed(rows) if self._is_broadcast(seen) for client in seen.clients}
        after = next((seen for seen in following if self._is_broadcast(seen)), None)
        uploads: dict[str, Any] = {}
        broadcasts: dict[str, Payload | None] = {}
        for seen in _answers(rows, self.facts):
            client, before = seen.clients[0], sent.get(seen.clients[0])
            try:
                arrays = self._set(after, "broadcast") if summed and after is not None else self._set(seen, "upload")
                known = None if before is None else self._set(before, "")
                difference = seen.facts.get(DIFFERENCE) is True and not summed
                assert arrays is not None
                uploads[client] = self._upload(arrays, known, difference=difference)
                broadcasts[client] = None if known is None or self.by_name else self._payload_or_none(known)
            except _LeftOut as error:
                self.notices.append(f"left out: round {seen.round}, client {client}: {error}")
        return uploads, broadcasts

    def _is_broadcast(self, seen: Seen) -> bool:
        return seen.direction == "down" and seen.phase == self.facts.facts.phase and bool(seen.file)

    def _arrays(self, seen: Seen) -> dict[str, dict[str, Tensor]]:
        if seen.direction == "up":
            return self.run.arrays(seen)
        if seen.file != self._broadcast[0]:
            self._broadcast = str(seen.file), self.run.arrays(seen)  # the newest alone: clients of a round share it
        return self._broadcast[1]

    def _set(self, seen: Seen, what: str) -> Arrays | None:
        """Return the arrays of the attacked kind; where no set or several are, None, or an error that names ``what``."""
        sets = self._arrays(seen)
        names = [name for name in sets if self._kind_of(name) == self.target]
        if len(names) == 1:
            return sets[names[0]]
        if not what:
            return None
        there = ", ".join(f"{name} ({len(arrays)} arrays: {self._kind_of(name)})" for name, arrays in sets.items())
        number = f"{len(names)} sets of arrays are" if names else "no set of arrays is"
        raise UserError(
            f"{self.facts.where}: kinds: {number} said to be of kind {self.target!r} in the {what} of round {seen.round}; "
            f"recorded: {there or 'none'}"
        )

    def _kind_of(self, name: str) -> str:
        given = self.facts.facts.kinds.get(name, "model")
        kind = given.get("kind") if isinstance(given, Mapping) else given
        if not isinstance(kind, str):
            raise UserError(
                f"{self.facts.where}: kinds.{name}: expected a kind, or a table with one, got {shown(given)}"
            )
        return payload_kind(kind).kind

    def _upload(self, arrays: Arrays, before: Arrays | None, *, difference: bool) -> Any:
        if not self.by_name:
            return self._payload(arrays)
        if before is None:
            raise _LeftOut("it was sent no weights of this kind that its own could be compared with")
        start, current = self._named(self._floats(before)), self._floats(arrays)
        try:
            after = self._named(current)
        except UserError as error:  # the broadcast's fit
            raise _LeftOut(str(error)) from error
        changed = [name for name, value in start.items() if name not in after or after[name].shape != value.shape]
        if changed and not difference:
            got = "is missing" if changed[0] not in after else f"is {tuple(after[changed[0]].shape)}"
            raise _LeftOut(f"{changed[0]!r} {got} where the broadcast has {tuple(start[changed[0]].shape)}")
        if difference:
            after = {name: value + after[name] if name in after else value for name, value in start.items()}
        return Update(start, after)

    def _floats(self, arrays: Arrays) -> dict[str, Tensor]:
        """Return the arrays that are parameters, or running statistics, as float32."""
        floats = {name: value.float() for name, value in arrays.items() if value.is_floating_point()}
        wrong = [name for name, value in floats.items() if not bool(value.isfinite().all())]
        if wrong:
            raise _LeftOut(f"{wrong[0]!r} holds NaN or infinity")
        if not floats:
            raise _LeftOut("it holds whole numbers alone, and weights are floats")
        return floats

    def _named(self, arrays: Arrays) -> dict[str, Tensor]:
        """Return arrays by the model's names, where they have numbers instead: its state in order, or its parameters."""
        if self.model is None or not all(name.isdecimal() for name in arrays):
            return dict(arrays)
        state = {name: value for name, value in self.model.state_dict().items() if value.is_floating_point()}
        for wanted in (state, dict(self.model.named_parameters())):
            if [tuple(value.shape) for value in wanted.values()] == [tuple(value.shape) for value in arrays.values()]:
                return dict(zip(wanted, arrays.values(), strict=True))
        raise UserError(
            f"{self.facts.where}: model: {len(arrays)} arrays without names are recorded, shaped unlike the model's "
            f"{len(state)} entries in order"
        )

    def _payload_or_none(self, arrays: Arrays) -> Payload | None:
        try:
            return self._payload(arrays)
        except _LeftOut:
            return None

    def _payload(self, arrays: Arrays) -> Payload:
        kinds = self.facts.facts.kinds
        given = next((item for name, item in kinds.items() if self._kind_of(name) == self.target), self.target)
        names = {key: name for key, name in given.items() if key != "kind"} if isinstance(given, Mapping) else {}
        specs = {spec.name: spec.metadata for spec in fields(self.kind)}
        unknown = [key for key in names if key not in specs]
        if unknown:
            known = ", ".join(specs)
            raise UserError(f"{self.facts.where}: kinds: {self.target} has no field {unknown[0]!r}; known: {known}")
        values: dict[str, Any] = {}
        for key, spec in specs.items():
            name = names.get(key, key)
            if spec["shape"] == "*":
                values[key] = self._floats(arrays)
            elif name in arrays:
                values[key] = arrays[name].to(torch.int64 if spec["integer"] else torch.float32)
            elif not spec["optional"]:
                raise UserError(
                    f"{self.facts.where}: kinds: field {key!r} of {self.target} is said to be array {name!r}; recorded: "
                    f"{', '.join(arrays)}"
                )
        try:
            made = self.kind(**values)
        except UserError as error:
            raise _LeftOut(str(error)) from error
        if wrong := made.non_finite():
            raise _LeftOut(f"{wrong} holds NaN or infinity")
        return made
