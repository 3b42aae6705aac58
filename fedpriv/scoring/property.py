"""How well an attacker tells what a client holds: which classes, which most of.

Every (client, class) pair that the upload leaves open is a question. Scores are compared over all pairs: area under the ROC
curve and the true-positive rate at 1 % and 0.1 % false positives, with 95 % bootstrap intervals that resample clients and
pairs within them. Beside them stand the same from another client's upload, and from the number of classes alone, which says
much about a client of two classes without any look at its vectors.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.attacks.infer.kernel_classes import compare
from fedpriv.attacks.infer.property import KnownClient, Learned, Property, PropertyInference
from fedpriv.attacks.infer.property_features import describe
from fedpriv.attacks.infer.shadow_clients import LEAST_IMAGES, shadow_clients
from fedpriv.attacks.observation import Observation
from fedpriv.attacks.read.disclosed_labels import Said, said
from fedpriv.datasets.types import Samples
from fedpriv.evidence.gather import Evidence
from fedpriv.federation.rounds import Federation
from fedpriv.scoring.membership import RATES, Values, area, rate_at, rates
from fedpriv.scoring.records import PropertyRecord, Provenance, Rates
from fedpriv.scoring.records.inference import Seconds
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed
from fedpriv.wire.payloads import Kernel, optional_part

DRAWS = 1000
LEAST_CLIENTS = 3
CERTAIN = 1e6
IN_CLEAR = ("the upload itself", "the uploads of all rounds themselves")
"""Where answers were read off: the attacked round, or any up to it."""
QUESTIONS: dict[Property, str] = {
    "holds": "has the client any image of the class?",
    "majority": "is it the client's most frequent class?",
    "share": "does it make up more than the threshold of the client's images?",
}
Answers = NDArray[np.bool_]


def summarise(scores: Sequence[Values], answers: Sequence[Answers], seed: int) -> Rates:
    """Return AUC and true-positive rates over all pairs, each with a 95 % bootstrap interval.

    Args:
        scores: one array a client.
        answers: the truth, aligned.
        seed: of the resamples. One without any yes, or without any no, is drawn again.

    Raises:
        UserError: when all answers are the same.
    """
    told = np.concatenate(list(answers))
    _refuse_one_answer(told)
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
    return rates(found, np.quantile(drawn, [0.025, 0.975], axis=0).T.tolist() if drawn else None)


def _measures(scores: Values, answers: Answers) -> dict[str, float]:
    return {"auc": area(scores, answers)} | {name: rate_at(scores, answers, rate) for name, rate in RATES.items()}


@dataclass(frozen=True)
class Inquiry:
    """What is asked, of whom, and how it can be answered. Everything is by client.

    Attributes:
        round: the attacked one.
        question: what is asked.
        uploads: of that round.
        told: what was said in clear up to it.
        counts: the truth, ``(C,)`` int64 each.
        certain: clients whose answer is in clear.
        learns: whether there is anybody to learn the others' answers from.
        compared: classes and scores of kernels, which are compared with one another; empty for other uploads.
    """

    round: int
    question: Property
    uploads: Mapping[int, Observation]
    told: Mapping[int, Said]
    counts: Mapping[int, torch.Tensor]
    certain: frozenset[int]
    learns: bool
    compared: Mapping[int, tuple[torch.Tensor, torch.Tensor]]


def inquire(
    attack: PropertyInference, evidence: Evidence, federation: Federation, told: Mapping[int, Said] | None = None
) -> Inquiry:
    """Settle what is asked and whether it can be answered, before anything is computed.

    Args:
        attack: what is to run.
        evidence: what the server saw.
        federation: holds the truth.
        told: what clients said in clear in all rounds (:mod:`fedpriv.evidence.disclosed`); default what the newest
            upload says.

    Raises:
        UserError: where nothing is in clear and there is nobody to learn from, or all answers are the same.
    """
    newest = max(seen.round for seen in evidence.observations)
    uploads = {seen.client: seen for seen in evidence.observations if seen.round == newest}
    knowledge, n_classes = evidence.knowledge, evidence.knowledge.n_classes
    heard = {k: (told or {}).get(k) or said((seen.upload,)) for k, seen in uploads.items()}
    question = attack.asked(list(heard.values()))

    def in_clear(asked: Property) -> frozenset[int]:
        return frozenset(k for k in heard if attack.read_off(heard[k], asked, n_classes) is not None)

    learns = attack.known == "others" or knowledge.public_labels is not None
    if attack.question == "auto" and not learns and not in_clear(question) and in_clear("holds"):
        question = "holds"
    certain = in_clear(question)
    compared = _compared(attack, evidence, uploads)
    if len(certain) < len(uploads) and not compared:
        _refuse_teachers(attack, evidence, len(uploads), bool(certain), question)
    counts = {k: torch.bincount(federation.clients[k].train.labels.cpu(), minlength=n_classes) for k in uploads}
    answers = []
    for client, seen in uploads.items():
        if client in compared:
            classes = compared[client][0]
        else:
            classes = torch.arange(n_classes) if client in certain else describe(seen, n_classes)[0]
        answers.append(attack.answers(counts[client], question)[classes].numpy())
    _refuse_one_answer(np.concatenate(answers))
    return Inquiry(newest, question, uploads, heard, counts, certain, learns, compared)


def _compared(
    attack: PropertyInference, evidence: Evidence, uploads: Mapping[int, Observation]
) -> Mapping[int, tuple[torch.Tensor, torch.Tensor]]:
    """Return what kernels tell beside one another, by client; empty where the uploads are none."""
    knowledge = evidence.knowledge
    if not all(optional_part(seen.upload, Kernel) is not None for seen in uploads.values()):
        return {}
    if attack.known == "others":
        raise UserError("property: kernels are compared with one another, nothing is learned; drop known=others")
    if len(uploads) < LEAST_CLIENTS:
        raise UserError(
            f"property: {len(uploads)} client(s), so too few kernels to compare; expected at least {LEAST_CLIENTS}"
        )
    if knowledge.public_images is None or knowledge.public_labels is None:
        raise UserError(
            "property: classes of the public images are not known; pass --knowledge attacker_data=same_domain"
        )
    return compare(uploads, knowledge.public_images, knowledge.public_labels, knowledge.n_classes)


def _refuse_teachers(
    attack: PropertyInference, evidence: Evidence, n_clients: int, some_certain: bool, question: Property
) -> None:
    """Refuse where those who do not say the answer leave nobody to learn it from."""
    public = evidence.knowledge.public_labels
    if attack.known == "others":
        if n_clients < LEAST_CLIENTS:
            raise UserError(
                f"property: {n_clients} client(s), so too few others to learn from; expected at least {LEAST_CLIENTS}, or "
                "--knowledge attacker_data=same_domain and --public N to make clients up"
            )
    elif public is not None:
        if len(public) < LEAST_IMAGES:
            raise UserError(
                f"property: {len(public)} images to make clients of; expected at least {LEAST_IMAGES}; train with "
                "--public N"
            )
    elif not some_certain:
        raise UserError(
            f"property: no stored upload says in clear what is asked ({QUESTIONS[question]}), and the attacker knows nobody "
            "to learn it from; pass --knowledge attacker_data=same_domain and --public N, or, for an attacker in league "
            "with all other clients, --attack-option property.known=others"
        )


def _refuse_one_answer(told: Answers) -> None:
    if told.all() or not told.any():
        raise UserError(
            f"property: the answer is {'yes' if told.all() else 'no'} for all {len(told)} pairs of client and class; ask "
            "another question with --attack-option question=holds, majority or share"
        )


def evaluate(
    attack: PropertyInference,
    evidence: Evidence,
    federation: Federation,
    about: Provenance,
    *,
    seed: int,
    told: Mapping[int, Said] | None = None,
) -> PropertyRecord:
    """Ask about every client's classes, and of permuted uploads, and return the record.

    Args:
        attack: what to run.
        evidence: what the server saw.
        federation: holds the truth, of which the attack is handed other clients' only where its options say ``others``.
        about: how the record was made.
        seed: of shadow clients and resamples.
        told: what clients said in clear in all rounds; default what the newest upload says.

    Raises:
        UserError: where nothing is in clear and there is nobody to learn from, or all answers are the same.
    """
    began = time.perf_counter()
    asked = inquire(attack, evidence, federation, told)
    n_classes = evidence.knowledge.n_classes
    learned, source = _learn(attack, evidence, asked, seed)
    classes_of, scores, answers = [], [], []
    for client, seen in asked.uploads.items():
        if client in asked.compared:
            classes, values = asked.compared[client]
        else:
            classes, values = attack.run(seen, asked.question, n_classes, learned[client], asked.told[client])
        # A certain yes stands above, a certain no below whatever is only likely.
        values = (2 * values - 1) * CERTAIN if client in asked.certain else values
        classes_of.append(classes.numpy())
        scores.append(values.numpy())
        answers.append(attack.answers(asked.counts[client], asked.question)[classes].numpy())
    crowds = [
        _crowd(told_of, len(own)) for told_of, own in zip((asked.told[k] for k in asked.uploads), answers, strict=True)
    ]
    in_league = attack.known == "others" and len(asked.certain) < len(asked.uploads)
    record = PropertyRecord(
        **dict(about),
        **dict(summarise(scores, answers, seed)),
        round=asked.round,
        question=asked.question,
        threshold=attack.threshold if asked.question == "share" else None,
        learned_from=source,
        n_clients=len(asked.uploads),
        n_pairs=int(sum(map(len, answers))),
        n_yes=int(sum(told.sum() for told in answers)),
        permuted=None if len(asked.uploads) < 2 else summarise(_of_the_next(classes_of, scores), answers, seed),
        classes_alone=summarise(crowds, answers, seed),
        colluders="all other clients" if in_league else "",
        cost=Seconds(seconds=time.perf_counter() - began),
    )
    return record.model_copy(update={"verdict": property_verdict(record)})


def _learn(
    attack: PropertyInference, evidence: Evidence, asked: Inquiry, seed: int
) -> tuple[dict[int, Learned | None], str]:
    """Return what was learned for each client's question, and where from."""
    knowledge, uploads = evidence.knowledge, asked.uploads
    nothing: dict[int, Learned | None] = dict.fromkeys(uploads)
    if asked.compared:
        return nothing, "the other kernels of the round"
    if len(asked.certain) == len(uploads):
        newest = (said((seen.upload,)) for seen in uploads.values())
        at_once = all(attack.read_off(one, asked.question, knowledge.n_classes) is not None for one in newest)
        return nothing, IN_CLEAR[0] if at_once else IN_CLEAR[1]
    some = f"{IN_CLEAR[1]} of {len(asked.certain)} clients, and " if asked.certain else ""
    if not asked.learns:
        return nothing, f"{some}nothing for the others"
    if attack.known == "shadow":
        assert knowledge.public_images is not None
        assert knowledge.public_labels is not None
        known = shadow_clients(
            next(seen for k, seen in uploads.items() if k not in asked.certain),
            Samples(knowledge.public_images, knowledge.public_labels),
            knowledge.n_classes,
            attack.shadow_clients,
            seed,
            epochs=attack.epochs,
            mechanism=attack.mechanism,
            batch=knowledge.batch,
        )
        fitted = attack.learn(known, asked.question, knowledge.n_classes)
        return dict.fromkeys(uploads, fitted), f"{some}{len(known)} shadow clients"
    all_known = {k: KnownClient(seen, asked.counts[k]) for k, seen in uploads.items()}
    found: dict[int, Learned | None] = {
        k: attack.learn([one for other, one in all_known.items() if other != k], asked.question, knowledge.n_classes)
        for k in uploads
    }
    return found, f"{some}the {len(uploads) - 1} other clients, in league with the attacker"


