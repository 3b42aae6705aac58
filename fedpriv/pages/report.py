"""One page over one or more attack directories, as HTML, Markdown, CSV and SVG. A function of the saved records alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedpriv.pages import membership_report, property_report
from fedpriv.pages.alike import Verdicts, by_folder, judge_results
from fedpriv.pages.baselines import Baselines, gain_words
from fedpriv.pages.budget_curve import budget_curves, curve_svg
from fedpriv.pages.columns import table_files
from fedpriv.pages.csv_table import csv_rows, frontier_rows
from fedpriv.pages.curves import image_source
from fedpriv.pages.defense_table import defenses
from fedpriv.pages.findings import findings
from fedpriv.pages.frontier import frontiers
from fedpriv.pages.frontier_plot import WITHOUT_LOCAL, effect_words, frontier_svg
from fedpriv.pages.guarantees import Guarantee
from fedpriv.pages.left_out import LeftOut
from fedpriv.pages.page import environment, with_scripts
from fedpriv.pages.privacy_claims import audited_claims
from fedpriv.pages.reach_curve import reach_curve_svg, reach_curves, reach_rows
from fedpriv.pages.report_entries import gain_span, groups_of, number, span
from fedpriv.pages.report_sections import commands, federations, frontier_views, versions
from fedpriv.pages.round_curve import round_curve_svg, round_curves
from fedpriv.pages.score_section import html_sections, markdown_sections
from fedpriv.pages.stage_table import stage_tables
from fedpriv.pages.study_settings import StudySettings
from fedpriv.pages.upload_card import LEGEND, SIGNS, short_name, upload_cards
from fedpriv.scoring.convergence import objective
from fedpriv.scoring.floors import CONTROL, FLOOR, LABELS
from fedpriv.scoring.ranking import in_order, largest_budgets
from fedpriv.scoring.records import InferenceResult, Labels, PrivacyAuditRecord, Provenance
from fedpriv.scoring.redaction import NONE, stricter
from fedpriv.scoring.storage import AttackRecord, load_attack, load_scores, scored
from fedpriv.scoring.verdict import BADGES, TOGETHER
from fedpriv.scoring.verdict import inferred as inferred_words
from fedpriv.util.errors import UserError
from fedpriv.util.escape import Markdown
from fedpriv.util.files import write_text

if TYPE_CHECKING:
    from markupsafe import Markup

__all__ = ["StudyFacts", "UnfinishedCell", "number", "slug", "span", "write_report"]

_TITLES = {"membership": membership_report.TITLE, "property": property_report.TITLE}
"""Sections on attacks that return scores, by the kind of their records."""

P = TypeVar("P", bound=Provenance)

_FILTERS: Mapping[str, Callable[..., Any]] = {
    "number": number,
    "span": span,
    "gain_span": gain_span,
    "label": lambda name: LABELS.get(name, name),
    "objective": objective,
    "effect": effect_words,
    "gain": gain_words,
}
"""Of templates, beside those of every page."""


@dataclass(frozen=True)
class UnfinishedCell:
    """A cell of a study that has no result, or not all of them.

    Attributes:
        cell: its name in the study.
        method, defense, target, seed: what it is.
        status: ``failed``, ``pending``, or ``lost`` where results that were made are gone or damaged.
        why: one line.
    """

    cell: str
    method: str
    defense: str
    target: str
    seed: int
    status: str
    why: str


@dataclass(frozen=True)
class StudyFacts:
    """Additions of a study to the results of its attacks.

    Attributes:
        cells: how many it has.
        failed: those that are not done.
        privacy: guarantees accounted over whole runs.
        commands: what made it; of several studies each one's.
        settings: what each study asked for.
        labels: by the resolved folder of a result, what the study calls its ``method`` and its ``defense``.
        trained_only: nothing is attacked in it.
    """

    cells: int
    failed: tuple[UnfinishedCell, ...] = ()
    privacy: tuple[Guarantee, ...] = ()
    commands: tuple[str, ...] = ()
    settings: tuple[StudySettings, ...] = ()
    labels: Mapping[Path, Labels] = field(default_factory=dict)
    trained_only: bool = False

    @property
    def done(self) -> int:
        """The number of cells that came to their end."""
        return self.cells - len(self.failed)


@dataclass(frozen=True)
class Others:
    """Additions to a page beside attacks and inferences.

    Attributes:
        left_out: results that could not be read, which the page names.
        audits: of claims of differential privacy.
    """

    left_out: Sequence[LeftOut] = ()
    audits: Sequence[PrivacyAuditRecord] = ()


def write_report(
    directories: Sequence[Path],
    out: Path,
    membership: Sequence[Path] = (),
    *,
    runs: str | None = None,
    study: StudyFacts | None = None,
    alone: Baselines | None = None,
) -> None:
    """Write ``report.html``, ``report.md``, ``results.csv``, the frontier and the curves into the folder ``out``.

    Args:
        directories: attack directories that have been scored.
        out: folder to write to; it is made where it is missing.
        membership: folders that hold a ``membership.json`` or a ``property.json``.
        runs: file name of the page about runs beside this one, or None.
        study: the study that the results are of, or None.
        alone: accuracies of clients that exchange nothing.

    Raises:
        UserError: when there are none, or one is damaged or was not scored.
    """
    if not directories and not membership and study is None:
        raise UserError("report: no attack directories; give at least one")
    results = [load_attack(Path(directory)) for directory in directories]
    scores = {Path(folder): load_scores(Path(folder)) for folder in membership}
    write_results(results, scores, out, runs=runs, study=study, alone=alone)


def load_scored(directory: Path) -> AttackRecord:
    """Return an attack directory, read and checked.

    Raises:
        UserError: when it is damaged or was not scored.
    """
    attack = load_attack(directory)
    scored(attack)
    return attack


def write_results(
    attacks: Sequence[AttackRecord],
    inferred: Mapping[Path, InferenceResult],
    out: Path,
    *,
    runs: str | None = None,
    study: StudyFacts | None = None,
    alone: Baselines | None = None,
    others: Others = Others(),
    redact: str = NONE,
) -> None:
    """Write the same of results that are read already.

    Args:
        attacks: that return images, scored.
        inferred: records of inferences by their folders.
        out: folder to write to.
        runs: as of :func:`write_report`.
        study: likewise.
        alone: likewise.
        others: what is on the page beside.
        redact: rule by which pictures are kept out of the page; what is stored redacted is shown by the stricter rule.

    Raises:
        UserError: when an attack was not scored.
    """
    attacks = [redacted(attack, redact) for attack in attacks]
    called = {} if study is None else study.labels
    results = [called_by(attack, called) for attack in attacks]
    scores = {folder: _labels(record, folder, called) for folder, record in inferred.items()}
    largest = largest_budgets(results, scored, lambda attack: attack.about)
    curves, rounds = budget_curves(in_order(results, scored)), round_curves(in_order(largest, scored))
    pictures = _drawn("budget", curves, curve_svg)
    by_round = _drawn("rounds", rounds, round_curve_svg)
    verdicts = judge_results(by_folder(results, scores))
    points = frontiers(by_folder(largest, scores), verdicts, alone)
    values = _values(results, scores, study, verdicts, others.audits)
    reaches = reach_curves(in_order(results, scored), verdicts, values["findings"])
    by_reach = _drawn("reach", reaches, reach_curve_svg)
    values |= {
        "frontiers": frontier_views(points),
        "runs": runs,
        "left_out": others.left_out,
        **_pictured("curves", curves, "files", "pictures", pictures),
        **_pictured("rounds", rounds, "round_files", "round_pictures", by_round),
        **_pictured("reaches", reaches, "reach_files", "reach_pictures", by_reach),
    }
    as_html, as_markdown = score_sections(scores, verdicts)
    written = {
        "report.html": _page({**values, "scores": as_html}),
        "report.md": _markdown("report.md.j2", {**values, "scores": as_markdown}),
        **table_files("results.csv", csv_rows(results, verdicts, alone)),
        **({"frontier.svg": frontier_svg(points)} if points else {}),
        **(table_files("frontier.csv", frontier_rows(points)) if points else {}),
        **(table_files("reach.csv", reach_rows(reaches)) if reaches else {}),
        **(pictures | by_round | by_reach),
    }
    for file, text in written.items():  # only once all of them could be made
        write_text(out / file, text)


def _drawn(name: str, curves: Sequence[Any], draw: Callable[[Any], str]) -> dict[str, str]:
    """Return pictures of curves by the names of their files."""
    return {f"{name}-{n}-{slug(curve.name)}.svg": draw(curve) for n, curve in enumerate(curves, start=1)}


def _pictured(name: str, curves: Sequence[Any], files: str, sources: str, drawn: Mapping[str, str]) -> dict[str, Any]:
    """Return curves, the names of their files, and their pictures as sources of images, each under its name."""
    encoded = list(map(image_source, drawn.values()))
    return {name: curves, files: list(drawn), sources: encoded}


def _labels(about: P, folder: Path, called: Mapping[Path, Labels]) -> P:
    return about.model_copy(update={"labels": called.get(folder.resolve())})


def redacted(attack: AttackRecord, rule: str) -> AttackRecord:
    """Return an attack whose pictures are shown by a rule, or by the stricter one by which it is stored."""
    kept = stricter(attack.about.redacted, rule)
    return replace(attack, about=attack.about.model_copy(update={"redacted": kept}))


def called_by(attack: AttackRecord, called: Mapping[Path, Labels]) -> AttackRecord:
    """Return an attack with the labels that a study gives it, by its resolved folder."""
    return replace(attack, about=_labels(attack.about, attack.directory, called))


def score_sections(scores: Mapping[Path, InferenceResult], verdicts: Verdicts) -> tuple[Markup, Markdown]:
    """Return the sections on membership and property inference, as HTML and as Markdown; empty without records."""
    members = {folder: record for folder, record in scores.items() if record.kind == "membership"}
    answers = {folder: record for folder, record in scores.items() if record.kind == "property"}
    details, answered = ([inferred_words(verdicts[folder,]) for folder in current] for current in (members, answers))
    sections = (
        *membership_report.sections(list(members.values()), details),
        *property_report.sections(list(answers.values()), answered),
    )
    return html_sections(sections), markdown_sections(sections)


def slug(name: str) -> str:
    """Return a name as part of a file name, of which no system takes more than some 250 bytes.

    >>> slug("dip on entangled uploads of fedre, digits")
    'dip-on-entangled-uploads-of-fedre-digits'
    """
    return "-".join("".join(c if c.isascii() and c.isalnum() else " " for c in name.lower()).split())[:120]


def _values(
    attack_records: Sequence[AttackRecord],
    scores: Mapping[Path, InferenceResult],
    study: StudyFacts | None,
    verdicts: Verdicts,
    audits: Sequence[PrivacyAuditRecord],
) -> dict[str, Any]:
    # Of an attack with several budgets the largest stands for it: choosing by score would be choosing by the truth.
    shown = largest_budgets(attack_records, scored, lambda attack: attack.about)
    # A study's command makes all of its results, so it stands for what each of them recorded.
    made: list[Provenance] = [*(attack.about for attack in attack_records), *scores.values()]
    made_by = commands([about for about in made if about.labels is None])
    if study is not None:
        made_by = tuple(dict.fromkeys((*study.commands, *made_by)))
    said = findings(by_folder(shown, scores), verdicts)
    groups = groups_of(shown, verdicts)
    kinds = {record.kind for record in scores.values()}
    return {
        "count": len(shown),
        "scoring": len(scores),
        "anchors": {entry.directory: entry.anchor for group in groups for entry in group.entries},
        "score_titles": [title for kind, title in _TITLES.items() if kind in kinds],
        "findings": said,
        "cards": upload_cards(said, shown),
        "short_name": short_name,
        "signs": [(SIGNS[state], state, words) for state, words in LEGEND.items()],
        "badges": BADGES,
        "together": TOGETHER,
        "federations": federations(shown, said),
        "groups": groups,
        "stages": stage_tables(in_order(shown, scored)),
        "defenses": defenses(shown, audits),
        "audited": audited_claims(audits),
        "study": study,
        "commands": made_by,
        "versions": versions(shown),
        "words": {"floor": FLOOR, "control": CONTROL, "without_local": WITHOUT_LOCAL},
    }


def _page(values: Mapping[str, Any]) -> str:

    more = {"contents": _contents(values)}
    return with_scripts("report.html.j2", "report.js", values={**values, **more}, filters=_FILTERS)


def _contents(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the sections that the page has, as (anchor, name)."""
    groups, study = values["groups"], values["study"]
    several = len(groups) > 1
    cards = [(f"card-{n}", f"Card {n}" if several else "Attacks") for n in range(1, len(groups) + 1)]
    wanted = [
        ("findings", "Findings", values["findings"]),
        ("privacy", "Privacy claims", values["audited"]),
        ("reach", "Reach", values["reaches"]),
        ("runs", "What was attacked", values["findings"]),
        *((anchor, name, True) for anchor, name in cards),
        ("frontier", "Frontier", values["frontiers"]),
        ("stages", "Stages", values["stages"]),
        ("rounds", "Leakage by round", values["rounds"]),
        ("budgets", "Budgets", values["curves"]),
        ("defenses", "Defenses", values["defenses"] or (study is not None and study.privacy)),
        *((title.lower(), title, True) for title in values["score_titles"]),
        ("details", "Each attack", groups),
        ("failed", "What did not finish", study is not None and study.failed),
        ("left-out", "Left out", values["left_out"]),
        ("reproduce", "How to reproduce", True),
        ("terms", "How to read this page", True),
    ]
    return [(anchor, name) for anchor, name, there in wanted if there]


def _markdown(template: str, values: Mapping[str, Any]) -> str:
    home = environment(autoescape=False)
    home.filters |= _FILTERS
    return home.get_template(template).render(values)
