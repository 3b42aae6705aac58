"""The verbs ``attack`` and ``attack_uploads``: invert what clients upload, and show what that is worth beside a baseline."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from torch import nn

from fedpriv.api.federations import Run
from fedpriv.api.named_code import verb
from fedpriv.api.results import AttackResult
from fedpriv.defenses import build_defenses, parse_choice
from fedpriv.eval.redaction import RECORDED, read_rule
from fedpriv.federation.defense import defense_facts
from fedpriv.federation.run_directory import RunConfig, RunDirectory, dataset_title
from fedpriv.integrations.run import RecordedRun, is_recorded
from fedpriv.methods import METHODS, default_method
from fedpriv.models import family
from fedpriv.pipeline.execute import AttackContext, checked, open_run
from fedpriv.pipeline.plan import AttackPlan, target_name
from fedpriv.pipeline.result_folders import request_of, results_folder
from fedpriv.pipeline.suites import attack_source, carry_out, suite_of, suite_plans, work_off
from fedpriv.pipeline.sweep import read_reach, sweep
from fedpriv.sources.door import read_uploads
from fedpriv.sources.facts import read_facts
from fedpriv.sources.recorded import read_recording
from fedpriv.sources.run import prepare, refuse_mixed, rounds_with_networks
from fedpriv.sources.source import read_card
from fedpriv.study.saving import place
from fedpriv.study.settings import (
    EVERY_ROUND,
    FLAG_NAMES,
    FederationSettings,
    SearchSettings,
    attacker_by_default,
    named_config,
    refuse_small,
)
from fedpriv.study.training import train_run
from fedpriv.uploads.kinds import VECTORS, payload_kind
from fedpriv.util import folders
from fedpriv.util.compute import pick_device
from fedpriv.util.config import texts
from fedpriv.util.errors import UserError, shown
from fedpriv.util.foreign import given_path
from fedpriv.util.parallel import SILENT, Listener, number_of_workers
from fedpriv.util.registry import allowed

_NUMBERS = ("targets", "rounds_seen", "chunk_rows", "iterations", "restarts")


class AttackSettings(SearchSettings, FederationSettings, total=False):
    """Keyword arguments of an attack beside its target; and, where a run is trained first, of the federation."""

    method: str | None  # method to train when there is no run (default: the usual one for the target)
    round: int | None  # attack the uploads of this round (default: the last stored)
    reach: str | int | Sequence[str | int]  # local-work sweep over uploads of trained weights: images of one step and
    # ``epoch``, the client's own training, with commas between; or ``none``. Or a list. Default ``1,epoch``, with ``full``
    # ``1,4,16,epoch``, where a run of one round is trained first and neither its batches nor its steps are given
    facts: Mapping[str, Any] | str | Path  # TOML file of what the owner of a recorded run knows (default:
    # ``RUN.toml`` beside it). Or a mapping
    workers: int | str  # processes of one thread, with equal results; ``auto`` (default): one a core if work takes long
    full: bool  # run all attacks that fit the target; with ``resume`` and ``out``, go on from a first look
    download: bool  # fetch the data set if it is missing
    resume: bool  # go on with an interrupted attack in ``out``; repeat the other arguments


@verb(AttackSettings)
def attack(
    run: Run | str | Path | None = None,
    *,
    target: str,
    attacks: str | Sequence[str] = (),
    knowledge: Mapping[str, Any] | Sequence[str] = (),
    seed: int = 0,
    **settings: Unpack[AttackSettings],
) -> AttackResult:
    """Attack one kind of upload of a run; score what comes out beside baselines and shuffled uploads.

    Without a run a federation is trained first, with quick settings of the target where none are given.

    Args:
        run: folder of a finished run, or of a recorded one (default: one is trained first). Or a :class:`fedpriv.Run`.
        target: kind of upload to attack: ``fedpriv list targets``.
        attacks: names of attacks (default: a first look, the primary attack of each endpoint under both threat models).
        knowledge: changes to the threat model, which is then the only one, ``FIELD=VALUE``: extractor, labels, batch,
            batch_norm, attacker_data. Or a mapping. Where images were set aside (``auxiliary``, ``public``), attacker_data
            is ``same_domain``.
        seed: of targets, attacks and scores, and of the run that is trained.
        settings: see :class:`AttackSettings`, :class:`SearchSettings`, :class:`SuiteSettings`, :class:`Circumstances` and
            :class:`FederationSettings`.
    """
    target = target_name(target)
    path = run.path if isinstance(run, Run) else None if run is None else given_path("run", run)
    reading = contextlib.nullcontext() if path is None else folders.read(path)  # from the first look at it on
    whole: dict[str, Any] = {"listener": SILENT, **settings, "knowledge": knowledge, "seed": seed}
    whole["attacks"] = texts("attacks", attacks)
    with reading:
        extra = sorted(set(settings) & {*FLAG_NAMES, "method"})
        if path is not None and extra:
            raise UserError(f"run {path}: the run is trained already; drop {', '.join(extra)}")
        if path is None or not is_recorded(path):
            if "facts" in settings:
                raise UserError("facts: is about runs that were recorded elsewhere, and run is none")
            return _attack(run, path, target, whole)
        if settings.get("resume"):
            raise UserError(f"run {path}: recorded elsewhere; drop resume, begin anew")
        folder, scratch = place(settings.get("out"))
        folders.refuse_overlap(folder, {"run": path})
        facts = read_facts(path, settings.get("facts"))
        source = read_recording(RecordedRun.open(path), facts, target, settings.get("round"), settings)
        whole["redact"] = read_rule(settings.get("redact"), RECORDED)
        return AttackResult(folder, *attack_source(source, whole, folder), None, scratch)


def _attack(run: Run | str | Path | None, path: Path | None, target: str, settings: Mapping[str, Any]) -> AttackResult:
    named, listener, workers = settings["attacks"], settings["listener"], settings.get("workers", "auto")
    number_of_workers(workers)
    refuse_small(settings, _NUMBERS)
    config = {**quick_settings(target), **settings} if path is None else RunDirectory.open(path).config
    card = read_card(settings["knowledge"], attacker_by_default(config))
    chosen, lines = _suite(target, path, settings)
    download = settings.get("download", False)
    plans, refusals = suite_plans(target, chosen, card, settings, round=settings.get("round"), download=download)
    plan = plans[0]
    series = read_reach(target, settings, on_run=path is not None)
    notices: list[str] = []

    def leave_out(reason: str) -> None:
        notices.append(f"left out: {reason}")
        listener.say(notices[-1])

    for line in lines:
        listener.say(line)
    configs: tuple[RunConfig, ...] = ()
    if path is None:
        first = _first_config(plan, settings)
        everywhere = {*named}
        if series and "linear-layer" in plan.attacks and _takes_images(first, download=download):
            everywhere.add("linear-layer")
        swept = [sweep(first, each, series, everywhere, settings) for each in plans]
        # At more local work than the least, labels that have to be inferred as well only cost time.
        pairs = [
            (config, replace(each, attacks={}) if each.threat and place else each)
            for place, (config, *group) in enumerate(zip(swept[0][0], *(made for _, made in swept), strict=True))
            for each in group
        ]
        configs, plans = zip(*(pair for pair in pairs if pair[1].results()), strict=True)
    for reason in refusals:
        leave_out(reason)
    # What an existing run cannot give is refused before a folder is made.
    command = listener.command or f"fedpriv.attack(target={target!r}, ...)"
    context = {"named": named, "command": command, "listener": listener}
    grounds = [] if path is None else [_prepare(path, each, leave_out, context) for each in plans]
    folder, scratch = place(settings.get("out"))
    how = {name: settings.get(name, False) for name in ("resume", "force")}
    with results_folder(folder, request_of(plans, path, configs[0] if configs else None), run=path, **how):
        listener.resumable()
        for item, item_config in zip(plans, configs, strict=path is None):
            where = folder / f"run{item.run_suffix}"
            _train_first(where, item_config, plan, workers, listener)
            try:
                grounds.append(_prepare(where, item, leave_out, context))
            except UserError as error:
                if not item.suffix or item.reach is None:
                    raise
                leave_out(f"{item.reach.words}: {error}")
        work_off(grounds, folder, workers)
        results = carry_out(folder, grounds, refused=leave_out)
    attacked = run if isinstance(run, Run) else Run(path or folder / "run", None if path else scratch, allowed())
    return AttackResult(folder, *results, tuple(notices), attacked, scratch)


def _suite(target: str, run: Path | None, settings: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the attacks that are named, or all that fit a target, adapted to the defenses of the run."""
    if run is not None:
        there = RunDirectory.open(run)
        sent, defenses = there.captured_rounds(), there.config.defenses
        rounds, every = len(sent), len(rounds_with_networks(there, target)) == len(sent)
    else:
        planned, every = settings.get("rounds", quick_settings(target)["rounds"]), True
        rounds = planned if isinstance(planned, int) else 1  # anything else is refused where the run is configured
        defenses = tuple(parse_choice(text) for text in texts("defense", settings.get("defense", ())))
    facts = [defense_facts(made) for made in build_defenses(defenses)]
    return suite_of(target, settings, facts, rounds, every_extractor=every)


