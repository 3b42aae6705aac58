"""What guesses made without any upload score on natural images: the floors beside which published PSNR can be read.

    python benchmarks/blind_guesses.py DATA/tiny-imagenet-200/val/images --train DATA/tiny-imagenet-200/train
    python benchmarks/blind_guesses.py DATA/cifar10-jpeg/test --train DATA/cifar10-jpeg/train

Prints, for each guess, mean and standard deviation over images of PSNR in dB on [0, 1], and the mean squared error on
0..255. Mean colour and mean image are those of the training images; a random other image is drawn among the tested ones.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image


def images_below(folder: Path, at_most: int | None) -> np.ndarray:
    """Return the images below a folder ``(n, h, w, 3)`` uint8; of too many every k-th in order of path."""
    files = sorted(file for pattern in ("*.JPEG", "*.jpg", "*.png") for file in folder.rglob(pattern))
    step = 1 if at_most is None else max(1, -(-len(files) // at_most))
    return np.stack([np.array(Image.open(file).convert("RGB")) for file in files[::step]])


def guesses(truth: np.ndarray, train: np.ndarray, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name of a guess, and the squared error of each image on [0, 1]."""
    rng = np.random.default_rng(seed)
    scale = np.float32(255)
    mean_image = train.mean(axis=0, dtype=np.float64) / 255
    flat = {"mean colour": mean_image.mean(axis=(0, 1)), "mean image": mean_image, "mid-grey": np.float64(0.5)}
    shift = rng.integers(1, len(truth), size=len(truth))
    others = (np.arange(len(truth)) + shift) % len(truth)
    for name, guess in flat.items():
        yield name, np.array([np.square(one / scale - guess).mean() for one in truth])
    yield (
        "random other image",
        np.array([np.square((one / scale) - (truth[k] / scale)).mean() for one, k in zip(truth, others, strict=True)]),
    )
    yield "uniform noise", np.array([np.square(one / scale - rng.random(one.shape)).mean() for one in truth])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="images to guess at")
    parser.add_argument("--train", type=Path, required=True, help="images that mean colour and mean image are of")
    parser.add_argument("--train-at-most", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    truth, train = images_below(options.folder, None), images_below(options.train, options.train_at_most)
    print(f"{len(truth)} images {truth.shape[1]} x {truth.shape[2]}; means of {len(train)} training images")
    print("guess                 PSNR (dB)     sd   MSE (0..255)")
    for name, error in guesses(truth, train, options.seed):
        psnr = -10 * np.log10(np.maximum(error, 1e-10))
        print(f"{name:20s} {psnr.mean():10.2f} {psnr.std(ddof=1):6.2f} {255**2 * error.mean():14.0f}")


if __name__ == "__main__":
    main()
