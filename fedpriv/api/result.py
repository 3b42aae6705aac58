"""The result of attacking: typed records, answers, images, and how to show and keep them; and the verb ``score``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.api.named_code import imports_what_is_named
from fedpriv.api.training import Run
from fedpriv.eval.answers import Answer, Result, page_answers
from fedpriv.eval.endpoints import ENDPOINTS
from fedpriv.eval.records import InferenceResult, ReconstructionRecord
from fedpriv.eval.redaction import NONE, read_rule
from fedpriv.eval.score import score as score_attack
from fedpriv.eval.storage import (
    ABOUT,
    MEMBERSHIP,
    PROPERTY,
    RECONSTRUCTION,
    TRUTH,
    AttackRecord,
    load_attack,
    save_attack,
    write_record,
)
from fedpriv.eval.words import sentence
from fedpriv.pipeline.execute import draw
from fedpriv.pipeline.result_folders import is_or_was_attack
from fedpriv.reports.attacks import result_items
from fedpriv.reports.grid import grid_figure
from fedpriv.reports.labels import strongest_first
from fedpriv.reports.page import table_rows
from fedpriv.reports.report import html_table, write_report
from fedpriv.reports.summary import Subject, subjects, table_lines
from fedpriv.study.saving import Scratch, Tabular, copy_folder
from fedpriv.util import files, folders
from fedpriv.util.errors import UserError, shown, unknown_name
from fedpriv.util.escape import markup
from fedpriv.util.foreign import given_path
from fedpriv.util.parallel import SILENT, Listener

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor


@dataclass(frozen=True)
class AttackResult(Tabular):
    """Results of attacks, scored beside baselines and the negative control.

    A temporary result (no ``out``) is removed when nothing refers to this object any more; :meth:`save` keeps it. A
    notebook shows it by itself.

    Attributes:
        path: folder with one folder an attack, and ``report.html``; of :func:`attack_uploads` without ``out``, once saved.
        records: name of a folder (``dip``, ``dip-early``) -> the record of an attack that returns images.
        scores: name of a folder -> the record of an inference (``membership``, ``property``), which returns scores.
        notices: what was left out, and why; one line each.
        run: the run that was attacked, or None where uploads came from elsewhere.
    """

    path: Path
    records: Mapping[str, ReconstructionRecord]
    scores: Mapping[str, InferenceResult] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    run: Run | None = None
    _scratch: Scratch | None = field(default=None, repr=False, compare=False)

    @property
    def answers(self) -> tuple[Answer, ...]:
        """Answers on each endpoint under each threat model, the primary attacks tested together."""
        return page_answers({**self.records, **self.scores})

    @property
    def verdict(self) -> str:
        """The most severe answer on each endpoint that was asked, one line an endpoint."""
        uploads = subjects({**self.records, **self.scores})
        worst = [upload.worst(endpoint) for upload in uploads for endpoint in ENDPOINTS]
        return "\n".join(sentence(answer) for answer in worst if answer is not None and answer.verdict != "not asked")

    @property
    def uploads(self) -> tuple[Subject, ...]:
        """Attacked uploads, each with its table of answers, accuracy and traffic, as the page has them."""
        attacks: dict[Path, Result] = {self.path / name: self.load(name) for name in self.records}
        return subjects({**attacks, **{self.path / name: record for name, record in self.scores.items()}})

    def load(self, name: str | None = None) -> AttackRecord:
        """Return everything that was stored of one attack: reconstruction, control, truth and record."""
        ranked = self._ranked()
        chosen = ranked[0] if name is None and ranked else str(name)
        if chosen not in self.records:
            raise unknown_name("attack of this result", chosen, self.records)
        return load_attack(self.path / chosen)

    def images(self, name: str | None = None) -> Tensor:
        """Return the reconstructed images ``(T, M, c, h, w)`` of one attack, float32 in [0, 1]; M guesses a target."""
        result = self.load(name)
        if result.about.redacted != NONE:
            raise UserError(f"{result.directory}: images were kept out of it (redact={shown(result.about.redacted)})")
        return result.reconstruction.images

    def figure(self, name: str | None = None) -> Figure:
        """Return the grid of one attack, targets at fixed quantiles of the score beside the truth and the floor."""
        return grid_figure(self.load(name))

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return the columns of ``results.csv``, one row an attack that returns images."""
        return table_rows("results.csv", result_items([self.load(name) for name in self.records]))

    def save(self, out: str | Path, *, force: bool = False) -> AttackResult:
        """Copy the result to a folder that stays, with its page, and return it from there."""
        self._draw()
        if not (self.path / "report.html").is_file():
            write_report(
                [self.path / name for name in self.records], self.path, [self.path / name for name in self.scores]
            )
        copy_folder(self.path, Path(out), "attacks", force=force)
        run = self.run
        if run is not None and self.path in run.path.parents:
            run = Run(Path(out) / run.path.relative_to(self.path), code=run.code)
        return AttackResult(Path(out), self.records, self.scores, self.notices, run)

    def _ranked(self) -> list[str]:
        """Return the names of the attacks, the strongest first."""
        return strongest_first(list(self.records), self.records.__getitem__)

    def __repr__(self) -> str:
        """Return the tables of answers: records would fill pages of a terminal."""
        tables = [table_lines(upload) for upload in subjects({**self.records, **self.scores})]
        return "\n".join(line for table in tables for line in table)

    def _draw(self) -> None:
        """Draw the grids that were left for later."""
        for name in self.records:
            if not (self.path / name / "grid.png").is_file():
                draw(self.load(name))

    def _repr_html_(self) -> str:
        return "".join(map(html_table, self.uploads)) + "".join(f"<p>{markup(line)}</p>" for line in self.notices)


