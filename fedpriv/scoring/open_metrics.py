"""Measures of other packages: of every guesser, under the rules and in the record of the named ones.

A measure that fails is recorded as not measured, with its reason: an attack of hours is not lost to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from fedpriv.scoring.identification import control_of
from fedpriv.scoring.leakage import METRICS, ImageMeasure, Metric
from fedpriv.scoring.panel import ScoredGuesses, over_pairs
from fedpriv.scoring.records.reconstruction import Metrics, OtherMeasure
from fedpriv.scoring.sections import Means
from fedpriv.sources.truth import Truth
from fedpriv.util.errors import UserError


def open_metrics(named: Sequence[str] = ()) -> dict[str, Metric]:
    """Return the measures of installed distributions by name, and those asked for as ``package.module:NAME``.

    Raises:
        UserError: for a name that there is no such measure of, or that is another's.
    """
    metrics: dict[str, Metric] = METRICS.load_all()
    for name in named:
        metric: Metric = METRICS.load(name)
        if metrics.setdefault(metric.name, metric) is not metric:
            raise UserError(f"metric {name!r}: there is another metric named {metric.name!r}; rename it")
    return {name: metric for name, metric in metrics.items() if name not in METRICS.builtins}


def refuse_no_metric(name: str, value: object) -> None:
    """Check what another package calls a metric.

    Raises:
        UserError: when it is no :class:`Metric`, or is named as a field of the record.
    """
    if not isinstance(value, Metric) or not callable(value.function) or value.of not in ("images", "vectors"):
        raise UserError(f"expected a fedpriv.scoring.leakage.Metric of images or of vectors, got {value!r}")
    if value.name in Metrics.model_fields:
        raise UserError(f"named {value.name!r}, which is a measure of fedpriv; rename it")


def image_measures(
    metrics: Mapping[str, Metric], panel: ScoredGuesses, truths: tuple[Truth, ...], means: Means
) -> dict[str, OtherMeasure]:
    """Return one guesser's values of the measures of images."""

    def measured(metric: Metric) -> OtherMeasure:
        values = over_pairs(_checked(metric), panel.guesses, panel.scores, truths)
        return OtherMeasure(**dict(means.summary(values)), **_facts(metric))

    return {name: _or_reason(metric, measured) for name, metric in metrics.items() if metric.of == "images"}


def vector_measures(
    metrics: Mapping[str, Metric], features: Tensor, control: Tensor | None, true: Tensor, means: Means
) -> dict[str, OtherMeasure]:
    """Return the measures of vectors ``(T, d)`` that were recovered, beside those of the control."""

    def measured(metric: Metric) -> OtherMeasure:
        function = _checked(metric)
        current = means.summary(function(features, true).tolist())
        beside = None
        if control is not None:
            beside = control_of(current, function(control, true).tolist(), means)
        return OtherMeasure(**dict(current), shuffled=beside, **_facts(metric))

    return {name: _or_reason(metric, measured) for name, metric in metrics.items() if metric.of == "vectors"}


def _facts(metric: Metric) -> dict[str, Any]:
    return {"unit": metric.unit, "higher_is_better": metric.higher_is_better, "description": metric.description}


def _checked(metric: Metric) -> ImageMeasure:
    def function(result: Tensor, truth: Tensor) -> Tensor:
        values = metric.function(result, truth)
        if not isinstance(values, Tensor) or values.shape != (len(truth),):
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise UserError(f"gave {got}, expected a tensor of shape ({len(truth)},)")
        return values.detach().double().cpu()

    return function


def _or_reason(metric: Metric, measured: Callable[[Metric], OtherMeasure]) -> OtherMeasure:
    try:
        return measured(metric)
    except Exception as error:  # another package may fail in any way
        line = " ".join(str(error).split())
        reason = line if isinstance(error, UserError) else f"{type(error).__name__}: {line}"
        return OtherMeasure.nothing(f"not measured: {reason}", **_facts(metric))
