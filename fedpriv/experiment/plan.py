"""The plan of an attack: target, attacks and knowledge, read from arguments, checked, laid out as jobs. Prints nothing."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError, unknown_name
from fedpriv.util.numerics import Numerics
from fedpriv.util.pairs import mapping

if TYPE_CHECKING:
    from fedpriv.attacks.contract import Attack, Declared
    from fedpriv.attacks.inference.base import Inference
    from fedpriv.attacks.observation import KnowledgeCard
    from fedpriv.evidence.reach import Setting
    from fedpriv.evidence.stages import Stage


@dataclass(frozen=True)
class Job:
    """One attack as it is run: at one budget, on one stage of training.

    Attributes:
        name: the attack's.
        attack: the attack with its budget set.
        stage: of training, or None where the plan names none.
        round: whose uploads are attacked; None for the last stored.
        budget: value of the attack's budget field where the plan lists budgets, else None.
        control: whether permuted uploads are attacked too.
        reach: what the folder of its result is called besides, of a setting of a reach but the first.
    """

    name: str
    attack: Attack
    stage: Stage | None = None
    round: int | None = None
    budget: int | None = None
    control: bool = True
    reach: str = ""

    @property
    def folder(self) -> str:
        """Name of the folder of its result: ``dip``, ``dip-early``, ``dip@300``, ``dip-early@300``, ``dlg-reach-4``."""
        return folder_name(self.name, self.stage) + self.reach + ("" if self.budget is None else f"@{self.budget}")


def folder_name(name: str, stage: str | None) -> str:
    """Return the name of the folder of an attack on a stage."""
    return name if stage is None else f"{name}-{stage}"


PARTS = ("reconstruction", "permuted")
"""Parts of an attack that can be carried out apart: the search for what was uploaded, and the one for the control."""


@dataclass(frozen=True)
class AttackPlan:
    """A target, the attacks on it, the knowledge they have, and the conduct of the suite.

    Attributes:
        target: kind of upload.
        attacks: that return images, by name, with their options.
        inferences: attacks that return scores, likewise; they run beside the others.
        card: the grants.
        n_targets: targets at most; None for each attack's own number.
        seed: of targets, attacks and scores.
        round: whose uploads are attacked; None for the last stored. Not together with ``stages``.
        rounds_seen: rounds that attacks across rounds use; None for all that are stored.
        stages: stage of training -> its round; empty attacks ``round`` only.
        budgets: values of each attack's budget field, ascending; empty leaves it as it is. Attacks without one run once.
        control: whether permuted uploads (the negative control) are attacked too,
        control_every_budget: at every budget, not at the largest only.
        chunk_rows: rows at a time.
        device: a name of ``--device``.
        download: fetch the data set where it is missing.
        redact: rule by which images are kept out of what is stored and drawn (:mod:`fedpriv.scoring.redaction`).
        numerics: precision of searches, and whether their networks are compiled.
        reach: of several settings of local work, ``series``, the one that this plan is on; None without.
    """

    target: str
    attacks: Mapping[str, Attack]
    card: KnowledgeCard
    n_targets: int | None = None
    seed: int = 0
    round: int | None = None
    rounds_seen: int | None = None
    stages: Mapping[Stage, int] = field(default_factory=dict)
    budgets: tuple[int, ...] = ()
    control: bool = True
    control_every_budget: bool = False
    chunk_rows: int | None = None
    device: str = "auto"
    download: bool = False
    inferences: Mapping[str, Inference] = field(default_factory=dict)
    redact: str = "none"
    numerics: Numerics = field(default_factory=Numerics)
    reach: Setting | None = None
    series: tuple[Setting, ...] = ()

    @property
    def precision(self) -> str:
        """Of the searches."""
        return self.numerics.precision

    @property
    def moments(self) -> tuple[tuple[Stage | None, int | None], ...]:
        """Stages with their rounds, or the one round without a stage."""
        return tuple(self.stages.items()) or ((None, self.round),)

    def jobs(self) -> tuple[Job, ...]:
        """Return every attack to run, stage by stage, an attack's budgets ascending."""
        return tuple(
            self._job(name, made, stage, number, budget)
            for stage, number in self.moments
            for name, made in self.attacks.items()
            if stage is None or number is None or number >= made.needs.min_rounds
            for budget in ((self.budgets or (None,)) if made.budget else (None,))
        )

    def card_for(self, job: Job, stored: int) -> KnowledgeCard:
        """Return a job's card, which says how many of the stored rounds it uses."""
        least = job.attack.needs.min_rounds
        if least == 1:
            return replace(self.card, rounds_seen=1)
        seen = self.rounds_seen or stored
        # An early stage has fewer rounds behind it than were asked for; its card says so.
        return replace(self.card, rounds_seen=max(least, min(seen, stored) if job.stage else seen))

    def left_out(self) -> tuple[str, ...]:
        """Return a line for each attack that comes too early for the rounds it needs."""
        return tuple(
            f"attack {name!r} on the {stage} stage: it needs {made.needs.min_rounds} rounds, and that is round {number}"
            for stage, number in self.moments
            for name, made in self.attacks.items()
            if stage is not None and number is not None and number < made.needs.min_rounds
        )

    @property
    def suffix(self) -> str:
        """Name that folders get besides: nothing for the first setting of a reach, so that it lies where one alone would."""
        return f"-reach-{self.reach.name}" if self.reach and self.reach != self.series[0] else ""

    def folder(self, name: str, stage: Stage | None) -> str:
        """Return the name of the folder of an inference on a stage."""
        return folder_name(name, stage) + self.suffix

    def results(self) -> list[str]:
        """Return the names of all folders of results."""
        beside = [self.folder(name, stage) for name in self.inferences for stage, _ in self.moments]
        return [job.folder for job in self.jobs()] + beside

    def _job(self, name: str, made: Attack, stage: Stage | None, number: int | None, budget: int | None) -> Job:
        control = self.control and (budget is None or self.control_every_budget or budget == max(self.budgets))
        if budget is not None:
            made = replace(made, **{str(made.budget): budget})
        return Job(name, made, stage, number, budget, control, self.suffix)


