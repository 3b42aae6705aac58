"""From a run's configuration to a federation that is ready to run: its method and its defenses looked up by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from fedpriv.federation.prepared import Federation
    from fedpriv.federation.run_directory import RunConfig


def prepare(config: RunConfig, device: torch.device, *, download: bool = False) -> Federation:
    """Look up the method and the defenses, load data, choose models and check the plan."""
    from fedpriv.defenses import build_defenses
    from fedpriv.federation import prepared
    from fedpriv.methods import METHODS

    method = METHODS.load(config.method)
    return prepared.prepare(config, method, device, download=download, defenses=build_defenses(config.defenses))
