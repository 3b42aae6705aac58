"""The verbs ``report``, one page over attacks, one over runs, and ``compare``, changes between two results or studies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack, cast

from fedpriv.api.named_code import imports_what_is_named
from fedpriv.eval.difference import FEW, LESS, MORE, NOISE, Difference, of_inferences, of_reconstructions, separated
from fedpriv.eval.records import About, InferenceResult, ReconstructionRecord
from fedpriv.eval.redaction import NONE, read_rule
from fedpriv.eval.storage import ABOUT, MEMBERSHIP, METRICS, PROPERTY, load_privacy_audit, load_scores, read_record
from fedpriv.pipeline.result_folders import differences, each_once, result_directories, unfinished
from fedpriv.reports.page import readable
from fedpriv.reports.report import load_scored, write_results
from fedpriv.reports.run_records import baselines, check_run
from fedpriv.reports.runs_report import PAGE, TARGET_ACCURACY, check_target, write_runs_report
from fedpriv.reports.study_report import read_results, together
from fedpriv.study.saving import Scratch, Tabular, place
from fedpriv.study.settings import Circumstances, refuse_unknown
from fedpriv.util import files, folders
from fedpriv.util.errors import UserError
from fedpriv.util.foreign import given_folders
from fedpriv.util.parallel import SILENT

if TYPE_CHECKING:
    from fedpriv.api.privacy_auditing import PrivacyAudit
    from fedpriv.api.result import AttackResult
    from fedpriv.api.training import Run

Reportable: TypeAlias = "AttackResult | Run | PrivacyAudit | str | Path"


@dataclass(frozen=True)
class Report:
    """A report that was written. A temporary one (no ``out``) is removed when nothing refers to this object any more.

    Attributes:
        path: folder of the pages.
        pages: ``report.html`` over attacks, ``runs.html`` over runs, one or both.
        attacks: folders of attacks, inferences and audits of epsilon that are in it.
        runs: folders of runs that are in it.
        notices: what was left out, and why, a line each.
    """

    path: Path
    pages: tuple[Path, ...]
    attacks: tuple[Path, ...]
    runs: tuple[Path, ...]
    notices: tuple[str, ...] = ()
    _scratch: Scratch | None = field(default=None, repr=False, compare=False)


@imports_what_is_named
def report(
    results: Reportable | Sequence[Reportable],
    *,
    target_accuracy: float | None = None,
    strict: bool = False,
    redact: str | None = None,
    **settings: Unpack[Circumstances],
) -> Report:
    """Report on attacks, runs and studies: what leaked, what it cost, how well it learned.

    Attacks give ``report.html``, ``report.md``, ``answers.csv`` and ``results.csv``; runs give ``runs.html``, ``runs.csv``
    and pictures.

    Args:
        results: what :func:`fedpriv.attack`, :func:`fedpriv.train` and :func:`fedpriv.audit_dp` returned, or folders that
            hold such results.
        target_accuracy: for runs: the cost of reaching it, in (0, 1] (default 0.7).
        strict: refuse what did not come to its end (run, suite, study) or is damaged; otherwise it is left out, and both
            ``listener`` and the pages name it.
        redact: ``blur`` or ``omit`` pictures of people, so that the report can be passed on (docs/redaction.md). What
            is stored redacted is never shown by a milder rule.
        settings: see :class:`Circumstances`; with ``redact`` everybody may read the report (docs/folders.md).
    """
    refuse_unknown(settings, Circumstances)
    rule, out, listener = read_rule(redact), settings.get("out"), settings.get("listener", SILENT)
    given = given_folders(results, ("AttackResult", "Run", "PrivacyAudit"))
    result, empty = result_directories(given)
    studies, no_studies = readable(result["study"], read_results)
    attacks, no_attacks = readable(result["attack"], load_scored)
    scores, no_scores = readable(result["membership"], load_scores)
    audits, no_audits = readable(result["privacy"], load_privacy_audit)
    trained_only = {path: own for path, own in studies.items() if own.facts.trained_only}
    of_studies = [run for own in trained_only.values() for run in own.runs]
    runs, no_runs = readable(dict.fromkeys([*result["run"], *of_studies]), check_run)
    left_out = [*no_studies, *no_attacks, *no_scores, *no_audits, *no_runs]
    left_out += [one for own in studies.values() for one in own.left_out]
    attacks = each_once([*attacks.items(), *(entry for own in studies.values() for entry in own.attacks.items())])
    scores = each_once([*scores.items(), *(item for own in studies.values() for item in own.scores.items())])
    if out is not None:
        for path in [*(path for paths in result.values() for path in paths), *attacks, *scores]:
            folders.refuse_overlap(Path(out), {"results": path})
        for path in given:
            folders.refuse_overlap(Path(out), {}, around={"folder": path})
    leaks = bool(attacks or scores or audits or studies.keys() - trained_only.keys())
    if target_accuracy is not None and not runs:
        raise UserError("target_accuracy: applies to runs; pass some, such as those in the folder runs of a study")
    target = TARGET_ACCURACY if target_accuracy is None else target_accuracy
    check_target(target)
    complaints = [f"{line}; left out of the report" for line in [*empty, *map(str, left_out)]] + unfinished(given)
    complaints += [
        f"{study}: cell {cell.cell} {cell.status}: {cell.why}"
        for study, current in studies.items()
        for cell in current.facts.failed
    ]
    if complaints and strict:
        raise UserError(f"strict: {complaints[0]}")
    if not (leaks or runs):
        raise UserError(str(left_out[0]))
    for line in complaints:
        listener.warn(line)
    folder, scratch = place(out)
    how = {"force": settings.get("force", False), "public": rule != NONE}
    with files.sharing(settings.get("share_group", False)), folders.output(folder, "report", **how):
        if runs:
            beside = "report.html" if leaks else None
            write_runs_report(list(runs), folder, target_accuracy=target, attacks=beside, left_out=left_out)
        if leaks:
            write_results(
                list(attacks.values()),
                scores,
                folder,
                runs=PAGE if runs else None,
                study=together({path: own.facts for path, own in studies.items() if path not in trained_only}),
                alone=baselines([*runs, *(run for own in studies.values() for run in own.runs)]),
                left_out=left_out,
                audits=list(audits.values()),
                redact=rule,
            )
    pages = tuple(folder / name for name, some in (("report.html", leaks), (PAGE, bool(runs))) if some)
    return Report(folder, pages, (*attacks, *scores, *audits), tuple(runs), tuple(complaints), scratch)


# ---------------------------------------------------------------- changes between two

Record: TypeAlias = "ReconstructionRecord | InferenceResult"


@dataclass(frozen=True)
class Changes(Tabular):
    """Changes between two results or studies. As text they can be pasted into a paper's notes.

    Attributes:
        rows: one for each result that both have: its ``name``, the ``quantity``, ``before``, ``after``, ``difference`` with
            ``low`` and ``high`` (its 95 % interval), whether ``paired``, the accuracies, and a ``verdict``.
        settings: what differs in how they were made, a line each.
        only_before, only_after: names of results that only one has.
    """

    rows: tuple[Mapping[str, Any], ...]
    settings: tuple[str, ...]
    only_before: tuple[str, ...] = ()
    only_after: tuple[str, ...] = ()

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return the rows."""
        return self.rows

    @property
    def same(self) -> bool:
        """True where no figure, setting or name differs."""
        differs = self.settings or self.only_before or self.only_after
        return not differs and all(row["difference"] == 0 for row in self.rows)

    @property
    def verdict(self) -> str:
        """All of it in one line."""
        if self.same:
            return f"both are the same: {len(self.rows)} results, with equal figures"
        tested = [row for row in self.rows if row["verdict"] in (MORE, LESS, NOISE)]
        real = [f"{row['name']} {row['verdict']}" for row in tested if row["verdict"] != NOISE]
        if not tested:
            return "nothing can be compared: no two results are of one kind, threat model and version of scoring"
        verb = "is" if len(real) == 1 else "are"
        text = f"of {len(tested)} differences {len(real)} {verb} told from noise (95 %, tested together)"
        return text + (f": {', '.join(real)}" if real else "")

    def __str__(self) -> str:
        lines = [f"changed: {line}" for line in self.settings] or ["changed: no setting that is stored"]
        lines += [f"only in the first: {name}" for name in self.only_before]
        lines += [f"only in the second: {name}" for name in self.only_after]
        return "\n".join([*([] if self.same else lines), self.verdict])


