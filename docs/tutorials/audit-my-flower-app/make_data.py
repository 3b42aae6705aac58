"""Stand-ins for the hospitals' folders: ``python make_data.py [N]`` writes handwritten digits, 8x8, below ``data``."""

import sys
from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits


def write(data: Path = Path("data"), hospitals: int = 5, of_each: int = 2, auxiliary: int = 300) -> None:
    """Write ``of_each`` images of every hospital for training, eight for testing, and images that no hospital has."""
    digits = load_digits()
    left = iter(zip(digits.images, digits.target, strict=True))
    parts = [(f"hospital-{k}/{part}", n) for k in range(hospitals) for part, n in (("train", of_each), ("test", 8))]
    for name, number in [*parts, ("auxiliary", auxiliary)]:
        for label in range(10):
            (data / name / str(label)).mkdir(parents=True, exist_ok=True)
        for place in range(number):
            image, label = next(left)
            Image.fromarray((image * 255 / 16).astype("uint8")).save(data / name / str(label) / f"{place:04d}.png")


if __name__ == "__main__":
    write(of_each=int(sys.argv[1]) if len(sys.argv) > 1 else 2)
