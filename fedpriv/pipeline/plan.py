"""The plan of an attack: target, attacks and knowledge, read from arguments, checked, laid out as jobs. Prints nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from fedpriv.attacks import ATTACKS, attacks_for, default_suite, refuse_unknown_target, targets_of, told_in_clear
from fedpriv.federation.answer import answers_for
from fedpriv.util.config import mapping, parse
from fedpriv.util.errors import UserError, shown, unknown_name

if TYPE_CHECKING:
    from fedpriv.attacks.contract import Attack
    from fedpriv.attacks.inference.base import Inference
    from fedpriv.attacks.observation import ThreatModel
    from fedpriv.federation.summary import DefenseFacts


@dataclass(frozen=True)
class LocalWork:
    """Local work of a round: one step, or a client's own training on all its images."""

    images: int | None = None  # of the one step; None for a client's own training, in batches as large as the run says
    epochs: int = 1  # of a client's own training

    @property
    def name(self) -> str:
        """The setting as it is asked for."""
        return "epoch" if self.images is None else str(self.images)

    @property
    def label(self) -> str:
        """A few words, for axes and tables."""
        if self.images is None:
            return "epoch" if self.epochs == 1 else f"{self.epochs} epochs"
        return "1 image" if self.images == 1 else f"{self.images} images"

    @property
    def words(self) -> str:
        """The setting in a sentence."""
        if self.images is None:
            return f"{'an epoch' if self.epochs == 1 else self.label} of all of a client's images"
        return f"one step on {'one image' if self.images == 1 else self.label}"


@dataclass(frozen=True)
class Job:
    """One attack as it is run."""

    name: str  # the attack's
    attack: Attack  # with its options
    control: bool = True  # shuffled uploads are attacked too


@dataclass(frozen=True)
class AttackPlan:
    """A target, the attacks on it, the knowledge they have, and the conduct of the suite."""

    target: str  # kind of upload
    attacks: Mapping[str, Attack]  # that return images, by name, with their options
    card: ThreatModel  # the grants
    inferences: Mapping[str, Inference] = field(default_factory=dict)  # attacks that return scores
    n_targets: int | None = None  # at most; None for each attack's own number
    seed: int = 0  # of targets, attacks and scores
    round: int | None = None  # whose uploads are attacked; None for the last stored
    rounds_seen: int | None = None  # that attacks across rounds use; None for all that are stored
    control: bool = True  # shuffled uploads are attacked too
    chunk_rows: int | None = None  # rows at a time
    device: str = "auto"  # a name of ``--device``
    download: bool = False  # fetch the data set where it is missing
    redact: str = "none"  # rule by which images are kept out of what is stored and drawn
    reach: LocalWork | None = None  # of several settings of local work, ``series``, the one that this plan is on
    series: tuple[LocalWork, ...] = ()
    threat: str = ""  # ``protocol`` of a second plan on the same uploads, with less granted than the first
    primary: str | None = None  # the attack by which reconstruction is judged
    brief: bool = False  # of a first look: primaries alone are attacked on shuffled uploads too

    @property
    def run_suffix(self) -> str:
        """Name that the run's folder gets besides: nothing for the first setting of a sweep, which lies where one would."""
        return f"-reach-{self.reach.name}" if self.reach and self.reach != self.series[0] else ""

    @property
    def suffix(self) -> str:
        """Name that folders of results get besides."""
        return self.run_suffix + (f"-{self.threat}" if self.threat else "")

    def jobs(self) -> tuple[Job, ...]:
        """Return every attack to run."""
        return tuple(
            Job(name, made, self.control and (not self.brief or name == self.primary))
            for name, made in self.attacks.items()
        )

    def card_for(self, attack: Attack, stored: int) -> ThreatModel:
        """Return an attack's card, which says how many of the stored rounds it uses."""
        least = attack.needs.min_rounds
        seen = 1 if least == 1 else self.rounds_seen or stored
        return replace(self.card, rounds_seen=max(least, seen))

    def folder(self, name: str) -> str:
        """Return the name of the folder of a result: ``dip``, ``dlg-reach-4``."""
        return name + self.suffix

    def results(self) -> list[str]:
        """Return the names of all folders of results."""
        return [self.folder(name) for name in (*self.attacks, *self.inferences)]


def plan_of(
    target: str, chosen: Mapping[str, Any], card: ThreatModel, settings: Mapping[str, Any], **more: Any
) -> AttackPlan:
    """Return the plan of attacks and inferences, with what settings of a verb say of how they are run."""
    from fedpriv.eval.endpoints import primary, threat_for
    from fedpriv.eval.redaction import read_rule

    images = {name: made for name, made in chosen.items() if made.result == "images"}
    return AttackPlan(
        target=target,
        attacks=images,
        primary=primary(target, "reconstruction", threat_for(target, card, images=True), images),
        inferences={name: made for name, made in chosen.items() if made.result == "scores"},
        card=card,
        n_targets=settings.get("targets"),
        rounds_seen=settings.get("rounds_seen"),
        control=settings.get("control", True),
        chunk_rows=settings.get("chunk_rows"),
        redact=read_rule(settings.get("redact")),
        **more,
    )


