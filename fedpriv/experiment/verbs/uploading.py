"""The verb ``attack_uploads``: attack what the clients of another training loop would upload, and score it as runs are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

from torch import Tensor, nn

from fedpriv.attacks.contract import AttackProblem, Declared
from fedpriv.attacks.observation import KnowledgeCard
from fedpriv.attacks.trained import Trained
from fedpriv.datasets.types import Samples
from fedpriv.evidence.guesses import with_guesses
from fedpriv.experiment.asked import plan_of, with_settings
from fedpriv.experiment.execution import upload_facts
from fedpriv.experiment.federation_settings import refuse_small, refuse_unknown, texts
from fedpriv.experiment.inference import EVERYTHING, measure
from fedpriv.experiment.plan import (
    AttackPlan,
    attack_names,
    granted,
    refuse_rounds,
    target_name,
)
from fedpriv.experiment.scored import Answers, attack_and_score
from fedpriv.experiment.scratch import place
from fedpriv.experiment.suite import Execution
from fedpriv.experiment.uploads.evidence import Handed, derive_card, make_evidence
from fedpriv.experiment.uploads.handed import drawn, read_handed, read_strangers
from fedpriv.experiment.uploads.truth import own_case, own_truths
from fedpriv.experiment.verbs.result import AttackResult
from fedpriv.pages.report import write_report
from fedpriv.scoring.inference import check
from fedpriv.scoring.inference_case import InferenceCase
from fedpriv.scoring.judge import JUDGED
from fedpriv.scoring.records import About, InferenceResult, Provenance, ReconstructionRecord
from fedpriv.scoring.records.made import Budget
from fedpriv.util import folders
from fedpriv.util.arguments import argument
from fedpriv.util.config import plain
from fedpriv.util.errors import UserError
from fedpriv.util.listener import SILENT, Listener
from fedpriv.util.pairs import mapping


class UploadSettings(TypedDict, total=False):
    """Keyword arguments beside uploads, extractor, images, labels and strangers: more evidence, and circumstances.

    Attributes:
        model: architecture of uploaded weights or gradients, a ``torch.nn.Module`` from images ``(n, c, h, w)`` to logits
            ``(n, C)``. It is copied. The weights of a :class:`Gradient` are its weights.
        head: private head behind an extractor, a mapping or class outputs: a ``torch.nn.Linear``, one or one a client.
        batch: :class:`BatchFacts` of the local steps, one or one a client. Default of a gradient: one step on all images.
        broadcasts: payloads that clients answered, one message for all or one a client; of several rounds a list of these.
        weights: ``(n,)`` each image's share in a mixture, one a client (default: by class, as the upload says).
        groups: label of the independent unit that each client belongs to (a person, a hospital), a list in the order of the
            clients or a mapping by client, where clients are not independent: intervals and their number of units then go
            by group.
        rounds_seen: rounds of uploads that attacks across rounds use, the last ones (default: all that are handed in).
        stranger_labels: ``(p,)`` classes of the strangers; without them floors know no classes, no image is identified among
            decoys, which have to be of its class, and membership inference has no non-members.
        public: the attacker's own images ``(p, c, h, w)`` in [0, 1], where an attack learns from some.
        public_labels: ``(p,)`` their classes.
        n_classes: C (default: what uploads, model and labels say).
        knowledge: grants other than those that follow from what is handed in: a mapping, or texts ``GRANT=VALUE``.
        dataset: what records call the images (default ``own images``).
        method: what records call the training loop (default ``own uploads``).
        targets: how many targets at most (default 48).
        iterations: budget of every attack that has one, in its own unit.
        budget: run every attack that has a budget once with each of these.
        restarts: independent starts a target.
        attack_option: hyperparameters of every attack that has them, or of one under its name.
        chunk_rows: rows at a time; bounds memory, and moves results in the last digits at most.
        control: attack permuted uploads too, where there are two clients at least (default True).
        device: ``auto`` (default), ``cpu``, ``cuda`` or ``cuda:N``.
        seed: of targets, attacks, strangers and scores (default 0).
        out: folder to make; None for a temporary result, which is gone with the returned object.
        force: replace ``out`` if it exists.
        listener: hears of the progress.
    """

    model: nn.Module
    head: Any
    batch: Any
    broadcasts: Any
    weights: Any
    groups: Sequence[int | str] | Mapping[int, int | str]
    rounds_seen: int
    stranger_labels: Any
    public: Tensor
    public_labels: Any
    n_classes: int
    knowledge: Mapping[str, Any] | Sequence[str]
    dataset: str
    method: str
    targets: int
    iterations: int | None
    budget: str | Sequence[int] | None
    restarts: int | None
    attack_option: Mapping[str, Any] | Sequence[str]
    chunk_rows: int | None
    control: bool
    device: str
    seed: int
    out: str | Path | None
    force: bool
    listener: Listener


def attack_uploads(
    uploads: Any,
    *,
    target: str,
    images: Any,
    strangers: Tensor,
    labels: Any = None,
    extractor: Any = None,
    attacks: str | Sequence[str] = (),
    **settings: Unpack[UploadSettings],
) -> AttackResult:
    """Attack uploads that were made elsewhere; score what comes out beside blind guesses and permuted uploads.

    Attacks see the uploads and what the knowledge card grants; images, labels and strangers are for the scores alone,
    except that labels of a gradient's batch are granted unless ``knowledge={"labels": "inferred"}``.

    Args:
        uploads: one upload, a list with one a client, or a mapping from client numbers. An upload is a payload
            (``fedpriv.Prototypes``, ...), a tuple of payloads, a tensor where its kind is obvious, :class:`Update`,
            :class:`Gradient`, a pair of state dicts (before, after), or a mapping from parameter names to gradients. Of
            several rounds: a list with one list or mapping a round, the oldest first; the last round is attacked.
        target: kind of upload to attack: ``fedpriv list targets``.
        images: the private images behind each client's last upload, ``(n, c, h, w)`` floats in [0, 1], one tensor a client.
        strangers: ``(p, c, h, w)`` floats in [0, 1] that no upload was computed from: blind guesses are made of them.
        labels: ``(n,)`` class of each image, one a client; may be missing where uploads name it.
        extractor: a ``torch.nn.Module`` from images ``(n, c, h, w)`` in [0, 1] to representations ``(n, d)``, one or one a
            client. It is copied and used in evaluation mode. None where the attacker has none.
        attacks: names of attacks and inferences; none for all that fit and are granted.
        settings: see :class:`UploadSettings`.

    Raises:
        UserError: naming the argument, what was given and what would be right, before anything is attacked.
    """
    refuse_unknown(settings, UploadSettings.__optional_keys__)
    target, listener, seed = target_name(target), settings.get("listener", SILENT), settings.get("seed", 0)
    named = texts("attacks", attacks)
    refuse_small(settings, ("targets", "rounds_seen", "iterations", "restarts", "chunk_rows"))
    refuse_small(settings, ("n_classes",), 2)
    refuse_small(settings, ("seed",), 0)
    handed = read_handed(uploads, target, images, labels, extractor, settings)
    outside = read_strangers(strangers, settings.get("stranger_labels"), handed)
    plan, notices = _plan(target, named, handed, settings)
    trained = Trained()
    cases, silent = _cases(plan, named, handed, outside, trained)
    notices += silent
    if not (plan.attacks or cases):
        raise UserError(f"{argument('target', target)}: nothing can be attacked: {notices[0]}")
    folder, scratch = place(settings.get("out"))
    for line in notices:
        listener.say(line)
    records: dict[str, ReconstructionRecord] = {}
    scores: dict[str, InferenceResult] = {}
    pool, scorers = drawn(outside, seed), Trained()
    with folders.output(folder, "attacks", force=settings.get("force", False)):
        for job in plan.jobs():
            card = plan.card_for(job, handed.rounds)
            evidence = make_evidence(handed, card, job.attack, plan.n_targets or job.attack.most_targets, seed, trained)
            asked = AttackProblem(evidence.observations, evidence.knowledge, evidence.targets)
            about = About(
                **dict(_provenance(handed, job.attack, card, settings)),
                caveat=job.attack.caveat(asked),
                budget=None if job.budget is None else Budget(field=str(job.attack.budget), value=job.budget),
                device=str(handed.device),
            )
            unit = job.attack.unit
            found = own_truths(handed, pool, evidence.targets, unit)
            truths = with_guesses(found, evidence, target, unit, device=handed.device, kept=scorers)
            execution = Execution(seed, handed.device, plan.chunk_rows, kind=target, trained=trained, say=listener.say)
            records[job.folder] = attack_and_score(
                folder / job.folder, job, evidence, execution, partial(Answers, truths, about), listener
            )
        for name, case in cases.items():
            inference = plan.inferences[name]
            card = replace(inference.card(plan.card), rounds_seen=handed.rounds if inference.reads_every_round else 1)
            with listener.progress(f"{name} on {target}"):
                made = _provenance(handed, inference, card, settings)
                record = measure(folder / name, inference, case, made, strict=name in named, listener=listener)
            scores |= {} if record is None else {name: record}
        write_report([folder / name for name in records], folder, [folder / name for name in scores])
    return AttackResult(folder, records, scores, tuple(notices), None, scratch)


def _provenance(handed: Handed, made: Declared, card: KnowledgeCard, settings: Mapping[str, Any]) -> Provenance:
    written = f"fedpriv.attack_uploads(..., target={handed.target!r}, attacks={made.name!r})"
    return Provenance(
        target=handed.target,
        attack=made.name,
        attack_version=made.version,
        method=settings.get("method", "own uploads"),
        dataset=settings.get("dataset", "own images"),
        knowledge=card,
        seed=settings.get("seed", 0),
        groups=handed.groups,
        upload=upload_facts(handed.target),
        options=plain(made),
        command=settings.get("listener", SILENT).command or written,
    )


def _cases(
    plan: AttackPlan, named: Sequence[str], handed: Handed, strangers: Samples, trained: Trained
) -> tuple[dict[str, InferenceCase], list[str]]:
    """Return the case that each inference is tried on, and a line for each that has nothing to ask or to tell apart."""
    found: dict[str, InferenceCase] = {}
    lines: list[str] = []
    for name, inference in plan.inferences.items():
        try:
            if inference.asks == "images" and bool((strangers.labels < 0).all()):
                raise UserError(
                    f"{argument('stranger_labels')}: missing; attack {name!r} tells members from strangers of their class"
                )
            evidence = make_evidence(handed, inference.card(plan.card), inference, EVERYTHING, plan.seed, trained)
            case = own_case(handed, evidence, strangers, plan.seed)
            check(inference, case)
        except UserError as error:
            if name in named:
                raise
            lines.append(f"left out: {error}")
        else:
            found[name] = case
    return found, lines


def _plan(
    target: str, named: tuple[str, ...], handed: Handed, settings: Mapping[str, Any]
) -> tuple[AttackPlan, list[str]]:
    """Return the plan of attacks, and a line for each thing that is left out."""
    card = derive_card(handed, mapping("knowledge", settings.get("knowledge", ())))
    names = attack_names(target, named)
    rounds_seen = settings.get("rounds_seen")
    if rounds_seen is not None and rounds_seen > handed.rounds:
        where = argument("rounds_seen", rounds_seen)
        raise UserError(f"{where}: {handed.rounds} round(s) were handed in; expected no more")
    built, budgets = with_settings(names, settings)
    refuse_rounds(named, built, target, rounds_seen)
    across = {name: made.needs.min_rounds for name, made in built.items() if made.needs.min_rounds > handed.rounds}
    early = [
        f"{argument('uploads')}: of {handed.rounds} round(s), but attack {name!r} uses {least}; expected a list of rounds, "
        "each a list of uploads"
        for name, least in across.items()
    ]
    if early and (named or len(across) == len(built)):
        raise UserError(early[0])
    there = {name: made for name, made in built.items() if name not in across}
    chosen, refusals = granted(there, named, target, card, rounds_seen)
    notices = [f"left out: {line}" for line in (*early, *refusals)]
    if settings.get("control", True) and len(handed.newest) == 1:
        notices.append("no negative control: permuting uploads takes two clients at least")
    if any(name in JUDGED for name in chosen):
        notices.append("no independent classifier judges class images: it is trained on a run's data")
    return plan_of(target, chosen, card, budgets, settings, seed=settings.get("seed", 0)), notices