def _prepare(
    path: Path, plan: AttackPlan, leave_out: Callable[[str], None], context: Mapping[str, Any]
) -> AttackContext:
    """Return the context for a plan, without the inferences that the run leaves nothing to."""
    ground, early = open_run(path, plan, **context)
    ground, late = checked(ground)
    reasons = (*early, *late)
    if reasons and not ground.plan.results():
        raise UserError(reasons[0])
    for reason in reasons:
        leave_out(reason)
    return ground


KEPT = 10
"""Last rounds whose checkpoints a white-box attacker of representations has."""


def quick_settings(target: str) -> dict[str, Any]:
    """Return settings of the run that is trained when none is given, unless the user sets them: small enough for a laptop.

    Twenty clients decide where ten do not; half of a client's images are held out for membership, and a fifth of all are the
    attacker's and the baselines'. Weights are attacked after one step on one image, the textbook case; mixtures are taken
    apart over more rounds, in smaller steps, so that what the extractor makes of an image hardly moves in between.
    """
    kind = payload_kind(target)
    who = {"clients": 20, "auxiliary": 0.2, "train_fraction": 0.5}
    if kind.computed_from == "training":
        models = {"whole": "lenet-sigmoid", "extractor": "small-cnn"}.get(str(kind.network))
        one_step = {"rounds": 1, "lr": 0.1, "batch_size": 1, "local_steps": 1}
        return who | one_step | ({"models": models} if models else {})
    pace = {"rounds": 30, "lr": 0.03} if kind.computed_from == "mixture" else {"rounds": 10, "lr": 0.1}
    pace |= {"evaluate_every": 10, "checkpoint_every": 10}
    return who | pace | ({"public": 200} if kind.computed_from == "public" else {})


