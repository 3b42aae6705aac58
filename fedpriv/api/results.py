"""The result of attacking, and the verbs on results: ``score``, ``report``, and ``compare``, changes between two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack, cast

from fedpriv.api.named_code import verb
from fedpriv.eval import storage
from fedpriv.eval.answers import Answer, Result, page_answers
from fedpriv.eval.difference import FEW, LESS, MORE, NOISE, Difference, of_inferences, of_reconstructions, separated
from fedpriv.eval.endpoints import ENDPOINTS
from fedpriv.eval.gate import Check, endpoints_of, gate
from fedpriv.eval.records import About, InferenceResult, Provenance, ReconstructionRecord
from fedpriv.eval.redaction import NONE, read_rule
from fedpriv.eval.words import sentence
from fedpriv.pipeline.result_folders import differences, each_once, is_or_was_attack, result_directories, unfinished
from fedpriv.reports.attacks import result_items
from fedpriv.reports.labels import strongest_first
from fedpriv.reports.page import readable, table_rows
from fedpriv.reports.report import html_table, load_scored, write_report, write_results
from fedpriv.reports.run_records import baselines, load_runs
from fedpriv.reports.runs_report import PAGE, write_runs_report
from fedpriv.reports.study_report import read_results, together
from fedpriv.reports.summary import Subject, subjects, table_lines
from fedpriv.study.saving import Scratch, Tabular, copy_folder, place
from fedpriv.study.settings import Circumstances
from fedpriv.util import folders
from fedpriv.util.errors import UserError, shown, unknown_name
from fedpriv.util.escape import markup
from fedpriv.util.foreign import given_path
from fedpriv.util.parallel import SILENT, Listener

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from fedpriv.api.federations import PrivacyAudit, Run


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
        attacks: dict[Path, Result] = {self.path / name: storage.load_stored(self.path / name) for name in self.records}
        return subjects({**attacks, **{self.path / name: record for name, record in self.scores.items()}})

    def check(self, fail_on: str | Sequence[str] = "leak") -> Check:
        """Return the outcome of a gate; see :func:`fedpriv.check`."""
        return gate(self.answers, endpoints_of(fail_on))

    def load(self, name: str | None = None) -> storage.AttackRecord:
        """Return everything that was stored of one attack: reconstruction, control, truth and record."""
        ranked = strongest_first([*self.records], self.records.__getitem__)
        chosen = ranked[0] if name is None and ranked else str(name)
        if chosen not in self.records:
            raise unknown_name("attack of this result", chosen, self.records)
        return storage.load_attack(self.path / chosen)

    def images(self, name: str | None = None) -> Tensor:
        """Return the reconstructed images ``(T, M, c, h, w)`` of one attack, float32 in [0, 1]; M guesses a target."""
        result = self.load(name)
        if result.about.redacted != NONE:
            raise UserError(f"{result.directory}: images were kept out of it (redact={shown(result.about.redacted)})")
        return result.reconstruction.images

    def figure(self, name: str | None = None) -> Figure:
        """Return the grid of one attack, targets at fixed quantiles of the score beside the truth and the floor."""
        from fedpriv.reports.grid import grid_figure

        return grid_figure(self.load(name))

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return the columns of ``results.csv``, one row an attack that returns images."""
        return table_rows("results.csv", result_items([storage.load_stored(self.path / name) for name in self.records]))

    def save(self, out: str | Path, *, force: bool = False) -> AttackResult:
        """Copy the result to a folder that stays, with its page, and return it from there."""
        from fedpriv.pipeline.execute import draw

        for name in self.records:  # grids and page may have been left for later
            if not (self.path / name / "grid.png").is_file():
                draw(self.load(name))
        if not (self.path / "report.html").is_file():
            attacks, scores = ([self.path / name for name in names] for names in (self.records, self.scores))
            write_report(attacks, self.path, scores)
        copy_folder(self.path, Path(out), "attacks", force=force)
        run = self.run
        if run is not None and self.path in run.path.parents:
            run = type(run)(Path(out) / run.path.relative_to(self.path), code=run.code)
        return AttackResult(Path(out), self.records, self.scores, self.notices, run)

    def __repr__(self) -> str:
        """Return the tables of answers: records would fill pages of a terminal."""
        tables = [table_lines(upload) for upload in subjects({**self.records, **self.scores})]
        return "\n".join(line for table in tables for line in table)

    def _repr_html_(self) -> str:
        return "".join(map(html_table, self.uploads)) + "".join(f"<p>{markup(line)}</p>" for line in self.notices)


