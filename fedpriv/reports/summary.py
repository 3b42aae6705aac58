"""The summary of each upload on a page: a table of answers by endpoint and threat model, and a section an endpoint.

Pages, the terminal and notebooks show the same table.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import Any, Final, NamedTuple

from fedpriv.eval.answers import Answer, Result, Word, about_of, page_answers, record_of, upload_key
from fedpriv.eval.endpoints import ENDPOINTS, THREATS, Endpoint, Record, Threat, endpoint_of, has_batches, threat_of
from fedpriv.eval.records import About, Provenance, ReconstructionRecord
from fedpriv.eval.words import (
    LEGEND,
    ROWS,
    SIGNS,
    able_words,
    cell,
    estimand_words,
    is_decibels,
    most_severe,
    percent,
    sentence,
    threat_title,
)
from fedpriv.reports.labels import card_meanings, local_work, point_labels, upload_size, upload_title
from fedpriv.reports.page import quantity

STATES: Final[dict[Word, str]] = {
    "leak": "leaks",
    "no leak detected": "none",
    "inconclusive": "untested",
    "not asked": "unasked",
}
"""Verdicts by how they look on a page."""

ASSUMED: Final[dict[Threat, str]] = {
    "protocol": "the server sees what crosses the wire, and owns auxiliary images",
    "white-box": "the server also holds the client's extractor, as papers assume",
}
"""Threat models in a line."""

LABELS_KNOWN: Final = "the server also knows the labels of the batches, as papers assume"
"""The same of papers on trained weights."""


class Mark(NamedTuple):
    """One answer in a cell of the table: how it looks, its shape, the verdict's word, and figures."""

    state: str
    sign: str
    word: str
    text: str

    @property
    def whole(self) -> str:
        """All of it in a line."""
        return " ".join(dict.fromkeys((self.sign, self.word, self.text))).strip()

    def __str__(self) -> str:
        return f"{self.word} {self.text}".strip()


class Row(NamedTuple):
    """One line of the table: an endpoint, the setting of several, and the answers by threat model."""

    endpoint: Endpoint
    setting: str
    cells: tuple[tuple[Mark, ...], ...]

    @property
    def name(self) -> str:
        """The head of the line."""
        return ", ".join(filter(None, (ROWS.get(self.endpoint, self.endpoint), self.setting)))


class Section(NamedTuple):
    """A section on an endpoint: the most severe answer in a sentence, its baseline and controls, the other answers."""

    endpoint: Endpoint
    state: str
    claim: str
    lines: tuple[str, ...]
    others: tuple[str, ...]


