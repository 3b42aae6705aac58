"""Attacks on a recorded run: its messages and its owner's facts, handed in as uploads from elsewhere are."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from fedpriv.defenses import build_defenses, parse_choice
from fedpriv.defenses.local_dp import LocalDp
from fedpriv.evidence.stages import round_stage
from fedpriv.experiment.asked import with_settings
from fedpriv.experiment.federation_settings import FLAG_NAMES
from fedpriv.experiment.plan import attack_names
from fedpriv.experiment.recorded.facts import Told, normalized, read_facts
from fedpriv.experiment.recorded.uploads import Gathered, attackable_rounds, gather_uploads
from fedpriv.experiment.scratch import place
from fedpriv.experiment.uploads.attacking import Origin, attack_handed
from fedpriv.experiment.uploads.evidence import Handed, derive_card
from fedpriv.experiment.uploads.handed import read_handed, read_strangers
from fedpriv.experiment.verbs.result import AttackResult
from fedpriv.federation.defense import Defense, DefensePipeline, defense_facts
from fedpriv.federation.summary import DefenseFacts
from fedpriv.integrations.partitions import Partition, default_folder, read_partitions
from fedpriv.integrations.run import RecordedRun
from fedpriv.pages.report import write_report
from fedpriv.scoring.records import InferenceResult, ReconstructionRecord
from fedpriv.scoring.records.made import Stage
from fedpriv.scoring.redaction import RECORDED, read_rule
from fedpriv.util import folders
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.util.files import remove
from fedpriv.util.foreign import given_path
from fedpriv.util.listener import Listener
from fedpriv.util.pairs import mapping
from fedpriv.wire.kinds import LAYERS, NETWORKS

NOT_HERE: Final = {
    "stages": "name a round",
    "resume": "begin anew",
    "control_every_budget": "the control is run at the largest budget",
}
"""Settings of an attack that a recorded run does not take -> what to do instead."""

SUMMING: Final = "secure-aggregation"


def attack_recorded(
    path: Path,
    target: str,
    named: tuple[str, ...],
    knowledge: Any,
    seed: int,
    out: str | Path | None,
    listener: Listener,
    settings: Mapping[str, Any],
) -> AttackResult:
    """Attack one kind of upload of a recorded run; arguments as :func:`fedpriv.attack` has them.

    Raises:
        UserError: naming the argument, the fact or the file that is wrong or missing, before a folder is made.
    """
    _refuse_settings(path, settings)
    if out is not None:
        folders.refuse_overlap(given_path(argument("out"), out), {argument("run"): path})
    given = {**settings, "knowledge": knowledge, "seed": seed, "out": out, "listener": listener}
    run, told = RecordedRun.open(path), read_facts(path, settings.get("facts"))
    if not given.pop("by_round", False):
        return attack_round(run, told, target, named, given)
    folder, scratch = place(out)
    try:
        with folders.output(folder, "attacks", force=bool(given.pop("force", False))):
            return replace(attack_rounds(run, told, target, named, {**given, "out": folder}), _scratch=scratch)
    except UserError:
        if folder.is_dir() and not folders.occupied(folder):
            remove(folder)
        raise


def attack_round(
    run: RecordedRun,
    told: Told,
    target: str,
    named: tuple[str, ...],
    settings: Mapping[str, Any],
    stage: Stage | None = None,
) -> AttackResult:
    """Attack one round of a recorded run.

    Args:
        run: the recorded run.
        told: what its owner says of it.
        target: kind of upload.
        named: attacks that were asked for by name.
        settings: of :func:`fedpriv.attack`, its other arguments among them.
        stage: the round, as records name it where several are attacked; None where one is.
    """
    path = run.path
    defenses = build_defenses([parse_choice(text) for text in told.facts.defense])
    model = _model(told) if target in NETWORKS | LAYERS else None
    summed = DefensePipeline(defenses).server_view == "sum"
    gathered = gather_uploads(run, told, target, settings.get("round"), model, summed=summed)
    if gathered.summed and not summed:
        defenses = (*defenses, *build_defenses([parse_choice(SUMMING)]))
    clients, unknown = _clients(run, told, gathered)
    handed, own = _handed(told, target, gathered, clients, model, settings)
    outside, labels = _strangers(told)
    strangers = read_strangers(outside, labels, handed)
    alike = {"strangers_alike": told.facts.strangers_alike}
    given = {**settings, **own, **alike, "redact": read_rule(settings.get("redact"), RECORDED)}
    lines, facts = _accounts(defenses, len(run.rounds()))
    costs = _costs(handed, told, named, given)
    wrong = [f"recorded: {note.told}" for note in run.notes() if note.code == "stopped"]
    return attack_handed(
        handed,
        strangers,
        named,
        given,
        Origin(
            method=told.facts.method or f"recorded ({run.framework})",
            dataset=told.facts.dataset or Origin.dataset,
            command=f"fedpriv.attack({str(path)!r}, target={target!r}, round={handed.last})",
            defenses=facts,
            notices=(*wrong, *lines, *gathered.notices, *unknown, *costs),
            stage=stage,
        ),
    )


def attack_rounds(
    run: RecordedRun, told: Told, target: str, named: tuple[str, ...], settings: Mapping[str, Any]
) -> AttackResult:
    """Attack every round of a recorded run that can be, each in a folder of its own, and report on all together.

    Arguments as :func:`attack_round` has them; ``out`` among the settings is a folder that is there.

    Raises:
        UserError: when a round is named beside, or nothing of any round can be attacked.
    """
    if settings.get("round") is not None:
        raise UserError(f"{argument('by_round')} and {argument('round')} exclude each other: every round is attacked")
    defenses = DefensePipeline(build_defenses([parse_choice(text) for text in told.facts.defense]))
    numbers = attackable_rounds(run, told, summed=defenses.server_view == "sum")
    folder = Path(settings["out"])
    records: dict[str, ReconstructionRecord] = {}
    scores: dict[str, InferenceResult] = {}
    notices: list[str] = []
    refused: UserError | None = None
    for number in numbers:
        stage = Stage(name=round_stage(number), round=number, of=len(run.rounds()), accuracy={})
        home = {"round": number, "out": folder / stage.name}
        try:
            made = attack_round(run, told, target, named, {**settings, **home}, stage)
        except UserError as error:  # of this round; what is wrong with all is so with the first, too
            notices.append(f"left out: round {number}: {error}")
            refused = refused or error
            continue
        records |= {f"{stage.name}/{name}": record for name, record in made.records.items()}
        scores |= {f"{stage.name}/{name}": record for name, record in made.scores.items()}
        notices += [line for line in made.notices if line not in notices]
    if not (records or scores):
        raise refused or UserError(f"{run.path}: no round in which clients uploaded anything is recorded")
    write_report([folder / name for name in records], folder, [folder / name for name in scores])
    return AttackResult(folder, records, scores, tuple(notices), None)


def _refuse_settings(path: Path, settings: Mapping[str, Any]) -> None:
    where = f"{argument('run')} {path}: recorded elsewhere"
    extra = sorted(set(settings) & {*FLAG_NAMES, "method"})
    if extra:
        raise UserError(f"{where}, so nothing is trained; drop {', '.join(argument(name) for name in extra)}")
    for name, instead in NOT_HERE.items():
        if settings.get(name):
            raise UserError(f"{where}; {argument(name)} is for runs of fedpriv: drop it, {instead}")
    if settings.get("workers", "auto") not in ("auto", 1, "1"):
        raise UserError(f"{where}; attacks on it run in one process: drop {argument('workers')}")


def _model(told: Told) -> nn.Module:
    if told.facts.model is None:
        raise UserError(
            f"{told.where}: no model (a function of no argument, package.module:NAME); attacks on weights need its "
            "architecture"
        )
    made = told.call("model")
    if not isinstance(made, nn.Module):
        raise UserError(f"{told.where}: model: returned {type(made).__name__}; expected a torch.nn.Module")
    found: nn.Module = normalized(made, told.facts.normalize)
    return found


# ---------------------------------------------------------------- clients and their data


def _clients(
    run: RecordedRun, told: Told, gathered: Gathered
) -> tuple[dict[str, tuple[int, Partition]], tuple[str, ...]]:
    """Return client -> its number and its partition, of those whose data is known, and a line for the others.

    Clients are numbered by their partitions where these are whole numbers, else in the order of the partitions' names.

    Raises:
        UserError: when nothing says whose data is whose, or two clients are said to hold the same.
    """
    seen = list(dict.fromkeys(client for sent in gathered.uploads for client in sent))
    folder = default_folder() if told.facts.truth is None else told.folder / told.facts.truth
    truth = read_partitions(folder)
    known = {**({one: one for one in seen} if run.named_by_data else {}), **truth, **told.facts.partitions}
    held = {client: known[client] for client in seen if client in known}
    newest = [client for client in gathered.uploads[-1] if client in held]
    if not newest:
        others = f"{folder} names {len(truth)} other client(s)" if truth else f"{folder} has no truth of any client"
        raise UserError(
            f"{run.path}: nothing says which data client {next(iter(gathered.uploads[-1]))} holds: {others}; for an audit, "
            f"run clients with mods=[fedpriv.flower.truth], or say so in partitions of {told.where}"
        )
    owners: dict[Partition, str] = {}
    for client, partition in held.items():
        if partition in owners:
            raise UserError(
                f"{told.where}: clients {owners[partition]} and {client} are both said to hold {partition!r}"
            )
        owners[partition] = client
    whole = all(isinstance(one, int) and one >= 0 for one in owners)
    order = sorted(owners, key=lambda one: (0, one, "") if isinstance(one, int) else (1, 0, one))
    numbers = {one: int(one) if whole else place for place, one in enumerate(order)}
    lines = [f"left out: nothing says which data client {client} holds" for client in seen if client not in held]
    return {client: (numbers[one], one) for client, one in held.items()}, tuple(lines)


@dataclass
class _Data:
    """Images of clients as the owner's function returns them, with the facts of their local steps."""

    images: dict[int, Any]
    labels: dict[int, Any]
    batches: dict[int, Any]


