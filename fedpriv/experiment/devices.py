"""The devices and the arithmetic that attacks are asked to compute with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedpriv.util.arguments import argument
from fedpriv.util.device import pick_device
from fedpriv.util.errors import UserError
from fedpriv.util.numerics import Numerics, read_numerics

if TYPE_CHECKING:
    import torch


def read_devices(settings: Mapping[str, Any]) -> tuple[tuple[str, ...], Numerics]:
    """Return the names of the devices, at least one, and the arithmetic of searches on them.

    Args:
        settings: ``device``, ``devices``, ``precision`` and ``compile``, as far as they are given.

    Raises:
        UserError: for a device that is not here, or arithmetic that one cannot do.
    """
    names = named_devices(settings)
    numerics = [numerics_of(settings, pick_device(name)) for name in names]  # each device has to be able to
    return names, numerics[0]


def named_devices(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names under ``device`` or ``devices`` among the settings, at least one; ``auto`` where neither is given.

    Raises:
        UserError: where both are given, or ``all`` are asked for and there is none.
    """
    asked = settings.get("devices")
    if asked is None:
        return (settings.get("device", "auto"),)
    if "device" in settings:
        raise UserError(f"{argument('device')} and {argument('devices')} exclude each other")
    return _several(asked)


def numerics_of(settings: Mapping[str, Any], device: torch.device) -> Numerics:
    """Return the arithmetic that ``precision`` and ``compile`` among the settings ask for on a device.

    Raises:
        UserError: for what the device cannot do.
    """
    return read_numerics(settings.get("precision", "float32"), device, compiled=bool(settings.get("compile", False)))


def _several(asked: Any) -> tuple[str, ...]:
    import torch

    if asked == "all":
        names = tuple(f"cuda:{place}" for place in range(torch.cuda.device_count()))
        if not names:
            raise UserError(f"{argument('devices', asked)}: no CUDA device is usable here; drop it")
        return names
    names = tuple(name.strip() for name in asked.split(",")) if isinstance(asked, str) else tuple(asked)
    if not names or not all(names):
        raise UserError(f"{argument('devices', asked)}: expected names with commas between, such as cuda:0,cuda:1")
    return names
