"""Sections of a report beside its attacks: the runs, their defenses, the frontier, how to reproduce it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedpriv.pages.alike import upload_key
from fedpriv.pages.curves import image_source
from fedpriv.pages.findings import Finding
from fedpriv.pages.frontier import Frontier, point_labels, run_figures
from fedpriv.pages.frontier_plot import describe, frontier_svg
from fedpriv.pages.labels import classes_words, defense_label, local_work
from fedpriv.pages.report_entries import Grant, card_grants
from fedpriv.scoring.records import About, Provenance
from fedpriv.scoring.storage import AttackRecord, scored
from fedpriv.scoring.verdict import BADGES

# ---------------------------------------------------------------- runs


@dataclass(frozen=True)
class Federation:
    """One upload that was attacked, with the run or runs it is of.

    Attributes:
        name: label of the upload.
        target: kind of upload.
        setting: data set, division and models in words.
        defense: its label.
        found: the gravest finding on it, and what else leaks, in a few words.
        trained, received: accuracy after training and after broadcast, mean over seeds, or None where not recorded.
        scalars: per client and round, everything counted, mean over seeds, or None.
        seeds: of the runs.
    """

    name: str
    target: str
    setting: str
    defense: str
    found: str
    trained: float | None
    received: float | None
    scalars: float | None
    seeds: tuple[int, ...]


def federations(attacks: Sequence[AttackRecord], findings: Sequence[Finding] = ()) -> tuple[Federation, ...]:
    """Return the uploads that attacks were made on, in the order in which they come, with what was found on each."""
    said = {
        part.key: ", ".join(BADGES[kind] for kind in part.kinds) for item in findings for part in item.parts or (item,)
    }
    uploads: dict[str, dict[int, About]] = {}
    for attack in attacks:
        uploads.setdefault(upload_key(attack.about), {}).setdefault(attack.about.run_seed, attack.about)
    labels = point_labels([next(iter(runs.values())) for runs in uploads.values()])
    return tuple(
        _federation(label, runs, said.get(key, "")) for label, (key, runs) in zip(labels, uploads.items(), strict=True)
    )


def _federation(label: str, runs: Mapping[int, About], said: str) -> Federation:
    first = next(iter(runs.values()))
    results = [run_figures(about) for about in runs.values()]
    trained, received, scalars = (
        None if any(item is None for item in values) else sum(float(value or 0.0) for value in values) / len(values)
        for values in zip(*results, strict=True)
    )
    return Federation(
        name=label,
        target=first.target,
        setting=_setting(first),
        defense=defense_label(first),
        found=said,
        trained=trained,
        received=received,
        scalars=scalars,
        seeds=tuple(sorted(runs)),
    )


def _setting(about: About) -> str:
    run = about.run
    if run is None:
        return about.dataset
    partition = run.partition
    detail = {
        "dirichlet": f" with alpha {partition.alpha}",
        "pathological": f" with {classes_words(partition)}",
        "long_tail": f" with imbalance {partition.imbalance}",
    }.get(partition.name, "")
    rounds = f"{run.rounds} round" + ("" if run.rounds == 1 else "s")
    work = local_work(run)
    return (
        f"{about.dataset}, {run.clients} clients ({partition.name.replace('_', ' ')}{detail}), {rounds}, "
        f"models {run.models}" + (f", {work}" if work else "") + (f"; {about.images}" if about.images else "")
    )


# ---------------------------------------------------------------- frontier


@dataclass(frozen=True)
class FrontierView:
    """A frontier as a page shows it.

    Attributes:
        frontier: the points.
        card: lines of the knowledge card.
        chart: their picture, as the source of an image.
        description: the picture in words.
    """

    frontier: Frontier
    card: tuple[Grant, ...]
    chart: str
    description: str


def frontier_views(frontiers: Sequence[Frontier]) -> tuple[FrontierView, ...]:
    """Return the frontiers that compare something: those with two points or more."""
    return tuple(
        FrontierView(item, card_grants(item.card), image_source(frontier_svg([item])), describe(item))
        for item in frontiers
        if len(item.points) > 1
    )


# ---------------------------------------------------------------- reproduction


def commands(made: Sequence[Provenance]) -> tuple[str, ...]:
    """Return the commands that made results, each once."""
    return tuple(dict.fromkeys(about.command for about in made if about.command))


def versions(attacks: Sequence[AttackRecord]) -> tuple[str, ...]:
    """Return the versions of what scored the results, each combination once."""
    return tuple(
        dict.fromkeys(
            ", ".join(f"{name} {version}" for name, version in scored(attack).versions.items()) for attack in attacks
        )
    )
