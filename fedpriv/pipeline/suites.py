"""Suites of attacks: planned, carried out by one process or several, and those on uploads that were made elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from fedpriv.attacks.contract import Attack, Trained
from fedpriv.attacks.gradients.layers import first_linear
from fedpriv.attacks.gradients.linear_layer import LinearLayer
from fedpriv.attacks.gradients.step_attack import GradientMatching
from fedpriv.attacks.inference.base import Inference
from fedpriv.attacks.observation import ThreatModel
from fedpriv.eval.records import InferenceResult, ReconstructionRecord
from fedpriv.eval.words import premise_words
from fedpriv.federation.summary import DefenseFacts
from fedpriv.pipeline.execute import AttackContext, checked, open_run, run_plan
from fedpriv.pipeline.plan import (
    AttackPlan,
    adapted_suite,
    attack_names,
    granted,
    plan_of,
    protocol_plan,
    refuse_rounds,
    with_settings,
)
from fedpriv.pipeline.result_folders import is_result
from fedpriv.reports.report import write_report
from fedpriv.sources.external import ExternalSource, derive_card
from fedpriv.sources.networks import without_second_derivative
from fedpriv.sources.run import RunSource
from fedpriv.uploads.kinds import NETWORKS
from fedpriv.util import files, folders
from fedpriv.util.compute import pick_device
from fedpriv.util.errors import UserError, shown
from fedpriv.util.parallel import SILENT, Pool, Relay, number_of_workers, patience_for

Results = tuple[dict[str, ReconstructionRecord], dict[str, InferenceResult]]
"""Records of attacks and of inferences by folder."""


def suite_of(
    target: str, settings: Mapping[str, Any], defenses: Sequence[DefenseFacts], rounds: int, *, every_extractor: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the attacks that are named, or that fit a target, adapted to its defenses; and a line for each defense."""
    named = settings["attacks"]
    names = attack_names(target, named, full=settings.get("full", False))
    suite = adapted_suite(target, names, () if named else defenses, rounds, every_extractor=every_extractor)
    chosen = with_settings(suite.names, settings, suite.options)
    refuse_rounds(named, chosen, target, settings.get("rounds_seen"))
    return chosen, suite.lines


def suite_plans(
    target: str, chosen: Mapping[str, Any], card: ThreatModel, settings: Mapping[str, Any], **more: Any
) -> tuple[tuple[AttackPlan, ...], list[str]]:
    """Return a plan for each threat model, and a line for each attack that is left out."""
    named, device = settings["attacks"], settings.get("device", "auto")
    kept, refusals = granted(chosen, named, target, card, settings.get("rounds_seen"))
    pick_device(device)  # refuses one that is not there
    more |= {"brief": not named and not settings.get("full", False), "seed": settings.get("seed", 0)}
    plan = plan_of(target, kept, card, settings, device=device, **more)
    second = None if named or settings.get("knowledge") else protocol_plan(plan)
    return (plan,) if second is None else (plan, second), refusals


def carry_out(
    folder: Path, grounds: Sequence[AttackContext], *, refused: Callable[[str], None] = SILENT.say, pages: bool = True
) -> Results:
    """Attack, score and save what is not saved, and report on all unless pages are left for later.

    ``refused`` is told of each attack that is left out; where all are, the first reason is an error.
    """
    records, scores = dict[Path, ReconstructionRecord](), dict[Path, InferenceResult]()
    reasons: list[str] = []
    for ground in grounds:
        made = run_plan(folder, ground, refused=reasons.append, pages=pages)
        records, scores = records | made[0], scores | made[1]
    if reasons and not (records or scores):
        raise UserError(reasons[0])
    for reason in dict.fromkeys(reasons):
        refused(reason)
    if pages:
        write_report(list(records), folder, list(scores))
    by_name = {path.name: record for path, record in records.items()}
    return by_name, {path.name: record for path, record in scores.items()}


# ---------------------------------------------------------------- several processes


@dataclass(frozen=True)
class Part:
    """Some attacks on a run, as whoever carries them out must know them."""

    run: Path
    folder: Path
    plan: AttackPlan
    named: Collection[str]
    command: str

    @property
    def rank(self) -> int:
        """Place in the order: long searches first, lest one be the last."""
        if any(made.most_targets < Attack.most_targets for made in self.plan.attacks.values()):
            return 0
        if any("shadow" in option.name for made in self.plan.inferences.values() for option in fields(made)):
            return 1
        return 2 if self.plan.attacks else 3


_LONG = 10.0
"""Seconds that a long search takes at least, or the training of shadow clients."""

_OPEN: dict[Path, AttackContext] = {}
"""Runs that this process has opened."""


def work_off(grounds: Sequence[AttackContext], folder: Path, workers: int | str) -> None:
    """Carry out what is not saved of suites by several processes; with one there is nothing to do here."""
    parts, listener = [], grounds[0].listener
    for ground in grounds:
        assert isinstance(ground.source, RunSource)
        run = ground.source.run.path
        _OPEN[run] = ground
        todo = [plan for plan in parts_of(ground.plan) if not all(is_result(folder / name) for name in plan.results())]
        parts += [Part(run, folder, plan, ground.named, ground.command) for plan in todo]
    number = number_of_workers(workers, grounds[0].plan.device, len(parts))
    try:
        if number > 1:
            expected = _LONG * sum(part.rank < 2 for part in parts)
            pool = Pool(number, patience_for(workers, expected), joins=True, listener=listener)
            with pool, listener.progress("attacks") as report:
                for done, _ in enumerate(pool.map(perform, sorted(parts, key=lambda part: part.rank)), start=1):
                    report(done, len(parts), "")
    finally:
        _OPEN.clear()


