"""Recorded runs of other frameworks: their messages become uploads from elsewhere, beside their owner's facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from fedpriv.defenses import build_defenses, parse_choice
from fedpriv.defenses.noise import LocalDp
from fedpriv.federation.defense import Defense, DefensePipeline, defense_facts
from fedpriv.federation.summary import DefenseFacts
from fedpriv.integrations.run import Partition, RecordedRun, Seen, default_folder, read_partitions
from fedpriv.sources.door import read_uploads
from fedpriv.sources.external import ExternalSource
from fedpriv.sources.facts import OwnerFacts
from fedpriv.sources.messages import Update
from fedpriv.uploads.kinds import LAYERS, NETWORKS, payload_kind
from fedpriv.uploads.payload import Payload
from fedpriv.util.errors import UserError, shown

Arrays = Mapping[str, Tensor]

DIFFERENCE: Final = "difference"
"""Fact of an answer by which its adapter says that the arrays are differences from the broadcast."""

SUMMING: Final = "secure-aggregation"


def read_recording(
    run: RecordedRun, owner: OwnerFacts, target: str, round_: int | None, settings: Mapping[str, Any]
) -> ExternalSource:
    """Return the uploads of a kind up to a round of a recorded run, checked at the same door as uploads from elsewhere."""
    facts, weights = owner.facts, target in NETWORKS | LAYERS
    model = _model(owner) if weights else None
    by_round = {number: run.messages(number) for number in run.rounds()}
    defenses = build_defenses([parse_choice(text) for text in facts.defense])
    summed = DefensePipeline(defenses).server_view == "sum"
    if not summed and any(seen.facts.get("masked") is True for rows in by_round.values() for seen in rows):
        summed, defenses = True, (*defenses, *build_defenses([parse_choice(SUMMING)]))
    numbers = _rounds(run, owner, by_round, round_, summed=summed)
    numbers, last = numbers[-1:] if summed or weights else numbers, numbers[-1]
    reader = _Reader(run, owner, target, model)
    read = {n: reader.round(by_round[n], by_round.get(n + 1, ()) if summed else (), summed=summed) for n in numbers}
    if not read[last][0]:
        why = reader.notices[-1] if reader.notices else "no upload can be attacked"
        raise UserError(f"{run.path}: round {last}: {why}")
    notices = [f"recorded: {note.told}" for note in run.notes() if note.code == "stopped"]
    lines, stated = _accounts(defenses, len(run.rounds()))
    notices += lines
    if summed:
        notices.append(
            f"only the sum is seen: in every upload's place of round {last} stands what the server made of it, the "
            f"broadcast of round {last + 1}"
        )
    seen = list(dict.fromkeys(client for uploads, _ in read.values() for client in uploads))
    clients = _clients(run, owner, seen, list(read[last][0]))
    notices += reader.notices
    notices += [f"left out: nothing says which data client {client} holds" for client in seen if client not in clients]
    source = _source(owner, target, read, clients, model, settings, summed=summed)
    return replace(
        source,
        method=facts.method or f"recorded ({run.framework})",
        dataset=facts.dataset or ExternalSource.dataset,
        command=f"fedpriv.attack({str(run.path)!r}, target={target!r}, round={source.last})",
        defenses=stated,
        notices=tuple(notices),
    )


def _rounds(
    run: RecordedRun,
    owner: OwnerFacts,
    by_round: Mapping[int, Sequence[Seen]],
    round_: int | None,
    *,
    summed: bool,
) -> list[int]:
    """Return the rounds up to the attacked one whose uploads can be attacked, ascending."""
    usable = [n for n, rows in by_round.items() if _answers(rows, owner) and (not summed or n + 1 in by_round)]
    if not usable:
        why = "with a round behind it whose broadcast shows the sum" if summed else "in which clients uploaded anything"
        raise UserError(f"{run.path}: no round of phase {owner.facts.phase!r} {why} is recorded")
    if round_ is not None and round_ not in usable:
        raise UserError(
            f"round={shown(round_)}: not recorded, or nobody uploaded in it; there are: {', '.join(map(str, usable))}"
        )
    return [number for number in usable if round_ is None or number <= round_]


def _answers(rows: Sequence[Seen], owner: OwnerFacts) -> list[Seen]:
    """Return the answers of a round that are uploads, masked or not."""
    group = [seen for seen in rows if seen.direction == "up" and seen.phase == owner.facts.phase]
    return [seen for seen in group if not seen.error and (seen.file or seen.facts.get("masked") is True)]


def _accounts(defenses: tuple[Defense, ...], rounds: int) -> tuple[list[str], tuple[DefenseFacts, ...]]:
    """Return a line for each epsilon that is claimed, with the one that follows, and what records say of the defenses."""
    lines, facts = [], []
    for defense in defenses:
        stated = defense_facts(defense)
        if isinstance(defense, LocalDp):
            implied = defense.implied(rounds)
            verdict = f"the claim {'follows' if implied.follows else 'does not follow'}: {implied.words}"
            lines.append(f"{defense.name}: {verdict}")
            stated = stated.model_copy(update={"guarantee": f"{stated.guarantee}. Here {verdict}"})
        facts.append(stated)
    return lines, tuple(facts)


# ---------------------------------------------------------------- clients and their data


def _model(owner: OwnerFacts) -> nn.Module:
    if owner.facts.model is None:
        raise UserError(
            f"{owner.where}: no model (a function of no argument, package.module:NAME); attacks on weights need its "
            "architecture"
        )
    model = owner.module("model")
    if not isinstance(model, nn.Module):
        raise UserError(f"{owner.where}: model: returned {type(model).__name__}; expected a torch.nn.Module")
    return model


def _clients(
    run: RecordedRun, owner: OwnerFacts, seen: Sequence[str], last: Sequence[str]
) -> dict[str, tuple[int, Partition]]:
    """Return client -> its number and its partition, of those whose data is known.

    Clients are numbered by their partitions where these are whole numbers, else in the order of the partitions' names.
    """
    folder = default_folder() if owner.facts.truth is None else owner.folder / owner.facts.truth
    truth = read_partitions(folder)
    known = {**({entry: entry for entry in seen} if run.named_by_data else {}), **truth, **owner.facts.partitions}
    partitions = {client: known[client] for client in seen if client in known}
    if not set(partitions) & set(last):
        others = f"{folder} names {len(truth)} other client(s)" if truth else f"{folder} has no truth of any client"
        raise UserError(
            f"{run.path}: nothing says which data client {last[0]} holds: {others}; for an audit, "
            f"run clients with mods=[fedpriv.flower.truth], or say so in partitions of {owner.where}"
        )
    owners: dict[Partition, str] = {}
    for client, partition in partitions.items():
        if partition in owners:
            both = f"clients {owners[partition]} and {client} are both said to hold {partition!r}"
            raise UserError(f"{owner.where}: {both}")
        owners[partition] = client
    whole = all(isinstance(partition, int) and partition >= 0 for partition in owners)
    order = sorted(owners, key=lambda each: (0, each, "") if isinstance(each, int) else (1, 0, each))
    numbers = {each: int(each) if whole else index for index, each in enumerate(order)}
    return {client: (numbers[partition], partition) for client, partition in partitions.items()}


def _source(
    owner: OwnerFacts,
    target: str,
    read: Mapping[int, tuple[Mapping[str, Any], Mapping[str, Payload | None]]],
    clients: Mapping[str, tuple[int, Partition]],
    model: nn.Module | None,
    settings: Mapping[str, Any],
    *,
    summed: bool,
) -> ExternalSource:
    facts, last = owner.facts, max(read)
    for name, what in (
        ("data", "data (a function of a partition that returns images and labels"),
        ("auxiliary", "auxiliary images (a function without arguments: images that no client has, and their labels"),
    ):
        if getattr(facts, name) is None:
            raise UserError(f"{owner.where}: no {what}, package.module:NAME); nothing can be scored without")
    rounds = {n: [client for client in uploads if client in clients] for n, (uploads, _) in read.items()}
    rounds = {number: of_round for number, of_round in rounds.items() if of_round}
    partitions = {clients[c][0]: clients[c][1] for of_round in rounds.values() for c in of_round}
    more: dict[str, Any] = {name: settings[name] for name in ("device",) if name in settings}
    more |= {"model": model, "n_classes": facts.n_classes, "batch": {}}
    images, labels = {}, {}
    for number, partition in partitions.items():
        current, classes = owner.images("data", partition, last)
        more["batch"][number] = None
        if facts.batch is not None and model is not None and isinstance(current, Tensor) and len(current):
            times = facts.batch.epochs if facts.batch.steps is None else 1  # an image that two epochs used counts twice
            more["batch"][number] = facts.batch.of(len(current))
            current, classes = torch.cat([current] * times), torch.cat([classes] * times)
        images[number], labels[number] = current, classes
    if facts.public is not None:
        more["public"], more["public_labels"] = owner.images("public")
    if facts.held_out is not None:
        more["held_out"] = {k: owner.images("held_out", partition) for k, partition in partitions.items()}
    sent = [{clients[c][0]: read[n][1][c] for c in of_round} for n, of_round in rounds.items()]
    more["broadcasts"] = sent if len(sent) > 1 else sent[0]
    extractors = None
    if facts.extractor is not None:
        extractors = _extractors(owner, clients.values(), last)
        if len(rounds) > 1 and owner.takes_a_round("extractor"):
            earlier = [(n, of_round) for n, of_round in rounds.items() if n != last]
            more["earlier_extractors"] = [_extractors(owner, [clients[c] for c in group], n) for n, group in earlier]
    auxiliary, more["auxiliary_labels"] = owner.images("auxiliary", labelled=False)
    uploads = [{clients[c][0]: read[n][0][c] for c in of_round} for n, of_round in rounds.items()]
    return read_uploads(
        uploads, target, images, labels, extractors, auxiliary, more, numbers=list(rounds), summed=summed
    )


def _extractors(owner: OwnerFacts, clients: Any, round_: int) -> dict[int, Any]:
    """Return client number -> its extractor after a round."""
    return {number: owner.module("extractor", partition, round_) for number, partition in clients}


# ---------------------------------------------------------------- messages


class _LeftOut(Exception):
    """An upload that cannot be attacked, with the reason; the others can."""


class _Reader:
    """Reads messages as payloads of one kind, and keeps a line for each that is left out."""

    def __init__(self, run: RecordedRun, owner: OwnerFacts, target: str, model: nn.Module | None) -> None:
        self.run, self.owner, self.target, self.model = run, owner, target, model
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
        for seen in _answers(rows, self.owner):
            client, before = seen.clients[0], sent.get(seen.clients[0])
            try:
                arrays = self._set(after, "broadcast") if summed and after is not None else self._set(seen, "upload")
                known = None if before is None else self._set(before)
                difference = seen.facts.get(DIFFERENCE) is True and not summed
                assert arrays is not None
                uploads[client] = self._upload(arrays, known, difference=difference)
                broadcasts[client] = None if known is None or self.by_name else self._payload_or_none(known)
            except _LeftOut as error:
                self.notices.append(f"left out: round {seen.round}, client {client}: {error}")
        return uploads, broadcasts

    def _is_broadcast(self, seen: Seen) -> bool:
        return seen.direction == "down" and seen.phase == self.owner.facts.phase and bool(seen.file)

    def _set(self, seen: Seen, what: str = "") -> Arrays | None:
        """Return the arrays of the attacked kind; where no set or several are, None, or an error that names ``what``."""
        if seen.direction == "up":
            sets = self.run.arrays(seen)
        else:
            if seen.file != self._broadcast[0]:
                self._broadcast = seen.file, self.run.arrays(seen)  # the newest alone: clients of a round share it
            sets = self._broadcast[1]
        names = [name for name in sets if self._kind_of(name) == self.target]
        if len(names) == 1:
            return sets[names[0]]
        if not what:
            return None
        there = ", ".join(f"{name} ({len(arrays)} arrays: {self._kind_of(name)})" for name, arrays in sets.items())
        number = f"{len(names)} sets of arrays are" if names else "no set of arrays is"
        raise UserError(
            f"{self.owner.where}: kinds: {number} said to be of kind {self.target!r} in the {what} of round {seen.round}; "
            f"recorded: {there or 'none'}"
        )

    def _kind_of(self, name: str) -> str:
        given = self.owner.facts.kinds.get(name, "model")
        kind = given.get("kind") if isinstance(given, Mapping) else given
        if not isinstance(kind, str):
            where = f"{self.owner.where}: kinds.{name}"
            raise UserError(f"{where}: expected a kind, or a table with one, got {shown(given)}")
        return payload_kind(kind).kind

    def _upload(self, arrays: Arrays, before: Arrays | None, *, difference: bool) -> Any:
        if not self.by_name:
            return self._payload(arrays)
        if before is None:
            raise _LeftOut("it was sent no weights of this kind that its own could be compared with")
        start, current = self._named(_floats(before)), _floats(arrays)
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

    def _named(self, arrays: Arrays) -> dict[str, Tensor]:
        """Return arrays by the model's names, where they have numbers instead: its state in order, or its parameters."""
        if self.model is None or not all(name.isdecimal() for name in arrays):
            return dict(arrays)
        state = {name: value for name, value in self.model.state_dict().items() if value.is_floating_point()}
        for wanted in (state, dict(self.model.named_parameters())):
            if [tuple(value.shape) for value in wanted.values()] == [tuple(value.shape) for value in arrays.values()]:
                return dict(zip(wanted, arrays.values(), strict=True))
        raise UserError(
            f"{self.owner.where}: model: {len(arrays)} arrays without names are recorded, shaped unlike the model's "
            f"{len(state)} entries in order"
        )

    def _payload_or_none(self, arrays: Arrays) -> Payload | None:
        try:
            return self._payload(arrays)
        except _LeftOut:
            return None

    def _payload(self, arrays: Arrays) -> Payload:
        kinds, where = self.owner.facts.kinds, f"{self.owner.where}: kinds"
        given = next((item for name, item in kinds.items() if self._kind_of(name) == self.target), self.target)
        names = {key: name for key, name in given.items() if key != "kind"} if isinstance(given, Mapping) else {}
        specs = {spec.name: spec.metadata for spec in fields(self.kind)}
        unknown = [key for key in names if key not in specs]
        if unknown:
            raise UserError(f"{where}: {self.target} has no field {unknown[0]!r}; known: {', '.join(specs)}")
        values: dict[str, Any] = {}
        for key, spec in specs.items():
            name = names.get(key, key)
            if spec["shape"] == "*":
                values[key] = _floats(arrays)
            elif name in arrays:
                values[key] = arrays[name].to(torch.int64 if spec["integer"] else torch.float32)
            elif not spec["optional"]:
                there = ", ".join(arrays)
                raise UserError(
                    f"{where}: field {key!r} of {self.target} is said to be array {name!r}; recorded: {there}"
                )
        try:
            made = self.kind(**values)
        except UserError as error:
            raise _LeftOut(str(error)) from error
        if wrong := made.non_finite():
            raise _LeftOut(f"{wrong} holds NaN or infinity")
        return made


def _floats(arrays: Arrays) -> dict[str, Tensor]:
    """Return the arrays that are parameters, or running statistics, as float32."""
    floats = {name: value.float() for name, value in arrays.items() if value.is_floating_point()}
    wrong = [name for name, value in floats.items() if not bool(value.isfinite().all())]
    if wrong:
        raise _LeftOut(f"{wrong[0]!r} holds NaN or infinity")
    if not floats:
        raise _LeftOut("it holds whole numbers alone, and weights are floats")
    return floats
