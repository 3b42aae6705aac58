"""The installation: fedpriv, Python, every declared dependency against its lower bound, and the extras."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import fedpriv
from fedpriv.experiment.diagnosis.finding import Finding, found_by

if TYPE_CHECKING:
    from packaging.requirements import Requirement

EXTRAS: Mapping[str, str] = {
    "frames": "tables as pandas frames",
    "dp": "accounting and training under differential privacy",
    "perceptual": "the learned perceptual distance",
    "flower": "recording a Flower app, and Flower as an engine",
    "slurm": "submitting the shards of a study to a queue",
}
"""Extras of a user's -> their use; those of developers are left out."""

LOADED = ("torch", "torchvision", "numpy", "scipy")
"""Dependencies that are imported too: compiled ones may be there and not fit each other."""


def installed() -> list[Finding]:
    """Return the findings on fedpriv, Python, its dependencies and extras."""
    try:
        wanted = _requirements()
    except importlib.metadata.PackageNotFoundError:
        told = f"{fedpriv.__version__}, in a folder and not installed, so what it needs is not known; pip install ."
        return [Finding("fedpriv", "warning", told, {"version": fedpriv.__version__}), found_by("python", _python)]
    except Exception as error:
        told = f"what it needs cannot be read: {type(error).__name__}: {error}"
        return [found_by("fedpriv", lambda: Finding("fedpriv", "failed", told)), found_by("python", _python)]
    needed = [own for own in wanted if _wanted(own, "")]
    extras = {extra: [own for own in wanted if not _wanted(own, "") and _wanted(own, extra)] for extra in EXTRAS}
    return [
        found_by("fedpriv", _fedpriv),
        found_by("python", _python),
        *(found_by(own.name, partial(_dependency, own)) for own in needed),
        *(found_by(f"extra {extra}", partial(_extra, extra, own)) for extra, own in extras.items()),
    ]


def _requirements() -> list[Requirement]:
    from packaging.requirements import Requirement

    return [Requirement(text) for text in importlib.metadata.requires("fedpriv") or ()]


def _wanted(own: Requirement, extra: str) -> bool:
    return own.marker is None or own.marker.evaluate({"extra": extra})


def _fedpriv() -> Finding:
    told = importlib.metadata.version("fedpriv")
    facts = {"version": fedpriv.__version__}
    if told != fedpriv.__version__:
        return Finding(
            "fedpriv", "warning", f"{fedpriv.__version__}, but {told} was installed; install it again", facts
        )
    return Finding("fedpriv", "ok", told, facts)


def _python() -> Finding:
    kind = f"{platform.python_implementation()} {platform.python_version()}"
    system = f"{platform.system()} {platform.machine()}"
    facts = {"version": platform.python_version(), "implementation": platform.python_implementation(), "system": system}
    try:
        bound = importlib.metadata.metadata("fedpriv")["Requires-Python"]
    except (importlib.metadata.PackageNotFoundError, KeyError):
        bound = None
    if bound:
        from packaging.specifiers import SpecifierSet

        if not SpecifierSet(bound).contains(platform.python_version(), prereleases=True):
            return Finding("python", "failed", f"{kind} on {system}; expected {bound}", facts)
    return Finding("python", "ok", f"{kind} on {system}", facts)


def _dependency(own: Requirement) -> Finding:
    version = _version(own.name)
    facts = {"version": version, "bound": str(own.specifier)}
    if version is None:
        return Finding(own.name, "failed", f"not installed; expected {own.specifier}", facts)
    if not own.specifier.contains(version, prereleases=True):
        return Finding(own.name, "failed", f"{version}; expected {own.specifier}", facts)
    if own.name in LOADED:
        importlib.import_module(own.name)
    return Finding(own.name, "ok", f"{version} ({own.specifier})", facts)


def _extra(extra: str, wanted: list[Requirement]) -> Finding:
    if not wanted:
        told = "not declared by what was installed, which is another version than this; install it again"
        return Finding(f"extra {extra}", "warning", told, {"versions": {}, "installed": False})
    needed = [part for own in wanted for part in (own, *_parts(own))]
    versions = {own.name: _version(own.name) for own in needed}
    absent = [name for name, version in versions.items() if version is None]
    old = [
        f"{own.name} {versions[own.name]}, expected {own.specifier}"
        for own in needed
        if versions[own.name] is not None and not own.specifier.contains(str(versions[own.name]), prereleases=True)
    ]
    name, facts = f"extra {extra}", {"versions": versions, "installed": not absent and not old}
    if old:
        return Finding(name, "warning", f"{'; '.join(old)}; pip install 'fedpriv[{extra}]'", facts)
    if absent:
        told = f"not installed ({', '.join(absent)}): {EXTRAS[extra]}; pip install 'fedpriv[{extra}]'"
        return Finding(name, "ok", told, facts)
    told = ", ".join(f"{own} {version}" for own, version in versions.items())
    return Finding(name, "ok", told, facts)


def _parts(own: Requirement) -> list[Requirement]:
    """Return the requirements that the extras of a requirement add, where its distribution is installed."""
    from packaging.requirements import Requirement

    if not own.extras or _version(own.name) is None:
        return []
    parts = [Requirement(text) for text in importlib.metadata.requires(own.name) or ()]
    return [part for part in parts if not _wanted(part, "") and any(_wanted(part, extra) for extra in own.extras)]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
