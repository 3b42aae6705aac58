"""Rankings of a leaderboard: entries on one data set, attacked under one knowledge card, by one measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedpriv.pages.findings import Finding, Told
from fedpriv.scoring.ranking import card_key
from fedpriv.scoring.records import JudgedComparison, KnowledgeCard, LeaderboardEntry, Measure
from fedpriv.scoring.records.leaderboard import EnteredAttack
from fedpriv.scoring.records.made import Reach

ENOUGH = 20
"""From so many entries of a kind on, a page says where an upload stands among them."""

RANKED: dict[Measure, str] = {
    "images": "dB beyond the best guess",
    "vectors": "error of vectors below the best guess's",
    "membership": "AUC beyond the best guess's",
}
"""The measures by which entries are ranked, with what their figures are."""


@dataclass(frozen=True)
class Place:
    """An entry in a ranking.

    Attributes:
        entry: the entry.
        attack: the strongest on it by the measure, under the ranking's card.
        compared: that attack's comparison with the best guess, over all targets.
    """

    entry: LeaderboardEntry
    attack: EnteredAttack
    compared: JudgedComparison

    @property
    def gain(self) -> float:
        """The mean of the comparison."""
        return self.compared.mean if self.compared.mean is not None else float("-inf")


@dataclass(frozen=True)
class Ranking:
    """Entries of one kind of upload on one data set, attacked under one card, ranked by one measure.

    Attributes:
        target, dataset: what they share.
        work: the local work that they share, where it is told; else empty.
        card: what the attacker was granted.
        measure: by which they are ranked.
        places: the entry that gives away most comes first. Neighbours whose intervals overlap are not told apart.
    """

    target: str
    dataset: str
    work: str
    card: KnowledgeCard
    measure: Measure
    places: tuple[Place, ...]


def rankings(entries: Sequence[LeaderboardEntry]) -> tuple[Ranking, ...]:
    """Return all rankings, by kind of upload, data set, measure, and the number of entries."""
    found: dict[tuple[str, str, str, str, Measure], list[Place]] = {}
    for entry in entries:
        for (card, measure), place in _strongest(entry).items():
            found.setdefault((entry.target, entry.dataset, _work(entry.reach), card, measure), []).append(place)
    made = [
        Ranking(target, dataset, work, places[0].attack.knowledge, measure, tuple(sorted(places, key=_order)))
        for (target, dataset, work, _, measure), places in found.items()
    ]
    order = list(RANKED)

    def by_kind(one: Ranking) -> tuple[str, str, int, int, int]:
        reach = one.places[0].entry.reach
        return one.target, one.dataset, -1 if reach is None else reach.place, order.index(one.measure), -len(one.places)

    return tuple(sorted(made, key=by_kind))


def _work(reach: Reach | None) -> str:
    return "" if reach is None else reach.label


def _order(place: Place) -> tuple[float, str]:
    return -place.gain, place.entry.title


def _strongest(entry: LeaderboardEntry) -> dict[tuple[str, Measure], Place]:
    found: dict[tuple[str, Measure], Place] = {}
    for attack in entry.attacks:
        for measure in RANKED:
            compared = attack.verdict.overall(measure)
            if compared is None or compared.mean is None:
                continue
            key = (card_key(attack.knowledge), measure)
            if key not in found or found[key].gain < compared.mean:
                found[key] = Place(entry, attack, compared)
    return found


def standing(finding: Finding, entries: Sequence[LeaderboardEntry]) -> str:
    """Say where an upload stands among the entries of its kind; nothing where there are fewer than :data:`ENOUGH`.

    Entries are of its kind where they are of the same payload on the same data set, of the same local work where that is
    told, and attacked under the same card.

    Args:
        finding: what a page found on the upload.
        entries: of a leaderboard.
    """
    if finding.parts:
        return " ".join(filter(None, (standing(part, entries) for part in finding.parts)))
    said = []
    for ranking in rankings(entries):
        own = _own(finding.told, ranking)
        kind = finding.target, finding.dataset, _work(finding.setting)
        alike = (ranking.target, ranking.dataset, ranking.work) == kind
        if not alike or own is None or own.mean is None or len(ranking.places) < ENOUGH:
            continue
        less = [place for place in ranking.places if place.gain < own.mean]
        close = sum(_overlap(place.compared, own) for place in less)
        of = ", ".join(filter(None, (finding.dataset, ranking.work)))
        said.append(
            f"Of {len(ranking.places)} entries of the leaderboard on {finding.target} uploads of {of} under "
            f"the same card, {len(less)} give away less ({RANKED[ranking.measure]}: {own.mean:+.2f} here), "
            f"of which {close} cannot be told apart from it."
        )
    return " ".join(said)


def _own(told: Sequence[Told], ranking: Ranking) -> JudgedComparison | None:
    """Return the strongest attack's comparison under a ranking's card, or None where nothing was compared."""
    key = card_key(ranking.card)
    found = [one.verdict.overall(ranking.measure) for one in told if card_key(one.card) == key]
    return max((one for one in found if one is not None), key=_mean, default=None)


def _mean(one: JudgedComparison) -> float:
    return float("-inf") if one.mean is None else one.mean


def _overlap(one: JudgedComparison, other: JudgedComparison) -> bool:
    """True where two intervals overlap, or one of them is not known."""
    if one.ci95 is None or other.ci95 is None:
        return True
    return one.ci95[0] <= other.ci95[1] and other.ci95[0] <= one.ci95[1]
