"""Names of the methods and defenses of a study: by the label that the study gave them, beside the registry name."""

from __future__ import annotations

from fedpriv.datasets.federated import PartitionOptions
from fedpriv.federation.run_directory import RunConfig
from fedpriv.scoring.records import Labels, Provenance


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


def labelled(label: str, title: str, name: str) -> str:
    """Return the name of a method or a defense in tables.

    Args:
        label: what its study calls it; empty outside a study.
        title: the label where the study made it up and it holds the registry name already; else empty.
        name: the registry name, with options where it has some.

    >>> labelled("My prototypes", "", "fedproto"), labelled("", "", "fedproto")
    ('My prototypes (fedproto)', 'fedproto')
    >>> labelled("noise scale=1.0", "noise scale=1.0", "noise")
    'noise scale=1.0'
    """
    return title or (name if label in ("", name) else f"{label} ({name})")


def local_work(run: RunConfig | None) -> str:
    """Return in words what a client does in a round where the number of its steps is limited; otherwise nothing.

    It decides what an update tells, and few real federations train so: ``at most 4 local steps on 10 images each a
    round``, ``one local step on one image a round``.
    """
    if run is None or not run.training.max_steps:
        return ""
    steps, batch = run.training.max_steps, run.training.batch_size
    images = "one image" if batch == 1 else f"{batch} images"
    return (
        f"one local step on {images} a round" if steps == 1 else f"at most {steps} local steps on {images} each a round"
    )


def classes_words(partition: PartitionOptions) -> str:
    """Return a pathological division in words, without its name."""
    at_random = " at random" if partition.assignment == "random" else ""
    return f"{partition.classes_per_client} classes a client{at_random}{', balanced' if partition.balanced else ''}"
