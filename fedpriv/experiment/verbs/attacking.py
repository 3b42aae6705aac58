"""The verb ``attack``: invert what clients upload, and show what that is worth beside a blind guess."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from fedpriv.attacks.observation import ThreatModel
from fedpriv.defenses import build_defenses, parse_choice
from fedpriv.experiment.federation_settings import (
    EVERY_ROUND,
    FLAG_NAMES,
    FederationSettings,
    named_config,
    refuse_small,
    refuse_unknown,
    sets_images_aside,
)
from fedpriv.experiment.first_run import quick_settings, train_first
from fedpriv.experiment.named_code import imports_what_is_named
from fedpriv.experiment.notices import Notices
from fedpriv.experiment.read_card import parse_card
from fedpriv.experiment.results_folder import Request, results_folder
from fedpriv.experiment.scratch import place
from fedpriv.experiment.shares import Suite, work_off
from fedpriv.experiment.verbs.result import AttackResult
from fedpriv.experiment.verbs.training import Run
from fedpriv.federation.defense import defense_facts
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.integrations.run import RecordedRun, is_recorded
from fedpriv.methods import METHODS, default_method
from fedpriv.models import family
from fedpriv.pages.report import write_report
from fedpriv.pipeline.adapted import AdaptedSuite, adapted_suite
from fedpriv.pipeline.execute import AttackContext, attack_all, collected, open_ground, without_points
from fedpriv.pipeline.infer import check, measure_all
from fedpriv.pipeline.plan import (
    AttackPlan,
    attack_names,
    granted,
    numerics_of,
    plan_of,
    refuse_rounds,
    target_name,
    with_settings,
)
from fedpriv.pipeline.sweep import read_reach, sweep, untaken
from fedpriv.pipeline.uploads import attack_source
from fedpriv.scoring.redaction import RECORDED, read_rule
from fedpriv.sources.auxiliary import refuse_foreign
from fedpriv.sources.facts import read_facts
from fedpriv.sources.federation import prepare
from fedpriv.sources.recorded import read_recording
from fedpriv.sources.run import RunSource, refuse_mixed, rounds_with_networks
from fedpriv.util import access, folders
from fedpriv.util.code import allowed
from fedpriv.util.device import pick_device
from fedpriv.util.errors import UserError, shown
from fedpriv.util.foreign import given_path
from fedpriv.util.listener import SILENT, Listener
from fedpriv.util.pairs import texts
from fedpriv.util.parallel import number_of_workers

if TYPE_CHECKING:
    from fedpriv.federation.run_directory import RunConfig
    from fedpriv.scoring.records import InferenceResult, ReconstructionRecord

Grants: TypeAlias = Mapping[str, Any] | Sequence[str]


class AttackSettings(FederationSettings, total=False):
    """Keyword arguments of an attack beside its target; and, where a run is trained first, of the federation.

    Attributes:
        method: method to train when there is no run (default: the usual one for the target).
        targets: how many targets at most (default: each attack's own, 48 or, where each is a long search, 6).
        round: attack the uploads of this round (default: the last stored).
        reach: local-work sweep, the settings that uploads of trained weights are attacked at: a list, or a text with
            commas between, of images of one step (``4``) and ``epoch``, the client's own training; or ``none``. Default
            ``1,4,16,epoch`` where a run of one round is trained first and neither its batches nor its steps are given. An
            epoch has batches of 10 unless ``batch_size`` is given.
        rounds_seen: rounds of uploads that attacks across rounds use (default: all that are stored).
        iterations: budget of every attack that has one, in its own unit.
        budget: run every attack that has a budget once with each of these, for a curve.
        restarts: independent starts a target; the attack's own objective chooses.
        attack_option: hyperparameters of every attack that has them, or of one under its name.
        chunk_rows: rows (targets x restarts) at a time; bounds memory.
        control: also attack shuffled uploads, the negative control, at the largest budget (default True).
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
    reach: str | int | Sequence[str | int]
    rounds_seen: int | None
    iterations: int | None
    budget: str | Sequence[int] | None
    restarts: int | None
    attack_option: Mapping[str, Any] | Sequence[str]
    chunk_rows: int | None
    control: bool
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
    """Attack one kind of upload of a run; score what comes out beside blind guesses and shuffled uploads.

    Without a run a federation is trained first, with quick settings of the target where none are given.

    Args:
        run: a finished run or its folder, or the folder of a recorded one; None trains one first.
        target: kind of upload to attack: ``fedpriv list targets``.
        attacks: names of attacks; none for all that fit.
        knowledge: changes to the knowledge card: extractor, labels, batch, batch_norm, attacker_data, foreign. Where
            images were set aside (``auxiliary``, ``public``), attacker_data is ``same_domain`` by default.
        seed: of targets, attacks and scores, and of the run that is trained.
        out: folder to make; None for a temporary result, which is gone with the returned object.
        allow_code: modules that may be imported although only a file names them (docs/reliability.md); one or several.
        listener: hears of the progress.
        settings: see :class:`AttackSettings`.

    Raises:
        UserError: naming the argument that is wrong, before anything is attacked.
    """
    refuse_unknown(settings, SETTINGS)
    target = target_name(target)
    path = run.path if isinstance(run, Run) else None if run is None else given_path("run", run)
    reading = contextlib.nullcontext() if path is None else folders.read(path)  # from the first look at it on
    with access.sharing(settings.get("share_group", False)), reading:
        named = texts("attacks", attacks)
        recorded = path is not None and is_recorded(path)
        if path is not None:
            _refuse_training(path, settings, recorded=recorded)
        if path is not None and recorded:
            more = {"knowledge": knowledge, "seed": seed, "listener": listener}
            return _attack_recorded(path, target, named, out, {**settings, **more})
        if "facts" in settings:
            where = "facts"
            raise UserError(f"{where}: is about runs that were recorded elsewhere, and run is none")
        return _attack(run, path, target, named, knowledge, seed, out, listener, settings)


def _attack_recorded(
    path: Path, target: str, named: tuple[str, ...], out: str | Path | None, settings: Mapping[str, Any]
) -> AttackResult:
    if settings.get("resume"):
        raise UserError(f"run {path}: recorded elsewhere; resume: drop it, begin anew")
    if settings.get("workers", "auto") not in ("auto", 1, "1"):
        raise UserError(f"run {path}: recorded elsewhere; attacks on it run in one process: drop workers")
    folder, scratch = place(out)
    folders.refuse_overlap(folder, {"run": path})
    run, facts = RecordedRun.open(path), read_facts(path, settings.get("facts"))
    source = read_recording(run, facts, target, settings.get("round"), settings)
    rule = read_rule(settings.get("redact"), RECORDED)
    records, scores, notices = attack_source(source, named, {**settings, "redact": rule}, folder)
    return AttackResult(folder, records, scores, notices, None, scratch)


def _attack(
    run: Run | str | Path | None,
    path: Path | None,
    target: str,
    named: tuple[str, ...],
    knowledge: Grants,
    seed: int,
    out: str | Path | None,
    listener: Listener,
    settings: AttackSettings,
) -> AttackResult:
    aside = sets_images_aside(quick_settings(target) | settings if path is None else RunDirectory.open(path).config)
    card = parse_card(knowledge, images_aside=aside)
    suite = _suite(target, named, path, settings)
    for line in suite.lines:
        listener.say(line)
    plan, refusals = _plan(target, suite, named, card, seed, settings)
    series = read_reach(target, settings, on_run=path is not None)
    configs: tuple[RunConfig, ...] = ()
    plans: tuple[AttackPlan, ...] = (plan,)
    if path is None:
        config = _first_config(plan, settings)
        quick = bool(series) and "linear-layer" in plan.attacks and _takes_images(config, settings)
        configs, plans = sweep(config, plan, series, named, settings, takes_images=quick)
    number_of_workers(workers := settings.get("workers", "auto"))
    notices = Notices(listener, [*refusals, *untaken(plans)])
    request = Request.of(plans, path, configs[0] if configs else None)
    # What an existing run cannot give is refused before a folder is made.
    grounds = [] if path is None else [_prepare(path, plan, named, notices)]
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
            runs = [folder / f"run{item.suffix}" for item in plans]
            how: dict[str, Any] = {"device": plan.device, "download": plan.download, "workers": workers}
            train_first(runs, configs, listener=listener, **how)
            grounds = _grounds(runs, plans, named, notices)
        suites = [Suite(_run_of(entry), folder, entry.plan, named, command) for entry in grounds]
        work_off(suites, grounds, workers, listener)
        results: dict[Path, ReconstructionRecord] = {}
        measured: dict[Path, InferenceResult] = {}
        for ground in grounds:
            current = ground.plan
            results |= attack_all(folder, ground, current, command=command, listener=listener, refused=notices.left_out)
            measured |= measure_all(folder, ground, current, command=command, named=named, listener=listener)
        write_report(list(results), folder, list(measured))
    attacked = run if isinstance(run, Run) else Run(path or folder / "run", None if path else scratch, allowed())
    records = {index.name: record for index, record in results.items()}
    scores = {position.name: record for position, record in measured.items()}
    return AttackResult(folder, records, scores, tuple(notices.lines), attacked, scratch)


def _run_of(ground: AttackContext) -> Path:
    assert isinstance(ground.source, RunSource)
    return ground.source.run.path


def _suite(target: str, named: Sequence[str], run: Path | None, settings: Mapping[str, Any]) -> AdaptedSuite:
    """Return the attacks that are named, or all that fit a target, adapted to the defenses of the run."""
    names = attack_names(target, named)
    if named:
        return AdaptedSuite(names)
    if run is not None:
        there = RunDirectory.open(run)
        sent, defenses = there.captured_rounds(), there.config.defenses
        rounds, every = len(sent), len(rounds_with_networks(there, target)) == len(sent)
    else:
        planned, every = settings.get("rounds", quick_settings(target)["rounds"]), True
        rounds = planned if isinstance(planned, int) else 1  # anything else is refused where the run is configured
        defenses = tuple(parse_choice(text) for text in texts("defense", settings.get("defense", ())))
    facts = [defense_facts(made) for made in build_defenses(defenses)]
    return adapted_suite(target, names, facts, rounds, every_extractor=every)


def _plan(
    target: str,
    suite: AdaptedSuite,
    named: tuple[str, ...],
    card: ThreatModel,
    seed: int,
    settings: Mapping[str, Any],
) -> tuple[AttackPlan, list[str]]:
    """Return the plan, checked as far as that needs no run, and a line for each attack that is left out."""
    refuse_small(settings, ("targets", "rounds_seen", "chunk_rows", "iterations", "restarts"))
    rounds_seen, device = settings.get("rounds_seen"), settings.get("device", "auto")
    chosen, budgets = with_settings(suite.names, settings, suite.options)
    refuse_rounds(named, chosen, target, rounds_seen)
    chosen, refusals = granted(chosen, named, target, card, rounds_seen)
    more = {"seed": seed, "round": settings.get("round"), "device": device, "download": settings.get("download", False)}
    numerics = numerics_of(settings, pick_device(device))
    return plan_of(target, chosen, card, budgets, settings, numerics=numerics, **more), refusals


def _refuse_training(path: Path, settings: Mapping[str, Any], *, recorded: bool) -> None:
    extra = set(settings) & {*FLAG_NAMES, "method"}
    if extra:
        listed = ", ".join(sorted(extra))
        why = "recorded elsewhere, so nothing is trained" if recorded else "the run is trained already"
        raise UserError(f"run {path}: {why}; drop {listed}")


# ---------------------------------------------------------------- the run that is trained first


def _first_config(plan: AttackPlan, settings: AttackSettings) -> RunConfig:
    """Return the configuration of the run that is trained first, once it is known to leave what is asked for."""
    target, card = plan.target, plan.card
    method = settings.get("method") or default_method(target)
    if method is None:
        where = f"target={shown(target)}"
        raise UserError(f"{where}: no method here uploads this; pass run or method")
    values = quick_settings(target) | {name: value for name, value in settings.items() if name in FLAG_NAMES}
    if any(made.needs.every_extractor for made in plan.attacks.values()):
        values["keep"] = EVERY_ROUND
    config = named_config(method, values, plan.seed)
    if card.attacker_data == "other_domain":
        refuse_foreign(card, config)
    if card.attacker_data == "same_domain" and not sets_images_aside(config):
        where = f"knowledge={shown({'attacker_data': card.attacker_data})}"
        raise UserError(f"{where}: no images are set aside for the attacker; pass auxiliary 0.5")
    kinds = METHODS.load(config.method).uploads
    if config.defenses:  # which may put another kind in the place of one
        kinds = prepare(config, pick_device("cpu"), download=settings.get("download", False)).uploads
    if target not in kinds:
        where, sent = f"target={shown(target)}", ", ".join(kinds) or "nothing"
        raise UserError(f"{where}: clients of {config.method!r} upload no {target!r}; they upload: {sent}")
    refuse_mixed(METHODS.load(config.method), target, family(config.models)[: config.clients])
    return config


def _takes_images(config: RunConfig, settings: Mapping[str, Any]) -> bool:
    """True where the uploaded network begins with a fully connected layer: then nothing is searched for behind it."""
    federation = prepare(config, pick_device("cpu"), download=settings.get("download", False))
    setup = federation.clients[0]
    shared = setup.scratch(federation.method.shared(setup.blueprint, setup.options))
    return next((values.ndim for values in shared.parameters() if values.ndim > 1), 0) == 2


def _grounds(
    runs: Sequence[Path], plans: Sequence[AttackPlan], named: Sequence[str], notices: Notices
) -> list[AttackContext]:
    """Return a context for each plan on its run; a line is said of a further setting that leaves nothing to do."""
    result = []
    for run, plan in zip(runs, plans, strict=True):
        try:
            result.append(_prepare(run, plan, named, notices))
        except UserError as error:
            if not plan.suffix or plan.reach is None:
                raise
            notices.left_out(f"{plan.reach.words}: {error}")
    return result


def _prepare(path: Path, plan: AttackPlan, named: Sequence[str], notices: Notices) -> AttackContext:
    """Return the context for a plan, without the inferences that the run leaves nothing to.

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
