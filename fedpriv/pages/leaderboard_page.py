"""A leaderboard as HTML and Markdown: what each upload gives away, then one ranking a card and a measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv.pages.card import card_words, spaced
from fedpriv.pages.page import environment, quantity
from fedpriv.pages.standings import ENOUGH, RANKED, Place, Ranking, rankings
from fedpriv.pages.upload_card import LEGEND, SIGNS, Mark, marks
from fedpriv.scoring.records import LeaderboardEntry
from fedpriv.scoring.verdict import BADGES
from fedpriv.util.files import write_text

HTML, MARKDOWN = "leaderboard.html", "leaderboard.md"


@dataclass(frozen=True)
class Row:
    """An entry as a table shows it.

    Attributes:
        entry: the entry.
        marks: on images, representations, membership and properties.
        setting: clients, rounds and models of the run, or where uploads came from.
        trained, received: accuracy after training and after the broadcast in per cent, or a dash.
        size: of one client's upload in a round.
    """

    entry: LeaderboardEntry
    marks: tuple[Mark, ...]
    setting: str
    trained: str
    received: str
    size: str


@dataclass(frozen=True)
class Bar:
    """A place of a ranking as a table shows it.

    Attributes:
        place: the place.
        figure: the strongest attack's figure with its interval.
        low, point, high: the same as positions in per cent of the ranking's scale; low and high are None without interval.
        word: what the attack's verdict is, in short.
    """

    place: Place
    figure: str
    low: float | None
    point: float
    high: float | None
    word: str


@dataclass(frozen=True)
class Table:
    """A ranking as a page shows it.

    Attributes:
        ranking: the ranking.
        card: the grants of its knowledge card, name and value.
        unit: what its figures are.
        zero: where no difference from a guess lies, in per cent of the scale.
        bars: its places.
    """

    ranking: Ranking
    card: Mapping[str, str]
    unit: str
    zero: float
    bars: tuple[Bar, ...]


def overview(entries: Sequence[LeaderboardEntry]) -> list[dict[str, Any]]:
    """Return one row an entry as a terminal shows it."""
    return [
        {
            "upload": row.entry.target,
            "of": row.entry.title,
            "data": row.entry.dataset,
            **{mark.question: f"{mark.sign} {mark.words}" for mark in row.marks},
            "accuracy": row.trained,
            "size": row.size,
        }
        for row in rows(entries)
    ]


def rows(entries: Sequence[LeaderboardEntry]) -> tuple[Row, ...]:
    """Return entries as tables show them, by kind of upload, data set and name: no order of merit."""

    def by_name(entry: LeaderboardEntry) -> tuple[str, str, str, str, int]:
        return entry.target, entry.dataset, entry.method, entry.defense, entry.reach.place if entry.reach else 0

    ordered = sorted(entries, key=by_name)
    return tuple(
        Row(
            entry=entry,
            marks=marks([one.verdict for one in entry.attacks]),
            setting=_setting(entry),
            trained=_percent(entry.accuracy.get("after_training")),
            received=_percent(entry.accuracy.get("after_broadcast")),
            size=quantity(entry.upload_bytes, "B"),
        )
        for entry in ordered
    )


def write_page(entries: Sequence[LeaderboardEntry], out: Path, remarks: Sequence[str] = ()) -> tuple[Path, ...]:
    """Write ``leaderboard.html`` and ``leaderboard.md`` into a folder, and return them.

    Args:
        entries: that nothing is wrong with.
        out: the folder.
        remarks: what a reader should know beside, a line each.
    """
    ranked = rankings(entries)
    values = {
        "kinds": kinds_of(entries),
        "tables": tuple(table(one) for one in ranked if len(one.places) > 1),
        "alone": tuple(table(one) for one in ranked if len(one.places) == 1),
        "card_text": _card_text,
        "signs": [(sign, state, LEGEND[state]) for state, sign in SIGNS.items()],
        "remarks": tuple(remarks),
        "enough": ENOUGH,
    }
    for name in (HTML, MARKDOWN):
        template = environment(autoescape=name == HTML).get_template(f"{name}.j2")
        write_text(out / name, template.render(values))
    return out / HTML, out / MARKDOWN


def kinds_of(entries: Sequence[LeaderboardEntry]) -> dict[str, list[Row]]:
    """Return rows by kind of upload."""
    found: dict[str, list[Row]] = {}
    for row in rows(entries):
        found.setdefault(row.entry.target, []).append(row)
    return found


def table(ranking: Ranking) -> Table:
    """Return a ranking with its places on one scale."""
    ends = [0.0]
    for place in ranking.places:
        ends += [place.gain, *(place.compared.ci95 or ())]
    low, high = min(ends), max(ends)
    span = (high - low) or 1.0

    def at(value: float) -> float:
        return round(2 + 96 * (value - low) / span, 2)

    bars = []
    for place in ranking.places:
        ci = place.compared.ci95
        figure = f"{place.gain:+.2f}" + ("" if ci is None else f" [{ci[0]:+.2f}, {ci[1]:+.2f}]")
        drawn = (None, None) if ci is None else (at(ci[0]), at(ci[1]))
        verdict = place.attack.verdict
        elsewhere = f", but {BADGES[verdict.kind]}" if verdict.claims else ""
        told = "more than a guess" if place.compared.stands else f"over all of them not told from a guess{elsewhere}"
        bars.append(Bar(place, figure, drawn[0], at(place.gain), drawn[1], told))
    return Table(ranking, card_words(ranking.card), RANKED[ranking.measure], at(0.0), tuple(bars))


def _card_text(card: Mapping[str, str]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {spaced(name, value)}" for name, value in card.items())


def _setting(entry: LeaderboardEntry) -> str:
    run, seeds = entry.run, f", {len(entry.seeds)} seeds" if len(entry.seeds) > 1 else ""
    if run is None:
        return f"uploads made elsewhere{seeds}"
    rounds = "1 round" if run.rounds == 1 else f"{run.rounds} rounds"
    work = "" if entry.reach is None else f", {entry.reach.words}"
    return f"{run.clients} clients, {rounds}, {run.models}{work}{seeds}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"