# ---------------------------------------------------------------- which attacks

MOST_SHADOWED = 48
"""Targets of a second plan at most: for each of their clients a shadow extractor is trained."""


def target_name(target: str) -> str:
    """Return the kind of payload that a target names, or refers to as ``package.module:NAME``."""
    from fedpriv.uploads.kinds import payload_kind

    refuse_unknown_target(target)
    return payload_kind(target).kind


def first_look(target: str) -> tuple[str, ...]:
    """Return the attacks that run without being named: the primaries, and dip, as published evaluations use it."""
    from fedpriv.eval.endpoints import THREATS, primaries

    fitting = attacks_for(target)
    wanted = {"dip", *(name for threat in THREATS for name in primaries(target, threat))}
    chosen = tuple(name for name in fitting if name in wanted)
    if not any(ATTACKS.load(name).result == "images" for name in chosen):  # a kind of another package, or none is known
        return tuple(dict.fromkeys((*chosen, *default_suite(target))))
    return chosen


def protocol_plan(plan: AttackPlan) -> AttackPlan | None:
    """Return the plan of primaries without the client's extractor; None where nothing of them would be another attack."""
    from fedpriv.eval.endpoints import primary, protocol_card, threat_for

    target, card = plan.target, protocol_card(plan.target, plan.card)
    images = dict[str, Any]()
    if threat_for(target, plan.card, images=True) == "white-box":
        images = _allowed(plan.attacks, target, card, plan.rounds_seen)
        name = primary(target, "reconstruction", "protocol", images)
        images = {name: images[name]} if name else {}
    scores = _allowed(plan.inferences, target, card, plan.rounds_seen)
    scores = {
        name: made
        for name, made in scores.items()
        if made.card(card, target).extractor != made.card(plan.card, target).extractor
    }
    if not images and not scores:
        return None
    number = plan.n_targets or min((MOST_SHADOWED, *(made.most_targets for made in images.values())))
    name = next(iter(images), None)
    return replace(
        plan, attacks=images, inferences=scores, card=card, threat="protocol", primary=name, n_targets=number
    )


def _allowed(chosen: Mapping[str, Any], target: str, card: ThreatModel, rounds_seen: int | None) -> dict[str, Any]:
    if not chosen:
        return {}
    try:
        return granted(chosen, (), target, card, rounds_seen)[0]
    except UserError:  # none of them
        return {}


def attack_names(target: str, attacks: Sequence[str], *, full: bool = False) -> tuple[str, ...]:
    """Return the attacks that are asked for, or those of the first look, or with ``full`` all that fit a target."""
    target = target_name(target)
    where = f"target={shown(target)}"
    if why := told_in_clear(target):
        raise UserError(f"{where}: {why}; see: fedpriv list targets")
    chosen = tuple(dict.fromkeys(ATTACKS.own_name(name) for name in attacks))
    fitting = attacks_for(target)
    if not fitting and not any(target in targets_of(name) for name in chosen):
        raise UserError(f"{where}: no attack on this kind of upload yet; see: fedpriv list targets")
    for name in chosen:
        if target not in targets_of(name):
            raise UserError(
                f"attacks={shown(name)}: attacks {' or '.join(targets_of(name))}, not {target}; "
                f"for {target} there are: {', '.join(fitting)}"
            )
    return chosen or (default_suite(target) if full else first_look(target))


def granted(
    chosen: Mapping[str, Any], named: Sequence[str], target: str, card: ThreatModel, rounds_seen: int | None
) -> tuple[dict[str, Any], list[str]]:
    """Return the attacks whose needs the card meets, and a line for each that is missed; refuse those that were named."""
    kept: dict[str, Any] = {}
    left_out: list[str] = []
    for name, made in chosen.items():
        needs = made.requirements_for(target)
        try:
            needs.refuse(name, replace(card, rounds_seen=rounds_seen or needs.min_rounds))
            kept[name] = made
        except UserError as error:
            if name in named:
                raise
            left_out.append(str(error))
    if not kept:
        raise UserError(left_out[0])
    return kept, left_out


def refuse_rounds(named: Sequence[str], chosen: Mapping[str, Any], target: str, rounds_seen: int | None) -> None:
    """Check that somebody uses the rounds: every attack that was named, or any of the suite."""
    if rounds_seen is None or rounds_seen == 1:
        return
    seen = f"rounds_seen={shown(rounds_seen)}"
    for name in named:
        if not chosen[name].uses_rounds_on(target):
            raise UserError(f"{seen}: attack {name!r} uses one round; drop the flag or the attack")
    if not any(made.uses_rounds_on(target) for made in chosen.values()):
        raise UserError(f"{seen}: no attack on {target} uses several rounds; drop the flag")


