"""Which results speak of one upload, how attacks are ranked, and what uploads, defenses and threat models are called."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fedpriv.datasets.partition import PartitionOptions
from fedpriv.eval.judgement import judge_page
from fedpriv.eval.reasons import Verdict
from fedpriv.eval.records import About, InferenceResult, Labels, Provenance, ReconstructionRecord, ThreatModel
from fedpriv.eval.storage import AttackRecord
from fedpriv.federation.run_directory import RunConfig
from fedpriv.util.config import plain

R = TypeVar("R")

NOT_THE_UPLOAD = ("seed", "data_dir", "capture", "checkpoint_every", "evaluate_every", "keep")
"""Settings of a run that change neither the task nor the upload."""

_LOCAL_WORK = ("batch_size", "max_steps", "epochs")

Result = AttackRecord | InferenceResult
Verdicts = Mapping[tuple[Path, ...], Verdict]
"""By the folders of a result, or of the same attack under several seeds."""


def reach_key(about: Provenance) -> str:
    """Return the key that all settings of a sweep share: that of the upload but for local work; empty outside a sweep."""
    return "" if about.reach is None else upload_key(about, _LOCAL_WORK)


def upload_key(about: Provenance, besides: Sequence[str] = ()) -> str:
    """Return the key that all attacks and seeds on one upload share, ``besides`` some settings of local work."""
    run = {name: value for name, value in (plain(about.run) or {}).items() if name not in NOT_THE_UPLOAD}
    if besides and "training" in run:
        run["training"] = {name: value for name, value in run["training"].items() if name not in besides}
    defenses = [(defense.name, plain(defense.options)) for defense in about.defenses]
    group = [about.dataset, about.target, about.method, run, defenses]
    return json.dumps(group, sort_keys=True, default=str)


def about_of(result: Result) -> Provenance:
    """Return the provenance of a result."""
    return result.about if isinstance(result, AttackRecord) else result


def over_seeds(results: Mapping[Path, Result]) -> list[tuple[Path, ...]]:
    """Return the folders of each attack, those of several seeds together, in the order in which they come.

    It is the same attack where options, stage, upload and threat model are.
    """
    paths: dict[str, list[Path]] = {}
    for folder, result in results.items():
        about = about_of(result)
        variant = [about.attack, plain(about.options), about.stage_name, plain(about.knowledge)]
        key = upload_key(about) + json.dumps(variant, sort_keys=True, default=str)
        paths.setdefault(key, []).append(folder)
    return [tuple(folders) for folders in paths.values()]


def judge_results(results: Mapping[Path, Result]) -> dict[tuple[Path, ...], Verdict]:
    """Judge all results of a page, one by one and over seeds.

    Raises:
        UserError: where an attack was not scored.
    """
    several = [folders for folders in over_seeds(results) if len(folders) > 1]
    single: dict[tuple[Path, ...], Result] = {(folder,): result for folder, result in results.items()}
    return judge_page(single, {folders: [(folder,) for folder in folders] for folders in several})


def by_folder(attacks: Sequence[AttackRecord], members: Mapping[Path, InferenceResult]) -> dict[Path, Result]:
    """Return attacks and inferences by their folders."""
    return {**{attack.directory: attack for attack in attacks}, **members}


# ---------------------------------------------------------------- rankings


def card_key(knowledge: ThreatModel) -> str:
    """Return the key that is the same for all attacks under one threat model."""
    return json.dumps(plain(knowledge), sort_keys=True)


def strongest_first(items: Sequence[R], record: Callable[[R], ReconstructionRecord]) -> list[list[R]]:
    """Return one ranking for each threat model, by mean advantage; the one with the strongest attack comes first."""
    cards: dict[str, list[R]] = {}
    for item in items:
        cards.setdefault(card_key(record(item).knowledge), []).append(item)

    def gain(item: R) -> float:
        return record(item).advantage_db.mean

    ranked = [sorted(members, key=gain, reverse=True) for members in cards.values()]
    return sorted(ranked, key=lambda members: gain(members[0]), reverse=True)


# ---------------------------------------------------------------- names


def labelled(label: str, title: str, name: str) -> str:
    """Return the name of a method or a defense in tables: a study's title or label, and the registry name.

    >>> labelled("My prototypes", "", "fedproto"), labelled("", "", "fedproto")
    ('My prototypes (fedproto)', 'fedproto')
    """
    return title or (name if label in ("", name) else f"{label} ({name})")


def method_label(about: Provenance) -> str:
    """Return the name of a result's method in tables."""
    called = about.labels or Labels()
    return labelled(called.method, called.method_title, about.method)


def defense_label(about: Provenance) -> str:
    """Return the name of a result's defenses in tables; ``none`` where there are none."""
    called = about.labels or Labels()
    return labelled(called.defense, called.defense_title, about.defense)


def upload_title(about: Provenance) -> str:
    """Return the method of a result with its defense, where there is one: ``fedproto + noise scale=0.3``."""
    method, guard = method_label(about), defense_label(about)
    return method if guard == "none" else f"{method} + {guard}"


