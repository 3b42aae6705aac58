"""An attack directory: what an attack returned, what it was scored against, and the record.

    about.json                    what was attacked, how, under which knowledge; digests of the others; written last
    reconstruction.safetensors    the attack's result, all that an attacker would have
    shuffled.safetensors          the same attack on other clients' uploads (where it was run)
    truth.safetensors             PRIVATE: the clients' images behind the targets. For the evaluator only; leave it out
                                  when a directory is passed on. Without it nothing can be scored again or drawn.
    metrics.json                  the record of :func:`fedpriv.eval.score.score`

Every file is written whole or not at all; reading checks all of it. Nothing is ever unpickled.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedpriv.attacks.observation import Cost, Reconstruction, TargetId
from fedpriv.datasets.types import as_unit
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
from fedpriv.sources.truth import Pool, Truth
from fedpriv.util.config import first_fault
from fedpriv.util.errors import UserError
from fedpriv.util.files import checked_tensors, digest, forget, mark, read_bytes, read_json, write_bytes, write_text
from fedpriv.util.foreign import json_value

ABOUT, METRICS, MEMBERSHIP, PROPERTY = "about.json", "metrics.json", "membership.json", "property.json"
CLAIM, PRIVACY_AUDIT = "claim.json", "audit-dp.json"
RECONSTRUCTION, SHUFFLED, TRUTH = "reconstruction.safetensors", "shuffled.safetensors", "truth.safetensors"

AnyRecord = About | ReconstructionRecord | MembershipRecord | PropertyRecord | ClaimCard | PrivacyAuditRecord
"""Every record that is written beside a result."""

FILES: dict[type[AnyRecord], str] = {
    About: ABOUT,
    ReconstructionRecord: METRICS,
    MembershipRecord: MEMBERSHIP,
    PropertyRecord: PROPERTY,
    ClaimCard: CLAIM,
    PrivacyAuditRecord: PRIVACY_AUDIT,
}
"""Records by their file names."""

_ADAPTER: TypeAdapter[AnyRecord] = TypeAdapter(
    Annotated[AnyRecord, Field(discriminator="kind")], config=ConfigDict(defer_build=True)
)
R = TypeVar("R", bound=AnyRecord)


# ---------------------------------------------------------------- records


def write_record(folder: Path, record: AnyRecord) -> None:
    """Write a record under the file name of its kind; the folder is made where it is missing."""
    write_text(folder / FILES[type(record)], record.model_dump_json(indent=2) + "\n")


def read_record(path: Path) -> AnyRecord:
    """Read and check a record of any kind.

    Raises:
        UserError: when it is missing, of another version of the format, or a field is wrong; one line that names it.
    """
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
    """Return the record of such a folder; errors as :func:`read_record`."""
    if (folder / PROPERTY).is_file():
        return _read(folder / PROPERTY, PropertyRecord)
    return _read(folder / MEMBERSHIP, MembershipRecord)


def load_privacy_audit(folder: Path) -> PrivacyAuditRecord:
    """Return the record of an audit of a claimed epsilon; errors as :func:`read_record`."""
    return _read(folder / PRIVACY_AUDIT, PrivacyAuditRecord)


def load_metrics(directory: Path) -> ReconstructionRecord:
    """Read and check ``metrics.json``; errors as :func:`read_record`."""
    return _read(directory / METRICS, ReconstructionRecord)


# ---------------------------------------------------------------- attack directories


@dataclass(frozen=True)
class AttackRecord:
    """An attack directory, read and checked.

    None stand for a control that was not run, truths that were left out, and what was not scored.
    """

    directory: Path
    reconstruction: Reconstruction
    shuffled: Reconstruction | None
    truths: tuple[Truth, ...] | None
    about: About
    metrics: ReconstructionRecord | None


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

    Where ``about`` says that it is redacted, images are withheld by that rule, truths are not written, and the list of
    the folder's files forgets what they held.
    """
    mark(directory, "attack")
    for name in (ABOUT, METRICS, SHUFFLED, TRUTH):  # an older about.json would vouch for old and new files
        (directory / name).unlink(missing_ok=True)
    save_reconstruction(directory / RECONSTRUCTION, withheld(reconstruction, about.redacted))
    if shuffled is not None:
        save_reconstruction(directory / SHUFFLED, withheld(shuffled, about.redacted))
    if metrics is not None:
        write_record(directory, metrics)
    if about.redacted == NONE:
        save_truths(directory / TRUTH, truths)
    else:
        forget(directory)
    files = [name for name in (RECONSTRUCTION, SHUFFLED, TRUTH) if (directory / name).is_file()]
    write_record(directory, about.model_copy(update={"files": {name: digest(directory / name) for name in files}}))