def given_folders(results: Any, kinds: tuple[str, ...] = ("AttackResult",)) -> list[Path]:
    """Return the folders of results: objects of classes of these names, which know theirs, or paths; one or several."""

    def known(value: object) -> bool:
        return isinstance(value, (str, Path)) or type(value).__name__ in kinds

    if not known(results) and not isinstance(results, (list, tuple, set, frozenset)):
        raise UserError(f"results={shown(results)}: expected {' or '.join(kinds)} or a folder, or a list of these")
    several = [results] if known(results) else list(results)
    if not several:
        raise UserError(f"results={shown(several)}: expected at least one")
    if "GuardResult" in {type(each).__name__ for each in several}:
        raise UserError("results: a GuardResult is judged already; read its status: leak, inconclusive or pass")
    return [each.path if type(each).__name__ in kinds else given_path("results", each) for each in several]


Scorable = AttackResult | str | Path


@verb()
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
    rule, paths = read_rule(redact), given_folders(results)
    records: dict[Path, ReconstructionRecord] = {}
    directories: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path}: no such folder; expected one that attack made")
        inside = {file.parent for name in (storage.ABOUT, storage.RECONSTRUCTION) for file in path.rglob(name)}
        inside = {folder for folder in inside if is_or_was_attack(folder)}
        unscored = sum(1 for name in (storage.MEMBERSHIP, storage.PROPERTY) for _ in path.rglob(name))
        if not inside:
            raise UserError(f"{path}: holds no attack result (about.json of an attack is missing)")
        if unscored:
            listener.say(f"{path}: {unscored} inference(s) not scored again: they store no scores of candidates")
        directories |= dict.fromkeys(sorted(inside))
    with listener.progress("scoring") as report:
        for done, directory in enumerate(directories, start=1):
            with folders.held_with_those_around(directory):
                records[directory] = _score(directory, seed, rule)
            report(done, len(directories), directory.name)
    if rule != NONE:
        listener.say("pages that were made of these before show what they showed; make them again with report")
    return records


def _score(directory: Path, seed: int | None, rule: str) -> ReconstructionRecord:
    from fedpriv.eval.score import score as score_attack
    from fedpriv.pipeline.execute import draw

    saved = storage.load_attack(directory, scores=False)
    truths, about = saved.truths, saved.about.model_copy(update={"redacted": rule})
    if truths is None:
        raise UserError(f"{directory / storage.TRUTH}: left out of this directory; without it nothing can be scored")
    used = saved.about.seed if seed is None else seed
    record = score_attack(saved.reconstruction, truths, saved.shuffled, seed=used, about=saved.about)
    draw(replace(saved, metrics=record, about=about))
    if rule == NONE:
        storage.write_record(directory, record)
    else:
        given: dict[str, Any] = {"reconstruction": saved.reconstruction, "shuffled": saved.shuffled, "truths": truths}
        storage.save_attack(directory, **given, about=about, metrics=record)
    return record


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


