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
        findings: each with ``name``, ``status`` (``ok``, ``warning``, ``failed``) and ``told``, without the user's home.
    """

    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The findings that have failed: work that needs these will fail."""
        return tuple(finding for finding in self.findings if finding.status == "failed")

    @property
    def verdict(self) -> str:
        """All of it in one line."""
        failed, warned = ([row.name for row in self.findings if row.status == item] for item in ("failed", "warning"))
        details = f"failed: {', '.join(failed)}" if failed else "fedpriv works here"
        return details + (f"; {len(warned)} warning(s): {', '.join(warned)}" if warned else "")

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return the findings, one row each."""
        return [vars(finding) for finding in self.findings]

    def __str__(self) -> str:
        return "\n".join([*map(str, self.findings), self.verdict])


def doctor(*, device: str = "auto", out: str | Path = "results") -> Diagnosis:
    """Check the versions installed, the machine and the output folder, and compute a gradient on the device.

    Takes some seconds, downloads nothing and leaves nothing behind. Whatever is wrong is a finding, not an exception.

    Args:
        device: ``auto`` (a GPU if there is one), ``cpu``, ``cuda`` or ``cuda:N``; what it computes is compared with the CPU.
        out: folder that results would go to.
    """
    checks: dict[str, Callable[[], tuple[Status, str]]] = {
        "packages": _packages,
        "machine": _machine,
        "output": lambda: _output(Path(out)),
        "computing": lambda: _computing(device),
    }
    findings = []
    for name, check in checks.items():
        try:
            status, text = check()
        except Exception as error:
            status, text = "failed", f"{type(error).__name__}: {error}"
        findings.append(Finding(name, status, " ".join(text.split()).replace(str(Path.home()), "~")))
    return Diagnosis(tuple(findings))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _packages() -> tuple[Status, str]:
    """Compare the packages that fedpriv needs, and those of its extras that are there, with their declared bounds."""
    from packaging.requirements import Requirement

    lines = [f"fedpriv {fedpriv.__version__}", f"{platform.python_implementation()} {platform.python_version()}"]
    status: Status = "ok" if _version("fedpriv") == fedpriv.__version__ else "warning"
    for needed in map(Requirement, importlib.metadata.requires("fedpriv") or ()):
        version, marker = _version(needed.name), needed.marker
        extra = next((extra for extra in EXTRAS if marker is None or marker.evaluate({"extra": extra})), None)
        if extra is None or (extra and version is None):  # of developers, or an extra that is not installed
            continue
        fits = version is not None and needed.specifier.contains(version, prereleases=True)
        lines.append(f"{needed.name} {version or 'absent'}" + ("" if fits else f" (expected {needed.specifier})"))
        if not fits and status != "failed":
            status = "warning" if extra else "failed"
    return status, ", ".join(dict.fromkeys(lines))


def _machine() -> tuple[Status, str]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    free = free_memory()
    details = f"{platform.platform()}, {cores} cores" + (
        "" if free is None else f", {in_words(free)} of memory are free"
    )
    if free is not None and free < SCARCE:
        return "warning", f"{details}; expected {in_words(SCARCE)} at least"
    return "ok", details


def _output(out: Path) -> tuple[Status, str]:
    """Write and lock a folder in that of the results, or in the nearest one above that exists; leave nothing there."""
    above = next(position for position in (out.absolute(), *out.absolute().parents) if os.path.lexists(position))
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
        return "failed", f"the folder for results cannot be written: {getattr(error, 'strerror', None) or error}"


def _computing(text: str) -> tuple[Status, str]:
    """Compare a gradient on the device with the CPU's; its images are the embedded digits, which are so read too."""
    import torch
    import torchvision  # noqa: F401  (compiled for one version of torch)

    from fedpriv.datasets import load_dataset
    from fedpriv.util import seeds
    from fedpriv.util.device import pick_device

    device = pick_device(text)
    images, _ = load_dataset("digits").samples.batch(torch.arange(64))
    kernel = torch.randn(8, 1, 3, 3, generator=seeds.generator(0, "doctor"))

    def gradient(position: torch.device) -> torch.Tensor:
        inputs = images.to(position).requires_grad_()
        return torch.autograd.grad(torch.conv2d(inputs, kernel.to(position)).tanh().square().sum(), inputs)[0].cpu()

    expected = gradient(torch.device("cpu"))
    apart = float((gradient(device) - expected).norm() / expected.norm())  # NaN is no match either
    card = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    details = f"a gradient on {device}{card} is {apart:.2g} from the CPU's (at most {BOUND})"
    return "ok" if apart <= BOUND else "failed", details