def point_labels(abouts: Sequence[Provenance], *, with_target: bool = True) -> list[str]:
    """Name uploads by method, kind of target where a method has several, defense, and by other settings that differ."""
    targets: dict[str, set[str]] = {}
    for about in abouts:
        targets.setdefault(about.method, set()).add(about.target)
    labels = []
    for about in abouts:
        label, defense = method_label(about), defense_label(about)
        label += f", {about.target}" if with_target and len(targets[about.method]) > 1 else ""
        labels.append(label if defense == "none" else f"{label} + {defense}")
    left_out = (*NOT_THE_UPLOAD, "defenses")
    flat = [_flat({k: v for k, v in (plain(about.run) or {}).items() if k not in left_out}) for about in abouts]
    named = []
    for number, label in enumerate(labels):
        target = abouts[number].target
        alike = [flat[i] for i, other in enumerate(labels) if other == label and abouts[i].target == target]
        keys = sorted({key for item in alike for key in item if any(item.get(key) != two.get(key) for two in alike)})
        text = ", ".join(f"{key.rpartition('.')[2].replace('_', ' ')} {flat[number].get(key)}" for key in keys)
        named.append(f"{label} ({text})" if text else label)
    return named


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    texts: dict[str, str] = {}
    for key, part in value.items():
        texts |= _flat(part, f"{prefix}{key}.") if isinstance(part, Mapping) else {f"{prefix}{key}": str(part)}
    return texts


def upload_size(about: About) -> tuple[float, float, float] | None:
    """Return scalars, numbers of 32 bits, and bytes of one client's upload in a round, or None where it is not known.

    Of numbers of 32 bits, what the field counts is counted by its bits, so that encoders gain what they save.
    """
    if about.run is None or about.communication is None:
        return None
    clients = max(1, round(about.run.clients * about.run.participation))
    paper, full = about.communication.paper, about.communication.full
    beside = full.upload_scalars_per_round - paper.upload_scalars_per_round
    sizes = full.upload_scalars_per_round, paper.upload_bytes_per_round / 4 + beside, full.upload_bytes_per_round
    return sizes[0] / clients, sizes[1] / clients, sizes[2] / clients


def local_work(run: RunConfig | None) -> str:
    """Return in words what a client does in a round where the number of its steps is limited; else nothing."""
    if run is None or not run.training.max_steps:
        return ""
    steps, batch = run.training.max_steps, run.training.batch_size
    images = "one image" if batch == 1 else f"{batch} images"
    if steps == 1:
        return f"one local step on {images} a round"
    return f"at most {steps} local steps on {images} each a round"


def partition_words(partition: PartitionOptions, before: str = " with ", digits: str = "") -> str:
    """Return a partition in words: ``dirichlet with alpha 0.1``; ``before`` stands between, ``digits`` formats."""
    at_random = " at random" if partition.assignment == "random" else ""
    balanced = ", balanced" if partition.balanced else ""
    detail = {
        "dirichlet": f"alpha {partition.alpha:{digits}}",
        "pathological": f"{partition.classes_per_client} classes a client{at_random}{balanced}",
        "long_tail": f"imbalance {partition.imbalance:{digits}}",
    }.get(partition.name, "")
    return partition.name.replace("_", " ") + (before + detail if detail else "")


# ---------------------------------------------------------------- threat models


_MEANINGS = {
    ("extractor", "white_box"): "the server holds the client's extractor, weights and all",
    ("extractor", "query"): "the server may ask the client's extractor for answers",
    ("extractor", "shadow"): "the server trains an extractor of its own in place of the client's",
    ("extractor", "none"): "the server has no extractor",
    ("labels", "given"): "the classes of the targets are known",
    ("labels", "inferred"): "classes have to be inferred",
    ("batch", "known"): "batch size, learning rate and number of local steps are known",
    ("batch", "none"): "nothing is known of the local batches",
    ("batch_norm", "none"): "no batch-norm statistics",
    ("batch_norm", "running"): "running batch-norm statistics come with the extractor",
    ("attacker_data", "none"): "the attacker owns no images",
    ("attacker_data", "same_domain"): "the attacker owns images of the same data set, none of them a client's",
    ("attacker_data", "other_domain"): "the attacker owns images of another data set, without the clients' classes",
}


def card_words(knowledge: ThreatModel) -> dict[str, str]:
    """Return every field of a threat model with its value as flags spell it; empty ones are left out.

    >>> card_words(ThreatModel(labels="inferred"))["labels"], card_words(ThreatModel())["batch"]
    ('inferred', 'known')
    """
    said = {True: "known", False: "none"}
    fields = plain(knowledge).items()
    return {key: said[value] if isinstance(value, bool) else str(value) for key, value in fields if value != ""}


def differing(cards: Sequence[ThreatModel]) -> list[str]:
    """Return for each threat model, in words, the fields in which they differ; empty texts where they are equal."""
    lines = [card_words(card) for card in cards]
    names = [name for name in lines[0] if len({words.get(name) for words in lines}) > 1] if lines else []
    return [", ".join(f"{name.replace('_', ' ')} {words.get(name, '-')}" for name in names) for words in lines]


def card_lines(knowledge: ThreatModel) -> list[dict[str, str]]:
    """Return the fields of a threat model as a page shows them: ``name``, ``value``, and what it means."""
    lines = []
    for name, value in card_words(knowledge).items():
        meaning = _MEANINGS.get((name, value), "")
        if name == "rounds_seen":
            meaning = (
                f"uploads of {value} rounds are used together" if value != "1" else "uploads of one round are used"
            )
        lines.append({"name": name.replace("_", " "), "value": value.replace("_", " "), "meaning": meaning})
    return lines
