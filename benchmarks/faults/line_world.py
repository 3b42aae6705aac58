"""The folder in which command lines are tried: results of ours, files of a stranger, and things that are wrong."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from fedpriv.cli.main import run

TINY = (
    "--dataset",
    "digits",
    "--per-class",
    "12",
    "--clients",
    "2",
    "--alpha",
    "10",
    "--rounds",
    "2",
    "--models",
    "small-mlp",
)
"""Flags of a federation that trains in a fraction of a second."""

FOREIGN = ("foreign", "images", "file.txt", "good.toml", "attack.toml", "study.toml", "bad.toml", "binary.bin")
"""What no command may change."""

STUDY = """methods = ["fedgh"]
defenses = ["none"]
attacks = ["average"]
seeds = [0]
targets = 2
local = false
control = false

[knowledge]
labels = "given"

[federation]
dataset = "digits"
per_class = 12
clients = 2
alpha = 10.0
rounds = 2
models = "small-mlp"
"""

CONFIG = """dataset = "digits"
per-class = 12
clients = 2
alpha = 10.0
rounds = 2
models = "small-mlp"
"""


def make(folder: Path) -> Path:
    """Make the folder that every trial starts from a copy of."""
    folder.mkdir(parents=True)
    before = Path.cwd()
    os.chdir(folder)
    try:
        for line in (
            ("train", "--method", "fedgh", *TINY, "--out", "run", "--quiet"),
            ("attack", "--run", "run", "--target", "prototype", "--attack", "average", "--out", "attacked", "--quiet"),
            ("report", "attacked", "run", "--out", "reported", "--quiet"),
        ):
            if run(list(line)):
                raise RuntimeError(f"the folder of the trials could not be made: {line}")
    finally:
        os.chdir(before)
    shutil.copytree(folder / "run", folder / "half-run")
    (folder / "half-run" / "summary.json").unlink()
    shutil.copytree(folder / "run", folder / "broken-run")
    (folder / "broken-run" / "config.json").write_text('{"method": ', encoding="utf-8")
    (folder / "foreign").mkdir()
    (folder / "foreign" / "thesis.tex").write_text("years of work", encoding="utf-8")
    (folder / "foreign" / "config.json").write_text('{"name": "theirs"}', encoding="utf-8")
    (folder / "empty").mkdir()
    (folder / "link").symlink_to("foreign")
    (folder / "dangling").symlink_to("nowhere")
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (folder / "images" / name).mkdir(parents=True)
        for number in range(12):
            pixels = rng.integers(0, 255, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / name / f"{number}.png")
    (folder / "file.txt").write_text("some text", encoding="utf-8")
    (folder / "good.toml").write_text(CONFIG, encoding="utf-8")
    (folder / "attack.toml").write_text('target = "prototype"\n' + CONFIG, encoding="utf-8")
    (folder / "study.toml").write_text(STUDY, encoding="utf-8")
    (folder / "bad.toml").write_text("rounds = [1\nx", encoding="utf-8")
    (folder / "binary.bin").write_bytes(bytes(range(256)))
    return folder


def copy(world: Path, folder: Path) -> Path:
    """Return a fresh copy of the folder, in place of what a trial left; as it is where the trial left all as it was."""
    if not folder.exists() or _listed(folder) != _listed(world):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(world, folder, symlinks=True)
    return folder


def _listed(folder: Path) -> list[tuple[str, int, int]]:
    """Return every path below a folder, with size and time of change of files."""
    found = []
    for place, folders, files in os.walk(folder):
        found += [(os.path.relpath(os.path.join(place, name), folder), 0, 0) for name in folders]
        for name in files:
            path = os.path.join(place, name)
            facts = os.lstat(path)
            changed = 0 if os.path.islink(path) else facts.st_mtime_ns
            found.append((os.path.relpath(path, folder), facts.st_size, changed))
    return sorted(found)


def theirs(folder: Path) -> str:
    """Return a digest of everything in the folder that is a stranger's."""
    found = hashlib.sha256()
    for name in FOREIGN:
        place = folder / name
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            found.update(str(path.relative_to(folder)).encode())
            found.update(path.read_bytes() if path.is_file() else b"")
    return found.hexdigest()
