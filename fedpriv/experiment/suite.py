"""Run attacks on a run's evidence, piece by piece, so that an interrupt loses one piece at most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedpriv.attacks.contract import Attack
from fedpriv.attacks.observation import Knowledge, Observation, Reconstruction, TargetId
from fedpriv.attacks.trained import Trained
from fedpriv.scoring.redaction import NONE
from fedpriv.scoring.tensor_files import load_reconstruction, save_reconstruction
from fedpriv.util import files
from fedpriv.util.listener import SILENT
from fedpriv.util.numerics import Numerics

PIECE = 32
"""Targets attacked between two savings."""

PARTIAL = ".partial"


@dataclass(frozen=True)
class Execution:
    """Circumstances of the attacks; only a precision that is asked for changes results beyond the last digits.

    Attributes:
        seed: the attacks' seed.
        device: where they compute.
        chunk_rows: rows at a time; None chooses by memory.
        piece: targets between two savings.
        kind: of upload that is attacked, where needs differ by it.
        trained: networks of the attacker's own that are trained already.
        say: told in a line what a person should know.
        numerics: precision of searches, and whether their networks are compiled.
        redact: rule by which images are kept out of what is stored and drawn.
    """

    seed: int
    device: torch.device
    chunk_rows: int | None = None
    piece: int = PIECE
    kind: str | None = None
    trained: Trained = field(default_factory=Trained)
    say: Callable[[str], None] = SILENT.say
    redact: str = NONE
    numerics: Numerics = field(default_factory=Numerics)


def attack_in_pieces(
    attack: Attack,
    observations: tuple[Observation, ...],
    targets: tuple[TargetId, ...],
    knowledge: Knowledge,
    execution: Execution,
    folder: Path,
    name: str,
    progress: Callable[[int, int, str], None] | None = None,
) -> Reconstruction:
    """Attack all targets, saving finished pieces under ``folder/.partial`` and reading back those that are there.

    Results do not depend on how targets are grouped, because every row has a generator of its own.

    Args:
        attack: what to run.
        observations: what the server saw, or the permuted control.
        targets: T targets.
        knowledge: card and grants.
        execution: seed, device, chunking.
        folder: the attack's directory.
        name: of the pieces; ``reconstruction`` or ``permuted``.
        progress: called with (units done, units planned, what) over all pieces.
    """
    pieces = [targets[start : start + execution.piece] for start in range(0, len(targets), execution.piece)]
    found: list[Reconstruction] = []
    for number, piece in enumerate(pieces):
        path = _piece(folder, name, number)
        if path.is_file():
            found.append(load_reconstruction(path))
            continue

        def within(done: int, planned: int, number: int = number) -> None:
            if progress is not None:
                progress(number * planned + done, len(pieces) * planned, f"{name}, targets {len(found)}")

        result = attack(
            observations,
            knowledge,
            piece,
            kind=execution.kind,
            seed=execution.seed,
            device=execution.device,
            chunk_rows=execution.chunk_rows,
            progress=within,
            say=execution.say,
            trained=execution.trained,
            numerics=execution.numerics,
        ).to_cpu()
        save_reconstruction(path, result)
        found.append(result)
    return concatenate(found)


def _piece(folder: Path, name: str, number: int) -> Path:
    return folder / PARTIAL / f"{name}-{number:04d}.safetensors"


def are_kept(folder: Path, name: str, targets: int, execution: Execution) -> bool:
    """True where all pieces of so many targets are saved."""
    return all(_piece(folder, name, number).is_file() for number in range(-(-targets // execution.piece)))


def forget_pieces(folder: Path) -> None:
    """Remove the pieces of an attack that is saved as a whole."""
    files.remove(folder / PARTIAL)
    if any(name.startswith(f"{PARTIAL}/") for name in files.written(folder)):
        files.forget(folder)


def concatenate(parts: Sequence[Reconstruction]) -> Reconstruction:
    """Return reconstructions of disjoint targets as one.

    Where parts hold different numbers of guesses, as batches of different sizes make them, the targets of the smaller
    part show their own guesses again: nothing new, so that scores, which leave repeats out, stay as they are.
    """
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    most = max(part.images.shape[1] for part in parts)

    def in_turn(values: Tensor) -> Tensor:
        return values[:, torch.arange(most) % values.shape[1]]

    joined: dict[str, Any] = {
        name: torch.cat([in_turn(getattr(part, name)) for part in parts]) for name in ("images", "labels")
    }
    joined |= {
        name: torch.cat([getattr(part, name) for part in parts]) for name in ("objective", "chosen", "converged")
    }
    for name in ("features", "distance", "directions"):
        there = [value for part in parts if (value := getattr(part, name)) is not None]
        joined[name] = torch.cat(there) if len(there) == len(parts) else None
    cost = replace(
        first.cost,
        seconds=sum(part.cost.seconds for part in parts),
        iterations=max(part.cost.iterations for part in parts),
        rows=sum(part.cost.rows for part in parts),
        evaluations=max(part.cost.evaluations for part in parts),
    )
    return replace(
        first,
        targets=tuple(target for part in parts for target in part.targets),
        cost=cost,
        **joined,
    )