def perform(part: Part, listener: Relay) -> None:
    """Carry out a part of a suite; what is saved already is passed over."""
    if part.run not in _OPEN:
        _OPEN[part.run], _ = open_run(part.run, part.plan)
    how: dict[str, Any] = {"named": part.named, "command": part.command, "listener": listener}
    run_plan(part.folder, replace(_OPEN[part.run], plan=part.plan, **how))


def parts_of(plan: AttackPlan) -> list[AttackPlan]:
    """Return the parts of a plan: attacks that train the same network stay together."""
    groups: dict[str, list[str]] = {}
    for name, made in [*plan.inferences.items(), *plan.attacks.items()]:
        shadows = plan.card.extractor == "shadow"
        if shadows and isinstance(made, Inference):
            shadows = made.takes_extractor(plan.target, plan.card)
        groups.setdefault(("shadow" if shadows else made.trains(plan.card)) or f"alone {name}", []).append(name)
    return [
        replace(
            plan,
            attacks={name: made for name, made in plan.attacks.items() if name in names},
            inferences={name: made for name, made in plan.inferences.items() if name in names},
        )
        for names in groups.values()
    ]


# ---------------------------------------------------------------- uploads that were made elsewhere


def attack_source(
    source: ExternalSource, settings: Mapping[str, Any], folder: Path, *, pages: bool = True
) -> tuple[*Results, tuple[str, ...]]:
    """Attack uploads, score what comes out, and write records and, unless they are left for later, grids and pages.

    Beside records it returns a line for each thing that was left out.
    """
    listener = settings.get("listener", SILENT)
    how: dict[str, Any] = {"named": settings["attacks"], "command": listener.command or source.command}
    plans, notices = _plans(source, settings)
    grounds, silent, kept = list[AttackContext](), dict[str, None](), Trained()
    for plan in plans:
        ground, lines = checked(AttackContext(source, plan, **how, listener=listener, scorers=kept))
        silent |= dict.fromkeys(f"left out: {line}" for line in lines)
        grounds += [ground] if ground.plan.results() else []
    notices = [*source.notices, *notices, *silent]
    if not grounds:
        raise UserError(f"target={shown(source.kind)}: nothing can be attacked: {notices[len(source.notices)]}")
    grounds = [ground.collected() for ground in grounds]
    for line in notices:
        listener.say(line)

    def leave_out(reason: str) -> None:
        notices.append(f"left out: {reason}")
        listener.say(notices[-1])

    with folders.output(folder, "attacks", force=settings.get("force", False)):
        try:
            results = carry_out(folder, grounds, refused=leave_out, pages=pages)
        except UserError:
            if not any(map(is_result, folder.iterdir())):  # it was empty when this began
                files.remove(folder)
            raise
    premise = grounds[0].premise
    if premise is not None and premise.status in ("not checkable", "differs"):
        notices.append(premise_words(premise))
        listener.say(notices[-1])
    return *results, tuple(notices)


def _unfit(source: ExternalSource, model: nn.Module, built: Mapping[str, Any]) -> dict[str, str]:
    """Return for each attack that an uploaded network does not suit, why."""
    matching = [name for name, made in built.items() if isinstance(made, GradientMatching)]
    others = [name for name in built if name not in matching]
    images = source.images[source.newest[0].client].images[:2]
    missing = without_second_derivative(model, images) if matching else ""
    left = f"these attacks do without: {', '.join(others)}" if others else "membership and property do without"
    why = {name: f"attack {name!r} differentiates gradients again: {missing}; {left}" for name in matching if missing}
    for name, made in built.items():
        if isinstance(made, LinearLayer):
            try:
                first_linear(model, source.image_shape, [name for name, _ in model.named_parameters()])
            except UserError as error:
                why[name] = str(error)
    return why


def _plans(source: ExternalSource, settings: Mapping[str, Any]) -> tuple[tuple[AttackPlan, ...], list[str]]:
    """Return the plans of attack, and a line for each thing that is left out."""
    target, rounds, control = source.kind, len(source.rounds()), settings.get("control", True)
    named, rounds_seen = settings["attacks"], settings.get("rounds_seen")
    card = derive_card(source, settings.get("knowledge", ()))
    if rounds_seen is not None and rounds_seen > rounds:
        where = f"rounds_seen={shown(rounds_seen)}"
        raise UserError(f"{where}: {rounds} round(s) were handed in; expected no more")
    every = rounds == len(source.extractor_rounds())
    built, adapted = suite_of(target, settings, source.defenses, rounds, every_extractor=every)
    early = {
        name: f"uploads: of {rounds} round(s), but attack {name!r} uses {made.needs.min_rounds}; expected a "
        "list of rounds, each a list of uploads"
        for name, made in built.items()
        if made.needs.min_rounds > rounds
    }
    early |= {
        name: f"earlier_extractors: missing; attack {name!r} takes the extractor behind each round's uploads"
        for name, made in built.items()
        if name not in early and made.needs.every_extractor and not {*source.extractor_rounds()} - {source.last}
    }
    if source.model is not None and target in NETWORKS:
        early |= _unfit(source, source.model, built)
    if early and (named or len(early) == len(built)):
        raise UserError(next(iter(early.values())))
    built = {name: made for name, made in built.items() if name not in early}
    plans, refusals = suite_plans(target, built, card, settings)
    notices = [*(f"left out: {line}" for line in (*early.values(), *refusals)), *adapted]
    if control and source.summed:
        notices.append("no negative control: the server sees one sum, in which every client's upload is")
    elif control and len(source.newest) == 1 and not source.per_image:
        notices.append("no negative control: shuffling uploads takes two clients at least")
    return plans, notices