def _data(told: Told, clients: Mapping[str, tuple[int, Partition]], round_: int, *, trained: bool) -> _Data:
    if told.facts.data is None:
        raise UserError(
            f"{told.where}: no data (a function of a partition that returns images and labels, package.module:NAME); "
            "nothing can be scored without"
        )
    found, steps = _Data({}, {}, {}), told.facts.batch if trained else None
    for number, partition in clients.values():
        images, labels = told.images("data", partition, round_)
        if steps is not None and isinstance(images, torch.Tensor) and len(images):
            # An image that two epochs used counts twice.
            times = steps.epochs if steps.steps is None else 1
            found.batches[number] = steps.of(len(images))
            images, labels = torch.cat([images] * times), torch.cat([labels] * times)
        found.images[number], found.labels[number] = images, labels
    return found


def _handed(
    told: Told,
    target: str,
    gathered: Gathered,
    clients: Mapping[str, tuple[int, Partition]],
    model: nn.Module | None,
    settings: Mapping[str, Any],
) -> tuple[Handed, dict[str, Any]]:
    """Return everything checked at the same door as uploads from elsewhere, and the settings that were made of facts."""
    facts, numbers = told.facts, {client: number for client, (number, _) in clients.items()}
    uploads = [{numbers[c]: one for c, one in sent.items() if c in numbers} for sent in gathered.uploads]
    kept = [place for place, sent in enumerate(uploads) if sent]
    there = {number for sent in uploads for number in sent}
    data = _data(
        told,
        {client: held for client, held in clients.items() if held[0] in there},
        gathered.numbers[-1],
        trained=model is not None,
    )
    own: dict[str, Any] = {name: settings[name] for name in ("device",) if name in settings}
    own |= {"n_classes": facts.n_classes} if facts.n_classes is not None else {}
    own |= {"model": model} if model is not None else {}
    own |= {"batch": {k: data.batches.get(k) for k in data.images}} if data.batches else {}
    if facts.public is not None:
        own["public"], own["public_labels"] = told.images("public")
    if facts.held_out is not None:
        own["held_out"] = {k: told.images("held_out", place) for k, place in clients.values() if k in data.images}
    answered = [
        {numbers[c]: () if one is None else one for c, one in gathered.broadcasts[place].items() if c in numbers}
        for place in kept
    ]
    extractors = None
    if facts.extractor is not None:
        extractors = _extractors(told, clients, gathered.numbers[-1])
        if len(kept) > 1 and told.takes_a_round("extractor"):
            own["earlier_extractors"] = [
                _extractors(
                    told, {c: clients[c] for c in gathered.uploads[place] if c in clients}, gathered.numbers[place]
                )
                for place in kept[:-1]
            ]
    handed = read_handed(
        [uploads[place] for place in kept],
        target,
        data.images,
        data.labels,
        extractors,
        own | {"broadcasts": answered if len(answered) > 1 else answered[0]},
        numbers=[gathered.numbers[place] for place in kept],
    )
    return replace(handed, summed=gathered.summed), own


