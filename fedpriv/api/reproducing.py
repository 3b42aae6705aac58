"""The verb ``reproduce``: a claim of a paper put to the test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

from fedpriv.api.auditing import execution_of
from fedpriv.api.counting import cost
from fedpriv.api.named_code import imports_what_is_named
from fedpriv.claims import Claim, find_claim
from fedpriv.eval.claims import ClaimCard
from fedpriv.eval.records import Estimate
from fedpriv.eval.storage import CLAIM
from fedpriv.reports.claim_card import PAGE, write_claim_card
from fedpriv.study.claim_guesses import guessed
from fedpriv.study.claim_plan import Asked, Place, cells_of, measure_of, planned, sizes_of
from fedpriv.study.grid import parse_study
from fedpriv.study.judging import Measured, StudyOutcome, card_of, trained
from fedpriv.study.run import StudyResult, run_study
from fedpriv.study.saving import Scratch, Tabular, place
from fedpriv.study.settings import Circumstances, refuse_unknown
from fedpriv.util import files, folders
from fedpriv.util.config import mapping
from fedpriv.util.errors import UserError, shown
from fedpriv.util.escape import call
from fedpriv.util.files import read_json
from fedpriv.util.foreign import given_path
from fedpriv.util.parallel import SILENT

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


@imports_what_is_named
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
        seeds: of the runs, or a text with commas between them (default: the scale's).
        data_dir: folder of the data sets in their original layouts.
        images: the paper's name of a data set -> a folder of images, one folder a class, that takes its place.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        workers: processes at a time, one thread each; ``auto``: one a core, one on a GPU.
        download: fetch data sets that are missing.
        settings: see :class:`Circumstances`.
    """
    refuse_unknown(settings, Circumstances)
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
    sharing = files.sharing(settings.get("share_group", False))
    with sharing, folders.output(folder, "claim", force=force, resume=resume):
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
    record = read_json(folder / CLAIM)
    if not isinstance(record, dict) or record.get("name") != name:
        raise UserError(f"{folder}: holds another claim; choose another out, or force")
    return True
