"""Small federations, trained in a second or two: the one place where tests make them, and the library of trained ones."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

import fedpriv
from fedpriv.datasets.partition import PartitionOptions
from fedpriv.federation.method import LocalTraining
from fedpriv.federation.prepared import Federation
from fedpriv.federation.rounds import run, run_clients
from fedpriv.federation.run_directory import RunConfig, RunDirectory
from fedpriv.sources.run import prepare
from fedpriv.util.config import plain
from fedpriv.util.files import LOCK, MARKER

QUICK_DATA = {"dataset": "digits", "auxiliary": 0.0}
"""Small images, all of them among clients: what tests name whose point is not the data."""

DIGITS = ("--dataset", "digits", "--auxiliary", "0")
"""The same on the command line."""

CPU = torch.device("cpu")

LIBRARY = Path()
"""Folder of the trained runs, in pytest's cache: conftest.py sets it."""

ROOMS = ("federation", "methods", "defenses", "datasets", "models", "algebra", "uploads", "util", "sources")
"""Rooms whose sources decide what a run holds."""


def sources() -> str:
    """A digest of all code that a run depends on."""
    home, digest = Path(fedpriv.__file__).parent, hashlib.sha256()
    for path in sorted(path for room in ROOMS for path in (home / room).rglob("*.py")):
        digest.update(path.relative_to(home).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def small(method: str, *, alpha: float | None = None, **settings: Any) -> RunConfig:
    """Digits, all of them with clients, of every class as many with each client unless ``alpha`` skews them."""
    partition = PartitionOptions(name="iid") if alpha is None else PartitionOptions(alpha=alpha)
    own = {"partition": partition, "training": LocalTraining(learning_rate=0.1)}
    return RunConfig(method=method, **(QUICK_DATA | own | settings))


def train_small(path: Path, config: RunConfig, engine: Any = run_clients) -> tuple[RunDirectory, Federation]:
    """A run that is trained to its end."""
    directory, federation = RunDirectory.create(path, config), prepare(config, CPU)
    run(federation, directory, engine)
    return directory, federation


def trained_small(path: Path, config: RunConfig) -> tuple[RunDirectory, Federation]:
    """A copy of a run that is trained once for all tests, processes and sessions with the same sources."""
    key = hashlib.sha256(json.dumps(plain(config), sort_keys=True).encode()).hexdigest()[:16]
    source = LIBRARY / key
    with FileLock(f"{source}.lock"):
        if not RunDirectory(source).complete:
            shutil.rmtree(source, ignore_errors=True)
            train_small(source, config)
    shutil.copytree(source, path)
    return RunDirectory(path), prepare(config, CPU)


def forged(folder: Path) -> Path:
    """A folder whose markers list no file any more, as somebody leaves them who edits with care."""
    for marker in folder.rglob(MARKER):
        marker.write_bytes(marker.read_bytes().partition(b"\n")[0] + b"\n")
    return folder


def files(path: Path) -> dict[str, bytes]:
    """Everything in a run that is a function of its configuration alone."""
    skipped = {"timings.jsonl", "summary.json", MARKER, LOCK}  # the marker holds an identity
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name not in skipped
    }
