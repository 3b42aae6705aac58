"""The verb ``score``: score a saved reconstruction again, without attacking again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedpriv.experiment.named_code import imports_what_is_named
from fedpriv.experiment.result_folders import is_or_was_attack
from fedpriv.experiment.verbs.result import AttackResult, given_folders
from fedpriv.pipeline.execute import draw
from fedpriv.scoring.records import ReconstructionRecord
from fedpriv.scoring.redaction import NONE, read_rule
from fedpriv.scoring.score import score as score_attack
from fedpriv.scoring.storage import (
    ABOUT,
    MEMBERSHIP,
    PROPERTY,
    RECONSTRUCTION,
    TRUTH,
    load_attack,
    save_attack,
    write_record,
)
from fedpriv.util import files, folders
from fedpriv.util.errors import UserError, shown
from fedpriv.util.parallel import SILENT, Listener

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
    """Score attacks again; rewrites their records and image grids, in place.

    Membership and property inference are not scored again: they store no scores of single candidates.

    Args:
        results: what :func:`fedpriv.attack` returned, attack directories, folders that hold some; one or several.
        seed: of floors and decoys (default: the attack's own), at least 0.
        redact: ``blur`` or ``omit`` pictures of people in these folders, for good: they cannot be scored again
            (docs/redaction.md). Pages that were made before are not made again.
        share_group: let your group read these folders, with the whole result or study that they lie in (docs/folders.md).
        allow_code: modules that may be imported although only a file names them (docs/reliability.md); one or several.
        listener: hears of the progress, and of what is not scored again.

    Returns:
        The new records by attack directory.

    Raises:
        UserError: for a folder that is missing or holds no attack, an attack without its private truth.
    """
    if seed is not None and seed < 0:
        raise UserError(f"seed={shown(seed)}: expected at least 0")
    rule = read_rule(redact)
    paths = given_folders(results, (AttackResult,))
    records: dict[Path, ReconstructionRecord] = {}
    directories = attack_directories(paths)
    with listener.progress("scoring") as report:
        for done, directory in enumerate(directories, start=1):
            with files.sharing(share_group), folders.held_with_those_around(directory):
                records[directory] = _score(directory, seed, rule)
            report(done, len(directories), directory.name)
    if rule != NONE:
        listener.say("pages that were made of these before show what they showed; make them again with report")
    for path in inference_directories(paths):
        listener.say(f"not scored again: {path} ({_NOT_STORED})")
    return records


def _score(directory: Path, seed: int | None, rule: str) -> ReconstructionRecord:
    saved = load_attack(directory, scores=False)
    if saved.truths is None:
        raise UserError(f"{directory / TRUTH}: left out of this directory; without it nothing can be scored")
    used = saved.about.seed if seed is None else seed
    given = (saved.reconstruction, saved.truths, saved.shuffled)
    record = score_attack(*given, seed=used, about=saved.about, judge=saved.judge)
    about = saved.about.model_copy(update={"redacted": rule})
    draw(replace(saved, metrics=record, about=about))
    if rule == NONE:
        write_record(directory, record)
    else:
        save_attack(
            directory,
            reconstruction=saved.reconstruction,
            truths=saved.truths,
            about=about,
            shuffled=saved.shuffled,
            metrics=record,
        )
    return record


def attack_directories(paths: Sequence[Path]) -> list[Path]:
    """Return the attack directories among and below the given folders (a suite, a study), in order."""
    results: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path}: no such folder; expected one that attack made")
        below = sorted({file.parent for name in (ABOUT, RECONSTRUCTION) for file in path.rglob(name)})
        inside = [path] if is_or_was_attack(path) else [folder for folder in below if is_or_was_attack(folder)]
        if not inside and inference_directories((path,)):
            raise UserError(f"{path}: {_NOT_STORED}")
        if not inside:
            raise UserError(f"{path}: holds no attack result (about.json of an attack is missing)")
        results += [directory for directory in inside if directory not in results]
    return results


def inference_directories(paths: Sequence[Path]) -> list[Path]:
    """Return the folders of membership and property inference among and directly below the given folders."""
    files = [
        file for path in paths for name in (MEMBERSHIP, PROPERTY) for file in (path / name, *path.glob(f"*/{name}"))
    ]
    return sorted(file.parent for file in files if file.is_file())
