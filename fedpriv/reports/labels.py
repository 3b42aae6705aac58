"""Names of uploads, defenses and threat models, and the order of attacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from fedpriv.datasets.partition import PartitionOptions
from fedpriv.eval.answers import NOT_THE_UPLOAD
from fedpriv.eval.records import About, Provenance, ReconstructionRecord, ThreatModel
from fedpriv.federation.run_directory import RunConfig
from fedpriv.util.config import plain

R = TypeVar("R")


def strongest_first(items: Sequence[R], record: Callable[[R], ReconstructionRecord]) -> list[R]:
    """Return attacks by kind of upload and mean advantage, the strongest first; a ranking is no claim."""
    return sorted(items, key=lambda item: (record(item).target, -record(item).advantage_db.mean))


def labelled(label: str, name: str) -> str:
    """Return the name of a method or a defense in tables: a study's label, and the registry name unless it begins with it.

    >>> labelled("My prototypes", "fedproto"), labelled("fedre lr=0.1", "fedre"), labelled("", "fedproto")
    ('My prototypes (fedproto)', 'fedre lr=0.1', 'fedproto')
    """
    return (label or name) if label.partition(" ")[0] in ("", name.partition(" ")[0]) else f"{label} ({name})"


def method_label(about: Provenance) -> str:
    """Return the name of a result's method in tables."""
    return labelled(about.labels.method if about.labels else "", about.method)


def defense_label(about: Provenance) -> str:
    """Return the name of a result's defenses in tables; ``none`` where there are none."""
    return labelled(about.labels.defense if about.labels else "", about.defense)


def upload_title(about: Provenance) -> str:
    """Return the method of a result with its defense, where there is one: ``fedproto + noise scale=0.3``."""
    method, guard = method_label(about), defense_label(about)
    return method if guard == "none" else f"{method} + {guard}"


def point_labels(abouts: Sequence[Provenance]) -> list[str]:
    """Name uploads by method, kind of target where a method has several, defense, and by other settings that differ."""
    labels = []
    for about in abouts:
        label, defense = method_label(about), defense_label(about)
        label += f", {about.target}" if len({one.target for one in abouts if one.method == about.method}) > 1 else ""
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
    uploads = about.run.rounds * max(1, round(about.run.clients * about.run.participation))
    paper, full = about.communication.paper, about.communication.full
    numbers = paper.upload_bytes / 4 + full.upload_scalars - paper.upload_scalars
    return full.upload_scalars / uploads, numbers / uploads, full.upload_bytes / uploads


def local_work(run: RunConfig | None) -> str:
    """Return in words what a client does in a round where the number of its steps is limited; else nothing."""
    if run is None or not run.training.max_steps:
        return ""
    steps, batch = run.training.max_steps, run.training.batch_size
    images = "one image" if batch == 1 else f"{batch} images"
    if steps == 1:
        return f"one local step on {images} a round"
    return f"at most {steps} local steps on {images} each a round"


def partition_words(partition: PartitionOptions) -> str:
    """Return a partition in words: ``dirichlet, alpha 0.1``."""
    at_random = " at random" if partition.assignment == "random" else ""
    detail = {
        "dirichlet": f", alpha {partition.alpha:g}",
        "pathological": f", {partition.classes_per_client} classes a client{at_random}",
        "long_tail": f", imbalance {partition.imbalance:g}",
    }
    return partition.name.replace("_", " ") + detail.get(partition.name, "")


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
}


def card_cell(card: ThreatModel) -> str:
    """Return a threat model as a cell of a table: every field with its value as flags spell it, without empty ones."""
    return ";".join(f"{name}={value}" for name, value in _card_words(card).items())


def _card_words(card: ThreatModel) -> dict[str, str]:
    said = {True: "known", False: "none"}
    fields = plain(card).items()
    return {key: said[value] if isinstance(value, bool) else str(value) for key, value in fields if value != ""}


def card_meanings(card: ThreatModel) -> list[str]:
    """Return the meanings of the fields of a threat model."""
    meanings = [_MEANINGS.get(pair, "") for pair in _card_words(card).items()]
    several = f"uploads of {card.rounds_seen} rounds are used together"
    return [*filter(None, meanings), several if card.rounds_seen > 1 else "uploads of one round are used"]
