"""A small attack twice: on the CPU and on the device, or, where there is only a CPU, again and with two threads.

The attack is ``pixels`` on four images of digits behind a smooth extractor whose representations are longer than the
images have pixels, so that its search ends in one place whatever way rounding sends it, and the two ends can be compared.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fedpriv.experiment.diagnosis.finding import Finding, found_by

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

BOUND = 1 / 255
"""Largest difference of a pixel in [0, 1] that passes: one grey level.

Measured on a CPU: products rounded to the 10 bits that a GPU keeps of float32 in its convolutions give 0.0011, to the 7
bits of bfloat16 0.0029, representations that are 1 % too long 0.029.
"""

ITERATIONS = 200
_SHORT = 20
"""Iterations of the comparison of threads: two that wait for each other on a busy machine are slow."""


def same_as_cpu(device: str) -> Finding:
    """Compare a small attack on the device with the same one on the CPU."""
    return found_by("computing", lambda: _compared(device))


def _compared(asked: str) -> Finding:
    import torch

    from fedpriv.util.device import pick_device

    device, cpu = pick_device(asked), torch.device("cpu")
    expected = small_attack(cpu)
    if device.type != "cpu":
        apart = _difference(expected, small_attack(device))
        what = f"a small attack on {device} and on the CPU: pixels differ by {apart:.2g} at most"
        return _judged(apart, what, {"device": str(device)})
    if not torch.equal(expected, small_attack(cpu)):
        return Finding(
            "computing", "failed", "the same attack twice on this CPU gives different bits; expected equal ones"
        )
    what = "there is only a CPU: the same small attack twice gives equal bits"
    facts: dict[str, object] = {"device": "cpu", "equal_bits": True}
    if (os.cpu_count() or 1) < 2:
        return Finding("computing", "ok", what, facts)
    apart = _difference(small_attack(cpu, _SHORT), small_attack(cpu, _SHORT, threads=2))
    return _judged(apart, f"{what}, with one thread and with two pixels differ by {apart:.2g} at most", facts)


def _judged(apart: float, what: str, facts: dict[str, object]) -> Finding:
    told = f"{what} (bound {BOUND:.2g})"
    known = {**facts, "difference": apart, "bound": BOUND}
    return Finding("computing", "ok" if apart <= BOUND else "failed", told, known)


def _difference(one: Tensor, other: Tensor) -> float:
    apart = (one - other).detach().abs()
    return float(apart.max()) if bool(apart.isfinite().all()) else float("inf")


def small_attack(device: torch.device, iterations: int = ITERATIONS, threads: int = 1) -> Tensor:
    """Return the images ``(4, 1, 1, 8, 8)`` in [0, 1] that ``pixels`` makes of four representations, on the CPU.

    Args:
        device: where to attack.
        iterations: of the search.
        threads: of torch on the CPU.
    """
    import torch

    from fedpriv.attacks.inputs.targets import list_targets
    from fedpriv.attacks.invert.inversion import PixelInversion
    from fedpriv.attacks.observation import Knowledge, KnowledgeCard, Observation
    from fedpriv.datasets import load_dataset
    from fedpriv.wire.payloads import Representations

    images, labels = load_dataset("digits").samples.batch(torch.arange(4))
    extractor = _extractor()
    seen = (Observation(1, 0, (Representations(extractor(images), labels),), ()),)
    known = Knowledge(KnowledgeCard(), (1, 8, 8), 10, extractors={0: extractor.to(device)})
    attack = PixelInversion(iterations=iterations, restarts=1, learning_rate=0.1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = attack(seen, known, list_targets(seen, "representation"), seed=0, device=device)
    finally:
        torch.set_num_threads(before)
    return found.images.detach().cpu()


def _extractor() -> nn.Module:
    """Return a network from images ``(n, 1, 8, 8)`` to ``(n, 256)``, the same on every machine."""
    import torch
    from torch import nn

    from fedpriv.util import seeds

    body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.Softplus(), nn.Flatten(), nn.Linear(512, 256))
    generator = seeds.generator(0, "doctor")
    with torch.no_grad():
        for weights in body.parameters():
            fan = weights[0].numel() if weights.dim() > 1 else 0
            weights.copy_(torch.randn(weights.shape, generator=generator) * (fan**-0.5 if fan else 0.0))
    return body.eval().requires_grad_(False)
