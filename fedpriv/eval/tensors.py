"""The tensors of an attack directory: what an attack returned and the private truth, as safetensors, checked when read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedpriv.attacks.observation import Cost, Reconstruction, TargetId
from fedpriv.datasets.types import as_unit
from fedpriv.sources.truth import Pool, Truth
from fedpriv.util.errors import UserError
from fedpriv.util.files import tensor_file, write_bytes
from fedpriv.util.foreign import json_value

FORMAT = "fedpriv-attack-2"
ENTRY = "fedpriv"

_TENSORS: dict[str, tuple[int, torch.dtype]] = {
    "images": (5, torch.float32),
    "objective": (2, torch.float32),
    "labels": (2, torch.int64),
    "converged": (1, torch.bool),
    "features": (2, torch.float32),
    "fits": (2, torch.float64),
}
_OPTIONAL = ("features", "fits")


def save_reconstruction(path: Path, reconstruction: Reconstruction) -> None:
    """Write a reconstruction atomically, targets and cost in the header."""
    moved = reconstruction.to_cpu()
    blocks = {n: value.to(dtype) for n, (_, dtype) in _TENSORS.items() if (value := getattr(moved, n)) is not None}
    targets = [dataclasses.asdict(target) for target in moved.targets]
    _save(path, blocks, "reconstruction", {"targets": targets, "cost": dataclasses.asdict(moved.cost)})


def load_reconstruction(path: Path) -> Reconstruction:
    """Read and check a reconstruction; a UserError names file and field. Diverged images are kept: they are a result."""
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
    images = blocks["images"]
    if blocks["labels"].shape[1] != images.shape[1]:
        raise UserError(f"{path}: labels {tuple(blocks['labels'].shape)} do not fit images {tuple(images.shape)}")
    named: dict[str, Any] = {name: blocks.get(name) for name in _TENSORS}
    return Reconstruction(targets=targets, cost=cost, **named)


_POOL = tuple(spec.name for spec in dataclasses.fields(Pool))
_TRUTH = ("members", "weights", "labels", "feature")


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
                    index.append(places.setdefault(image.numpy().tobytes(), len(rows)))
                    if index[-1] == len(rows):
                        rows.append(image)
                names[id(value)], blocks[name] = [table, name], torch.tensor(index, dtype=torch.int64)
        return names[id(value)]

    pools = {id(truth.pool): truth.pool for truth in truths}
    numbers = {key: number for number, key in enumerate(pools)}
    entries = [
        {name: put(value) for name in _TRUTH if (value := getattr(truth, name)) is not None}
        | {"pool": numbers[id(truth.pool)]}
        for truth in truths
    ]
    pooled = [{name: put(getattr(pool, name)) for name in _POOL} for pool in pools.values()]
    blocks |= {name: torch.stack(rows) for name, (_, rows) in tables.items() if rows}
    _save(path, blocks, "truth", {"truths": entries, "pools": pooled})


def load_truths(path: Path) -> tuple[Truth, ...]:
    """Read and check truths; a UserError names the file, the target and the field that is wrong."""
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
            group = {name: get(row[name]) for name in _TRUTH if name in row}
            results.append(Truth(**group, pool=pools[row["pool"]]))
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise UserError(f"{path}: {where} lacks a tensor or field ({error})") from error
    except UserError as error:
        raise UserError(f"{path}: {where}: {error}") from error
    return tuple(results)


def _save(path: Path, blocks: Mapping[str, Tensor], content: str, header: Mapping[str, Any]) -> None:
    # One entry, because the library writes several in no fixed order and equal results should be equal files.
    metadata = {ENTRY: json.dumps({"format": FORMAT, "content": content, **header})}
    write_bytes(path, save({name: block.contiguous().clone() for name, block in blocks.items()}, metadata=metadata))


def _load(path: Path, content: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected a stored {content}")
    try:
        with safe_open(tensor_file(path), framework="pt") as file:
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
