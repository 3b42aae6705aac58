"""The verb ``compare``: changes between two results or studies, and which of them are told from noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from fedpriv.experiment.named_code import imports_what_is_named
from fedpriv.experiment.saving import Tabular
from fedpriv.experiment.verbs.result import AttackResult, given_folders
from fedpriv.scoring.difference import FEW, LESS, MORE, NOISE
from fedpriv.util.errors import UserError

if TYPE_CHECKING:
    from fedpriv.scoring.difference import Difference
    from fedpriv.scoring.records import About, InferenceResult, ReconstructionRecord

Record: TypeAlias = "ReconstructionRecord | InferenceResult"


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

    Raises:
        UserError: for a folder without results, a damaged one, or where none of them have a name in common.
    """
    first, second = _results(before), _results(after)
    names = [name for name in first if name in second]
    if not names:
        raise UserError(f"no result of one name: the first has {', '.join(first)}; the second has {', '.join(second)}")
    changed: dict[str, None] = {}
    for name in names:
        made, other = _made(first[name][1]), _made(second[name][1])
        for key in dict.fromkeys([*made, *other]):
            if made.get(key) != other.get(key):
                changed[f"{key}: {made.get(key, 'not set')} -> {other.get(key, 'not set')}"] = None
    return Changes(
        tuple(_rows({name: (first[name][0], second[name][0]) for name in names})),
        tuple(changed),
        tuple(name for name in first if name not in second),
        tuple(name for name in second if name not in first),
    )


def _results(given: AttackResult | str | Path) -> dict[str, tuple[Record, About | InferenceResult]]:
    """Return every result in a folder by its place in it: its record, and how it was made."""
    from fedpriv.scoring.storage import ABOUT, MEMBERSHIP, METRICS, PROPERTY, read_record

    root = given_folders(given, (AttackResult,))[0]
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
    from fedpriv.scoring.difference import separated

    results = {name: _difference(first, second) for name, (first, second) in pairs.items()}
    apart = iter(separated([entry for entry in results.values() if not isinstance(entry, str)]))
    for name, item in results.items():
        row: dict[str, Any] = {"name": name}
        row |= dict.fromkeys(("quantity", "before", "after", "difference", "low", "high", "paired"))
        for when, record in zip(("before", "after"), pairs[name], strict=True):
            row[f"accuracy {when}"] = None if record.training is None else record.training.accuracy
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
    from fedpriv.scoring.difference import of_inferences, of_reconstructions

    if item.kind != other.kind or item.target != other.target:
        return f"{item.kind} of {item.target}, and {other.kind} of {other.target}"
    if item.knowledge != other.knowledge:
        return "under different threat models"
    if item.scoring_version != other.scoring_version:
        return "scored by different versions; score both again"
    compare_records: Any = of_reconstructions if item.kind == "reconstruction" else of_inferences
    result: Difference = compare_records(item, other)
    return result


_MADE = ("attack", "attack_version", "method", "dataset", "seed", "knowledge", "options", "run", "stage")
"""Fields of how a result was made that are compared; defenses are by their labels."""


def _made(about: About | InferenceResult) -> dict[str, Any]:
    made = about.model_dump(mode="json", include=set(_MADE))
    if isinstance(made["run"], dict):
        made["run"].pop("defenses", None)
    return dict(_flat(made)) | {"defenses": about.defense}


def _flat(value: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, current in value.items():
            yield from _flat(current, f"{before}.{key}" if before else str(key))
    else:
        yield before, value