@dataclass(frozen=True)
class Subject:
    """An upload of a page, or one after several amounts of local work."""

    name: str  # what it is called beside the others
    head: tuple[str, ...]  # what it is, part by part
    about: Provenance  # of its first result
    settings: Mapping[str, tuple[Answer, ...]]  # answers by setting; the only one is called nothing
    results: Mapping[Any, Result]  # of all attacks on it

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answers of all settings."""
        return tuple(answer for answers in self.settings.values() for answer in answers)

    @property
    def threats(self) -> tuple[str, ...]:
        """Heads of the columns of the table."""
        return tuple(threat_title(threat, self.about.target) for threat in THREATS)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The table; an endpoint on which all settings have one answer has one line, and one that none answers another."""
        rows: list[Row] = []
        for endpoint in ENDPOINTS:
            every = [
                Row(endpoint, label, tuple(_marks(answers, endpoint, threat) for threat in THREATS))
                for label, answers in self.settings.items()
            ]
            asked = [row for row in every if any(one.state != STATES["not asked"] for one in chain(*row.cells))]
            alike = len(asked) == len(every) and len({row.cells for row in every}) == 1
            rows += [every[0]._replace(setting="")] if alike or not asked else asked
        return tuple(rows)

    def worst(self, endpoint: Endpoint | None = None) -> Answer | None:
        """Return the most severe answer, on one endpoint or on any."""
        return most_severe([answer for answer in self.answers if endpoint in (None, answer.endpoint)])

    def mark(self, endpoint: Endpoint | None = None) -> Mark:
        """Return the most severe answer on an endpoint as it stands in a cell; on any with all endpoints of that verdict."""
        worst = self.worst(endpoint)
        assert worst is not None  # every endpoint has an answer, if only that it was not asked
        if endpoint is not None:
            return mark(worst)
        alike = [name for name in ENDPOINTS if self.mark(name).state == STATES[worst.verdict]]
        return mark(worst)._replace(text=", ".join(alike))

    @property
    def facts(self) -> tuple[str, ...]:
        """Accuracy and traffic as far as they are recorded, mean over seeds, of the last setting."""
        abouts = [about_of(result) for result in self.results.values()]
        last = upload_key(max(abouts, key=_order))  # of settings of local work, the client's own training
        abouts = [about for about in abouts if upload_key(about) == last]
        runs = list({about.run_seed: about for about in abouts if isinstance(about, About)}.values())
        reached = [about.run_accuracy["after_training"].pooled for about in runs if about.run_accuracy]
        reached = reached or [about.accuracy for about in abouts if about.accuracy is not None][:1]
        sizes = [size[2] for about in runs if (size := upload_size(about)) is not None]
        parts = [f"accuracy {percent(fmean(reached))}"] if reached else []
        return (*parts, *([f"upload {quantity(fmean(sizes), 'B')} a client and round"] if sizes else []))

    @property
    def sections(self) -> tuple[Section, ...]:
        """One section for each endpoint that was asked."""
        return tuple(
            self._section(endpoint, worst)
            for endpoint in ENDPOINTS
            if (worst := self.worst(endpoint)) is not None and worst.verdict != "not asked"
        )

    def _section(self, endpoint: Endpoint, worst: Answer) -> Section:
        others = [
            f"{self._setting(one)}{sentence(one, named=False)}"
            for one in self.answers
            if one.endpoint == endpoint and one is not worst and one.verdict != "not asked"
        ]
        able = able_words(worst.able) if worst.verdict == "leak" and worst.able is not None else ""
        lines = filter(None, (_level(worst), _control(worst, self.behind(worst)), able))
        claim = f"{self._setting(worst)}{sentence(worst, named=False)}"
        return Section(endpoint, STATES[worst.verdict], claim, tuple(lines), tuple(others))

    def _setting(self, answer: Answer) -> str:
        label = next(label for label, answers in self.settings.items() if answer in answers)
        return f"At {label}: " if label else ""

    def behind(self, answer: Answer) -> dict[Any, Result]:
        """Return the results of the primary attack that an answer rests on."""
        return {
            key: result
            for key, result in self.results.items()
            if upload_key(about_of(result)) == answer.upload
            and record_of(result).title == answer.attack
            and endpoint_of(record_of(result)) == answer.endpoint
            and threat_of(record_of(result)) == answer.threat
        }

    @property
    def shown(self) -> Any:
        """The result whose pictures stand on the first screen: the primary's of the strongest threat model, or None."""
        asked = [one for one in self.answers if one.endpoint == "reconstruction" and one.verdict != "not asked"]
        first = most_severe(asked)
        return None if first is None else next(iter(self.behind(first)), None)

    @property
    def assumed(self) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
        """Each threat model that was attacked under: its title, a line, and what its attacks were given."""
        given: dict[Threat, dict[str, None]] = {}
        for answer in self.answers:
            for result in self.behind(answer).values():
                given.setdefault(answer.threat, {}).update(dict.fromkeys(card_meanings(about_of(result).knowledge)))
        lines = ASSUMED | ({"white-box": LABELS_KNOWN} if has_batches(self.about.target) else {})
        named = zip(THREATS, self.threats, strict=True)
        return tuple((title, lines[name], tuple(given[name])) for name, title in named if name in given)


