"""Flower's side of recorder and guard: a grid that shows every message it passes on, and mods for the clients' side."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

from fedpriv.integrations.guarding import Watch
from fedpriv.integrations.recorder import Recorder, to_stderr
from fedpriv.integrations.run import TRAIN, default_folder, write_partition
from fedpriv.util.errors import UserError, short_line

ROUND: Final = "server-round"  # entry of a ``ConfigRecord`` by which Flower's strategies tell the round
SECURE: Final = "secaggplus_configs"  # ``ConfigRecord`` of Flower's secure aggregation
MASKED_STAGE: Final = "collect_masked_vectors"
"""Its stage in which clients get a model and answer with masked vectors; the others exchange keys."""
WITHOUT_ARRAYS: Final = "evaluate"
"""Of messages of this type numbers alone are recorded: the model that clients are sent is the next round's."""
MASKED: Final = "secure aggregation: uploads are masked, only what the server makes of their sum can be attacked"

Main = Callable[..., Any]


def recorded_main(path: str | Path, main: Main) -> Main:
    """Return a main function of a ``ServerApp`` that does what it did, with every message recorded."""

    @functools.wraps(main)
    def wrapped(grid: Any, *given: Any, **named: Any) -> Any:
        recorder = Recorder(path, f"flwr {metadata.version('flwr')}")
        if recorder.stopped:
            return main(grid, *given, **named)
        to_stderr(f"recording what the server sees: {recorder.path}")
        recording = RecordingGrid(grid, recorder)
        try:
            return main(recording, *given, **named)
        finally:
            recording.end()

    return wrapped


class _Place(NamedTuple):
    """A message's place in the federation."""

    round: int
    phase: str  # the message's type
    masked: bool = False  # secure aggregation hides the answer


class RecordingGrid:
    """A ``flwr.serverapp.Grid`` that passes everything on to another, unchanged, and shows the messages to a recorder.

    It registers as a grid when it is made, since Flower may be missing where this module is imported.
    """

    def __init__(self, inner: Any, recorder: Recorder) -> None:
        from flwr.serverapp import Grid

        Grid.register(type(self))
        self._inner, self._recorder = inner, recorder
        self._pending: dict[str, _Place] = {}
        self._counted, self._answered = 0, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> Any:
        """Send messages and return the answers, as the grid behind does."""
        sent = list(messages)
        places = self._show_sent(sent)
        replies = _listed(self._inner.send_and_receive(sent, timeout=timeout))
        if not self._recorder.stopped:
            with self._recorder.guarded():
                by_node = {
                    message.metadata.dst_node_id: position for message, position in zip(sent, places, strict=True)
                }
                for reply in replies:
                    self._show_reply(reply, by_node.get(reply.metadata.src_node_id))
                self._settle(places)
        return replies

    def push_messages(self, messages: Iterable[Any]) -> Any:
        """Send messages and return their ids, as the grid behind does."""
        sent = list(messages)
        places = self._show_sent(sent)
        names = _listed(self._inner.push_messages(sent))
        if not self._recorder.stopped:
            with self._recorder.guarded():
                self._pending |= zip(names, places, strict=True)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Any:
        """Return the answers to some messages that are there, as the grid behind does."""
        replies = _listed(self._inner.pull_messages(list(message_ids)))
        if not self._recorder.stopped:
            with self._recorder.guarded():
                for reply in replies:
                    position = self._pending.pop(reply.metadata.reply_to_message_id, None)
                    self._show_reply(reply, position)
                    self._settle([] if position is None or position in self._pending.values() else [position])
        return replies

    def end(self) -> None:
        """Note the clients that were asked and never answered, and let go of the recorded run."""
        with self._recorder.guarded():
            self._settle(self._pending.values())
        self._recorder.close()

    def _settle(self, places: Iterable[_Place]) -> None:
        self._answered = True
        for position in dict.fromkeys(places):
            self._recorder.settled(position.round, phase=position.phase)

    def _show_sent(self, messages: list[Any]) -> list[_Place]:
        places: list[_Place] = []
        if self._recorder.stopped:
            return places
        with self._recorder.guarded():
            groups: dict[tuple[Any, ...], list[Any]] = {}
            for message in messages:
                places.append(self._place(message))
                records = message.content.array_records
                same = (places[-1], *((name, id(record)) for name, record in records.items()), *_facts(message).items())
                groups.setdefault(same, []).append(message)
            for (position, *_), alike in groups.items():
                self._recorder.broadcast(
                    position.round,
                    [str(message.metadata.dst_node_id) for message in alike],
                    {} if position.phase == WITHOUT_ARRAYS else _sets(alike[0]),
                    phase=position.phase,
                    facts=_facts(alike[0]),
                )
        return places

    def _show_reply(self, reply: Any, position: _Place | None) -> None:
        if position is None or self._recorder.stopped:
            return
        client = str(reply.metadata.src_node_id)
        if reply.has_error():
            code, reason = reply.error.code, reply.error.reason
            self._recorder.failed(
                position.round, client, f"code {code}" + (f": {reason}" if reason else ""), phase=position.phase
            )
            return
        if position.masked:
            self._recorder.told(MASKED)
        facts = _facts(reply) | ({"masked": True} if position.masked else {})
        self._recorder.upload(position.round, client, _sets(reply), phase=position.phase, facts=facts)

    def _place(self, message: Any) -> _Place:
        """Return the round that a message names, by its records or its group; else rounds are counted by sending."""
        configs, phase = message.content.config_records, str(message.metadata.message_type)
        rounds = [record[ROUND] for record in configs.values() if isinstance(record.get(ROUND), int)]
        group = message.metadata.group_id
        if not rounds and isinstance(group, str) and group.isdecimal():
            rounds = [int(group)]
        if not rounds:
            if self._answered and (phase == TRAIN or not self._counted):
                self._counted, self._answered = self._counted + 1, False
            rounds = [self._counted]
        stage = configs[SECURE].get("stage") if SECURE in configs else None
        if stage is not None and stage != MASKED_STAGE:
            phase = f"secure-aggregation-{stage}"
        return _Place(rounds[0], phase, masked=stage == MASKED_STAGE)


