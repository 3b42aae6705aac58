"""Uploads of weights in files, one a client, beside the images behind them: arguments of ``attack_uploads``.

Files hold tensors by name: ``.safetensors``, ``.npz``, or ``.pt`` of which torch reads tensors alone. Nothing that a file
names is imported.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedpriv.attacks.observation import BatchFacts
from fedpriv.sources.facts import Facts, OwnerFacts, Steps
from fedpriv.sources.messages import Gradient, Update
from fedpriv.uploads.payload import as_tensor
from fedpriv.util.config import parse
from fedpriv.util.errors import UserError, first_line, shown
from fedpriv.util.foreign import TENSORS, check_file, entries, given_path, tensor_file
from fedpriv.util.registry import is_reference

SUFFIXES: Final = (".safetensors", ".pt", ".pth", ".npz")
PREFIX: Final = "module."  # of DataParallel
STATES: Final = ("model_state_dict", "state_dict", "model")  # names of weights in a checkpoint, beside an optimiser's
CONVERT: Final = "save it anew where it was made: safetensors.torch.save_file(model.state_dict(), FILE)"
Tensors = dict[str, Tensor]


def read_upload_files(
    uploads: Path,
    images: Path | None,
    before: Path | None,
    model: str | None,
    *,
    gradients: bool,
    steps: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the arguments of ``attack_uploads`` that files hold.

    Args:
        uploads: a folder of files, one a client, of weights after its local steps, or of gradients; or one such file.
        images: a folder with files of the same names that hold ``images`` and ``labels`` (and ``held_out_images``,
            ``held_out_labels``), and one named ``auxiliary``; or the file of a single client beside it.
        before: file of the weights that all clients started from.
        model: ``package.module:FACTORY``, which is run: it makes the network.
        gradients: the uploads are gradients of those weights.
        steps: learning_rate, batch_size, epochs and steps as far as they are given.
    """
    if model is None or not is_reference(model):
        what = "a function in the working directory or on PYTHONPATH, of no argument, that returns the torch.nn.Module"
        raise UserError(f"model={shown(model)}: expected package.module:FACTORY, {what} of the uploaded weights")
    if images is None:
        raise UserError("images: missing; a folder with one file a client, named as its upload, of images and labels")
    if before is None:
        raise UserError("before: missing; the file of the weights that all clients started from")
    network = OwnerFacts(Facts(model=model), "model", Path.cwd()).module("model")
    start, sent = read_tensors(before), _by_stem("uploads", uploads)
    _check_names(before, start, network)
    owned = _by_stem("images", images)
    beside = owned if images.is_dir() else _by_stem("images", images.absolute().parent)
    if not images.is_dir() and len(sent) == 1:
        owned = dict(zip(sent, owned.values(), strict=True))
    without = [path for stem, path in owned.items() if stem not in {*sent, "auxiliary", "public"}]
    if images.is_dir() and without:
        raise UserError(f"uploads: no file {without[0].stem}{SUFFIXES[0]} for the images {without[0]}; move these away")
    found: dict[str, Any] = {"model": network, "uploads": [], "images": [], "labels": [], "batch": []}
    for stem, path in sent.items():
        if stem not in owned:
            raise UserError(f"images: no file {stem}{SUFFIXES[0]} (or {', '.join(SUFFIXES[1:])}) for the upload {path}")
        values, own = read_tensors(path), read_tensors(owned[stem])
        _check_names(path, values, network)
        found["uploads"].append(Gradient(values) if gradients else Update(start, values))
        current, classes = _pair(owned[stem], own, "")
        order, facts = _steps(steps, len(current), gradients=gradients)
        found["images"].append(current[order])
        found["labels"].append(None if classes is None else classes[order])
        found["batch"].append(facts)
        if "held_out_images" in own:
            found.setdefault("held_out", []).append(_pair(owned[stem], own, "held_out_"))
    if gradients:
        known = {name: value for name, value in start.items() if name in dict(network.named_parameters())}
        network.load_state_dict(known, strict=False)
    if "auxiliary" not in beside:
        why = "images that no upload was computed from; baselines are made of them"
        raise UserError(f"images: no file auxiliary{SUFFIXES[0]} of {why}")
    for name in {"auxiliary", "public"} & set(beside):
        found[name], found[f"{name}_labels"] = _pair(beside[name], read_tensors(beside[name]), "", bare=True)
    return found