def _first_config(plan: AttackPlan, settings: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of the run that is trained first, once it is known to leave what is asked for."""
    target = plan.target
    method = settings.get("method") or default_method(target)
    if method is None:
        raise UserError(f"target={shown(target)}: no method here uploads this; pass run or method")
    values = quick_settings(target) | {name: value for name, value in settings.items() if name in FLAG_NAMES}
    if any(made.needs.every_extractor for made in plan.attacks.values()):
        values["keep"] = EVERY_ROUND
    elif target in VECTORS and isinstance(values["rounds"], int):
        values.setdefault("keep", [*range(max(1, values["rounds"] - KEPT + 1), values["rounds"] + 1)])
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


def _takes_images(config: RunConfig, *, download: bool) -> bool:
    """True where the uploaded network begins with a fully connected layer: then nothing is searched for behind it."""
    federation = prepare(config, pick_device("cpu"), download=download)
    setup = federation.clients[0]
    shared = setup.scratch(federation.method.shared(setup.blueprint, setup.options))
    return next((values.ndim for values in shared.parameters() if values.ndim > 1), 0) == 2


def _train_first(path: Path, config: RunConfig, plan: AttackPlan, workers: int | str, listener: Listener) -> None:
    """Train a run at its place, or finish the one that is there."""
    resume = folders.occupied(path)
    if resume and RunDirectory.open(path).complete:
        return
    training = config.training
    steps = "" if training.max_steps is None else f", at most {training.max_steps} local step(s) a round"
    listener.say(
        f"no run: training {config.method} on {dataset_title(config)}: {config.clients} clients, models {config.models}, "
        f"{config.rounds} rounds, learning rate {training.learning_rate:g}, batch size {training.batch_size}{steps}"
    )
    how: dict[str, Any] = {"device": plan.device, "download": plan.download, "resume": resume, "workers": workers}
    train_run(path, config, listener=listener, **how)


class UploadSettings(SearchSettings, total=False):
    """Keyword arguments beside uploads, extractor, images, labels and auxiliary images: more evidence, and circumstances."""

    model: nn.Module  # architecture of uploaded weights or gradients, a ``torch.nn.Module`` from images
    # ``(n, c, h, w)`` to logits ``(n, C)``. It is copied. The weights of a :class:`Gradient` are its weights
    normalise: (
        Any  # (mean, std), numbers or one a channel, where training normalised: networks get (images - mean) / std
    )
    head: Any  # private head behind an extractor, a mapping or class outputs: one ``torch.nn.Linear``, or one a client
    batch: Any  # :class:`BatchFacts` of the local steps, one or one a client. Of a gradient: one step on all images
    broadcasts: Any  # payloads (or a ``state_dict``) that clients answered, for all or one a client; of rounds, a list
    earlier_extractors: Any  # of several rounds, the extractors before the last: a list with one entry a round
    defense: Any  # what clients did to uploads before they left, for attackers who know it (they learn behind it):
    # texts ``NAME[:KEY=VALUE,...]`` as of ``fedpriv train``. Uploads are handed in as they were sent
    weights: Any  # ``(n,)`` each image's share in a mixture, one a client (default: by class, as the upload says)
    groups: Sequence[int | str] | Mapping[int, int | str]  # of clients that are not independent, each one's unit (a
    # person, a hospital), a list or a mapping by client: intervals and their number of units then go by group
    auxiliary_labels: Any  # ``(p,)`` their classes; without them baselines know none, and no image is re-identified
    held_out: Any  # each client's images that it did not train on, of the classes that it did: a pair (images ``(n, c,
    # h, w)``, labels ``(n,)``) or a data set a client, a list or a mapping. They are the non-members of membership
    # inference, without which it claims no leak
    public: Any  # the attacker's own images ``(p, c, h, w)`` in [0, 1], where an attack learns from some
    public_labels: Any  # ``(p,)`` their classes; none where ``public`` is a data set
    n_classes: int  # C (default: what uploads, model and labels say)
    knowledge: Mapping[str, Any] | Sequence[str]  # grants beside those of what is handed in; or texts ``GRANT=VALUE``
    dataset: str  # what records call the images (default ``own images``)
    method: str  # what records call the training loop (default ``own uploads``)
    seed: int  # of targets, attacks, auxiliary images and scores (default 0)
    full: bool  # run all attacks that fit the target, not only those of the first look


@verb(UploadSettings)
def attack_uploads(
    uploads: Any,
    *,
    target: str,
    images: Any,
    auxiliary: Any,
    labels: Any = None,
    extractor: Any = None,
    attacks: str | Sequence[str] = (),
    **settings: Unpack[UploadSettings],
) -> AttackResult:
    """Attack uploads that were made elsewhere; score what comes out beside baselines and shuffled uploads.

    Attacks see the uploads and what the threat model assumes; images, labels and auxiliary images are for the scores alone,
    except that labels of a gradient's batch are granted unless ``knowledge={"labels": "inferred"}``.

    Args:
        uploads: one upload, a list with one a client, or a mapping from client numbers. An upload is a payload
            (``fedpriv.Prototypes``, ...), a tuple of payloads, a tensor or NumPy array where its kind is obvious,
            ``{class: vector}``, :class:`Update` or :class:`Gradient`. Of several rounds: a list with one list or mapping a
            round, the oldest first; the last round is attacked.
        target: kind of upload to attack: ``fedpriv list targets``.
        images: the private images behind each client's last upload, one a client: ``(n, c, h, w)`` floats in [0, 1], or
            bytes, as a tensor, an array or a list of images; or a ``torch.utils.data.Dataset`` of pairs (image, label).
        auxiliary: such images ``(p, c, h, w)`` that no upload was computed from: baselines are made of them.
        labels: ``(n,)`` class of each image, one a client; may be missing where uploads name it, or data sets have it.
        extractor: a ``torch.nn.Module`` from images ``(n, c, h, w)`` in [0, 1] to representations ``(n, d)``, one or one a
            client. It is copied and used in evaluation mode. None where the attacker has none.
        attacks: names of attacks and inferences; none for a first look (see :func:`fedpriv.attack`).
        settings: see :class:`UploadSettings`, :class:`SearchSettings`, :class:`SuiteSettings`, :class:`Circumstances`; grids
            and page of a temporary result are drawn when it is shown or saved.
    """
    target = target_name(target)
    refuse_small(settings, _NUMBERS)
    refuse_small(settings, ("n_classes",), 2)
    refuse_small(settings, ("seed",), 0)
    whole = {**settings, "attacks": texts("attacks", attacks)}
    source = read_uploads(uploads, target, images, labels, extractor, auxiliary, settings)
    folder, scratch = place(settings.get("out"))
    return AttackResult(folder, *attack_source(source, whole, folder, pages=scratch is None), None, scratch)
