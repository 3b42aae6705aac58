"""Files of fedpriv that ``attack_uploads`` enters from the call to the verdict, once everything is imported.

OMP_NUM_THREADS=1 python benchmarks/files_entered.py [--list]
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import fedpriv

HOME = str(Path(fedpriv.__file__).parent)


def attack() -> str:
    """Attack prototypes of three clients by a deep image prior of three iterations, and return the verdict."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.LeakyReLU(), nn.Flatten(), nn.Linear(72, 32))
    images, labels = [torch.rand(6, 1, 8, 8) for _ in range(3)], [torch.arange(6) % 3] * 3
    uploads = [
        fedpriv.Prototypes(
            torch.stack([network(own).detach()[kinds == label].mean(0) for label in range(3)]), torch.arange(3)
        )
        for own, kinds in zip(images, labels, strict=True)
    ]
    more: dict[str, Any] = {"extractor": network, "attacks": ["dip"], "iterations": 3}
    auxiliary = torch.rand(60, 1, 8, 8)
    result = fedpriv.attack_uploads(
        uploads, target="prototype", images=images, labels=labels, auxiliary=auxiliary, **more
    )
    return result.verdict


def entered() -> Counter[str]:
    """Return the number of calls of functions in each file, imports done."""
    attack()
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(HOME):
            calls[frame.f_code.co_filename.removeprefix(HOME + "/")] += 1

    sys.setprofile(note)
    attack()
    sys.setprofile(None)
    return calls


if __name__ == "__main__":
    found = entered()
    print("\n".join(f"{calls:7} {name}" for name, calls in found.most_common()) if "--list" in sys.argv else len(found))
