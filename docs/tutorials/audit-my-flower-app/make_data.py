"""Stand-ins for the hospitals' folders: ``python make_data.py`` writes handwritten digits, 8x8, below ``data``."""

from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits


def write(data: Path = Path("data"), hospitals: int = 5, of_each: int = 8, strangers: int = 300) -> None:
    """Write images for training and for testing, as many of each and of every hospital, and strangers."""
    digits = load_digits()
    left = iter(zip(digits.images, digits.target, strict=True))
    parts = [(f"hospital-{k}/{part}", of_each) for k in range(hospitals) for part in ("train", "test")]
    for name, number in [*parts, ("strangers", strangers)]:
        for label in range(10):
            (data / name / str(label)).mkdir(parents=True, exist_ok=True)
        for place in range(number):
            image, label = next(left)
            Image.fromarray((image * 255 / 16).astype("uint8")).save(data / name / str(label) / f"{place:04d}.png")


if __name__ == "__main__":
    write()
