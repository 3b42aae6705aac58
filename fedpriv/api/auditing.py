"""The verbs ``audit`` and ``plan``, a grid of methods, defenses and seeds, and ``reproduce``, a claim of a paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, Unpack

from fedpriv.api.federations import cost
from fedpriv.api.named_code import verb
from fedpriv.claims import Claim, find_claim
from fedpriv.eval.claims import ClaimCard
from fedpriv.eval.records import Estimate
from fedpriv.eval.storage import CLAIM
from fedpriv.reports.claim_card import PAGE, write_claim_card
from fedpriv.study.cells import Execution, lay_out
from fedpriv.study.claim_guesses import guessed
from fedpriv.study.claim_plan import Asked, Place, cells_of, measure_of, planned, sizes_of
from fedpriv.study.folder import Shard, saved_study
from fedpriv.study.grid import Study, parse_study
from fedpriv.study.judging import Measured, StudyOutcome, card_of, trained
from fedpriv.study.run import StudyResult, run_study
from fedpriv.study.saving import Scratch, Tabular, place
from fedpriv.study.settings import Circumstances, FederationSettings, SuiteSettings, refuse_small, to_resume
from fedpriv.study.written import QUICK, overridden
from fedpriv.util import files, folders
from fedpriv.util.config import mapping
from fedpriv.util.errors import UserError, shown
from fedpriv.util.escape import call
from fedpriv.util.foreign import given_path, toml_file
from fedpriv.util.parallel import SILENT, number_of_workers, patience_for


class StudySettings(SuiteSettings, FederationSettings, total=False):
    """The keys of a study, settings of its federation by name, and how it is carried out."""

    federation: Mapping[str, Any]  # settings that all methods share, by name; those that are given by themselves win
    methods: str | Sequence[Any]  # names (default ``fedre``) or ``NAME:KEY=VALUE``. Or mappings with ``name``
    defenses: str | Sequence[Any]  # ``none`` (default) or ``NAME[:KEY=VALUE,...]``. Or mappings; a list of values
    # makes a grid
    attacks: str | Sequence[Any]  # names, ``all`` that fit and are granted (default), or ``none``. Or mappings
    iterations: int | None  # how long every attack searches, in its own unit; what an attack's own table says wins
    seeds: Sequence[int] | Sequence[str]  # of training, targets and attacks (default 0)
    knowledge: Mapping[str, Any] | Sequence[str]  # changes to the threat model, ``FIELD=VALUE``. Or a mapping
    local: bool  # also train the clients of each federation without any exchange (default True)
    axes: Mapping[str, Any] | Sequence[str]  # a grid over settings: ``KEY=VALUE,VALUE``. Or a mapping
    quick: bool  # few rounds, targets and iterations where no argument gives others, to see whether everything works
    workers: int | str  # processes at a time, one thread each; ``auto`` (default): one a core; one on a GPU, or a shard
    download: bool  # fetch data sets that are missing
    resume: bool  # go on with the study in ``out`` as it is


Described: TypeAlias = Mapping[str, Any] | str | Path | None
"""A file, the mapping that such a file holds, or nothing beside settings."""

_HOW = ("workers", "device", "download", "chunk_rows", "resume", "quick", *Circumstances.__annotations__)
"""Settings that say how a study is carried out, and nothing of what it is."""


@verb(StudySettings)
def audit(study: Described = None, *, shard: str | None = None, **settings: Unpack[StudySettings]) -> StudyResult:
    """Train every method under every defense with every seed, attack each run, and report on all together.

    Calling it again with the same study and ``out`` goes on where it stopped.

    Args:
        study: a TOML file (docs/audit.md), the mapping that such a file holds, or None for settings alone.
        shard: do the part ``"I/N"`` of the study alone, beside other processes that do the others in the same ``out``
            (docs/shards.md); the last one merges and reports.
        settings: see :class:`StudySettings`, :class:`SuiteSettings`, :class:`FederationSettings`; they win over ``study``.
    """
    if shard is not None:  # the machine may be others' too
        settings.setdefault("workers", 1)
    described, execution = read_asked(study, settings)
    out, force, listener = settings.get("out"), settings.get("force", False), settings.get("listener", SILENT)
    part = None if shard is None else Shard.read(shard)
    if part is not None and out is None:
        raise UserError("shard needs out, the folder that all shards share")
    if part is not None and force:
        raise UserError("shard and force exclude each other: the folder is others' too")
    folder, scratch = place(out)
    command = listener.command or call("audit", "...")
    result = run_study(described, folder, execution, shard=part, force=force, command=command, listener=listener)
    return replace(result, lifetime=scratch)


@dataclass(frozen=True)
class StudyPlan(Tabular):
    """The cells of a study and an estimate of its work, before anything runs.

    Attributes:
        cells: of each run with its attacks the name ``cell``, ``method``, ``defense``, ``seed``, ``target`` (None where
            nothing is uploaded), ``attacks``, the names of its results, ``client_steps`` of its run (0 where an earlier cell
            has it) and ``attack_iterations``, the most iterations over all targets and restarts, controls included.
        notices: what was chosen for the study or left out of it, and why.
    """

    cells: tuple[Mapping[str, Any], ...]
    notices: tuple[str, ...] = ()

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return one row a cell, its attacks as one text."""
        return [{**cell, "attacks": ", ".join(cell["attacks"])} for cell in self.cells]

    @property
    def work(self) -> str:
        """The estimate in one line."""
        trained, searched = (sum(cell[name] for cell in self.cells) for name in ("client_steps", "attack_iterations"))
        return f"{len(self.cells)} cells: {trained:,} client steps, at most {searched:,} attack iterations"