# ---------------------------------------------------------------- options


def with_settings(
    names: Sequence[str], settings: Mapping[str, Any], beneath: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
) -> dict[str, Any]:
    """Return attacks by name as settings of a verb make them."""
    given, flags = settings.get("attack_option", ()), ("iterations", "restarts")
    options = options_by_attack(names, given, **{flag: settings.get(flag) for flag in flags})
    return build_attacks(names, {name: {**beneath.get(name, {}), **option} for name, option in options.items()})


def build_attacks(names: Sequence[str], options: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return attacks by name, made with their own options."""
    return {name: parse(ATTACKS.load(name), options.get(name, {}), f"options of attack {name}") for name in names}


def options_by_attack(
    names: Sequence[str],
    given: Mapping[str, Any] | Sequence[str],
    *,
    iterations: int | None = None,
    restarts: int | None = None,
) -> dict[str, dict[str, Any]]:
    """Hand each option to every attack that has such a field, or to the one that it names."""
    kinds = {name: ATTACKS.load(name) for name in names}
    known = {name: {spec.name for spec in fields(kind)} for name, kind in kinds.items()}
    tree = mapping("attack_option", given)
    # A field may be called like an attack (``pixels``); of the two the attack is meant.
    scoped = {
        key for key in tree if key in names or (key in ATTACKS and not any(key in item for item in known.values()))
    }
    result: dict[str, dict[str, Any]] = {name: {} for name in names}
    for key, value in tree.items():
        if key not in scoped:
            takers = [name for name in names if key in known[name]]
            if not takers:
                raise UserError(f"attack_option: {unknown_name('key', key, set().union(*known.values()))}")
            for name in takers:
                result[name][key] = value
    for name in scoped:
        if name not in names:
            raise UserError(f"attack_option {name}.…: attack {name!r} does not run here; there are: {', '.join(names)}")
        if not isinstance(tree[name], dict):
            raise UserError(f"attack_option={shown({name: tree[name]})}: expected {name}.KEY=VALUE")
        result[name] |= tree[name]
    flags = {
        "iterations": (iterations, {name: kind.budget for name, kind in kinds.items() if kind.budget}),
        "restarts": (restarts, {name: "restarts" for name in names if "restarts" in known[name]}),
    }
    for flag, (value, key_of) in flags.items():
        if value is not None and not key_of:
            raise UserError(f"{flag}: {', '.join(names)} takes none; drop the flag")
        for name, key in key_of.items() if value is not None else ():
            if key in result[name]:
                raise UserError(f"attack_option {key}: {flag} sets it for attack {name!r}; drop one of them")
            result[name][key] = value
    return result


# ---------------------------------------------------------------- adapted to defenses


class AdaptedSuite(NamedTuple):
    """Attacks, the options that adapt them (beneath whatever a user gives), and a line on what was added for a defense."""

    names: tuple[str, ...]
    options: Mapping[str, Mapping[str, Any]]
    lines: tuple[str, ...]


def adapted_suite(
    target: str, names: Sequence[str], defenses: Sequence[DefenseFacts], rounds: int, *, every_extractor: bool = True
) -> AdaptedSuite:
    """Return a default suite with what its defenses' adaptive attacks add: attacks that run only by name, and options.

    Where several defenses ask for another value of the same option, the first has it: nobody runs one attack in two ways
    unasked.
    """
    fitting, chosen, options = {*attacks_for(target), *names}, list(names), dict[str, dict[str, Any]]()
    lines = []
    for facts in defenses:
        before, adapted = len(chosen), []
        for answer in answers_for(facts.answers, target, facts.options):
            fit = [name for name in answer.attacks if name in fitting]
            for name in fit[:1] if not set(fit) & set(chosen) else ():
                needs = ATTACKS.load(name)().requirements_for(target)
                if needs.min_rounds <= rounds and (every_extractor or not needs.every_extractor):
                    chosen.append(name)
                    continue
                behind = ", and the clients' extractors of every one" if needs.every_extractor else ""
                takes = f"takes uploads of {needs.min_rounds} rounds or more{behind}"
                lines.append(f"not run: {name}, which is adapted to {facts.label}, {takes}")
            for name in (name for name in fit if name in chosen):
                known = {spec.name for spec in fields(ATTACKS.load(name))} - set(options.get(name, {}))
                new = {key: value for key, value in answer.options.items() if key in known}
                if new:
                    options.setdefault(name, {}).update(new)
                    adapted.append(f"{name} with {', '.join(f'{key}={value}' for key, value in new.items())}")
        adapted = [*(name for name in chosen[before:] if name not in options), *adapted]
        lines += [f"adapted to {facts.label}: {', '.join(adapted)}"] if adapted else []
    return AdaptedSuite(tuple(chosen), options, tuple(lines))