def attack_names(target: str, attacks: Sequence[str]) -> tuple[str, ...]:
    """Return the attacks that are asked for, or all that fit a target.

    Raises:
        UserError: for an unknown target or attack, or one that does not fit.
    """
    from fedpriv.attacks import ATTACKS, attacks_for, default_suite, targets_of, told_in_clear

    target = target_name(target)
    where = argument("target", target)
    if why := told_in_clear(target):
        raise UserError(f"{where}: {why}; see: fedpriv list targets")
    chosen = tuple(dict.fromkeys(ATTACKS.own_name(name) for name in attacks))
    fitting = attacks_for(target)
    if not fitting and not any(target in targets_of(name) for name in chosen):
        raise UserError(f"{where}: no attack on this kind of upload yet; see: fedpriv list targets")
    for name in chosen:
        if target not in targets_of(name):
            raise UserError(
                f"{argument('attacks', name)}: attacks {' or '.join(targets_of(name))}, not {target}; "
                f"for {target} there are: {', '.join(fitting)}"
            )
    return chosen or default_suite(target)


def target_name(target: str) -> str:
    """Return the kind of payload that a target names, or refers to as ``package.module:NAME``.

    Raises:
        UserError: when there is none, with the kinds that can be attacked.
    """
    from fedpriv.attacks import target_names
    from fedpriv.wire.kinds import payload_kind
    from fedpriv.wire.payload import DECLARED
    from fedpriv.wire.payloads import PAYLOADS

    if not isinstance(target, str) or (target not in DECLARED and target not in PAYLOADS):
        raise unknown_name("target", target, target_names())
    return payload_kind(target).kind


