"""An attack directory: what an attack returned, what it was scored against, and the record.

    about.json                    what was attacked, how, under which knowledge; written last
    reconstruction.safetensors    the attack's result, all that an attacker would have
    shuffled.safetensors          the same attack on other clients' uploads (where it was run)
    truth.safetensors             PRIVATE: the clients' images behind the targets. For the evaluator only; leave it out
                                  when a directory is passed on. Without it nothing can be scored again or drawn.
    metrics.json                  the record of :func:`fedpriv.eval.score.score`

Every file is written whole or not at all; reading checks all of it. Nothing is ever unpickled.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from fedpriv.eval.claims import ClaimCard
from fedpriv.eval.records import (
    RECORD_VERSION,
    About,
    InferenceResult,
    MembershipRecord,
    PrivacyAuditRecord,
    PropertyRecord,
    ReconstructionRecord,
)
from fedpriv.eval.redaction import NONE, withheld
from fedpriv.util.config import first_fault
from fedpriv.util.errors import UserError
from fedpriv.util.files import checked, forget, listed, mark, read_bytes, read_json, remove, write_text
from fedpriv.util.foreign import json_value

if TYPE_CHECKING:  # records are read without tensors too
    from fedpriv.attacks.observation import Reconstruction
    from fedpriv.sources.truth import Truth

ABOUT, METRICS, MEMBERSHIP, PROPERTY = "about.json", "metrics.json", "membership.json", "property.json"
CLAIM, PRIVACY_AUDIT = "claim.json", "audit-dp.json"
RECONSTRUCTION, SHUFFLED, TRUTH = "reconstruction.safetensors", "shuffled.safetensors", "truth.safetensors"
GRID = "grid.png"
"""The picture of the attack (:mod:`fedpriv.reports.grid`)."""

AnyRecord = About | ReconstructionRecord | MembershipRecord | PropertyRecord | ClaimCard | PrivacyAuditRecord

FILES: dict[type[AnyRecord], str] = {
    About: ABOUT,
    ReconstructionRecord: METRICS,
    MembershipRecord: MEMBERSHIP,
    PropertyRecord: PROPERTY,
    ClaimCard: CLAIM,
    PrivacyAuditRecord: PRIVACY_AUDIT,
}

_ADAPTER: TypeAdapter[AnyRecord] = TypeAdapter(
    Annotated[AnyRecord, Field(discriminator="kind")], config=ConfigDict(defer_build=True)
)
R = TypeVar("R", bound=AnyRecord)


def write_record(folder: Path, record: AnyRecord) -> None:
    """Write a record under the file name of its kind; the folder is made where it is missing."""
    write_text(folder / FILES[type(record)], record.model_dump_json(indent=2) + "\n")


def read_record(path: Path) -> AnyRecord:
    """Read and check a record of any kind; a UserError names what is missing, of another format, or wrong."""
    values = read_json(path)
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected an object, got {type(values).__name__}")
    command = values.get("command")
    remedy = f"attack again with: {command}" if command else "attack again"
    if path.name == METRICS:
        remedy = f"score again with: fedpriv score {path.parent}"
    version = values.get("version")
    if version != RECORD_VERSION:
        raise UserError(
            f"{path}: a record of format {version!r}, but this version reads format {RECORD_VERSION}; "
            f"use the fedpriv that made it (0.1.0 reads 3), or {remedy}"
        )
    try:
        return _ADAPTER.validate_json(read_bytes(path), strict=True)
    except ValidationError as error:
        raise UserError(f"{path}: {first_fault(error, 1)}; {remedy}") from error


def _read(path: Path, kind: type[R]) -> R:
    record = read_record(path)
    if not isinstance(record, kind):
        raise UserError(f"{path}: holds a record of kind {record.kind!r}; attack again")
    return record


def holds_scores(folder: Path) -> bool:
    """True for a folder that holds the record of an attack that returns scores."""
    return any((folder / name).is_file() for name in (MEMBERSHIP, PROPERTY))


def load_scores(folder: Path) -> InferenceResult:
    """Return the record of such a folder."""
    if (folder / PROPERTY).is_file():
        return _read(folder / PROPERTY, PropertyRecord)
    return _read(folder / MEMBERSHIP, MembershipRecord)


def load_privacy_audit(folder: Path) -> PrivacyAuditRecord:
    """Return the record of an audit of a claimed epsilon."""
    return _read(folder / PRIVACY_AUDIT, PrivacyAuditRecord)


def load_metrics(directory: Path) -> ReconstructionRecord:
    """Read and check ``metrics.json``."""
    return _read(directory / METRICS, ReconstructionRecord)


@dataclass(frozen=True)
class StoredAttack:
    """The records of an attack directory, read and checked; ``metrics`` is None where it was not scored."""

    directory: Path
    about: About
    metrics: ReconstructionRecord | None


@dataclass(frozen=True)
class AttackRecord(StoredAttack):
    """All of it; None stands for a control that was not run, and truths that were left out."""

    reconstruction: Reconstruction
    shuffled: Reconstruction | None
    truths: tuple[Truth, ...] | None


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
) -> None:
    """Write an attack directory. ``about.json`` comes last, so an interrupted writing leaves no valid directory.

    Where ``about`` says that it is redacted, images are withheld by that rule, truths are not written, and no digest of them
    stays.
    """
    from fedpriv.eval.tensors import save_reconstruction, save_truths

    mark(directory, "attack")
    for name in (ABOUT, METRICS, SHUFFLED, TRUTH):  # an older about.json would vouch for old and new files
        remove(directory / name)
    save_reconstruction(directory / RECONSTRUCTION, withheld(reconstruction, about.redacted))
    if shuffled is not None:
        save_reconstruction(directory / SHUFFLED, withheld(shuffled, about.redacted))
    if metrics is not None:
        write_record(directory, metrics)
    if about.redacted == NONE:
        save_truths(directory / TRUTH, truths)
    write_record(directory, about)
    if about.redacted != NONE:
        forget(directory)


def load_stored(directory: Path, *, scores: bool = True) -> StoredAttack:
    """Read the records of an attack directory, and check that every file is what was written, without any tensor."""
    about = _read(directory / ABOUT, About)
    for name in list(listed(directory)):
        # A directory may be passed on without the truth, a picture is drawn again, and so are scores that are made anew.
        if name != GRID and (scores or name != METRICS) and (name != TRUTH or os.path.lexists(directory / name)):
            checked(directory / name)
    metrics = load_metrics(directory) if scores and (directory / METRICS).is_file() else None
    return StoredAttack(directory, about, metrics)


def load_attack(directory: Path, *, scores: bool = True) -> AttackRecord:
    """Read an attack directory and check all of it; a UserError names file and field that are missing, altered or wrong.

    Who makes its ``scores`` anew need not mind what is there.
    """
    from fedpriv.eval.tensors import load_reconstruction, load_truths

    stored = load_stored(directory, scores=scores)
    about, metrics = stored.about, stored.metrics
    reconstruction = load_reconstruction(directory / RECONSTRUCTION)
    shape, number = tuple(reconstruction.images.shape), len(reconstruction.targets)
    shuffled = load_reconstruction(directory / SHUFFLED) if (directory / SHUFFLED).is_file() else None
    if shuffled is not None and (shuffled.images.shape[2:] != shape[2:] or len(shuffled.images) != shape[0]):
        other = tuple(shuffled.images.shape)
        raise UserError(f"{directory / SHUFFLED}: images {other} do not fit the reconstruction's {shape}")
    truths = None
    if (directory / TRUTH).is_file():
        truths = load_truths(directory / TRUTH)
        if len(truths) != number:
            raise UserError(f"{directory / TRUTH}: {len(truths)} truths, expected {number}, one a target")
    if metrics is not None and metrics.n_targets != number:
        raise UserError(
            f"{directory / METRICS}: field 'n_targets' is {metrics.n_targets}, but the reconstruction has {number} targets"
        )
    return AttackRecord(directory, about, metrics, reconstruction, shuffled, truths)


def scored(attack: StoredAttack) -> ReconstructionRecord:
    """Return the record of an attack; where it was not scored, a UserError says how to."""
    if attack.metrics is None:
        raise UserError(f"{attack.directory / METRICS}: no such file; run fedpriv score {attack.directory}")
    return attack.metrics
