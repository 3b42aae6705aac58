"""From recorded messages to uploads: which client sent what in which round, and what cannot be attacked of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import torch
from torch import Tensor, nn

from fedpriv.experiment.recorded.facts import Told
from fedpriv.experiment.uploads.given import Update
from fedpriv.integrations.run import RecordedRun, Seen
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError, shown
from fedpriv.wire.kinds import LAYERS, NETWORKS, payload_kind
from fedpriv.wire.payload import Payload

Arrays = Mapping[str, Tensor]

DIFFERENCE: Final = "difference"
"""Fact of an answer by which its adapter says that the arrays are differences from the broadcast."""


@dataclass(frozen=True)
class Gathered:
    """Uploads of a recorded run as ``attack_uploads`` takes them, by the framework's names of clients.

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


def gather_uploads(
    run: RecordedRun, told: Told, target: str, round_: int | None, model: nn.Module | None, *, summed: bool
) -> Gathered:
    """Return the uploads of a kind, up to a round.

    Args:
        run: the recorded run.
        told: says what the arrays are.
        target: kind of upload.
        round_: to attack; None for the last that can be.
        model: whose parameters arrays without names are, or None.
        summed: the server sees only the sum, whatever was recorded.

    Raises:
        UserError: when there is nothing of the kind.
    """
    reader = _Reader(run, told, target, model)
    by_round = {number: run.messages(number) for number in run.rounds()}
    summed = summed or _masked(by_round)
    usable = _usable(by_round, told, summed=summed)
    if not usable:
        why = "with a round behind it whose broadcast shows the sum" if summed else "in which clients uploaded anything"
        raise UserError(f"{run.path}: no round of phase {told.facts.phase!r} {why} is recorded")
    if round_ is not None and round_ not in usable:
        raise UserError(
            f"{argument('round', round_)}: not recorded, or nobody uploaded in it; there are: {', '.join(map(str, usable))}"
        )
    last = usable[-1] if round_ is None else round_
    weights = target in NETWORKS | LAYERS
    numbers = [last] if weights or summed else [number for number in usable if number <= last]
    uploads, broadcasts = [], []
    for number in numbers:
        following = by_round.get(number + 1, ()) if summed else ()
        sent, before = reader.round(by_round[number], following, summed=summed)
        uploads.append(sent)
        broadcasts.append(before)
    if not uploads[-1]:
        raise UserError(
            f"{run.path}: round {last}: {reader.notices[-1] if reader.notices else 'no upload can be attacked'}"
        )
    notices = reader.notices
    if summed:
        notices = [
            f"only the sum is seen: in every upload's place of round {last} stands what the server made of it, the "
            f"broadcast of round {last + 1}",
            *notices,
        ]
    return Gathered(tuple(numbers), tuple(uploads), tuple(broadcasts), summed, tuple(notices))


def attackable_rounds(run: RecordedRun, told: Told, *, summed: bool) -> tuple[int, ...]:
    """Return the rounds in which anything was uploaded that can be attacked, ascending; arguments as above."""
    by_round = {number: run.messages(number) for number in run.rounds()}
    return tuple(_usable(by_round, told, summed=summed or _masked(by_round)))


def _masked(by_round: Mapping[int, Sequence[Seen]]) -> bool:
    return any(seen.facts.get("masked") is True for rows in by_round.values() for seen in rows)


def _usable(by_round: Mapping[int, Sequence[Seen]], told: Told, *, summed: bool) -> list[int]:
    return [
        number for number, rows in by_round.items() if _answers(rows, told) and (not summed or number + 1 in by_round)
    ]


def _answers(rows: Sequence[Seen], told: Told) -> list[Seen]:
    """Return the answers of a round that are uploads, masked or not."""
    own = [seen for seen in rows if seen.direction == "up" and seen.phase == told.facts.phase]
    return [seen for seen in own if not seen.error and (seen.file or seen.facts.get("masked") is True)]


