"""Flower and Ray as fedpriv starts them: they call nobody, and install nothing."""

from __future__ import annotations

import importlib.util
import os
from typing import Final

from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError

OFF: Final = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",
}
"""Environment in which Flower reports nothing, looks for no update and installs no app's dependencies, nor Ray reports. The
last two take back a warning of Ray's about devices that simulated nodes do not use, and its habit to let them wait for every
other process of the machine, by which they were seen to starve."""


def switch_off() -> None:
    """Set the switches for this process and those that it starts; Flower reads some of them when it is imported."""
    os.environ.update(OFF)


def require_flower(*, simulation: bool) -> None:
    """Check that Flower is installed, and for simulations what it runs them with.

    Raises:
        UserError: naming what to install.
    """
    for name, wanted in (("flwr", True), ("ray", simulation)):
        if wanted and importlib.util.find_spec(name) is None:
            raise UserError(
                f'{argument("engine", "flower")}: needs {name}, which is not installed: pip install "fedpriv[flower]"'
            )