def subjects(results: Mapping[Any, Result], answers: Sequence[Answer] | None = None) -> tuple[Subject, ...]:
    """Return the uploads of a page in the order in which they come; ``answers`` are those of all results together."""
    answers = page_answers(results) if answers is None else answers
    series: dict[str, dict[Any, Result]] = {}
    for key, result in results.items():  # all settings of a sweep over local work are one upload
        swept = () if about_of(result).reach is None else ("batch_size", "max_steps", "epochs")
        series.setdefault(upload_key(about_of(result), swept), {})[key] = result
    firsts = [about_of(next(iter(group.values()))) for group in series.values()]
    several = len({about.dataset for about in firsts}) > 1
    made = []
    for about, label, group in zip(firsts, point_labels(firsts), series.values(), strict=True):
        places: dict[str, Provenance] = {}
        for result in group.values():
            places.setdefault(upload_key(about_of(result)), about_of(result))
        ordered = sorted(places, key=lambda place: _order(places[place]))
        labels = {place: (places[place].reach_label or "all") if len(ordered) > 1 else "" for place in ordered}
        settings = {title: tuple(a for a in answers if a.upload == place) for place, title in labels.items()}
        name = f"{label}, {about.dataset}" if several else label
        made.append(Subject(name, _head(about, alone=len(ordered) == 1), about, settings, group))
    return tuple(made)


def _order(about: Provenance) -> tuple[bool, int, int]:
    """Return a key by which settings are put in order: a client's own training last, then by images and steps."""
    reach = about.reach
    return (False, 0, 0) if reach is None else (reach.setting == "epoch", reach.images, reach.steps)


def _head(about: Provenance, *, alone: bool) -> tuple[str, ...]:
    run = about.run
    parts = [upload_title(about), f"{about.target} uploads", about.dataset]
    if run is not None:
        parts += [f"{run.clients} clients", f"{run.rounds} round{'' if run.rounds == 1 else 's'}"]
    parts += [local_work(run)] if alone else []
    return tuple(filter(None, parts))


def _marks(answers: Iterable[Answer], endpoint: Endpoint, threat: Threat) -> tuple[Mark, ...]:
    there = [one for one in answers if (one.endpoint, one.threat) == (endpoint, threat)]
    return tuple(map(mark, there))


def mark(answer: Answer) -> Mark:
    """Return an answer as it stands in a cell."""
    sign, word = SIGNS[answer.verdict]
    about = f"({estimand_words(answer)})" if answer.estimand else ""
    return Mark(STATES[answer.verdict], sign, word, " ".join(filter(None, (about, cell(answer)))))


def _level(answer: Answer) -> str:
    """Return the levels of attack and baseline in dB, which the sentence leaves out."""
    if answer.value is None or answer.baseline is None or not is_decibels(answer):
        return ""
    return f"Attack {answer.value:.1f} dB, baseline {answer.baseline:.1f} dB."


def _control(answer: Answer, behind: Mapping[Any, Result]) -> str:
    """Return the level of the attack on shuffled uploads, mean over seeds."""
    values = [_shuffled(record_of(result)) for result in behind.values()]
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return "" if answer.named is not None else "Shuffled uploads: not run."
    mean = fmean(known)
    return f"Shuffled uploads: {f'{mean:+.1f} dB beside the baseline' if is_decibels(answer) else f'AUC {mean:.2f}'}."


def _shuffled(record: Record) -> float | None:
    if isinstance(record, ReconstructionRecord):
        there = record.control.difference_db
        return None if there is None else there.mean
    return None if record.shuffled is None else record.shuffled.auc.value


WIDTH: Final = 80
_FIRST = 18


def table_lines(subject: Subject) -> list[str]:
    """Return the head and the table of an upload as lines of plain text."""
    column = (WIDTH - _FIRST - 2) // len(THREATS)
    lines = [*textwrap.wrap(" · ".join(subject.head), WIDTH), _joined(["", *subject.threats], column)]
    for row in subject.rows:
        cells = [
            [line for one in marks for line in textwrap.wrap(str(one), column - 1, subsequent_indent="  ")]
            for marks in row.cells
        ]
        head = textwrap.wrap(row.name, _FIRST - 1)
        height = max(map(len, (head, *cells)))
        columns = [[*part, *[""] * (height - len(part))] for part in (head, *cells)]
        lines += [_joined(list(parts), column) for parts in zip(*columns, strict=True)]
    return [*lines, "", *textwrap.wrap(LEGEND, WIDTH)]


def _joined(parts: Sequence[str], column: int) -> str:
    return (parts[0].ljust(_FIRST) + "  " + "".join(part.ljust(column) for part in parts[1:])).rstrip()