def load_attack(directory: Path, *, scores: bool = True) -> AttackRecord:
    """Read an attack directory and check all of it.

    Args:
        directory: of the attack.
        scores: read its record too; who makes that anew need not mind what is there.

    Raises:
        UserError: naming the file and the field that is missing, altered, or of a wrong shape or type.
    """
    about = _read(directory / ABOUT, About)
    if RECONSTRUCTION not in about.files:
        raise UserError(f"{directory / ABOUT}: field 'files' does not list {RECONSTRUCTION}")
    for name, expected in about.files.items():
        path = directory / Path(name).name
        if not path.is_file():
            if name == TRUTH and not os.path.lexists(path):
                continue
            what = "is no file" if os.path.lexists(path) else "no such file"
            raise UserError(f"{path}: {what}, though {ABOUT} lists it")
        if digest(path) != expected:
            raise UserError(f"{path}: content was altered; its SHA-256 is not the one in {ABOUT}")
    reconstruction = load_reconstruction(directory / RECONSTRUCTION)
    shape, number = tuple(reconstruction.images.shape), len(reconstruction.targets)
    shuffled = load_reconstruction(directory / SHUFFLED) if SHUFFLED in about.files else None
    if shuffled is not None and (shuffled.images.shape[2:] != shape[2:] or len(shuffled.images) != shape[0]):
        other = tuple(shuffled.images.shape)
        raise UserError(f"{directory / SHUFFLED}: images {other} do not fit the reconstruction's {shape}")
    truths = None
    if TRUTH in about.files and (directory / TRUTH).is_file():
        truths = load_truths(directory / TRUTH)
        if len(truths) != number:
            raise UserError(f"{directory / TRUTH}: {len(truths)} truths, expected {number}, one a target")
    metrics = load_metrics(directory) if scores and (directory / METRICS).is_file() else None
    if metrics is not None and metrics.n_targets != number:
        raise UserError(
            f"{directory / METRICS}: field 'n_targets' is {metrics.n_targets}, but the reconstruction has {number} targets"
        )
    return AttackRecord(directory, reconstruction, shuffled, truths, about, metrics)


def scored(attack: AttackRecord) -> ReconstructionRecord:
    """Return the record of an attack.

    Raises:
        UserError: when it was not scored; the message says how to.
    """
    if attack.metrics is None:
        raise UserError(f"{attack.directory / METRICS}: no such file; run fedpriv score {attack.directory}")
    return attack.metrics


# ---------------------------------------------------------------- reconstructions


FORMAT = "fedpriv-attack-2"
ENTRY = "fedpriv"

_TENSORS: dict[str, tuple[int, torch.dtype]] = {
    "images": (5, torch.float32),
    "objective": (2, torch.float32),
    "chosen": (1, torch.int64),
    "labels": (2, torch.int64),
    "converged": (1, torch.bool),
    "features": (2, torch.float32),
    "fits": (2, torch.float64),
    "distance": (1, torch.float32),
    "directions": (2, torch.float32),
}
_OPTIONAL = ("features", "fits", "distance", "directions")


def save_reconstruction(path: Path, reconstruction: Reconstruction) -> None:
    """Write a reconstruction atomically, targets and cost in the header."""
    moved = reconstruction.to_cpu()
    blocks = {n: value.to(dtype) for n, (_, dtype) in _TENSORS.items() if (value := getattr(moved, n)) is not None}
    targets = [dataclasses.asdict(target) for target in moved.targets]
    _save(path, blocks, "reconstruction", {"targets": targets, "cost": dataclasses.asdict(moved.cost)})


def load_reconstruction(path: Path) -> Reconstruction:
    """Read and check a reconstruction. Diverged (non-finite) images are kept: they are a result.

    Raises:
        UserError: naming the file and the tensor or header field that is wrong.
    """
    blocks, header = _load(path, "reconstruction")
    try:
        targets = tuple(TargetId(**target) for target in header["targets"])
        cost = Cost(**header["cost"])
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: header field 'targets' or 'cost' is not as written ({error})") from error
    for name, (axes, dtype) in _TENSORS.items():
        if name not in blocks:
            if name in _OPTIONAL:
                continue
            raise UserError(f"{path}: tensor {name!r} is missing")
        shape = tuple(blocks[name].shape)
        if len(shape) != axes or shape[0] != len(targets):
            wanted = f"{axes} axes, the first of {len(targets)} targets"
            raise UserError(f"{path}: tensor {name!r} has shape {shape}, expected {wanted}")
        if blocks[name].dtype != dtype:
            raise UserError(f"{path}: tensor {name!r} is {blocks[name].dtype}, expected {dtype}")
    images, chosen, restarts = blocks["images"], blocks["chosen"], blocks["objective"].shape[1]
    if blocks["labels"].shape[1] != images.shape[1]:
        raise UserError(f"{path}: labels {tuple(blocks['labels'].shape)} do not fit images {tuple(images.shape)}")
    if not bool(((chosen >= 0) & (chosen < restarts)).all()):
        raise UserError(f"{path}: tensor 'chosen' should lie in 0..{restarts - 1}")
    named: dict[str, Any] = {name: blocks.get(name) for name in _TENSORS}
    return Reconstruction(targets=targets, cost=cost, **named)


