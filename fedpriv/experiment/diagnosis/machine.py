"""The machine as torch sees it: devices, threads, memory, vector units."""

from __future__ import annotations

import os

from fedpriv.experiment.diagnosis.finding import Finding, found_by

SCARCE = 2 << 30
"""Free bytes of memory below which an attack of ordinary size may be killed."""


def machine(device: str) -> list[Finding]:
    """Return the findings on the device that was asked for, threads, memory and vector units."""
    return [
        found_by("device", lambda: _device(device)),
        found_by("threads", _threads),
        found_by("memory", _memory),
        found_by("cpu", _cpu),
    ]


def _device(asked: str) -> Finding:
    import torch

    from fedpriv.util.device import pick_device

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    known = [torch.cuda.get_device_properties(place) for place in range(count)]
    cards = [{"name": one.name, "bytes": one.total_memory} for one in known]
    facts = {"asked": asked, "cuda": torch.version.cuda, "cards": cards}
    chosen = pick_device(asked)
    seen = "; ".join(f"cuda:{place} {one.name}, {_gib(one.total_memory)}" for place, one in enumerate(known))
    built = (
        f"torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else "torch is built for the CPU alone"
    )
    return Finding(
        "device", "ok", f"{chosen} ({seen or f'no GPU is usable; {built}'})", {**facts, "chosen": str(chosen)}
    )


def _threads() -> Finding:
    import torch

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    named = {name: os.environ[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if name in os.environ}
    facts = {"cores": usable, "torch": torch.get_num_threads(), "environment": named}
    told = f"{usable} cores are usable; fedpriv computes with {torch.get_num_threads()} thread(s) of torch"
    shown = ", ".join(f"{name}={value}" for name, value in named.items())
    return Finding("threads", "ok", told + (f" ({shown})" if shown else ""), facts)


def _memory() -> Finding:
    total, free = _bytes_of_memory()
    facts = {"bytes": total, "free_bytes": free}
    if total is None or free is None:
        return Finding("memory", "ok", "this system does not tell it", facts)
    told = f"{_gib(free)} of {_gib(total)} are free"
    if free < SCARCE:
        return Finding("memory", "warning", f"{told}; expected {_gib(SCARCE)} at least", facts)
    return Finding("memory", "ok", told, facts)


def _bytes_of_memory() -> tuple[int | None, int | None]:
    """Return all bytes of memory and those that are free, None where the system does not tell."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return tuple(1024 * int(lines[name].split()[0]) for name in ("MemTotal", "MemAvailable"))  # type: ignore[return-value]
    except (OSError, ValueError, KeyError):
        pass
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None, None


def _cpu() -> Finding:
    import torch

    unit = torch.backends.cpu.get_cpu_capability()
    return Finding("cpu", "ok", f"torch uses {unit}", {"capability": unit})


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
