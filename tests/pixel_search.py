"""A search of folders for private images: in pictures, pages, tables, records and tensors, whole, scaled or cropped.

An image is looked for by its detail, what is left of it beside the mean of every block that blurring keeps: pictures that
hold it at some size correlate with that, and blurred ones do not at all.
"""

import base64
import io
import re
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load
from scipy import fft

from fedpriv.eval.redaction import blurred

GRID = 149.5 / 28
"""Pixels of the image grid for each of an image of 28: a cell is 1.15 inches at 130 dots an inch."""
SIZES = (1.0, 2.0, 0.5, GRID)
"""Sides of an image in a picture, as multiples of its own."""
LARGE = 300_000
"""Pixels of a picture that can only be a grid."""
FOUND = 0.5
"""Correlation of a picture's part with an image's detail that counts: of images of noise, unrelated ones stay below 0.3."""


def found_in(folder, images):
    """Return the names of files below a folder that hold some of the images ``(n, c, h, w)``, sorted."""
    return sorted(
        path.relative_to(folder).as_posix()
        for path in Path(folder).rglob("*")
        if path.is_file() and holds(path.name, path.read_bytes(), images)
    )


def holds(name, content, images):
    """True where a file holds some image, or a row of one as numbers or as bytes."""
    if holds_bytes(content, images):
        return True
    ending = name.rpartition(".")[2].lower()
    if ending == "png":
        return holds_picture(np.asarray(Image.open(io.BytesIO(content)).convert("L"), dtype=np.float64) / 255, images)
    if ending == "safetensors":
        return holds_tensors(load(content), images)
    if ending in ("html", "md", "svg", "json", "jsonl", "csv", "txt", "toml"):
        text = content.decode("utf-8")
        return holds_numbers(text, images) or any(
            holds(f"x.{'svg' if kind.startswith('svg') else kind}", base64.b64decode(inner), images)
            for kind, inner in re.findall(r"data:image/([a-z+]+);base64,([A-Za-z0-9+/=\s]+)", text)
        )
    return False


def holds_bytes(content, images):
    """Rows of pixels as float32, float64 or bytes, of either rounding."""
    for image in images:
        row = image[0, image.shape[1] // 2].double().numpy()
        pixels = np.round(255 * row), 255 * row
        coded = row.astype("<f4"), row.astype("<f8"), *(values.astype(np.uint8) for values in pixels)
        if any(one.tobytes() in content for one in coded):
            return True
    return False


def holds_numbers(text, images):
    """Rows of pixels as numbers in a text, in [0, 1] or of 0..255, to two digits."""
    numbers = np.array([float(one) for one in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", text)] or [0.0])
    for image in images:
        row = image[0, image.shape[1] // 2].double().numpy()
        for scaled, near in ((row, 0.006), (np.round(255 * row), 1.01)):
            starts = np.flatnonzero(np.abs(numbers[: max(0, len(numbers) - len(row) + 1)] - scaled[0]) < near)
            if any(np.all(np.abs(numbers[s : s + len(row)] - scaled) < near) for s in starts):
                return True
    return False


def holds_tensors(tensors, images):
    """Images among the last two axes of tensors, up to a scale and an offset."""
    height, width = images.shape[-2:]
    detail = details(images).mean(1).reshape(len(images), -1)
    for tensor in tensors.values():
        same = tensor.shape[-2:] == (height, width) and tensor.numel() > 0
        if same and float(correlations(tensor.double().reshape(-1, height * width), detail).max()) > FOUND:
            return True
    return False


def correlations(first, second):
    first, second = (one - one.mean(1, keepdim=True) for one in (first, second))
    lengths = first.norm(dim=1)[:, None] * second.norm(dim=1)[None]
    return first @ second.T / lengths.clamp_min(1e-12)


def details(images):
    return images.double() - blurred(images).double()


def holds_picture(picture, images):
    """Some image at some size and place of a grey picture ``(h, w)``, by normalised correlation with its detail."""
    for size in SIZES if picture.size < LARGE else (1.0, GRID):
        side = [max(2, round(size * n)) for n in images.shape[-2:]]
        if side[0] > picture.shape[0] or side[1] > picture.shape[1]:
            continue
        how = "area" if size < 1 else "nearest"
        templates = torch.nn.functional.interpolate(details(images).mean(1, keepdim=True), side, mode=how)[:, 0].numpy()
        if max(best_correlations(picture, templates)) > FOUND:
            return True
    return False


def best_correlations(picture, templates):
    """Yield, for each template, its highest correlation with a part of a picture."""
    full = [fft.next_fast_len(n, real=True) for n in picture.shape]
    height, width = templates.shape[1:]
    ends = (slice(height - 1, picture.shape[0]), slice(width - 1, picture.shape[1]))

    def spectrum(values):
        return fft.rfft2(values, full)

    def parts(product):
        return fft.irfft2(product, full)[ends]

    seen, ones = spectrum(picture), spectrum(np.ones((height, width)))
    sums, squares = parts(seen * ones), parts(spectrum(picture**2) * ones)
    spread = np.sqrt(np.maximum(squares - sums**2 / (height * width), 1e-6))
    for template in templates:
        centred = template - template.mean()
        yield float((parts(seen * spectrum(centred[::-1, ::-1])) / spread).max() / np.linalg.norm(centred))
