"""How well an attacker tells what a client holds: which classes, which most of.

Every (client, class) pair that the upload leaves open is a question. Scores are compared over all pairs: area under the ROC
curve and the true-positive rate at 1 % and 0.1 % false positives, with 95 % bootstrap intervals that resample clients and
pairs within them. Beside them stand the same from another client's upload, and from the number of classes alone, which says
much about a client of two classes without any look at its vectors.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.attacks.membership import held_classes
from fedpriv.attacks.observation import Observation
from fedpriv.attacks.property import KnownClient, Learned, Property, PropertyInference
from fedpriv.attacks.shadow_clients import shadow_clients
from fedpriv.data.types import Samples
from fedpriv.errors import UserError
from fedpriv.eval.evidence import Evidence
from fedpriv.eval.membership import RATES, Values, area, rate_at
from fedpriv.federation import Federation
from fedpriv.files import read_json, write_json
from fedpriv.seeds import derive_seed

FILE, SCHEMA = "property.json", 1
DRAWS = 1000
LEAST_CLIENTS = 3
QUESTIONS: dict[Property, str] = {
    "holds": "has the client any image of the class?",
    "majority": "is it the client's most frequent class?",
    "share": "does it make up more than the threshold of the client's images?",
}
Answers = NDArray[np.bool_]


def summarise(scores: Sequence[Values], answers: Sequence[Answers], seed: int) -> dict[str, Any]:
    """Return AUC and true-positive rates over all pairs, each with a 95 % bootstrap interval.

    Args:
        scores: one array a client.
        answers: the truth, aligned.
        seed: of the resamples. One without any yes, or without any no, is drawn again.

    Raises:
        UserError: when all answers are the same.
    """
    told = np.concatenate(list(answers))
    if told.all() or not told.any():
        raise UserError(
            f"property: the answer is {'yes' if told.all() else 'no'} for all {len(told)} pairs of client and class; ask "
            "another question with --attack-option question=holds, majority or share"
        )
    found = _measures(np.concatenate(list(scores)), told)
    rng = np.random.default_rng(derive_seed(seed, "property", "resamples"))
    drawn: list[list[float]] = []
    while len(drawn) < DRAWS and len(scores) > 1:
        picked = rng.integers(len(scores), size=len(scores))
        inside = [rng.integers(len(scores[i]), size=len(scores[i])) for i in picked]
        sample = np.concatenate([answers[i][j] for i, j in zip(picked, inside, strict=True)])
        if sample.any() and not sample.all():
            values = np.concatenate([scores[i][j] for i, j in zip(picked, inside, strict=True)])
            drawn.append(list(_measures(values, sample).values()))
    ends = np.quantile(drawn, [0.025, 0.975], axis=0).T.tolist() if drawn else [None] * len(found)
    return {name: {"value": value, "ci95": ends[place]} for place, (name, value) in enumerate(found.items())}


def _measures(scores: Values, answers: Answers) -> dict[str, float]:
    return {"auc": area(scores, answers)} | {name: rate_at(scores, answers, rate) for name, rate in RATES.items()}


def evaluate(
    attack: PropertyInference, evidence: Evidence, federation: Federation, about: Mapping[str, Any], *, seed: int
) -> dict[str, Any]:
    """Ask about every client's classes, and of permuted uploads, and return the record.

    Args:
        attack: what to run.
        evidence: what the server saw.
        federation: holds the truth. The attack is handed other clients' only where it has no images of its own.
        about: ``target, attack, method, dataset, knowledge`` and whatever should stand in the record.
        seed: of shadow clients and resamples.

    Raises:
        UserError: for too few clients, or where all answers are the same.
    """
    newest = max(seen.round for seen in evidence.observations)
    uploads = {seen.client: seen for seen in evidence.observations if seen.round == newest}
    n_classes = evidence.knowledge.n_classes
    counts = {k: torch.bincount(federation.clients[k].train.labels.cpu(), minlength=n_classes) for k in uploads}
    question = attack.asked([seen.upload for seen in uploads.values()])
    truth = {k: attack.answers(counts[k], question).numpy() for k in uploads}
    began = time.perf_counter()
    certain = all(attack.read_off(seen.upload, question, n_classes) is not None for seen in uploads.values())
    learned, source = _learn(attack, evidence, uploads, counts, question, certain, seed)

    told, scores, answers = [], [], []
    for client, seen in uploads.items():
        classes, values = attack.run(seen, question, n_classes, learned[client])
        told.append(classes.numpy())
        scores.append(values.numpy())
        answers.append(truth[client][classes.numpy()])
    record: dict[str, Any] = {
        "schema": SCHEMA,
        **about,
        "round": newest,
        "question": question,
        "threshold": attack.threshold if question == "share" else None,
        "learned_from": source,
        "n_clients": len(uploads),
        "n_pairs": int(sum(map(len, answers))),
        "n_yes": int(sum(told.sum() for told in answers)),
        **summarise(scores, answers, seed),
        "permuted": None if len(uploads) < 2 else summarise(_of_the_next(told, scores), answers, seed),
        "classes_alone": summarise(
            [_crowd(uploads[k], len(told)) for k, told in zip(uploads, answers, strict=True)], answers, seed
        ),
        "cost": {"seconds": time.perf_counter() - began},
    }
    record["verdict"] = property_verdict(record)
    return record


def _learn(
    attack: PropertyInference,
    evidence: Evidence,
    uploads: Mapping[int, Observation],
    counts: Mapping[int, torch.Tensor],
    question: Property,
    certain: bool,
    seed: int,
) -> tuple[dict[int, Learned | None], str]:
    """Return what was learned for each client's question, and where from."""
    knowledge = evidence.knowledge
    if certain:
        return dict.fromkeys(uploads), "the upload itself"
    if knowledge.public_images is not None and knowledge.public_labels is not None:
        first = next(iter(uploads.values()))
        own = Samples(knowledge.public_images, knowledge.public_labels)
        known = shadow_clients(
            first,
            own,
            knowledge.n_classes,
            attack.shadow_clients,
            seed,
            epochs=attack.epochs,
            mechanism=attack.mechanism,
            batch=knowledge.batch,
        )
        fitted = attack.learn(known, question, knowledge.n_classes)
        return dict.fromkeys(uploads, fitted), f"{len(known)} shadow clients"
    if len(uploads) < LEAST_CLIENTS:
        raise UserError(
            f"property: {len(uploads)} client(s), so too few others to learn from; expected at least {LEAST_CLIENTS}, or "
            "--knowledge attacker_data=same_domain and --public N to make clients up"
        )
    all_known = {k: KnownClient(seen, counts[k]) for k, seen in uploads.items()}
    found: dict[int, Learned | None] = {
        k: attack.learn([known for other, known in all_known.items() if other != k], question, knowledge.n_classes)
        for k in uploads
    }
    return found, f"the {len(uploads) - 1} other clients"


