"""The verb ``doctor``: whether this installation has what it needs, and whether the device computes what the CPU does."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import fedpriv
from fedpriv.study.saving import Tabular

Status = Literal["ok", "warning", "failed"]
EXTRAS = ("", "frames", "dp", "perceptual", "flower", "nvflare", "slurm")
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
    """Findings on an installation. As text it can be pasted into a bug report: the user's home is not in it."""

    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The findings that have failed: work that needs these will fail."""
        return tuple(finding for finding in self.findings if finding.status == "failed")

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return the findings, one row each."""
        return [vars(finding) for finding in self.findings]

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings))


def doctor(*, device: str = "auto") -> Diagnosis:
    """Check the versions installed, and compute a gradient on the device. Whatever is wrong is a finding, not an exception.

    Args:
        device: ``auto`` (a GPU if there is one), ``cpu``, ``cuda`` or ``cuda:N``; what it computes is compared with the CPU.
    """
    checks: dict[str, Callable[[], tuple[Status, str]]] = {
        "packages": _packages,
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


def _packages() -> tuple[Status, str]:
    """Compare the packages that fedpriv needs, and those of its extras that are there, with their declared bounds."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    there = {canonicalize_name(item.metadata["Name"]): item.version for item in importlib.metadata.distributions()}
    lines = [f"fedpriv {fedpriv.__version__}", f"{platform.python_implementation()} {platform.python_version()}"]
    status: Status = "ok"
    for needed in map(Requirement, importlib.metadata.requires("fedpriv") or ()):
        version, marker = there.get(canonicalize_name(needed.name)), needed.marker
        extra = next((extra for extra in EXTRAS if marker is None or marker.evaluate({"extra": extra})), None)
        if extra is None or (extra and version is None):  # of developers, or an extra that is not installed
            continue
        fits = version is not None and needed.specifier.contains(version, prereleases=True)
        lines.append(f"{needed.name} {version or 'absent'}" + ("" if fits else f" (expected {needed.specifier})"))
        if not fits and status != "failed":
            status = "warning" if extra else "failed"
    return status, ", ".join(dict.fromkeys(lines))


def _computing(text: str) -> tuple[Status, str]:
    """Compare a gradient on the device with the CPU's; its images are the embedded digits, which are so read too."""
    import torch
    import torchvision  # noqa: F401  (compiled for one version of torch)

    from fedpriv.datasets import load_dataset
    from fedpriv.util import seeds
    from fedpriv.util.compute import pick_device

    device = pick_device(text)
    images, _ = load_dataset("digits").samples.batch(torch.arange(64))
    kernel = torch.randn(8, 1, 3, 3, generator=seeds.generator(0, "doctor"))

    def gradient(position: torch.device) -> torch.Tensor:
        inputs = images.to(position).requires_grad_()
        return torch.autograd.grad(torch.conv2d(inputs, kernel.to(position)).tanh().square().sum(), inputs)[0].cpu()

    expected = gradient(torch.device("cpu"))
    apart = float((gradient(device) - expected).norm() / expected.norm())  # NaN is no match either
    details = f"{platform.platform()}; a gradient on {device} is {apart:.2g} from the CPU's (at most {BOUND})"
    return "ok" if apart <= BOUND else "failed", details
