"""``fedpriv score``: score a saved reconstruction again, without attacking again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rich_click as click

from fedpriv.cli import common
from fedpriv.cli.attack_summary import show_attacks
from fedpriv.util.errors import UserError
from fedpriv.util.files import write_bytes


@click.command()
@click.argument("directories", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--seed", type=int, help="Seed of floors, decoys and resamples (default: the attack's own).")
@common.common_options
def score(directories: tuple[Path, ...], seed: int | None, as_json: bool, quiet: bool) -> None:
    """Score attack directories again; rewrites metrics.json and the image grid.

    Membership and property inference are not scored again: they store no scores of single candidates.
    """
    from fedpriv.scoring.score import score as score_attack
    from fedpriv.scoring.storage import TRUTH, load_attack, save_metrics

    if seed is not None and seed < 0:
        raise UserError(f"--seed {seed}: expected at least 0")
    records: dict[Path, dict[str, Any]] = {}
    for directory in attack_directories(directories):
        saved = load_attack(directory)
        if saved.truths is None:
            raise UserError(f"{directory / TRUTH}: left out of this directory; without it nothing can be scored")
        used = saved.about["seed"] if seed is None else seed
        record = score_attack(
            saved.reconstruction, saved.truths, saved.permuted, seed=used, about=saved.about, judge=saved.judge
        )
        save_metrics(directory, record)
        draw(directory, record, saved)
        records[directory] = record
    for path in inference_directories(directories):
        common.say(f"not scored again: {path} ({_NOT_STORED})", quiet=quiet, as_json=True)
    if as_json:
        common.print_json({str(path): record for path, record in records.items()})
    elif not quiet:
        show_attacks(records, with_folder=True)


_NOT_STORED = "inference stores no scores of single candidates; attack again"


def draw(directory: Path, record: dict[str, Any], saved: Any) -> None:
    """Draw the image grid of an attack directory."""
    from fedpriv.pages.grid import grid_png

    write_bytes(directory / "grid.png", grid_png(record, saved.reconstruction, saved.truths, saved.permuted))


def attack_directories(paths: tuple[Path, ...]) -> list[Path]:
    """Return the attack directories among and below the given folders (a suite, a study), in order.

    Raises:
        UserError: for a folder that is missing or holds none.
    """
    from fedpriv.scoring.storage import is_attack_directory

    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path}: no such folder; expected an attack directory made by fedpriv attack")
        below = sorted(about.parent for about in path.rglob("about.json"))
        inside = [path] if is_attack_directory(path) else [folder for folder in below if is_attack_directory(folder)]
        if not inside and inference_directories((path,)):
            raise UserError(f"{path}: {_NOT_STORED}")
        if not inside:
            raise UserError(f"{path}: holds no attack result (about.json of an attack is missing)")
        found += [directory for directory in inside if directory not in found]
    return found


def inference_directories(paths: tuple[Path, ...]) -> list[Path]:
    """Return the folders of membership and property inference among and directly below the given folders."""
    from fedpriv.scoring.membership import FILE as MEMBERSHIP
    from fedpriv.scoring.property import FILE as PROPERTY

    files = [
        file for path in paths for name in (MEMBERSHIP, PROPERTY) for file in (path / name, *path.glob(f"*/{name}"))
    ]
    return sorted(file.parent for file in files if file.is_file())
