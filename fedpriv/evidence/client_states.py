"""The model that a client began or ended a round with: for truths, and for what a card grants."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from fedpriv.attacks.observation import Observation
from fedpriv.federation.local_training import batch_sizes, has_batch_norm
from fedpriv.federation.method import Method, own_architecture
from fedpriv.federation.prepared import Federation
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.federation.states import State
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import LAYERS, NETWORKS
from fedpriv.wire.payloads import Message, Model


def step_sizes(federation: Federation, client: int) -> list[int]:
    """Return the sizes of the batches of a client's local steps in a round, as the protocol has them."""
    setup = federation.clients[client]
    trained = (setup.model, setup.scratch(federation.method.shared(setup.blueprint, setup.options)))
    return batch_sizes(len(setup.train), setup.training, join_single=any(map(has_batch_norm, trained)))


def refuse_mixed(method: Method, kind: str, architectures: Collection[str]) -> None:
    """Refuse attacks on whole private models where clients' architectures differ: one is handed to attacks."""
    if kind in NETWORKS and method.shared is own_architecture and len(set(architectures)) > 1:
        raise UserError(
            f"{argument('target', kind)}: clients of {method.name!r} upload models of different architectures "
            f"({', '.join(sorted(set(architectures)))}), and attacks take one; train with one of them: "
            f"{argument('models', min(architectures))}"
        )


def with_known_start(
    run: RunDirectory, federation: Federation, observations: Sequence[Observation]
) -> tuple[Observation, ...]:
    """Return observations whose broadcast holds the weights that a client started from, where the server knows them.

    A method may upload weights and broadcast none, because clients go on from their own (FedHeNN). The server still has what
    a client uploaded the last time it took part; before that, the initial weights, which it drew itself. These are put in
    front of the broadcast.
    """
    return tuple(replace(seen, broadcast=(*_start(run, federation, seen), *seen.broadcast)) for seen in observations)


def _start(run: RunDirectory, federation: Federation, seen: Observation) -> Message:
    sent = NETWORKS.first(seen.upload)
    if not isinstance(sent, Model) or NETWORKS.first(seen.broadcast) is not None:
        return ()
    before = [line.round for line in run.rounds() if line.round < seen.round and seen.client in line.participants]
    if not before:
        state = federation.initial_state(seen.client)
        return (Model({name: state[f"model.{name}"] for name in sent.state}),)
    if seen.client not in run.captured_rounds().get(before[-1], ()):
        raise UserError(
            f"{run.path}: clients of {federation.method.name!r} go on from their own weights, which the server knows from "
            f"the upload before; that of round {before[-1]} is not stored: attack round 1, or train "
            f"with {argument('capture', 'all')}"
        )
    last = NETWORKS.first(run.message(run.upload_path(before[-1], seen.client)))
    return () if last is None else (last,)


def state_behind(run: RunDirectory, federation: Federation, kind: str, client: int, round_: int) -> State:
    """Return the client state that an upload was computed with: its extractor, and the head if that stayed private.

    For the update of one layer see :func:`state_of_update`; all else is computed with the state at the end of the round. An
    extractor too: FedRep trains the head first, then the extractor through that head.
    """
    if kind in LAYERS:
        return state_of_update(run, federation, client, round_)
    return _kept(run, round_, f"a white-box extractor of round {round_} needs its checkpoint", client)


def state_of_update(run: RunDirectory, federation: Federation, client: int, round_: int) -> State:
    """Return the client state whose extractor an update of a layer was computed through.

    That is the state at the start of the round, after its broadcast, where the round was one step; otherwise the
    extractor moved during the round, and the state at its end stands for it.
    """
    several = any(len(step_sizes(federation, setup.client)) != 1 for setup in federation.clients)
    number = round_ if several else round_ - 1
    why = f"a white-box extractor for the update of round {round_} needs the checkpoint of round {number}"
    if several:
        return _kept(run, number, why, client)
    before = _kept(run, number, why, client) if number else federation.initial_state(client)
    broadcast = run.message(run.broadcast_path(round_))
    return federation.method.apply_broadcast(federation.clients[client], before, broadcast)


def _kept(run: RunDirectory, number: int, why: str, client: int) -> State:
    if number not in run.checkpointed_rounds():
        there = ", ".join(str(kept) for kept in run.checkpointed_rounds()) or "none"
        raise UserError(f"{run.path}: {why}; kept: {there} (train with {argument('keep', [number])})")
    return run.client_state(number, client)