def given_folders(results: Any, kinds: tuple[Any, ...]) -> list[Path]:
    """Return the folders of results: objects of some kinds, which know theirs, or paths; one or several."""
    item = isinstance(results, (str, Path, *kinds))
    if not item and not isinstance(results, (list, tuple, set, frozenset)):
        text = " or ".join([*(kind.__name__ for kind in kinds), "a folder"])
        raise UserError(f"results={shown(results)}: expected {text}, or a list of these")
    several = [results] if item else list(results)
    if not several:
        raise UserError(f"results={shown(several)}: expected at least one")
    return [each.path if isinstance(each, kinds) else given_path("results", each) for each in several]


# ---------------------------------------------------------------- scores anew

_NOT_STORED = "inference stores no scores of single candidates; attack again"

Scorable = AttackResult | str | Path


@imports_what_is_named
def score(
    results: Scorable | Sequence[Scorable],
    *,
    seed: int | None = None,
    redact: str | None = None,
    share_group: bool = False,
    allow_code: str | Sequence[str] = (),
    listener: Listener = SILENT,
) -> dict[Path, ReconstructionRecord]:
    """Score attacks again; rewrites their records and image grids, in place. Return the new records by attack directory.

    Membership and property inference are not scored again: they store no scores of single candidates.

    Args:
        results: what :func:`fedpriv.attack` returned, attack directories, folders that hold some; one or several.
        seed: of baselines and decoys (default: the attack's own), at least 0.
        redact: ``blur`` or ``omit`` pictures of people in these folders, for good: they cannot be scored again
            (docs/redaction.md). Pages that were made before are not made again.
        share_group: let your group read these folders, with the whole result or study that they lie in (docs/folders.md).
        allow_code: modules that may be imported although only a file names them (docs/reliability.md); one or several.
        listener: hears of the progress, and of what is not scored again.
    """
    if seed is not None and seed < 0:
        raise UserError(f"seed={shown(seed)}: expected at least 0")
    rule = read_rule(redact)
    paths = given_folders(results, (AttackResult,))
    records: dict[Path, ReconstructionRecord] = {}
    directories = _attack_directories(paths)
    with listener.progress("scoring") as report:
        for done, directory in enumerate(directories, start=1):
            with files.sharing(share_group), folders.held_with_those_around(directory):
                records[directory] = _score(directory, seed, rule)
            report(done, len(directories), directory.name)
    if rule != NONE:
        listener.say("pages that were made of these before show what they showed; make them again with report")
    for path in _inference_directories(paths):
        listener.say(f"not scored again: {path} ({_NOT_STORED})")
    return records


def _score(directory: Path, seed: int | None, rule: str) -> ReconstructionRecord:
    saved = load_attack(directory, scores=False)
    truths, about = saved.truths, saved.about.model_copy(update={"redacted": rule})
    if truths is None:
        raise UserError(f"{directory / TRUTH}: left out of this directory; without it nothing can be scored")
    used = saved.about.seed if seed is None else seed
    given = (saved.reconstruction, truths, saved.shuffled)
    record = score_attack(*given, seed=used, about=saved.about)
    draw(replace(saved, metrics=record, about=about))
    if rule == NONE:
        write_record(directory, record)
    else:
        stored: dict[str, Any] = {"reconstruction": saved.reconstruction, "truths": truths, "shuffled": saved.shuffled}
        save_attack(directory, about=about, metrics=record, **stored)
    return record


def _attack_directories(paths: Sequence[Path]) -> list[Path]:
    """Return the attack directories among and below the given folders (a suite, a study), in order."""
    results: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path}: no such folder; expected one that attack made")
        below = sorted({file.parent for name in (ABOUT, RECONSTRUCTION) for file in path.rglob(name)})
        inside = [path] if is_or_was_attack(path) else [folder for folder in below if is_or_was_attack(folder)]
        if not inside:
            scores = _inference_directories((path,))
            why = _NOT_STORED if scores else "holds no attack result (about.json of an attack is missing)"
            raise UserError(f"{path}: {why}")
        results |= dict.fromkeys(inside)
    return [*results]


def _inference_directories(paths: Sequence[Path]) -> list[Path]:
    """Return the folders of membership and property inference among and directly below the given folders."""
    files = {
        file for path in paths for name in (MEMBERSHIP, PROPERTY) for file in (path / name, *path.glob(f"*/{name}"))
    }
    return sorted(file.parent for file in files if file.is_file())