def _extractors(told: Told, clients: Mapping[str, tuple[int, Partition]], round_: int) -> dict[int, Any]:
    """Return client number -> its extractor after a round; copied, for a function may load all into one module."""
    return {
        number: normalized(copy.deepcopy(told.call("extractor", partition, round_)), told.facts.normalize)
        for number, partition in clients.values()
    }


def _strangers(told: Told) -> tuple[Any, Any]:
    if told.facts.strangers is None:
        raise UserError(
            f"{told.where}: no strangers (a function of no argument that returns images which no client has, and their "
            "labels, package.module:NAME); no attack can be told from a guess without"
        )
    return told.images("strangers", labelled=False)


# ---------------------------------------------------------------- what is said beside results


def _costs(handed: Handed, told: Told, named: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    """Return a line for each fact that is missing and costs attacks, with their names."""
    card = derive_card(handed, mapping("knowledge", settings.get("knowledge", ())))
    made, _ = with_settings(attack_names(handed.target, named), settings)
    would = {
        "batch (learning_rate, batch_size, epochs)": (told.facts.batch, replace(card, batch=True)),
        "extractor (a function of a partition)": (told.facts.extractor, replace(card, extractor="white_box")),
        "public (the attacker's own images)": (told.facts.public, replace(card, attacker_data="same_domain")),
    }
    lines = []
    for what, (fact, richer) in would.items():
        if fact is None:
            lost = [n for n, one in made.items() if _fits(n, one, handed, richer) and not _fits(n, one, handed, card)]
            lines += [f"{told.where}: no {what}: costs {', '.join(lost)}"] if lost else []
    return lines


def _fits(name: str, made: Any, handed: Handed, card: Any) -> bool:
    try:
        made.requirements_for(handed.target).refuse(name, replace(card, rounds_seen=made.needs.min_rounds))
    except UserError:
        return False
    return True


def _accounts(defenses: tuple[Defense, ...], rounds: int) -> tuple[list[str], tuple[DefenseFacts, ...]]:
    """Return a line for each epsilon that is claimed, with the one that follows, and what records say of the defenses."""
    lines, facts = [], []
    for defense in defenses:
        found = defense_facts(defense)
        if isinstance(defense, LocalDp):
            implied = defense.implied(rounds)
            verdict = "the claim follows" if implied.follows else "the claim does not follow"
            lines.append(f"{defense.name}: {verdict}: {implied.words}")
            found = found.model_copy(update={"guarantee": f"{found.guarantee}. Here {verdict}: {implied.words}"})
        facts.append(found)
    return lines, tuple(facts)