def _by_stem(name: str, path: Path) -> dict[str, Path]:
    """Return the files of tensors in a folder, or the one file, by name without suffix, in order of the names."""
    files = [path] if not path.is_dir() else [entry for entry in entries(path) if entry.suffix in SUFFIXES]
    if not files:
        raise UserError(f"{name}: no files in {path}; expected one a client, {', '.join(SUFFIXES)}")
    result: dict[str, Path] = {}
    for file in files:
        check_file(given_path(name, file), TENSORS)
        if file.stem in result:
            raise UserError(f"{name}: {result[file.stem].name} and {file.name}; expected one file a client")
        result[file.stem] = file
    return result


def read_tensors(path: Path) -> Tensors:
    """Return the tensors that a file holds by name; no code in it is run."""
    check_file(given_path("before", path), TENSORS)
    if path.suffix not in SUFFIXES:
        raise UserError(f"{path}: expected a file of tensors, one of {', '.join(SUFFIXES)}")
    try:
        if path.suffix == ".safetensors":
            values: Any = load_file(tensor_file(path))
        elif path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as stored:
                values = {name: stored[name] for name in stored.files}
        else:
            with warnings.catch_warnings(action="ignore"):  # of how it was pickled
                values = torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except pickle.UnpicklingError as error:
        raise UserError(f"{path}: holds more than tensors, and code in a file is not run; {CONVERT}") from error
    except Exception as error:  # a damaged file fails in any way
        raise UserError(
            f"{path}: not readable as {path.suffix[1:]} ({first_line(error).partition('. ')[0]}); {CONVERT}"
        ) from error
    values = _state(path, values)
    whole = all(name.startswith(PREFIX) for name in values)
    return {name.removeprefix(PREFIX * whole): as_tensor(f"{path}: {name}", value) for name, value in values.items()}


def _state(path: Path, values: Any) -> Mapping[str, Any]:
    """Return the tensors by name in a file, or in the checkpoint that it holds, beside an optimiser's."""
    keys = [*values] if isinstance(values, Mapping) else []
    found = [values, *(values[name] for name in STATES if name in keys)]
    states: list[Mapping[str, Any]] = [entry for entry in found if _are_tensors(entry)]
    if len(states) == 1:
        return states[0]
    holds = ", ".join(map(shown, keys[:8])) or type(values).__name__
    raise UserError(
        f"{path}: holds {holds}; expected tensors by name, alone or under one of {', '.join(STATES)}; {CONVERT}"
    )


def _are_tensors(values: Any) -> bool:
    inner = values.items() if isinstance(values, Mapping) and values else [(None, None)]
    return all(isinstance(name, str) and isinstance(value, (Tensor, np.ndarray)) for name, value in inner)


def _check_names(path: Path, values: Tensors, network: nn.Module) -> None:
    """Check that a file holds every parameter that is trained, in its shape."""
    for name, parameter in network.named_parameters():
        got = tuple(values[name].shape) if name in values else "nothing"
        if got != tuple(parameter.shape) and (name in values or parameter.requires_grad):
            there = f"; the file holds {', '.join([*values][:5])}, ..." if name not in values else ""
            raise UserError(f"{path}: {name!r}: expected {tuple(parameter.shape)} as in the model, got {got}{there}")


def _pair(path: Path, values: Tensors, prefix: str, *, bare: bool = False) -> tuple[Tensor, Tensor | None]:
    """Return images and labels of a file, as many of one as of the other; ``bare`` images may have none."""
    missing = [name for name in (f"{prefix}images", f"{prefix}labels")[: 2 - bare] if name not in values]
    if missing:
        raise UserError(f"{path}: no {missing[0]!r}; it holds {', '.join(values)}")
    images, labels = values[f"{prefix}images"], values.get(f"{prefix}labels")
    if images.dim() != 4 or (labels is not None and labels.shape != images.shape[:1]):
        got = "" if labels is None else f" and {prefix}labels {tuple(labels.shape)}"
        expected = "expected (n, c, h, w) and (n,)"
        raise UserError(f"{path}: {prefix}images {tuple(images.shape)}{got}; {expected}")
    return images, labels


def _steps(given: Mapping[str, Any], count: int, *, gradients: bool) -> tuple[Tensor, BatchFacts | None]:
    """Return the images of all local steps in order, by number, and the facts of the steps."""
    if gradients and not given:
        return torch.arange(count), None
    if "learning_rate" not in given:
        raise UserError("lr: missing; the learning rate of the local steps, without which no update can be read")
    steps = parse(Steps, {"batch_size": count, **given}, "local steps")
    number = count * steps.epochs if steps.steps is None else steps.batch_size * steps.steps
    return torch.arange(number) % count, steps.of(count)
