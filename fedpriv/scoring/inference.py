"""Inferences are judged by what they ask about: candidate images, or classes. Nothing here knows one of them by name."""

from __future__ import annotations

from fedpriv.attacks.inference.base import Inference
from fedpriv.scoring import membership, property
from fedpriv.scoring.inference_case import InferenceCase
from fedpriv.scoring.records import InferenceResult, Provenance


def check(inference: Inference, case: InferenceCase) -> None:
    """Find out before anything is computed whether there is something to ask, and to tell apart.

    Raises:
        UserError: where there is not.
    """
    if inference.asks == "images":
        membership.trials_for(inference, case)
    else:
        property.pose(inference, case)


def evaluate(inference: Inference, case: InferenceCase, about: Provenance) -> InferenceResult:
    """Run an inference, and its control on shuffled uploads, and return the record.

    Args:
        inference: what to run.
        case: evidence and truth.
        about: how the record was made.

    Raises:
        UserError: where there is nothing to ask or to tell apart.
    """
    if inference.asks == "images":
        return membership.evaluate(inference, case, about)
    return property.evaluate(inference, case, about)