# ---------------------------------------------------------------- truths


_POOL = tuple(spec.name for spec in dataclasses.fields(Pool))
_TRUTH = ("members", "weights", "labels", "feature", "nearest")


def save_truths(path: Path, truths: tuple[Truth, ...]) -> None:
    """Store each distinct tensor and image once: targets share members and pool, and pools of clients share images.

    Images are bytes where that loses nothing. Of images ``(n, c, h, w)`` the names of their table and of their rows stand in
    the header, of another tensor its name.
    """
    blocks: dict[str, Tensor] = {}
    names: dict[int, Any] = {}
    tables: dict[str, tuple[dict[bytes, int], list[Tensor]]] = {"bytes": ({}, []), "floats": ({}, [])}

    def put(value: Tensor) -> Any:
        if id(value) not in names:
            name, here = f"t{len(names)}", value.detach().cpu()
            names[id(value)], blocks[name] = name, here
            if here.dim() == 4 and len(here):
                small = (here * 255).round().to(torch.uint8)
                table = "bytes" if here.dtype == torch.float32 and torch.equal(as_unit(small), here) else "floats"
                places, rows = tables[table]
                index = []
                for image in small if table == "bytes" else here.float():
                    key = image.numpy().tobytes()
                    if key not in places:
                        places[key] = len(rows)
                        rows.append(image)
                    index.append(places[key])
                names[id(value)], blocks[name] = [table, name], torch.tensor(index, dtype=torch.int64)
        return names[id(value)]

    pools = {id(truth.pool): truth.pool for truth in truths}
    numbers = {key: number for number, key in enumerate(pools)}
    entries = [
        {name: put(value) for name in _TRUTH if (value := getattr(truth, name)) is not None}
        | {"pool": numbers[id(truth.pool)]}
        | {"vectors": {name: put(vector) for name, vector in truth.vectors.items()}}
        for truth in truths
    ]
    pooled = [{name: put(getattr(pool, name)) for name in _POOL} for pool in pools.values()]
    blocks |= {name: torch.stack(rows) for name, (_, rows) in tables.items() if rows}
    _save(path, blocks, "truth", {"truths": entries, "pools": pooled})


def load_truths(path: Path) -> tuple[Truth, ...]:
    """Read and check truths.

    Raises:
        UserError: naming the file, the target and the field that is wrong.
    """
    blocks, header = _load(path, "truth")
    made: dict[str, Tensor] = {}

    def get(name: Any) -> Tensor:
        """Return one tensor object for each name, so that a directory written again stays as small."""
        if isinstance(name, str):
            return blocks[name]
        table, rows = name
        if rows not in made:
            made[rows] = as_unit(blocks[table][blocks[rows]])
        return made[rows]

    results, where = [], "pools"
    try:
        pools = [Pool(**{name: get(row[name]) for name in _POOL}) for row in header["pools"]]
        for position, row in enumerate(header["truths"]):
            where = f"target {position}"
            vectors = {name: get(value) for name, value in row["vectors"].items()}
            group = {name: get(row[name]) for name in _TRUTH if name in row}
            results.append(Truth(**group, pool=pools[row["pool"]], vectors=vectors))
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise UserError(f"{path}: {where} lacks a tensor or field ({error})") from error
    except UserError as error:
        raise UserError(f"{path}: {where}: {error}") from error
    return tuple(results)


# ---------------------------------------------------------------- safetensors


def _save(path: Path, blocks: Mapping[str, Tensor], content: str, header: Mapping[str, Any]) -> None:
    # One entry, because the library writes several in no fixed order and equal results should be equal files.
    metadata = {ENTRY: json.dumps({"format": FORMAT, "content": content, **header})}
    write_bytes(path, save({name: block.contiguous().clone() for name, block in blocks.items()}, metadata=metadata))


def _load(path: Path, content: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected a stored {content}")
    try:
        with safe_open(checked_tensors(path), framework="pt") as file:
            written = (file.metadata() or {}).get(ENTRY, "{}")
            blocks = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
        header = json_value(written)
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path}: not readable as safetensors with a header of ours ({error})") from error
    if not isinstance(header, dict):
        raise UserError(f"{path}: the header should be an object")
    if header.get("format") != FORMAT or header.get("content") != content:
        text = f"{header.get('format')!r} / {header.get('content')!r}"
        raise UserError(f"{path}: format / content is {text}, expected {FORMAT!r} / {content!r}")
    return blocks, header
