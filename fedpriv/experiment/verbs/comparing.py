"""The verb ``compare``: changes between two results or studies, and which of them are told from noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.experiment.named_code import imports_what_is_named
from fedpriv.experiment.saving import Tabular
from fedpriv.experiment.verbs.result import AttackResult, given_folders
from fedpriv.scoring.difference import FEW, LESS, MORE, NOISE
from fedpriv.util.errors import UserError

if TYPE_CHECKING:
    from fedpriv.scoring.difference import Difference
    from fedpriv.scoring.records import About, InferenceResult, ReconstructionRecord


@dataclass(frozen=True)
class _Stored:
    """One result as it is stored: its record, and how it was made."""

    record: ReconstructionRecord | InferenceResult
    about: About | InferenceResult


@dataclass(frozen=True)
class Changes(Tabular):
    """Changes between two results or studies. As text they can be pasted into a paper's notes.

    Attributes:
        rows: one for each result that both have: its ``name``, the ``quantity``, ``before``, ``after``, ``difference`` with
            ``low`` and ``high`` (its 95 % interval), whether ``paired``, the accuracies, and a ``verdict``.
        settings: what differs in how they were made, a line each.
        only_before: names of results that only the first has.
        only_after: names of results that only the second has.
    """

    rows: tuple[Mapping[str, Any], ...]
    settings: tuple[str, ...]
    only_before: tuple[str, ...] = ()
    only_after: tuple[str, ...] = ()

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return the rows."""
        return self.rows

    @property
    def verdict(self) -> str:
        """All of it in one line."""
        tested = [row for row in self.rows if row["verdict"] in (MORE, LESS, NOISE)]
        real = [f"{row['name']} {row['verdict']}" for row in tested if row["verdict"] != NOISE]
        if not tested:
            return "nothing can be compared: no result of both is of one kind, under one card and by one version of scoring"
        verb = "is" if len(real) == 1 else "are"
        text = f"of {len(tested)} differences {len(real)} {verb} told from noise (95 %, tested together)"
        return text + (f": {', '.join(real)}" if real else "")

    def __str__(self) -> str:
        lines = [f"changed: {line}" for line in self.settings] or ["changed: no setting that is stored"]
        lines += [f"only in the first: {name}" for name in self.only_before]
        lines += [f"only in the second: {name}" for name in self.only_after]
        return "\n".join([*lines, self.verdict])


@imports_what_is_named
def compare(
    before: AttackResult | str | Path,
    after: AttackResult | str | Path,
    *,
    allow_code: str | Sequence[str] = (),
) -> Changes:
    """Say what changed between two results of attacks, or two studies, and which of it is more than noise.

    Results are compared by their names (``dip``, ``unmix-early``; in studies with their cell's). Where both attacked the
    same images, image by image; else by what each is ahead of its best guess. Results under different knowledge cards, or of
    different kinds or versions of scoring, are not compared. Accuracies are of one training each and have no interval.

    Args:
        before: what :func:`fedpriv.attack` returned, or a folder with results or a study.
        after: the same.
        allow_code: modules that may be imported although only a file names them (docs/reliability.md); one or several.

    Raises:
        UserError: for a folder without results, a damaged one, or where none of them have a name in common.
    """
    first, second = _results(before), _results(after)
    names = [name for name in first if name in second]
    if not names:
        raise UserError(f"no result of one name: the first has {', '.join(first)}; the second has {', '.join(second)}")
    settings = dict.fromkeys(change for name in names for change in _changed(first[name].about, second[name].about))
    pairs = {name: (first[name], second[name]) for name in names}
    return Changes(
        tuple(_rows(pairs)),
        tuple(f"{key}: {item} -> {other}" for key, item, other in settings),
        tuple(name for name in first if name not in second),
        tuple(name for name in second if name not in first),
    )


