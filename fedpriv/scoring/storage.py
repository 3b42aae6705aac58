"""An attack directory: what an attack returned, what it was scored against, and the record.

    about.json                    what was attacked, how, under which knowledge; digests of the others; written last
    reconstruction.safetensors    the attack's result, all that an attacker would have
    shuffled.safetensors          the same attack on other clients' uploads (where it was run)
    truth.safetensors             PRIVATE: the clients' images behind the targets. For the evaluator only; leave it out
                                  when a directory is passed on. Without it nothing can be scored again or drawn.
    judge.safetensors             PRIVATE: the classifier that judged class images (class inversion only); trained on other
                                  images of the data set
    metrics.json                  the record of :func:`fedpriv.scoring.score.score`

Every file is written whole or not at all; reading checks all of it. Nothing is ever unpickled.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedpriv.attacks.observation import Reconstruction
from fedpriv.scoring.judge import FILE as JUDGE
from fedpriv.scoring.judge import ClassEvaluator, load_class_evaluator, save_class_evaluator
from fedpriv.scoring.records import (
    RECORD_VERSION,
    About,
    AnyRecord,
    ClaimCard,
    InferenceResult,
    MembershipRecord,
    PrivacyAuditRecord,
    PropertyRecord,
    ReconstructionRecord,
)
from fedpriv.scoring.redaction import NONE, withheld
from fedpriv.scoring.tensor_files import load_reconstruction, load_truths, save_reconstruction, save_truths
from fedpriv.sources.truth import Truth
from fedpriv.util.errors import UserError
from fedpriv.util.files import digest, forget, mark, read_bytes, read_json, write_text
from fedpriv.util.foreign import json_value
from fedpriv.util.record import first_fault

ABOUT, METRICS, MEMBERSHIP, PROPERTY = "about.json", "metrics.json", "membership.json", "property.json"
CLAIM, PRIVACY_AUDIT = "claim.json", "audit-dp.json"
RECONSTRUCTION, SHUFFLED, TRUTH = "reconstruction.safetensors", "shuffled.safetensors", "truth.safetensors"
FILES: dict[type[AnyRecord], str] = {
    About: ABOUT,
    ReconstructionRecord: METRICS,
    MembershipRecord: MEMBERSHIP,
    PropertyRecord: PROPERTY,
    ClaimCard: CLAIM,
    PrivacyAuditRecord: PRIVACY_AUDIT,
}
"""Records by their file names."""
_ADAPTER: TypeAdapter[AnyRecord] = TypeAdapter(AnyRecord, config=ConfigDict(defer_build=True))


# ---------------------------------------------------------------- records


def write_record(folder: Path, record: AnyRecord) -> None:
    """Write a record under the file name of its kind; the folder is made where it is missing."""
    write_text(folder / FILES[type(record)], record.model_dump_json(indent=2) + "\n")


def read_record(path: Path) -> AnyRecord:
    """Read and check a record of any kind.

    Raises:
        UserError: when it is missing, of another version of the format, or a field is wrong; one line that names it.
    """
    json = read_json(path)
    if not isinstance(json, dict):
        raise UserError(f"{path}: expected an object, got {type(json).__name__}")
    version = json.get("version")
    if version != RECORD_VERSION:
        raise UserError(
            f"{path}: a record of format {version!r}, but this version reads format {RECORD_VERSION}; "
            f"use the fedpriv that made it (0.1.0 reads 3), or {_remedy(path, json)}"
        )
    try:
        return _ADAPTER.validate_json(read_bytes(path), strict=True)
    except ValidationError as error:
        raise UserError(f"{path}: {first_fault(error, 1)}; {_remedy(path, json)}") from error


def _remedy(path: Path, values: dict[str, Any]) -> str:
    if path.name == METRICS:
        return f"score again with: fedpriv score {path.parent}"
    command = values.get("command")
    return f"attack again with: {command}" if command else "attack again"


# ---------------------------------------------------------------- inference


def holds_scores(folder: Path) -> bool:
    """True for a folder that holds the record of an attack that returns scores."""
    return any((folder / name).is_file() for name in (MEMBERSHIP, PROPERTY))


def load_scores(folder: Path) -> InferenceResult:
    """Return the record of such a folder.

    Raises:
        UserError: as :func:`read_record`.
    """
    path = folder / (PROPERTY if (folder / PROPERTY).is_file() else MEMBERSHIP)
    record = read_record(path)
    if not isinstance(record, (MembershipRecord, PropertyRecord)):
        raise _wrong_kind(path, record)
    return record


def load_privacy_audit(folder: Path) -> PrivacyAuditRecord:
    """Return the record of an audit of a claimed epsilon.

    Raises:
        UserError: as :func:`read_record`.
    """
    record = read_record(folder / PRIVACY_AUDIT)
    if not isinstance(record, PrivacyAuditRecord):
        raise _wrong_kind(folder / PRIVACY_AUDIT, record)
    return record


def _wrong_kind(path: Path, record: AnyRecord) -> UserError:
    return UserError(f"{path}: holds a record of kind {record.kind!r}; attack again")


# ---------------------------------------------------------------- attack directories


@dataclass(frozen=True)
class AttackRecord:
    """An attack directory, read and checked.

    Attributes:
        directory: where it was read from.
        reconstruction: what the attack returned.
        shuffled: the control, or None.
        truths: one a target, or None where the private file was left out.
        about: how it was made.
        metrics: the record, or None where it was not scored yet.
        judge: the classifier of class images, or None.
    """

    directory: Path
    reconstruction: Reconstruction
    shuffled: Reconstruction | None
    truths: tuple[Truth, ...] | None
    about: About
    metrics: ReconstructionRecord | None
    judge: ClassEvaluator | None = None


def is_attack_directory(directory: Path) -> bool:
    """True where ``directory`` says of itself that it holds an attack. Its files may still be damaged."""
    try:
        about = json_value((directory / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(about, dict) and about.get("kind") == "about"


def save_attack(
    directory: Path,
    *,
    reconstruction: Reconstruction,
    truths: tuple[Truth, ...],
    about: About,
    shuffled: Reconstruction | None = None,
    metrics: ReconstructionRecord | None = None,
    judge: ClassEvaluator | None = None,
) -> None:
    """Write an attack directory. ``about.json`` comes last, so an interrupted writing leaves no valid directory.

    Where ``about`` says that it is redacted, images are withheld by that rule, neither truths nor judge are written, and the
    list of the folder's files forgets what they held.
    """
    mark(directory, "attack")
    kept = about.redacted == NONE
    # An older directory's about.json would vouch for a mixture of old and new files.
    (directory / ABOUT).unlink(missing_ok=True)
    (directory / METRICS).unlink(missing_ok=True)
    save_reconstruction(directory / RECONSTRUCTION, withheld(reconstruction, about.redacted))
    if shuffled is None:
        (directory / SHUFFLED).unlink(missing_ok=True)
    else:
        save_reconstruction(directory / SHUFFLED, withheld(shuffled, about.redacted))
    if kept:
        save_truths(directory / TRUTH, truths)
    else:
        (directory / TRUTH).unlink(missing_ok=True)
    if metrics is not None:
        write_record(directory, metrics)
    if judge is not None and kept:
        save_class_evaluator(directory, judge)
    else:
        (directory / JUDGE).unlink(missing_ok=True)
    if not kept:
        forget(directory)
    files = [name for name in (RECONSTRUCTION, SHUFFLED, TRUTH, JUDGE) if (directory / name).is_file()]
    write_record(directory, about.model_copy(update={"files": {name: digest(directory / name) for name in files}}))


def load_about(directory: Path) -> About:
    """Read and check ``about.json``.

    Raises:
        UserError: as :func:`read_record`.
    """
    path = directory / ABOUT
    about = read_record(path)
    if not isinstance(about, About):
        raise _wrong_kind(path, about)
    if RECONSTRUCTION not in about.files:
        raise UserError(f"{path}: field 'files' does not list {RECONSTRUCTION}")
    return about


def load_metrics(directory: Path) -> ReconstructionRecord:
    """Read and check ``metrics.json``.

    Raises:
        UserError: as :func:`read_record`.
    """
    path = directory / METRICS
    record = read_record(path)
    if not isinstance(record, ReconstructionRecord):
        raise _wrong_kind(path, record)
    return record


def load_attack(directory: Path, *, scores: bool = True) -> AttackRecord:
    """Read an attack directory and check all of it.

    Args:
        directory: of the attack.
        scores: read its record too; who makes that anew need not mind what is there.

    Raises:
        UserError: naming the file and the field that is missing, altered, or of a wrong shape or type.
    """
    about = load_about(directory)
    for name, expected in about.files.items():
        path = directory / Path(name).name
        if not path.is_file():
            if name in (TRUTH, JUDGE) and not os.path.lexists(path):
                continue
            what = "is no file" if os.path.lexists(path) else "no such file"
            raise UserError(f"{path}: {what}, though {ABOUT} lists it")
        if digest(path) != expected:
            raise UserError(f"{path}: content was altered; its SHA-256 is not the one in {ABOUT}")
    reconstruction = load_reconstruction(directory / RECONSTRUCTION)
    shuffled = None
    if SHUFFLED in about.files:
        shuffled = load_reconstruction(directory / SHUFFLED)
        if shuffled.images.shape[2:] != reconstruction.images.shape[2:] or len(shuffled.images) != len(
            reconstruction.images
        ):
            raise UserError(
                f"{directory / SHUFFLED}: images {tuple(shuffled.images.shape)} do not fit the reconstruction's "
                f"{tuple(reconstruction.images.shape)}"
            )
    truths = None
    if TRUTH in about.files and (directory / TRUTH).is_file():
        truths = load_truths(directory / TRUTH)
        if len(truths) != len(reconstruction.targets):
            raise UserError(
                f"{directory / TRUTH}: {len(truths)} truths, expected {len(reconstruction.targets)}, one a target"
            )
    metrics = None
    if scores and (directory / METRICS).is_file():
        metrics = load_metrics(directory)
        if metrics.n_targets != len(reconstruction.targets):
            raise UserError(
                f"{directory / METRICS}: field 'n_targets' is {metrics.n_targets}, but the reconstruction has "
                f"{len(reconstruction.targets)} targets"
            )
    channels, height, width = reconstruction.images.shape[2:]
    judge = load_class_evaluator(directory, (channels, height, width)) if JUDGE in about.files else None
    return AttackRecord(directory, reconstruction, shuffled, truths, about, metrics, judge)


def scored(attack: AttackRecord) -> ReconstructionRecord:
    """Return the record of an attack.

    Raises:
        UserError: when it was not scored; the message says how to.
    """
    if attack.metrics is None:
        raise UserError(f"{attack.directory / METRICS}: no such file; run fedpriv score {attack.directory}")
    return attack.metrics
