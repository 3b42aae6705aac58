"""An attack directory: what an attack returned, what it was scored against, and the record.

    about.json                    what was attacked, how, under which knowledge; digests of the others; written last
    reconstruction.safetensors    the attack's result, all that an attacker would have
    permuted.safetensors          the same attack on other clients' uploads (where it was run)
    truth.safetensors             PRIVATE: the clients' images behind the targets. For the evaluator only; leave it out
                                  when a directory is passed on. Without it nothing can be scored again or drawn.
    judge.safetensors             PRIVATE: the classifier that judged class images (class inversion only); trained on other
                                  images of the data set
    metrics.json                  the record of :func:`fedpriv.scoring.score.score`

Every file is written whole or not at all; reading checks all of it. Nothing is ever unpickled.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv.attacks.observation import KnowledgeCard, Reconstruction
from fedpriv.evidence.truth import Truth
from fedpriv.scoring.judge import FILE as JUDGE
from fedpriv.scoring.judge import Judge, load_judge, save_judge
from fedpriv.scoring.score import SCHEMA
from fedpriv.scoring.tensor_files import FORMAT, load_reconstruction, load_truths, save_reconstruction, save_truths
from fedpriv.util.errors import UserError
from fedpriv.util.files import digest, read_json, write_text

ABOUT, METRICS = "about.json", "metrics.json"
RECONSTRUCTION, PERMUTED, TRUTH = "reconstruction.safetensors", "permuted.safetensors", "truth.safetensors"
_ABOUT_KEYS = ("target", "attack", "method", "dataset", "knowledge", "seed")
_METRICS_KEYS = ("target", "attack", "method", "dataset", "knowledge", "n_targets", "metrics", "floors", "advantage_db")


@dataclass(frozen=True)
class AttackRecord:
    """An attack directory, read and checked.

    Attributes:
        directory: where it was read from.
        reconstruction: what the attack returned.
        permuted: the control, or None.
        truths: one a target, or None where the private file was left out.
        about: ``target, attack, method, dataset, knowledge, seed`` and whatever else the writer added.
        metrics: the record, or None where it was not scored yet.
        judge: the classifier of class images, or None.
    """

    directory: Path
    reconstruction: Reconstruction
    permuted: Reconstruction | None
    truths: tuple[Truth, ...] | None
    about: dict[str, Any]
    metrics: dict[str, Any] | None
    judge: Judge | None = None


def is_attack_directory(directory: Path) -> bool:
    """Whether ``directory`` says of itself that it holds an attack. Its files may still be damaged."""
    try:
        about = json.loads((directory / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(about, dict) and about.get("format") == FORMAT


def save_attack(
    directory: Path,
    *,
    reconstruction: Reconstruction,
    truths: tuple[Truth, ...],
    about: Mapping[str, Any],
    permuted: Reconstruction | None = None,
    metrics: Mapping[str, Any] | None = None,
    judge: Judge | None = None,
) -> None:
    """Write an attack directory. ``about.json`` comes last, so an interrupted writing leaves no valid directory.

    Raises:
        UserError: when ``about`` lacks a key.
    """
    card = about.get("knowledge")
    described = dict(about)
    if isinstance(card, KnowledgeCard):
        described["knowledge"] = dataclasses.asdict(card)
    _require(directory / ABOUT, described, _ABOUT_KEYS)
    directory.mkdir(parents=True, exist_ok=True)
    # An older directory's about.json would vouch for a mixture of old and new files.
    (directory / ABOUT).unlink(missing_ok=True)
    (directory / METRICS).unlink(missing_ok=True)
    save_reconstruction(directory / RECONSTRUCTION, reconstruction)
    if permuted is None:
        (directory / PERMUTED).unlink(missing_ok=True)
    else:
        save_reconstruction(directory / PERMUTED, permuted)
    save_truths(directory / TRUTH, truths)
    if metrics is not None:
        save_metrics(directory, metrics)
    if judge is not None:
        save_judge(directory, judge)
    else:
        (directory / JUDGE).unlink(missing_ok=True)
    files = [name for name in (RECONSTRUCTION, PERMUTED, TRUTH, JUDGE) if (directory / name).is_file()]
    described |= {"format": FORMAT, "files": {name: digest(directory / name) for name in files}}
    write_text(directory / ABOUT, _json(described))


def save_metrics(directory: Path, metrics: Mapping[str, Any]) -> None:
    """Write ``metrics.json`` of an attack directory."""
    write_text(directory / METRICS, _json(metrics))


def load_about(directory: Path) -> dict[str, Any]:
    """Read and check ``about.json``.

    Raises:
        UserError: when it is missing or not an attack's.
    """
    path = directory / ABOUT
    about = read_json(path)
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        found = about.get("format") if isinstance(about, dict) else type(about).__name__
        raise UserError(f"{path}: field 'format' is {found!r}, expected {FORMAT!r}")
    _require(path, about, (*_ABOUT_KEYS, "files"))
    for key in ("knowledge", "files"):
        if not isinstance(about[key], dict):
            raise UserError(f"{path}: field {key!r} should be an object, got {type(about[key]).__name__}")
    if RECONSTRUCTION not in about["files"]:
        raise UserError(f"{path}: field 'files' does not list {RECONSTRUCTION}")
    return about


def load_metrics(directory: Path) -> dict[str, Any]:
    """Read and check ``metrics.json``.

    Raises:
        UserError: when it is missing, of another schema, or lacks a field.
    """
    path = directory / METRICS
    record = read_json(path)
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        found = record.get("schema") if isinstance(record, dict) else type(record).__name__
        raise UserError(f"{path}: field 'schema' is {found!r}, expected {SCHEMA}; score the directory again")
    _require(path, record, _METRICS_KEYS)
    return record


def load_attack(directory: Path) -> AttackRecord:
    """Read an attack directory and check all of it.

    Raises:
        UserError: naming the file and the field that is missing, altered, or of a wrong shape or type.
    """
    about = load_about(directory)
    for name, expected in about["files"].items():
        path = directory / Path(name).name
        if not path.is_file():
            if name in (TRUTH, JUDGE):
                continue
            raise UserError(f"{path}: no such file, though {ABOUT} lists it")
        if digest(path) != expected:
            raise UserError(f"{path}: content was altered; its SHA-256 is not the one in {ABOUT}")
    reconstruction = load_reconstruction(directory / RECONSTRUCTION)
    permuted = None
    if PERMUTED in about["files"]:
        permuted = load_reconstruction(directory / PERMUTED)
        if permuted.images.shape[2:] != reconstruction.images.shape[2:] or len(permuted.images) != len(
            reconstruction.images
        ):
            raise UserError(
                f"{directory / PERMUTED}: images {tuple(permuted.images.shape)} do not fit the reconstruction's "
                f"{tuple(reconstruction.images.shape)}"
            )
    truths = None
    if TRUTH in about["files"] and (directory / TRUTH).is_file():
        truths = load_truths(directory / TRUTH)
        if len(truths) != len(reconstruction.targets):
            raise UserError(
                f"{directory / TRUTH}: {len(truths)} truths, expected {len(reconstruction.targets)}, one a target"
            )
    metrics = None
    if (directory / METRICS).is_file():
        metrics = load_metrics(directory)
        if metrics["n_targets"] != len(reconstruction.targets):
            raise UserError(
                f"{directory / METRICS}: field 'n_targets' is {metrics['n_targets']}, but the reconstruction has "
                f"{len(reconstruction.targets)} targets"
            )
    channels, height, width = reconstruction.images.shape[2:]
    judge = load_judge(directory, (channels, height, width)) if JUDGE in about["files"] else None
    return AttackRecord(directory, reconstruction, permuted, truths, about, metrics, judge)


def scored(attack: AttackRecord) -> dict[str, Any]:
    """Return the record of an attack.

    Raises:
        UserError: when it was not scored; the message says how to.
    """
    if attack.metrics is None:
        raise UserError(f"{attack.directory / METRICS}: no such file; run fedpriv score {attack.directory}")
    return attack.metrics


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def _require(path: Path, found: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for key in keys:
        if key not in found:
            raise UserError(f"{path}: field {key!r} is missing; expected {', '.join(keys)}")
