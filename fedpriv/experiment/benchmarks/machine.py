"""The kind of machine, in words: nothing by which it could be found."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from fedpriv.scoring.records.benchmark import Machine, Spread


def machine(matrix: Mapping[str, Spread], convolution: Mapping[str, Spread]) -> Machine:
    """Return the machine, with its peaks by device."""
    import torch

    import fedpriv

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return Machine(
        processor=_processor(),
        cores=cores(),
        vector_unit=torch.backends.cpu.get_cpu_capability(),
        system=f"{platform.system()} {platform.machine()}",
        gpu=gpu,
        versions={
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "fedpriv": fedpriv.__version__,
        },
        matrix_gflops=dict(matrix),
        convolution_gflops=dict(convolution),
    )


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    """Return the processor's name as the platform tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine() or "unknown"