def _listed(answers: Any) -> Any:
    return answers if isinstance(answers, (list, tuple)) else list(answers)


def _sets(message: Any) -> dict[str, dict[str, Any]]:
    return {
        str(name): {str(key): array for key, array in record.items()}
        for name, record in message.content.array_records.items()
    }


def _facts(message: Any) -> dict[str, Any]:
    """Return numbers and texts of all records of a message by their names; of two of one name the first."""
    facts: dict[str, Any] = {}
    if message.has_content():
        for record in (*message.content.config_records.values(), *message.content.metric_records.values()):
            values: Mapping[str, Any] = record
            for key, value in values.items():
                if isinstance(value, (bool, int, float, str)):
                    facts.setdefault(str(key), value)
    return facts


_said: set[str] = set()


def note_truth(context: Any) -> None:
    """Write down which part of the data a node holds; a fault is told once, and harms nobody's training."""
    try:
        partition = context.node_config.get("partition-id")
        if not isinstance(partition, (int, str)):
            raise UserError("node_config has no 'partition-id', so it is not known which data a node holds")
        write_partition(default_folder(), str(context.node_id), partition)
    except Exception as error:  # whatever it is, the federation is not ours to break
        if type(error).__name__ not in _said:
            _said.add(type(error).__name__)
            to_stderr(short_line(f"no truth of node {context.node_id} is written: {error}"))


WITHHELD: Final = 6
"""Flower's error code of a mod that lets nothing pass (``MOD_FAILED_PRECONDITION``); strategies leave such replies out."""


def guarding_mod(watch: Watch) -> Callable[[Any, Any, Callable[[Any, Any], Any]], Any]:
    """Return a mod that judges what a client answers to training, and in its place may answer that nothing is sent."""

    def mod(message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        from flwr.app import Error, Message

        before = next(iter(_sets(message).values()), {})
        reply = call_next(message, context)
        if str(message.metadata.message_type).startswith(TRAIN) and reply.has_content():
            after = next(iter(_sets(reply).values()), {})
            if watch.withholds(context, before, after):
                return Message(Error(WITHHELD, "withheld by the client's guard"), reply_to=message)
        return reply

    return mod
