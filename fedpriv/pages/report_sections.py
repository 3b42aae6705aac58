"""Sections of a report beside its attacks: the runs, their defenses, the frontier, claims of papers, how to reproduce it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedpriv.claims import Claim, Column, Quantity, Row, matching, speaks_of
from fedpriv.pages.alike import upload_key
from fedpriv.pages.curves import image_source
from fedpriv.pages.findings import Finding
from fedpriv.pages.frontier import Frontier, point_labels, run_figures
from fedpriv.pages.frontier_plot import describe, frontier_svg
from fedpriv.pages.labels import classes_words, defense_label, local_work, method_label
from fedpriv.pages.report_entries import Grant, card_grants
from fedpriv.scoring.floors import LABELS
from fedpriv.scoring.ranking import in_order, title
from fedpriv.scoring.records import About, Provenance, ReconstructionRecord
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


def federations(attacks: Sequence[AttackRecord], found: Sequence[Finding] = ()) -> tuple[Federation, ...]:
    """Return the uploads that attacks were made on, in the order in which they come, with what was found on each."""
    said = {part.key: ", ".join(BADGES[kind] for kind in part.kinds) for one in found for part in one.parts or (one,)}
    uploads: dict[str, dict[int, About]] = {}
    for attack in attacks:
        uploads.setdefault(upload_key(attack.about), {}).setdefault(attack.about.run_seed, attack.about)
    labels = point_labels([next(iter(runs.values())) for runs in uploads.values()])
    return tuple(
        _federation(label, runs, said.get(key, "")) for label, (key, runs) in zip(labels, uploads.items(), strict=True)
    )


def _federation(label: str, runs: Mapping[int, About], said: str) -> Federation:
    first = next(iter(runs.values()))
    found = [run_figures(about) for about in runs.values()]
    trained, received, scalars = (
        None if any(one is None for one in values) else sum(float(one or 0.0) for one in values) / len(values)
        for values in zip(*found, strict=True)
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


def frontier_views(found: Sequence[Frontier]) -> tuple[FrontierView, ...]:
    """Return the frontiers that compare something: those with two points or more."""
    return tuple(
        FrontierView(one, card_grants(one.card), image_source(frontier_svg([one])), describe(one))
        for one in found
        if len(one.points) > 1
    )


# ---------------------------------------------------------------- claims


@dataclass(frozen=True)
class ClaimView:
    """A claim of a paper beside results.

    Attributes:
        claim: the claim.
        columns: of the claim, those on the same data.
        rows: (what the paper calls it, its values as written, what was measured here).
    """

    claim: Claim
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]


def claim_views(attacks: Sequence[AttackRecord], quantity: Quantity) -> tuple[ClaimView, ...]:
    """Return the claims that speak of uploads that were attacked, on the same data, with what was measured beside each row.

    Runs without any defense count alone: papers report their methods bare.
    """
    bare = [attack for attack in attacks if not attack.about.defenses]
    uploads = [_upload(attack) for attack in bare]
    ranked = in_order(bare, scored)
    views = []
    for claim, rows, places in matching(uploads, quantity):
        columns = tuple(claim.columns[place] for place in places)
        shown = tuple((row.name, _written(claim, row, places), _ours(claim, row, columns, ranked)) for row in rows)
        views.append(ClaimView(claim, columns, shown))
    return tuple(views)


def _upload(attack: AttackRecord) -> tuple[str, str, str]:
    """Return method, target, and the registry name of the data set: a folder of images is none of a paper's."""
    about = attack.about
    return about.method, about.target, about.dataset if about.run is None else about.run.dataset


def _written(claim: Claim, row: Row, places: Sequence[int]) -> tuple[str, ...]:
    digits = [claim.columns[place].digits for place in places]
    decimals = [claim.digits if own is None else own for own in digits]
    return tuple(
        "–" if (value := row.values[place]) is None else f"{value:,.{many}f}"
        for place, many in zip(places, decimals, strict=True)
    )


def _ours(claim: Claim, row: Row, columns: Sequence[Column], ranked: Sequence[AttackRecord]) -> tuple[str, ...]:
    own = [a for a in ranked if any(speaks_of(claim, row, column, *_upload(a)) for column in columns)]
    quantity = claim.quantity
    if quantity == "inversion":
        return _our_leakage(own)
    told = _our_accuracy if quantity == "accuracy" else _our_communication
    return tuple(dict.fromkeys(line for attack in own for line in told(attack)))[:4]


def _our_leakage(own: Sequence[AttackRecord]) -> tuple[str, ...]:
    """Return a line an attack, mean over its seeds."""
    same: dict[str, list[ReconstructionRecord]] = {}
    for attack in own:
        record = scored(attack)
        name = f"{title(record)} on {method_label(attack.about)}, {record.dataset}"
        same.setdefault(name, []).append(record)
    lines = []
    for name, records in same.items():
        reached = _mean([record.metrics.psnr_db.mean for record in records])
        best = [record.advantage_db.best_floor for record in records]
        floor = _mean([record.image_floors[kind].psnr_db for record, kind in zip(records, best, strict=True)])
        kinds = " or ".join(dict.fromkeys(LABELS.get(kind, kind) for kind in best))
        seeds = f", mean of {len(records)} results" if len(records) > 1 else ""
        lines.append(f"{name}: {reached:.2f} dB; floor {floor:.2f} dB ({kinds}){seeds}")
    return tuple(lines[:6])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _our_accuracy(attack: AttackRecord) -> list[str]:
    trained, received, _ = run_figures(attack.about)
    if trained is None or received is None:
        return []
    where = _setting(attack.about)
    return [
        f"{_own_label(attack)}{100 * trained:.1f} % after training, {100 * received:.1f} % after broadcast; {where}"
    ]


def _own_label(attack: AttackRecord) -> str:
    """Return the study's label of the method, in front of a figure; nothing where that is the name of the row."""
    label = method_label(attack.about)
    return "" if label == attack.about.method else f"{label}: "


def _our_communication(attack: AttackRecord) -> list[str]:
    if attack.about.communication is None:
        return []
    paper = attack.about.communication.paper
    up, down = paper.upload_scalars_per_round / 1000, paper.broadcast_scalars_per_round / 1000
    where = _setting(attack.about)
    return [f"{_own_label(attack)}{up:,.2f} thousand scalars up, {down:,.2f} down, all clients, paper count; {where}"]


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
