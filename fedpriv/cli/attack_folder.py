"""Where ``fedpriv attack`` writes: a folder made once, found again by what was asked for, and given back when unused."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.cli import common
from fedpriv.util.errors import UserError

if TYPE_CHECKING:
    from fedpriv.federation.run_directory import RunConfig


def make_folder(
    out: Path | None, target: str, resume: bool, force: bool, request: Mapping[str, Any], config: RunConfig | None
) -> Path:
    """Return the folder of results: a new one that holds the request, or that of an interrupted attack.

    Args:
        out: where; None takes a free name.
        target: kind of upload, which that name is made of.
        resume: go on with what is there.
        force: replace what is there.
        request: what is asked for.
        config: of the run that is trained first, or None.

    Raises:
        UserError: when the folder is taken, or was made with other flags.
    """
    from fedpriv.util.config import plain
    from fedpriv.util.files import read_json, write_json

    described = {**request, "config": None if config is None else plain(config)}
    if resume:
        if out is None:
            raise UserError("--resume needs --out, the folder of the interrupted attack")
        before = read_json(out / "request.json")
        if before != described:
            changed = ", ".join(_differences(before, described))
            raise UserError(f"{out}: was made with other flags ({changed} differ); resume with the same flags")
        return out
    folder = out or common.numbered(Path("results") / target)
    common.fresh_folder(folder, force=force)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "request.json", described)
    return folder


def _differences(before: Any, now: Any, prefix: str = "") -> list[str]:
    """Return the dotted names of what differs between two nested mappings."""
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return [prefix] if before != now else []
    names = [str(name) for name in {**before, **now}]
    return [
        found
        for name in names
        for found in _differences(before.get(name), now.get(name), f"{prefix}.{name}" if prefix else name)
    ]


def give_back(folder: Path, resume: bool, error: UserError) -> None:
    """Remove a folder that was made for nothing; where only a run was trained, say how to go on with it.

    Raises:
        UserError: that says so.
    """
    files = [path for path in folder.rglob("*") if not path.is_dir()]
    if resume or any(path != folder / "request.json" and folder / "run" not in path.parents for path in files):
        return
    if (folder / "run" / "summary.json").is_file():
        raise UserError(f"{error} (the run is trained: go on with --run {folder / 'run'} and another --out)") from error
    if len(files) == 1:
        shutil.rmtree(folder)