@imports_what_is_named
def compare(
    before: AttackResult | str | Path, after: AttackResult | str | Path, *, allow_code: str | Sequence[str] = ()
) -> Changes:
    """Say what changed between two results of attacks, or two studies, and which of it is more than noise.

    Results are compared by their names (``dip``, ``unmix-early``; in studies with their cell's). Where both attacked the
    same images, image by image; else by what each is ahead of its baseline. Results under different threat models, or of
    different kinds or versions of scoring, are not compared. Accuracies are of one training each and have no interval.

    Args:
        before: what :func:`fedpriv.attack` returned, or a folder with results or a study.
        after: the same.
        allow_code: modules that may be imported although only a file names them (docs/reliability.md); one or several.
    """
    first, second = _results(before), _results(after)
    names = [name for name in first if name in second]
    if not names:
        raise UserError(f"no result of one name: the first has {', '.join(first)}; the second has {', '.join(second)}")
    changed: dict[str, None] = {}
    for name in names:
        made = differences(_made(first[name][1]), _made(second[name][1]))
        changed |= dict.fromkeys(f"{key}: {one} -> {other}" for key, (one, other) in made.items())
    return Changes(
        tuple(_rows({name: (first[name][0], second[name][0]) for name in names})),
        tuple(changed),
        tuple(name for name in first if name not in second),
        tuple(name for name in second if name not in first),
    )


