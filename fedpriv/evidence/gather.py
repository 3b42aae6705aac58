"""From a finished run: what the server saw, what the card grants, and which targets there are.

All of it goes to attacks. The truth about the targets goes to scorers (:mod:`fedpriv.evidence.truths`), and nothing
goes back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from fedpriv.attacks.observation import Knowledge, KnowledgeCard, Observation, TargetId, Unit
from fedpriv.attacks.trained import Trained
from fedpriv.evidence.client_states import refuse_mixed, step_sizes, with_known_start
from fedpriv.evidence.grants import build_knowledge
from fedpriv.evidence.permuted import permute
from fedpriv.evidence.server_view import summed, summed_without_own
from fedpriv.evidence.targets import choose_classes, choose_targets, classes_with_weight
from fedpriv.evidence.traces import round_classes, used_images
from fedpriv.evidence.truths import truths as truths
from fedpriv.federation.method import GuardedTraining
from fedpriv.federation.prepared import Federation
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import LAYERS, NETWORKS, PUBLIC_OUTPUTS


@dataclass(frozen=True)
class Evidence:
    """Everything about a run that an attack or a scorer needs, kept apart.

    Attributes:
        observations: what the server saw.
        permuted: the same with every client's upload replaced by another client's (where the server sees sums: by the
            sum over the others), or None with a single client.
        knowledge: card and grants.
        targets: which private things to recover.
    """

    observations: tuple[Observation, ...]
    permuted: tuple[Observation, ...] | None
    knowledge: Knowledge
    targets: tuple[TargetId, ...]


def gather(
    run: RunDirectory,
    federation: Federation,
    kind: str,
    card: KnowledgeCard,
    *,
    n_targets: int,
    seed: int,
    round_: int | None = None,
    unit: Unit = "upload",
    select: Callable[[Sequence[Observation], Sequence[TargetId]], Sequence[TargetId]] | None = None,
    trained: Trained | None = None,
    every_extractor: bool = False,
) -> Evidence:
    """Collect what a semi-honest server holds after a complete run, and draw targets.

    Args:
        run: a complete run.
        federation: the run prepared again from its configuration.
        kind: kind of upload to attack.
        card: what else the attacker is granted.
        n_targets: how many targets at most; drawn by seed, spread evenly over clients.
        seed: of the drawing of targets.
        round_: attack the upload of this round; default the last captured one.
        unit: what one target is; see :class:`fedpriv.attacks.contract.Attack`. Targets of unit ``class`` come in
            whole clients, so that each recovered class can be told apart from the client's others.
        select: of an attack that not every upload holds something for: the targets that do, by what the server saw.
        trained: what attackers on this run have trained and loaded so far; None begins anew.
        every_extractor: whether extractors behind the earlier uploads that are seen are handed over too.
    """
    if kind not in federation.uploads:
        sent = ", ".join(federation.uploads) or "nothing"
        raise UserError(f"{run.path}: clients of {federation.method.name!r} upload no {kind!r}; they upload: {sent}")
    seen = rounds_up_to(run, round_, card.rounds_seen)
    rounds, last = run.captured_rounds(), seen[-1]
    observations: tuple[Observation, ...] = tuple(
        Observation(number, client, run.message(run.upload_path(number, client)), broadcast)
        for number in seen
        for broadcast in (run.message(run.broadcast_path(number)),)
        for client in rounds[number]
    )
    if kind in NETWORKS:
        refuse_mixed(federation.method, kind, [setup.blueprint.name for setup in federation.clients])
        observations = with_known_start(run, federation, observations)
    permuted = permute(observations)
    if federation.pipeline.server_view == "sum":
        observations, permuted = summed(observations), summed_without_own(observations)
    newest = [o for o in observations if o.round == last and _used_images(run, federation, kind, last, o.client)]
    if not newest:
        raise UserError(f"{run.path}: no client's local steps of round {last} used an image; attack another round")
    if unit == "class":
        given = card.labels == "given"
        of_client = (
            [round_classes(run, federation, last, o.client, given=given) for o in newest]
            if kind in LAYERS | PUBLIC_OUTPUTS
            else [_held(federation, classes_with_weight(observations, o)) for o in newest]
        )
        targets = choose_classes(of_client, n_targets, seed)
    else:
        among = None if select is None else partial(select, observations)
        targets = choose_targets(newest, kind, n_targets, seed, among)
    clients = {target.client for target in targets}
    knowledge = build_knowledge(
        run, federation, kind, card, last, clients, observations, seed, trained or Trained(), every_extractor
    )
    return Evidence(observations, permuted, knowledge, targets)


def rounds_up_to(run: RunDirectory, round_: int | None, number: int) -> list[int]:
    """Return the last ``number`` of the stored rounds up to ``round_``, ascending; up to the last one for None.

    Raises:
        UserError: when the run stored no uploads, none of that round, or fewer rounds.
    """
    rounds = run.captured_rounds()
    if not rounds:
        raise UserError(
            f"{run.path}: the run stored no uploads; train it again with {argument('capture')} all, last or auto"
        )
    last = max(rounds) if round_ is None else round_
    if last not in rounds:
        there = ", ".join(str(number) for number in rounds)
        raise UserError(f"{run.path}: no uploads of round {last} are stored; stored rounds: {there}")
    seen = [number for number in rounds if number <= last][-number:]
    if len(seen) < number:
        raise UserError(
            f"{run.path}: {argument('rounds_seen', number)}, but only {len(seen)} round(s) up to round {last} are "
            f"stored; train with {argument('capture', 'all')}"
        )
    return seen


def _used_images(run: RunDirectory, federation: Federation, kind: str, round_: int, client: int) -> bool:
    """True if there is an image behind an upload: random batches may all be empty, and then an update is noise."""
    if kind not in NETWORKS | LAYERS:
        return True
    training = federation.clients[client].training
    if isinstance(training, GuardedTraining) and training.poisson:
        return len(used_images(run, round_, client)) > 0
    return bool(step_sizes(federation, client))


def _held(federation: Federation, targets: Sequence[TargetId]) -> list[TargetId]:
    """Return the targets whose class the client has: noise on a label encoding gives weight to others."""
    return [t for t in targets if bool((federation.clients[t.client].train.labels == t.label).any())]
