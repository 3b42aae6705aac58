"""One page over attacks, inferences and audits, as HTML, Markdown, CSV and SVG. A function of the saved records alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from fedpriv.eval.answers import Result, page_answers
from fedpriv.eval.endpoints import ENDPOINTS
from fedpriv.eval.records import InferenceResult, Labels, PrivacyAuditRecord, Provenance
from fedpriv.eval.redaction import NONE, stricter
from fedpriv.eval.storage import StoredAttack, load_scores, load_stored, scored
from fedpriv.eval.words import TITLES, TOGETHER
from fedpriv.reports.attacks import entries_of, result_items
from fedpriv.reports.charts import frontier_svg
from fedpriv.reports.frontier import frontier_items, frontiers, recommendation
from fedpriv.reports.labels import defense_label, method_label
from fedpriv.reports.page import LeftOut, environment, image_source, table_text, with_script
from fedpriv.reports.privacy import Guarantee, audited_claims, defenses
from fedpriv.reports.run_records import Baselines, gain_words
from fedpriv.reports.summary import Subject, subjects
from fedpriv.util.files import write_text
from fedpriv.util.glossary import words

P = TypeVar("P", bound=Provenance)


@dataclass(frozen=True)
class UnfinishedCell:
    """A cell of a study that has no result, or not all; ``lost`` where results that were made are gone or damaged."""

    cell: str
    method: str
    defense: str
    target: str
    seed: int
    status: str
    why: str

    def __str__(self) -> str:
        return f"cell {self.cell} {self.status}: {self.why}"


@dataclass(frozen=True)
class StudyFacts:
    """Additions of a study to the results of its attacks."""

    cells: int
    failed: tuple[UnfinishedCell, ...] = ()  # cells that are not done
    privacy: tuple[Guarantee, ...] = ()
    commands: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()  # title, and what was asked for as JSON, of each study
    labels: Mapping[Path, Labels] = field(default_factory=dict)  # by the resolved folder of a result
    trained_only: bool = False  # nothing is attacked in it

    @property
    def done(self) -> int:
        """The number of cells that came to their end."""
        return self.cells - len(self.failed)


def write_report(directories: Sequence[Path], out: Path, inferred: Sequence[Path] = ()) -> None:
    """Write ``report.html``, ``report.md``, tables and pictures on scored attacks and inferences into the folder ``out``."""
    write_results(list(map(load_stored, directories)), {folder: load_scores(folder) for folder in inferred}, out)


def load_scored(directory: Path) -> StoredAttack:
    """Return the records of an attack that was scored, its files checked."""
    attack = load_stored(directory)
    scored(attack)
    return attack


def write_results(
    attacks: Sequence[StoredAttack],
    inferred: Mapping[Path, InferenceResult],
    out: Path,
    *,
    runs: str | None = None,
    study: StudyFacts | None = None,
    alone: Baselines | None = None,
    left_out: Sequence[LeftOut] = (),
    audits: Sequence[PrivacyAuditRecord] = (),
    redact: str = NONE,
) -> None:
    """Write the same of results that are read already, and of audits of claims of differential privacy.

    ``runs`` is the file name of the page about runs beside this one, ``alone`` has accuracies of clients that exchange
    nothing, and ``redact`` is the rule for pictures; what is stored redacted is shown by the stricter rule.
    """
    called = {} if study is None else study.labels
    results = [_shown(attack, called, redact) for attack in attacks]
    scores = {folder: _labelled(record, folder, called) for folder, record in inferred.items()}
    everything: dict[Path, Result] = {**{attack.directory: attack for attack in results}, **scores}
    answers = page_answers(everything)
    uploads, points = subjects(everything, answers), frontiers(everything, answers, alone)
    compared = [item for item in points if len(item.points) > 1]
    # A study's command makes all of its results, so it stands for what each of them recorded.
    made: list[Provenance] = [*(attack.about for attack in results), *scores.values()]
    commands = [*(study.commands if study else ()), *(m.command for m in made if m.labels is None and m.command)]
    values: dict[str, Any] = {
        "uploads": uploads,
        "matrix": _matrix(uploads),
        "entries": entries_of(everything),
        "gains": {point.label: point.gains["after_training"] for item in points for point in item.points},
        "chart": image_source(frontier_svg(compared).encode()) if compared else "",
        "recommended": [recommendation(item) for item in compared],
        "endpoints": ENDPOINTS,
        "titles": {name: f"{name.capitalize()}: {TITLES[name]}" for name in ENDPOINTS},
        "together": TOGETHER,
        "defenses": defenses(results, audits),
        "audited": audited_claims(audits),
        "study": study,
        "commands": list(dict.fromkeys(commands)),
        "runs": runs,
        "left_out": left_out,
    }
    settings = [(upload, setting, some) for upload in uploads for setting, some in upload.settings.items()]
    rows = [{"upload": upload, "setting": name, "answer": answer} for upload, name, some in settings for answer in some]
    text = environment(autoescape=False).get_template("report.md.j2").render(values)
    values["terms"] = [word for word in words() if not word.target and word.names[0].lower() in text.lower()]
    files = {
        "report.html": with_script("report.html.j2", "report.js", values, {"gain": gain_words}),
        "report.md": text,
        "answers.csv": table_text("answers.csv", rows),
        "results.csv": table_text("results.csv", result_items(results, alone)),
    }
    if points:
        files |= {"frontier.svg": frontier_svg(points)}
        files |= {"frontier.csv": table_text("frontier.csv", frontier_items(points))}
    for file, text in files.items():  # only once all of them could be made
        write_text(out / file, text)


def _labelled(about: P, folder: Path, called: Mapping[Path, Labels]) -> P:
    return about.model_copy(update={"labels": called.get(folder.resolve())})


def _shown(attack: StoredAttack, called: Mapping[Path, Labels], rule: str) -> StoredAttack:
    about = _labelled(attack.about, attack.directory, called)
    return replace(attack, about=about.model_copy(update={"redacted": stricter(about.redacted, rule)}))


def _matrix(uploads: Sequence[Subject]) -> dict[str, Any] | None:
    """Return uploads by defenses; None where there is one defense, or an upload would share its place with another."""
    rows: dict[str, dict[str, Subject]] = {}
    for upload in uploads:
        name = ", ".join((method_label(upload.about), upload.about.target, upload.about.dataset))
        if rows.setdefault(name, {}).setdefault(defense_label(upload.about), upload) is not upload:
            return None
    columns = list(dict.fromkeys(defense for row in rows.values() for defense in row))
    return {"columns": columns, "rows": rows} if len(columns) > 1 else None


def html_table(upload: Subject) -> str:
    """Return the head, the table and the strip of pictures of an upload as HTML, for a notebook."""
    entries = entries_of({key: result for key, result in upload.results.items() if key == upload.shown})
    values = {"upload": upload, "entries": entries}
    return environment(autoescape=True).get_template("notebook.html.j2").render(values)