def _of_the_next(told: Sequence[NDArray[np.int64]], scores: Sequence[Values]) -> list[Values]:
    """Return, for each client's classes, what the next client's upload scores them; a class that it lacks comes last."""
    found = []
    for place, classes in enumerate(told):
        other = (place + 1) % len(told)
        known = dict(zip(told[other].tolist(), scores[other].tolist(), strict=True))
        least = min(known.values(), default=0.0) - 1
        found.append(np.array([known.get(label, least) for label in classes.tolist()]))
    return found


def _crowd(seen: Observation, number: int) -> Values:
    """Return the score of each class that knows only how many classes the upload names."""
    named = held_classes(seen.upload)
    return np.full(number, 0.0 if named is None else 1 / max(1, len(named)))


def property_verdict(record: Mapping[str, Any]) -> str:
    """Return the verdict on a record in a sentence or two."""
    auc, alone, control = record["auc"], record["classes_alone"]["auc"]["value"], record["permuted"]
    what = QUESTIONS[record["question"]].rstrip("?")
    if record["learned_from"] == "the upload itself":
        return f"Sent in clear: {what} (AUC {auc['value']:.3f} over {record['n_pairs']} pairs of client and class)."
    facts = f"AUC {auc['value']:.3f}"
    if auc["ci95"] is not None:
        facts += f" (95 % interval {auc['ci95'][0]:.3f} to {auc['ci95'][1]:.3f})"
    facts += f" over {record['n_pairs']} pairs of client and class; the number of classes alone {alone:.3f}"
    beyond = max(0.5, alone)
    if control is not None:
        facts += f", permuted uploads {control['auc']['value']:.3f}"
        beyond = max(beyond, control["auc"]["value"])
    if auc["ci95"] is None:
        return f"One client, so no interval: {what}: {facts}."
    if auc["ci95"][0] > beyond:
        return f"Leaks a property: {what}: {facts}. Learned from {record['learned_from']}."
    return f"No leak of this property found: {what}: {facts}. Learned from {record['learned_from']}."


def save_property(folder: Path, record: Mapping[str, Any]) -> None:
    """Write ``property.json`` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / FILE, record)


def load_property(folder: Path) -> dict[str, Any]:
    """Read ``property.json``.

    Raises:
        UserError: when it is missing or of another schema.
    """
    record = read_json(folder / FILE)
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        found = record.get("schema") if isinstance(record, dict) else type(record).__name__
        raise UserError(f"{folder / FILE}: field 'schema' is {found!r}, expected {SCHEMA}; attack again")
    return record