@verb(StudySettings)
def plan(study: Described = None, **settings: Unpack[StudySettings]) -> StudyPlan:
    """List the cells of a study and estimate its work, checked as :func:`fedpriv.audit` checks it.

    Args:
        study: as for :func:`fedpriv.audit`.
        settings: as for :func:`fedpriv.audit`; ``out`` with ``resume`` alone.
    """
    cells, notices = lay_out(*read_asked(study, settings))
    for line in notices:
        settings.get("listener", SILENT).say(line)
    rows, runs = [], set[str]()
    for cell in cells:
        results, steps = tuple(name for item in cell.plans for name in item.results()), cell.client_steps
        row = {"cell": cell.name, "method": cell.method.label, "defense": cell.defense.label, "seed": cell.seed}
        row |= {"target": cell.target, "attacks": results, "client_steps": 0 if cell.run in runs else steps}
        rows.append(row | {"attack_iterations": cell.attack_iterations})
        runs.add(cell.run)
    return StudyPlan(tuple(rows), notices)


def execution_of(settings: Mapping[str, Any]) -> Execution:
    """Return the circumstances of a study that settings ask for."""
    device, requested = settings.get("device", "auto"), settings.get("workers", "auto")
    return Execution(
        device=device,
        download=settings.get("download", False),
        chunk_rows=settings.get("chunk_rows"),
        workers=number_of_workers(requested, device),
        patience=patience_for(requested),
    )


def read_asked(study: Described, settings: Mapping[str, Any]) -> tuple[Study, Execution]:
    """Return the study that arguments of a verb describe, and how it is carried out."""
    refuse_small(settings, ("chunk_rows",))
    group = {name: value for name, value in settings.items() if name not in _HOW}
    execution = execution_of(settings)
    if settings.get("resume"):
        extra = ["study"] * (study is not None) + ["quick"] * bool(settings.get("quick")) + [*group]
        return saved_study(to_resume(settings.get("out"), extra, force=settings.get("force"), what="study")), execution
    source, values = "study", study
    if isinstance(study, (str, Path)):
        path = given_path("study", study)
        source, values = str(path), toml_file(path, expected="a study in TOML, see docs/audit.md")
    if values is not None and not isinstance(values, Mapping):
        text = "expected a file of TOML, or the mapping that such a file holds"
        raise UserError(f"study={shown(study)}: {text}")
    if settings.get("quick"):
        few = {name: value for name, value in QUICK.items() if name not in group}
        settings.get("listener", SILENT).say(f"quick: {', '.join(f'{name} {value}' for name, value in few.items())}")
        group |= few
    return parse_study(overridden(values or {}, group), source), execution


STUDY = "study"
"""Folder of the study of a claim, in the claim's."""


