"""Reconstructions and truths as safetensors files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedpriv.attacks.observation import Cost, Reconstruction, TargetId
from fedpriv.datasets.types import as_unit
from fedpriv.evidence.truth import Truth
from fedpriv.util.errors import UserError
from fedpriv.util.files import whole

FORMAT = "fedpriv-attack-1"


# ---------------------------------------------------------------- reconstructions


_RECONSTRUCTION_TENSORS: dict[str, tuple[int, torch.dtype]] = {
    "images": (5, torch.float32),
    "objective": (2, torch.float32),
    "chosen": (1, torch.int64),
    "labels": (2, torch.int64),
    "converged": (1, torch.bool),
}


def save_reconstruction(path: Path, reconstruction: Reconstruction) -> None:
    """Write a reconstruction atomically, targets and cost in the header."""
    moved = reconstruction.to_cpu()
    blocks = {name: getattr(moved, name).to(dtype) for name, (_, dtype) in _RECONSTRUCTION_TENSORS.items()}
    if moved.features is not None:
        blocks["features"] = moved.features.float()
    if moved.fits is not None:
        blocks["fits"] = moved.fits.double()
    header = {
        "targets": [dataclasses.asdict(target) for target in moved.targets],
        "cost": dataclasses.asdict(moved.cost),
    }
    _save(path, blocks, "reconstruction", header)


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
    for name, (axes, dtype) in _RECONSTRUCTION_TENSORS.items():
        _check_block(path, blocks, name, len(targets), axes, dtype)
    images, restarts = blocks["images"], blocks["objective"].shape[1]
    if blocks["labels"].shape[1] != images.shape[1]:
        raise UserError(f"{path}: labels {tuple(blocks['labels'].shape)} do not fit images {tuple(images.shape)}")
    chosen = blocks["chosen"]
    if len(chosen) and not bool(((chosen >= 0) & (chosen < restarts)).all()):
        raise UserError(f"{path}: tensor 'chosen' should lie in 0..{restarts - 1}")
    features, fits = blocks.get("features"), blocks.get("fits")
    if features is not None:
        _check_block(path, blocks, "features", len(targets), 2, torch.float32)
    if fits is not None:
        _check_block(path, blocks, "fits", len(targets), 2, torch.float64)
    named = {name: blocks[name] for name in _RECONSTRUCTION_TENSORS}
    return Reconstruction(targets=targets, cost=cost, features=features, fits=fits, **named)


# ---------------------------------------------------------------- truths


def save_truths(path: Path, truths: tuple[Truth, ...]) -> None:
    """Store each distinct tensor once: targets of one client share members and pool."""
    blocks: dict[str, Tensor] = {}
    names: dict[int, str] = {}

    def put(value: Tensor) -> str:
        if id(value) not in names:
            names[id(value)] = f"t{len(names)}"
            blocks[names[id(value)]] = _as_bytes(value.detach().cpu())
        return names[id(value)]

    fields = [spec.name for spec in dataclasses.fields(Truth)]
    rows = [
        {name: put(getattr(truth, name)) for name in fields if getattr(truth, name) is not None} for truth in truths
    ]
    _save(path, blocks, "truth", {"truths": rows})


def load_truths(path: Path) -> tuple[Truth, ...]:
    """Read and check truths.

    Raises:
        UserError: naming the file, the target and the field that is wrong.
    """
    blocks, header = _load(path, "truth")
    rows = header.get("truths")
    if not isinstance(rows, list):
        raise UserError(f"{path}: header field 'truths' is missing")
    # One tensor object for each block, so that a directory written again stays as small.
    values = {name: as_unit(block) if block.dtype == torch.uint8 else block for name, block in blocks.items()}
    found = []
    for position, row in enumerate(rows):
        try:
            found.append(Truth(**{field: values[name] for field, name in row.items()}))
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: truth {position} lacks a tensor or field ({error})") from error
        except UserError as error:
            raise UserError(f"{path}: target {position}: {error}") from error
    return tuple(found)


def _as_bytes(value: Tensor) -> Tensor:
    """Return images as uint8 where that loses nothing (four times smaller), else the tensor itself."""
    if value.dim() != 4 or value.dtype != torch.float32:
        return value
    small = (value * 255).round().to(torch.uint8)
    return small if torch.equal(as_unit(small), value) else value


# ---------------------------------------------------------------- safetensors


def _save(path: Path, blocks: Mapping[str, Tensor], content: str, header: Mapping[str, Any]) -> None:
    metadata = {"format": FORMAT, "content": content, "header": json.dumps(header)}
    with whole(path) as temporary:
        save_file({name: block.contiguous().clone() for name, block in blocks.items()}, temporary, metadata=metadata)


def _load(path: Path, content: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected a stored {content}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            blocks = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path}: not readable as safetensors ({error})") from error
    if metadata.get("format") != FORMAT or metadata.get("content") != content:
        found = f"{metadata.get('format')!r} / {metadata.get('content')!r}"
        raise UserError(f"{path}: format / content is {found}, expected {FORMAT!r} / {content!r}")
    try:
        header = json.loads(metadata["header"])
    except (KeyError, ValueError) as error:
        raise UserError(f"{path}: header field 'header' is missing or no JSON") from error
    if not isinstance(header, dict):
        raise UserError(f"{path}: header field 'header' should be an object")
    return blocks, header


def _check_block(
    path: Path, blocks: Mapping[str, Tensor], name: str, n_targets: int, axes: int, dtype: torch.dtype
) -> None:
    if name not in blocks:
        raise UserError(f"{path}: tensor {name!r} is missing")
    shape = tuple(blocks[name].shape)
    if len(shape) != axes or shape[0] != n_targets:
        raise UserError(
            f"{path}: tensor {name!r} has shape {shape}, expected {axes} axes, the first of {n_targets} targets"
        )
    if blocks[name].dtype != dtype:
        raise UserError(f"{path}: tensor {name!r} is {blocks[name].dtype}, expected {dtype}")