def _results(given: AttackResult | str | Path) -> dict[str, tuple[Record, About | InferenceResult]]:
    """Return every result in a folder by its place in it: its record, and how it was made."""
    root = given_folders(given, ("AttackResult",))[0]
    if not root.is_dir():
        raise UserError(f"{root}: no such folder; expected one that attack or audit made")
    results = {}
    for file in sorted(path for name in (METRICS, MEMBERSHIP, PROPERTY) for path in root.rglob(name)):
        position, record = file.parent.relative_to(root), cast("Record", read_record(file))
        about = read_record(file.parent / ABOUT) if file.name == METRICS else record
        results[str(position) if position.parts else record.attack] = record, cast("About | InferenceResult", about)
    if not results:
        raise UserError(f"{root}: holds no result of an attack; expected a folder that attack or audit made")
    return results


def _rows(pairs: Mapping[str, tuple[Record, Record]]) -> Iterator[dict[str, Any]]:
    results = {name: _difference(first, second) for name, (first, second) in pairs.items()}
    apart = iter(separated([entry for entry in results.values() if not isinstance(entry, str)]))
    for name, item in results.items():
        row: dict[str, Any] = {"name": name}
        row |= dict.fromkeys(("quantity", "before", "after", "difference", "low", "high", "paired"))
        for when, record in zip(("before", "after"), pairs[name], strict=True):
            row[f"accuracy {when}"] = record.accuracy
        if isinstance(item, str):
            yield row | {"verdict": f"not compared: {item}"}
            continue
        real = next(apart)
        verdict = FEW if item.p_value is None else NOISE if not real else MORE if item.mean > 0 else LESS
        low, high = item.ci95 or (None, None)
        row |= {key: getattr(item, key) for key in ("quantity", "before", "after", "paired")}
        yield row | {"difference": item.mean, "low": low, "high": high, "verdict": verdict}


def _difference(item: Record, other: Record) -> Difference | str:
    """Return the difference of two results, or why they are not compared."""
    if item.kind != other.kind or item.target != other.target:
        return f"{item.kind} of {item.target}, and {other.kind} of {other.target}"
    if item.knowledge != other.knowledge:
        return "under different threat models"
    if item.scoring_version != other.scoring_version:
        return "scored by different versions; score both again"
    compared: Any = of_reconstructions if item.kind == "reconstruction" else of_inferences
    return cast("Difference", compared(item, other))


_MADE = ("attack", "attack_version", "method", "dataset", "seed", "knowledge", "options", "run", "stage")
"""Fields of how a result was made that are compared; defenses are by their labels."""


def _made(about: About | InferenceResult) -> dict[str, Any]:
    made = about.model_dump(mode="json", include=set(_MADE))
    if isinstance(made["run"], dict):
        made["run"].pop("defenses", None)
    return made | {"defenses": about.defense}
