"""What the methods and defenses of a study are called: by the label that the study gave them, beside the registry name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

KEY = "labels"
"""Field of what is known of a result under which a report puts what its study calls things: ``method`` and ``defense``, the
labels; ``method_title`` and ``defense_title``, where it made them up and they hold the registry name already."""


def labelled(about: Mapping[str, Any], what: Literal["method", "defense"], name: str) -> str:
    """Return what tables call the method or the defense of a result.

    Args:
        about: what is known of the result; outside a study it has no labels.
        what: which of the two.
        name: the registry name, with options where it has some.

    >>> labelled({"labels": {"method": "My prototypes"}}, "method", "fedproto"), labelled({}, "method", "fedproto")
    ('My prototypes (fedproto)', 'fedproto')
    >>> labelled({"labels": {"defense": "noise scale=1.0", "defense_title": "noise scale=1.0"}}, "defense", "noise")
    'noise scale=1.0'
    """
    called = about.get(KEY) or {}
    label = called.get(what)
    return str(called.get(f"{what}_title") or (name if not label or label == name else f"{label} ({name})"))


def upload_title(about: Mapping[str, Any], defense: str) -> str:
    """Return the method of a result with its defense, where there is one.

    Args:
        about: what is known of the result.
        defense: the registry names of its defenses, or ``none``.

    >>> upload_title({"method": "fedproto"}, "noise scale=0.3"), upload_title({"method": "fedproto"}, "none")
    ('fedproto + noise scale=0.3', 'fedproto')
    """
    method, guard = labelled(about, "method", str(about["method"])), labelled(about, "defense", defense)
    return method if guard == "none" else f"{method} + {guard}"


def local_work(run: Mapping[str, Any]) -> str:
    """Return in words what a client does in a round where the number of its steps is limited; otherwise nothing.

    It decides what an update tells, and few real federations train so.

    >>> local_work({"training": {"max_steps": 1, "batch_size": 1}})
    'one local step on one image a round'
    >>> local_work({"training": {"max_steps": 4, "batch_size": 10}})
    'at most 4 local steps on 10 images each a round'
    >>> local_work({"training": {"max_steps": None, "batch_size": 10}})
    ''
    """
    training = run.get("training") or {}
    steps, batch = training.get("max_steps"), training.get("batch_size")
    if not steps:
        return ""
    images = "one image" if batch == 1 else f"{batch} images"
    return (
        f"one local step on {images} a round" if steps == 1 else f"at most {steps} local steps on {images} each a round"
    )
