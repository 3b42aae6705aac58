"""Recorded runs of other frameworks: their messages become uploads from elsewhere, beside their owner's facts."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final

import torch
from torch import Tensor

from fedpriv.defenses import build_defenses, parse_choice
from fedpriv.defenses.noise import LocalDp
from fedpriv.federation.defense import DefensePipeline, defense_facts
from fedpriv.integrations.run import Partition, RecordedRun, Seen, default_folder, read_partitions
from fedpriv.sources.door import read_uploads
from fedpriv.sources.external import ExternalSource
from fedpriv.sources.facts import OwnerFacts
from fedpriv.sources.messages import Update, weights
from fedpriv.uploads.kinds import LAYERS, NETWORKS, STATES, payload_kind
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
    facts = owner.facts
    reader = _Reader(run, owner, target)
    by_round = {number: run.messages(number) for number in run.rounds()}
    defenses = build_defenses([parse_choice(text) for text in facts.defense])
    summed = DefensePipeline(defenses).server_view == "sum"
    if not summed and any(seen.facts.get("masked") is True for rows in by_round.values() for seen in rows):
        summed, defenses = True, (*defenses, *build_defenses([parse_choice(SUMMING)]))
    usable = [n for n, rows in by_round.items() if reader.answers(rows) and (not summed or n + 1 in by_round)]
    if not usable:
        why = "with a round behind it whose broadcast shows the sum" if summed else "in which clients uploaded anything"
        raise UserError(f"{run.path}: no round of phase {facts.phase!r} {why} is recorded")
    if round_ is not None and round_ not in usable:
        raise UserError(
            f"round={shown(round_)}: not recorded, or nobody uploaded in it; there are: {', '.join(map(str, usable))}"
        )
    numbers = [number for number in usable if round_ is None or number <= round_]
    numbers, last = numbers[-1:] if summed or reader.model is not None else numbers, numbers[-1]
    read = {n: reader.round(by_round[n], by_round[n + 1] if summed else None) for n in numbers}
    if not read[last][0]:
        why = reader.notices[-1] if reader.notices else "no upload can be attacked"
        raise UserError(f"{run.path}: round {last}: {why}")
    notices = [f"recorded: {note.told}" for note in run.notes() if note.code == "stopped"]
    stated = []
    for defense in defenses:
        record = defense_facts(defense)
        if isinstance(defense, LocalDp):
            implied = defense.implied(len(by_round))
            verdict = f"the claim {'follows' if implied.follows else 'does not follow'}: {implied.words}"
            notices.append(f"{defense.name}: {verdict}")
            record = record.model_copy(update={"guarantee": f"{record.guarantee}. Here {verdict}"})
        stated.append(record)
    if summed:
        notices.append(
            f"only the sum is seen: in every upload's place of round {last} stands what the server made of it, the "
            f"broadcast of round {last + 1}"
        )
    seen = list(dict.fromkeys(client for uploads, _ in read.values() for client in uploads))
    clients = _clients(run, owner, seen, list(read[last][0]))
    notices += reader.notices
    notices += [f"left out: nothing says which data client {client} holds" for client in seen if client not in clients]
    return replace(
        _source(reader, read, clients, settings, summed=summed),
        method=facts.method or f"recorded ({run.framework})",
        dataset=facts.dataset or ExternalSource.dataset,
        command=f"fedpriv.attack({str(run.path)!r}, target={target!r}, round={last})",
        defenses=tuple(stated),
        notices=tuple(notices),
    )


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
    reader: _Reader,
    read: Mapping[int, tuple[Mapping[str, Any], Mapping[str, Payload | None]]],
    clients: Mapping[str, tuple[int, Partition]],
    settings: Mapping[str, Any],
    *,
    summed: bool,
) -> ExternalSource:
    """Return uploads beside the images, networks and facts that the owner gives, as a source."""
    owner, facts, last = reader.owner, reader.owner.facts, max(read)
    rounds = {n: [client for client in uploads if client in clients] for n, (uploads, _) in read.items()}
    rounds = {number: of_round for number, of_round in rounds.items() if of_round}
    partitions = {clients[c][0]: clients[c][1] for of_round in rounds.values() for c in of_round}
    more: dict[str, Any] = {name: settings[name] for name in ("device",) if name in settings}
    more |= {"model": reader.model, "n_classes": facts.n_classes, "batch": {}}
    images, labels = {}, {}
    for number, partition in partitions.items():
        current, classes = owner.images("data", partition, last)
        more["batch"][number] = None
        if facts.batch is not None and reader.model is not None and isinstance(current, Tensor) and len(current):
            times = facts.batch.epochs if facts.batch.steps is None else 1  # an image that two epochs used counts twice
            more["batch"][number] = facts.batch.of(len(current))
            current, classes = torch.cat([current] * times), torch.cat([classes] * times)
        images[number], labels[number] = current, classes
    if facts.public is not None:
        more["public"], more["public_labels"] = owner.images("public")
    if facts.held_out is not None:
        more["held_out"] = {k: owner.images("held_out", partition) for k, partition in partitions.items()}
    extractors: list[dict[int, Any] | None] = [None] * len(rounds)
    for place, (n, of_round) in enumerate(rounds.items()) if facts.extractor is not None else ():
        whose = clients.values() if n == last else [clients[c] for c in of_round]
        if n == last or owner.needed("extractor") > 1:  # of a round too
            extractors[place] = {number: owner.module("extractor", partition, n) for number, partition in whose}
    uploads, sent = (
        [{clients[c][0]: read[n][part][c] for c in of_round} for n, of_round in rounds.items()] for part in (0, 1)
    )
    more |= {"broadcasts": sent if len(sent) > 1 else sent[0], "earlier_extractors": extractors[:-1]}
    auxiliary, more["auxiliary_labels"] = owner.images("auxiliary", labelled=False)
    given = (uploads, reader.target, images, labels, extractors[-1], auxiliary, more)
    return read_uploads(*given, numbers=list(rounds), summed=summed)


class _LeftOut(Exception):
    """An upload that cannot be attacked, with the reason; the others can."""


class _Reader:
    """Reads messages as payloads of one kind, and keeps a line for each that is left out."""

    def __init__(self, run: RecordedRun, owner: OwnerFacts, target: str) -> None:
        self.run, self.owner, self.target, self.kind = run, owner, target, payload_kind(target)
        self.model = owner.module("model") if target in NETWORKS | LAYERS else None
        self.notices: list[str] = []

    def answers(self, rows: Sequence[Seen]) -> list[Seen]:
        """Return the answers of a round that are uploads, masked or not."""
        group = [seen for seen in rows if seen.direction == "up" and seen.phase == self.owner.facts.phase]
        return [seen for seen in group if not seen.error and (seen.file or seen.facts.get("masked") is True)]

    def round(
        self, rows: Sequence[Seen], following: Sequence[Seen] | None
    ) -> tuple[dict[str, Any], dict[str, Payload | None]]:
        """Return client -> upload (of sums: the ``following`` round's broadcast), and client -> payload that it answered."""
        sent = {client: seen for seen in reversed(self._broadcasts(rows)) for client in seen.clients}
        after = None if following is None else next(iter(self._broadcasts(following)), None)
        read: dict[str, Mapping[str, Arrays]] = {}  # clients of a round share a broadcast
        for seen in [*sent.values(), *([] if after is None else [after])]:
            if seen.file not in read:
                read[seen.file] = self.run.arrays(seen)
        uploads: dict[str, Any] = {}
        broadcasts: dict[str, Payload | None] = {}
        for seen in self.answers(rows):
            client, before = seen.clients[0], sent.get(seen.clients[0])
            try:
                sets = self.run.arrays(seen) if after is None else read[after.file]
                arrays = self._set(sets, f"the {'upload' if after is None else 'broadcast'} of round {seen.round}")
                known = None if before is None else self._set(read[before.file])
                difference = seen.facts.get(DIFFERENCE) is True and following is None
                assert arrays is not None
                uploads[client] = self._upload(arrays, known, difference=difference)
                broadcasts[client] = None
                if known is not None and self.target not in STATES:
                    with contextlib.suppress(_LeftOut):
                        broadcasts[client] = self._payload(known)
            except _LeftOut as error:
                self.notices.append(f"left out: round {seen.round}, client {client}: {error}")
        return uploads, broadcasts

    def _broadcasts(self, rows: Sequence[Seen]) -> list[Seen]:
        phase = self.owner.facts.phase
        return [seen for seen in rows if seen.direction == "down" and seen.phase == phase and seen.file]

    def _set(self, sets: Mapping[str, Arrays], what: str = "") -> Arrays | None:
        """Return the arrays of the attacked kind; where no set or several are, None, or an error that names ``what``."""
        names = [name for name in sets if self._kind_of(name) == self.target]
        if len(names) == 1 or not what:
            return sets[names[0]] if len(names) == 1 else None
        there = ", ".join(f"{name} ({len(arrays)} arrays: {self._kind_of(name)})" for name, arrays in sets.items())
        number = f"{len(names)} sets of arrays are" if names else "no set of arrays is"
        raise UserError(
            f"{self.owner.where}: kinds: {number} said to be of kind {self.target!r} in {what}; recorded: {there or 'none'}"
        )

    def _kind_of(self, name: str) -> str:
        given = self.owner.facts.kinds.get(name, "model")
        kind = given.get("kind") if isinstance(given, Mapping) else given
        if not isinstance(kind, str):
            text = f"kinds.{name}: expected a kind, or a table with one, got {shown(given)}"
            raise UserError(f"{self.owner.where}: {text}")
        return payload_kind(kind).kind

    def _upload(self, arrays: Arrays, before: Arrays | None, *, difference: bool) -> Any:
        if self.target not in STATES:
            return self._payload(arrays)
        if before is None:
            raise _LeftOut("it was sent no weights of this kind that its own could be compared with")
        whole = {name for each in (before, arrays) for name, values in each.items() if not values.is_floating_point()}
        before, arrays = ({n: v for n, v in each.items() if n not in whole} for each in (before, arrays))
        start, current = self._named(_floats(before)), _floats(arrays)  # without counters, which a server may average
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
        entries = self.model.state_dict()
        state = {name: value for name, value in entries.items() if value.is_floating_point()}
        for wanted in (state, dict(self.model.named_parameters()), entries):
            if [tuple(value.shape) for value in wanted.values()] == [tuple(value.shape) for value in arrays.values()]:
                return dict(zip(wanted, arrays.values(), strict=True))
        text = (
            f"{len(arrays)} arrays without names are recorded, shaped unlike the model's {len(state)} entries in order"
        )
        raise UserError(f"{self.owner.where}: model: {text}")

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
                said = f"field {key!r} of {self.target} is said to be array {name!r}"
                raise UserError(f"{where}: {said}; recorded: {', '.join(arrays)}")
        try:
            made = self.kind(**values)
        except UserError as error:
            raise _LeftOut(str(error)) from error
        if wrong := made.non_finite():
            raise _LeftOut(f"{wrong} holds NaN or infinity")
        return made


def _floats(arrays: Arrays) -> dict[str, Tensor]:
    """Return the arrays that are parameters, or running statistics, as float32."""
    try:
        floats = weights("weights", arrays)
    except UserError as error:
        raise _LeftOut(str(error)) from error
    if not floats:
        raise _LeftOut("it holds whole numbers alone, and weights are floats")
    return floats
