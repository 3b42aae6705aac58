"""Reading and writing: the embedded images, and the folder that results go to."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from fedpriv.experiment.diagnosis.finding import Finding, found_by
from fedpriv.util import folders, ownership
from fedpriv.util.errors import UserError
from fedpriv.util.files import read_json, write_json

EMBEDDED: Mapping[str, tuple[int, int, str]] = {
    "fashion": (2000, 10, "97e70081fc8be73ba81e775565e340751f38734e0d7729c145c13a914af4c0d3"),
    "digits": (1797, 10, "8b3b6ae90863430bdef06a3f7d1ec2f6a905a53d3375655b18cf63780ad98772"),
}
"""Data set -> images, classes, and the SHA-256 of its images and labels as they are loaded (fashion: bytes, digits:
float32; labels int64). Digits come with scikit-learn, so another digest is another scikit-learn."""


def embedded_data() -> list[Finding]:
    """Return the findings on the data sets that need no download."""
    return [found_by(f"data: {name}", partial(_data, name)) for name in EMBEDDED]


def _data(name: str) -> Finding:
    from fedpriv.datasets import load_dataset

    loaded = load_dataset(name)
    images, labels = loaded.samples.images, loaded.samples.labels
    content = images.contiguous().numpy().tobytes() + labels.contiguous().numpy().tobytes()
    found = (len(images), len(loaded.class_names), hashlib.sha256(content).hexdigest())
    facts = {"images": found[0], "classes": found[1], "sha256": found[2]}
    if found != EMBEDDED[name]:
        wanted = EMBEDDED[name]
        told = (
            f"{found[0]} images of {found[1]} classes with SHA-256 {found[2][:12]}; expected {wanted[0]} of {wanted[1]} "
            f"with {wanted[2][:12]}: figures of this machine are not those of others"
        )
        return Finding(f"data: {name}", "failed", told, facts)
    return Finding(f"data: {name}", "ok", f"{found[0]} images of {found[1]} classes, as they should be", facts)


def output_folder(out: Path) -> Finding:
    """Try to write, lock and force to disk the folder that results go to; leaves nothing there."""
    return found_by("output", lambda: _output(out))


def _output(out: Path) -> Finding:
    above = next(place for place in (out.absolute(), *out.absolute().parents) if os.path.lexists(place))
    if not above.is_dir():
        return Finding("output", "failed", "there is a file where the folder for results should be")
    there = above == out.absolute()
    where = "the folder for results" if there else "the folder for results is not there yet; the one above it"
    try:
        return _tried(above, where)
    except (OSError, UserError) as error:
        why = getattr(error, "strerror", None) or str(error).replace(str(above), "OUT")
        return Finding("output", "failed", f"{where} cannot be written: {why}")


def _tried(above: Path, where: str) -> Finding:
    """Write, lock and sync a folder in one that is there. The paths of both are the user's, and told nobody."""
    with tempfile.TemporaryDirectory(prefix=".fedpriv-doctor-", dir=above) as made:
        trial = Path(made) / "trial"
        with folders.output(trial, "trial"):
            write_json(trial / "written.json", {"written": 1})
            if read_json(trial / "written.json") != {"written": 1}:
                return Finding("output", "failed", f"{where} gives back a file otherwise than it was written")
            locks = _refuses_another(trial)
            synced = _syncs(trial)
    facts = {"written": True, "locks": locks, "synced": synced}
    lacking = [
        *(() if locks else ("locks do nothing here, so two commands may write one folder at once",)),
        *(() if synced else ("folders cannot be forced to disk, so a loss of power may lose what was written last",)),
    ]
    if lacking:
        return Finding("output", "warning", f"{where}: {'; '.join(lacking)}", facts)
    return Finding("output", "ok", f"{where} can be written, locked and forced to disk", facts)


def _refuses_another(held: Path) -> bool:
    """True if a folder that is held already cannot be taken once more."""
    try:
        with ownership.held(held):
            return False
    except UserError:
        return True


def _syncs(folder: Path) -> bool:
    try:
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
    except OSError:
        return False
    return True