def _of_the_next(told: Sequence[NDArray[np.int64]], scores: Sequence[Values]) -> list[Values]:
    """Return, for each client's classes, what the next client's upload scores them; a class that it lacks comes last."""
    found = []
    for place, classes in enumerate(told):
        other = (place + 1) % len(told)
        known = dict(zip(told[other].tolist(), scores[other].tolist(), strict=True))
        least = min(known.values(), default=0.0) - 1
        found.append(np.array([known.get(label, least) for label in classes.tolist()]))
    return found


def _crowd(told: Said, number: int) -> Values:
    """Return the score of each class that knows only how many classes uploads name."""
    return np.full(number, 0.0 if told.classes is None else 1 / max(1, len(told.classes)))


def property_verdict(record: PropertyRecord) -> str:
    """Return the verdict on a record in a sentence or two."""
    auc, alone, control = record.auc, record.classes_alone.auc.value, record.permuted
    what = QUESTIONS[record.question].rstrip("?")
    if record.learned_from in IN_CLEAR and auc.value == 1:
        return f"Sent in clear: {what} (AUC {auc.value:.3f} over {record.n_pairs} pairs of client and class)."
    facts = f"AUC {auc.value:.3f}"
    if auc.ci95 is not None:
        facts += f" (95 % interval {auc.ci95[0]:.3f} to {auc.ci95[1]:.3f})"
    facts += f" over {record.n_pairs} pairs of client and class; the number of classes alone {alone:.3f}"
    beyond = max(0.5, alone)
    if control is not None:
        facts += f", permuted uploads {control.auc.value:.3f}"
        beyond = max(beyond, control.auc.value)
    if auc.ci95 is None:
        return f"One client, so no interval: {what}: {facts}."
    if auc.ci95[0] > beyond:
        return f"Leaks a property: {what}: {facts}. Learned from {record.learned_from}."
    return f"No leak of this property found: {what}: {facts}. Learned from {record.learned_from}."
