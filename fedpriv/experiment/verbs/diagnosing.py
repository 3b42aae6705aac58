"""The verb ``doctor``: checks of an installation and its machine, one line each, none of which stops the others."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import fedpriv
from fedpriv.experiment.saving import Tabular
from fedpriv.util import folders
from fedpriv.util.errors import UserError
from fedpriv.util.files import write_json
from fedpriv.util.listener import SILENT, Listener
from fedpriv.util.memory import free_memory, in_words

if TYPE_CHECKING:
    import torch

Status = Literal["ok", "warning", "failed"]
EXTRAS = ("", "frames", "dp", "perceptual", "flower", "nvflare", "slurm")
SCARCE = 2 << 30
"""Free bytes of memory below which an attack of ordinary size may be killed."""
BOUND = 0.01
"""Largest difference from the CPU's gradient, as a share of its norm; rounding as TF32 does makes 0.0004."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one check: ``ok``, ``warning`` (something may surprise) or ``failed``, and one line for people."""

    name: str
    status: Status
    told: str

    def __str__(self) -> str:
        return f"{self.status:<7}  {self.name}: {self.told}"


@dataclass(frozen=True)
class Diagnosis(Tabular):
    """Findings on an installation and its machine. As text it can be pasted into a bug report.

    Attributes:
        findings: each with ``name``, ``status`` (``ok``, ``warning``, ``failed``) and ``told``. They name no path of the
            user's home and not the machine.
    """

    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The findings that have failed: work that needs these will fail."""
        return tuple(finding for finding in self.findings if finding.status == "failed")

    @property
    def verdict(self) -> str:
        """All of it in one line."""
        names = {
            status: [row.name for row in self.findings if row.status == status] for status in ("failed", "warning")
        }
        beside = f"; {len(names['warning'])} warning(s): {', '.join(names['warning'])}" if names["warning"] else ""
        return (f"failed: {', '.join(names['failed'])}" if names["failed"] else "fedpriv works here") + beside

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return the findings, one row each."""
        return [vars(finding) for finding in self.findings]

    def __str__(self) -> str:
        return "\n".join([*map(str, self.findings), self.verdict])


def doctor(*, device: str = "auto", out: str | Path = "results", listener: Listener = SILENT) -> Diagnosis:
    """Check the versions installed, the machine and the output folder, and compute a gradient on the device.

    Takes some seconds, downloads nothing and leaves nothing behind. Whatever is wrong is a finding, not an exception.

    Args:
        device: ``auto`` (a GPU if there is one), ``cpu``, ``cuda`` or ``cuda:N``; what it computes is compared with the CPU.
        out: folder that results would go to.
        listener: hears of the progress.
    """
    checks: dict[str, Callable[[], tuple[Status, str]]] = {
        "fedpriv": _fedpriv,
        "packages": _packages,
        "machine": _machine,
        "device": lambda: _device(device),
        "output": lambda: _output(Path(out)),
        "computing": lambda: _computing(device),
    }
    findings = []
    with listener.progress("looking at this installation") as report:
        for done, (name, check) in enumerate(checks.items()):
            report(done, len(checks), "checks")
            try:
                status, told = check()
            except Exception as error:
                status, told = "failed", f"{type(error).__name__}: {error}"
            findings.append(Finding(name, status, _private(" ".join(told.split()))))
    return Diagnosis(tuple(findings))


def _private(text: str) -> str:
    """Return a text without the paths of the user's home and the current folder, and without this machine's name."""
    places = {".": Path.cwd(), "~": Path.home()}
    signs = {str(path): sign for sign, place in places.items() for path in (place, place.resolve()) if path.name}
    for path in sorted(signs, key=len, reverse=True):
        text = text.replace(path, signs[path])
    host = platform.node()
    return text.replace(host, "this machine") if len(host) > 3 and host != "localhost" else text


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _fedpriv() -> tuple[Status, str]:
    installed, version = _version("fedpriv"), fedpriv.__version__
    told = f"{version}, {platform.python_implementation()} {platform.python_version()}, {platform.platform()}"
    if installed == version:
        return "ok", told
    return "warning", f"{told}; {installed or 'not'} installed: install it again (pip install .)"