def build_attacks(names: Sequence[str], options: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return attacks by name, made with their own options.

    Raises:
        UserError: naming the option that is unknown or out of range, and a generator that only a file names.
    """
    from fedpriv.attacks import ATTACKS

    return {
        name: build_attack(ATTACKS.load(name), options.get(name, {}), f"options of attack {name}") for name in names
    }


def build_attack(kind: type[Any], options: Mapping[str, Any], where: str) -> Any:
    """Return an attack made with its own options; arguments and errors as :func:`build_attacks` has them."""
    from fedpriv.attacks.priors.generator import check_source
    from fedpriv.util.config import parse

    made = parse(kind, options, where)
    if made.name == "pretrained":
        check_source(made.source)
    return made


def granted(
    chosen: Mapping[str, Any], named: Sequence[str], target: str, card: KnowledgeCard, rounds_seen: int | None
) -> tuple[dict[str, Any], list[str]]:
    """Return the attacks whose needs the card meets, and a line for each that is missed.

    Raises:
        UserError: when an attack that was named needs more, or every attack does.
    """
    kept: dict[str, Any] = {}
    refusals: list[UserError] = []
    left_out: list[str] = []
    for name, made in chosen.items():
        needs = made.requirements_for(target)
        try:
            needs.refuse(name, replace(card, rounds_seen=rounds_seen or needs.min_rounds))
        except UserError as error:
            if name in named:
                raise
            refusals.append(error)
            if not needs.without_what_is_granted(card):
                left_out.append(str(error))
        else:
            kept[name] = made
    if not kept:
        raise refusals[0]
    return kept, left_out


def rounds_to_read(attacks: Iterable[Declared], rounds: int) -> tuple[int, ...]:
    """Return the rounds whose checkpoints a run of so many has to keep for attacks: every one for those that read all."""
    return tuple(range(1, rounds + 1)) if any(made.needs.every_extractor for made in attacks) else ()


def refuse_rounds(named: Sequence[str], chosen: Mapping[str, Any], target: str, rounds_seen: int | None) -> None:
    """Check that somebody uses the rounds: every attack that was named, or any of the suite.

    Raises:
        UserError: when nobody does.
    """
    if rounds_seen is None or rounds_seen == 1:
        return
    seen = argument("rounds_seen", rounds_seen)
    for name in named:
        if not chosen[name].uses_rounds_on(target):
            raise UserError(f"{seen}: attack {name!r} uses one round; drop the flag or the attack")
    if not any(made.uses_rounds_on(target) for made in chosen.values()):
        raise UserError(f"{seen}: no attack on {target} uses several rounds; drop the flag")


def options_by_attack(
    names: Sequence[str],
    given: Mapping[str, Any] | Sequence[str],
    *,
    iterations: int | None = None,
    restarts: int | None = None,
    budgets: Sequence[int] = (),
) -> dict[str, dict[str, Any]]:
    """Hand each option to every attack that has such a field, or to the one that it names.

    Args:
        names: the attacks of the suite.
        given: options by name, those of one attack under its name: a mapping, or texts ``KEY=VALUE`` and
            ``ATTACK.KEY=VALUE``. The second kind wins.
        iterations: value of every attack's budget field.
        restarts: value of ``restarts`` of every attack that has it. A field that one of these three flags sets is not an
            option besides.
        budgets: values that the budget field will take later.

    Raises:
        UserError: for an option or a flag that no attack of the suite has, or a field that is set twice.
    """
    from fedpriv.attacks import ATTACKS

    kinds = {name: ATTACKS.load(name) for name in names}
    known = {name: {spec.name for spec in fields(kind)} for name, kind in kinds.items()}
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    if iterations is not None or budgets:
        _refuse_budget(kinds, argument("iterations" if iterations is not None else "budget"))
    tree = mapping("attack_option", given)
    # A field may be called like an attack (``pixels``); of the two the attack is meant.
    scoped = {key for key in tree if key in names or (key in ATTACKS and not any(key in one for one in known.values()))}
    general = {key: value for key, value in tree.items() if key not in scoped}
    for key, value in general.items():
        takers = [name for name in names if key in known[name]]
        if not takers:
            raise _unknown_option(key, known)
        for name in takers:
            found[name][key] = value
    for name in scoped:
        if name not in names:
            raise UserError(
                f"{argument('attack_option')} {name}.…: attack {name!r} does not run here; there are: {', '.join(names)}"
            )
        if not isinstance(tree[name], dict):
            raise UserError(f"{argument('attack_option', {name: tree[name]})}: expected {name}.KEY=VALUE")
        found[name] |= tree[name]
    if restarts is not None and not any("restarts" in own for own in known.values()):
        raise UserError(f"{argument('restarts')}: {', '.join(names)} has no restarts; drop the flag")
    for name, kind in kinds.items():
        restarted = restarts is not None and "restarts" in known[name]
        flags: dict[str, str | None] = {
            "restarts": "restarts" if restarted else None,
            "iterations": kind.budget if iterations is not None else None,
            "budget": kind.budget if budgets else None,
        }
        for flag, own in flags.items():
            if own in found[name]:
                where = f"{argument('attack_option')} {own}"
                raise UserError(f"{where}: {argument(flag)} sets it for attack {name!r}; drop one of them")
        if restarted:
            found[name]["restarts"] = restarts
        if iterations is not None and kind.budget:
            found[name][kind.budget] = iterations
    return found


def _refuse_budget(kinds: Mapping[str, Any], flag: str) -> None:
    if not any(kind.budget for kind in kinds.values()):
        raise UserError(f"{flag}: {', '.join(kinds)} has no budget of iterations; drop the flag")


def _unknown_option(key: str, known: Mapping[str, set[str]]) -> UserError:
    everything = sorted(set().union(*known.values()))
    close = difflib.get_close_matches(key, everything, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    listed = "; ".join(f"{name}: {', '.join(sorted(own))}" for name, own in known.items())
    return UserError(f"{argument('attack_option')}: unknown key {key!r}; {hint}known: {listed}")


def parse_budgets(given: str | Sequence[int] | None) -> tuple[int, ...]:
    """Return the budgets that a list or ``"100,300,1000"`` holds, ascending.

    Raises:
        UserError: for anything but different whole numbers of at least 1.
    """
    if given is None:
        return ()
    where = argument("budget", given)
    try:
        found = [int(entry) for entry in (given.split(",") if isinstance(given, str) else given)]
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: expected whole numbers with commas between, such as 100,300,1000") from error
    if not found or min(found) < 1:
        raise UserError(f"{where}: expected at least 1, got {min(found, default='none')}")
    if len(set(found)) < len(found):
        raise UserError(f"{where}: a value is given twice")
    return tuple(sorted(found))


def parse_stages(texts: Sequence[str]) -> tuple[Stage, ...]:
    """Return the stages that texts name, in the order of training.

    Raises:
        UserError: for an unknown one.
    """
    from fedpriv.evidence.stages import in_training_order, parse_stage

    return in_training_order(parse_stage(name.strip()) for text in texts for name in text.split(","))
