"""The result of attacking: typed records, verdicts, images, and how to show and keep them."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.experiment.saving import Tabular, copy_folder
from fedpriv.experiment.scratch import Scratch
from fedpriv.experiment.verbs.training import Run
from fedpriv.util.errors import UserError, shown, unknown_name
from fedpriv.util.escape import markup
from fedpriv.util.foreign import given_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from fedpriv.pages.findings import Finding
    from fedpriv.scoring.reasons import Verdict
    from fedpriv.scoring.records import InferenceResult, ReconstructionRecord
    from fedpriv.scoring.storage import AttackRecord


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
    def verdicts(self) -> dict[str, Verdict]:
        """By name of a folder, what may be said of each attack and inference when all are judged together."""
        from fedpriv.scoring.judgement import judge_page

        return judge_page({**self.records, **self.scores})

    @property
    def verdict(self) -> str:
        """Verdicts in words, one line an attack: the strongest first, then the inferences."""
        from fedpriv.scoring.verdict import words

        verdicts = self.verdicts
        lines = [f"{verdicts[name].attack}: {words(verdicts[name])}" for name in self._ranked()]
        return "\n".join(lines + [f"{name}: {words(verdicts[name])}" for name in self.scores])

    @property
    def findings(self) -> tuple[Finding, ...]:
        """One finding an upload, the most severe first, as the page has them; each with one sentence in short."""
        from fedpriv.pages.findings import findings
        from fedpriv.pages.labels import by_folder, judge_results

        scores = {self.path / name: record for name, record in self.scores.items()}
        results = by_folder([self.load(name) for name in self.records], scores)
        return findings(results, judge_results(results))

    def load(self, name: str | None = None) -> AttackRecord:
        """Return everything that was stored of one attack: reconstruction, control, truth and record."""
        from fedpriv.scoring.storage import load_attack

        ranked = self._ranked()
        chosen = ranked[0] if name is None and ranked else str(name)
        if chosen not in self.records:
            raise unknown_name("attack of this result", chosen, self.records)
        return load_attack(self.path / chosen)

    def images(self, name: str | None = None) -> Tensor:
        """Return the reconstructed images ``(T, M, c, h, w)`` of one attack, float32 in [0, 1]; M guesses a target."""
        result = self.load(name)
        if result.about.redacted != "none":
            raise UserError(f"{result.directory}: images were kept out of it (redact={shown(result.about.redacted)})")
        return result.reconstruction.images

    def figure(self, name: str | None = None) -> Figure:
        """Return the grid of one attack, targets at fixed quantiles of the score beside the truth and the floor."""
        from fedpriv.pages.grid import grid_figure

        return grid_figure(self.load(name))

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return the columns of ``results.csv``, one row an attack that returns images."""
        from fedpriv.pages.report import csv_rows

        verdicts: dict[tuple[Path, ...], Verdict] = {
            (self.path / name,): verdict for name, verdict in self.verdicts.items()
        }
        return csv_rows([self.load(name) for name in self.records], verdicts)

    def save(self, out: str | Path, *, force: bool = False) -> AttackResult:
        """Copy the result to a folder that stays, with its page, and return it from there."""
        from fedpriv.pages.report import write_report

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
        """Return the names of the attacks, the strongest of each threat model first."""
        from fedpriv.pages.labels import strongest_first

        return [name for group in strongest_first(list(self.records), self.records.__getitem__) for name in group]

    def __repr__(self) -> str:
        """Return the verdicts: records would fill pages of a terminal."""
        return f"{type(self).__name__}:\n{self.verdict}"

    def _draw(self) -> None:
        """Draw the grids that were left for later."""
        from fedpriv.pipeline.execute import draw

        for name in self.records:
            if not (self.path / name / "grid.png").is_file():
                draw(self.load(name))

    def _repr_html_(self) -> str:
        self._draw()
        lines = "".join(f"<p>{markup(line)}</p>" for line in (*self.verdict.splitlines(), *self.notices))
        grids = [self.path / name / "grid.png" for name in self._ranked()]
        shown = [base64.b64encode(grid.read_bytes()).decode("ascii") for grid in grids if grid.is_file()]
        return lines + "".join(f'<img alt="image grid" src="data:image/png;base64,{picture}">' for picture in shown)


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
