"""The verb ``attack``: invert what clients upload, and show what that is worth beside a baseline."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from fedpriv.attacks.observation import ThreatModel
from fedpriv.defenses import build_defenses, parse_choice
from fedpriv.experiment.federation_settings import (
    EVERY_ROUND,
    FLAG_NAMES,
    FederationSettings,
    attacker_by_default,
    named_config,
    refuse_small,
    refuse_unknown,
)
from fedpriv.experiment.named_code import imports_what_is_named
from fedpriv.experiment.result_folders import request_of, results_folder
from fedpriv.experiment.scratch import place
from fedpriv.experiment.shares import work_off
from fedpriv.experiment.training import train_run
from fedpriv.experiment.verbs.result import AttackResult
from fedpriv.experiment.verbs.training import Run
from fedpriv.federation.defense import defense_facts
from fedpriv.federation.run_directory import RunConfig, RunDirectory, dataset_title
from fedpriv.integrations.run import RecordedRun, is_recorded
from fedpriv.methods import METHODS, default_method
from fedpriv.models import family
from fedpriv.pages.report import write_report
from fedpriv.pipeline.execute import AttackContext, check, open_run, run_plan
from fedpriv.pipeline.plan import (
    AdaptedSuite,
    AttackPlan,
    adapted_suite,
    attack_names,
    granted,
    numerics_of,
    plan_of,
    refuse_rounds,
    target_name,
    with_settings,
)
from fedpriv.pipeline.sweep import read_reach, sweep
from fedpriv.pipeline.uploads import attack_source
from fedpriv.scoring.records import InferenceResult, ReconstructionRecord
from fedpriv.scoring.redaction import RECORDED, read_rule
from fedpriv.sources.facts import read_facts
from fedpriv.sources.recorded import read_recording
from fedpriv.sources.run import prepare, refuse_mixed, rounds_with_networks
from fedpriv.sources.source import read_card
from fedpriv.util import files, folders
from fedpriv.util.code import allowed
from fedpriv.util.compute import pick_device
from fedpriv.util.config import texts
from fedpriv.util.errors import UserError, shown
from fedpriv.util.folders import occupied
from fedpriv.util.foreign import given_path
from fedpriv.util.parallel import SILENT, Listener, number_of_workers
from fedpriv.wire.kinds import payload_kind


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
        restarts: independent starts a target; the attack's own objective chooses.
        attack_option: hyperparameters of every attack that has them, or of one under its name.
        chunk_rows: rows (targets x restarts) at a time; bounds memory.
        control: also attack shuffled uploads, the negative control (default True).
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


@imports_what_is_named
def attack(
    run: Run | str | Path | None = None,
    *,
    target: str,
    attacks: str | Sequence[str] = (),
    knowledge: Mapping[str, Any] | Sequence[str] = (),
    seed: int = 0,
    out: str | Path | None = None,
    allow_code: str | Sequence[str] = (),
    listener: Listener = SILENT,
    **settings: Unpack[AttackSettings],
) -> AttackResult:
    """Attack one kind of upload of a run; score what comes out beside baselines and shuffled uploads.

    Without a run a federation is trained first, with quick settings of the target where none are given.

    Args:
        run: a finished run or its folder, or the folder of a recorded one; None trains one first.
        target: kind of upload to attack: ``fedpriv list targets``.
        attacks: names of attacks; none for all that fit.
        knowledge: changes to the threat model: extractor, labels, batch, batch_norm, attacker_data. Where
            images were set aside (``auxiliary``, ``public``), attacker_data is ``same_domain`` by default.
        seed: of targets, attacks and scores, and of the run that is trained.
        out: folder to make; None for a temporary result, which is gone with the returned object.
        allow_code: modules that may be imported although only a file names them (docs/reliability.md); one or several.
        listener: hears of the progress.
        settings: see :class:`AttackSettings`.

    Raises:
        UserError: naming the argument that is wrong, before anything is attacked.
    """
    refuse_unknown(settings, AttackSettings.__optional_keys__)
    target = target_name(target)
    path = run.path if isinstance(run, Run) else None if run is None else given_path("run", run)
    reading = contextlib.nullcontext() if path is None else folders.read(path)  # from the first look at it on
    whole: dict[str, Any] = {
        **settings,
        "attacks": texts("attacks", attacks),
        "knowledge": knowledge,
        "seed": seed,
        "listener": listener,
    }
    with files.sharing(settings.get("share_group", False)), reading:
        extra = sorted(set(settings) & {*FLAG_NAMES, "method"})
        if path is not None and extra:
            raise UserError(f"run {path}: the run is trained already; drop {', '.join(extra)}")
        if path is None or not is_recorded(path):
            if "facts" in settings:
                raise UserError("facts: is about runs that were recorded elsewhere, and run is none")
            return _attack(run, path, target, out, whole)
        if settings.get("resume"):
            raise UserError(f"run {path}: recorded elsewhere; drop resume, begin anew")
        folder, scratch = place(out)
        folders.refuse_overlap(folder, {"run": path})
        facts = read_facts(path, settings.get("facts"))
        source = read_recording(RecordedRun.open(path), facts, target, settings.get("round"), settings)
        whole["redact"] = read_rule(settings.get("redact"), RECORDED)
        records, scores, notices = attack_source(source, whole["attacks"], whole, folder)
        return AttackResult(folder, records, scores, notices, None, scratch)


def _attack(
    run: Run | str | Path | None, path: Path | None, target: str, out: str | Path | None, settings: Mapping[str, Any]
) -> AttackResult:
    named, listener, workers = settings["attacks"], settings["listener"], settings.get("workers", "auto")
    number_of_workers(workers)
    config = {**quick_settings(target), **settings} if path is None else RunDirectory.open(path).config
    card = read_card(settings["knowledge"], attacker_by_default(config))
    suite = _suite(target, named, path, settings)
    plan, refusals = _plan(target, suite, card, settings)
    series = read_reach(target, settings, on_run=path is not None)
    notices: list[str] = []

    def leave_out(reason: str) -> None:
        notices.append(f"left out: {reason}")
        listener.say(notices[-1])

    for line in suite.lines:
        listener.say(line)
    configs: tuple[RunConfig, ...] = ()
    plans: tuple[AttackPlan, ...] = (plan,)
    if path is None:
        first = _first_config(plan, settings)
        quick = (
            {"linear-layer"} if series and "linear-layer" in plan.attacks and _takes_images(first, settings) else set()
        )
        configs, plans = sweep(first, plan, series, {*named, *quick}, settings)
    for reason in refusals:
        leave_out(reason)
    # What an existing run cannot give is refused before a folder is made.
    grounds = [] if path is None else [_prepare(path, plan, named, leave_out)]
    folder, scratch = place(out)
    how = {name: settings.get(name, False) for name in ("resume", "force")}
    with results_folder(folder, request_of(plans, path, configs[0] if configs else None), run=path, **how):
        listener.resumable()
        command = listener.command or f"fedpriv.attack(target={target!r}, ...)"
        for item, item_config in zip(plans, configs, strict=path is None):
            where = folder / f"run{item.suffix}"
            _train_first(where, item_config, plan, workers, listener)
            try:
                grounds.append(_prepare(where, item, named, leave_out))
            except UserError as error:
                if not item.suffix or item.reach is None:
                    raise
                leave_out(f"{item.reach.words}: {error}")
        work_off(grounds, folder, named, command, workers, listener)
        records: dict[Path, ReconstructionRecord] = {}
        scores: dict[Path, InferenceResult] = {}
        for ground in grounds:
            more: dict[str, Any] = {"command": command, "named": named, "listener": listener, "refused": leave_out}
            attacked_by, measured = run_plan(folder, ground, **more)
            records, scores = records | attacked_by, scores | measured
        write_report(list(records), folder, list(scores))
    attacked = run if isinstance(run, Run) else Run(path or folder / "run", None if path else scratch, allowed())
    by_name = {index.name: record for index, record in records.items()}
    return AttackResult(
        folder, by_name, {k.name: item for k, item in scores.items()}, tuple(notices), attacked, scratch
    )


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
    target: str, suite: AdaptedSuite, card: ThreatModel, settings: Mapping[str, Any]
) -> tuple[AttackPlan, list[str]]:
    """Return the plan, checked as far as that needs no run, and a line for each attack that is left out."""
    refuse_small(settings, ("targets", "rounds_seen", "chunk_rows", "iterations", "restarts"))
    named, rounds_seen, device = settings["attacks"], settings.get("rounds_seen"), settings.get("device", "auto")
    chosen = with_settings(suite.names, settings, suite.options)
    refuse_rounds(named, chosen, target, rounds_seen)
    chosen, refusals = granted(chosen, named, target, card, rounds_seen)
    more = {"seed": settings["seed"], "round": settings.get("round"), "download": settings.get("download", False)}
    numerics = numerics_of(settings, pick_device(device))
    return plan_of(target, chosen, card, settings, numerics=numerics, device=device, **more), refusals


def _prepare(path: Path, plan: AttackPlan, named: Sequence[str], leave_out: Callable[[str], None]) -> AttackContext:
    """Return the context for a plan, without the inferences that the run leaves nothing to."""
    ground, early = open_run(path, plan, named)
    plan, late = check(ground, ground.plan, named)
    reasons = (*early, *late)
    if reasons and not plan.results():
        raise UserError(reasons[0])
    for reason in reasons:
        leave_out(reason)
    return replace(ground, plan=plan)


# ---------------------------------------------------------------- the run that is trained first


def quick_settings(target: str) -> dict[str, Any]:
    """Return settings of the run that is trained when none is given, unless the user sets them: small enough for a laptop.

    Weights are attacked after one step on one image, the textbook case; mixtures are taken apart over more rounds, in
    smaller steps, so that what the extractor makes of an image hardly moves from one round to the next.
    """
    kind = payload_kind(target)
    if kind.computed_from == "training":
        models = {"whole": "lenet-sigmoid", "extractor": "small-cnn"}.get(str(kind.network))
        one_step = {"rounds": 1, "lr": 0.1, "batch_size": 1, "local_steps": 1}
        return one_step | ({"models": models} if models else {})
    pace = {"rounds": 30, "lr": 0.03} if kind.computed_from == "mixture" else {"rounds": 10, "lr": 0.1}
    return pace | ({"public": 200} if kind.computed_from == "public" else {})


def _first_config(plan: AttackPlan, settings: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of the run that is trained first, once it is known to leave what is asked for."""
    target = plan.target
    method = settings.get("method") or default_method(target)
    if method is None:
        raise UserError(f"target={shown(target)}: no method here uploads this; pass run or method")
    values = quick_settings(target) | {name: value for name, value in settings.items() if name in FLAG_NAMES}
    if any(made.needs.every_extractor for made in plan.attacks.values()):
        values["keep"] = EVERY_ROUND
    config = named_config(method, values, plan.seed)
    if plan.card.attacker_data != "none" and not attacker_by_default(config):
        raise UserError(
            "knowledge attacker_data=same_domain: no images are set aside for the attacker; pass auxiliary 0.5"
        )
    kinds = METHODS.load(config.method).uploads
    if config.defenses:  # which may put another kind in the place of one
        kinds = prepare(config, pick_device("cpu"), download=settings.get("download", False)).uploads
    if target not in kinds:
        sent = ", ".join(kinds) or "nothing"
        raise UserError(
            f"target={shown(target)}: clients of {config.method!r} upload no {target!r}; they upload: {sent}"
        )
    refuse_mixed(METHODS.load(config.method), target, family(config.models)[: config.clients])
    return config


def _takes_images(config: RunConfig, settings: Mapping[str, Any]) -> bool:
    """True where the uploaded network begins with a fully connected layer: then nothing is searched for behind it."""
    federation = prepare(config, pick_device("cpu"), download=settings.get("download", False))
    setup = federation.clients[0]
    shared = setup.scratch(federation.method.shared(setup.blueprint, setup.options))
    return next((values.ndim for values in shared.parameters() if values.ndim > 1), 0) == 2


def _train_first(path: Path, config: RunConfig, plan: AttackPlan, workers: int | str, listener: Listener) -> None:
    """Train a run at its place, or finish the one that is there."""
    resume = occupied(path)
    if resume and RunDirectory.open(path).complete:
        return
    training = config.training
    steps = "" if training.max_steps is None else f", at most {training.max_steps} local step(s) a round"
    listener.say(
        f"no run: training {config.method} on {dataset_title(config)}: {config.clients} clients, models {config.models}, "
        f"{config.rounds} rounds, learning rate {training.learning_rate:g}, batch size {training.batch_size}{steps}"
    )
    how: dict[str, Any] = {"device": plan.device, "download": plan.download, "resume": resume, "clients_by": workers}
    train_run(path, config, listener=listener, **how)
