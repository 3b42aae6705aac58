"""Inferences are judged by what they ask about: candidate images (:mod:`fedpriv.eval.membership`), or classes.

Of classes, every (client, class) pair that the upload leaves open is a question. Scores are compared over all pairs: area
under the ROC curve and the true-positive rate at 1 % false positives, with intervals over clients. Beside them
stand the same from another client's upload, and from the number of classes alone, which says much about a client of two
classes without any look at its vectors.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.attacks.inference.base import Asked, Inference, InferenceProblem
from fedpriv.attacks.inputs.targets import Said
from fedpriv.eval import membership
from fedpriv.eval.floors import SHUFFLED
from fedpriv.eval.inference_case import CHANCE, Answers, InferenceCase, Ranked, named_classes
from fedpriv.eval.intervals import Values
from fedpriv.eval.records import InferenceResult, PropertyRecord, Provenance, Seconds
from fedpriv.util.errors import UserError

CLASSES_ALONE, HOLDERS = "number of classes", "classes and their holders"
"""Guesses that need no look at vectors: by how many classes the client names, and by how many clients name each of them."""


def check(inference: Inference, case: InferenceCase) -> None:
    """Check before anything is computed that there is something to ask, and to tell apart; else a UserError."""
    if inference.asks == "images":
        membership.trials_for(inference, case)
    else:
        _pose(inference, case)


def evaluate(inference: Inference, case: InferenceCase, about: Provenance) -> InferenceResult:
    """Run an inference, and its control on shuffled uploads, and return the record; errors as :func:`check`."""
    if inference.asks == "images":
        return membership.evaluate(inference, case, about)
    problem = _pose(inference, case)
    result = inference(problem)
    answers = _answers(inference, case, result.asked)
    scores = [result.values[client].numpy() for client in result.asked.classes]
    classes = [label.numpy() for label in result.asked.classes.values()]
    units = [about.unit_of(client) for client in result.asked.classes]
    said = problem.said()
    crowds = [_crowd(said[k], len(current)) for k, current in zip(result.asked.classes, answers, strict=True)]
    holders = _holders(said.values(), problem.knowledge.n_classes)
    rare = [crowd * holders[current] for crowd, current in zip(crowds, classes, strict=True)]
    apart = about.per_image
    ranked = Ranked.of(scores, answers, units, apart=apart)
    guesses = {
        name: Ranked.of(guess, answers, units, apart=apart)
        for name, guess in ((CLASSES_ALONE, crowds), (HOLDERS, rare))
    }
    named = any(line.classes is not None for line in said.values())
    shuffled = None if len(scores) < 2 else Ranked.of(_of_the_next(classes, scores), answers, units)
    return PropertyRecord(
        **dict(about),
        **dict(ranked.rates()),
        round=case.round,
        question=result.asked.question,
        learned_from=result.source,
        n_clients=len(set(units)),
        n_pairs=int(sum(map(len, answers))),
        n_yes=int(sum(answer.sum() for answer in answers)),
        shuffled=None if shuffled is None else shuffled.rates(),
        comparisons=ranked.against({SHUFFLED: shuffled, **guesses}, ("property",), HOLDERS if named else CHANCE),
        classes=named_classes(said, case.truth),
        cost=Seconds(seconds=result.seconds),
    )


def _pose(inference: Inference, case: InferenceCase) -> InferenceProblem:
    """Return the problem, where not all answers are the same."""
    problem = case.problem(inference)
    answers = np.concatenate(_answers(inference, case, inference.ask(problem)))
    if answers.all() or not answers.any():
        raise UserError(
            f"{inference.name}: the answer is {'yes' if answers.all() else 'no'} for all {len(answers)} client and class "
            f"pairs; ask another question with attack_option question=holds or majority"
        )
    return problem


def _answers(inference: Inference, case: InferenceCase, requested: Asked) -> list[Answers]:
    results = []
    for client, classes in requested.classes.items():
        counts = torch.bincount(case.truth.labels(client), minlength=case.evidence.knowledge.n_classes)
        results.append(inference.answers(counts, requested.question)[classes].numpy())
    return results


def _of_the_next(ndarrays: Sequence[NDArray[np.int64]], scores: Sequence[Values]) -> list[Values]:
    results = []
    for index, classes in enumerate(ndarrays):
        other = (index + 1) % len(ndarrays)
        known = dict(zip(ndarrays[other].tolist(), scores[other].tolist(), strict=True))
        least = min(known.values(), default=0.0) - 1
        results.append(np.array([known.get(label, least) for label in classes.tolist()]))
    return results


def _holders(lines: Collection[Said], n_classes: int) -> Values:
    """Return one over the number of clients that name each class ``(C,)``; one where nobody does."""
    counts = np.zeros(n_classes)
    for line in lines:
        counts[list(line.classes or ())] += 1
    return 1 / np.maximum(counts, 1)


def _crowd(details: Said, number: int) -> Values:
    return np.full(number, 0.0 if details.classes is None else 1 / max(1, len(details.classes)))
