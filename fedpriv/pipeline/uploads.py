"""Attacks on uploads that were made elsewhere: the plan follows from what was handed in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedpriv.attacks.contract import Trained
from fedpriv.eval.records import InferenceResult, ReconstructionRecord
from fedpriv.eval.words import premise_words
from fedpriv.pipeline.execute import AttackContext, check, run_plan
from fedpriv.pipeline.plan import (
    AttackPlan,
    adapted_suite,
    attack_names,
    granted,
    numerics_of,
    plan_of,
    protocol_plan,
    refuse_rounds,
    with_settings,
)
from fedpriv.reports.report import write_report
from fedpriv.sources.external import ExternalSource, derive_card
from fedpriv.util import folders
from fedpriv.util.errors import UserError, shown
from fedpriv.util.parallel import SILENT

Results = tuple[dict[str, ReconstructionRecord], dict[str, InferenceResult], tuple[str, ...]]
"""Records of attacks and of inferences by folder, and a line for each thing that was left out."""


def attack_source(
    source: ExternalSource, named: tuple[str, ...], settings: Mapping[str, Any], folder: Path, *, pages: bool = True
) -> Results:
    """Attack uploads, score what comes out, and write records and, unless they are left for later, grids and pages."""
    listener = settings.get("listener", SILENT)
    first, notices = _plan(source, named, settings)
    second = None if named or settings.get("knowledge") else protocol_plan(first)
    grounds, silent, kept = [], dict[str, None](), Trained()
    for plan in (first, *([] if second is None else [second])):
        ground = AttackContext(source, plan, scorers=kept)
        plan, lines = check(ground, plan, named)
        silent |= dict.fromkeys(f"left out: {line}" for line in lines)
        grounds += [replace(ground, plan=plan)] if plan.results() else []
    notices = [*source.notices, *notices, *silent]
    if not grounds:
        raise UserError(f"target={shown(source.kind)}: nothing can be attacked: {notices[len(source.notices)]}")
    grounds = [ground.collected() for ground in grounds]
    for line in notices:
        listener.say(line)
    command = listener.command or source.command
    records, scores = dict[Path, ReconstructionRecord](), dict[Path, InferenceResult]()
    with folders.output(folder, "attacks", force=settings.get("force", False)):
        for ground in grounds:
            made = run_plan(folder, ground, command=command, named=named, listener=listener, pages=pages)
            records, scores = records | made[0], scores | made[1]
        if pages:
            write_report(list(records), folder, list(scores))
    premise = grounds[0].premise
    if premise is not None and premise.status == "not checkable":
        notices.append(premise_words(premise))
        listener.say(notices[-1])
    by_name = {path.name: record for path, record in records.items()}
    return by_name, {path.name: record for path, record in scores.items()}, tuple(notices)


def _plan(source: ExternalSource, named: tuple[str, ...], settings: Mapping[str, Any]) -> tuple[AttackPlan, list[str]]:
    """Return the plan of attacks, and a line for each thing that is left out."""
    target, rounds, control = source.kind, len(source.rounds()), settings.get("control", True)
    card = derive_card(source, settings.get("knowledge", ()))
    every = rounds == len(source.extractor_rounds())
    names = attack_names(target, named, full=settings.get("full", False))
    suite = adapted_suite(target, names, () if named else source.defenses, rounds, every_extractor=every)
    rounds_seen = settings.get("rounds_seen")
    if rounds_seen is not None and rounds_seen > rounds:
        where = f"rounds_seen={shown(rounds_seen)}"
        raise UserError(f"{where}: {rounds} round(s) were handed in; expected no more")
    built = with_settings(suite.names, settings, suite.options)
    refuse_rounds(named, built, target, rounds_seen)
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
    if early and (named or len(early) == len(built)):
        raise UserError(next(iter(early.values())))
    built = {name: made for name, made in built.items() if name not in early}
    chosen, refusals = granted(built, named, target, card, rounds_seen)
    notices = [*(f"left out: {line}" for line in (*early.values(), *refusals)), *suite.lines]
    if control and source.summed:
        notices.append("no negative control: the server sees one sum, in which every client's upload is")
    elif control and len(source.newest) == 1:
        notices.append("no negative control: shuffling uploads takes two clients at least")
    brief = not named and not settings.get("full", False)
    plan = plan_of(target, chosen, card, settings, seed=settings.get("seed", 0), brief=brief)
    return replace(plan, numerics=numerics_of(settings, source.device)), notices
