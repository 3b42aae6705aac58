"""Sizes of networks that are not built: the same by the short way of small ones and on the meta device."""

from __future__ import annotations

import pytest

from fedpriv.models import MODELS, build
from fedpriv.models.split import Blueprint


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("plane-mlp", "resnet101", "resnet152")])
def test_a_small_network_takes_what_the_meta_device_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blueprint = Blueprint(name, (3, 224, 224) if name.startswith("vit") else (3, 32, 32), 10, width=64)
    monkeypatch.setattr(build, "SMALL", 2**40)
    short = build.footprint.__wrapped__(blueprint)
    monkeypatch.setattr(build, "SMALL", 0)
    assert build.footprint.__wrapped__(blueprint) == short
    assert short.kept > 0
