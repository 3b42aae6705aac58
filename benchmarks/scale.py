"""How CPU seconds and peak memory grow with targets, with the side of images, and with results of a report.

    python benchmarks/scale.py [targets images report]

``targets``: representations of random images inverted by ``pixels``, 20 iterations. ``images``: the gradient of one image in
torchvision's ResNet-18, three iterations of ``inverting-gradients``. ``report``: ``fedpriv report`` of a folder of results,
copies of one. Each line is a process of its own with one thread; CPU seconds are those of the call, imports and what was
prepared left out; of a report those of the whole process, and no memory. How memory grows with clients: ``many_clients.py``.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

SIZES = {"targets": (8, 64, 500), "images": (28, 56, 112, 224), "report": (20, 200)}


def main() -> None:
    """Measure every size in a process of its own, and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="of targets, images, report; all by default")
    parser.add_argument("--alone", type=int, help="measure one size in this process")
    options = parser.parse_args()
    if options.alone:
        case = options.cases[0]
        print(f"{CASES[case](options.alone):.2f} {0 if case == 'report' else _peak():.0f}")
        return
    print(f"{'case':>8} {'size':>5} {'CPU s':>8} {'peak MiB':>9}")
    for case in options.cases or SIZES:
        for size in SIZES[case]:
            command = [sys.executable, __file__, case, "--alone", str(size)]
            done = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
            seconds, peak = map(float, done.split())
            print(f"{case:>8} {size:>5} {seconds:8.2f} {peak:9.0f}", flush=True)


def targets(number: int) -> float:
    """Return the CPU seconds of inverting a number of representations."""
    import torch

    import fedpriv
    from fedpriv.models.build import build_model
    from fedpriv.models.split import Blueprint

    torch.set_num_threads(1)
    rng = torch.Generator().manual_seed(0)
    model = build_model(Blueprint("small-cnn", (1, 28, 28), 10, 64), 0).eval()
    images, auxiliary = (torch.rand(n, 1, 28, 28, generator=rng) for n in (number, 50))
    with torch.no_grad():
        features = model.represent(images)
    labels = torch.arange(number) % 10
    upload = fedpriv.Representations(features, labels)

    class Extractor(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = model

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.body.represent(images)

    began = time.process_time()
    fedpriv.attack_uploads(
        upload, target="representation", images=[images], labels=[labels], auxiliary=auxiliary, extractor=Extractor(),
        attacks=["pixels"], iterations=20, targets=number,
    )  # fmt: skip
    return time.process_time() - began


def images(side: int) -> float:
    """Return the CPU seconds of three iterations at one image of a side in ResNet-18."""
    import torch
    import torchvision

    import fedpriv

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=10).eval()
    image, auxiliary, label = torch.rand(1, 3, side, side), torch.rand(20, 3, side, side), torch.tensor([3])
    loss = torch.nn.functional.cross_entropy(model(image), label)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    upload = fedpriv.Gradient(gradients)
    began = time.process_time()
    fedpriv.attack_uploads(
        upload, target="model", model=model, images=[image], labels=[label], auxiliary=auxiliary,
        attacks=["inverting-gradients"], iterations=3,
    )  # fmt: skip
    return time.process_time() - began


def report(number: int) -> float:
    """Return the CPU seconds of a report of a number of results."""
    fedpriv = [sys.executable, "-m", "fedpriv"]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        made = ["attack", "--target", "prototype", "--dataset", "digits", "--per-class", "20", "--clients", "5"]
        made += [
            "--rounds",
            "1",
            "--models",
            "small-mlp",
            "--partition",
            "iid",
            "--attack",
            "pixels",
            "--targets",
            "10",
        ]
        made += ["--iterations", "5", "--quiet", "--out", str(home / "one")]
        subprocess.run([*fedpriv, *made], check=True, capture_output=True)
        for copy in range(number):
            shutil.copytree(home / "one" / "pixels", home / "many" / f"pixels-{copy:03d}")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*fedpriv, "report", str(home / "many"), "--out", str(home / "page"), "--quiet"], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


CASES: dict[str, Callable[[int], float]] = {"targets": targets, "images": images, "report": report}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