@verb(Circumstances)
def report(
    results: Reportable | Sequence[Reportable],
    *,
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
        strict: refuse what did not come to its end (run, suite, study) or is damaged; otherwise it is left out, which a
            line and the pages say.
        redact: ``blur`` or ``omit`` pictures of people, so that the report can be passed on (docs/redaction.md). What
            is stored redacted is never shown by a milder rule.
        settings: see :class:`Circumstances`; with ``redact`` everybody may read the report (docs/folders.md).
    """
    rule, out, listener = read_rule(redact), settings.get("out"), settings.get("listener", SILENT)
    given = given_folders(results, ("AttackResult", "Run", "PrivacyAudit"))
    result, empty = result_directories(given)
    studies, no_studies = readable(result["study"], read_results)
    attacks, no_attacks = readable(result["attack"], load_scored)
    scores, no_scores = readable(result["membership"], storage.load_scores)
    audits, no_audits = readable(result["privacy"], storage.load_privacy_audit)
    trained_only = {path: own for path, own in studies.items() if own.facts.trained_only}
    of_studies = [run for own in trained_only.values() for run in own.runs]
    runs, no_runs = readable(dict.fromkeys([*result["run"], *of_studies]), lambda run: load_runs([run]))
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
    complaints = [f"{line}; left out of the report" for line in [*empty, *map(str, left_out)]] + unfinished(given)
    complaints += [f"{study}: {cell}" for study, current in studies.items() for cell in current.facts.failed]
    if complaints and strict:
        raise UserError(f"strict: {complaints[0]}")
    if not (leaks or runs):
        raise UserError(str(left_out[0]) if left_out else complaints[0])
    for line in complaints:
        listener.warn(line)
    folder, scratch = place(out)
    how = {"force": settings.get("force", False), "public": rule != NONE}
    with folders.output(folder, "report", **how):
        if runs:
            beside = "report.html" if leaks else None
            write_runs_report(list(runs), folder, attacks=beside, left_out=left_out)
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


Record: TypeAlias = "ReconstructionRecord | InferenceResult"


@dataclass(frozen=True)
class Changes(Tabular):
    """Changes between two results or studies. As text they can be pasted into a paper's notes.

    Attributes:
        rows: one for each result that both have: its ``name``, the ``quantity``, ``before``, ``after``, ``difference`` with
            ``low`` and ``high`` (its 95 % interval), the accuracies, and a ``verdict``.
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


@verb()
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
        made = differences(first[name][1], second[name][1])
        changed |= dict.fromkeys(f"{key}: {one} -> {other}" for key, (one, other) in made.items())
    return Changes(
        tuple(_rows({name: (first[name][0], second[name][0]) for name in names})),
        tuple(changed),
        tuple(name for name in first if name not in second),
        tuple(name for name in second if name not in first),
    )


def _results(given: AttackResult | str | Path) -> dict[str, tuple[Record, dict[str, Any]]]:
    """Return every result in a folder by its place in it: its record, and how it was made."""
    root = given_folders(given)[0]
    if not root.is_dir():
        raise UserError(f"{root}: no such folder; expected one that attack or audit made")
    names, results = (storage.METRICS, storage.MEMBERSHIP, storage.PROPERTY), {}
    for file in sorted(path for name in names for path in root.rglob(name)):
        position, record = file.parent.relative_to(root), cast("Record", storage.read_record(file))
        about: Provenance = record
        if file.name == storage.METRICS:
            about = cast("About", storage.read_record(file.parent / storage.ABOUT))
        made = about.model_dump(mode="json", include=set(_MADE)) | {"defenses": about.defense}
        if isinstance(made["run"], dict):
            made["run"].pop("defenses", None)
        results[str(position) if position.parts else record.attack] = record, made
    if not results:
        raise UserError(f"{root}: holds no result of an attack; expected a folder that attack or audit made")
    return results


def _rows(pairs: Mapping[str, tuple[Record, Record]]) -> Iterator[dict[str, Any]]:
    results = {name: _difference(first, second) for name, (first, second) in pairs.items()}
    apart = iter(separated([entry for entry in results.values() if not isinstance(entry, str)]))
    for name, item in results.items():
        first, second = pairs[name]
        row = dict[str, Any].fromkeys(("name", "quantity", "before", "after", "difference", "low", "high"))
        row |= {"name": name, "accuracy before": first.accuracy, "accuracy after": second.accuracy}
        if isinstance(item, str):
            yield row | {"verdict": f"not compared: {item}"}
            continue
        real = next(apart)
        verdict = FEW if item.p_value is None else NOISE if not real else MORE if item.mean > 0 else LESS
        low, high = item.ci95 or (None, None)
        row |= {key: getattr(item, key) for key in ("quantity", "before", "after")}
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


_MADE = ("attack", "attack_version", "method", "dataset", "seed", "knowledge", "options", "run")
"""Fields of how a result was made that are compared; defenses are by their labels."""