@dataclass(frozen=True)
class Reproduction(Tabular):
    """A claim that was put to the test.

    Attributes:
        path: folder of the card, of its page, and of the study behind it.
        card: what was claimed, what was measured, and the verdicts.
        page: the card as a page.
        study: what was trained and attacked; None where everything was counted.
    """

    path: Path
    card: ClaimCard
    page: Path
    study: StudyResult | None
    _scratch: Scratch | None = field(default=None, repr=False, compare=False)

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return one row a value."""
        return [
            {
                **{name: getattr(cell, name) for name in ("row", "column", "unit", "claimed", "verdict", "why")},
                "measured": None if cell.measured is None else cell.measured.mean,
                "ci95": None if cell.measured is None else cell.measured.ci95,
                "baseline": None if cell.baseline is None else cell.baseline.mean,
            }
            for cell in self.card.cells
        ]


@verb(Circumstances)
def reproduce(
    claim: str | Path,
    *,
    scale: str = "cpu",
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    seeds: Sequence[int] | str = (),
    data_dir: str | Path | None = None,
    images: Mapping[str, str | Path] | Sequence[str] = (),
    device: str = "auto",
    workers: int | str = "auto",
    download: bool = False,
    **settings: Unpack[Circumstances],
) -> Reproduction:
    """Put a claim of a paper to the test: train, attack where it is about leakage, count what is counted, and judge.

    First of all the listener hears what the printed values are worth beside guesses that use no upload. Calling it again
    with the same arguments and ``out`` goes on where it stopped.

    Args:
        claim: a name of ``fedpriv list claims``, or a TOML file of one's own (docs/reproducing.md).
        scale: ``smoke`` (seconds, on data of the package: a pipeline check), ``cpu`` (about an hour on two cores), or
            ``paper`` (the paper's setting).
        rows: names of rows to try (default: those that the scale tries).
        columns: names of columns, likewise.
        seeds: of the runs, with commas between (default: the scale's). Or a list.
        data_dir: folder of the data sets in their original layouts.
        images: ``SET=DIR``: a folder of images, one folder a class, in place of the paper's data set of this name. Or a
            mapping.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        workers: processes at a time, one thread each; ``auto``: one a core, one on a GPU.
        download: fetch data sets that are missing.
        settings: see :class:`Circumstances`.
    """
    force, listener = settings.get("force", False), settings.get("listener", SILENT)
    execution = execution_of({"device": device, "workers": workers, "download": download})
    name, result = find_claim(claim)
    folder_of_data = None if data_dir is None else given_path("data_dir", data_dir)
    folders_of_images = _folders(result, mapping("images", images))
    requested = Asked(scale, tuple(rows), tuple(columns), _seeds(seeds), folder_of_data, folders_of_images, download)
    cells_of(result, requested)  # refuses rows, columns and scales that there are not, before anything is said
    guesses = guessed(result, requested)
    for line in guesses:
        listener.say(line)
    plan = planned(result, requested)
    folder, scratch = place(settings.get("out"))
    command = listener.command or call("reproduce", name, scale=scale)
    resume = _same_claim(folder, name, force=force)
    for line in plan.left_out:
        listener.say(f"left out: {line}")
    with folders.output(folder, "claim", force=force, resume=resume):
        study: StudyResult | None = None
        outcome: StudyOutcome | None = None
        if result.counted:
            cells = {cell.name: _counted(result, cell) for cell in plan.tried}
        else:
            parsed = parse_study(dict(plan.study))
            study = run_study(parsed, folder / STUDY, execution, command=command, listener=listener)
            outcome = StudyOutcome(folder / STUDY, plan.labels)
            cells = {cell.name: trained(result, cell, outcome, scale) for cell in plan.tried}
        seconds = sum((row.seconds.train or 0) + (row.seconds.attack or 0) for row in (study.rows if study else ()))
        card = card_of(name, result, requested, plan, cells, guesses, command=command, outcome=outcome, seconds=seconds)
        write_claim_card(folder, card)
    return Reproduction(folder, card, folder / PAGE, study, scratch)


def _counted(claim: Claim, position: Place) -> Measured:
    """Return the value of a cell that follows from sizes alone, or the size that is not known."""
    measure, sizes = measure_of(claim, position), sizes_of(claim, position)
    clients = int(sizes.get("clients", 10))
    try:
        (row,) = cost(str(position.method), **sizes).methods
    except UserError as error:
        return Measured(why=str(error))
    ways = ("upload", "broadcast") if measure.what == "both" else (measure.what,)
    unit = "bytes" if measure.bytes else "scalars"
    counts = row["communication"]["paper"]
    value = float(sum(counts[f"{way}_{unit}_per_round"] for way in ways))
    value /= clients if measure.per == "client" else 1
    return Measured(Estimate(mean=value / measure.every, ci95=None, n=1))


def _seeds(given: Sequence[int] | str) -> tuple[int, ...]:
    try:
        return tuple(int(item) for item in (given.split(",") if isinstance(given, str) else given))
    except ValueError as error:
        raise UserError(f"seeds={shown(given)}: expected whole numbers with commas, such as 0,1,2") from error


def _folders(claim: Claim, given: Mapping[str, Any]) -> dict[str, Path]:
    known = sorted({column.data for column in claim.columns})
    for name in given:
        if name not in known:
            raise UserError(f"images={shown(name)}: not a data set of this claim; there are: {', '.join(known)}")
    return {name: given_path("images", path).resolve() for name, path in given.items()}


def _same_claim(folder: Path, name: str, *, force: bool) -> bool:
    """Tell whether a folder holds the same claim, to go on with; another claim is refused."""
    if force or not folder.is_dir() or not ((folder / CLAIM).is_file() or (folder / STUDY).is_dir()):
        return False
    if not (folder / CLAIM).is_file():
        return True  # cut off before its end; whether the study is the same, that says itself
    record = files.read_json(folder / CLAIM)
    if not isinstance(record, dict) or record.get("name") != name:
        raise UserError(f"{folder}: holds another claim; choose another out, or force")
    return True
