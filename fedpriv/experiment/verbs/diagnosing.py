"""The verb ``doctor``: what is installed, and whether it works on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv.experiment.diagnosis.computed import same_as_cpu
from fedpriv.experiment.diagnosis.finding import Finding
from fedpriv.experiment.diagnosis.installed import installed
from fedpriv.experiment.diagnosis.machine import machine
from fedpriv.experiment.diagnosis.stored import embedded_data, output_folder
from fedpriv.experiment.saving import Tabular
from fedpriv.util.listener import SILENT, Listener


@dataclass(frozen=True)
class Diagnosis(Tabular):
    """Findings on an installation and its machine. As text it can be pasted into a bug report.

    Attributes:
        findings: one each: ``name``, ``status`` (``ok``, ``warning``, ``failed``), ``told`` and ``facts``. They name no path
            of the user's home and not the machine.
    """

    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The findings that have failed: work that needs these will fail."""
        return tuple(one for one in self.findings if one.status == "failed")

    @property
    def verdict(self) -> str:
        """All of it in one line."""
        warned = [one.name for one in self.findings if one.status == "warning"]
        beside = f"; {len(warned)} warning(s): {', '.join(warned)}" if warned else ""
        if self.failed:
            return f"failed: {', '.join(one.name for one in self.failed)}{beside}"
        return f"fedpriv works here{beside}"

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return the findings, one row each."""
        return [{"name": one.name, "status": one.status, "told": one.told} for one in self.findings]

    def __str__(self) -> str:
        return "\n".join([*map(str, self.findings), self.verdict])


def doctor(*, device: str = "auto", out: str | Path = "results", listener: Listener = SILENT) -> Diagnosis:
    """Look at what is installed, at the machine, the embedded data and the output folder, and run a small attack.

    Takes some seconds, downloads nothing and leaves nothing behind. Whatever is wrong is a finding, not an exception.

    Args:
        device: ``auto`` (a GPU if there is one), ``cpu``, ``cuda`` or ``cuda:N``; what it computes is compared with the CPU.
        out: folder that results would go to.
        listener: hears of the progress.
    """
    parts: tuple[Callable[[], Sequence[Finding]], ...] = (
        installed,
        lambda: machine(device),
        embedded_data,
        lambda: [output_folder(Path(out))],
        lambda: [same_as_cpu(device)],
    )
    findings: list[Finding] = []
    with listener.progress("looking at this installation") as report:
        for done, part in enumerate(parts):
            report(done, len(parts), "checks")
            findings += part()
    return Diagnosis(tuple(findings))