def _results(given: AttackResult | str | Path) -> dict[str, _Stored]:
    """Return every result in a folder as it is stored, by its place in it."""
    from fedpriv.scoring.records import About, MembershipRecord, PropertyRecord, ReconstructionRecord
    from fedpriv.scoring.storage import ABOUT, MEMBERSHIP, METRICS, PROPERTY, read_record

    roots = given_folders(given, (AttackResult,))
    root = roots[0]
    if len(roots) > 1:
        raise UserError(f"{root}: expected one folder on either side, got {len(roots)}")
    if not root.is_dir():
        raise UserError(f"{root}: no such folder; expected one that attack or audit made")
    results = {}
    for file in sorted(path for name in (METRICS, MEMBERSHIP, PROPERTY) for path in root.rglob(name)):
        position = file.parent.relative_to(root)
        record = read_record(file)
        about = read_record(file.parent / ABOUT) if file.name == METRICS else record
        if isinstance(record, ReconstructionRecord) and isinstance(about, About):
            results[str(position) if position.parts else record.attack] = _Stored(record, about)
        elif isinstance(record, (MembershipRecord, PropertyRecord)):
            results[str(position) if position.parts else record.attack] = _Stored(record, record)
    if not results:
        raise UserError(f"{root}: holds no result of an attack; expected a folder that attack or audit made")
    return results


def _rows(pairs: Mapping[str, tuple[_Stored, _Stored]]) -> Iterator[dict[str, Any]]:
    from fedpriv.scoring.difference import separated

    results = {name: _difference(first, second) for name, (first, second) in pairs.items()}
    known = [entry for entry in results.values() if not isinstance(entry, str)]
    apart = iter(separated(known))
    for name, item in results.items():
        accuracy = {
            f"accuracy {when}": None if pair.record.training is None else pair.record.training.accuracy
            for when, pair in zip(("before", "after"), pairs[name], strict=True)
        }
        if isinstance(item, str):
            blank = dict.fromkeys(("quantity", "before", "after", "difference", "low", "high", "paired"))
            yield {"name": name, **blank, **accuracy, "verdict": f"not compared: {item}"}
            continue
        low, high = item.ci95 or (None, None)
        real = next(apart)
        verdict = FEW if item.p_value is None else NOISE if not real else MORE if item.mean > 0 else LESS
        yield {
            "name": name,
            "quantity": item.quantity,
            "before": item.before,
            "after": item.after,
            "difference": item.mean,
            "low": low,
            "high": high,
            "paired": item.paired,
            **accuracy,
            "verdict": verdict,
        }


def _difference(first: _Stored, second: _Stored) -> Difference | str:
    """Return the difference of two results, or why they are not compared."""
    from fedpriv.scoring.difference import of_inferences, of_reconstructions
    from fedpriv.scoring.records import ReconstructionRecord

    item, other = first.record, second.record
    if item.kind != other.kind or item.target != other.target:
        return f"{item.kind} of {item.target}, and {other.kind} of {other.target}"
    if item.knowledge != other.knowledge:
        return "under different knowledge cards"
    if item.scoring_version != other.scoring_version:
        return "scored by different versions; score both again"
    if isinstance(item, ReconstructionRecord) and isinstance(other, ReconstructionRecord):
        return of_reconstructions(item, other)
    if isinstance(item, ReconstructionRecord) or isinstance(other, ReconstructionRecord):
        raise AssertionError("one kind is one type")
    return of_inferences(item, other)


_MADE = ("attack", "attack_version", "method", "dataset", "seed", "knowledge", "options", "run", "stage")
"""Fields of how a result was made that are compared; defenses are by their labels."""


def _changed(before: About | InferenceResult, after: About | InferenceResult) -> Iterator[tuple[str, str, str]]:
    """Return settings that differ: name, value of the first, value of the second."""
    first, second = _made(before), _made(after)
    for key in dict.fromkeys([*first, *second]):
        if first.get(key) != second.get(key):
            yield key, str(first.get(key, "not set")), str(second.get(key, "not set"))


def _made(about: About | InferenceResult) -> dict[str, Any]:
    fields = about.model_dump(mode="json", include=set(_MADE))
    if isinstance(fields["run"], dict):
        fields["run"].pop("defenses", None)
    return dict(_flat(fields)) | {"defenses": about.defense}


def _flat(value: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, current in value.items():
            yield from _flat(current, f"{before}.{key}" if before else str(key))
    else:
        yield before, value