class _Reader:
    """Reads messages as payloads of one kind, and keeps a line for each that is left out."""

    def __init__(self, run: RecordedRun, told: Told, target: str, model: nn.Module | None) -> None:
        self.run, self.told, self.target, self.model = run, told, target, model
        self.kind = payload_kind(target)
        self.by_name = "state" in [spec.name for spec in fields(self.kind)] and self.kind.space == "weights"
        self.notices: list[str] = []
        self._broadcasts: dict[str, dict[str, dict[str, Tensor]]] = {}

    def round(
        self, rows: Sequence[Seen], following: Sequence[Seen], *, summed: bool
    ) -> tuple[dict[str, Any], dict[str, Payload | None]]:
        """Return client -> upload, and client -> payload that it answered."""
        sent = {client: seen for seen in reversed(rows) if self._is_broadcast(seen) for client in seen.clients}
        after = next((seen for seen in following if self._is_broadcast(seen)), None)
        uploads: dict[str, Any] = {}
        broadcasts: dict[str, Payload | None] = {}
        for seen in _answers(rows, self.told):
            client, before = seen.clients[0], sent.get(seen.clients[0])
            try:
                arrays = self._set(after, "broadcast") if summed and after is not None else self._set(seen, "upload")
                known = None if before is None else self._find(before)
                difference = seen.facts.get(DIFFERENCE) is True and not summed
                uploads[client] = self._upload(arrays, known, difference=difference)
                broadcasts[client] = None if known is None or self.by_name else self._payload_or_none(known)
            except _LeftOut as error:
                self.notices.append(f"left out: round {seen.round}, client {client}: {error}")
        return uploads, broadcasts

    def _is_broadcast(self, seen: Seen) -> bool:
        return seen.direction == "down" and seen.phase == self.told.facts.phase and bool(seen.file)

    # ------------------------------------------------------------ sets of arrays

    def _arrays(self, seen: Seen) -> dict[str, dict[str, Tensor]]:
        if seen.direction == "up":
            return self.run.arrays(seen)
        if seen.file not in self._broadcasts:
            self._broadcasts = {seen.file: self.run.arrays(seen)}  # the newest alone: clients of a round share it
        return self._broadcasts[seen.file]

    def _find(self, seen: Seen) -> Arrays | None:
        sets = self._arrays(seen)
        names = [name for name in sets if self._kind_of(name) == self.target]
        return sets[names[0]] if len(names) == 1 else None

    def _set(self, seen: Seen, what: str) -> Arrays:
        """Return the set of the attacked kind.

        Raises:
            UserError: when no set, or more than one, is said to be of the kind.
        """
        sets = self._arrays(seen)
        names = [name for name in sets if self._kind_of(name) == self.target]
        if len(names) != 1:
            there = ", ".join(f"{name} ({len(arrays)} arrays: {self._kind_of(name)})" for name, arrays in sets.items())
            told = f"{len(names)} sets of arrays are" if names else "no set of arrays is"
            raise UserError(
                f"{self.told.where}: kinds: {told} said to be of kind {self.target!r} in the {what} of round {seen.round}; "
                f"recorded: {there or 'none'}"
            )
        return sets[names[0]]

    def _kind_of(self, name: str) -> str:
        given = self.told.facts.kinds.get(name, "model")
        kind = given.get("kind") if isinstance(given, Mapping) else given
        if not isinstance(kind, str):
            raise UserError(
                f"{self.told.where}: kinds.{name}: expected a kind, or a table with one, got {shown(given)}"
            )
        return payload_kind(kind).kind

    # ------------------------------------------------------------ payloads

    def _upload(self, arrays: Arrays, before: Arrays | None, *, difference: bool) -> Any:
        if not self.by_name:
            return self._payload(arrays)
        if before is None:
            raise _LeftOut("it was sent no weights of this kind that its own could be compared with")
        start, own = self._named(self._floats(before)), self._floats(arrays)
        try:
            after = self._named(own)
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
        found = {name: value.float() for name, value in arrays.items() if value.is_floating_point()}
        wrong = [name for name, value in found.items() if not bool(value.isfinite().all())]
        if wrong:
            raise _LeftOut(f"{wrong[0]!r} holds NaN or infinity")
        if not found:
            raise _LeftOut("it holds whole numbers alone, and weights are floats")
        return found

    def _named(self, arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return arrays by the model's names, where they have numbers instead: its state in order, or its parameters.

        Raises:
            UserError: where they are neither.
        """
        if self.model is None or not all(name.isdecimal() for name in arrays):
            return dict(arrays)
        state = {name: value for name, value in self.model.state_dict().items() if value.is_floating_point()}
        for wanted in (state, dict(self.model.named_parameters())):
            if [tuple(value.shape) for value in wanted.values()] == [tuple(value.shape) for value in arrays.values()]:
                return dict(zip(wanted, arrays.values(), strict=True))
        raise UserError(
            f"{self.told.where}: model: {len(arrays)} arrays without names are recorded, shaped unlike the model's "
            f"{len(state)} entries in order"
        )

    def _payload_or_none(self, arrays: Arrays) -> Payload | None:
        try:
            return self._payload(arrays)
        except _LeftOut:
            return None

    def _payload(self, arrays: Arrays) -> Payload:
        given = next(
            (one for name, one in self.told.facts.kinds.items() if self._kind_of(name) == self.target), self.target
        )
        names = {key: name for key, name in given.items() if key != "kind"} if isinstance(given, Mapping) else {}
        specs = {spec.name: spec.metadata for spec in fields(self.kind)}
        unknown = [key for key in names if key not in specs]
        if unknown:
            known = ", ".join(specs)
            raise UserError(f"{self.told.where}: kinds: {self.target} has no field {unknown[0]!r}; known: {known}")
        values: dict[str, Any] = {}
        for key, spec in specs.items():
            name = names.get(key, key)
            if spec["shape"] == "*":
                values[key] = self._floats(arrays)
            elif name in arrays:
                values[key] = arrays[name].to(torch.int64 if spec["integer"] else torch.float32)
            elif not spec["optional"]:
                there = ", ".join(arrays)
                raise UserError(
                    f"{self.told.where}: kinds: field {key!r} of {self.target} is said to be array {name!r}; recorded: "
                    f"{there}"
                )
        try:
            made = self.kind(**values)
        except UserError as error:
            raise _LeftOut(str(error)) from error
        if wrong := made.non_finite():
            raise _LeftOut(f"{wrong} holds NaN or infinity")
        return made


class _LeftOut(Exception):
    """An upload that cannot be attacked, with the reason; the others can."""
