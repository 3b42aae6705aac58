"""The reach of a leak: the last setting of local work that leaks, the first that does not, and the sentence on both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedpriv.scoring.records.made import Reach


@dataclass(frozen=True)
class Reached:
    """One setting of a reach.

    Attributes:
        label, words: the setting on an axis, and in a sentence.
        images: what the attacks on it that make images come to, in one sentence; empty where none gave a result.
        leaks: whether images or vectors are shown to come back.
    """

    label: str
    words: str
    images: str = ""
    leaks: bool = False


def by_work(setting: Reach) -> tuple[bool, int, int]:
    """Return a key by which settings are put in order: a client's own training last, then by images and steps."""
    return setting.setting == "epoch", setting.images, setting.steps


def reached(reaches: Sequence[tuple[Reach, str, bool]]) -> tuple[Reached, ...]:
    """Return the settings of a reach from the least local work to the most, those without any result in their place.

    Args:
        reaches: settings that attacks gave results at, each with the sentence on its images, and whether it leaks.
    """
    group = sorted(reaches, key=lambda item: by_work(item[0]))
    there = {setting.label: Reached(setting.label, setting.words, images, leaks) for setting, images, leaks in group}
    series = next((setting.series for setting, _, _ in group if set(there) <= set(setting.series)), tuple(there))
    return tuple(there.get(label, Reached(label, label)) for label in series)


def furthest(series: Sequence[Reached]) -> int | None:
    """Return the place of the last setting that leaks, or None."""
    return max((index for index, part in enumerate(series) if part.leaks), default=None)


def first_beyond(series: Sequence[Reached]) -> int | None:
    """Return the place of the first setting beyond :func:`furthest` at which no leak is shown, or None."""
    position = furthest(series)
    beyond = 0 if position is None else position + 1
    return beyond if beyond < len(series) else None


def span_of(series: Sequence[Reached]) -> str:
    """Return several settings from the first to the last in words."""
    return f"from {series[0].words} to {series[-1].words}"


def reach_sentence(series: Sequence[Reached]) -> str:
    """Return the sentences on the last of several settings that leaks and on the first that does not."""
    last, beyond = furthest(series), first_beyond(series)
    parts = []
    if last is None:
        parts.append(f"No leak is shown, {span_of(series)}.")
    else:
        part = series[last]
        far = "as far as was asked, " if beyond is None else ""
        before = [other.words for other in series[:last] if not other.leaks]
        gap = f" (at {' and '.join(before)} none is shown)" if before else ""
        parts.append(f"The leak reaches {far}{part.words}{gap}: {_inside(part.images)}")
    if beyond is not None:
        parts.append(_not_shown(series[beyond]))
    return " ".join(parts)


def _not_shown(item: Reached) -> str:
    if not item.images:
        return f"At {item.words} no attack that makes images gave a result."
    return f"At {item.words} none is shown: {_inside(item.images)}"


def _inside(text: str) -> str:
    """Return a sentence as it stands behind a colon."""
    text = text.replace("Not tested hard enough to say. ", "not tested hard enough; ", 1)
    return text[:1].lower() + text[1:]