def _packages() -> tuple[Status, str]:
    """Compare the packages that fedpriv needs, and those of its extras that are there, with their declared bounds."""
    from packaging.requirements import Requirement

    told: dict[str, str] = {}
    status: Status = "ok"
    for needed in map(Requirement, importlib.metadata.requires("fedpriv") or ()):
        version, marker = _version(needed.name), needed.marker
        extra = next((extra for extra in EXTRAS if marker is None or marker.evaluate({"extra": extra})), None)
        if extra is None or (extra and version is None):  # of developers, or an extra that is not installed
            continue
        fits = version is not None and needed.specifier.contains(version, prereleases=True)
        told[needed.name] = f"{needed.name} {version or 'absent'}" + ("" if fits else f" (expected {needed.specifier})")
        if not fits and status != "failed":
            status = "warning" if extra else "failed"
    return status, ", ".join(told.values())


def _machine() -> tuple[Status, str]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    free = free_memory()
    told = f"{cores} cores" + (f", {in_words(free)} of memory are free" if free is not None else "")
    if free is not None and free < SCARCE:
        return "warning", f"{told}; expected {in_words(SCARCE)} at least"
    return "ok", told


def _device(asked: str) -> tuple[Status, str]:
    import torch

    from fedpriv.util.device import pick_device

    cards = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    gpus = "; ".join(f"{card.name}, {in_words(card.total_memory)}" for card in cards)
    return "ok", f"{pick_device(asked)} ({gpus or 'no GPU is usable'}; torch is built for CUDA {torch.version.cuda})"


def _output(out: Path) -> tuple[Status, str]:
    """Write and lock a folder in that of the results, or in the nearest one above that exists; leave nothing there."""
    above = next(place for place in (out.absolute(), *out.absolute().parents) if os.path.lexists(place))
    if not above.is_dir():
        return "failed", "there is a file where the folder for results should be"
    try:
        with tempfile.TemporaryDirectory(prefix=".fedpriv-doctor-", dir=above) as made:
            trial = Path(made) / "trial"
            with folders.output(trial, "trial"):
                write_json(trial / "written.json", {"written": 1})
                try:
                    with folders.held(trial):
                        return "warning", "locks do nothing here, so two commands may write one folder at once"
                except UserError:
                    return "ok", "the folder for results can be written and locked"
    except (OSError, UserError) as error:
        why = getattr(error, "strerror", None) or str(error).replace(str(above), "OUT")
        return "failed", f"the folder for results cannot be written: {why}"


def _computing(asked: str) -> tuple[Status, str]:
    """Compare a gradient on the device with the CPU's; its images are the embedded digits, which are so read too."""
    import torch
    import torchvision  # noqa: F401  (compiled for one version of torch)

    from fedpriv.datasets import load_dataset
    from fedpriv.util import seeds
    from fedpriv.util.device import pick_device

    device = pick_device(asked)
    images, _ = load_dataset("digits").samples.batch(torch.arange(64))
    kernel = torch.randn(8, 1, 3, 3, generator=seeds.generator(0, "doctor"))

    def gradient(place: torch.device) -> torch.Tensor:
        inputs = images.to(place).requires_grad_()
        return torch.autograd.grad(torch.conv2d(inputs, kernel.to(place)).tanh().square().sum(), inputs)[0].cpu()

    expected = gradient(torch.device("cpu"))
    apart = float((gradient(device) - expected).norm() / expected.norm())  # NaN is no match either
    return (
        "ok" if apart <= BOUND else "failed",
        f"a gradient on {device} is {apart:.2g} from the CPU's (at most {BOUND})",
    )
