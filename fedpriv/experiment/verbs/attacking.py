"""The verb ``attack``: invert what clients upload, and show what that is worth beside a blind guess."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from fedpriv.attacks.observation import KnowledgeCard
from fedpriv.evidence.client_states import refuse_mixed
from fedpriv.evidence.foreign import refuse_foreign
from fedpriv.evidence.stages import Stage, every_round, kept_rounds, planned_rounds, rounds_to_keep, usable_rounds
from fedpriv.experiment.adapted_suite import AdaptedSuite, asked_suite
from fedpriv.experiment.asked import numerics_of, plan_of, refuse_kind, with_settings
from fedpriv.experiment.execution import AttackContext, attack_all, collected, open_ground, without_points
from fedpriv.experiment.federation_settings import (
    EVERY_ROUND,
    FLAG_NAMES,
    FederationSettings,
    named_config,
    refuse_small,
    refuse_unknown,
    sets_images_aside,
    texts,
)
from fedpriv.experiment.first_run import quick_settings, train_first
from fedpriv.experiment.inference import check, measure_all
from fedpriv.experiment.named_code import imports_what_is_named
from fedpriv.experiment.notices import Notices
from fedpriv.experiment.plan import (
    AttackPlan,
    granted,
    parse_stages,
    refuse_rounds,
    target_name,
)
from fedpriv.experiment.reaching import legs_of, read_reach, untaken
from fedpriv.experiment.read_card import parse_card
from fedpriv.experiment.recorded.attacking import attack_recorded
from fedpriv.experiment.results_folder import Request, results_folder
from fedpriv.experiment.scratch import place
from fedpriv.experiment.shares import Suite, work_off
from fedpriv.experiment.verbs.result import AttackResult
from fedpriv.experiment.verbs.training import Run
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.methods import METHODS, default_method
from fedpriv.models import family
from fedpriv.pages.report import write_report
from fedpriv.recording.run import is_recorded
from fedpriv.util import access, folders
from fedpriv.util.arguments import argument
from fedpriv.util.code import allowed
from fedpriv.util.device import pick_device
from fedpriv.util.errors import UserError
from fedpriv.util.foreign import given_path
from fedpriv.util.listener import SILENT, Listener
from fedpriv.util.parallel import number_of_workers

if TYPE_CHECKING:
    from fedpriv.federation.run_directory import RunConfig
    from fedpriv.scoring.records import InferenceResult, ReconstructionRecord

STAGED_ROUNDS = 100
"""Rounds of the run that is trained when none is given, where stages are asked for and its quick settings have one round."""

FOLLOWED_ROUNDS = 10
"""The same where every round is attacked."""
Grants: TypeAlias = Mapping[str, Any] | Sequence[str]


class AttackSettings(FederationSettings, total=False):
    """Keyword arguments of an attack beside its target; and, where a run is trained first, of the federation.

    Attributes:
        method: method to train when there is no run (default: the usual one for the target).
        targets: how many targets at most (default: each attack's own, 48 or, where each is a long search, 6).
        round: attack the uploads of this round (default: the last stored).
        stages: attack early (after 5-10 % of the rounds), middle, converged (the last), or rounds: round-3.
        by_round: attack every round that can be, for a curve of what leaks by round.
        reach: settings of local work that uploads of trained weights are attacked at, for how far a leak reaches: a list,
            or a text with commas between, of images of one step (``4``), steps times images (``8x1``) and ``epoch``, the
            client's own training; or ``none``. Default ``1,4,16,epoch`` where a run of one round is trained first and
            neither its batches nor its steps are given. An epoch has batches of 10 unless ``batch_size`` is given.
        rounds_seen: rounds of uploads that attacks across rounds use (default: all that are stored).
        iterations: budget of every attack that has one, in its own unit.
        budget: run every attack that has a budget once with each of these, for a curve.
        restarts: independent starts a target; the attack's own objective chooses.
        attack_option: hyperparameters of every attack that has them, or of one under its name.
        chunk_rows: rows (targets x restarts) at a time; bounds memory.
        control: also attack permuted uploads, the negative control (default True).
        control_every_budget: with ``budget``: at every budget, not at the largest only.
        facts: of a recorded run, what only its owner knows: a mapping, or the path of a TOML file (default: ``RUN.toml``
            beside the run).
        device: ``auto`` (default), ``cpu``, ``cuda`` or ``cuda:N``.
        precision: of searches by Adam: ``float32`` (default), ``tf32`` or ``bfloat16``.
        compile: compile the networks of such searches first, which takes minutes; moves the last digits at most.
        workers: processes that carry the attacks out, one thread each; ``auto`` (default) takes one for each core that
            there is memory for, once the work has taken ten seconds; eight a GPU at most. Results do not depend on it.
        download: fetch the data set if it is missing.
        redact: ``blur`` or ``omit`` pictures of people in all that is stored and drawn, so that it can be passed on
            (docs/redaction.md); ``none`` keeps them (default, but for runs of another framework: ``omit``).
        resume: go on with an interrupted attack in ``out``; repeat the other arguments.
        force: replace ``out`` if it exists.
        share_group: let your group read the result; it is yours alone otherwise (docs/folders.md).
    """

    method: str | None
    targets: int
    round: int | None
    stages: str | Sequence[str]
    by_round: bool
    reach: str | int | Sequence[str | int]
    rounds_seen: int | None
    iterations: int | None
    budget: str | Sequence[int] | None
    restarts: int | None
    attack_option: Mapping[str, Any] | Sequence[str]
    chunk_rows: int | None
    control: bool
    control_every_budget: bool
    facts: Mapping[str, Any] | str | Path
    device: str
    precision: str
    compile: bool
    workers: int | str
    download: bool
    redact: str | None
    resume: bool
    force: bool
    share_group: bool


SETTINGS: Collection[str] = AttackSettings.__optional_keys__
_WHOLE = ("targets", "rounds_seen", "chunk_rows", "iterations", "restarts")


@imports_what_is_named
def attack(
    run: Run | str | Path | None = None,
    *,
    target: str,
    attacks: str | Sequence[str] = (),
    knowledge: Grants = (),
    seed: int = 0,
    out: str | Path | None = None,
    allow_code: str | Sequence[str] = (),
    listener: Listener = SILENT,
    **settings: Unpack[AttackSettings],
) -> AttackResult:
    """Attack one kind of upload of a run; score what comes out beside blind guesses and permuted uploads.

    Without a run a federation is trained first, with quick settings of the target where none are given.

    Args:
        run: a finished run or its folder, or the folder of a recorded one; None trains one first.
        target: kind of upload to attack: ``fedpriv list targets``.
        attacks: names of attacks; none for all that fit.
        knowledge: changes to the knowledge card: extractor, labels, batch, batch_norm, attacker_data, foreign. Where
            images were set aside (``strangers``, ``public``), attacker_data is ``same_domain`` by default.
        seed: of targets, attacks and scores, and of the run that is trained.
        out: folder to make; None for a temporary result, which is gone with the returned object.
        allow_code: modules that may be imported although only a file names them (docs/reliability.md); one or several.
        listener: hears of the progress.
        settings: see :class:`AttackSettings`.

    Raises:
        UserError: naming the argument that is wrong, before anything is attacked.
    """
    refuse_unknown(settings, SETTINGS)
    target, path = target_name(target), _path(run)
    reading = contextlib.nullcontext() if path is None else folders.read(path)  # from the first look at it on
    with access.sharing(settings.get("share_group", False)), reading:
        named = texts("attacks", attacks)
        if path is not None and is_recorded(path):
            return attack_recorded(path, target, named, knowledge, seed, out, listener, settings)
        if "facts" in settings:
            where = argument("facts")
            raise UserError(f"{where}: is about runs that were recorded elsewhere, and {argument('run')} is none")
        return _attack(run, target, named, knowledge, seed, out, listener, settings)


def _path(run: Run | str | Path | None) -> Path | None:
    return run.path if isinstance(run, Run) else None if run is None else given_path(argument("run"), run)


def _attack(
    run: Run | str | Path | None,
    target: str,
    named: tuple[str, ...],
    knowledge: Grants,
    seed: int,
    out: str | Path | None,
    listener: Listener,
    settings: AttackSettings,
) -> AttackResult:
    path = _path(run)
    if path is not None:
        _refuse_training(path, settings)
    aside = sets_images_aside(quick_settings(target) | settings if path is None else RunDirectory.open(path).config)
    card = parse_card(knowledge, images_aside=aside)
    asked = _read(asked_suite(target, named, path, settings, listener.say), card, seed, settings)
    device, download = settings.get("device", "auto"), settings.get("download", False)
    numerics = numerics_of(settings, pick_device(device))
    reach = read_reach(target, settings, on_run=path is not None)
    config = None if path is not None else _first_config(asked, settings)
    stages = _stage_rounds(asked, path, config)
    plan = replace(asked.plan, stages=stages, device=device, download=download, numerics=numerics)
    if not plan.results():
        raise UserError(f"{argument('stages', asked.stages)}: {plan.left_out()[0]}")
    configs, plans = legs_of(config, plan, reach, asked.named, settings)
    number_of_workers(workers := settings.get("workers", "auto"))
    notices = Notices(listener, [*asked.refusals, *plan.left_out(), *untaken(plans)])
    request = Request.of(plans, path, configs[0] if configs else None)
    # What an existing run cannot give is refused before a folder is made.
    grounds = [] if path is None else [_prepare(path, plan, asked.named, notices)]
    folder, scratch = place(out)
    with results_folder(
        folder,
        resume=settings.get("resume", False),
        force=settings.get("force", False),
        request=request,
        run=path,
        listener=listener,
    ):
        listener.resumable()
        command = listener.command or f"fedpriv.attack(target={target!r}, ...)"
        if configs:
            runs = [folder / f"run{plan.suffix}" for plan in plans]
            train_first(runs, configs, device=device, download=download, listener=listener)
            grounds = _grounds(runs, plans, asked.named, notices)
        suites = [Suite(ground.run.path, folder, ground.plan, asked.named, command) for ground in grounds]
        work_off(suites, grounds, workers, listener)
        results, measured = _results(folder, suites, grounds, notices)
        write_report(list(results), folder, list(measured))
    attacked = run if isinstance(run, Run) else Run(path or folder / "run", None if path else scratch, allowed())
    records = {found.name: record for found, record in results.items()}
    scores = {found.name: record for found, record in measured.items()}
    return AttackResult(folder, records, scores, tuple(notices.lines), attacked, scratch)


def _results(
    folder: Path, suites: Sequence[Suite], grounds: Sequence[AttackContext], notices: Notices
) -> tuple[dict[Path, ReconstructionRecord], dict[Path, InferenceResult]]:
    """Return the records of suites by folder, those of attacks and those of inferences, made where they are not saved."""
    results: dict[Path, ReconstructionRecord] = {}
    measured: dict[Path, InferenceResult] = {}
    for suite, own in zip(suites, grounds, strict=True):
        results |= attack_all(
            folder, own, own.plan, command=suite.command, listener=notices.listener, refused=notices.left_out
        )
        measured |= measure_all(
            folder, own, own.plan, command=suite.command, named=suite.named, listener=notices.listener
        )
    return results, measured


@dataclass(frozen=True)
class _Asked:
    """A request, checked as far as that needs no run; its plan has no rounds of stages yet."""

    plan: AttackPlan
    named: tuple[str, ...]
    stages: tuple[Stage, ...]
    refusals: tuple[str, ...]
    by_round: bool = False


def _read(suite: AdaptedSuite, card: KnowledgeCard, seed: int, settings: Mapping[str, Any]) -> _Asked:
    refuse_small(settings, _WHOLE)
    target, named = suite.target, suite.named
    stages = parse_stages(texts("stages", settings.get("stages", ())))
    number, rounds_seen, every = (settings.get(name) for name in ("round", "rounds_seen", "control_every_budget"))
    chosen, budgets = with_settings(suite.names, settings, suite.options)
    if number is not None and stages:
        raise UserError(f"{argument('round')} and {argument('stages')} exclude each other: a stage is a round")
    by_round = bool(settings.get("by_round"))
    if by_round and (number is not None or stages):
        other = argument("stages") if stages else argument("round")
        raise UserError(f"{argument('by_round')} and {other} exclude each other: every round is attacked")
    if every and not (budgets and settings.get("control", True)):
        needed = f"needs {argument('budget')}, and no {argument('no_control')}"
        raise UserError(f"{argument('control_every_budget')}: {needed}")
    refuse_rounds(named, chosen, target, rounds_seen)
    chosen, refusals = granted(chosen, named, target, card, rounds_seen)
    plan = plan_of(target, chosen, card, budgets, settings, seed=seed, round=number, control_every_budget=bool(every))
    return _Asked(plan, named, stages, tuple(refusals), by_round)


def _refuse_without_images(card: KnowledgeCard, config: RunConfig) -> None:
    if card.attacker_data == "other_domain":
        refuse_foreign(card, config)
    if card.attacker_data == "same_domain" and not sets_images_aside(config):
        where = argument("knowledge", {"attacker_data": card.attacker_data})
        raise UserError(f"{where}: no images are set aside for the attacker; pass {argument('strangers')} 0.5")


def _refuse_mixed(target: str, config: RunConfig) -> None:
    refuse_mixed(METHODS.load(config.method), target, family(config.models)[: config.clients])


def _refuse_training(path: Path, settings: Mapping[str, Any]) -> None:
    extra = set(settings) & {*FLAG_NAMES, "method"}
    if extra:
        listed = ", ".join(argument(name) for name in sorted(extra))
        raise UserError(f"{argument('run')} {path}: the run is trained already; drop {listed}")


def _stage_rounds(asked: _Asked, path: Path | None, config: RunConfig | None) -> dict[Stage, int]:
    if not asked.stages and not asked.by_round:
        return {}
    if path is None:
        assert config is not None
        return _planned(asked, config.rounds)
    run = RunDirectory.open(path)
    run.require_complete()
    if asked.by_round:
        there = usable_rounds(run, asked.plan.target)
        if not there:
            raise UserError(
                f"{path}: nothing of any round can be attacked; train with {argument('keep', [run.config.rounds])}"
            )
        return every_round(there)
    return kept_rounds(run, asked.plan.target, asked.stages)


def _planned(asked: _Asked, rounds: int) -> dict[Stage, int]:
    return every_round(range(1, rounds + 1)) if asked.by_round else planned_rounds(asked.stages, rounds)


def _first_config(asked: _Asked, settings: AttackSettings) -> RunConfig:
    """Return the configuration of the run that is trained first, once it is known to leave what is asked for."""
    config = _quick_config(asked, settings)
    _refuse_without_images(asked.plan.card, config)
    refuse_kind(asked.plan.target, config, download=settings.get("download", False))
    _refuse_mixed(asked.plan.target, config)
    return config


def _quick_config(asked: _Asked, settings: Mapping[str, Any]) -> RunConfig:
    target = asked.plan.target
    method = settings.get("method") or default_method(target)
    if method is None:
        where = argument("target", target)
        raise UserError(f"{where}: no method here uploads this; pass {argument('run')} or {argument('method')}")
    values = quick_settings(target)
    if (asked.stages or asked.by_round) and values.get("rounds") == 1:
        values["rounds"] = FOLLOWED_ROUNDS if asked.by_round else STAGED_ROUNDS
    values |= {name: settings[name] for name in FLAG_NAMES if name in settings}
    if asked.stages or asked.by_round:
        number = values.get("rounds", 0)
        rounds = _planned(asked, number).values() if isinstance(number, int) and number > 0 else ()
        kept = values.get("keep", ())
        values["keep"] = (*([kept] if isinstance(kept, str) else kept), *rounds_to_keep(target, sorted(rounds)))
    if any(made.needs.every_extractor for made in asked.plan.attacks.values()):
        values["keep"] = EVERY_ROUND
    # Every round's uploads are needed only by attacks across rounds, but they are small where such attacks exist.
    return named_config(method, values, asked.plan.seed)


def _grounds(
    runs: Sequence[Path], plans: Sequence[AttackPlan], named: Sequence[str], notices: Notices
) -> list[AttackContext]:
    """Return the grounds of plans, each on its run; a further setting of a reach that leaves nothing to do is told of."""
    found = []
    for run, plan in zip(runs, plans, strict=True):
        try:
            found.append(_prepare(run, plan, named, notices))
        except UserError as error:
            if not plan.suffix or plan.reach is None:
                raise
            notices.left_out(f"{plan.reach.words}: {error}")
    return found


def _prepare(path: Path, plan: AttackPlan, named: Sequence[str], notices: Notices) -> AttackContext:
    """Return the ground for a plan, with the plan without the inference that the run leaves nothing to.

    Raises:
        UserError: when the run does not have what is asked for, or leaves nothing to an inference that was named.
    """
    ground, early = without_points(open_ground(path, plan), named)
    plan, late = check(collected(ground), ground.plan, named)
    reasons = (*early, *late)
    if reasons and not plan.results():
        raise UserError(reasons[0])
    for reason in reasons:
        notices.left_out(reason)
    return replace(ground, plan=plan)
