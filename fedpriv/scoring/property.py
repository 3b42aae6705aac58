"""Scores of property inference: which classes a client holds, and which most of.

Every (client, class) pair that the upload leaves open is a question. Scores are compared over all pairs: area under the ROC
curve and the true-positive rate at 1 % and 0.1 % false positives, with intervals over clients. Beside them stand the same
from another client's upload, and from the number of classes alone, which says much about a client of two classes without
any look at its vectors. Where class shares themselves are estimated, their distance from the true ones stands beside those
of guesses that do without the client's own upload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.attacks.inference.base import Asked, Inference, InferenceProblem
from fedpriv.attacks.inference.property import QUESTIONS as QUESTIONS
from fedpriv.attacks.inputs.targets import Said
from fedpriv.scoring.floors import SHUFFLED
from fedpriv.scoring.inference_case import InferenceCase
from fedpriv.scoring.intervals import Values, clustered
from fedpriv.scoring.records import PropertyRecord, Provenance, Rate
from fedpriv.scoring.records.inference import Seconds, ShareDistances
from fedpriv.scoring.roc import Answers, Ranked
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError

CLASSES_ALONE = "number of classes"
"""The guess that needs no look at vectors."""

EVEN, OTHERS = "equal shares", "mean of the others"
"""Guesses at the class shares of a client."""


def pose(inference: Inference, case: InferenceCase) -> tuple[InferenceProblem, Asked, dict[int, Answers]]:
    """Return the problem, what is asked, and the answers by client, before anything is computed.

    Raises:
        UserError: where the inference has nothing to go by, or all answers are the same.
    """
    problem = case.problem(inference)
    asked = inference.ask(problem)
    answers = _answers(inference, case, problem, asked)
    _refuse_one_answer(np.concatenate(list(answers.values())), inference.name)
    return problem, asked, answers


def _answers(inference: Inference, case: InferenceCase, problem: InferenceProblem, asked: Asked) -> dict[int, Answers]:
    counts = case.counts(problem)
    return {k: inference.answers(counts[k], asked.question)[classes].numpy() for k, classes in asked.classes.items()}


def _refuse_one_answer(told: Answers, name: str = "property") -> None:
    if told.all() or not told.any():
        raise UserError(
            f"{name}: the answer is {'yes' if told.all() else 'no'} for all {len(told)} pairs of client and class; ask "
            f"another question with {argument('attack_option')} question=holds or majority"
        )


def evaluate(inference: Inference, case: InferenceCase, about: Provenance) -> PropertyRecord:
    """Ask about every client's classes, and of shuffled uploads, and return the record.

    Args:
        inference: one that asks about classes.
        case: evidence and truth.
        about: how the record was made.

    Raises:
        UserError: where the inference has nothing to go by, or all answers are the same.
    """
    problem, _, _ = pose(inference, case)
    found = inference(problem)
    answers = list(_answers(inference, case, problem, found.asked).values())
    scores = [found.values[client].numpy() for client in found.asked.classes]
    classes = [one.numpy() for one in found.asked.classes.values()]
    units = [about.unit_of(client) for client in found.asked.classes]
    said = problem.said()
    crowds = [_crowd(said[k], len(own)) for k, own in zip(found.asked.classes, answers, strict=True)]
    ranked, alone = Ranked.of(scores, answers, units), Ranked.of(crowds, answers, units)
    shuffled = None if len(scores) < 2 else Ranked.of(_of_the_next(classes, scores), answers, units)
    return PropertyRecord(
        **dict(about),
        **dict(ranked.rates()),
        round=case.round,
        question=found.asked.question,
        learned_from=found.source,
        n_clients=len(set(units)),
        n_pairs=int(sum(map(len, answers))),
        n_yes=int(sum(told.sum() for told in answers)),
        shuffled=None if shuffled is None else shuffled.rates(),
        classes_alone=alone.rates(),
        comparisons=ranked.against({SHUFFLED: shuffled, CLASSES_ALONE: alone}, {"property": "auc"}),
        shares=_shares(found.shares, case.counts(problem), said, about),
        cost=Seconds(seconds=found.seconds),
    )


def _shares(
    found: Mapping[int, Tensor], counts: Mapping[int, Tensor], told: Mapping[int, Said], about: Provenance
) -> ShareDistances | None:
    """Return the distances of estimated shares, and of what needs no look at the client's own upload."""
    if len(found) < 2:
        return None
    clients = list(found)
    units = [about.unit_of(client) for client in clients]
    wanted = torch.stack([counts[client].double() for client in clients])
    wanted = wanted / wanted.sum(1, keepdim=True)
    estimated = torch.stack([found[client] for client in clients])

    def distance(guess: Tensor) -> Rate:
        apart = clustered(((guess - wanted).abs().sum(1) / 2).numpy(), units, "share")
        return Rate(value=apart.mean, ci95=apart.interval())

    others = (estimated.sum(0) - estimated) / (len(clients) - 1)
    guesses = {
        EVEN: torch.stack([_equal(told[client].classes, wanted.shape[1]) for client in clients]),
        OTHERS: others,
        SHUFFLED: estimated.roll(-1, 0),
    }
    return ShareDistances(
        estimated=distance(estimated), guesses={name: distance(guess) for name, guess in guesses.items()}
    )


def _equal(classes: Sequence[int] | None, n_classes: int) -> Tensor:
    """Return equal shares ``(C,)`` of the classes that a client names, or of all."""
    found = torch.zeros(n_classes, dtype=torch.float64)
    found[list(range(n_classes)) if classes is None else list(classes)] = 1
    return found / found.sum()


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
